"""An Airflow home of its own for the tests of this folder. It must be named before anything imports Airflow."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag

    from tests.support.kafka_clients import Pair

HOME = Path(tempfile.mkdtemp(prefix="mirrorbook-airflow-"))
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
DAGS = Path(__file__).resolve().parents[2] / "dags"
os.environ.update(
    AIRFLOW_HOME=str(HOME),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__DAGS_FOLDER=str(DAGS),
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS="admin:admin",
    AIRFLOW__MIRRORBOOK__SPARK_MASTERS="local[*]",
)


@pytest.fixture(autouse=True)
def executors_config(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Spark's tasks open, where there are clusters."""
    if "pair" in request.fixturenames:
        pair: Pair = request.getfixturevalue("pair")
        monkeypatch.setenv("AIRFLOW__MIRRORBOOK__EXECUTORS_CONFIG", str(pair.config_path))


@pytest.fixture(scope="session")
def airflow_database() -> None:
    """Airflow's database, fresh."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Airflow's own
        from airflow.utils.db import initdb

        initdb()
    return


@pytest.fixture(scope="session")
def dag_bag(airflow_database: None) -> DagBag:
    """All DAGs of the project."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from airflow.dag_processing.dagbag import DagBag

        return DagBag(str(DAGS))
