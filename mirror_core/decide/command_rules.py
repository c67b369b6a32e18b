"""The commands on a mirror: what each does, and every reason why it may not act now.

A writing command must first become the writer of the mirror's state, which fences the previous one, such as a run's
conductor. So these rules are checked before, and again afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mirror_core.decide.process_liveness import UNKNOWN_CONDUCTOR, ConductorState, ConductorStatus
from mirror_core.model.mirror import DesiredState, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition, format_reverse_name, get_base_name
from mirror_core.model.run import Run, RunKind


class MirrorCommand(StrEnum):
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    THROTTLE = "throttle"
    SYNC = "sync"
    PROVE = "prove"
    RECEIPTS = "receipts"
    STOP = "stop"
    RECOVER = "recover"
    WATCH = "watch"
    CHANGE = "change"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class CommandRule:
    effect: str
    undo_command: str
    """Empty: cannot be undone, so it is never done unasked."""
    allowed_desired: frozenset[DesiredState] = frozenset(DesiredState)
    otherwise_hint: str = ""


COMMAND_RULES: Final[Mapping[MirrorCommand, CommandRule]] = MappingProxyType(
    {
        MirrorCommand.START: CommandRule("`replicate` may copy it from now on", "`mirror pause`"),
        MirrorCommand.PAUSE: CommandRule(
            "copying ends for now, at the data plane's next epoch; the topics stay the mirror's",
            "`mirror resume`",
            frozenset({DesiredState.STARTED}),
        ),
        MirrorCommand.RESUME: CommandRule("copying goes on", "`mirror pause`", frozenset({DesiredState.PAUSED})),
        MirrorCommand.THROTTLE: CommandRule(
            "limits what is read from the source, from the data plane's next epoch on", "`mirror throttle`"
        ),
        MirrorCommand.SYNC: CommandRule(
            "brings topics, settings, access rights and groups' offsets in line with the source", "the next sync"
        ),
        MirrorCommand.PROVE: CommandRule(
            "remembers how far the copy was compared with the source", "a comparison with `--whole`"
        ),
        MirrorCommand.RECEIPTS: CommandRule(
            "puts receipts of past days together, or stores anew what none vouches for, and says so in their heads",
            "`receipts rebuild`",
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
        MirrorCommand.DELETE: CommandRule(
            "forgets the mirror; its topics stay", "", frozenset({DesiredState.STOPPED}), ": stop it first"
        ),
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
    """The cluster that was failed away from and closed by its `fence_command`, which no broker shows."""
    conductor: ConductorStatus = UNKNOWN_CONDUCTOR


def explain_refusals(command: MirrorCommand, context: CommandContext) -> Iterator[str]:
    rule = COMMAND_RULES[command]
    if context.mirror is None:
        yield "it has just been deleted"
        return
    if context.run is not None:
        yield format_held_by(context.run, context.conductor)
    if context.mirror.desired not in rule.allowed_desired:
        yield f"it is {context.mirror.desired}{rule.otherwise_hint}"
    if command is MirrorCommand.START and context.has_failed_over:
        yield (
            f"a failover has moved applications to cluster {context.mirror.destination}: only a failback leads back;"
            f" use `mirrorbook failback plan {context.mirror.name}`"
        )
    if (
        command is MirrorCommand.START
        and context.mirror.failback_run
        and _select_by_state(context, PartitionState.STOPPED)
    ):
        yield (
            f"it was the way home of mirror {get_base_name(context.mirror.name)}, and applications are home: a failback"
            " of that one makes it anew"
        )
    if (
        command is MirrorCommand.STOP
        and context.mirror.failback_run
        and context.mirror.desired is not DesiredState.STOPPED
    ):
        yield (
            f"it is the way home of mirror {get_base_name(context.mirror.name)}: failback {context.mirror.failback_run}"
            f" cannot end without it. `mirrorbook mirror pause {context.mirror.name}` stops copying for now; if"
            f" {context.mirror.source} is lost, `mirrorbook failover run {context.mirror.name} --mode unplanned`"
            " ends it"
        )
    if command is MirrorCommand.CHANGE:
        yield from _explain_fixed_filters(context.mirror)
    if command is MirrorCommand.DELETE and context.copier:
        yield f"{context.copier} still runs its data plane: end that first"


def _explain_fixed_filters(mirror: Mirror) -> Iterator[str]:
    if mirror.failback_run:
        yield (
            f"it is the way home of mirror {get_base_name(mirror.name)}, and carries what that one had carried: change"
            " that one when applications are home"
        )


def explain_not_copied(mirror: Mirror, *, has_failed_over: bool) -> str:
    """Why no data plane may copy a mirror that is not STARTED, and what to do."""
    name = mirror.name
    if mirror.desired is DesiredState.PAUSED:
        return f"it is PAUSED: `mirrorbook mirror resume {name}` lets it run"
    if mirror.failback_run:
        return f"it was the way home of mirror {get_base_name(name)}: the next failback of that one makes it anew"
    if has_failed_over:
        return (
            f"a failover has moved applications to {mirror.destination}: nothing is copied until a failback; when"
            f" {mirror.source} is well, `mirrorbook failback plan {name}`"
        )
    return f"it is STOPPED: `mirrorbook mirror start {name}` lets it run"


def find_moved_log_ends(
    statuses: Iterable[PartitionStatus], ends: Mapping[Partition, Offset], destination: ClusterName
) -> Iterator[str]:
    for status in statuses:
        if status.state is not PartitionState.STOPPED:
            continue
        location, end = f"cluster {destination}, {status.partition}", ends.get(status.partition)
        if status.lmo is None:
            yield f"{location}: nobody knows where mirroring ended; delete the mirror and that topic, create both anew"
        elif end is None:
            yield f"{location}: it cannot be read now, so nobody knows whether it still ends at {status.lmo}"
        elif end != status.lmo:
            yield (
                f"{location}: mirroring ended at {status.lmo}, it ends at {end} now: others have written there, or it"
                " was deleted. Save what is there only, then delete the mirror and that topic, and create the mirror"
                " anew"
            )


def list_effects(command: MirrorCommand, context: CommandContext) -> Iterator[str]:
    if command is MirrorCommand.STOP:
        yield (
            f"{len(context.statuses) - len(_select_by_state(context, PartitionState.STOPPED))} partitions become"
            " STOPPED"
        )
    if command is MirrorCommand.DELETE:
        yield f"{len(context.statuses)} partitions are forgotten"
        if context.fenced_by_command:
            yield (
                f"so is that the fence_command of cluster {context.fenced_by_command} has closed it: nobody looks after"
                " that any more, nor opens it"
            )
    if command in (MirrorCommand.STOP, MirrorCommand.PAUSE) and context.copier:
        yield f"{context.copier} runs its data plane, which ends by this"
    if command is MirrorCommand.STOP and context.tasks_may_write_s > 0:
        yield f"its tasks may write for {context.tasks_may_write_s:.0f} s more: that is waited for"


def explain_failback_hold(
    name: MirrorName,
    runs: Iterable[Run],
    get_conductor: Callable[[Run], ConductorStatus] = lambda run: UNKNOWN_CONDUCTOR,
) -> Iterator[str]:
    for run in runs:
        if is_failback_over(name, run):
            yield f"the applications' way home leads over this mirror: {format_held_by(run, get_conductor(run))}"


def is_failback_over(name: MirrorName, run: Run) -> bool:
    return run.plan.kind is RunKind.FAILBACK and run.ended_ms is None and format_reverse_name(run.plan.mirror) == name


def format_held_by(run: Run, conductor: ConductorStatus) -> str:
    command = f"`mirrorbook {run.plan.kind}"
    run_text = f"{run.plan.kind} {run.id} is under way, begun by {run.started_by}"
    resume, abort = f"{command} resume {run.plan.mirror}` goes on with it", f"{command} abort {run.plan.mirror}`"
    abort_text = "gives it up for as long as that is possible"
    match conductor.state:
        case ConductorState.ALIVE:
            take_over_text = f"{abort} with `--take-over` takes it from there, and {abort_text}"
            return f"{run_text}, and {conductor}: wait for its end; or {take_over_text}"
        case ConductorState.RELEASED | ConductorState.SILENT:
            return f"{run_text}; {conductor}. {resume}, and {abort} {abort_text}"
        case ConductorState.UNKNOWN:
            return f"{run_text}: wait for its end. If nobody conducts it any more, {resume}, and {abort} {abort_text}"


def format_interrupted(run: Run) -> str:
    return (
        f"{run.plan.kind} {run.id} began at this very moment, and whoever conducts it has been interrupted by this "
        f"(exit code 5). Nothing else was changed: `mirrorbook {run.plan.kind} resume {run.plan.mirror}` goes on "
        "with it"
    )


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
