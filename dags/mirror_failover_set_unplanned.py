"""Fail over the mirrors of an application without their sources: what was not copied is lost."""

from mirrorbook_airflow import mirrorbook_dags

dag = mirrorbook_dags("failover_set_unplanned")["mirror_failover_set_unplanned"]
