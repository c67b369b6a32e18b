"""Rehearse the failover of mirrors, each on a topic of its own."""

from mirrorbook_airflow import mirrorbook_dags

dag = mirrorbook_dags("drill")["mirror_drill"]
