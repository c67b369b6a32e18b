"""Who leads, as a broker said a moment ago, saves a question; it is no reason to leave a partition out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from mirror_core.kafka import log_offsets
from mirror_core.kafka.client import ClusterClient, Leader, TopicMetadata
from mirror_core.kafka.fan_out import BrokerTimeout
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import Offset, Partition

LED, LATER = Partition("t", 0), Partition("t", 1)
TOLD = {"t": TopicMetadata("t", "a" * 32, False, {0: Leader(1, 0), 1: Leader(-1, 3)}, 3, 2)}


class Cluster:
    name = "east"

    def __init__(self, leaders: dict[int, list[Partition]] | None) -> None:
        self._leaders = leaders
        self.asked: list[list[Partition]] = []

    def leaders(self, partitions: Iterable[Partition]) -> dict[int, list[Partition]]:
        self.asked.append(list(partitions))
        if self._leaders is None:
            raise Unreachable("no broker answered")
        return self._leaders

    def ask_another(self) -> None: ...


def found(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, answers: dict[int, object]) -> dict[Partition, Offset]:
    monkeypatch.setattr(log_offsets, "call_brokers", lambda _, asked: {broker: answers[broker] for broker in asked})
    monkeypatch.setattr(log_offsets, "_iter_rows", lambda rows: rows)
    return list_known_offsets(
        cast("ClusterClient", cast("Any", cluster)), [LED, LATER], OffsetPoint.STABLE_END, topics=TOLD
    )


def row(partition: Partition) -> tuple[Partition, ErrorCode, Offset, int]:
    return partition, ErrorCode.none, Offset(7), 3


def test_a_partition_that_was_leaderless_is_asked_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster({2: [LATER]})
    assert found(cluster, monkeypatch, {1: [row(LED)], 2: [row(LATER)]}) == {LED: 7, LATER: 7}
    assert cluster.asked == [[LATER]]


def test_a_cluster_of_which_every_broker_hangs_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unreachable):
        found(Cluster(None), monkeypatch, {1: BrokerTimeout("no answer")})


def test_nothing_is_asked_where_all_that_was_told_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(None)
    monkeypatch.setitem(TOLD["t"].partitions, 1, Leader(1, 3))
    assert found(cluster, monkeypatch, {1: [row(LED), row(LATER)]}) == {LED: 7, LATER: 7}
    assert not cluster.asked
