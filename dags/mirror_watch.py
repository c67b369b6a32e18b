"""Fence old sources when they come back, and keep them fenced."""

from mirrorbook_airflow import mirrorbook_dags

dag = mirrorbook_dags("watch")["mirror_watch"]
