"""Whose logs are looked into first, where many are to be."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.copy import resume_finder
from mirror_core.copy.background import BackgroundThreads
from mirror_core.copy.log_comparisons import MAX_SHORT_COMPARISONS, ComparisonCase
from mirror_core.copy.log_ends import BothMetadata, ExpectedTopicIds, LogEndRequest, LogEndsResponse, VerifiedMetadata
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.resume_finder import ResumeFinder
from mirror_core.kafka.client import ClusterClient, ClusterMetadata
from mirror_core.kafka.reassignment import TopicIds
from tests.support.log_comparisons import SEEN, replicator
from tests.support.resume_decisions import EAST, WEST
from tests.support.waiting import wait_until

MANY = 40


class Leaders:
    """What both sides say, of partitions that have a leader each."""

    def __init__(self) -> None:
        self.source, self.destination = SimpleNamespace(name=EAST), SimpleNamespace(name=WEST)
        self.asked_at = list[float]()

    def set_hurry(self, hurry: bool) -> None: ...

    def fetch_metadata(self, wanted: Sequence[ExpectedTopicIds]) -> BothMetadata:
        nothing = VerifiedMetadata(ClusterMetadata("", 1, {}, {}, frozenset()), TopicIds({}, ()))
        return BothMetadata(nothing, nothing)

    def fetch_log_ends(self, wanted: Sequence[LogEndRequest]) -> LogEndsResponse:
        before = time.monotonic()
        self.asked_at.append(before)
        seen = {one.partition: replace(SEEN, source_end=100 + one.partition.index) for one in wanted}
        return LogEndsResponse(before, {}, seen, {})

    def close(self) -> None: ...


def routed(replicator: PartitionReplicator, views: BothMetadata, asking: object) -> LogEndRequest:
    return LogEndRequest(
        replicator.partition, 1, 1, 1, 1, end_unverified=False, is_interrupted=False, verified_end=None
    )


def looked_at(monkeypatch: pytest.MonkeyPatch, epoch: int) -> Sequence[ComparisonCase]:
    """In this order, in an epoch. The higher a partition's number, the further it is behind."""
    begun, many = list[ComparisonCase](), [replicator(index) for index in range(MANY)]
    leaders = Leaders()

    def begin(cases: Sequence[ComparisonCase]) -> Iterator[Any]:
        begun.extend(cases)
        return iter(())

    monkeypatch.setattr(resume_finder, "resolve_leaders", routed)
    with closing(BackgroundThreads()) as beside:
        aligner: Any = ResumeFinder(
            cast("ClusterClient", leaders.source),
            cast("ClusterClient", leaders.destination),
            7,
            lambda *_: None,
            list,
            beside,
            epoch,
        )
        monkeypatch.setattr(aligner, "_new_requests", lambda: leaders)
        monkeypatch.setattr(aligner._comparisons, "start", begin)
        aligner.start(many)

        def turn() -> bool:
            aligner.apply_results()
            return bool(begun)

        wait_until(turn, timeout_s=20, why="no look begins")
    assert begun[0].requested_at <= leaders.asked_at[0], "a leader remembers what it did when it was asked"
    return begun


def test_those_furthest_behind_are_first_and_in_each_epoch_others_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no look ends in time, the same ones would hold up all others in each epoch."""
    first = set[int]()
    for epoch in range(MANY):
        numbers = [case.replicator.partition.index for case in looked_at(monkeypatch, epoch)]
        assert sorted(numbers) == list(range(MANY))
        assert numbers[0] == MANY - 1
        first.update(numbers[:MAX_SHORT_COMPARISONS])
    assert first == set(range(MANY))
