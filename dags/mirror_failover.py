"""Fail over a mirror: compare, fence the source, copy the rest, promote the destination."""

from mirrorbook_airflow import mirrorbook_dags

dag = mirrorbook_dags("failover")["mirror_failover"]
