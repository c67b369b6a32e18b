"""When epochs begin, by a clock of the test's."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.dataplane import driver
from mirror_core.dataplane.driver import PLAN_LEAD_S, Replication, ReplicationOptions
from mirror_core.dataplane.epoch_planner import CopyEpoch
from mirror_core.dataplane.epoch_results import EpochLength
from mirror_core.dataplane.progress import ReportedEnds
from mirror_core.decide.task_assignment import MAX_EPOCH_S, compute_comparison_s, compute_epoch_s
from mirror_core.model.errors import StateNotWritten
from mirror_core.model.mirror import GapFilling
from mirror_core.model.names import Partition
from mirror_core.model.task_messages import Assignment, PartitionAssignment, TaskReport
from tests.support.sentences import format_sentence

EPOCH_S = 30.0


class Clock:
    """Steady clock, milliseconds."""

    now = 1_000_000

    def __call__(self) -> int:
        return self.now


def driven(
    monkeypatch: pytest.MonkeyPatch,
    *,
    look_s: float,
    epochs: int,
    unwritten: int | None = None,
    told: Mapping[int, float] = MappingProxyType({}),
) -> list[tuple[int, int, int]]:
    """The time when each epoch was handed out, and its start and stop. Each look at the clusters takes so long;
    `unwritten`: before this epoch the state topic takes nothing for a while. `told`: how long epochs last by what is
    told in this one."""
    clock, found, stop, refused = Clock(), list[tuple[int, int, int]](), threading.Event(), list[int]()
    link: Any = SimpleNamespace(mirror=SimpleNamespace(name="m"), source=None, destination=None)
    one = Replication(
        link, SimpleNamespace, ReplicationOptions(epoch_s=EPOCH_S), stop=stop, report_line=lambda line: None
    )

    def submit(lease: Any, work: Any, until: Any, start_s: float, stop_s: float) -> None:
        if len(found) == unwritten and len(refused) < 3:
            refused.append(clock.now)
            raise StateNotWritten("not now")
        found.append((clock.now, round(start_s * 1000), round(stop_s * 1000)))
        one._length.seconds = told.get(len(found), one._length.seconds)
        if len(found) == epochs:
            stop.set()

    def run_epoch(lease: Any, end_s: float, lead_s: float) -> float:
        clock.now = max(clock.now, round((end_s - lead_s) * 1000))
        return end_s

    def look(*asked: Any) -> Any:
        clock.now += int(look_s * 1000)
        return SimpleNamespace(partitions={"t-0": None})

    def wait(lease: Any) -> None:
        clock.now += 20_000

    monkeypatch.setattr(driver, "read_steady_s", lambda: clock.now / 1000)
    monkeypatch.setattr(driver, "check_may_run", lambda state, link: None)
    for name, instead in (("_submit", submit), ("_run_epoch", run_epoch), ("_plan", look), ("_await_writes", wait)):
        monkeypatch.setattr(one, name, instead)
    monkeypatch.setattr(one, "_follow_log_start", lambda *asked: None)
    monkeypatch.setattr(one, "_keepalive", SimpleNamespace(run_renewing=lambda lease, work, until_s: work()))
    lease: Any = SimpleNamespace(read=lambda: None, adopt_state=lambda state: state, writers_end_s=clock.now / 1000)
    planner: Any = SimpleNamespace(
        format_silent_brokers=str, source=SimpleNamespace(set_fail_fast=lambda fail_fast: None)
    )
    one._run_epochs(planner, lease, look(), 0.0)
    return found


@pytest.mark.parametrize("look_s", [0.1, 10.0, 40.0, 300.0])
def test_an_epoch_copies_for_its_whole_length_however_long_the_plan_took(
    monkeypatch: pytest.MonkeyPatch, look_s: float
) -> None:
    for at, start_ms, stop_ms in driven(monkeypatch, look_s=look_s, epochs=4):
        assert start_ms >= at, "it began before it was handed out"
        assert stop_ms - start_ms == EPOCH_S * 1000


def test_epochs_follow_each_other_without_a_break_where_the_plan_fits_into_the_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = driven(monkeypatch, look_s=PLAN_LEAD_S / 4, epochs=4)
    assert [start for _, start, _ in found[1:]] == [stop for _, _, stop in found[:-1]]


def test_what_could_not_begin_begins_when_the_state_topic_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = driven(monkeypatch, look_s=1.0, epochs=3, unwritten=1)
    assert len(found) == 3
    for at, start_ms, stop_ms in found:
        assert start_ms >= at
        assert stop_ms - start_ms == EPOCH_S * 1000


def heard(length: EpochLength, lasted_s: float, *cut_short: int) -> float:
    """How long the next epoch is, after one whose tasks have told that."""
    epoch = CopyEpoch(number=1, start_ms=0, stop_ms=int(lasted_s * 1000), throttle=None, driver=None)
    reports = [TaskReport(receipts=(), failures=(), cpu_s=0.0, interrupted_comparisons=count) for count in cut_short]
    length.update(epoch, reports)
    return length.seconds


def test_epochs_grow_while_comparisons_do_not_end_and_people_hear_of_it_once() -> None:
    said = list[str]()
    length = EpochLength(EPOCH_S, said.append)
    assert heard(length, 30, 0, 0) == 30
    assert [heard(length, lasted, 0, 2) for lasted in (30, 30, 60, 60, 120)] == [60, 60, 120, 120, 120]
    assert said == [format_sentence("comparing_logs_until_done", "2 partitions", 30, 120)]
    assert heard(length, 120, 0, 0) == 30
    assert said[1:] == ["logs are compared: epochs last 30 s again"]


def test_an_older_epoch_that_is_heard_of_late_makes_the_next_one_no_shorter() -> None:
    length = EpochLength(EPOCH_S, lambda line: None)
    heard(length, 60, 1)
    assert heard(length, 30, 1) == 120


def test_an_epoch_of_which_a_task_began_too_late_does_not_tell_that_logs_are_compared() -> None:
    """A comparison that needs more than the usual length would be cut short again."""
    said = list[str]()
    length = EpochLength(EPOCH_S, said.append)
    heard(length, 30, 1)
    epoch = CopyEpoch(number=2, start_ms=0, stop_ms=60_000, throttle=None, driver=None)
    told, untold = (TaskReport(receipts=(), failures=(), cpu_s=0.0, comparisons_unknown=one) for one in (False, True))
    for _ in range(2):
        length.update(epoch, [told, untold])
        assert (length.seconds, len(said)) == (60, 1)
    length.update(epoch, [told, told])
    assert (length.seconds, len(said)) == (30, 2)
    length.update(epoch, [untold])
    assert length.seconds == 30, "nor that one takes long"


@given(st.lists(st.booleans(), max_size=20), st.sampled_from([10.0, EPOCH_S, 120.0]))
def test_tasks_that_look_on_have_gone_when_the_epoch_after_the_next_one_needs_their_slots(
    told: list[bool], usual_s: float
) -> None:
    """A runner has slots for two. Only the next epoch's length is known when a task begins: any may be the shortest."""
    lengths = [usual_s]
    for cut_short in told:
        lengths.append(compute_epoch_s(usual_s, lengths[-1], lengths[-1], was_cut_short=cut_short, is_unknown=False))
    assert all(usual_s <= length <= MAX_EPOCH_S for length in lengths)
    assert compute_comparison_s(usual_s) <= max(min(lengths) - PLAN_LEAD_S, 1)


def test_an_epoch_is_as_long_as_the_last_reports_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = driven(monkeypatch, look_s=0.1, epochs=4, told={1: 60.0, 2: 30.0})
    assert [stop - start for _, start, stop in found] == [30_000, 60_000, 30_000, 30_000]


def submitting(given: list[Assignment], ended: Future[tuple[TaskReport, ...]], said: list[str]) -> Any:
    """A driver that hands tasks out, and does nothing else; its source is never away."""
    names: dict[str, Any] = {
        "name": "m",
        "source": "east",
        "destination": "west",
        "source_id": "E",
        "destination_id": "W",
    }
    mirror = SimpleNamespace(**names, producer_id=1, gaps=GapFilling.MARKERS)
    link: Any = SimpleNamespace(mirror=mirror, source=None, destination=None, config=SimpleNamespace(path=""))
    one: Any = Replication(
        link, SimpleNamespace, ReplicationOptions(epoch_s=EPOCH_S), stop=threading.Event(), report_line=said.append
    )

    def submit(assignments: Sequence[Assignment]) -> Future[tuple[TaskReport, ...]]:
        given.extend(assignments)
        return ended

    one.runner = SimpleNamespace(slots=1, submit=submit)
    one._channel = SimpleNamespace(address_for=lambda number, submitted_ms: None)
    monitor = SimpleNamespace(pop_interruption=lambda: False)
    one._watch = SimpleNamespace(reported_ends=ReportedEnds({}), monitor=monitor)
    return one


def leased() -> Any:
    state = SimpleNamespace(mirrors={"m": SimpleNamespace(throttle=None)})
    return SimpleNamespace(generation=1, state=state, renew=lambda **_: None)


def planned(*partitions: Partition) -> Any:
    assigned = {p: PartitionAssignment(partition=p, source_topic_id="", destination_topic_id="") for p in partitions}
    return SimpleNamespace(partitions=assigned, lags={})


def test_a_comparison_that_is_cut_short_makes_the_driver_lengthen_its_epochs() -> None:
    """Of which tasks are told how long they may look on."""
    given, said, ended = list[Assignment](), list[str](), Future[tuple[TaskReport, ...]]()
    one, lease = submitting(given, ended, said), leased()
    one._submit(lease, planned(Partition("t", 0)), None, 0.0, 30.0)
    assert [task.comparison_grace_s for task in given] == [20.0]
    ended.set_result((TaskReport(receipts=(), failures=(), cpu_s=0.0, interrupted_comparisons=1),))
    one._collect_reports(lease)
    assert one._length.seconds == 60
    assert len(said) == 1


def test_nobody_vouches_for_a_partition_that_sat_out_the_epoch_after_the_source_was_away() -> None:
    given = list[Assignment]()
    one, lease = submitting(given, Future[tuple[TaskReport, ...]](), []), leased()
    copied, idle = Partition("t", 0), Partition("t", 1)
    one.results.answered_partitions.update({copied, idle})

    def vouched_for(*partitions: Partition) -> set[Partition]:
        given.clear()
        one._submit(lease, planned(*partitions), None, 0.0, 30.0)
        return {p.partition for task in given for p in task.partitions if p.all_answered}

    assert vouched_for(copied, idle) == {copied, idle}
    away = iter([True, False])
    one._watch.monitor.pop_interruption = lambda: next(away)
    assert (vouched_for(copied), vouched_for(idle)) == (set(), set())
