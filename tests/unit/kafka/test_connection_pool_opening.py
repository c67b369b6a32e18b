"""Connections to many brokers at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.kafka import connection_pool
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.connection_pool import Address, ParallelConnect
from mirror_core.model.errors import BadRequest, Unreachable
from tests.support.sentences import format_sentence

MANY: list[Address] = [("broker", number) for number in range(100)]


class Cluster:
    """Brokers that hang until the test is over, but for some."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.begun = list[Address]()
        self.well = set[Address]()
        self.dead = set[Address]()
        self.closed = list[Address]()

    def open(self, address: Address) -> Connection:
        self.begun.append(address)
        if address in self.dead:
            raise Unreachable(f"{address[1]} is dead")
        if address not in self.well:
            self.over.wait()
        return cast("Connection", SimpleNamespace(has_responded=True, close=lambda: self.closed.append(address)))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(connection_pool, "_DOUBLE_AFTER_S", 0.02)
    monkeypatch.setattr(connection_pool, "_GRACE_S", 0.0)
    made = Cluster()
    yield made
    made.over.set()


def first(cluster: Cluster, limit_s: float = 30.0) -> tuple[list[Address], ParallelConnect]:
    with closing(ParallelConnect("east", cluster.open, MANY)) as some:
        return list(next(some.iter_connected(limit_s), {})), some


def test_a_cluster_that_comes_back_is_not_met_by_as_many_as_it_has_brokers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_pool, "_DOUBLE_AFTER_S", 20.0)  # it answers at once
    cluster.well = {MANY[3]}
    assert first(cluster)[0] == [MANY[3]]
    assert set(cluster.begun) <= set(MANY[:16])


def test_while_none_answers_more_and_more_are_tried(cluster: Cluster) -> None:
    cluster.well = {MANY[-1]}
    assert first(cluster)[0] == [MANY[-1]]
    assert len(cluster.begun) == len(MANY)


def test_who_refuses_makes_room_for_others(cluster: Cluster) -> None:
    cluster.dead, cluster.well = set(MANY[:-1]), {MANY[-1]}
    found, some = first(cluster)
    assert found == [MANY[-1]]
    assert len(some.problems) == len(MANY) - 1


def test_all_that_did_not_answer_in_time_are_named(cluster: Cluster) -> None:
    cluster.dead = {MANY[0]}
    found, some = first(cluster, 0.1)
    assert found == []
    assert sorted(str(problem) for problem in some.problems) == sorted(
        [
            "0 is dead",
            *(format_sentence("broker_not_connected_in_time", "east", n, "0.1") for n in range(1, 100)),
        ]
    )
    cluster.over.set()
    some._pool.shutdown(wait=True)
    assert sorted(cluster.closed) == sorted(set(cluster.begun) - cluster.dead), "they come late, and are not kept"


def test_what_is_wrong_with_our_configuration_is_said_before_any_broker(cluster: Cluster) -> None:
    def unreadable(address: Address) -> Any:
        raise BadRequest("no such file")

    with closing(ParallelConnect("east", unreadable, MANY)) as some, pytest.raises(BadRequest, match="no such file"):
        next(some.iter_connected(30.0))


def test_then_what_was_connected_at_the_same_time_is_closed(cluster: Cluster) -> None:
    begun = threading.Barrier(3)

    def open_one(address: Address) -> Connection:
        begun.wait()
        if address == MANY[1]:
            raise BadRequest("no such file")
        return cluster.open(address)

    cluster.well = {MANY[0], MANY[2]}
    with closing(ParallelConnect("east", open_one, MANY[:3])) as some:
        some._start(3)
        wait(some._connecting)
        with pytest.raises(BadRequest, match="no such file"):
            next(some.iter_connected(30.0))
    assert sorted(cluster.closed) == [MANY[0], MANY[2]]
