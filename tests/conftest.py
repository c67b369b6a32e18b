"""Fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Before the first import of ours: limits are made then, here and in processes that inherit it. Tests share a machine,
# and whoever is slow on it is not dead.
os.environ.setdefault("MIRRORBOOK_PATIENCE", "2")

from mirrorbook_tools.sandbox.broker import JVM_OPTIONS
from tests.support.cluster_admin import restore_rights, rights_of
from tests.support.declared_commands import provide_declared_commands
from tests.support.dedicated_clusters import two_clusters
from tests.support.kafka_clients import Pair

provide_declared_commands()

pytest_plugins = ["tests.support.file_isolation"]

# What must pass before a change is taken tries the same examples each time, so that it says something of the change.
# MIRRORBOOK_EXPLORE looks for new ones, as `make nightly` does; one that fails is kept as an `@example`.
# Without a deadline: by itself Hypothesis fails what takes 200 ms on a busy machine.
settings.register_profile("gate", deadline=None, derandomize=True, print_blob=True, database=None)
settings.register_profile("explore", settings.get_profile("gate"), derandomize=False, max_examples=500)
settings.load_profile("explore" if os.environ.get("MIRRORBOOK_EXPLORE") else "gate")

# Brokers and Spark sessions that live for minutes don't earn back what the second compiler costs: a third of the start.
os.environ.setdefault(JVM_OPTIONS, "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")


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
