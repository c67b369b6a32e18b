"""What each command on a mirror does, and why it may not act now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mirror_core.decide.process_liveness import UNKNOWN_CONDUCTOR, ConductorStatus
from mirror_core.decide.steps import RunVerb
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition, format_reverse_name, get_base_name
from mirror_core.model.run import Run, RunKind
from mirror_core.model.run_checkpoints import RunHeartbeat


class MirrorCommand(StrEnum):
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    PAUSE_TOPICS = "pause --topics"
    RESUME_TOPICS = "resume --topics"
    THROTTLE = "throttle"
    SYNC = "sync"
    PROVE = "prove"
    RECEIPTS = "receipts"
    STOP = "stop"
    RECOVER = "recover"
    WATCH = "watch"
    CHANGE = "change"
    SPLIT = "split"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class CommandRule:
    effect: str
    undo_command: str
    """Empty: cannot be undone, so it is never done unasked."""
    allowed_desired: frozenset[DesiredState] = frozenset(DesiredState)
    takes_turns: bool = False
    """Waits for the end of another one that takes turns. Any other command interrupts it."""


COMMAND_RULES: Final[Mapping[MirrorCommand, CommandRule]] = MappingProxyType(
    {
        MirrorCommand.START: CommandRule("`replicate` may copy it from now on", "`mirror pause`"),
        MirrorCommand.PAUSE: CommandRule(
            "copying ends for now, at the data plane's next epoch; the topics stay the mirror's",
            "`mirror resume`",
            frozenset({DesiredState.STARTED}),
        ),
        MirrorCommand.RESUME: CommandRule("copying goes on", "`mirror pause`", frozenset({DesiredState.PAUSED})),
        MirrorCommand.PAUSE_TOPICS: CommandRule(
            "copying of some topics ends for now, at the data plane's next epoch",
            "`mirror resume --topics`",
            frozenset({DesiredState.STARTED, DesiredState.PAUSED}),
        ),
        MirrorCommand.RESUME_TOPICS: CommandRule(
            "copying of some topics goes on",
            "`mirror pause --topics`",
            frozenset({DesiredState.STARTED, DesiredState.PAUSED}),
        ),
        MirrorCommand.THROTTLE: CommandRule(
            "limits what is read from the source, from the data plane's next epoch on", "`mirror throttle`"
        ),
        MirrorCommand.SYNC: CommandRule(
            "brings topics, settings, access rights, groups' offsets and client quotas in line with the source",
            "the next sync",
            takes_turns=True,
        ),
        MirrorCommand.PROVE: CommandRule(
            "remembers how far the copy was compared with the source",
            "a comparison with `--whole`",
            takes_turns=True,
        ),
        MirrorCommand.RECEIPTS: CommandRule(
            "puts receipts of past days together, or stores anew what none vouches for, and says so in their heads",
            "`receipts rebuild`",
            takes_turns=True,
        ),
        MirrorCommand.STOP: CommandRule(
            "ends mirroring, and records where: the last mirrored offset (LMO) of each partition. `mirror start` goes "
            "on from there, as long as nobody has written to its topics on the destination",
            "",
        ),
        MirrorCommand.RECOVER: CommandRule("does what is shown about FAILED partitions", ""),
        MirrorCommand.WATCH: CommandRule(
            "fences the old source as soon as it answers, and looks "
            "after it; takes down the one that an abort had to leave",
            "`failback`",
        ),
        MirrorCommand.CHANGE: CommandRule(
            "changes which topics and groups it carries; a topic that leaves is released to applications, or kept"
            " closed",
            "",
        ),
        MirrorCommand.SPLIT: CommandRule(
            "moves some of its topics to a new mirror, which copies nothing again",
            "",
            frozenset({DesiredState.PAUSED, DesiredState.STOPPED}),
        ),
        MirrorCommand.DELETE: CommandRule("forgets the mirror; its topics stay", "", frozenset({DesiredState.STOPPED})),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandContext:
    mirror: Mirror | None
    run: Run | None
    statuses: Sequence[PartitionStatus]
    copier: str | None
    tasks_may_write_s: float
    has_failed_over: bool = False
    fenced_by_command: ClusterName | None = None
    """It was failed away from and closed by its `fence_command`, which no broker shows."""
    run_verbs: Sequence[RunVerb] = ()
    conductor: ConductorStatus = UNKNOWN_CONDUCTOR
    turn_holder: RunHeartbeat | None = None
    """Heartbeat of a command at work that takes turns."""


def explain_refusals(command: MirrorCommand, context: CommandContext) -> Iterator[Finding]:
    mirror, rule = context.mirror, COMMAND_RULES[command]
    if mirror is None:
        yield Finding("mirror_deleted")
        return
    if context.run is not None:
        yield explain_held_by(context.run, context.conductor, context.run_verbs)
    if mirror.desired not in rule.allowed_desired:
        yield Finding("wrong_desired_state", mirror.name, desired=mirror.desired, allowed=sorted(rule.allowed_desired))
    if command is MirrorCommand.START and context.has_failed_over:
        yield Finding("started_after_failover", mirror.name, destination=mirror.destination)
    base_name = get_base_name(mirror.name)
    if command is MirrorCommand.START and mirror.failback_run and _select_by_state(context, PartitionState.STOPPED):
        yield Finding("way_home_over", mirror.name, failback_of=base_name)
    if command is MirrorCommand.STOP and mirror.failback_run and mirror.desired is not DesiredState.STOPPED:
        yield Finding(
            "way_home_needed", mirror.name, failback_of=base_name, run=mirror.failback_run, source=mirror.source
        )
    if command in (MirrorCommand.CHANGE, MirrorCommand.SPLIT) and mirror.failback_run:
        yield Finding("filters_fixed_by_way_home", mirror.name, failback_of=base_name)
    if command is MirrorCommand.DELETE and context.copier:
        yield Finding("data_plane_runs", mirror.name, owner=context.copier)


def explain_preparing(mirror: Mirror) -> Finding:
    return Finding(
        "reverse_mirror_unfinished",
        mirror.name,
        run=mirror.failback_run,
        source=mirror.source,
        destination=mirror.destination,
        failback_of=get_base_name(mirror.name),
    )


def explain_not_copied(mirror: Mirror, *, has_failed_over: bool) -> Finding:
    """For a mirror that is not STARTED: why, and what to do."""
    if mirror.desired is DesiredState.PAUSED:
        return Finding("copying_paused", mirror.name)
    if mirror.failback_run:
        return Finding("copying_home_over", mirror.name, failback_of=get_base_name(mirror.name))
    if has_failed_over:
        return Finding("copying_failed_over", mirror.name, source=mirror.source, destination=mirror.destination)
    return Finding("copying_stopped", mirror.name)


def find_moved_log_ends(
    statuses: Iterable[PartitionStatus], ends: Mapping[Partition, Offset], destination: ClusterName
) -> Iterator[Finding]:
    for status in statuses:
        if status.state is not PartitionState.STOPPED:
            continue
        partition, end = status.partition, ends.get(status.partition)
        if status.lmo is None:
            yield Finding("last_mirrored_offset_unknown", partition, destination=destination)
        elif end is None:
            yield Finding("log_end_unreadable", partition, destination=destination, lmo=status.lmo)
        elif end != status.lmo:
            yield Finding("log_end_moved", partition, destination=destination, lmo=status.lmo, end=end)


def list_effects(command: MirrorCommand, context: CommandContext) -> Iterator[Finding]:
    name = "" if context.mirror is None else context.mirror.name
    if command is MirrorCommand.STOP:
        running = len(context.statuses) - len(_select_by_state(context, PartitionState.STOPPED))
        yield Finding("partitions_will_stop", name, count=running)
    if command is MirrorCommand.DELETE:
        yield Finding("partitions_will_be_forgotten", name, count=len(context.statuses))
        if context.fenced_by_command:
            yield Finding("fence_command_will_be_forgotten", context.fenced_by_command)
    if command in (MirrorCommand.STOP, MirrorCommand.PAUSE) and context.copier:
        yield Finding("data_plane_will_end", name, owner=context.copier)
    if command is MirrorCommand.STOP and context.tasks_may_write_s > 0:
        yield Finding("tasks_may_write", name, seconds=context.tasks_may_write_s)


def explain_failback_hold(
    name: MirrorName,
    runs: Iterable[Run],
    get_conductor: Callable[[Run], ConductorStatus] = lambda run: UNKNOWN_CONDUCTOR,
    get_verbs: Callable[[Run], Sequence[RunVerb]] = lambda run: (),
) -> Iterator[Finding]:
    for run in runs:
        if is_failback_over(name, run):
            yield explain_held_by(run, get_conductor(run), get_verbs(run), is_way_home=True)


def is_failback_over(name: MirrorName, run: Run) -> bool:
    return run.plan.kind is RunKind.FAILBACK and run.ended_ms is None and format_reverse_name(run.plan.mirror) == name


def explain_held_by(
    run: Run, conductor: ConductorStatus, verbs: Iterable[RunVerb], *, is_way_home: bool = False
) -> Finding:
    return Finding(
        "command_held_by_run",
        run.plan.mirror,
        run=run.id,
        run_kind=run.plan.kind,
        started_by=run.started_by,
        conductor_state=conductor.state,
        conductor=conductor,
        verbs=verbs,
        is_way_home=is_way_home,
    )


def explain_interruption(run: Run) -> Finding:
    return Finding("run_interrupted", run.plan.mirror, run=run.id, run_kind=run.plan.kind)


def format_commands_markdown() -> Iterator[str]:
    yield "| verb | what it does | of a mirror that is | undone by | off a terminal, without `--yes` |"
    yield "|---|---|---|---|---|"
    for command, rule in COMMAND_RULES.items():
        desired_text = (
            "any" if rule.allowed_desired == frozenset(DesiredState) else ", ".join(sorted(rule.allowed_desired))
        )
        unasked_text = "goes on" if rule.undo_command else "refused"
        yield f"| {command} | {rule.effect} | {desired_text} | {rule.undo_command or 'nothing'} | {unasked_text} |"


def _select_by_state(context: CommandContext, state: PartitionState) -> list[PartitionStatus]:
    return [s for s in context.statuses if s.state is state]
