"""Names of what drills create, and how earlier drills went."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mirror_core.decide.steps import stood_still_s, took_s
from mirror_core.decide.view import Forecast
from mirror_core.model.acl import AclPurpose, LedgerEntry
from mirror_core.model.errors import MirrorError, Refused, Unreachable
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import (
    DRILL,
    HEARTBEATS,
    ClusterName,
    MirrorName,
    Offset,
    Partition,
    drill_group,
    heartbeat_topic,
)
from mirror_core.model.run import AIRFLOW, Mode, Plan, Run, RunKind, RunState, StepRecord

KEPT: Final = 20
"""Drill runs per mirror that a state topic keeps."""
NOT_EQUAL: Final = "promoted, and not seen to be equal"
FORECAST: Final = "seconds without writes, predicted"


@dataclass(frozen=True, slots=True)
class Drilled:
    """How one drill went, as far as the state topic knows."""

    run: str
    mode: Mode
    at_ms: int
    state: RunState
    predicted: str
    """Seconds without writes, in the plan's words."""
    measured_s: float | None
    """From the first to the last of the steps during which applications could write nowhere; None: it did not get so
    far."""
    outcome: str
    """What was seen of what it promoted; empty: that was not equal to what was written, or nobody came to look."""

    @property
    def words(self) -> str:
        """How it ended."""
        return self.outcome or (NOT_EQUAL if self.state is RunState.DONE else self.state)


@dataclass(frozen=True, slots=True)
class ReadOn:
    """What a group met that went on reading on the promoted side, in records."""

    predicted: str
    """By the plan, in its words."""
    repeated: int | None
    """Done on the source already, and handled again. None: it was not tried, `untried` says why."""
    skipped: int | None
    """Not done on the source, on the promoted side, and not read there: that must not be."""
    untried: str = ""


def read_on(
    predicted: str,
    done: Mapping[Partition, Offset],
    ends: Mapping[Partition, Offset],
    read: Mapping[Partition, Collection[Offset]],
) -> ReadOn:
    again = sum(offset < done[p] for p, offsets in read.items() for offset in offsets)
    missed = sum(len(set(range(done[p], ends[p])) - set(read.get(p, ()))) for p in done)
    return ReadOn(predicted, again, missed)


def drill_name(mirror: str) -> MirrorName:
    return MirrorName(DRILL + mirror)


def drill_topic(mirror: str) -> str:
    return heartbeat_topic(drill_name(mirror))


def group_of(mirror: str) -> str:
    group = drill_group(drill_name(mirror))
    assert group is not None
    return group


def expressions(mirror: str) -> tuple[str, ...]:
    return (re.escape(drill_topic(mirror)),)


def check_ours(mirror: Mirror, of: str) -> None:
    if mirror.topics != expressions(of):
        raise Refused(f"drill of mirror {of}", [f"mirror {mirror.name} is no drill's: it carries {mirror.topics}"])


def is_drills(mirror: Mirror) -> bool:
    return mirror.name.startswith(DRILL) and mirror.topics == expressions(mirror.name.removeprefix(DRILL))


def put_up(ledger: Iterable[LedgerEntry], cluster: ClusterName) -> list[LedgerEntry]:
    """ACLs on a cluster that the drill certainly made.

    Fences and copied rights are in the ledger only if we made them. Promoted ones may have existed before, except those
    that name a heartbeats topic: no grant by prefix covers it.
    """
    certain = (AclPurpose.FENCE, AclPurpose.COPIED)
    return [
        e
        for e in ledger
        if e.cluster == cluster and (e.purpose in certain or e.acl.name.startswith(HEARTBEATS))
        if e.purpose is not AclPurpose.STAGED
    ]


def runs_of(runs: Iterable[Run], mirror: str) -> list[Run]:
    mine = [run for run in runs if run.plan.mirror == drill_name(mirror)]
    return sorted(mine, key=lambda run: run.started_ms, reverse=True)


def old_runs(runs: Iterable[Run], mirror: str) -> list[Run]:
    return [run for run in runs_of(runs, mirror)[KEPT:] if run.state is not RunState.RUNNING]


def may_be_forgotten(runs: Iterable[Run], plan: Plan, begun_ms: int) -> bool:
    """Whether a state topic that lacks a run of this plan, begun at `begun_ms`, may have forgotten it.

    Only drill runs older than the kept ones are ever forgotten; any other unknown run never existed.
    """
    newer = [run for run in runs_of(runs, plan.mirror.removeprefix(DRILL)) if run.started_ms > begun_ms]
    return plan.mirror.startswith(DRILL) and len(newer) >= KEPT


def drilled(run: Run, steps: Iterable[StepRecord]) -> Drilled:
    return Drilled(
        run=run.id,
        mode=run.plan.mode,
        at_ms=run.started_ms,
        state=run.state,
        predicted=run.plan.figures.get(FORECAST, "unknown"),
        measured_s=stood_still_s(run, steps),
        outcome=run.note if run.state is RunState.DONE else "",
    )


def came_through(run: Run) -> bool:
    return run.state is RunState.DONE and bool(run.note)


def failed_drills(mirror: str, outcomes: Mapping[Mode, str | MirrorError]) -> MirrorError | None:
    failed = [outcome for outcome in outcomes.values() if isinstance(outcome, MirrorError)]
    if not failed or len(outcomes) == 1:
        return next(iter(failed), None)
    words = "".join(f"\n  - {mode}: {_ended(outcome)}" for mode, outcome in outcomes.items())
    raised = Unreachable if all(error.retryable for error in failed) else MirrorError
    return raised(f"drill of mirror {mirror}: {len(failed)} of {len(outcomes)} failed:{words}")


def _ended(outcome: str | MirrorError) -> str:
    if isinstance(outcome, MirrorError):
        return "failed: " + str(outcome).replace("\n", "\n    ")
    return f"came through: {outcome}"


def forecast(
    runs: Iterable[Run],
    steps_of: Callable[[Run], tuple[StepRecord, ...]],
    mirror: str,
    mode: Mode,
    conductor: str | None = None,
) -> Forecast | None:
    finished = [r for r in runs if r.plan.kind is RunKind.FAILOVER and r.plan.mode is mode and r.state is RunState.DONE]
    alike = [r for r in finished if conductor is None or _conducted(r) == {_by_airflow(conductor)}]
    for known, same in ((alike, True), (finished, False)):
        for name, basis in ((mirror, "last run"), (drill_name(mirror), "last drill")):
            mine = [run for run in known if run.plan.mirror == name]
            newest = max(mine, key=lambda run: run.started_ms, default=None)
            steps = () if newest is None else steps_of(newest)
            seconds = None if newest is None else stood_still_s(newest, steps)
            if newest is not None and seconds is not None:
                took = {step.step: one for step in steps if (one := took_s(step)) is not None}
                return Forecast(seconds, basis if same else f"{basis}, {_in_words(newest)}", took)
    return None


def _by_airflow(conductor: str) -> bool:
    return conductor.startswith(AIRFLOW)


def _conducted(run: Run) -> set[bool]:
    return {_by_airflow(who) for who in (run.started_by, run.conducted_by)}


def _in_words(run: Run) -> str:
    by = _conducted(run)
    return "by Airflow and by command" if len(by) > 1 else "by Airflow" if True in by else "by command"
