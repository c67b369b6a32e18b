"""What copying waits for is told to others: by the newest epoch that has ended, and by nobody once it is over."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.dataplane.counters import Counters
from mirror_core.dataplane.driver import Options, Replication
from mirror_core.dataplane.planning import Work
from mirror_core.dataplane.results import LONG, MOST_WAITS, Results, waits_of
from mirror_core.mirrors.describe import _waits
from mirror_core.model.copying import Aligned, Failure, TaskReport
from mirror_core.model.mirror import FailureKind, Lease
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.state.lease import HeldLease, next_lease
from mirror_core.state.records import Forget, Record, State

HELD = Lease(mirror=MirrorName("m"), owner="me", generation=1, beat_ms=0, writers_until_ms=0)
CUT = "cluster west, a-0, offset 7: the connection was cut"


class Writer:
    """Remembers what was written."""

    def __init__(self) -> None:
        self.state = State()

    def put(self, *records: Record | Forget) -> None:
        for record in records:
            self.state.put(record)


@pytest.fixture
def writer() -> Writer:
    return Writer()


@pytest.fixture
def lease(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> HeldLease:
    monkeypatch.setattr("mirror_core.state.lease.BEAT_S", 0.0)
    return HeldLease(cast("Any", writer), HELD)


@pytest.fixture
def results() -> Results:
    link = cast("Any", SimpleNamespace(source=None, destination=None, mirror=SimpleNamespace(name="m")))
    return Results(link, Counters(), lambda line: None)


def ended(results: Results, lease: HeldLease, epoch: int, *retries: str) -> None:
    aligned = (Aligned(partition=Partition("a", 0), source_epoch=1),)
    reports = tuple(TaskReport(receipts=(), failures=(), cpu_s=0.0, aligned=aligned, retry=why) for why in retries)
    results.take(lease, epoch, 0, reports, newest=9, final=False)


def told(writer: Writer, lease: HeldLease) -> tuple[str, ...] | None:
    """To others, by the next beat."""
    lease.beat()
    return writer.state.leases[HELD.mirror].waits


def test_others_learn_what_the_newest_epoch_waited_for_and_that_it_is_over(
    results: Results, lease: HeldLease, writer: Writer
) -> None:
    ended(results, lease, 1, "", CUT)
    assert told(writer, lease) == (CUT,)
    ended(results, lease, 3, "", "")
    assert told(writer, lease) == ()
    ended(results, lease, 2, CUT)
    assert told(writer, lease) == (), "an older epoch's task that ends late knows less"


def test_a_batch_that_the_destination_refuses_is_told_while_its_limit_is_raised(
    results: Results, lease: HeldLease, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results._easing, "_known", {"a": 9})
    words = "cluster west, a-0, offset 7: message_too_large"
    failure = Failure(
        partition=Partition("a", 0), reason=words, offset=Offset(7), kind=FailureKind.REFUSED, needs_bytes=9
    )
    report = TaskReport(receipts=(), failures=(failure,), cpu_s=0.0, aligned=(), retry="")
    results.take(lease, 1, 0, (report,), newest=1, final=False)
    assert told(writer, lease) == (words,)
    ended(results, lease, 2, "")
    assert told(writer, lease) == ()


def test_an_epoch_that_failed_as_a_whole_is_told_until_the_next_one_has_ended(
    results: Results, lease: HeldLease, writer: Writer
) -> None:
    results.lost(lease, 1, "Spark has no slots")
    assert told(writer, lease) == ("epoch 1 failed: Spark has no slots",)
    ended(results, lease, 2, "")
    assert told(writer, lease) == ()


def test_a_topic_of_which_no_plan_knows_whether_it_is_deleted_is_waited_for(
    results: Results, lease: HeldLease, writer: Writer
) -> None:
    words = "cluster east, topic orders: broker(s) 2 do not answer"
    plan = Work(partitions={}, lags={}, ends={}, changes=(), failed={}, undecided=(words,))
    results.planned(plan, newest=1)
    results.idle(lease)
    assert told(writer, lease) == (words,)
    ended(results, lease, 1, CUT)
    assert told(writer, lease) == (words, CUT)
    results.planned(replace(plan, undecided=()), newest=2)
    ended(results, lease, 2, "")
    assert told(writer, lease) == ()


def test_who_gives_the_lease_back_waits_for_nothing(results: Results, lease: HeldLease, writer: Writer) -> None:
    ended(results, lease, 1, CUT)
    lease.release()
    found = writer.state.leases[HELD.mirror]
    assert (found.released, found.waits) == (True, None)


def test_as_much_is_told_as_a_person_reads() -> None:
    assert waits_of(["b", "", "a", "b"]) == ("a", "b")
    many = waits_of(str(n) for n in range(MOST_WAITS + 2))
    assert many == (*(str(n) for n in range(MOST_WAITS)), "and 2 more")
    assert waits_of(["x" * (LONG + 1)]) == ("x" * LONG + "...",)


def test_who_has_not_ended_an_epoch_yet_does_not_say_that_copying_waits_for_nothing() -> None:
    """Spark starts, the first epoch waits, or an older version copies, which does not tell."""
    assert "nothing" not in (_waits(next_lease(State(), MirrorName("m"), "me"), held=True) or "")


def test_where_nothing_is_copied_any_more_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic whose broker was silent is taken out of the filters, and was the last one."""
    monkeypatch.setattr("mirror_core.state.lease.BEAT_S", 0.0)
    link = cast("Any", SimpleNamespace(source=None, destination=None, mirror=SimpleNamespace(name="m")))
    one: Any = Replication(link, cast("Any", SimpleNamespace), Options(), stop=threading.Event(), say=lambda _: None)
    writer = Writer()
    lease = HeldLease(cast("Any", writer), HELD)
    ended(one.results, lease, 1, CUT)
    nothing = Work(partitions={}, lags={}, ends={}, changes=(), failed={})
    assert one._begun(lease, nothing, 0, 0)
    lease.beat()
    assert not writer.state.leases[HELD.mirror].waits
