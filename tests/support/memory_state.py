"""The state topic in memory: its records in order, folded as a reader does it; and a run with its journal there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from mirror_core.model.mirror import DesiredState
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Plan, Run, RunKind, RunMode, RunState
from mirror_core.model.timing import now_ms
from mirror_core.state.journal import Journal
from mirror_core.state.state_records import State, StateRecord, Tombstone


def fold(records: Iterable[tuple[str, bytes | None]]) -> State:
    """The state after these records, oldest first."""
    state = State()
    for key, value in records:
        state.apply(key, value)
    return state


class MemoryLog:
    """A `state.journal.JournalLog` that remembers which keys were written."""

    def __init__(self) -> None:
        self.state = State()
        self.keys: list[str] = []

    def put(self, *records: StateRecord | Tombstone) -> None:
        for record in records:
            for key, value in list(self.state.to_rows(record)):
                self.keys.append(key)
                self.state.apply(key, value)

    def now_ms(self) -> int:
        return now_ms()

    def refresh(self) -> State:
        return self.state


def run_of(run_id: str, plan: Plan) -> Run:
    """One that has just begun, of a mirror that was started."""
    return Run(
        id=run_id,
        number=1,
        plan=plan,
        plan_hash=plan.hash,
        state=RunState.RUNNING,
        started_by="me",
        started_ms=1,
        desired=DesiredState.STARTED,
        conducted_by="me",
    )


def journal_of(run_id: str, *steps: str) -> Journal:
    """The journal of a failover of mirror m that has just begun."""
    plan = Plan(kind=RunKind.FAILOVER, mirror=MirrorName("m"), mode=RunMode.PLANNED, steps=(), bound_facts=())
    log = MemoryLog()
    log.put(run_of(run_id, plan))
    return Journal(log, run_id, steps)


class MemoryAside:
    """A `NonFencingWriter` whose broker takes what it is given, unless it is told not to."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.refuses = ""
        """Why the broker takes nothing; it says so when the client is used again."""
        self._lost: Callable[[], object] = int

    def put(self, record: StateRecord | Tombstone, lost: Callable[[str], None] | None = None) -> None:
        self._lost()
        if self.refuses and lost is not None:
            self._lost = partial(lost, self.refuses)
        else:
            self.log.put(record)

    def flush(self, timeout_s: float) -> bool:
        self._lost()
        return True
