"""Fail a mirror back: align the old source, copy home, switch, protect again."""

from mirrorbook_airflow import mirrorbook_dags

dag = mirrorbook_dags("failback")["mirror_failback"]
