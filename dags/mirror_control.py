"""Pause, resume, stop, start, throttle or change a mirror; recover partitions; abort or unblock a run."""

from mirrorbook_airflow import mirrorbook_dags

dag = mirrorbook_dags("control")["mirror_control"]
