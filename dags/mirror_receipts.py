"""Merge the receipts of past days."""

from mirrorbook_airflow import mirrorbook_dags

dag = mirrorbook_dags("receipts")["mirror_receipts"]
