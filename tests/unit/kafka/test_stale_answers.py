"""What one broker says at one moment is no reason to fail a topic for good."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.dataplane import epoch_planner
from mirror_core.dataplane.epoch_planner import RETRIED_KINDS, Planner
from mirror_core.dataplane.epoch_results import ReplicationSummary, raise_if_failed
from mirror_core.kafka import reassignment
from mirror_core.kafka.client import Leader, TopicMetadata
from mirror_core.kafka.reassignment import TopicIds
from mirror_core.model.errors import Indeterminate, Unreachable
from mirror_core.model.mirror import FailureKind, PartitionState, PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.state.state_records import PartitionRecord, State
from mirror_core.sync import topic_compaction, topic_errors
from mirror_core.sync.mirror_topics import TopicPlacement
from mirror_core.sync.topic_compaction import find_lagging_topics
from mirror_core.sync.topic_errors import TopicConflicts
from tests.support.cluster_names import LINK
from tests.support.sentences import format_sentence

P = Partition("orders", 0)
HERS, ANOTHER = "1" * 32, "2" * 32
COPIED = PartitionStatus(
    partition=P,
    state=PartitionState.MIRRORING,
    source_topic_id=HERS,
    destination_topic_id="3" * 32,
    initial_log_start=Offset(0),
    source_start=Offset(0),
)


class Source:
    """A cluster of three brokers. The one that we are connected to lists no topic."""

    name = "east"

    def __init__(self) -> None:
        self.doubted = 0

    def mark_metadata_stale(self) -> None:
        self.doubted += 1

    def brokers(self) -> tuple[int, ...]:
        return 1, 2, 3

    def metadata(self, topics: object = None) -> Any:
        return SimpleNamespace(topics={}, denied=frozenset())


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setattr(epoch_planner, "list_mirror_topics", lambda link, client: {})
    monkeypatch.setattr(epoch_planner, "create_missing_topics", lambda *_: TopicPlacement({}, (), {}))
    monkeypatch.setattr(
        epoch_planner,
        "_fetch_known_offsets",
        lambda client, wanted, point, topics=None: dict.fromkeys(wanted, Offset(0)),
    )
    return Source()


def planner(source: Source) -> Planner:
    link = replace(LINK, mirror=replace(LINK.mirror, topics=(P.topic,)))
    return Planner(link, cast("Any", source), cast("Any", SimpleNamespace(name="west")))


def mirrored() -> State:
    state = State()
    state.put(PartitionRecord(LINK.mirror.name, COPIED))
    return state


@pytest.mark.parametrize(
    ("by_the_others", "gone"), [((), [P]), ((ANOTHER,), [P]), ((HERS,), []), ((HERS, ANOTHER), [])]
)
def test_a_topic_that_a_listing_leaves_out_is_deleted_when_no_broker_knows_it(
    monkeypatch: pytest.MonkeyPatch, source: Source, by_the_others: tuple[str, ...], gone: list[Partition]
) -> None:
    asked = list[set[str]]()

    def heard_ids(client: object, topics: Any) -> TopicIds:
        asked.append(set(topics))
        return TopicIds({name: frozenset(by_the_others) for name in topics}, ())

    monkeypatch.setattr(epoch_planner, "fetch_topic_ids", heard_ids)
    state, made = mirrored(), planner(source)
    first = made.plan(state, all_ends=False)
    assert (list(first.failed), source.doubted) == ([], 0), "one listing may be behind"
    work = made.plan(state, all_ends=False)
    assert (list(work.failed), [c.status.kind for c in work.changes]) == (gone, [FailureKind.GONE] * len(gone))
    assert asked == [{P.topic}], "only what was missed twice is asked for"
    assert list(work.partitions) == ([] if gone else [P]), "what other brokers know is copied"
    assert source.doubted == (0 if gone else 1), "and one of them is asked for the next listing"
    assert work.undecided_topics == ()


@pytest.mark.parametrize("known_as", [None, HERS])
def test_the_silence_of_brokers_does_not_say_that_a_topic_is_deleted(
    monkeypatch: pytest.MonkeyPatch, source: Source, known_as: str | None
) -> None:
    said: dict[int, Any] = {1: [], 2: Unreachable("timed out"), 3: [(P.topic, known_as)] if known_as else []}
    monkeypatch.setattr(reassignment, "call_brokers", lambda client, asked: {broker: said[broker] for broker in asked})
    state, made = mirrored(), planner(source)
    for _ in range(3):
        work = made.plan(state, all_ends=False)
        assert (work.failed, work.changes) == ({}, ())
    assert list(work.partitions) == ([P] if known_as else [])
    if not known_as:
        [words] = work.undecided_topics
        assert "cluster east, topic orders" in words
        assert "1 broker (2) gave no answer" in words
        assert source.doubted == 2
        said[2] = []
        work = made.plan(state, all_ends=False)
        assert (list(work.failed), work.undecided_topics) == ([P], ())


@pytest.mark.parametrize(("silent", "copied", "failed"), [(False, [], [P]), (True, [], [])])
def test_nor_that_it_was_made_anew(
    monkeypatch: pytest.MonkeyPatch, source: Source, silent: bool, copied: list[Partition], failed: list[Partition]
) -> None:
    view = TopicMetadata(P.topic, ANOTHER, False, {0: Leader(1, 5)}, 1, 1)
    said: dict[int, Any] = {1: [(P.topic, ANOTHER)], 2: Unreachable("timed out") if silent else [], 3: []}
    monkeypatch.setattr(epoch_planner, "list_mirror_topics", lambda link, client: {P.topic: view})
    monkeypatch.setattr(reassignment, "call_brokers", lambda client, asked: {broker: said[broker] for broker in asked})
    work = planner(source).plan(mirrored(), all_ends=False)
    assert (list(work.partitions), list(work.failed), len(work.undecided_topics)) == (copied, failed, int(silent))


def test_a_topic_of_which_nobody_can_say_whether_it_is_empty_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(*_: object) -> Any:
        raise Unreachable("no leader for orders-0")

    monkeypatch.setattr(topic_errors, "list_offset_points", away)
    monkeypatch.setattr(topic_errors, "list_known_offsets", away)
    there = cast("TopicMetadata", SimpleNamespace(name="orders", id=ANOTHER, partitions={0: None}))
    found = TopicConflicts(LINK, State(), cast("Any", SimpleNamespace(name="west")), [there]).find_conflict(there)
    assert found is not None
    words, kind = found
    assert format_sentence("whether_it_is_empty_could", "orders-0") in words
    assert kind in RETRIED_KINDS
    assert kind is not FailureKind.OCCUPIED


def test_a_partition_without_a_leader_keeps_its_own_topic_from_being_cleaned_by_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {
        "east": {Partition("bills", 0): 5, Partition("cards", 0): 7, Partition("late", 0): 3},
        "west": {Partition("bills", 0): 5, Partition("late", 0): 2},
    }

    def known_offsets(client: Any, partitions: Any, point: object) -> dict[Partition, int]:
        return {p: offset for p, offset in known[client.name].items() if p in partitions}

    monkeypatch.setattr(topic_compaction, "list_known_offsets", known_offsets)
    sides = [cast("Any", SimpleNamespace(name=name)) for name in known]
    topics = {
        name: cast("TopicMetadata", SimpleNamespace(partitions={0: None}))
        for name in ("bills", "cards", "late", "lone")
    }
    assert find_lagging_topics(sides[0], sides[1], topics, 0.0) == {"cards", "late", "lone"}


@pytest.mark.parametrize(("by_another", "silent"), [(HERS, False), (None, True), (None, False)])
def test_the_only_plan_of_a_command_that_catches_up_asks_all_brokers_at_once(
    monkeypatch: pytest.MonkeyPatch, source: Source, by_another: str | None, silent: bool
) -> None:
    """A listing that is behind would leave a topic out, and the command would say that all is copied."""
    said: dict[int, Any] = {1: [], 2: Unreachable("timed out") if silent else [], 3: []}
    said[3] = [(P.topic, by_another)] if by_another else []
    monkeypatch.setattr(reassignment, "call_brokers", lambda client, asked: {broker: said[broker] for broker in asked})
    monkeypatch.setattr(epoch_planner, "list_offsets", lambda client, wanted, point: dict.fromkeys(wanted, Offset(0)))
    work = planner(source).plan(mirrored(), all_ends=True)
    assert list(work.partitions) == ([P] if by_another else [])
    assert list(work.failed) == ([] if by_another or silent else [P])
    assert len(work.undecided_topics) == int(silent)


def test_who_has_caught_up_but_for_what_nobody_knows_says_so() -> None:
    raise_if_failed(ReplicationSummary())
    with pytest.raises(Indeterminate, match="broker 2 does not answer"):
        raise_if_failed(ReplicationSummary(undecided=("topic orders: broker 2 does not answer",)))
