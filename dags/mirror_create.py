"""Create a mirror between two clusters."""

from mirrorbook_airflow import mirrorbook_dags

dag = mirrorbook_dags("create")["mirror_create"]
