"""Fail over a mirror without its source: what was not copied is lost."""

from mirrorbook_airflow import mirrorbook_dags

dag = mirrorbook_dags("failover_unplanned")["mirror_failover_unplanned"]
