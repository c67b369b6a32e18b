"""A run's status, from the state topic only: a conductor's memory may be outdated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import Final

from mirror_core.decide import certificate_coverage
from mirror_core.decide.drills import is_drill_mirror
from mirror_core.decide.failover_scope import explain_failed_since_plan
from mirror_core.decide.fence_state import FenceState
from mirror_core.decide.fence_state import find_fence_state as debt_standing
from mirror_core.decide.process_liveness import UNKNOWN_CONDUCTOR, ConductorState, ConductorStatus
from mirror_core.decide.run_result import find_saved, format_health, read_health
from mirror_core.decide.steps import RUN_STEPS, RunVerb, WriteLocation, find_no_return_step, list_step_names
from mirror_core.model.errors import Indeterminate
from mirror_core.model.figures import FigureKey, list_values
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState, Mirror, PartitionStatus
from mirror_core.model.names import MirrorName, format_reverse_name, get_base_name
from mirror_core.model.pending_fence import PendingFence
from mirror_core.model.run import (
    FailbackStrategy,
    Run,
    RunKind,
    RunMode,
    RunState,
    StepRecord,
    StepState,
    find_last_begun,
)
from mirror_core.model.text import format_count, join_limited
from mirror_core.model.timing import CONDUCTOR_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class RunProgress:
    step: str
    """Begun last; empty: none was."""
    writes: WriteLocation
    """Where applications may write as long as nothing more happens."""
    since_ms: int
    """For the newest record in its journal."""
    step_state: StepState | None = None
    """Unknown (None) before the first step."""


def find_run_progress(run: Run, steps: Iterable[StepRecord]) -> RunProgress:
    """Raises Indeterminate if another version wrote a step that this one does not know."""
    rows = RUN_STEPS[run.plan.kind, run.plan.mode]
    newest = _find_newest_step(run, steps)
    if newest is None:
        return RunProgress("", rows[0].writes, run.started_ms)
    position = list_step_names(run.plan.kind, run.plan.mode).index(newest.step)
    is_past_step = (
        newest.state is StepState.DONE and rows[position].writes is WriteLocation.NOWHERE and position + 1 < len(rows)
    )
    return RunProgress(
        newest.step,
        rows[position + 1 if is_past_step else position].writes,
        newest.ended_ms or newest.started_ms,
        newest.state,
    )


def _find_newest_step(run: Run, steps: Iterable[StepRecord]) -> StepRecord | None:
    """By the order of steps, since clocks of machines differ."""
    step_names = list_step_names(run.plan.kind, run.plan.mode)
    by_name = {record.step: record for record in steps}
    if unknown := sorted(by_name.keys() - set(step_names)):
        raise Indeterminate(
            f"run {run.id} has begun step {unknown[0]!r}, which this version of Mirrorbook does not know: use the "
            "version that began the run"
        )
    return next((by_name[name] for name in reversed(step_names) if name in by_name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSituation:
    run: Run
    steps: Sequence[StepRecord]
    mirror: Mirror
    pending_fence: PendingFence | None
    is_past_no_return: bool
    is_copying: bool
    failed_partitions: Sequence[PartitionStatus] = ()
    conductor: ConductorStatus = UNKNOWN_CONDUCTOR
    source_returned: bool = False
    failed_since_plan: Sequence[PartitionStatus] = ()
    """Partitions that a planned failover has yet to drain: it cannot."""
    lifted_denials: int = 0
    """DENYs of this run's fence that the source no longer has: applications may write there."""
    unread_home: Sequence[str] = ()
    """What is known of a failback's way home, if the old source, which keeps its state, is silent."""
    ended_failback: str = ""
    """Id of the failback that this run was the way home of. Empty: it has not ended, or is not known."""


class OpenRunFence(StrEnum):
    """What keeps applications from writing on the source while an open run lets them write nowhere."""

    SEEN = "seen"
    UNSEEN = "unseen"
    """Step `fence` has begun, and has not ended."""
    LIFTED = "lifted"
    """Applications can write on the source."""
    NO_AUTHORIZER = "no authorizer"
    """Nothing can deny them."""
    SOURCE_GIVEN_UP = "source given up"
    """An unplanned failover: it may take writes, which are lost."""
    SOURCE_RETURNED = "source returned"
    """It answered again before the promotion, and may have records that were not copied."""


def format_newer_run(run: Run, runs: Iterable[Run]) -> tuple[str, ...]:
    newer = [r for r in runs if r.plan.mirror == run.plan.mirror and r.number > run.number]
    newest_run = find_last_begun(newer)
    if run.ended_ms is None or newest_run is None:
        return ()
    return (
        (
            f"{newest_run.plan.kind.capitalize()} {newest_run.id} came after this one: `mirrorbook"
            f" {newest_run.plan.kind} status {newest_run.plan.mirror}` says who can write where now."
        ),
    )


def find_newest_run(mirror: MirrorName, runs: Iterable[Run]) -> Run | None:
    """Holds the mirror if any run does."""
    return find_last_begun(run for run in runs if run.plan.mirror == mirror)


def find_next_failback(run: Run, runs: Iterable[Run]) -> Run | None:
    """The last one before the mirror's next failover."""
    later_runs = sorted(
        (r for r in runs if r.plan.mirror == run.plan.mirror and r.number > run.number), key=lambda r: r.number
    )
    before_failover = takewhile(lambda r: r.plan.kind is RunKind.FAILBACK, later_runs)
    return next(reversed(tuple(before_failover)), None)


def format_not_begun(mirror: Mirror, previous_run: Run | None, previous_status: Sequence[str]) -> tuple[str, ...]:
    if previous_run is None and mirror.desired is DesiredState.STOPPED:
        if mirror.failback_run:
            return (f"Nothing was begun. Mirror {mirror.name} is stopped: who may write where is not recorded.",)
        return (f"Nothing was begun: applications write on {mirror.source}, as before; {mirror.name} is stopped.",)
    if previous_run is None:
        return (
            (
                f"Nothing was begun: applications write on {mirror.source}, as before; {mirror.destination} stays a "
                "mirror."
            ),
        )
    if previous_run.ended_ms is None:
        return f"This task knows of no run that it began; {previous_run.id} holds {mirror.name}:", *previous_status
    return (
        f"Nothing was begun. The newest run of {mirror.name} is {previous_run.id}, {previous_run.state}:",
        *previous_status,
    )


def format_reverse_not_begun(mirror: Mirror) -> tuple[str, ...]:
    back = format_reverse_name(mirror.name)
    return (f"Failover {back} has not begun: applications write on {mirror.destination}.",)


def can_have_reverse_failover(run: Run, steps: Iterable[StepRecord]) -> bool:
    is_open = run.plan.kind is RunKind.FAILBACK and run.ended_ms is None
    return is_open and any(step.step == "catch_up" for step in steps)


def explain_only_copy(mirror: Mirror, run: Run, steps: Iterable[StepRecord]) -> Finding | None:
    """If a failback has deleted topics on the old source, and not copied them back yet."""
    states = {step.step: step.state for step in steps}
    topics = sorted(t for t, strategy in run.plan.strategies.items() if strategy is FailbackStrategy.RECREATE)
    if run.ended_ms is not None or not topics or "align" not in states or states.get("catch_up") is StepState.DONE:
        return None
    return Finding("new_primary_alone", mirror.destination, source=mirror.source, topics=topics)


def format_run_status(situation: RunSituation) -> tuple[str, ...]:
    match situation.run.state:
        case RunState.DONE:
            lines = (
                _format_failed_back(situation)
                if situation.run.plan.kind is RunKind.FAILBACK
                else _format_failed_over(situation)
            )
        case RunState.ABORTED | RunState.SUPERSEDED:
            lines = _format_given_up(situation)
        case RunState.RUNNING | RunState.ABORTING:
            lines = _format_unfinished(situation)
    return tuple(lines)


def _format_failed_over(situation: RunSituation) -> Iterator[str]:
    mirror, name = situation.mirror, situation.mirror.name
    if run := situation.ended_failback:
        yield f"{Finding('way_home_over_since', name, run=run, mirror=get_base_name(name))}."
        return
    yield f"Applications write on {mirror.destination}: point those there that don't follow by themselves."
    if certificates := certificate_coverage.read_coverage_evidence(situation.steps):
        summary = certificate_coverage.summarize_coverage(certificates)
        yield f"Certificates of what {mirror.destination} holds: {summary}."
        if certificate_coverage.has_uncertified(certificates):
            yield f"What is not proved, and why: `mirrorbook runs show {situation.run.id}`."
        if command := certificates.get(FigureKey.TO_PROVE_MORE):
            yield f"To prove more: `{command}`."
        if command := certificates.get(FigureKey.TO_PROVE_MORE_FROM_SOURCE):
            yield f"To prove more, when {mirror.source} answers: `{command}`."
    yield from _format_old_source(situation)
    switch_step = next((s for s in situation.steps if s.step == "switch"), None)
    if hooks := ", ".join(list_values(switch_step.evidence, FigureKey.FAILED_HOOKS) if switch_step else ()):
        yield f"Hooks that failed: {hooks}. `mirrorbook runs show {situation.run.id}` says how to call them by hand."
    canary = next((s for s in situation.steps if s.step == "canary" and s.state is StepState.DONE), None)
    if canary is not None and (health := read_health(canary.evidence)) is not None and not health.is_well:
        yield f"{format_health(health)}."
    if mirror.failback_run:
        yield (
            f"Next, when {mirror.source} answers: `mirrorbook failback resume {get_base_name(name)}` protects"
            f" {mirror.destination} again."
        )
    else:
        yield f"Next, when {mirror.source} is well again: `mirrorbook failback plan {name}`."


def _format_old_source(situation: RunSituation) -> Iterator[str]:
    source, watch_command = situation.mirror.source, f"`mirrorbook mirror watch {situation.mirror.name}`"
    match debt_standing(situation.pending_fence):
        case FenceState.PENDING:
            yield (
                f"{source} is NOT fenced yet: if it comes back, it takes writes until it is. Keep {watch_command}"
                " running, or DAG mirror_watch unpaused."
            )
        case FenceState.WATCHED_ONLY:
            yield f"{source} cannot be fenced by Mirrorbook: keep its applications stopped. {watch_command} looks."
        case FenceState.APPLIED if situation.pending_fence is not None and situation.pending_fence.by_command:
            yield (
                f"{source} is closed to applications by its fence_command. Keep {watch_command} running: it looks for"
                " writes."
            )
        case FenceState.APPLIED:
            yield f"{source} is fenced: nobody but a super user can write these topics there."
        case FenceState.NONE | FenceState.LIFTING:
            yield f"Whether {source} is fenced is not recorded: `mirrorbook mirror describe {situation.mirror.name}`."


def _format_failed_back(situation: RunSituation) -> Iterator[str]:
    mirror = situation.mirror
    if situation.is_copying:
        yield f"Applications write on {mirror.source} again, and {mirror.destination} mirrors it."
    else:
        yield (
            f"Applications write on {mirror.source} again. {mirror.destination} is NOT being updated now. A supervisor"
            " at work goes on by itself."
        )
        yield f"Next, if there is none: `mirrorbook supervise {mirror.name}`."
    saved, folders = find_saved(situation.steps)
    if saved != 0 and folders:
        replay = Finding("saved_to_write_back", folders=folders)
        yield f"Records that only {mirror.source} had are in {', '.join(folders)}: {replay}."
    if situation.failed_partitions:
        yield (
            f"{format_count(len(situation.failed_partitions), 'partition')} FAILED: `mirrorbook mirror describe"
            f" {mirror.name}` says which."
        )


def _format_given_up(situation: RunSituation) -> Iterator[str]:
    run, mirror = situation.run, situation.mirror
    if run.state is RunState.SUPERSEDED:
        yield f"This run has ended: {run.note or 'another one goes on from where it was'}."
        return
    if run.plan.kind is RunKind.FAILBACK:
        yield f"Nothing was changed on {mirror.source}: applications go on writing on {mirror.destination}."
        yield f"Next: `mirrorbook failback plan {mirror.name}`."
        return
    if debt_standing(situation.pending_fence) is FenceState.LIFTING:
        yield (
            f"{mirror.source} was silent, so the fence may still stand there, and nobody can write. Keep `mirrorbook "
            f"mirror watch {mirror.name}` running: it takes the fence down when {mirror.source} answers."
        )
    else:
        yield f"Applications write on {mirror.source}, as before."
    if mirror.desired is not DesiredState.STARTED or situation.is_copying:
        yield f"{mirror.destination} stays a mirror."
    else:
        yield f"{mirror.destination} stays a mirror, but is NOT updated now. A supervisor at work goes on by itself."
        yield f"Next, if there is none: `mirrorbook supervise {mirror.name}`."


def _format_unfinished(situation: RunSituation) -> Iterator[str]:
    run, mirror = situation.run, situation.mirror
    verb = f"mirrorbook {run.plan.kind}"
    progress = find_run_progress(run, situation.steps)
    yield f"Run {run.id} has not ended: {_format_place(situation)}."
    yield from situation.unread_home or (_format_run_writers(situation, progress.writes),)
    has_conductor = situation.conductor.state is ConductorState.ALIVE
    if only_copy := explain_only_copy(mirror, run, situation.steps):
        yield f"{only_copy}."
    if has_conductor:
        yield f"It is {situation.conductor}."
    if run.state is RunState.ABORTING:
        yield f"Next: {'wait' if has_conductor else f'`{verb} resume {mirror.name}` finishes the abort'}."
        return
    if situation.lifted_denials:
        yield f"Next: `{verb} abort {mirror.name}`, then plan again: this run cannot go on."
        return
    if situation.failed_since_plan:
        yield f"{join_limited(map(explain_failed_since_plan, situation.failed_since_plan), 3)}."
        yield (
            f"Next: `{verb} abort {mirror.name}`: this run cannot go on. Then `mirrorbook mirror recover {mirror.name}"
            " --dry-run` shows what can be done about it. Or a new plan promotes it as it is:"
            f" `{_format_new_plan_command(mirror)}`."
        )
        return
    resume_text = f"`{verb} resume {mirror.name}` goes on"
    if situation.source_returned:
        resume_text = (
            f"`{verb} resume {mirror.name} --leave-behind` goes on, and what was not copied stays on {mirror.source}"
        )
    commands = ["wait" if has_conductor else resume_text]
    if not situation.is_past_no_return:
        commands.append(f"`{verb} abort {mirror.name}` {_format_abort_effect(situation, progress.writes)}")
    yield f"Next: {'; '.join(commands)}."
    if can_go_on_unplanned(situation):
        yield f"If {mirror.source} is lost: `{verb} run {mirror.name} --mode unplanned` goes on from here."
    if situation.is_past_no_return:
        yield f"There is no abort: {find_no_return_step(run.plan.kind, run.plan.mode)} has begun."


def can_go_on_unplanned(situation: RunSituation) -> bool:
    run, is_stuck = situation.run, bool(situation.lifted_denials or situation.failed_since_plan)
    is_planned = run.plan.kind is RunKind.FAILOVER and run.plan.mode is RunMode.PLANNED
    return is_planned and run.state is RunState.RUNNING and not (situation.is_past_no_return or is_stuck)


def _format_new_plan_command(mirror: Mirror) -> str:
    if mirror.failback_run:
        return f"mirrorbook failback resume {get_base_name(mirror.name)}"
    return f"mirrorbook failover plan {mirror.name}"


def _format_place(situation: RunSituation) -> str:
    newest_step = _find_newest_step(situation.run, situation.steps)
    if newest_step is not None and newest_step.state is StepState.FAILED:
        return f"step {newest_step.step} failed"
    has_stopped = situation.conductor.state in (ConductorState.RELEASED, ConductorState.SILENT)
    verb = "it stopped" if has_stopped else "it is"
    if newest_step is None:
        return f"{verb} before its first step"
    return f"{verb} {'after' if newest_step.state is StepState.DONE else 'in'} step {newest_step.step}"


def _format_run_writers(situation: RunSituation, writes: WriteLocation) -> str:
    mirror, run = situation.mirror, situation.run
    if writes is not WriteLocation.NOWHERE:
        cluster = mirror.source if writes is WriteLocation.SOURCE else mirror.destination
        if can_have_reverse_failover(run, situation.steps):
            return (
                f"Failover {format_reverse_name(mirror.name)} moves applications home: "
                f"`mirrorbook mirror describe {mirror.name}` says where they write."
            )
        return f"Applications write on {cluster}."
    if situation.is_past_no_return:
        return f"Some applications may write on {mirror.destination} already, others nowhere: rights may be half given."
    match find_open_run_fence(situation):
        case OpenRunFence.SOURCE_RETURNED:
            fenced = debt_standing(situation.pending_fence) is FenceState.APPLIED
            return (
                f"NOBODY CAN WRITE these topics on {mirror.destination}: it is not promoted yet, since {mirror.source} "
                f"answered again and may have records that were not copied. {mirror.source}"
                f" {'is' if fenced else 'is NOT'} fenced."
            )
        case OpenRunFence.SOURCE_GIVEN_UP:
            return (
                f"NOBODY CAN WRITE these topics on {mirror.destination}: it is not promoted yet. {mirror.source} is"
                " given up: what it still takes is lost."
            )
        case OpenRunFence.LIFTED:
            gone = f"{format_count(situation.lifted_denials, 'denial')} of this run's fence"
            verb = "is" if situation.lifted_denials == 1 else "are"
            return (
                f"Applications can write on {mirror.source}: {gone} {verb} gone there. {mirror.destination} is not"
                " promoted."
            )
        case OpenRunFence.NO_AUTHORIZER:
            return (
                f"Nothing keeps applications from writing: {mirror.source} has no authorizer. Keep them stopped: what"
                f" they write there now is not copied, and {mirror.destination} is not promoted yet."
            )
        case OpenRunFence.SEEN | OpenRunFence.UNSEEN as fence:
            return (
                f"NOBODY CAN WRITE these topics: {mirror.source} {'is' if fence is OpenRunFence.SEEN else 'may be'}"
                f" fenced, and {mirror.destination} is not promoted yet."
            )


def find_open_run_fence(situation: RunSituation) -> OpenRunFence:
    """For a run before its point of no return that lets applications write nowhere."""
    if situation.source_returned:
        return OpenRunFence.SOURCE_RETURNED
    if situation.run.plan.mode is RunMode.UNPLANNED:
        return OpenRunFence.SOURCE_GIVEN_UP
    if situation.lifted_denials:
        return OpenRunFence.LIFTED
    fence = next((step for step in situation.steps if step.step == "fence" and step.state is StepState.DONE), None)
    if fence is None:
        return OpenRunFence.UNSEEN
    if fence.evidence.get("authorizer") is False and "fence_command" not in fence.evidence:
        return OpenRunFence.NO_AUTHORIZER
    return OpenRunFence.SEEN


def _format_abort_effect(situation: RunSituation, writes: WriteLocation) -> str:
    if situation.run.plan.kind is RunKind.FAILOVER and writes is WriteLocation.NOWHERE:
        return f"lets applications write on {situation.mirror.source} again"
    return "gives it up, and nothing changes"


def format_unknown_status(
    mirror: Mirror, kind: RunKind = RunKind.FAILOVER, known_lines: Sequence[str] = ()
) -> tuple[str, ...]:
    """`known_lines`: what other clusters and the evidence folder tell. A failback begins where it was promoted."""
    unread = Finding("run_state_unread", mirror.destination, mirror=mirror.name, run_kind=kind)
    if kind is RunKind.FAILBACK:
        lost = Finding("promoted_state_unread", mirror.destination, source=mirror.source)
        return (f"{unread}.", *(known_lines or (f"{lost}.",)))
    fenced = Finding("fence_state_unread", mirror.source, destination=mirror.destination)
    return (f"{unread}.", *known_lines, f"{fenced}.")


_NOT_CONDUCTED: Final = frozenset({ConductorState.RELEASED, ConductorState.SILENT})
_BETWEEN_TASKS_S: Final = 60.0
STALLED_AFTER_MS: Final = 60_000


def is_conducted(conductor: ConductorStatus) -> bool | None:
    """A run that was just released counts as conducted: Airflow takes time between two tasks."""
    if conductor.state is ConductorState.UNKNOWN:
        return None
    patience_s = CONDUCTOR_TIMEOUT_S + (_BETWEEN_TASKS_S if conductor.state is ConductorState.RELEASED else 0.0)
    return conductor.state not in _NOT_CONDUCTED or ((conductor.age_s or 0.0) < patience_s and not conductor.has_ended)


def find_stalled_run(
    mirror: Mirror, run: Run, progress: RunProgress, conductor: ConductorStatus, verbs: Iterable[RunVerb]
) -> Finding | None:
    """An alarm for people on call. A drill has no applications."""
    if progress.writes is not WriteLocation.NOWHERE or is_conducted(conductor) is not False or is_drill_mirror(mirror):
        return None
    return Finding(
        "run_stalled",
        run.id,
        run_kind=run.plan.kind,
        mirror=run.plan.mirror,
        destination=mirror.destination,
        given_up=mirror.source if run.plan.mode is RunMode.UNPLANNED else "",
        step=progress.step,
        step_state=progress.step_state,
        since_ms=progress.since_ms,
        last_conductor=conductor.by,
        last_seen_ms=conductor.last_seen_ms or 0,
        by_local_clock=conductor.state is ConductorState.SILENT and not conductor.has_ended,
        verbs=verbs,
    )


def is_stalled(progress: RunProgress, now_ms: int) -> bool:
    return now_ms - progress.since_ms > STALLED_AFTER_MS
