"""Pause, resume, stop, start, throttle, change, split or delete a mirror; recover partitions; end a run."""

from mirrorbook_airflow import mirrorbook_dags

dag = mirrorbook_dags("control")["mirror_control"]
