"""Sync topics, settings, access rights and consumer groups' offsets."""

from mirrorbook_airflow import mirrorbook_dags

dag = mirrorbook_dags("sync")["mirror_sync"]
