"""Fail over the mirrors of an application together."""

from mirrorbook_airflow import mirrorbook_dags

dag = mirrorbook_dags("failover_set")["mirror_failover_set"]
