"""Fixtures that all tests share; and which tests share a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler.loadfile import LoadFileScheduling

from mirror_core.sandbox.broker import JVM_OPTIONS
from tests.administering import restore_rights, rights_of
from tests.brokers import Pair
from tests.clusters import two_clusters

pytest_plugins = ["tests.tidiness"]

# By itself Hypothesis tries the same examples for ever where CI is set, and elsewhere fails what takes 200 ms on a busy
# machine. Here each run looks for new examples, and whatever fails says how to repeat it (`@reproduce_failure`).
settings.register_profile(
    "mirrorbook", settings.get_profile("default"), deadline=None, derandomize=False, print_blob=True
)
settings.load_profile("mirrorbook")

# Brokers and Spark sessions that live for minutes don't earn back what the second compiler costs: a third of the start.
os.environ.setdefault(JVM_OPTIONS, "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")

TOGETHER: Final = ("tests/spark/", "tests/dag/")
"""Spark's session and Airflow's database are slow to come by: one process has both, the other one neither."""


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> object:
    """A file's tests stay in one process, and so do all of `TOGETHER`. Whatever has most tests begins first."""
    if config.getvalue("dist") != "loadfile":
        return None
    scheduler = LoadFileScheduling(config, log)
    file_of = scheduler._split_scope
    scheduler._split_scope = lambda test: "together" if test.startswith(TOGETHER) else file_of(test)
    return scheduler


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two clusters of one real broker each, started once for the whole run. A test that kills one starts it again."""
    with two_clusters(tmp_path_factory.mktemp("pair")) as made:
        yield made


@pytest.fixture(autouse=True)
def rights(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test allows or denies on the shared clusters is gone after it, and what it took away is back.

    A failover leaves its fence behind on purpose, and its promoted grants: others ask who may do what on all there is.
    """
    if "pair" not in request.fixturenames:
        yield
        return
    pair: Pair = request.getfixturevalue("pair")
    before = {cluster.name: rights_of(cluster) for cluster in (pair.east, pair.west)}
    yield
    for cluster in (pair.east, pair.west):
        restore_rights(cluster, before[cluster.name])
