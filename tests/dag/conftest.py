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

HOME = Path(tempfile.mkdtemp(prefix="mirrorbook-airflow-"))
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
DAGS = Path(__file__).resolve().parents[2] / "dags"
os.environ.update(
    AIRFLOW_HOME=str(HOME),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__DAGS_FOLDER=str(DAGS),
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS="admin:admin",
    AIRFLOW__MIRRORBOOK__DATA_PLANE="start",
)


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
