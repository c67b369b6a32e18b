"""Bring the mirrors of an application home together."""

from mirrorbook_airflow import mirrorbook_dags

dag = mirrorbook_dags("failback_set")["mirror_failback_set"]
