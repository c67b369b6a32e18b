"""Check whether a mirror is ready for a failover, and as expected."""

from mirrorbook_airflow import mirrorbook_dags

dag = mirrorbook_dags("check")["mirror_check"]
