"""A topic that one broker calls gone: what becomes of its partitions depends on what the other brokers say."""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.copy import log_ends
from mirror_core.copy.log_ends import BothMetadata, LogEndRequest, LogEndRequests
from mirror_core.copy.log_ends import _verify_metadata as asking_view
from mirror_core.copy.messages import ClusterSide
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.response_errors import handle_fetch_error, handle_produce_response
from mirror_core.copy.resume_finder import resolve_leaders
from mirror_core.copy.send_queue import SentBatch
from mirror_core.copy.task import CopyTask
from mirror_core.decide.gaps_and_resume import ResumePoint
from mirror_core.kafka.client import ClusterClient, ClusterMetadata, Leader, TopicMetadata
from mirror_core.kafka.error_mapping import ErrorCode
from mirror_core.kafka.log_snapshot import LogSnapshot, LogSnapshots, OffsetPairs
from mirror_core.model.errors import Unreachable
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.model.task_messages import PartitionAssignment
from mirror_core.wire.produce import ProducedPartition

PARTITION = Partition("orders", 0)
OLD, NEW = uuid.uuid4(), uuid.uuid4()
EAST, WEST = ClusterName("east"), ClusterName("west")


class Brokers:
    """As many as there are answers: the id by which each knows the topic, None if it does not, or no answer."""

    def __init__(self, name: str, *answers: uuid.UUID | Unreachable | None) -> None:
        self.name, self._answers = ClusterName(name), answers
        self.config, self.principal, self.timeout_s, self.round_trip_s = None, None, 10.0, 0.0
        self.timed_out_at: dict[int, float] = {}
        self.doubts, self.fail_fast = 0, False

    def mark_metadata_stale(self) -> None:
        self.doubts += 1

    def brokers(self) -> tuple[int, ...]:
        return tuple(range(len(self._answers)))

    def address(self, broker: int) -> tuple[str, int]:
        return "", broker

    def borrow_connection(self, address: tuple[str, int]) -> None:
        return None

    def return_connection(self, address: tuple[str, int], connection: object) -> None: ...

    def open(self, address: tuple[str, int]) -> SimpleNamespace:
        found = self._answers[address[1]]
        if isinstance(found, Unreachable):
            raise found
        code = ErrorCode.none if found else ErrorCode.unknown_topic_or_partition
        answer = SimpleNamespace(topics=[SimpleNamespace(name="orders", topic_id=found, error_code=code)])
        return SimpleNamespace(call=lambda *asked: answer)


def view(topic_id: uuid.UUID | None, leader: Leader | None = None) -> ClusterMetadata:
    topics = (
        {"orders": TopicMetadata("orders", topic_id.hex, False, {0: leader or Leader(1, 1)}, 1, 1)} if topic_id else {}
    )
    return ClusterMetadata("", 1, {}, topics, frozenset())


@pytest.mark.parametrize("said", [None, NEW])
@pytest.mark.parametrize(
    ("others", "state"),
    [
        ((OLD,), CopyState.LOST),
        ((NEW, Unreachable("it is dead"), OLD), CopyState.LOST),
        ((NEW, Unreachable("it is dead"), None), CopyState.LOST),
        ((NEW, None), CopyState.FAILED),
        ((), CopyState.FAILED),
    ],
)
def test_a_topic_is_gone_when_every_broker_says_that_it_does_not_know_it_any_more(
    said: uuid.UUID | None, others: tuple[uuid.UUID | Unreachable | None, ...], state: CopyState
) -> None:
    both = asking_of(Brokers("east", OLD), Brokers("west", said, *others))
    assigned = PartitionAssignment(partition=PARTITION, source_topic_id=OLD.hex, destination_topic_id=OLD.hex)
    replicator = PartitionReplicator(assigned)
    assert routed_as(replicator, both, view(OLD), view(said)) is None
    assert replicator.state is state
    assert replicator.failure is None or replicator.failure.kind is FailureKind.REPLACED


def test_a_partition_that_one_broker_has_not_heard_of_yet_is_waited_for() -> None:
    """A topic that was widened a moment ago. Nothing takes partitions away from a topic of the same id."""
    both = asking_of(Brokers("east", OLD), Brokers("west", OLD))
    assigned = PartitionAssignment(
        partition=Partition("orders", 1), source_topic_id=OLD.hex, destination_topic_id=OLD.hex
    )
    replicator = PartitionReplicator(assigned)
    wide = TopicMetadata("orders", OLD.hex, False, {0: Leader(1, 1), 1: Leader(1, 1)}, 1, 1)
    east = ClusterMetadata("", 1, {}, {"orders": wide}, frozenset())
    assert routed_as(replicator, both, east, view(OLD)) is None
    assert replicator.state is CopyState.LOST


def test_topic_ids_are_for_requests_where_a_cluster_has_them() -> None:
    none = uuid.UUID(int=0)
    replicator = PartitionReplicator(
        PartitionAssignment(partition=PARTITION, source_topic_id=OLD.hex, destination_topic_id=none.hex)
    )
    assert (replicator.source_topic_id, replicator.destination_topic_id) == (OLD.bytes, b"")


def test_where_topics_have_no_ids_a_partition_that_is_missing_is_gone() -> None:
    none = uuid.UUID(int=0)
    both = asking_of(Brokers("east", none), Brokers("west", none))
    assigned = PartitionAssignment(
        partition=Partition("orders", 1), source_topic_id=none.hex, destination_topic_id=none.hex
    )
    replicator = PartitionReplicator(assigned)
    assert routed_as(replicator, both, view(none), view(none)) is None
    assert replicator.failure
    assert replicator.failure.kind is FailureKind.GONE


@pytest.mark.parametrize(
    ("misled", "times", "source", "destination", "doubts"),
    [
        ("east", 1, Leader(1, 7), Leader(1, 7), (0, 0)),
        ("east", 2, Leader(1, 7), Leader(1, 7), (1, 0)),
        ("west", 2, Leader(1, 7), Leader(1, 7), (0, 1)),
        (None, 2, Leader(1, 7), Leader(1, 7), (0, 0)),
        ("east", 2, Leader(2, 8), Leader(2, 8), (0, 0)),
        ("west", 2, Leader(1, 8), Leader(2, 8), (0, 0)),
        (None, 0, Leader(2, 6), Leader(1, 7), (1, 0)),
    ],
)
def test_whose_word_has_led_to_nothing_before_is_not_believed_again_and_again(
    misled: ClusterName | None, times: int, source: Leader, destination: Leader, doubts: tuple[int, int]
) -> None:
    east, west = Brokers("east", OLD), Brokers("west", OLD)
    both = asking_of(east, west)
    replicator = PartitionReplicator(
        PartitionAssignment(partition=PARTITION, source_topic_id=OLD.hex, destination_topic_id=OLD.hex)
    )
    assert routed_as(replicator, both, view(OLD, Leader(1, 7)), view(OLD, Leader(1, 7)))
    for _ in range(times):
        replicator.mark_lost("why", misled)
    assert routed_as(replicator, both, view(OLD, source), view(OLD, destination))
    assert (east.doubts, west.doubts) == doubts


def asking_of(east: Brokers, west: Brokers) -> LogEndRequests:
    return LogEndRequests(cast("ClusterClient", east), cast("ClusterClient", west), 1 << 62)


def routed_as(
    replicator: PartitionReplicator, asking: LogEndRequests, source: ClusterMetadata, destination: ClusterMetadata
) -> LogEndRequest | None:
    """By what one broker of each side has said, and where that is doubtful all of them."""
    partition, assigned = replicator.partition, replicator.assigned
    views = BothMetadata(
        asking_view(asking.source, source, {partition: assigned.source_topic_id}),
        asking_view(asking.destination, destination, {partition: assigned.destination_topic_id}),
    )
    return resolve_leaders(replicator, views, asking)


def routed() -> PartitionReplicator:
    made = PartitionReplicator(
        PartitionAssignment(partition=PARTITION, source_topic_id=OLD.hex, destination_topic_id=OLD.hex)
    )
    made.set_leaders(1, 1, 1)
    return made


def test_of_a_partition_without_a_leader_the_truth_was_told() -> None:
    east, west = Brokers("east", OLD), Brokers("west", OLD)
    both = asking_of(east, west)
    one = routed()
    for _ in range(20):
        assert routed_as(one, both, view(OLD, Leader(-1, 1)), view(OLD, Leader(1, 1))) is None
    assert (east.doubts, west.doubts) == (0, 0)


@pytest.mark.parametrize(
    ("code", "misled"),
    [
        (ErrorCode.not_leader_or_follower, True),
        (ErrorCode.fenced_leader_epoch, True),
        (ErrorCode.unknown_topic_id, True),
        (ErrorCode.inconsistent_topic_id, True),
        (ErrorCode.offset_out_of_range, False),
        (ErrorCode.unknown_server_error, False),
    ],
)
def test_a_fetch_that_no_leader_answers_was_misled(code: ErrorCode, misled: bool) -> None:
    one = routed()
    handle_fetch_error(one, code.value, ClusterSide(EAST, "mirror"))
    assert (one.state, one.misleading_cluster) == (CopyState.LOST, EAST if misled else None)


@pytest.mark.parametrize(
    ("code", "misled"),
    [
        (ErrorCode.not_leader_or_follower, True),
        (ErrorCode.unknown_topic_id, True),
        (ErrorCode.not_enough_replicas, False),
    ],
)
def test_so_was_a_produce(code: ErrorCode, misled: bool) -> None:
    one = routed()
    one.resume_at(ResumePoint(offset=10, sequence=10, gap_end=10, seed_end=10, must_check_tail=False))
    one.progress.add_in_flight(0.0)
    sent = SentBatch(base_offset=10, records=10, size=100, digest=7)
    handle_produce_response(one, sent, ProducedPartition("orders", 0, code.value, -1, ""), ClusterSide(WEST, "mirror"))
    assert one.state is CopyState.LOST
    assert one.misleading_cluster == (WEST if misled else None)


@pytest.mark.parametrize(
    ("source", "destination", "failed", "owed", "misled"),
    [
        ({1: "refused"}, {}, True, "", EAST),
        ({}, {1: "refused"}, True, "", WEST),
        ({1: "no answer yet"}, {}, False, "", None),
        ({}, {1: "no answer yet"}, False, "", None),
        ({}, {}, False, "a quota limits what mirror may write", None),
    ],
)
def test_a_leader_that_cannot_be_reached_misled_and_one_with_a_quota_did_not(
    source: dict[int, str], destination: dict[int, str], failed: bool, owed: str, misled: ClusterName | None
) -> None:
    def ahead(missing: dict[int, str]) -> SimpleNamespace:
        return SimpleNamespace(
            find_unconnected=lambda brokers: missing,
            try_start_opening=lambda brokers: {},
            has_failed=lambda broker: failed,
        )

    task: Any = SimpleNamespace(
        source=Brokers(EAST),
        destination=Brokers(WEST),
        replicators=(),
        fetcher=SimpleNamespace(links={}),
        producer=SimpleNamespace(links={}, explain_backlog=lambda broker: owed),
        _resume_finder=SimpleNamespace(is_busy=True),
        _source_connections=ahead(source),
        _destination_connections=ahead(destination),
    )
    one = routed()
    assert CopyTask._filter_connected(task, [one]) == []
    assert one.misleading_cluster == misled


LOG = LogSnapshot(start=Offset(0), end_before=Offset(9), producers=(), high_watermark=Offset(9), end_after=Offset(9))


@pytest.mark.parametrize(
    ("log", "misled"),
    [
        (None, WEST),
        (replace(LOG, high_watermark=Offset(5)), WEST),
        (replace(LOG, end_after=Offset(10), high_watermark=Offset(10)), None),
        (LOG, EAST),
    ],
    ids=["it leads no more", "its replicas do not follow", "another copier is at work", "the source's leads no more"],
)
def test_a_leader_that_cannot_be_looked_at_misled(
    log: LogSnapshot | None, misled: ClusterName | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_ends, "_STABLE_END_WAIT_S", 0.0)
    monkeypatch.setattr(
        log_ends, "snapshot_logs", lambda client, led: LogSnapshots({} if log is None else {PARTITION: log}, {})
    )
    monkeypatch.setattr(log_ends, "list_offset_pairs", lambda *asked: OffsetPairs({}, {}))
    found = asking_of(Brokers("east", OLD), Brokers("west", OLD)).fetch_log_ends(
        [LogEndRequest(PARTITION, 1, 1, 1, 1, end_unverified=False, is_interrupted=False, verified_end=None)]
    )
    assert found.bounds == {}
    assert found.unknown[PARTITION].misleading_cluster == misled


@pytest.mark.parametrize(("epoch", "known"), [(7, 10), (8, None)])
def test_what_was_compared_counts_while_the_same_leader_leads(epoch: int, known: int | None) -> None:
    """Another one may have cut its log, and what stands there then was never compared (KIP-101)."""
    both = asking_of(Brokers("east", OLD), Brokers("west", OLD))
    assigned = PartitionAssignment(
        partition=PARTITION,
        source_topic_id=OLD.hex,
        destination_topic_id=OLD.hex,
        verified_end=Offset(10),
        verified_epoch=7,
    )
    asked = routed_as(PartitionReplicator(assigned), both, view(OLD), view(OLD, Leader(1, epoch)))
    assert asked is not None
    assert asked.verified_end == known
