"""What was sent and not answered: who looks at it, and who is spared the look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.copy.log_ends import _is_end_as_sent
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.resume_decision import LogInspector
from mirror_core.dataplane.counters import Counters
from mirror_core.dataplane.epoch_results import EpochResults
from mirror_core.decide.gaps_and_resume import BothLogBounds, OwnProducerState, ResumePoint
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import AlignedPartition, PartitionAssignment, PartitionFailure, TaskReport
from mirror_core.wire.batch import LOG_APPEND_TIME, split_batches
from mirror_core.wire.batch_encoder import build_batch, encode_record
from mirror_core.wire.records import Codec
from tests.support.resume_decisions import decide

A, B = Partition("a", 0), Partition("b", 0)


class Retimed:
    """The destination's log: from `first` on it has the broker's time; and where it was looked at."""

    def __init__(self, first: int | None) -> None:
        self.first = first
        self.looked: list[int] = []
        self.compared: list[tuple[int, int | None]] = []

    def find_first_divergence(
        self, partition: Partition, position: int, agreed_end: int | None, doubted_from: int | None
    ) -> None:
        assert agreed_end == doubted_from
        self.compared.append((position, doubted_from))

    def find_first_retimed(self, partition: Partition, start: int, seen: BothLogBounds) -> int | None:
        self.looked.append(start)
        return self.first


def seen(log_end: int = 10, *, log_start: int = 0, ends_as_sent: bool = False) -> BothLogBounds:
    ours = OwnProducerState(log_end, -1)
    return BothLogBounds(
        log_start=log_start,
        log_end=log_end,
        producer=ours,
        source_start=0,
        source_end=20,
        ends_as_sent=ends_as_sent,
        has_equal_tails=True,
    )


def replicator(*, answered: bool = False) -> PartitionReplicator:
    assigned = PartitionAssignment(
        partition=A, source_topic_id="", destination_topic_id="", source_epoch=1, all_answered=answered
    )
    made = PartitionReplicator(assigned)
    made.set_leaders(1, 1, 1)
    return made


def judge(
    one: PartitionReplicator,
    now: BothLogBounds,
    first: int | None = None,
    compared: Sequence[tuple[int, int | None]] = (),
) -> list[int]:
    """Where it looked. `compared`: which positions with the source, from which offset on."""
    logs = Retimed(first)
    decide(cast("LogInspector", logs), one, now)
    assert logs.compared == list(compared)
    return logs.looked


def test_a_newcomer_looks_at_the_end_of_the_log() -> None:
    assert judge(replicator(), seen()) == [9]


@pytest.mark.parametrize(
    ("answered", "now"), [(True, seen()), (False, seen(ends_as_sent=True)), (False, seen(log_start=10))]
)
def test_nobody_looks_at_what_is_known(answered: bool, now: BothLogBounds) -> None:
    one = replicator(answered=answered)
    assert judge(one, now) == []
    assert one.can_send


def test_who_was_not_answered_looks_at_all_that_came_behind_what_was() -> None:
    one = replicator(answered=True)
    judge(one, seen())
    one.handle_disconnect("cut")
    assert judge(one, seen(13), compared=[(13, 10)]) == [10]
    one.handle_disconnect("cut")
    assert judge(one, seen(13)) == [], "all of it is known by now"


@pytest.mark.parametrize(("reported", "compared"), [(None, []), (10, []), (8, [(10, 8)])])
def test_a_newcomer_compares_what_no_task_has_reported(
    reported: int | None, compared: list[tuple[int, int | None]]
) -> None:
    one = replicator(answered=True)
    one.assigned = replace(one.assigned, compare_from=None if reported is None else Offset(reported))
    judge(one, seen(), compared=compared)
    assert one.can_send
    assert one.known_from == (8 if compared else 10)


def test_what_has_the_brokers_time_fails_the_partition_where_that_begins() -> None:
    one = replicator()
    judge(one, seen(), first=7)
    assert one.failure is not None
    assert (one.failure.kind, one.failure.offset) == (FailureKind.ALTERED, 7)


def test_a_task_says_what_was_answered() -> None:
    one = replicator()
    one.resume_at(ResumePoint(offset=10, sequence=10, gap_end=10, seed_end=10, must_check_tail=False))
    assert one.all_answered
    one.progress.add_in_flight(0.0)
    assert not one.all_answered
    one.handle_disconnect("cut")
    assert not one.all_answered, "no answer will come"


def test_the_driver_vouches_for_what_tasks_have_said_last() -> None:
    made = EpochResults(
        cast("Any", SimpleNamespace(source=None, destination=None, mirror=SimpleNamespace(name="m"))),
        Counters(),
        lambda line: None,
    )
    lease = cast("Any", SimpleNamespace(generation=1))

    def told(*aligned: AlignedPartition, retry: str = "") -> set[Partition]:
        report = TaskReport(receipts=(), failures=(), cpu_s=0.0, aligned=aligned, retry_reason=retry)
        made.add_epoch(lease, 1, 0, (report,), partitions={A, B}, newest_epoch=1, final=False)
        return set(made.answered_partitions)

    assert told() == set(), "nobody has said anything"
    both = (
        AlignedPartition(partition=A, source_epoch=1, all_answered=True),
        AlignedPartition(partition=B, source_epoch=1, all_answered=True),
    )
    assert told(*both) == {A, B}
    assert told(AlignedPartition(partition=A, source_epoch=1), both[1], retry="its leader is away") == {B}
    assert told(both[0]) == {A}, "its leader was away all the time"
    assert told(retry="it broke") == set()


def test_what_an_older_epochs_task_tells_late_vouches_for_nothing(results: EpochResults) -> None:
    """It looked into a log until now, and does not know what the next one has sent."""

    def told(epoch: int, *, answered: bool) -> bool:
        aligned = (AlignedPartition(partition=A, source_epoch=1, all_answered=answered),)
        take(results, epoch, TaskReport(receipts=(), failures=(), cpu_s=0.0, aligned=aligned))
        return A in results.answered_partitions

    assert not told(2, answered=False)
    assert not told(1, answered=True)
    assert told(3, answered=True)
    assert not told(2, answered=False), "what it has sent may still be on its way"
    results.handle_lost_epoch(cast("Any", SimpleNamespace()), 5, "no slots")
    assert not told(4, answered=True)


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_a_partition_that_people_have_recovered_is_not_failed_by_what_an_older_epoch_found(
    results: EpochResults, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    failed = list[Partition]()
    monkeypatch.setattr(results, "record_trimmed", lambda lease, final: None)
    monkeypatch.setattr(
        results, "record_failures", lambda lease, failures: failed.extend(one.partition for one in failures)
    )
    differs = PartitionFailure(partition=A, reason="it differs", offset=None, kind=FailureKind.DIVERGED)
    late = TaskReport(
        receipts=(),
        failures=(differs,),
        cpu_s=0.0,
        aligned=(AlignedPartition(partition=A, source_epoch=1, all_answered=True),),
    )
    results.report_failure(A, "it differs")
    results.clear_failures([A], newest_epoch=2)
    take(results, epoch, late)
    new = epoch > 2
    assert failed == [A] * new
    assert list(results._aligned) == [A] * new, "what had agreed is another copy"


@pytest.fixture
def results() -> EpochResults:
    link = cast("Any", SimpleNamespace(source=None, destination=None, mirror=SimpleNamespace(name="m")))
    return EpochResults(link, Counters(), lambda line: None)


def take(results: EpochResults, epoch: int, report: TaskReport) -> None:
    lease: Any = SimpleNamespace(generation=1)
    results.add_epoch(lease, epoch, 0, (report,), partitions={A}, newest_epoch=5, final=False)


@pytest.mark.parametrize(("attributes", "end", "expected"), [(0, 3, True), (LOG_APPEND_TIME, 3, False), (0, 4, False)])
def test_a_log_ends_as_it_was_sent_when_its_last_batch_is_there_and_says_so(
    attributes: int, end: int, expected: bool
) -> None:
    batch = build_batch(encode_record(0, 0, b"\x01\x01\0") * 3, 3, Codec.NONE, 0, 0)
    batch[21:23] = attributes.to_bytes(2, "big")
    assert _is_end_as_sent(end - 1, list(split_batches(memoryview(batch)))) is expected
