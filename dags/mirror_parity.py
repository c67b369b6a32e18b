"""Compare a mirror's destination with its source."""

from mirrorbook_airflow import mirrorbook_dags

dag = mirrorbook_dags("parity")["mirror_parity"]
