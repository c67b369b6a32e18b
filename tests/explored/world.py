"""The world of the exploration: two clusters, what their state topics remember, and the processes at work. Values only.

One topic a mirror, one partition, one application. Log ends count from what both sides have in common: 0, or 1 where
a cluster has a record that the other one does not have. A silent cluster is dead, hangs, or is cut off from us:
applications may reach it or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

from mirror_core.decide.steps import list_step_names
from mirror_core.model.acl import Acl, LedgerEntry, LiftedDenial, Operation, Resource
from mirror_core.model.mirror import DesiredState, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import (
    NO_OFFSETS,
    ClusterName,
    MirrorName,
    Offset,
    Partition,
    PartitionOffsets,
    format_reverse_name,
)
from mirror_core.model.pending_fence import FenceAction
from mirror_core.model.pending_fence import PendingFence as RealDebt
from mirror_core.model.run import Approval, Plan, RunKind, RunMode, RunState, StepRecord, StepState
from mirror_core.model.run import Run as RealRun
from mirror_core.rights.acl_rules import build_denial
from mirror_core.state.state_records import State

EAST, WEST = 0, 1
CLUSTERS: Final = (ClusterName("east"), ClusterName("west"))
COMMON: Final = 10
"""Offset up to which both logs are the same."""
NOW, OLD = 10**10, 0
"""Wall clocks of what was approved just now, and of what was approved hours ago."""
APP, LATE = "User:app", "User:late"
"""An application whose rights stay, and one whose right is withdrawn one day."""
OWN: Final = frozenset({"User:control", "User:data"})

V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])
_CACHES: Final[list[Any]] = []


def cached(function: F) -> F:
    """What a decision says of the same view is asked once in a search."""
    made: Any = lru_cache(maxsize=None)(function)
    _CACHES.append(made)
    return made  # type: ignore[no-any-return]  # the same callable, remembered


def forget_answers() -> None:
    """Before another search, of other decisions."""
    for one in _CACHES:
        one.cache_clear()


class Bits(Generic[V]):
    """Sets of few values as numbers: quick to compare."""

    def __init__(self) -> None:
        self._number: dict[V, int] = {}
        self._sets: dict[int, frozenset[V]] = {0: frozenset()}

    def mask(self, values: Iterable[V]) -> int:
        found = 0
        for value in values:
            found |= 1 << self._number.setdefault(value, len(self._number))
        return found

    def values(self, mask: int) -> frozenset[V]:
        if mask not in self._sets:
            self._sets[mask] = frozenset(v for v, n in self._number.items() if mask >> n & 1)
        return self._sets[mask]


ACLS: Final = Bits[Acl]()
LEDGER: Final = Bits[LedgerEntry]()
PLANS: Final[list[Plan]] = []


class Debt(NamedTuple):
    owed: FenceAction
    run: int
    paid: bool = False
    end: int | None = None


class Run(NamedTuple):
    id: int
    kind: RunKind
    mode: RunMode
    state: RunState
    plan: int
    """Its number in PLANS."""
    fresh: bool
    """Approved less than an hour ago."""
    by: str
    done: int = 0
    """Steps that are done; `begun`: the next one has begun."""
    begun: bool = False
    homecoming: int = 0
    """Of a way home: the failback that it belongs to."""
    salvaged: int = 0
    silent: bool = False
    """Of an unplanned one: its source was, when it was approved."""
    word: bool | None = None
    """Whether a person has said that what was not copied stays there. None: nobody was asked."""
    given: bool = False
    """Its promotion has given rights."""


class Rec(NamedTuple):
    """What is remembered of one mirror, on its destination."""

    desired: DesiredState | None = None
    """None: there is no such mirror."""
    state: PartitionState = PartitionState.UNKNOWN
    lmo: int | None = None
    failed: bool = False
    homecoming: int = 0
    begins: bool = False
    """The failback that makes it has not made all of it."""
    debt: Debt | None = None
    ledger: int = 0
    lifted: int = 0
    """What was in the ledger and was taken away, of denials: by it they are known when they stand again."""
    runs: tuple[Run, ...] = ()
    owner: int = 0
    """The process that has taken it over last."""


class File(NamedTuple):
    """By which a run's fence is lifted without the destination."""

    run: int
    kind: RunKind
    named: bool
    """Whether it names the topic."""
    lifted: bool = False


class Dag(NamedTuple):
    """A failover in Airflow: what its tasks have left for each other."""

    link: int
    mode: RunMode
    fresh: bool
    run: int = 0
    asked_of: int = 0
    """The run about which task `go_ahead` was answered."""
    asked_fresh: bool = False
    silent: bool = False


class Proc(NamedTuple):
    """A process, before its next durable act."""

    slot: int
    at: str
    link: int
    run: int = 0
    by: str = "cli"
    agreed: bool = False
    """A person has said yes to this process."""
    mask: int = 0
    then: tuple[str, ...] = ()
    soft: bool = False
    """A silent source holds nobody up."""


class World(NamedTuple):
    up: tuple[bool, bool]
    acls: tuple[int, int]
    extra: tuple[tuple[int, int], ...]
    """By topic and cluster."""
    recs: tuple[Rec, ...]
    """By link: a mirror, its way home, the next mirror, ..."""
    files: tuple[File | None, ...]
    procs: tuple[Proc, ...] = ()
    dag: Dag | None = None
    late: int | None = None
    """The cluster on which the late application's right was withdrawn, while applications were there."""


# -- links: 0 is mirror m from east to west, 1 its way home, 2 and 3 the same of n ------------------------------------


def source(link: int) -> int:
    return link % 2


def destination(link: int) -> int:
    return 1 - link % 2


def topic_of(link: int) -> str:
    return f"t-{'mn'[link // 2]}"


def name_of(link: int) -> MirrorName:
    base = MirrorName("mn"[link // 2])
    return format_reverse_name(base) if link % 2 else base


def partition_of(link: int) -> Partition:
    return Partition(topic_of(link), 0)


def fence_of(link: int) -> Acl:
    return build_denial(topic_of(link))


def grant(link: int, user: str = APP) -> Acl:
    return Acl(resource=Resource.TOPIC, name=topic_of(link), principal=user, operation=Operation.WRITE)


def offset(extra: int) -> Offset:
    return Offset(COMMON + extra)


def run_id(link: int, kind: RunKind, number: int) -> str:
    return f"{name_of(link)}-{kind}-{number}"


# -- as the product's decisions know them -----------------------------------------------------------------------------


@cached
def mirror_of(link: int, desired: DesiredState, homecoming: int = 0, begins: bool = False) -> Mirror:
    return Mirror(
        name=name_of(link),
        source=CLUSTERS[source(link)],
        destination=CLUSTERS[destination(link)],
        source_id=f"id-{source(link)}",
        destination_id=f"id-{destination(link)}",
        topics=(topic_of(link),),
        groups=(),
        producer_id=1 << 62,
        desired=desired,
        created_ms=0,
        failback_run=run_id(link - 1, RunKind.FAILBACK, homecoming) if homecoming else "",
        is_preparing=begins,
    )


@cached
def status_of(link: int, state: PartitionState, lmo: int | None, failed: bool) -> PartitionStatus:
    return PartitionStatus(
        partition=partition_of(link),
        state=state,
        source_topic_id=f"topic-{source(link)}",
        destination_topic_id=f"topic-{destination(link)}",
        reason="others have written" if failed else None,
        lmo=None if lmo is None else offset(lmo),
    )


def ends_of(link: int, end: int | None) -> PartitionOffsets:
    return NO_OFFSETS if end is None else PartitionOffsets.from_mapping({partition_of(link): offset(end)})


@cached
def debt_of(link: int, debt: Debt) -> RealDebt:
    return RealDebt(
        mirror=name_of(link),
        cluster=CLUSTERS[source(link)],
        action=debt.owed,
        run=run_id(link, RunKind.FAILOVER, debt.run),
        since_ms=NOW,
        applied_at_ms=NOW if debt.paid else None,
        log_ends=ends_of(link, debt.end),
    )


@cached
def run_of(link: int, run: Run) -> RealRun:
    at_ms = NOW if run.fresh else OLD
    return RealRun(
        id=run_id(link, run.kind, run.id),
        number=run.id,
        plan=PLANS[run.plan],
        plan_hash="",
        state=run.state,
        started_by=run.by,
        started_ms=at_ms,
        desired=DesiredState.STARTED,
        conducted_by=run.by,
        failback_run=run_id(link - 1, RunKind.FAILBACK, run.homecoming) if run.homecoming else "",
        ended_ms=None if run.state in (RunState.RUNNING, RunState.ABORTING) else NOW,
        approvals=(Approval(id="a", name="a person", at_ms=at_ms),),
    )


@cached
def _state(recs: tuple[tuple[int, Rec], ...]) -> State:
    state = State()
    for link, rec in recs:
        name = name_of(link)
        if rec.desired is not None:
            state.mirrors[name] = mirror_of(link, rec.desired, rec.homecoming, rec.begins)
            status = status_of(link, rec.state, rec.lmo, rec.failed)
            state.partitions[name] = {status.partition: status}
        if rec.debt is not None:
            state.pending_fences[name] = debt_of(link, rec.debt)
        for entry in LEDGER.values(rec.ledger):
            state.put(entry)
        for entry in LEDGER.values(rec.lifted):
            state.put(LiftedDenial(entry=entry))
        for run in rec.runs:
            real = run_of(link, run)
            state.runs[real.id] = real
            steps = list_step_names(run.kind, run.mode)
            for at, step in enumerate(steps[: run.done + run.begun]):
                kind = StepState.DONE if at < run.done else StepState.STARTED
                state.steps[real.id, step] = StepRecord(run=real.id, step=step, state=kind, attempt=1, started_ms=NOW)
    return state


def state_on(world: World, cluster: int) -> State:
    """What the state topic on a cluster says."""
    mine = ((link, rec) for link, rec in enumerate(world.recs) if destination(link) == cluster)
    return _state(tuple((link, rec._replace(owner=0) if rec.owner else rec) for link, rec in mine))
