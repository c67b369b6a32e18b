"""What was sent and not answered: who looks at it, and who is spared the look."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.copy.endings import _ends_as_sent
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.verdict import Logs
from mirror_core.dataplane.counters import Counters
from mirror_core.dataplane.results import Results
from mirror_core.decide.position import Ours, Resume, Seen
from mirror_core.model.copying import Aligned, Assigned, Failure, TaskReport
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Partition
from mirror_core.wire.batch import LOG_APPEND_TIME
from mirror_core.wire.encode import batch_of, record
from mirror_core.wire.fetch import Fetched
from mirror_core.wire.records import Codec
from tests.judging import decide

A, B = Partition("a", 0), Partition("b", 0)


class Retimed:
    """The destination's log: from `first` on it has the broker's time; and where it was looked at."""

    def __init__(self, first: int | None) -> None:
        self.first = first
        self.looked: list[int] = []

    def first_retimed(self, partition: Partition, start: int, seen: Seen) -> int | None:
        self.looked.append(start)
        return self.first


def seen(log_end: int = 10, *, log_start: int = 0, ends_as_sent: bool = False) -> Seen:
    ours = Ours(log_end, -1)
    return Seen(
        log_start=log_start, log_end=log_end, ours=ours, source_start=0, source_end=20, ends_as_sent=ends_as_sent
    )


def replicator(*, answered: bool = False) -> PartitionReplicator:
    assigned = Assigned(partition=A, source_topic_id="", destination_topic_id="", source_epoch=1, answered=answered)
    made = PartitionReplicator(assigned)
    made.route(1, 1, 1)
    return made


def judge(one: PartitionReplicator, now: Seen, first: int | None = None) -> list[int]:
    """Where it looked."""
    logs = Retimed(first)
    decide(cast("Logs", logs), one, now)
    return logs.looked


def test_a_newcomer_looks_at_the_end_of_the_log() -> None:
    assert judge(replicator(), seen()) == [9]


@pytest.mark.parametrize(
    ("answered", "now"), [(True, seen()), (False, seen(ends_as_sent=True)), (False, seen(log_start=10))]
)
def test_nobody_looks_at_what_is_known(answered: bool, now: Seen) -> None:
    one = replicator(answered=answered)
    assert judge(one, now) == []
    assert one.working


def test_who_was_not_answered_looks_at_all_that_came_behind_what_was() -> None:
    one = replicator(answered=True)
    judge(one, seen())
    one.disconnected("cut")
    assert judge(one, seen(13)) == [10]
    one.disconnected("cut")
    assert judge(one, seen(13)) == [], "all of it is known by now"


def test_what_has_the_brokers_time_fails_the_partition_where_that_begins() -> None:
    one = replicator()
    judge(one, seen(), first=7)
    assert one.failure is not None
    assert (one.failure.kind, one.failure.offset) == (FailureKind.ALTERED, 7)


def test_a_task_says_what_was_answered() -> None:
    one = replicator()
    one.resume_at(Resume(offset=10, sequence=10, gap_end=10, seed_end=10, check_tail=False))
    assert one.answered
    one.place.sent(0.0)
    assert not one.answered
    one.disconnected("cut")
    assert not one.answered, "no answer will come"


def test_the_driver_vouches_for_what_tasks_have_said_last() -> None:
    made = Results(
        cast("Any", SimpleNamespace(source=None, destination=None, mirror=SimpleNamespace(name="m"))),
        Counters(),
        lambda line: None,
    )
    lease = cast("Any", SimpleNamespace(generation=1))

    def told(*aligned: Aligned, retry: str = "") -> set[Partition]:
        report = TaskReport(receipts=(), failures=(), cpu_s=0.0, aligned=aligned, retry=retry)
        made.take(lease, 1, 0, (report,), newest=1, final=False)
        return set(made.answered)

    assert told() == set(), "nobody has said anything"
    both = Aligned(partition=A, source_epoch=1, answered=True), Aligned(partition=B, source_epoch=1, answered=True)
    assert told(*both) == {A, B}
    assert told(Aligned(partition=A, source_epoch=1), retry="its leader is away") == {B}
    assert told(both[0]) == {A, B}
    assert told(retry="it broke") == set()


def test_what_an_older_epochs_task_tells_late_vouches_for_nothing(results: Results) -> None:
    """It looked into a log until now, and does not know what the next one has sent."""

    def told(epoch: int, *, answered: bool) -> bool:
        aligned = (Aligned(partition=A, source_epoch=1, answered=answered),)
        take(results, epoch, TaskReport(receipts=(), failures=(), cpu_s=0.0, aligned=aligned))
        return A in results.answered

    assert not told(2, answered=False)
    assert not told(1, answered=True)
    assert told(3, answered=True)
    assert not told(2, answered=False), "what it has sent may still be on its way"
    results.lost(cast("Any", SimpleNamespace()), 5, "no slots")
    assert not told(4, answered=True)


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_a_partition_that_people_have_recovered_is_not_failed_by_what_an_older_epoch_found(
    results: Results, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    failed = list[Partition]()
    monkeypatch.setattr(results, "count", lambda lease, final: None)
    monkeypatch.setattr(results, "found", lambda lease, failures: failed.extend(one.partition for one in failures))
    differs = Failure(partition=A, reason="it differs", offset=None, kind=FailureKind.DIVERGED)
    late = TaskReport(
        receipts=(), failures=(differs,), cpu_s=0.0, aligned=(Aligned(partition=A, source_epoch=1, answered=True),)
    )
    results.failed(A, "it differs")
    results.copied([A], newest=2)
    take(results, epoch, late)
    new = epoch > 2
    assert failed == [A] * new
    assert list(results._aligned) == [A] * new, "what had agreed is another copy"


@pytest.fixture
def results() -> Results:
    link = cast("Any", SimpleNamespace(source=None, destination=None, mirror=SimpleNamespace(name="m")))
    return Results(link, Counters(), lambda line: None)


def take(results: Results, epoch: int, report: TaskReport) -> None:
    results.take(cast("Any", SimpleNamespace(generation=1)), epoch, 0, (report,), newest=5, final=False)


@pytest.mark.parametrize(
    ("attributes", "end", "error", "expected"),
    [(0, 3, 0, True), (LOG_APPEND_TIME, 3, 0, False), (0, 4, 0, False), (0, 3, 6, False)],
)
def test_a_log_ends_as_it_was_sent_when_its_last_batch_is_there_and_says_so(
    attributes: int, end: int, error: int, expected: bool
) -> None:
    batch = batch_of(record(0, 0, b"\x01\x01\0") * 3, 3, Codec.NONE, 0, 0)
    batch[21:23] = attributes.to_bytes(2, "big")
    assert _ends_as_sent(Fetched(A, error, 3, 3, 0, (), memoryview(batch)), end) is expected


def test_an_answer_without_room_tells_nothing() -> None:
    assert _ends_as_sent(Fetched(A, 0, 3, 3, 0, (), memoryview(bytearray())), 3) is None
