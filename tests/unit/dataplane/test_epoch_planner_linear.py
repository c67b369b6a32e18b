"""What a driver does at each plan or look grows with the number of topics, and not with its square."""

from __future__ import annotations

import uuid
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from mirror_core.dataplane.epoch_planner import COPIED_STATES, select_retries
from mirror_core.dataplane.observed_source import ObservedSource
from mirror_core.kafka import reassignment
from mirror_core.model.errors import Unreachable
from mirror_core.model.mirror import FailureKind, PartitionState, PartitionStatus
from mirror_core.model.names import MirrorName, Partition

TOPICS = 200
A_FEW = 50
"""Comparisons of each name: to sort them takes a dozen or two."""


class Name(str):
    """Of a topic; counts how often it is compared for equality."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


@pytest.fixture
def partitions() -> list[Partition]:
    Name.compared = 0
    return [Partition(Name(f"t{number:03}"), index) for number in range(TOPICS) for index in range(2)]


def test_topics_that_were_all_refused_are_tried_again(partitions: list[Partition]) -> None:
    """As after a mistake with an ACL that hid them all."""
    known = {
        one: PartitionStatus(
            partition=one,
            state=PartitionState.FAILED,
            source_topic_id="",
            destination_topic_id="",
            kind=FailureKind.DENIED,
            retry_at_ms=1,
        )
        for one in partitions
    }
    found = select_retries(known, COPIED_STATES, 2, is_held=False, paused_topics=())
    assert list(found) == [one for one in partitions if one.index == 0], "one of each, as a trial"
    assert Name.compared < A_FEW * TOPICS


@pytest.mark.parametrize(("left_ms", "is_due"), [(0, True), (1, False), (300_000, False), (7_200_000, True)])
def test_a_partition_is_tried_again_though_the_clock_was_set_back(left_ms: int, is_due: bool) -> None:
    partition = Partition("a", 0)
    failed = PartitionStatus(
        partition=partition,
        state=PartitionState.FAILED,
        source_topic_id="",
        destination_topic_id="",
        kind=FailureKind.REFUSED,
        retry_at_ms=10_000_000 + left_ms,
    )
    due = select_retries({partition: failed}, COPIED_STATES, 10_000_000, is_held=False, paused_topics=())
    assert bool(due) is is_due


def test_partitions_that_have_all_lost_their_leader_are_told(partitions: list[Partition]) -> None:
    memory = ObservedSource(MirrorName("m"), {})
    memory.update_ends(1, {}, partitions)
    topics = memory.to_observation().topics
    assert [(one.topic, one.offline) for one in topics] == [(f"t{n:03}", (0, 1)) for n in range(TOPICS)]
    assert Name.compared < A_FEW * TOPICS


def test_brokers_are_asked_together_for_the_ids_of_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, names = Counter[int](), [f"t{number}" for number in range(TOPICS)]
    ids = {1: uuid.UUID(int=1), 2: uuid.UUID(int=2)}

    def said_by(broker: int, request: Any) -> Any:
        asked[broker] += 1
        code = ErrorCode.none if broker in ids else ErrorCode.unknown_topic_or_partition
        rows = [SimpleNamespace(name=one.name, topic_id=ids.get(broker), error_code=code) for one in request.topics]
        return SimpleNamespace(topics=rows)

    def ask(client: Any, questions: Any) -> Any:
        connections = {b: SimpleNamespace(call=lambda request, _, b=b: said_by(b, request)) for b in questions}
        return {b: question(connections[b]) for b, question in questions.items()} | {4: Unreachable("4")}

    monkeypatch.setattr(reassignment, "call_brokers", ask)
    client: Any = SimpleNamespace(brokers=lambda: (1, 2, 3))
    found = reassignment.fetch_topic_ids(client, names)
    assert found.ids == dict.fromkeys(names, frozenset(one.hex for one in ids.values()))
    assert found.unreachable_brokers == (4,), "who does not answer is named"
    assert asked == {1: 1, 2: 1, 3: 1}
    monkeypatch.setattr(reassignment, "_MAX_TOPICS_PER_REQUEST", TOPICS // 2 - 1)
    assert reassignment.fetch_topic_ids(client, names) == found
    assert asked == {1: 4, 2: 4, 3: 4}, "and of very many in portions"
