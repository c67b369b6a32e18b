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

from mirror_core.decide.conducting import NOT_KNOWN, Conducted, Sign
from mirror_core.model.mirror import Desired, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition, base_name, reverse_name
from mirror_core.model.run import Run, RunKind


class Verb(StrEnum):
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
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Rule:
    does: str
    undone: str
    """Empty: cannot be undone, so it is never done unasked."""
    wants: frozenset[Desired] = frozenset(Desired)
    otherwise: str = ""


RULES: Final[Mapping[Verb, Rule]] = MappingProxyType(
    {
        Verb.START: Rule("`replicate` may copy it from now on", "`mirror pause`"),
        Verb.PAUSE: Rule(
            "copying ends for now, at the data plane's next epoch; the topics stay the mirror's",
            "`mirror resume`",
            frozenset({Desired.STARTED}),
        ),
        Verb.RESUME: Rule("copying goes on", "`mirror pause`", frozenset({Desired.PAUSED})),
        Verb.THROTTLE: Rule(
            "limits what is read from the source, from the data plane's next epoch on", "`mirror throttle`"
        ),
        Verb.SYNC: Rule(
            "brings topics, settings, access rights and groups' offsets in line with the source", "the next sync"
        ),
        Verb.PROVE: Rule("remembers how far the copy was compared with the source", "a comparison with `--whole`"),
        Verb.RECEIPTS: Rule(
            "puts receipts of past days together, or stores anew what none vouches for, and says so in their heads",
            "`receipts rebuild`",
        ),
        Verb.STOP: Rule(
            "ends mirroring, and records where: the last mirrored offset (LMO) of each partition. `mirror start` goes "
            "on from there, as long as nobody has written to its topics on the destination",
            "",
        ),
        Verb.RECOVER: Rule("does what is shown about FAILED partitions", ""),
        Verb.WATCH: Rule(
            "fences the old source as soon as it answers, and looks "
            "after it; takes down the one that an abort had to leave",
            "`failback`",
        ),
        Verb.DELETE: Rule("forgets the mirror; its topics stay", "", frozenset({Desired.STOPPED}), ": stop it first"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    mirror: Mirror | None
    run: Run | None
    statuses: Sequence[PartitionStatus]
    copier: str | None
    writing_s: float
    failed_over: bool = False
    closed: ClusterName | None = None
    """The cluster that was failed away from and closed by its `fence_command`, which no broker shows."""
    conducted: Conducted = NOT_KNOWN


def refusals(verb: Verb, seen: Seen) -> Iterator[str]:
    rule = RULES[verb]
    if seen.mirror is None:
        yield "it has just been deleted"
        return
    if seen.run is not None:
        yield held_by(seen.run, seen.conducted)
    if seen.mirror.desired not in rule.wants:
        yield f"it is {seen.mirror.desired}{rule.otherwise}"
    if verb is Verb.START and seen.failed_over:
        yield (
            f"a failover has moved applications to cluster {seen.mirror.destination}: only a failback leads back; use "
            f"`mirrorbook failback plan {seen.mirror.name}`"
        )
    if verb is Verb.START and seen.mirror.homecoming and _of(seen, PartitionState.STOPPED):
        yield (
            f"it was the way home of mirror {base_name(seen.mirror.name)}, and applications are home: a failback of "
            "that one makes it anew"
        )
    if verb is Verb.STOP and seen.mirror.homecoming and seen.mirror.desired is not Desired.STOPPED:
        yield (
            f"it is the way home of mirror {base_name(seen.mirror.name)}: failback {seen.mirror.homecoming} cannot end "
            f"without it. `mirrorbook mirror pause {seen.mirror.name}` stops copying for now; if "
            f"{seen.mirror.source} is lost, `mirrorbook failover run {seen.mirror.name} --mode unplanned` ends it"
        )
    if verb is Verb.DELETE and seen.copier:
        yield f"{seen.copier} still runs its data plane: end that first"


def strayed(
    statuses: Iterable[PartitionStatus], ends: Mapping[Partition, Offset], destination: ClusterName
) -> Iterator[str]:
    for status in statuses:
        if status.state is not PartitionState.STOPPED:
            continue
        where, end = f"cluster {destination}, {status.partition}", ends.get(status.partition)
        if status.lmo is None:
            yield f"{where}: nobody knows where mirroring ended; delete the mirror and that topic, create both anew"
        elif end is None:
            yield f"{where}: it cannot be read now, so nobody knows whether it still ends at {status.lmo}"
        elif end != status.lmo:
            yield (
                f"{where}: mirroring ended at {status.lmo}, it ends at {end} now: others have written there, or it was "
                "deleted. Save what is there only, then delete the mirror and that topic, and create the mirror anew"
            )


def effects(verb: Verb, seen: Seen) -> Iterator[str]:
    if verb is Verb.STOP:
        yield f"{len(seen.statuses) - len(_of(seen, PartitionState.STOPPED))} partitions become STOPPED"
    if verb is Verb.DELETE:
        yield f"{len(seen.statuses)} partitions are forgotten"
        if seen.closed:
            yield (
                f"so is that the fence_command of cluster {seen.closed} has closed it: nobody looks after that any "
                "more, nor opens it"
            )
    if verb in (Verb.STOP, Verb.PAUSE) and seen.copier:
        yield f"{seen.copier} runs its data plane, which ends by this"
    if verb is Verb.STOP and seen.writing_s > 0:
        yield f"its tasks may write for {seen.writing_s:.0f} s more: that is waited for"


def leads_home(
    name: MirrorName, runs: Iterable[Run], conducted: Callable[[Run], Conducted] = lambda run: NOT_KNOWN
) -> Iterator[str]:
    for run in runs:
        if is_led_home(name, run):
            yield f"the applications' way home leads over this mirror: {held_by(run, conducted(run))}"


def is_led_home(name: MirrorName, run: Run) -> bool:
    return run.plan.kind is RunKind.FAILBACK and run.ended_ms is None and reverse_name(run.plan.mirror) == name


def held_by(run: Run, conducted: Conducted) -> str:
    command = f"`mirrorbook {run.plan.kind}"
    under_way = f"{run.plan.kind} {run.id} is under way, begun by {run.started_by}"
    resume, abort = f"{command} resume {run.plan.mirror}` goes on with it", f"{command} abort {run.plan.mirror}`"
    gives_up = "gives it up for as long as that is possible"
    match conducted.sign:
        case Sign.HEARD:
            taken = f"{abort} with `--take-over` takes it from there, and {gives_up}"
            return f"{under_way}, and {conducted}: wait for its end; or {taken}"
        case Sign.RELEASED | Sign.GONE:
            return f"{under_way}; {conducted}. {resume}, and {abort} {gives_up}"
        case Sign.UNKNOWN:
            return f"{under_way}: wait for its end. If nobody conducts it any more, {resume}, and {abort} {gives_up}"


def interrupted(run: Run) -> str:
    return (
        f"{run.plan.kind} {run.id} began at this very moment, and whoever conducts it has been interrupted by this "
        f"(exit code 5). Nothing else was changed: `mirrorbook {run.plan.kind} resume {run.plan.mirror}` goes on "
        "with it"
    )


def as_markdown() -> Iterator[str]:
    yield "| verb | what it does | of a mirror that is | undone by | off a terminal, without `--yes` |"
    yield "|---|---|---|---|---|"
    for verb, rule in RULES.items():
        wants = "any" if rule.wants == frozenset(Desired) else ", ".join(sorted(rule.wants))
        unasked = "goes on" if rule.undone else "refused"
        yield f"| {verb} | {rule.does} | {wants} | {rule.undone or 'nothing'} | {unasked} |"


def _of(seen: Seen, state: PartitionState) -> list[PartitionStatus]:
    return [s for s in seen.statuses if s.state is state]
