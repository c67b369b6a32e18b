"""What copying waits for is told to others: by the newest epoch that has ended, and by nobody once it is over."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.dataplane.counters import Counters
from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.epoch_planner import CopyPlan
from mirror_core.dataplane.epoch_results import MAX_LISTED_WAITS, MAX_WAIT_CHARS, EpochResults, format_wait_reasons
from mirror_core.decide.failover_readiness import FreshnessKind
from mirror_core.mirrors.mirror_facts import make_waits_fact
from mirror_core.model.mirror import FailureKind, GroupSyncTime, Lease
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.task_messages import AlignedPartition, PartitionFailure, TaskReport
from mirror_core.model.timing import read_steady_s
from mirror_core.state.lease import HeldLease, make_next_lease
from mirror_core.state.state_records import State, StateRecord, Tombstone, format_key

HELD = Lease(mirror=MirrorName("m"), owner="me", generation=1, heartbeat_ms=0, writers_until_ms=0)
CUT = "cluster west, a-0, offset 7: the connection was cut"


class Writer:
    """Remembers what was written."""

    def __init__(self) -> None:
        self.state = State()

    def put(self, *records: StateRecord | Tombstone) -> None:
        for record in records:
            self.state.put(record)


@pytest.fixture
def writer() -> Writer:
    return Writer()


@pytest.fixture
def lease(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> HeldLease:
    monkeypatch.setattr("mirror_core.state.lease.LEASE_HEARTBEAT_S", 0.0)
    return HeldLease(cast("Any", writer), HELD)


@pytest.fixture
def results() -> EpochResults:
    link = cast("Any", SimpleNamespace(source=None, destination=None, mirror=SimpleNamespace(name="m")))
    return EpochResults(link, Counters(), lambda line: None)


@pytest.mark.parametrize("ahead_ms", [0, 7_200_000, -7_200_000])
def test_the_time_of_the_group_sync_is_exported_by_the_brokers_clock(
    results: EpochResults, lease: HeldLease, ahead_ms: int
) -> None:
    held = replace(HELD, heartbeat_ms=100_000_000 + ahead_ms)
    groups = GroupSyncTime(mirror=held.mirror, synced_ms=99_990_000 + ahead_ms, followed=True)
    mirror = cast("Any", SimpleNamespace(throttle=None, group_filters=((), ()), paused_topics=()))
    read = State(leases={held.mirror: held}, groups={held.mirror: groups}, mirrors={held.mirror: mirror})
    read.append_times[format_key(held)] = 100_000_000
    lease.adopt_state(read)
    lease.renew()  # the state has no time of the brokers' for it now
    results.count_states(lease)
    assert results.counters.snapshot().known_ms == {FreshnessKind.GROUPS: 99_990_000}


def ended(results: EpochResults, lease: HeldLease, epoch: int, *retries: str) -> None:
    aligned = (AlignedPartition(partition=Partition("a", 0), source_epoch=1),)
    reports = tuple(
        TaskReport(receipts=(), failures=(), cpu_s=0.0, aligned=aligned, retry_reason=why) for why in retries
    )
    results.add_epoch(lease, epoch, 0, reports, partitions=frozenset(), newest_epoch=9, final=False)


def told(writer: Writer, lease: HeldLease) -> tuple[str, ...] | None:
    """To others, by the next beat."""
    lease.renew()
    return writer.state.leases[HELD.mirror].wait_reasons


def test_others_learn_what_the_newest_epoch_waited_for_and_that_it_is_over(
    results: EpochResults, lease: HeldLease, writer: Writer
) -> None:
    ended(results, lease, 1, "", CUT)
    assert told(writer, lease) == (CUT,)
    ended(results, lease, 3, "", "")
    assert told(writer, lease) == ()
    ended(results, lease, 2, CUT)
    assert told(writer, lease) == (), "an older epoch's task that ends late knows less"


def test_a_batch_that_the_destination_refuses_is_told_while_its_limit_is_raised(
    results: EpochResults, lease: HeldLease, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results._easing, "_relaxed_until_epoch", {"a": 9})
    words = "cluster west, a-0, offset 7: message_too_large"
    failure = PartitionFailure(
        partition=Partition("a", 0), reason=words, offset=Offset(7), kind=FailureKind.REFUSED, needs_bytes=9
    )
    report = TaskReport(receipts=(), failures=(failure,), cpu_s=0.0, aligned=(), retry_reason="")
    results.add_epoch(lease, 1, 0, (report,), partitions=frozenset(), newest_epoch=1, final=False)
    assert told(writer, lease) == (words,)
    ended(results, lease, 2, "")
    assert told(writer, lease) == ()


def test_an_epoch_that_failed_as_a_whole_is_told_until_the_next_one_has_ended(
    results: EpochResults, lease: HeldLease, writer: Writer
) -> None:
    results.handle_lost_epoch(lease, 1, "Spark has no slots")
    assert told(writer, lease) == ("epoch 1 failed: Spark has no slots",)
    ended(results, lease, 2, "")
    assert told(writer, lease) == ()


def test_a_topic_of_which_no_plan_knows_whether_it_is_deleted_is_waited_for(
    results: EpochResults, lease: HeldLease, writer: Writer
) -> None:
    words = "cluster east, topic orders: 1 broker (2) gave no answer"
    plan = CopyPlan(partitions={}, lags={}, ends={}, changes=(), failed={}, undecided_topics=(words,))
    results.apply_plan(plan, newest_epoch=1)
    results.report_nothing_to_copy(lease)
    assert told(writer, lease) == (words,)
    ended(results, lease, 1, CUT)
    assert told(writer, lease) == (words, CUT)
    results.apply_plan(replace(plan, undecided_topics=()), newest_epoch=2)
    ended(results, lease, 2, "")
    assert told(writer, lease) == ()


def test_who_gives_the_lease_back_waits_for_nothing(results: EpochResults, lease: HeldLease, writer: Writer) -> None:
    ended(results, lease, 1, CUT)
    lease.release()
    found = writer.state.leases[HELD.mirror]
    assert (found.released, found.wait_reasons) == (True, None)


@pytest.mark.parametrize(("outlive", "left_ms"), [(False, 0), (True, 20_000)])
def test_who_gives_the_lease_back_tells_how_long_cancelled_tasks_may_write(
    lease: HeldLease, writer: Writer, monkeypatch: pytest.MonkeyPatch, outlive: bool, left_ms: int
) -> None:
    later_s = int(read_steady_s()) + 1.0
    monkeypatch.setattr("mirror_core.state.lease.read_steady_s", lambda: later_s)
    lease.renew(writers_end_s=later_s + 20)
    if outlive:
        lease.expect_own_writers()
    lease.release()
    found = writer.state.leases[HELD.mirror]
    assert (found.released, found.writers_until_ms - found.heartbeat_ms) == (True, left_ms)


def test_as_much_is_told_as_a_person_reads() -> None:
    assert format_wait_reasons(["b", "", "a", "b"]) == ("a", "b")
    many = format_wait_reasons(str(n) for n in range(MAX_LISTED_WAITS + 2))
    assert many == (*(str(n) for n in range(MAX_LISTED_WAITS)), "and 2 more")
    assert format_wait_reasons(["x" * (MAX_WAIT_CHARS + 1)]) == ("x" * MAX_WAIT_CHARS + "...",)


def test_who_has_not_ended_an_epoch_yet_does_not_say_that_copying_waits_for_nothing() -> None:
    """Spark starts, the first epoch waits, or an older version copies, which does not tell."""
    lease = make_next_lease(State(), MirrorName("m"), "me", None)
    assert make_waits_fact(lease, has_driver=True).value != ()
    silent = make_waits_fact(lease, has_driver=True, silent_source="east")
    assert (silent.value, silent.is_normal) == (("east",), False)


def test_where_nothing_is_copied_any_more_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic whose broker was silent is taken out of the filters, and was the last one."""
    monkeypatch.setattr("mirror_core.state.lease.LEASE_HEARTBEAT_S", 0.0)
    link = cast("Any", SimpleNamespace(source=None, destination=None, mirror=SimpleNamespace(name="m")))
    one: Any = Replication(
        link, cast("Any", SimpleNamespace), ReplicationOptions(), stop=threading.Event(), report_line=lambda _: None
    )
    writer = Writer()
    lease = HeldLease(cast("Any", writer), HELD)
    ended(one.results, lease, 1, CUT)
    nothing = CopyPlan(partitions={}, lags={}, ends={}, changes=(), failed={})
    assert one._start_epoch(lease, nothing, 0, 0)
    lease.renew()
    assert not writer.state.leases[HELD.mirror].wait_reasons
