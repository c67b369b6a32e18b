"""Keep a mirror's data plane running, and watch it."""

from mirrorbook_airflow import mirrorbook_dags

dag = mirrorbook_dags("replicate")["mirror_replicate"]
