"""A run in the middle that nobody conducts, with applications standing still, is an alarm wherever somebody looks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mirror_core.decide.drills import list_drill_expressions
from mirror_core.decide.process_liveness import CONDUCTOR_STEP, ConductorState, ConductorStatus, ProcessState
from mirror_core.decide.run_status import STALLED_AFTER_MS, RunProgress, find_stalled_run, is_conducted, is_stalled
from mirror_core.decide.steps import RunVerb, WriteLocation, plan_steps
from mirror_core.mirrors import fence_watcher, old_source_fence
from mirror_core.mirrors.describe import _format_run
from mirror_core.mirrors.fence_watcher import check_fence
from mirror_core.model.names import DRILL_PREFIX, MirrorName, Offset, Partition
from mirror_core.model.run import Run, RunKind, RunMode, StepRecord, StepState
from mirror_core.model.run_checkpoints import RunHeartbeat
from mirror_core.model.timing import CONDUCTOR_TIMEOUT_S, now_ms
from mirror_core.state import run_heartbeat
from mirror_core.state.journal import make_checkpoint
from mirror_core.state.state_records import PartitionRecord
from tests.support.cluster_names import LINK
from tests.support.fence_states import OWED, P, status
from tests.support.memory_state import MemoryLog
from tests.support.mirror_views import RUN
from tests.support.sentences import format_sentence

VERBS = (RunVerb.RESUME, RunVerb.ABORT)
STANDS = RunProgress("drain", WriteLocation.NOWHERE, 3_000)
DIED = ConductorStatus(
    state=ConductorState.SILENT,
    by="ann@desk",
    host="desk",
    pid=7,
    last_seen_ms=2_000,
    age_s=90.0,
    process=ProcessState.ENDED,
)
WENT = replace(DIED, state=ConductorState.RELEASED, age_s=200.0, process=ProcessState.UNKNOWN)
HEARD = replace(DIED, state=ConductorState.ALIVE, age_s=3.0, process=ProcessState.UNKNOWN)


def test_it_says_since_when_who_conducted_it_and_both_ways_on() -> None:
    assert str(find_stalled_run(LINK.mirror, RUN, STANDS, DIED, VERBS)) == (
        format_sentence("failover_stands_still", "1970-01-01 00:00:03 UTC", "1970-01-01 00:00:02 UTC")
    )
    silent = str(
        find_stalled_run(LINK.mirror, RUN, replace(STANDS, step=""), replace(DIED, process=ProcessState.UNKNOWN), VERBS)
    )
    assert "before its first step" in silent
    assert "by this machine's clock)" in silent
    assert "abort" not in str(find_stalled_run(LINK.mirror, RUN, STANDS, DIED, [RunVerb.RESUME]))


@pytest.mark.parametrize(
    ("found", "known"),
    [
        (HEARD, True),
        (DIED, False),
        (replace(DIED, age_s=1.0), False),
        (WENT, False),
        (replace(WENT, age_s=CONDUCTOR_TIMEOUT_S - 1), True),
        (replace(WENT, age_s=CONDUCTOR_TIMEOUT_S + 30), True),
        (replace(WENT, age_s=CONDUCTOR_TIMEOUT_S + 61), False),
        (replace(DIED, state=ConductorState.UNKNOWN), None),
    ],
)
def test_nobody_is_called_while_somebody_conducts_it_or_that_is_not_known(
    found: ConductorStatus, known: bool | None
) -> None:
    """Airflow lets go of a run between two tasks."""
    assert is_conducted(found) is known
    assert bool(find_stalled_run(LINK.mirror, RUN, STANDS, found, VERBS)) is (known is False)


def test_where_applications_can_write_meanwhile_it_is_no_alarm() -> None:
    for writes in (WriteLocation.SOURCE, WriteLocation.DESTINATION):
        assert find_stalled_run(LINK.mirror, RUN, replace(STANDS, writes=writes), DIED, VERBS) is None
    drill = MirrorName(f"{DRILL_PREFIX}m")
    left = replace(LINK.mirror, name=drill, topics=list_drill_expressions("m"))
    assert find_stalled_run(left, replace(RUN, plan=replace(RUN.plan, mirror=drill)), STANDS, DIED, VERBS) is None


def test_a_run_is_held_up_when_it_has_said_nothing_for_a_minute() -> None:
    assert not is_stalled(STANDS, 3_000 + STALLED_AFTER_MS)
    assert is_stalled(STANDS, 3_001 + STALLED_AFTER_MS)


# -- wherever somebody looks -----------------------------------------------------------------------------------------


def held(mode: RunMode, step: str, *, beat_age_ms: int = 100_000) -> tuple[MemoryLog, Run]:
    """A mirror whose run has begun this step, and whose conductor was last seen so long ago."""
    log, at = MemoryLog(), now_ms() - 100_000
    plan = replace(RUN.plan, mode=mode, steps=plan_steps(RunKind.FAILOVER, LINK.mirror, mode))
    run = replace(RUN, plan=plan, started_ms=at)
    beat = RunHeartbeat(
        token="t", by="ann@desk", host="elsewhere", boot_id="b", pid=7, start_ticks=1, at_ms=now_ms() - beat_age_ms
    )
    record = StepRecord(run=run.id, step=step, state=StepState.STARTED, attempt=1, started_ms=at, ended_ms=None)
    log.put(LINK.mirror, PartitionRecord(LINK.mirror.name, status(P, None)), run, record)
    log.put(make_checkpoint(run.id, CONDUCTOR_STEP, beat))
    return log, run


def look(monkeypatch: pytest.MonkeyPatch, log: MemoryLog) -> Any:
    monkeypatch.setattr(fence_watcher, "read_state", lambda cluster: log.state)
    monkeypatch.setattr(run_heartbeat, "measure_clock_ahead_ms", lambda cluster, timeout_s: None)
    monkeypatch.setattr(fence_watcher, "read_broker_time_ms", lambda cluster: now_ms())
    return check_fence(LINK)


def test_watchers_and_describe_tell_of_a_planned_run_whose_conductor_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    """It owes nobody a fence yet, and its source may have died since."""
    log, run = held(RunMode.PLANNED, "drain")
    [alarm] = look(monkeypatch, log).alarms
    assert "has stood still at drain" in alarm
    assert _format_run(LINK.mirror, run, log.state, None) == (alarm,)
    log, run = held(RunMode.PLANNED, "drain", beat_age_ms=1_000)
    assert look(monkeypatch, log).alarms == ()
    assert _format_run(LINK.mirror, run, log.state, None) == (f"{RunKind.FAILOVER} {run.id}",)


class _Client:
    def __init__(self, cluster: Any, **options: object) -> None:
        self.name = cluster.name

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *exc: object) -> None: ...


@pytest.mark.parametrize("step", ["stand", "final_offsets", "promote"])
def test_a_source_that_is_back_beside_an_unplanned_run_that_is_held_up_is_told_with_what_it_took(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """From the debt on, and before the last mirrored offsets are recorded: they are where the copy ends."""
    log, run = held(RunMode.UNPLANNED, step)
    log.put(replace(OWED, run=run.id))
    ends = {LINK.source.name: Offset(103), LINK.destination.name: Offset(100)}
    monkeypatch.setattr(old_source_fence, "ClusterClient", _Client)
    monkeypatch.setattr(old_source_fence, "check_source_id", lambda link, client: None)

    def known(client: _Client, partitions: Any, point: object) -> dict[Partition, Offset]:
        return dict.fromkeys(partitions, ends[client.name])

    monkeypatch.setattr(old_source_fence, "list_known_offsets", known)
    monkeypatch.setattr(fence_watcher, "is_past_no_return", lambda state, run: False)
    found = look(monkeypatch, log)
    assert found.is_exposed
    assert found.is_held_by_run
    stands, took = found.alarms
    assert f"has stood still at {step}" in stands
    assert "has not promoted yet; what was not copied: 3 offsets: t-0 [100, 103)" in took
