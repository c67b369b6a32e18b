"""The steps of a failover and of a failback: one row each, with everything that is said of a step.

Plans, journal order, DAG tasks, reports and the on-call page are made from these rows.
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
    SOURCE = "source"
    DESTINATION = "destination"
    SPARK = "Spark"
    """It reads all data: on Spark if there is one, otherwise slowly in this process."""
    REVERSE_COPY = "data plane of the reverse mirror"
    HOME = "applications at home"
    """The failover of the reverse mirror is done; it has its own plan, approval and run."""


class Writes(StrEnum):
    """Where applications may write while a step runs."""

    SOURCE = "source"
    NOWHERE = "nowhere"
    """They stand still: the clock that people wait for."""
    DESTINATION = "destination"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    name: str
    does: str
    """One sentence for a plan, with {source}, {destination} and {back}, the reverse mirror's name."""
    unfenced: str = ""
    by_command: str = ""
    needs: frozenset[Need]
    writes: Writes
    reversible: bool = True
    """Whether an abort is possible once the step has begun."""
    if_it_fails: str

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
"""The source is presumed dead: no step queries it or waits for it."""

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
"""A failback is always planned: it needs both sides."""


_NAMES: Final = {which: tuple(step.name for step in steps) for which, steps in STEPS.items()}


def names(kind: RunKind, mode: Mode = Mode.PLANNED) -> tuple[str, ...]:
    return _NAMES[kind, mode]


def point_of_no_return(kind: RunKind, mode: Mode = Mode.PLANNED) -> str:
    """The first step that no abort undoes once it has begun, or, in a failover, has given rights."""
    return next(step.name for step in STEPS[kind, mode] if not step.reversible)


def turned(run: Run, begun: Container[tuple[str, str]]) -> bool:
    """Whether its point of no return has begun; it may not have given anything yet. `begun`: (run id,
    step) pairs.
    """
    return (run.id, point_of_no_return(run.plan.kind, run.plan.mode)) in begun


def standing_still(kind: RunKind, mode: Mode = Mode.PLANNED) -> tuple[str, ...]:
    return tuple(step.name for step in STEPS[kind, mode] if step.writes is Writes.NOWHERE)


def stood_still_s(run: Run, steps: Iterable[StepRecord]) -> float | None:
    """Seconds from the first attempt of the first such step to the end of the last, waits included. None:
    did not get so far.
    """
    timed, known = standing_still(run.plan.kind, run.plan.mode), {step.step: step for step in steps}
    if not timed or timed[0] not in known or timed[-1] not in known:
        return None
    ended_ms = known[timed[-1]].ended_ms
    return None if ended_ms is None else (ended_ms - known[timed[0]].begun_ms) / 1000


def took_s(step: StepRecord) -> float | None:
    return None if step.ended_ms is None else (step.ended_ms - step.started_ms) / 1000


def undisturbed(kind: RunKind, mode: Mode = Mode.PLANNED) -> tuple[str, ...]:
    return names(kind, mode)[: names(kind, mode).index(standing_still(kind, mode)[0])]


def needing(kind: RunKind, need: Need) -> tuple[str, ...]:
    return tuple(step.name for step in STEPS[kind, Mode.PLANNED] if need in step.needs)


def planned(
    kind: RunKind, mirror: Mirror, mode: Mode = Mode.PLANNED, *, barred: Barred = Barred.BY_DENIALS
) -> tuple[PlanStep, ...]:
    """`barred`: what keeps writers out of the source, as far as known."""
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
    words = {"source": source, "destination": destination, "back": back}
    on = {Writes.SOURCE: f"on {source}", Writes.NOWHERE: "nobody", Writes.DESTINATION: f"on {destination}"}
    short = {Need.SOURCE: source, Need.DESTINATION: destination}
    for step in STEPS[kind, mode]:
        needs = ", ".join(short.get(need, str(need)) for need in Need if need in step.needs)
        undo = "abort" if step.reversible else "none"
        yield step.name, on[step.writes], needs, undo, step.if_it_fails.format(**words)


def as_markdown(kind: RunKind, mode: Mode = Mode.PLANNED, **names: str) -> Iterator[str]:
    yield "| step | applications write | needs | undo | if it fails |"
    yield "|---|---|---|---|---|"
    turning = point_of_no_return(kind, mode)
    for name, writes, needs, undo, fails in as_rows(kind, mode, **names):
        bold = "**" if name == turning else ""
        yield f"| {bold}{name}{bold} | {writes} | {needs} | {bold}{undo}{bold} | {fails} |"
