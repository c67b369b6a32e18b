"""A run's journal: intent before each step, evidence after it.

The writer owns the mirror's transactional id (KIP-98), so what it reads is current.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import msgspec

from mirror_core.model.audit_log import AuditEntryKind, AuditLine, build_next_line, hash_line, to_canonical_json
from mirror_core.model.errors import BadRequest, Indeterminate, LostOwnership, MirrorError, Refused
from mirror_core.model.logs import get_logger, log_context
from mirror_core.model.run import Run, RunState, StepEvidence, StepRecord, StepState
from mirror_core.model.run_checkpoints import Checkpoint, RunNote, StepValue
from mirror_core.state.state_records import State, StateRecord, Tombstone

CheckpointValue = TypeVar("CheckpointValue", bound=StepValue)

_log = get_logger(__name__)


class JournalLog(Protocol):
    state: State

    def put(self, *records: StateRecord | Tombstone) -> None: ...

    def now_ms(self) -> int:
        """By the brokers' clock, and steady."""
        ...

    def refresh(self) -> State: ...


@dataclass(frozen=True, slots=True)
class Journal:
    log: JournalLog
    run_id: str
    steps: tuple[str, ...]
    before_end: Callable[[], None] = lambda: None
    _saved_at_end: list[Checkpoint] = field(default_factory=list)

    @property
    def run(self) -> Run:
        return find_run(self.log.state, self.run_id)

    def record(self, step: str) -> StepRecord | None:
        return self.log.state.steps.get((self.run_id, step))

    def is_done(self, step: str) -> bool:
        record = self.record(step)
        return record is not None and record.state is StepState.DONE

    def is_begun(self, step: str) -> bool:
        return self.record(step) is not None

    def next_step(self) -> str | None:
        return next((step for step in self.steps if not self.is_done(step)), None)

    def perform(self, step: str, action: Callable[[], StepEvidence]) -> StepRecord:
        """An interrupted step runs again from its beginning, with its checkpoints. A failure is recorded and raised;
        after LostOwnership nothing is: another process owns the journal.
        """
        self.check_turn(step)
        previous = self.record(step)
        if previous is not None and previous.state is StepState.DONE:
            return previous
        started = StepRecord(
            run=self.run_id,
            step=step,
            state=StepState.STARTED,
            attempt=previous.attempt + 1 if previous else 1,
            started_ms=self.log.now_ms(),
            first_started_ms=previous.first_attempt_ms if previous else None,
        )
        self._write(started)
        self._saved_at_end.clear()  # from a failed attempt
        with log_context(mirror=self.run.plan.mirror, run=self.run_id, step=step):
            evidence = self._act(started, action)
        finished = replace(started, state=StepState.DONE, ended_ms=self.log.now_ms(), evidence=evidence)
        self._write(finished, *self._saved_at_end)
        return finished

    def _write(self, step: StepRecord, *checkpoints: Checkpoint) -> None:
        self.log.put(*checkpoints, step, make_audit_entry(self.log, self.run, AuditEntryKind.STEP, step))

    def _act(self, started: StepRecord, action: Callable[[], StepEvidence]) -> StepEvidence:
        _log.info("begins, attempt %d", started.attempt)
        try:
            evidence = action()
        except LostOwnership as error:
            _log.info("lost the mirror: %s", error)
            raise
        except MirrorError as error:
            _log.info("failed: %s", error)
            self._write(replace(started, state=StepState.FAILED, ended_ms=self.log.now_ms(), error=str(error)))
            raise
        _log.info("done in %.1f s", (self.log.now_ms() - started.started_ms) / 1000)
        return evidence

    def save_checkpoint(self, step: str, value: StepValue) -> None:
        """For this step after a crash, and later ones: one value per type."""
        self.log.put(make_checkpoint(self.run_id, step, value))

    def save_at_end(self, step: str, value: StepValue) -> None:
        """For later steps only: written with the step's end, which saves three round trips of downtime."""
        self._saved_at_end.append(make_checkpoint(self.run_id, step, value))

    def load_checkpoint(self, step: str, kind: type[CheckpointValue]) -> CheckpointValue | None:
        """None if nothing was saved. Indeterminate if unreadable."""
        return load_checkpoint(self.log.state, self.run_id, step, kind)

    def load_checkpoint_json(self, step: str, kind: type[StepValue]) -> str | None:
        """Decoded values of many partitions take much memory."""
        record = self.log.state.checkpoints.get((self.run_id, step, kind.__name__))
        return None if record is None else record.value

    def end(self, state: RunState, note: str = "", *, keep_kinds: Collection[str] = ()) -> Run:
        """Deletes checkpoints, except `keep_kinds`. Idempotent."""
        run = self.run
        if run.ended_ms is None:
            self.before_end()
            run = replace(run, state=state, ended_ms=self.log.now_ms(), note=note or run.note)
            forgotten = [
                record
                for record in self.log.state.checkpoints.values()
                if record.run == self.run_id and record.kind not in keep_kinds
            ]
            self.log.put(run, make_end_entry(self.log, run), *map(Tombstone, forgotten))
        return run

    def check_turn(self, step: str) -> None:
        check_step_turn(self.log.state, self.run_id, self.steps, step)


def load_checkpoint(state: State, run_id: str, step: str, kind: type[CheckpointValue]) -> CheckpointValue | None:
    record = state.checkpoints.get((run_id, step, kind.__name__))
    return None if record is None else _decode_checkpoint(record, kind)


def make_audit_entry(log: JournalLog, run: Run, kind: AuditEntryKind, body: object) -> AuditLine:
    lines = log.state.audit_lines(run.id)
    return build_next_line(lines, run=run.id, at_ms=log.now_ms(), by=run.conducted_by, kind=kind, body=body)


def make_conductor_records(log: JournalLog, run: Run, conductor: str) -> tuple[StateRecord, ...]:
    if run.ended_ms is not None or run.conducted_by == conductor:
        return ()
    run = replace(run, conducted_by=conductor)
    return run, make_audit_entry(log, run, AuditEntryKind.CONDUCTOR_CHANGED, {})


def make_begin_entry(log: JournalLog, run: Run) -> AuditLine:
    body = {
        "number": run.number,
        "mirror": run.plan.mirror,
        "kind": run.plan.kind,
        "mode": run.plan.mode,
        "plan_hash": run.plan_hash,
        "plan_sha256": hash_line(to_canonical_json(run.plan)),
        "approved_by": run.approved_by,
        "started_by": run.started_by,
        "continues": run.continues,
        "failback_run": run.failback_run,
        "approvals": run.approvals,
        "set_run": run.set_run,
    }
    return make_audit_entry(log, run, AuditEntryKind.BEGUN, body)


def make_end_entry(log: JournalLog, run: Run) -> AuditLine:
    return make_audit_entry(log, run, AuditEntryKind.ENDED, {"state": run.state, "note": run.note})


def make_checkpoint(run_id: str, step: str, value: StepValue) -> Checkpoint:
    kind = type(value)
    return Checkpoint(
        run=run_id, step=step, kind=kind.__name__, version=kind.VERSION, value=msgspec.json.encode(value).decode()
    )


def iter_checkpoints(
    state: State, run_id: str, kind: type[CheckpointValue]
) -> Iterator[tuple[Checkpoint, CheckpointValue]]:
    """From any step. Unreadable ones are left out."""
    for record in state.checkpoints.values():
        if (record.run, record.kind, record.version) == (run_id, kind.__name__, kind.VERSION):
            try:
                yield record, msgspec.json.decode(record.value, type=kind)
            except msgspec.MsgspecError:
                continue


def list_notes(state: State, run_id: str) -> tuple[RunNote, ...]:
    notes = (note for _, note in iter_checkpoints(state, run_id, RunNote) if note.run == run_id)
    return tuple(sorted(notes, key=lambda note: note.at_ms))


def _decode_checkpoint(record: Checkpoint, kind: type[CheckpointValue]) -> CheckpointValue:
    where = f"run {record.run}: what step {record.step} kept ({record.kind})"
    if record.version != kind.VERSION:
        raise Indeterminate(
            f"{where} is of version {record.version}, this Mirrorbook reads {kind.VERSION}: go on with the Mirrorbook "
            "that began the run, or abort it"
        )
    try:
        return msgspec.json.decode(record.value, type=kind)
    except msgspec.MsgspecError:
        raise Indeterminate(f"{where} is not readable: somebody else wrote it?") from None


def check_step_turn(state: State, run_id: str, steps: tuple[str, ...], step: str) -> None:
    """Refused unless the run is active and earlier steps are done."""
    if step not in steps:
        raise BadRequest(f"run {run_id} has no step {step!r}; its steps are {', '.join(steps)}")
    run = find_run(state, run_id)
    done_steps = {
        name for name in steps if (run_id, name) in state.steps and state.steps[run_id, name].state is StepState.DONE
    }
    reasons = []
    if step not in done_steps and run.state is not RunState.RUNNING:
        reasons.append(f"the run is {run.state}")
    reasons += [f"step {earlier} is not done" for earlier in steps[: steps.index(step)] if earlier not in done_steps]
    if reasons:
        raise Refused(f"run {run.id}: step {step} cannot run yet", reasons, reason_code="step_not_due")


def find_run(state: State, run_id: str) -> Run:
    try:
        return state.runs[run_id]
    except KeyError:
        known = ", ".join(sorted(state.runs)) or "none"
        raise BadRequest(f"unknown run {run_id!r}; this mirror's cluster knows: {known}") from None
