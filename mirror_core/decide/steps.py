"""The steps of a failover and of a failback: one row each, and everything that is said of a step is said here. Pure.

Plans, the journal's order, tasks of DAGs, reports and the page for people on call are made from these rows.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mirror_core.model.mirror import Mirror
from mirror_core.model.names import reverse_name
from mirror_core.model.ruling import Barred
from mirror_core.model.run import Mode, PlanStep, Run, RunKind, StepRecord


class Need(StrEnum):
    """What must be there while a step runs."""

    SOURCE = "source"
    DESTINATION = "destination"
    SPARK = "Spark"
    """It goes over all data: on Spark where there is one, otherwise in this process, and slowly."""
    REVERSE_COPY = "data plane of the reverse mirror"
    """Or this process copies, in one thread."""
    HOME = "applications at home"
    """The failover of the reverse mirror is done: it has a plan, an approval and a run of its own."""


class Writes(StrEnum):
    """Where applications may write while a step runs."""

    SOURCE = "source"
    NOWHERE = "nowhere"
    """They stand still: the clock that people wait for."""
    DESTINATION = "destination"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One row: a step, named as the method that does it."""

    name: str
    does: str
    """One sentence for a plan: with {source}, {destination} and {back}, the reverse mirror's name."""
    unfenced: str = ""
    """The sentence where nothing keeps writers out of the source, if that makes a difference."""
    by_command: str = ""
    """The same where a command of the user's does."""
    needs: frozenset[Need]
    writes: Writes
    reversible: bool = True
    """Whether an abort is possible once the step has begun."""
    if_it_fails: str
    """Advice for people on call, with the same names."""

    def sentence(self, barred: Barred) -> str:
        return {Barred.BY_NOTHING: self.unfenced, Barred.BY_COMMAND: self.by_command}.get(barred) or self.does


_BOTH: Final = frozenset({Need.SOURCE, Need.DESTINATION})
_DESTINATION: Final = frozenset({Need.DESTINATION})

_FAILOVER: Final = (
    Step(
        name="prove",
        does="compare all that is mirrored so far, by record where digests differ: {source} with {destination}",
        needs=_BOTH | {Need.SPARK},
        writes=Writes.SOURCE,
        if_it_fails="a difference was found: see its report. Don't fail over",
    ),
    Step(
        name="fence",
        does="deny everybody to write the mirror's topics on {source}, and prove on every broker that its logs stand "
        "still",
        unfenced="{source} cannot be fenced by Mirrorbook: only check that its logs stand still for 2 s",
        by_command="close {source} to applications by its fence_command, and check that its logs stand still for 2 s",
        needs=_BOTH,
        writes=Writes.NOWHERE,
        if_it_fails="somebody still writes, or a transaction is open: the message names it. End it, resume",
    ),
    Step(
        name="drain",
        does="take over the data plane and copy the rest, until every position is the log end of {source}",
        needs=_BOTH,
        writes=Writes.NOWHERE,
        if_it_fails="a cluster is unreachable, or a partition failed: fix it, then resume",
    ),
    Step(
        name="final_sync",
        does="bring over topic configurations, access rights and consumer group offsets a last time",
        needs=_BOTH,
        writes=Writes.NOWHERE,
        if_it_fails="resume",
    ),
    Step(
        name="parity",
        does="compare what was copied since the proof, and log starts and ends; go on only if all is equal",
        needs=_BOTH,
        writes=Writes.NOWHERE,
        if_it_fails="the two sides differ: abort",
    ),
    Step(
        name="record_lmo",
        does="record the last mirrored offset of every partition and end the mirroring",
        needs=_DESTINATION,
        writes=Writes.NOWHERE,
        if_it_fails="resume",
    ),
    Step(
        name="promote",
        does="let applications write on {destination}: staged rights and final topic configurations take effect",
        needs=_DESTINATION,
        writes=Writes.NOWHERE,
        reversible=False,
        if_it_fails="resume. Rights may be half given; while none was, abort is possible",
    ),
    Step(
        name="switch",
        does="tell applications that {destination} is active: topic __mirrorbook_active on both sides, and your hooks",
        needs=_DESTINATION,
        writes=Writes.DESTINATION,
        reversible=False,
        if_it_fails="resume. A hook that fails does not stop it: the report names it, and how to call it by hand",
    ),
    Step(
        name="canary",
        does="write to every broker of {destination} and read it back",
        needs=_DESTINATION,
        writes=Writes.DESTINATION,
        reversible=False,
        if_it_fails="a broker of {destination} takes no writes: mend it, resume",
    ),
    Step(
        name="report",
        does="write the evidence and the report",
        needs=_DESTINATION,
        writes=Writes.DESTINATION,
        reversible=False,
        if_it_fails="disk full? resume with `--evidence DIR`",
    ),
)

_LOST: Final = (
    Step(
        name="settle",
        does="let no copier write on {destination} any more, and see that what is there is replicated and stands still",
        needs=_DESTINATION,
        writes=Writes.NOWHERE,
        if_it_fails="{destination} is not well: a broker is away, or an old task still writes. Mend it, resume",
    ),
    Step(
        name="stand",
        does="keep {source} from taking writes from now on: fence it at once if it answers, or the moment it does",
        by_command="keep {source} from taking writes from now on: call its fence_command at once if it answers, or the "
        "moment it does",
        needs=_DESTINATION,
        writes=Writes.NOWHERE,
        if_it_fails="resume",
    ),
    Step(
        name="final_offsets",
        does="bring the consumer groups' offsets into the logs of {destination} as they are now",
        needs=_DESTINATION,
        writes=Writes.NOWHERE,
        if_it_fails="resume",
    ),
    *(step for step in _FAILOVER if step.name in ("record_lmo", "promote", "switch", "canary", "report")),
)
"""The source is presumed dead: nothing asks it anything, and nothing waits for it."""

_FAILBACK: Final = (
    Step(
        name="salvage",
        does="fence {source}, find from where on it holds something else than {destination}, and save that to Parquet",
        needs=_BOTH | {Need.SPARK},
        writes=Writes.DESTINATION,
        if_it_fails="there is more to discard than was approved: abort, plan again. Disk full, or a cluster is "
        "unreachable: fix it, then resume",
    ),
    Step(
        name="align",
        does="take the logs on {source} back to where they parted from {destination}, each topic by its strategy; what "
        "has come there since is saved first",
        needs=_BOTH,
        writes=Writes.DESTINATION,
        reversible=False,
        if_it_fails="logs have to be cut by you: the message has the lines; then resume. Somebody writes on {source} "
        "in spite of the fence: end that, resume. A cluster is away: resume",
    ),
    Step(
        name="demote",
        does="deny applications to change these topics on {source}, then lift the fence there",
        needs=_BOTH,
        writes=Writes.DESTINATION,
        reversible=False,
        if_it_fails="resume",
    ),
    Step(
        name="create_reverse",
        does="create mirror {back} from {destination} to {source}",
        needs=_BOTH,
        writes=Writes.DESTINATION,
        reversible=False,
        if_it_fails="resume",
    ),
    Step(
        name="catch_up",
        does="copy from {destination} until {source} is close behind; applications go on writing on {destination}",
        needs=_BOTH | {Need.REVERSE_COPY},
        writes=Writes.DESTINATION,
        reversible=False,
        if_it_fails="replication is not catching up: see `mirrorbook mirror describe {back}`, resume",
    ),
    Step(
        name="reprotect",
        does="after a planned failover of {back}, with its own plan and approval: mirror {source} to {destination} "
        "again",
        needs=_BOTH | {Need.HOME},
        writes=Writes.SOURCE,
        reversible=False,
        if_it_fails="resume. What somebody wrote on {destination} after the switch stays there, and its partitions are "
        "FAILED: `mirrorbook mirror recover` saves it",
    ),
)

STEPS: Final[Mapping[tuple[RunKind, Mode], tuple[Step, ...]]] = MappingProxyType(
    {
        (RunKind.FAILOVER, Mode.PLANNED): _FAILOVER,
        (RunKind.FAILOVER, Mode.UNPLANNED): _LOST,
        (RunKind.FAILBACK, Mode.PLANNED): _FAILBACK,
    }
)
"""A failback is always planned: both sides are needed for it."""


_NAMES: Final = {which: tuple(step.name for step in steps) for which, steps in STEPS.items()}


def names(kind: RunKind, mode: Mode = Mode.PLANNED) -> tuple[str, ...]:
    """The steps in order."""
    return _NAMES[kind, mode]


def point_of_no_return(kind: RunKind, mode: Mode = Mode.PLANNED) -> str:
    """The first step that no abort undoes once it has begun, or, in a failover, once it has given anything."""
    return next(step.name for step in STEPS[kind, mode] if not step.reversible)


def turned(run: Run, begun: Container[tuple[str, str]]) -> bool:
    """Whether its point of no return has begun: `state.turning` tells whether that has given anything yet. `begun`:
    runs' ids with the names of steps that have begun."""
    return (run.id, point_of_no_return(run.plan.kind, run.plan.mode)) in begun


def standing_still(kind: RunKind, mode: Mode = Mode.PLANNED) -> tuple[str, ...]:
    """Steps during which applications can write nowhere."""
    return tuple(step.name for step in STEPS[kind, mode] if step.writes is Writes.NOWHERE)


def stood_still_s(run: Run, steps: Iterable[StepRecord]) -> float | None:
    """Seconds from the first attempt at the first of those steps to the end of the last one, what was waited between
    them too; None when it did not come so far."""
    timed, known = standing_still(run.plan.kind, run.plan.mode), {step.step: step for step in steps}
    if not timed or timed[0] not in known or timed[-1] not in known:
        return None
    ended_ms = known[timed[-1]].ended_ms
    return None if ended_ms is None else (ended_ms - known[timed[0]].begun_ms) / 1000


def took_s(step: StepRecord) -> float | None:
    """Seconds of its last attempt; None when that has not ended."""
    return None if step.ended_ms is None else (step.ended_ms - step.started_ms) / 1000


def undisturbed(kind: RunKind, mode: Mode = Mode.PLANNED) -> tuple[str, ...]:
    """Steps before those, of which applications notice nothing."""
    return names(kind, mode)[: names(kind, mode).index(standing_still(kind, mode)[0])]


def needing(kind: RunKind, need: Need) -> tuple[str, ...]:
    """Steps of a planned run that need this, in order."""
    return tuple(step.name for step in STEPS[kind, Mode.PLANNED] if need in step.needs)


def planned(
    kind: RunKind, mirror: Mirror, mode: Mode = Mode.PLANNED, *, barred: Barred = Barred.BY_DENIALS
) -> tuple[PlanStep, ...]:
    """The steps of this mirror's plan. `barred`: what keeps writers out of the source, as far as is known."""
    words = {"source": mirror.source, "destination": mirror.destination, "back": reverse_name(mirror.name)}
    return tuple(
        PlanStep(
            name=step.name,
            action=step.sentence(barred).format(**words),
            reversible=step.reversible,
        )
        for step in STEPS[kind, mode]
    )


def as_rows(
    kind: RunKind,
    mode: Mode = Mode.PLANNED,
    *,
    source: str = "east",
    destination: str = "west",
    back: str = "NAME-back",
) -> Iterator[tuple[str, str, str, str, str]]:
    """For people on call: step, where applications write, what it needs, how it is undone, what to do if it fails."""
    words = {"source": source, "destination": destination, "back": back}
    on = {Writes.SOURCE: f"on {source}", Writes.NOWHERE: "nobody", Writes.DESTINATION: f"on {destination}"}
    short = {Need.SOURCE: source, Need.DESTINATION: destination}
    for step in STEPS[kind, mode]:
        needs = ", ".join(short.get(need, str(need)) for need in Need if need in step.needs)
        undo = "abort" if step.reversible else "none"
        yield step.name, on[step.writes], needs, undo, step.if_it_fails.format(**words)


def as_markdown(kind: RunKind, mode: Mode = Mode.PLANNED, **names: str) -> Iterator[str]:
    """The rows as pages show them; the one that is for all mirrors calls its clusters as `as_rows` does."""
    yield "| step | applications write | needs | undo | if it fails |"
    yield "|---|---|---|---|---|"
    turning = point_of_no_return(kind, mode)
    for name, writes, needs, undo, fails in as_rows(kind, mode, **names):
        bold = "**" if name == turning else ""
        yield f"| {bold}{name}{bold} | {writes} | {needs} | {bold}{undo}{bold} | {fails} |"
