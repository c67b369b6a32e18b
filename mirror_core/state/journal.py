"""A run's journal: intent before each step, evidence after it; finished steps stay finished.

The writer owns the mirror's transactional id (KIP-98), so what it reads is current.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import msgspec

from mirror_core.model.checkpoint import Checkpoint, Keepable
from mirror_core.model.chronicle import Kind, Told, canonical, hash_of, next_line
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import BadRequest, Indeterminate, LostOwnership, MirrorError, Refused
from mirror_core.model.logs import about, logger
from mirror_core.model.run import Evidence, Run, RunState, StepRecord, StepState
from mirror_core.state.records import Forget, Record, State

T = TypeVar("T", bound=Keepable)

_log = logger(__name__)


class Log(Protocol):
    state: State

    def put(self, *records: Record | Forget) -> None: ...

    def refresh(self) -> State: ...


@dataclass(frozen=True, slots=True)
class Journal:
    log: Log
    run_id: str
    steps: tuple[str, ...]
    before_end: Callable[[], None] = lambda: None
    _leaving: list[Checkpoint] = field(default_factory=list)

    @property
    def run(self) -> Run:
        return find_run(self.log.state, self.run_id)

    def record(self, step: str) -> StepRecord | None:
        return self.log.state.steps.get((self.run_id, step))

    def done(self, step: str) -> bool:
        found = self.record(step)
        return found is not None and found.state is StepState.DONE

    def begun(self, step: str) -> bool:
        """Its intent was written."""
        return self.record(step) is not None

    def next(self) -> str | None:
        """None: all are done."""
        return next((step for step in self.steps if not self.done(step)), None)

    def perform(self, step: str, act: Callable[[], Evidence]) -> StepRecord:
        """Write intent, act, write evidence.

        An interrupted step runs again from its beginning, with its checkpoints. A failure is recorded and raised; after
        LostOwnership nothing is: another process owns the journal.
        """
        self.check_turn(step)
        before = self.record(step)
        if before is not None and before.state is StepState.DONE:
            return before
        started = StepRecord(
            run=self.run_id,
            step=step,
            state=StepState.STARTED,
            attempt=before.attempt + 1 if before else 1,
            started_ms=now_ms(),
            first_ms=before.begun_ms if before else None,
        )
        self._write(started)
        self._leaving.clear()  # from a failed attempt
        with about(mirror=self.run.plan.mirror, run=self.run_id, step=step):
            evidence = self._act(started, act)
        finished = replace(started, state=StepState.DONE, ended_ms=now_ms(), evidence=evidence)
        self._write(finished, *self._leaving)
        return finished

    def _write(self, step: StepRecord, *beside: Checkpoint) -> None:
        """With its audit entry."""
        self.log.put(*beside, step, told(self.log.state, self.run, Kind.STEP, step))

    def _act(self, started: StepRecord, act: Callable[[], Evidence]) -> Evidence:
        _log.info("begins, attempt %d", started.attempt)
        try:
            evidence = act()
        except LostOwnership as error:
            _log.info("lost the mirror: %s", error)
            raise
        except MirrorError as error:
            _log.info("failed: %s", error)
            self._write(replace(started, state=StepState.FAILED, ended_ms=now_ms(), error=str(error)))
            raise
        _log.info("done in %.1f s", (now_ms() - started.started_ms) / 1000)
        return evidence

    def keep(self, step: str, value: Keepable) -> None:
        """For this step after a crash, and later ones: one value per type."""
        self.log.put(checkpoint(self.run_id, step, value))

    def leave(self, step: str, value: Keepable) -> None:
        """For later steps only: written with the step's end, which saves three round trips of downtime."""
        self._leaving.append(checkpoint(self.run_id, step, value))

    def kept(self, step: str, kind: type[T]) -> T | None:
        """None: nothing saved. Indeterminate if unreadable."""
        return kept_in(self.log.state, self.run_id, step, kind)

    def kept_json(self, step: str, kind: type[Keepable]) -> str | None:
        """Decoded values of many partitions take much memory."""
        found = self.log.state.checkpoints.get((self.run_id, step, kind.__name__))
        return None if found is None else found.value

    def end(self, state: RunState, note: str = "", *, stay: Collection[str] = ()) -> Run:
        """Deletes checkpoints, except `keep_kinds`. Idempotent."""
        run = self.run
        if run.ended_ms is None:
            self.before_end()
            run = replace(run, state=state, ended_ms=now_ms(), note=note or run.note)
            kept = [c for c in self.log.state.checkpoints.values() if c.run == self.run_id and c.kind not in stay]
            self.log.put(run, ended(self.log.state, run), *map(Forget, kept))
        return run

    def check_turn(self, step: str) -> None:
        check_turn(self.log.state, self.run_id, self.steps, step)


def kept_in(state: State, run_id: str, step: str, kind: type[T]) -> T | None:
    found = state.checkpoints.get((run_id, step, kind.__name__))
    return None if found is None else _value(found, kind)


def told(state: State, run: Run, kind: Kind, body: object) -> Told:
    lines = state.chronicle(run.id)
    return next_line(lines, run=run.id, at_ms=now_ms(), by=run.conducted_by, kind=kind, body=body)


def taken(state: State, run: Run, by: str) -> tuple[Record, ...]:
    """None if it already conducts the run."""
    if run.ended_ms is not None or run.conducted_by == by:
        return ()
    run = replace(run, conducted_by=by)
    return run, told(state, run, Kind.CONDUCTED, {})


def begun(state: State, run: Run) -> Told:
    body = {
        "mirror": run.plan.mirror,
        "kind": run.plan.kind,
        "mode": run.plan.mode,
        "plan_hash": run.plan_hash,
        "plan_sha256": hash_of(canonical(run.plan)),
        "approved_by": run.approved_by,
        "started_by": run.started_by,
        "continues": run.continues,
        "homecoming": run.homecoming,
        "approvals": run.approvals,
        "part_of": run.part_of,
    }
    return told(state, run, Kind.BEGUN, body)


def ended(state: State, run: Run) -> Told:
    return told(state, run, Kind.ENDED, {"state": run.state, "note": run.note})


def checkpoint(run_id: str, step: str, value: Keepable) -> Checkpoint:
    kind = type(value)
    return Checkpoint(
        run=run_id, step=step, kind=kind.__name__, version=kind.VERSION, value=msgspec.json.encode(value).decode()
    )


def _value(found: Checkpoint, kind: type[T]) -> T:
    where = f"run {found.run}: what step {found.step} kept ({found.kind})"
    oldest: int = getattr(kind, "OLDEST", kind.VERSION)
    if not oldest <= found.version <= kind.VERSION:
        raise Indeterminate(
            f"{where} is of version {found.version}, this Mirrorbook reads {kind.VERSION}: go on with the Mirrorbook "
            "that began the run, or abort it"
        )
    try:
        return msgspec.json.decode(found.value, type=kind)
    except msgspec.MsgspecError:
        raise Indeterminate(f"{where} is not readable: somebody else wrote it?") from None


def check_turn(state: State, run_id: str, steps: tuple[str, ...], step: str) -> None:
    """Refused unless the run is active and earlier steps are done."""
    if step not in steps:
        raise BadRequest(f"run {run_id} has no step {step!r}; its steps are {', '.join(steps)}")
    run = find_run(state, run_id)
    taken = {s for s in steps if (run_id, s) in state.steps and state.steps[run_id, s].state is StepState.DONE}
    reasons = []
    if step not in taken and run.state is not RunState.RUNNING:
        reasons.append(f"the run is {run.state}")
    reasons += [f"step {e} is not done" for e in steps[: steps.index(step)] if e not in taken]
    if reasons:
        raise Refused(f"run {run.id}: step {step} cannot run yet", reasons)


def find_run(state: State, run_id: str) -> Run:
    """BadRequest for an unknown run."""
    try:
        return state.runs[run_id]
    except KeyError:
        known = ", ".join(sorted(state.runs)) or "none"
        raise BadRequest(f"unknown run {run_id!r}; this mirror's cluster knows: {known}") from None
