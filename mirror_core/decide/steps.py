"""The steps of a failover and of a failback, a row each."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mirror_core.model.config_sections import WriteBarrier
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import MirrorName, format_reverse_name
from mirror_core.model.run import PlanStep, Run, RunKind, RunMode, RunState, StepRecord


class StepNeed(StrEnum):
    SOURCE = "source"
    DESTINATION = "destination"
    SPARK = "Spark"
    """It reads all data: on Spark if there is one, otherwise slowly in this process."""
    REVERSE_COPY = "data plane of the reverse mirror"
    REVERSE_FAILOVER = "applications at home"
    """The failover of the reverse mirror is done; it has its own plan, approval and run."""


class WriteLocation(StrEnum):
    """Where applications may write while a step runs."""

    SOURCE = "source"
    NOWHERE = "nowhere"
    """They stand still: the clock that people wait for."""
    DESTINATION = "destination"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDefinition:
    name: str
    action: str
    """One sentence for a plan, with {source}, {destination} and {back}, the reverse mirror's name."""
    action_unfenced: str = ""
    action_by_command: str = ""
    needs: frozenset[StepNeed]
    writes: WriteLocation
    is_reversible: bool = True
    """Whether an abort is possible once the step has begun."""
    failure_advice: str

    def format_action(self, barred: WriteBarrier) -> str:
        return {WriteBarrier.NONE: self.action_unfenced, WriteBarrier.COMMAND: self.action_by_command}.get(
            barred
        ) or self.action


_BOTH: Final = frozenset({StepNeed.SOURCE, StepNeed.DESTINATION})
_DESTINATION: Final = frozenset({StepNeed.DESTINATION})

_PLANNED_STEPS: Final = (
    StepDefinition(
        name="prove",
        action="compare all that is mirrored so far, by record where digests differ: {source} with {destination}",
        needs=_BOTH | {StepNeed.SPARK},
        writes=WriteLocation.SOURCE,
        failure_advice="a difference was found: see its report. Don't fail over",
    ),
    StepDefinition(
        name="fence",
        action=(
            "deny everybody to write the mirror's topics on {source}, and prove on every broker that its logs stand "
            "still"
        ),
        action_unfenced="{source} cannot be fenced by Mirrorbook: only check that its logs stand still for 2 s",
        action_by_command=(
            "close {source} to applications by its fence_command, and check that its logs stand still for 2 s"
        ),
        needs=_BOTH,
        writes=WriteLocation.NOWHERE,
        failure_advice="somebody still writes, or a transaction is open: the message names it. End it, resume",
    ),
    StepDefinition(
        name="drain",
        action="take over the data plane and copy the rest, until every position is the log end of {source}",
        needs=_BOTH,
        writes=WriteLocation.NOWHERE,
        failure_advice="a cluster is unreachable, or a partition failed: fix it, then resume",
    ),
    StepDefinition(
        name="final_sync",
        action="bring over topic configurations, access rights and consumer group offsets a last time",
        needs=_BOTH,
        writes=WriteLocation.NOWHERE,
        failure_advice="resume",
    ),
    StepDefinition(
        name="parity",
        action="compare what was copied since the proof, and log starts and ends; go on only if all is equal",
        needs=_BOTH,
        writes=WriteLocation.NOWHERE,
        failure_advice="the two sides differ: abort",
    ),
    StepDefinition(
        name="record_lmo",
        action="record the last mirrored offset of every partition and end the mirroring",
        needs=_DESTINATION,
        writes=WriteLocation.NOWHERE,
        failure_advice="resume",
    ),
    StepDefinition(
        name="promote",
        action="let applications write on {destination}: staged rights and final topic configurations take effect",
        needs=_DESTINATION,
        writes=WriteLocation.NOWHERE,
        is_reversible=False,
        failure_advice="resume. Rights may be half given; while none was, abort is possible",
    ),
    StepDefinition(
        name="switch",
        action=(
            "tell applications that {destination} is active: topic __mirrorbook_active on both sides, and your hooks"
        ),
        needs=_DESTINATION,
        writes=WriteLocation.DESTINATION,
        is_reversible=False,
        failure_advice="resume. A hook that fails does not stop it: the report names it, and how to call it by hand",
    ),
    StepDefinition(
        name="canary",
        action="write to every broker of {destination} and read it back",
        needs=_DESTINATION,
        writes=WriteLocation.DESTINATION,
        is_reversible=False,
        failure_advice="a broker of {destination} takes no writes: mend it, resume",
    ),
    StepDefinition(
        name="report",
        action="write the evidence and the report",
        needs=_DESTINATION,
        writes=WriteLocation.DESTINATION,
        is_reversible=False,
        failure_advice="disk full? resume with `--evidence DIR`",
    ),
)

_UNPLANNED_STEPS: Final = (
    StepDefinition(
        name="settle",
        action=(
            "let no copier write on {destination} any more, and see that what is there is replicated and stands still"
        ),
        needs=_DESTINATION,
        writes=WriteLocation.NOWHERE,
        failure_advice="{destination} is not well: a broker is away, or an old task still writes. Mend it, resume",
    ),
    StepDefinition(
        name="stand",
        action="keep {source} from taking writes from now on: fence it at once if it answers, or the moment it does",
        action_by_command=(
            "keep {source} from taking writes from now on: call its fence_command at once if it answers, or the "
            "moment it does"
        ),
        needs=_DESTINATION,
        writes=WriteLocation.NOWHERE,
        failure_advice="resume",
    ),
    StepDefinition(
        name="final_offsets",
        action="bring the consumer groups' offsets into the logs of {destination} as they are now",
        needs=_DESTINATION,
        writes=WriteLocation.NOWHERE,
        failure_advice="resume",
    ),
    *(step for step in _PLANNED_STEPS if step.name in ("record_lmo", "promote", "switch", "canary", "report")),
)
"""The source is presumed dead: no step queries it or waits for it."""

_FAILBACK_STEPS: Final = (
    StepDefinition(
        name="salvage",
        action=(
            "fence {source}, find from where on it holds something else than {destination}, and save that to Parquet"
        ),
        needs=_BOTH | {StepNeed.SPARK},
        writes=WriteLocation.DESTINATION,
        failure_advice=(
            "there is more to discard than was approved: abort, plan again. Disk full, or a cluster is "
            "unreachable: fix it, then resume"
        ),
    ),
    StepDefinition(
        name="align",
        action=(
            "take the logs on {source} back to where they parted from {destination}, each topic by its strategy; what "
            "has come there since is saved first"
        ),
        needs=_BOTH,
        writes=WriteLocation.DESTINATION,
        is_reversible=False,
        failure_advice=(
            "logs have to be cut by you: the message has the lines; then resume. Somebody writes on {source} "
            "in spite of the fence: end that, resume. A cluster is away: resume"
        ),
    ),
    StepDefinition(
        name="demote",
        action="deny applications to change these topics on {source}, then lift the fence there",
        needs=_BOTH,
        writes=WriteLocation.DESTINATION,
        is_reversible=False,
        failure_advice="resume",
    ),
    StepDefinition(
        name="create_reverse",
        action="create mirror {back} from {destination} to {source}",
        needs=_BOTH,
        writes=WriteLocation.DESTINATION,
        is_reversible=False,
        failure_advice="resume",
    ),
    StepDefinition(
        name="catch_up",
        action="copy from {destination} until {source} is close behind; applications go on writing on {destination}",
        needs=_BOTH | {StepNeed.REVERSE_COPY},
        writes=WriteLocation.DESTINATION,
        is_reversible=False,
        failure_advice="replication is not catching up: see `mirrorbook mirror describe {back}`, resume",
    ),
    StepDefinition(
        name="reprotect",
        action=(
            "after a planned failover of {back}, with its own plan and approval: mirror {source} to {destination} again"
        ),
        needs=_BOTH | {StepNeed.REVERSE_FAILOVER},
        writes=WriteLocation.SOURCE,
        is_reversible=False,
        failure_advice=(
            "resume. What somebody wrote on {destination} after the switch stays there, and its partitions are "
            "FAILED: `mirrorbook mirror recover` saves it"
        ),
    ),
)

RUN_STEPS: Final[Mapping[tuple[RunKind, RunMode], tuple[StepDefinition, ...]]] = MappingProxyType(
    {
        (RunKind.FAILOVER, RunMode.PLANNED): _PLANNED_STEPS,
        (RunKind.FAILOVER, RunMode.UNPLANNED): _UNPLANNED_STEPS,
        (RunKind.FAILBACK, RunMode.PLANNED): _FAILBACK_STEPS,
    }
)
"""A failback is always planned: it needs both sides."""
_STEP_NAMES: Final = {which: tuple(step.name for step in steps) for which, steps in RUN_STEPS.items()}


def list_step_names(kind: RunKind, mode: RunMode = RunMode.PLANNED) -> tuple[str, ...]:
    return _STEP_NAMES[kind, mode]


def find_no_return_step(kind: RunKind, mode: RunMode = RunMode.PLANNED) -> str:
    """The first step that no abort undoes once it has begun, or, in a failover, has given rights."""
    return next(step.name for step in RUN_STEPS[kind, mode] if not step.is_reversible)


def is_past_no_return(run: Run, begun_steps: Container[tuple[str, str]]) -> bool:
    """It may have given nothing yet. `begun_steps`: (run id, step) pairs."""
    return (run.id, find_no_return_step(run.plan.kind, run.plan.mode)) in begun_steps


class RunVerb(StrEnum):
    RESUME = "resume"
    ABORT = "abort"


_OPEN_STATES: Final = frozenset({RunState.RUNNING, RunState.ABORTING})


def list_run_verbs(run: Run, *, is_past_no_return: bool) -> tuple[RunVerb, ...]:
    """What is not refused for the run as it is. `resume` also finishes an abort."""
    if run.state not in _OPEN_STATES:
        return ()
    can_abort = run.state is RunState.RUNNING and not is_past_no_return
    return (RunVerb.RESUME, RunVerb.ABORT) if can_abort else (RunVerb.RESUME,)


@dataclass(frozen=True, slots=True)
class HoldingRun:
    """An open run, which lets its mirror begin no other one."""

    id: str
    kind: RunKind
    mirror: MirrorName
    verbs: tuple[RunVerb, ...]

    @classmethod
    def from_run(cls, run: Run, *, is_past_no_return: bool) -> HoldingRun:
        verbs = list_run_verbs(run, is_past_no_return=is_past_no_return)
        return cls(run.id, run.plan.kind, run.plan.mirror, verbs)

    def explain(self) -> Finding:
        return Finding("mirror_held_by_run", self.mirror, run=self.id, run_kind=self.kind, verbs=self.verbs)


def list_standstill_steps(kind: RunKind, mode: RunMode = RunMode.PLANNED) -> tuple[str, ...]:
    return tuple(step.name for step in RUN_STEPS[kind, mode] if step.writes is WriteLocation.NOWHERE)


def measure_standstill_s(run: Run, steps: Iterable[StepRecord]) -> float | None:
    """First attempt of the first such step to the end of the last, waits included.

    None: it did not get so far, or a clock was set back meanwhile.
    """
    standstill_steps, records = list_standstill_steps(run.plan.kind, run.plan.mode), {step.step: step for step in steps}
    if not standstill_steps or standstill_steps[0] not in records or standstill_steps[-1] not in records:
        return None
    ended_ms = records[standstill_steps[-1]].ended_ms
    return measure_duration_s(records[standstill_steps[0]].first_attempt_ms, ended_ms)


def measure_step_s(step: StepRecord) -> float | None:
    return measure_duration_s(step.started_ms, step.ended_ms)


def measure_duration_s(started_ms: int, ended_ms: int | None) -> float | None:
    """None also where the end's clock is behind that of the beginning."""
    return None if ended_ms is None or ended_ms < started_ms else (ended_ms - started_ms) / 1000


def list_steps_before_no_return(kind: RunKind, mode: RunMode = RunMode.PLANNED) -> tuple[str, ...]:
    return list_step_names(kind, mode)[: list_step_names(kind, mode).index(find_no_return_step(kind, mode))]


def list_undisturbed_steps(kind: RunKind, mode: RunMode = RunMode.PLANNED) -> tuple[str, ...]:
    """Applications do not notice them, and an abort undoes them."""
    standstill_steps = list_standstill_steps(kind, mode)
    return tuple(
        itertools.takewhile(lambda step: step not in standstill_steps, list_steps_before_no_return(kind, mode))
    )


def list_steps_needing(kind: RunKind, need: StepNeed) -> tuple[str, ...]:
    return tuple(step.name for step in RUN_STEPS[kind, RunMode.PLANNED] if need in step.needs)


def plan_steps(
    kind: RunKind, mirror: Mirror, mode: RunMode = RunMode.PLANNED, *, barred: WriteBarrier = WriteBarrier.DENY_ACLS
) -> tuple[PlanStep, ...]:
    """`barred`: what keeps writers out of the source, as far as known."""
    cluster_names = {
        "source": mirror.source,
        "destination": mirror.destination,
        "back": format_reverse_name(mirror.name),
    }
    return tuple(
        PlanStep(
            name=step.name,
            action=step.format_action(barred).format(**cluster_names),
            reversible=step.is_reversible,
        )
        for step in RUN_STEPS[kind, mode]
    )


def list_step_rows(
    kind: RunKind,
    mode: RunMode = RunMode.PLANNED,
    *,
    source: str = "east",
    destination: str = "west",
    back: str = "NAME-back",
) -> Iterator[tuple[str, str, str, str, str]]:
    cluster_names = {"source": source, "destination": destination, "back": back}
    write_texts = {
        WriteLocation.SOURCE: f"on {source}",
        WriteLocation.NOWHERE: "nobody",
        WriteLocation.DESTINATION: f"on {destination}",
    }
    need_names = {StepNeed.SOURCE: source, StepNeed.DESTINATION: destination}
    for step in RUN_STEPS[kind, mode]:
        needs = ", ".join(need_names.get(need, str(need)) for need in StepNeed if need in step.needs)
        undo = "abort" if step.is_reversible else "none"
        yield step.name, write_texts[step.writes], needs, undo, step.failure_advice.format(**cluster_names)


def format_steps_markdown(kind: RunKind, mode: RunMode = RunMode.PLANNED, **names: str) -> Iterator[str]:
    yield "| step | applications write | needs | undo | if it fails |"
    yield "|---|---|---|---|---|"
    no_return_step = find_no_return_step(kind, mode)
    for name, writes, needs, undo, advice in list_step_rows(kind, mode, **names):
        bold = "**" if name == no_return_step else ""
        yield f"| {bold}{name}{bold} | {writes} | {needs} | {bold}{undo}{bold} | {advice} |"
