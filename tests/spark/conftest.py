"""One Spark for all tests of a run: a process can have no second one, and starting it takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from mirror_core.spark.session import get_existing_context, get_spark_session


@pytest.fixture(scope="session", autouse=True)
def spark() -> Iterator[SparkSession]:
    """A local session with four task slots: two tasks in each of two overlapping epochs."""
    if (left := get_existing_context()) is not None:  # as large as this machine: DAGs share the process
        left.stop()
    shared = get_spark_session("mirrorbook-tests", "local[4]")
    yield shared
    shared.stop()
