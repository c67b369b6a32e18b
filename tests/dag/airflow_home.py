"""What tests put into the Airflow database of this run."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.credentials import CONTROL, DATA

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG


def connection_of(cluster: SandboxCluster) -> dict[str, Any]:
    """A connection of type `kafka_cluster` to a sandbox cluster, as a person would fill in the form."""
    control, data = cluster.client_config(CONTROL), cluster.client_config(DATA)
    return {
        "conn_type": "kafka_cluster",
        "host": control["bootstrap.servers"],
        "login": control["sasl.username"],
        "password": control["sasl.password"],
        "extra": json.dumps(
            {
                "security_protocol": control["security.protocol"],
                "sasl_mechanism": control["sasl.mechanism"],
                "data_username": data["sasl.username"],
                "data_password": data["sasl.password"],
            }
        ),
    }


def add_connection(name: str, fields: Mapping[str, Any]) -> None:
    """Put a connection in, in place of one of the same name."""
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as database:
        database.execute(delete(Connection).where(Connection.conn_id == name))
        database.add(Connection(conn_id=name, **fields))


@contextmanager
def alarm_kept() -> Iterator[None]:
    """Execution timeouts of tasks take the alarm with which pytest-timeout ends a test that hangs: it gets it back."""
    left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    handler = signal.getsignal(signal.SIGALRM)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, left_s)


def run_dag(dag: DAG, params: Mapping[str, Any]) -> DagRun:
    """Run a DAG to its end in this process. Airflow writes down all DAGs before each run: here before the first one."""
    from airflow.models.dag_version import DagVersion

    with ExitStack() as once:
        once.enter_context(alarm_kept())
        if DagVersion.get_version(dag.dag_id):
            for step in ("BundleDagBag", "sync_bag_to_db"):
                once.enter_context(patch(f"airflow.dag_processing.dagbag.{step}"))
        run: DagRun = dag.test(run_conf=dict(params))
    return run
