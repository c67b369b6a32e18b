"""What is known of drills: the names of what they are made of, and how earlier ones went. Pure."""

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
"""Runs of drills that a state topic remembers of each mirror."""
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
    """`done`: up to where the group has come on the source. `ends`: log ends of the promoted side. `read`: what the
    group has read there."""
    again = sum(offset < done[p] for p, offsets in read.items() for offset in offsets)
    missed = sum(len(set(range(done[p], ends[p])) - set(read.get(p, ()))) for p in done)
    return ReadOn(predicted, again, missed)


def drill_name(mirror: str) -> MirrorName:
    """The mirror that stands for this one in a drill."""
    return MirrorName(DRILL + mirror)


def drill_topic(mirror: str) -> str:
    """The only topic of a drill: its mirror's heartbeats, which no other mirror carries, whatever its expressions."""
    return heartbeat_topic(drill_name(mirror))


def group_of(mirror: str) -> str:
    """The consumer group of a drill: no real one can be it, since its name is one of ours, which no mirror carries."""
    group = drill_group(drill_name(mirror))
    assert group is not None
    return group


def expressions(mirror: str) -> tuple[str, ...]:
    """The topics that a drill's mirror names: its mark, too."""
    return (re.escape(drill_topic(mirror)),)


def check_ours(mirror: Mirror, of: str) -> None:
    """Refused when a mirror has a drill's name, and is somebody's own: it is not to be cleaned away."""
    if mirror.topics != expressions(of):
        raise Refused(f"drill of mirror {of}", [f"mirror {mirror.name} is no drill's: it carries {mirror.topics}"])


def is_drills(mirror: Mirror) -> bool:
    """Whether a mirror is one that a drill has made, and has left behind when it was killed."""
    return mirror.name.startswith(DRILL) and mirror.topics == expressions(mirror.name.removeprefix(DRILL))


def put_up(ledger: Iterable[LedgerEntry], cluster: ClusterName) -> list[LedgerEntry]:
    """What a drill has made on a cluster that others may not have made, too, by their own hands.

    Fences and copied rights are entered only by who makes them. Of promoted ones, which may have been there before,
    those that name a heartbeats topic: it is the drill's, and no grant for it is given by prefix (`decide/promotion`).
    """
    certain = (AclPurpose.FENCE, AclPurpose.COPIED)
    return [
        e
        for e in ledger
        if e.cluster == cluster and (e.purpose in certain or e.acl.name.startswith(HEARTBEATS))
        if e.purpose is not AclPurpose.STAGED
    ]


def runs_of(runs: Iterable[Run], mirror: str) -> list[Run]:
    """Of this mirror's drills, the newest first."""
    mine = [run for run in runs if run.plan.mirror == drill_name(mirror)]
    return sorted(mine, key=lambda run: run.started_ms, reverse=True)


def old_runs(runs: Iterable[Run], mirror: str) -> list[Run]:
    """Those that may be forgotten: only ever when there are as many newer ones as are kept."""
    return [run for run in runs_of(runs, mirror)[KEPT:] if run.state is not RunState.RUNNING]


def may_be_forgotten(runs: Iterable[Run], plan: Plan, begun_ms: int) -> bool:
    """Whether a state topic that knows these runs, and not one of this plan that began then, may have forgotten it.

    No other run is ever forgotten: one that is unknown, and no drill's, or that is newer than those that are kept, was
    never there.
    """
    newer = [run for run in runs_of(runs, plan.mirror.removeprefix(DRILL)) if run.started_ms > begun_ms]
    return plan.mirror.startswith(DRILL) and len(newer) >= KEPT


def drilled(run: Run, steps: Iterable[StepRecord]) -> Drilled:
    """What a run shows of itself."""
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
    """Whether a drill has done what it is for: its outcome is written down when it was looked at, and was good."""
    return run.state is RunState.DONE and bool(run.note)


def failed_drills(mirror: str, outcomes: Mapping[Mode, str | MirrorError]) -> MirrorError | None:
    """What to raise when not all of several drills came through: it names each outcome. None: all came through.

    To be tried again only where that may help every one that failed.
    """
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
    """By this mirror's newest failover of this mode that was finished; by its newest drill, where there is none.

    `conductor`: who would conduct it. From task to task Airflow waits, a command does not: so one that the same kind of
    conductor took from its beginning to its end comes first, and of any other the basis says who took it.
    """
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
    """Whether by Airflow; both, if one of them took it over from the other."""
    return {_by_airflow(who) for who in (run.started_by, run.conducted_by)}


def _in_words(run: Run) -> str:
    by = _conducted(run)
    return "by Airflow and by command" if len(by) > 1 else "by Airflow" if True in by else "by command"
