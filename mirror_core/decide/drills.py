"""Names of what drills create, and how earlier drills went."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mirror_core.decide.mirror_snapshot import StandstillForecast
from mirror_core.decide.steps import list_standstill_steps, measure_standstill_s, measure_step_s
from mirror_core.model.acl import AclPurpose, LedgerEntry
from mirror_core.model.errors import MirrorError, Refused, Unreachable
from mirror_core.model.figures import FigureKey
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import (
    DRILL_PREFIX,
    HEARTBEAT_TOPIC_PREFIX,
    ClusterName,
    MirrorName,
    Offset,
    Partition,
    get_drill_group,
    get_heartbeat_topic,
)
from mirror_core.model.run import (
    AIRFLOW_CONDUCTOR_PREFIX,
    Plan,
    Run,
    RunKind,
    RunMode,
    RunState,
    StepRecord,
    find_last_begun,
    list_newest_first,
)
from mirror_core.model.text import format_items

MAX_KEPT_RUNS: Final = 20
"""Drill runs per mirror that a state topic keeps."""
NOT_EQUAL_TEXT: Final = "promoted, and not seen to be equal"
FORECAST_KEYS: Final = {
    RunMode.PLANNED: FigureKey.WITHOUT_WRITES_S,
    RunMode.UNPLANNED: FigureKey.FIRST_STEP_TO_PROMOTION_S,
}


@dataclass(frozen=True, slots=True)
class DrillSummary:
    """How one drill went, as far as the state topic knows."""

    run: str
    mode: RunMode
    at_ms: int
    state: RunState
    predicted_s: float | None
    """By the plan. None: unknown."""
    measured_s: float | None
    """From the first to the last of the steps during which applications could write nowhere; None: it did not get so
    far."""
    outcome: str
    """What was seen of what it promoted; empty: that was not equal to what was written, or nobody came to look."""

    @property
    def text(self) -> str:
        return self.outcome or (NOT_EQUAL_TEXT if self.state is RunState.DONE else self.state)


@dataclass(frozen=True, slots=True)
class GroupReadResult:
    """What a group met that went on reading on the promoted side, in records."""

    predicted_most: int | None
    """By the plan. None: unknown."""
    repeated: int | None
    """Done on the source already, and handled again. None: it was not tried, `untried` says why."""
    skipped: int | None
    """Not done on the source, on the promoted side, and not read there: that must not be."""
    untried: str = ""


def compare_group_reads(
    predicted_most: int | None,
    committed: Mapping[Partition, Offset],
    ends: Mapping[Partition, Offset],
    offsets_read: Mapping[Partition, Collection[Offset]],
) -> GroupReadResult:
    repeated = sum(offset < committed[p] for p, offsets in offsets_read.items() for offset in offsets)
    skipped = sum(len(set(range(committed[p], ends[p])) - set(offsets_read.get(p, ()))) for p in committed)
    return GroupReadResult(predicted_most, repeated, skipped)


def to_drill_name(mirror: str) -> MirrorName:
    return MirrorName(DRILL_PREFIX + mirror)


def to_drill_topic(mirror: str) -> str:
    return get_heartbeat_topic(to_drill_name(mirror))


def to_drill_group(mirror: str) -> str:
    group = get_drill_group(to_drill_name(mirror))
    assert group is not None
    return group


def list_drill_expressions(mirror: str) -> tuple[str, ...]:
    return (re.escape(to_drill_topic(mirror)),)


def check_drill_mirror(mirror: Mirror, mirror_name: str) -> None:
    if mirror.topics != list_drill_expressions(mirror_name):
        raise Refused(
            f"drill of mirror {mirror_name}",
            [f"mirror {mirror.name} is no drill's: it carries {mirror.topics}"],
            reason_code="not_a_drill",
        )


def is_drill_mirror(mirror: Mirror) -> bool:
    return mirror.name.startswith(DRILL_PREFIX) and mirror.topics == list_drill_expressions(
        mirror.name.removeprefix(DRILL_PREFIX)
    )


def list_drill_acls(ledger: Iterable[LedgerEntry], cluster: ClusterName) -> list[LedgerEntry]:
    """ACLs on a cluster that the drill certainly made.

    Fences and copied rights are in the ledger only if we made them. Of promoted ones, only those for a heartbeats
    topic, which no grant by prefix covers.
    """
    own_purposes = (AclPurpose.FENCE, AclPurpose.COPIED)
    return [
        e
        for e in ledger
        if e.cluster == cluster and (e.purpose in own_purposes or e.acl.name.startswith(HEARTBEAT_TOPIC_PREFIX))
        if e.purpose is not AclPurpose.STAGED
    ]


def list_drill_runs(runs: Iterable[Run], mirror: str) -> list[Run]:
    return list_newest_first(run for run in runs if run.plan.mirror == to_drill_name(mirror))


def list_forgettable_runs(runs: Iterable[Run], mirror: str) -> list[Run]:
    return [run for run in list_drill_runs(runs, mirror)[MAX_KEPT_RUNS:] if run.state is not RunState.RUNNING]


def can_be_forgotten(runs: Iterable[Run], plan: Plan, number: int) -> bool:
    """Only drill runs older than the kept ones are ever forgotten; any other unknown run never existed."""
    newer = [run for run in list_drill_runs(runs, plan.mirror.removeprefix(DRILL_PREFIX)) if run.number > number]
    return plan.mirror.startswith(DRILL_PREFIX) and len(newer) >= MAX_KEPT_RUNS


def summarize_drill(run: Run, steps: Iterable[StepRecord]) -> DrillSummary:
    return DrillSummary(
        run=run.id,
        mode=run.plan.mode,
        at_ms=run.started_ms,
        state=run.state,
        predicted_s=run.plan.predicted_s,
        measured_s=measure_standstill_s(run, steps),
        outcome=run.note if run.state is RunState.DONE else "",
    )


def has_passed(run: Run) -> bool:
    return run.state is RunState.DONE and bool(run.note)


def summarize_failed_drills(mirror: str, outcomes: Mapping[RunMode, str | MirrorError]) -> MirrorError | None:
    failed = [outcome for outcome in outcomes.values() if isinstance(outcome, MirrorError)]
    if not failed or len(outcomes) == 1:
        return next(iter(failed), None)
    text = format_items(f"{mode}: {_format_outcome(outcome)}" for mode, outcome in outcomes.items())
    error_class = Unreachable if all(error.retryable for error in failed) else MirrorError
    return error_class(f"drill of mirror {mirror}: {len(failed)} of {len(outcomes)} failed:{text}")


def _format_outcome(outcome: str | MirrorError) -> str:
    if isinstance(outcome, MirrorError):
        return f"failed: {outcome}"
    return f"came through: {outcome}"


def forecast_standstill(
    runs: Iterable[Run],
    steps_of: Callable[[Run], tuple[StepRecord, ...]],
    mirror: str,
    mode: RunMode,
    conductor: str | None = None,
) -> StandstillForecast | None:
    finished = [r for r in runs if r.plan.kind is RunKind.FAILOVER and r.plan.mode is mode and r.state is RunState.DONE]
    smooth = [run for run in finished if not _was_repeated(run, steps_of(run))]
    same_conductor = [r for r in smooth if conductor is None or _list_conductor_kinds(r) == {_is_airflow(conductor)}]
    for candidates, is_same_conductor in ((same_conductor, True), (smooth, False), (finished, False)):
        for name, basis in ((mirror, "last run"), (to_drill_name(mirror), "last drill")):
            matching = [run for run in candidates if run.plan.mirror == name]
            newest = find_last_begun(matching)
            steps = () if newest is None else steps_of(newest)
            seconds = None if newest is None else measure_standstill_s(newest, steps)
            if newest is not None and seconds is not None:
                step_seconds = {
                    step.step: duration_s for step in steps if (duration_s := measure_step_s(step)) is not None
                }
                conductor_text = "" if is_same_conductor else f", {_format_conductors(newest)}"
                repeated_text = ", in which a step was repeated" if candidates is finished else ""
                return StandstillForecast(seconds, f"{basis}{conductor_text}{repeated_text}", step_seconds)
    return None


def _was_repeated(run: Run, steps: Iterable[StepRecord]) -> bool:
    standstill_steps = list_standstill_steps(run.plan.kind, run.plan.mode)
    return any(step.attempt > 1 for step in steps if step.step in standstill_steps)


def _is_airflow(conductor: str) -> bool:
    return conductor.startswith(AIRFLOW_CONDUCTOR_PREFIX)


def _list_conductor_kinds(run: Run) -> set[bool]:
    return {_is_airflow(conductor) for conductor in (run.started_by, run.conducted_by)}


def _format_conductors(run: Run) -> str:
    conductor_kinds = _list_conductor_kinds(run)
    return (
        "by Airflow and by command"
        if len(conductor_kinds) > 1
        else "by Airflow"
        if True in conductor_kinds
        else "by command"
    )
