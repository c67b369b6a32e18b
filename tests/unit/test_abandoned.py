"""A run in the middle that nobody conducts, with applications standing still, is an alarm wherever somebody looks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mirror_core.decide.abandoned import HELD_UP_MS, abandoned, conducts, held_up
from mirror_core.decide.conducting import STEP, Conducted, Sign
from mirror_core.decide.drills import expressions
from mirror_core.decide.run_standing import Standing
from mirror_core.decide.steps import Writes, planned
from mirror_core.mirrors import beside, standing
from mirror_core.mirrors.describe import _under_way
from mirror_core.mirrors.standing import look_after
from mirror_core.model.checkpoint import Beat
from mirror_core.model.clock import CONDUCTED_S, now_ms
from mirror_core.model.names import DRILL, MirrorName, Offset, Partition
from mirror_core.model.run import Mode, Run, RunKind, StepRecord, StepState
from mirror_core.state.journal import checkpoint
from mirror_core.state.records import PartitionRecord
from tests.memory import MemoryLog
from tests.unit.test_decide_standing import OWED, P, status
from tests.unit.test_decide_verbs import RUN
from tests.unit.test_refusals import LINK

STANDS = Standing("drain", Writes.NOWHERE, 3_000)
DIED = Conducted(sign=Sign.GONE, by="ann@desk", host="desk", pid=7, seen_ms=2_000, age_s=90.0, ended=True)
WENT = replace(DIED, sign=Sign.RELEASED, age_s=200.0, ended=False)
HEARD = replace(DIED, sign=Sign.HEARD, age_s=3.0, ended=False)


def test_it_says_since_when_who_conducted_it_and_both_ways_on() -> None:
    assert abandoned(LINK.mirror, RUN, STANDS, DIED) == (
        "failover m-failover-1 stands still at drain since 1970-01-01 00:00:03 UTC: applications can write nowhere, "
        "and nobody conducts it (ann@desk did last, seen 1970-01-01 00:00:02 UTC). `mirrorbook failover resume m` "
        "goes on with it; `mirrorbook failover abort m` gives it up, before promote",
    )
    [silent] = abandoned(LINK.mirror, RUN, replace(STANDS, step=""), replace(DIED, ended=False))
    assert "before its first step" in silent
    assert "nobody conducts it by this machine's clock" in silent


@pytest.mark.parametrize(
    ("found", "known"),
    [
        (HEARD, True),
        (DIED, False),
        (replace(DIED, age_s=1.0), False),
        (WENT, False),
        (replace(WENT, age_s=CONDUCTED_S - 1), True),
        (replace(WENT, age_s=CONDUCTED_S + 30), True),
        (replace(WENT, age_s=CONDUCTED_S + 61), False),
        (replace(DIED, sign=Sign.UNKNOWN), None),
    ],
)
def test_nobody_is_called_while_somebody_conducts_it_or_that_is_not_known(found: Conducted, known: bool | None) -> None:
    """Airflow lets go of a run between two tasks."""
    assert conducts(found) is known
    assert bool(abandoned(LINK.mirror, RUN, STANDS, found)) is (known is False)


def test_where_applications_can_write_meanwhile_it_is_no_alarm() -> None:
    for writes in (Writes.SOURCE, Writes.DESTINATION):
        assert abandoned(LINK.mirror, RUN, replace(STANDS, writes=writes), DIED) == ()
    drill = MirrorName(f"{DRILL}m")
    left = replace(LINK.mirror, name=drill, topics=expressions("m"))
    assert abandoned(left, replace(RUN, plan=replace(RUN.plan, mirror=drill)), STANDS, DIED) == ()


def test_a_run_is_held_up_when_it_has_said_nothing_for_a_minute() -> None:
    assert not held_up(STANDS, 3_000 + HELD_UP_MS)
    assert held_up(STANDS, 3_001 + HELD_UP_MS)


# -- wherever somebody looks -----------------------------------------------------------------------------------------


def held(mode: Mode, step: str, *, beat_age_ms: int = 100_000) -> tuple[MemoryLog, Run]:
    """A mirror whose run has begun this step, and whose conductor was last seen so long ago."""
    log, at = MemoryLog(), now_ms() - 100_000
    plan = replace(RUN.plan, mode=mode, steps=planned(RunKind.FAILOVER, LINK.mirror, mode))
    run = replace(RUN, plan=plan, started_ms=at)
    beat = Beat(token="t", by="ann@desk", host="elsewhere", boot="b", pid=7, started=1, at_ms=now_ms() - beat_age_ms)
    record = StepRecord(run=run.id, step=step, state=StepState.STARTED, attempt=1, started_ms=at, ended_ms=None)
    log.put(LINK.mirror, PartitionRecord(LINK.mirror.name, status(P, None)), run, record)
    log.put(checkpoint(run.id, STEP, beat))
    return log, run


def look(monkeypatch: pytest.MonkeyPatch, log: MemoryLog) -> Any:
    monkeypatch.setattr(standing, "read_state", lambda cluster: log.state)
    return look_after(LINK)


def test_watchers_and_describe_tell_of_a_planned_run_whose_conductor_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    """It owes nobody a fence yet, and its source may have died since."""
    log, run = held(Mode.PLANNED, "drain")
    [alarm] = look(monkeypatch, log).alarms
    assert "stands still at drain" in alarm
    assert _under_way(LINK.mirror, run, log.state) == (alarm,)
    log, run = held(Mode.PLANNED, "drain", beat_age_ms=1_000)
    assert look(monkeypatch, log).alarms == ()
    assert _under_way(LINK.mirror, run, log.state) == (f"{RunKind.FAILOVER} {run.id}",)


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
    log, run = held(Mode.UNPLANNED, step)
    log.put(replace(OWED, run=run.id))
    ends = {LINK.source.name: Offset(103), LINK.destination.name: Offset(100)}
    monkeypatch.setattr(beside, "ClusterClient", _Client)
    monkeypatch.setattr(beside, "check_source", lambda link, client: None)

    def known(client: _Client, partitions: Any, point: object) -> dict[Partition, Offset]:
        return dict.fromkeys(partitions, ends[client.name])

    monkeypatch.setattr(beside, "known_offsets", known)
    monkeypatch.setattr(standing, "turned", lambda state, run: False)
    found = look(monkeypatch, log)
    assert found.exposed
    assert found.held
    stands, took = found.alarms
    assert f"stands still at {step}" in stands
    assert "has not promoted yet; what was not copied: 3 offset(s): t-0 [100, 103)" in took
