"""What failover and failback share."""

from __future__ import annotations

import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar, Final, Generic, TypeVar

from mirror_core.decide.approval_rules import (
    ApprovalPolicy,
    explain_expired_run,
    explain_not_approved,
    explain_outdated_plan,
    explain_used_approvals,
    find_run_to_resume,
    is_in_effect,
    list_runs_begun_by,
    select_valid_approvals,
)
from mirror_core.decide.drills import is_drill_mirror
from mirror_core.decide.failover_plan import PlanDecision
from mirror_core.decide.steps import find_no_return_step, list_step_names, measure_step_s
from mirror_core.kafka.connection_pool import CONNECTION_POOL
from mirror_core.mirrors.control import retry_until_owned
from mirror_core.model.audit_log import AuditEntryKind
from mirror_core.model.errors import BadRequest, LostOwnership, MirrorError, Refused
from mirror_core.model.gc_tuning import reduced_gc_frequency
from mirror_core.model.names import MirrorName
from mirror_core.model.run import (
    AIRFLOW_CONDUCTOR_PREFIX,
    Approval,
    Plan,
    Run,
    RunKind,
    RunMode,
    RunState,
    StepEvidence,
    StepRecord,
    StepState,
)
from mirror_core.model.timing import TIMEOUTS
from mirror_core.runbook.evidence_bundle import load_signer, write_bundle_or_report
from mirror_core.runbook.run_services import Services
from mirror_core.state.approvals import find_approvals
from mirror_core.state.journal import (
    Journal,
    check_step_turn,
    find_run,
    make_audit_entry,
    make_begin_entry,
    make_conductor_records,
)
from mirror_core.state.mirror_link import MirrorLink, is_source_answering, read_broker_time_ms
from mirror_core.state.point_of_no_return import is_past_no_return, make_holding_run
from mirror_core.state.run_heartbeat import HeartbeatMonitor, make_released_heartbeat, send_heartbeats
from mirror_core.state.state_cache import STATE_CACHE
from mirror_core.state.state_records import State, StateRecord, Tombstone
from mirror_core.state.state_topic import read_complete_state, read_state
from mirror_core.state.writer import StateWriter, make_control_id


@contextmanager
def process_caches() -> Iterator[None]:
    with CONNECTION_POOL.keep_connections(), STATE_CACHE.enable(), reduced_gc_frequency():
        yield


@dataclass(frozen=True, slots=True)
class SetMembership:
    attempt: str
    plan_hash: str
    least_number: int
    """Above every run's that the set's destinations knew, so that numbers order attempts across clusters, too."""
    mirrors: tuple[MirrorName, ...]


PlanChoice = TypeVar("PlanChoice")


class Conductor(ABC, Generic[PlanChoice]):
    """Runs of one kind of one mirror."""

    KIND: ClassVar[RunKind]
    DISTURBANCE: ClassVar[str]

    def __init__(
        self,
        link: MirrorLink,
        services: Services,
        *,
        started_by: str,
        print_line: Callable[[str], None] = lambda line: None,
        gate_limit_s: float | None = None,
        leave_behind: bool = False,
    ) -> None:
        """`gate_limit_s`: refuse to fence if the gate would take longer."""
        self.link = link
        self.services = services
        self.started_by = started_by
        self._print_line = print_line
        self._gate_limit_s, self._leave_behind = gate_limit_s, leave_behind
        self.heartbeat_monitors: dict[str, HeartbeatMonitor] = {}  # of runs conducted elsewhere

    def decide(self, choice: PlanChoice | None = None) -> PlanDecision:
        """With every reason against the plan. Takes seconds even if a cluster is dead."""
        return self._decide(read_state(self.link.destination, timeout_s=TIMEOUTS.plan_state_s), choice)

    def plan(self, choice: PlanChoice | None = None) -> Plan:
        return self.decide(choice).plan

    @process_caches()
    @retry_until_owned
    def begin(
        self,
        plan_hash: str,
        choice: PlanChoice | None = None,
        *,
        approved_by: str | Sequence[Approval] | ApprovalPolicy = "",
        part_of: SetMembership | None = None,
        silent: bool = False,
    ) -> Run:
        """Refused if the plan of this hash changed or may not run.

        Retried if an earlier sync takes the mirror's state over. `approved_by`: a person asked here, or approvals that
        the state topic must hold. `silent`: the given-up source did not answer.
        """
        state = read_complete_state(self.link.destination)
        active_run = state.active_run(self.link.mirror.name)
        if active_run and not self._can_continue(active_run, choice):
            raise Refused(self._format_title(), [make_holding_run(state, active_run).explain()])
        if active_run:  # check first: a refusal must not take the run over
            self._check_begin(self._decide_at_begin(state, choice, active_run, silent=silent), plan_hash)
            self._check_approvals(state, approved_by, plan_hash, part_of)
        with self._open_control_writer() as writer:
            decision = self._decide_at_begin(writer.state, choice, active_run, silent=silent)
            return self._open_run(writer, decision, plan_hash, approved_by, part_of, silent=silent)

    def run_step(self, run_id: str, name: str) -> StepRecord:
        return self.run_steps(run_id, (name,))[0]

    @process_caches()
    def run_steps(self, run_id: str, step_names: Sequence[str], *, agreed_by: str = "") -> tuple[StepRecord, ...]:
        """Consecutive ones; done ones are skipped. `agreed_by`: who confirmed them just now, if anybody was asked."""
        state = read_complete_state(self.link.destination)
        run, steps = self._find_own_run(state, run_id), list_run_steps(self._find_own_run(state, run_id))
        done_records = [state.steps[run_id, name] for name in step_names if is_step_done(state, run_id, name)]
        # The last step also closes the run, which a crash may have prevented.
        if len(done_records) == len(step_names) and (run.ended_ms is not None or step_names[-1] != steps[-1]):
            self._refuse_superseded(state, run)
            return tuple(done_records)
        check_step_turn(state, run_id, steps, step_names[min(len(done_records), len(step_names) - 1)])
        with self._conduct(run_id) as (writer, journal):
            self._record_agreement(writer, journal, agreed_by)
            return tuple(self._run_step(writer, journal, name) for name in step_names)

    @process_caches()
    def drive(self, run_id: str, *, agreed_by: str = "") -> Run:
        """Take all possible steps, or finish an abort. Also resumes."""
        run = self._find_own_run(read_complete_state(self.link.destination), run_id)
        if run.state in (RunState.ABORTED, RunState.SUPERSEDED):
            advice = run.note or "look at a new plan, and begin that"
            raise Refused(
                f"run {run_id}: resume", [f"the run is {run.state}: {advice}"], reason_code="run_not_resumable"
            )
        if run.ended_ms is not None:
            return run
        with self._conduct(run_id) as (writer, journal):
            if journal.run.state is RunState.ABORTING:
                return self._write_evidence(writer, self._abort(writer, journal))
            self._record_agreement(writer, journal, agreed_by)
            closed = False
            while (name := journal.next_step()) is not None:
                if not self._is_step_due(journal.run, name):
                    return journal.run
                self._run_step(writer, journal, name)
                closed = journal.next_step() is None
            ended = self._finish(writer, journal)
            return ended if closed else self._write_evidence(writer, ended)

    @process_caches()
    def abort(self, run_id: str, *, only_mine: bool = False) -> Run:
        """Refused from the point of no return on. `only_mine`: LostOwnership if another conductor has the run."""
        run = self._check_abort(read_complete_state(self.link.destination), run_id, only_mine)
        if run.state is RunState.ABORTED:
            return run
        with self._conduct(run_id, lambda state: self._check_abort(state, run_id, only_mine)) as (writer, journal):
            if journal.run.state is RunState.ABORTED:
                return journal.run
            return self._write_evidence(writer, self._abort(writer, journal))

    @process_caches()
    def check_abort(self, run_id: str) -> Run:
        """Refused if `abort` would be, before anybody is asked."""
        return self._check_abort(read_complete_state(self.link.destination), run_id, only_mine=False)

    def find_run_to_resume(self, plan_hash: str, mode: RunMode = RunMode.PLANNED) -> Run | None:
        """An unplanned runbook of the same DAG run resumes no planned run: it begins its own."""
        state = read_complete_state(self.link.destination)
        begun_runs = list_runs_begun_by(state.runs.values(), self.link.mirror.name, self.KIND, self.started_by)
        own_runs = [run for run in begun_runs if run.plan.mode is mode]
        in_effect_ids = [run.id for run in own_runs if run.state is RunState.DONE and self.is_in_effect(state, run)]
        return find_run_to_resume(own_runs, plan_hash, in_effect_ids)

    def is_in_effect(self, state: State, run: Run) -> bool:
        return is_in_effect(run, state.runs.values(), state.pending_fences.get(run.plan.mirror))

    def find_active_run(self) -> Run | None:
        return read_state(self.link.destination).active_run(self.link.mirror.name)

    def read_status(self, run_id: str) -> tuple[Run, tuple[StepRecord, ...]]:
        state = read_state(self.link.destination)
        run = self._find_own_run(state, run_id)
        return run, tuple(state.steps[run_id, s] for s in list_run_steps(run) if (run_id, s) in state.steps)

    @process_caches()
    def refuse_conducted(self, run_id: str, title: str, *, take_over: bool = False, quietly: bool = False) -> None:
        """Watches heartbeats for 30 s, unless the run was released or its process certainly ended."""
        monitor = self.heartbeat_monitors.setdefault(run_id, HeartbeatMonitor(run_id))
        print_line: Callable[[str], None] = (lambda line: None) if quietly else self._print_line
        conductor_status = monitor.wait_for_status(
            lambda: read_complete_state(self.link.destination), print_line, take_over=take_over
        )
        if reason := conductor_status.explain_refusal(can_take_over=take_over):
            raise Refused(title, [reason], reason_code="run_conducted")

    def refuse_expired(self, run_id: str, agreed: Sequence[Approval]) -> None:
        """Not once `has_disturbed`."""
        run, steps = self.read_status(run_id)
        reason = explain_expired_run(run, agreed, steps, read_broker_time_ms(self.link.destination))
        if reason and run.state is RunState.RUNNING and not self.has_disturbed(run):
            raise Refused(f"run {run_id} {self.DISTURBANCE}", [reason], reason_code="approval_expired")

    def refuse_unfinished(self, run_id: str) -> None:
        """Refused, too, if a later run has replaced it."""
        state = read_complete_state(self.link.destination)
        run = self._find_own_run(state, run_id)
        if run.state is not RunState.DONE:
            steps = [name for name in list_run_steps(run) if not is_step_done(state, run_id, name)]
            open_text = f": not done: {', '.join(steps)}" if steps else ""
            raise Refused(
                f"run {run_id}",
                [f"it is {run.state}{open_text}. To mark a task as success does nothing"],
                reason_code="run_not_done",
            )
        self._refuse_superseded(state, run)

    def can_reach_source(self) -> bool:
        return is_source_answering(self.link)

    # -- what differs --------------------------------------------------------------------------------------------

    @abstractmethod
    def has_disturbed(self, run: Run) -> bool:
        """Applications may have noticed the run: nobody is asked again."""

    @abstractmethod
    def _decide(self, state: State, choice: PlanChoice | None) -> PlanDecision: ...

    @abstractmethod
    def _act(self, writer: StateWriter, journal: Journal, name: str) -> Callable[[], StepEvidence]: ...

    @abstractmethod
    def _abort(self, writer: StateWriter, journal: Journal) -> Run: ...

    @abstractmethod
    def _finish(self, writer: StateWriter, journal: Journal) -> Run:
        """Closing a run twice changes nothing."""

    @abstractmethod
    def _format_no_way_back(self) -> str: ...

    @abstractmethod
    def _format_next_after_end(self) -> str: ...

    def _decide_at_begin(
        self, state: State, choice: PlanChoice | None, holding_run: Run | None, *, silent: bool
    ) -> PlanDecision:
        return self._decide(state, choice)

    def _is_step_due(self, run: Run, name: str) -> bool:
        return True

    def _can_continue(self, active_run: Run, choice: PlanChoice | None) -> bool:
        return False

    def _complete_run(
        self, run: Run, decision: PlanDecision, writer: StateWriter
    ) -> tuple[Run, tuple[StateRecord | Tombstone, ...]]:
        return run, ()

    # -- inside --------------------------------------------------------------------------------------------------

    def _open_control_writer(self) -> StateWriter:
        return StateWriter(self.link.destination, make_control_id(self.link.mirror.name))

    @contextmanager
    def _conduct(
        self, run_id: str, check_state: Callable[[State], object] = lambda state: None
    ) -> Iterator[tuple[StateWriter, Journal]]:
        if run_id in self.heartbeat_monitors:
            try:
                self.refuse_conducted(run_id, f"run {run_id}: take over")
            except Refused as error:  # another conductor was quicker
                raise LostOwnership(str(error)) from None
        with self._open_control_writer() as writer:
            check_state(writer.state)
            run = self._find_own_run(writer.state, run_id)
            with send_heartbeats(
                writer, run_id, self.started_by, make_conductor_records(writer, run, self.started_by)
            ) as stop:
                self.heartbeat_monitors.pop(run_id, None)
                yield writer, Journal(writer, run_id, list_run_steps(run), stop)

    def _format_title(self) -> str:
        return f"{self.KIND} of mirror {self.link.mirror.name}"

    def _check_begin(self, decision: PlanDecision, plan_hash: str) -> None:
        reasons = (*decision.reasons, *explain_outdated_plan(decision.plan, plan_hash))
        if reasons:
            raise Refused(self._format_title(), reasons, "plan_outdated")
        self.services.check_evidence()
        load_signer(self.link.config)

    def _check_approvals(
        self,
        state: State,
        approved_by: str | Sequence[Approval] | ApprovalPolicy,
        plan_hash: str,
        part_of: SetMembership | None,
    ) -> str | tuple[Approval, ...]:
        """A set checks by itself whether approvals were already used."""
        mirror = self.link.mirror.name
        if not isinstance(approved_by, ApprovalPolicy):
            if self.started_by.startswith(AIRFLOW_CONDUCTOR_PREFIX) and not is_drill_mirror(self.link.mirror):
                raise Refused(
                    self._format_title(),
                    ["Airflow begins nothing without approvals in the state topic"],
                    reason_code="approvals_needed",
                )
            return approved_by if isinstance(approved_by, str) else tuple(approved_by)
        recorded = find_approvals(state, mirror, approved_by.question)
        people = select_valid_approvals(approved_by, recorded)
        earlier_runs = [] if part_of else [run for run in state.runs.values() if run.plan.mirror == mirror]
        reused = explain_used_approvals(earlier_runs, people)
        approves, now = part_of.plan_hash if part_of else plan_hash, read_broker_time_ms(self.link.destination)
        if reasons := reused or explain_not_approved(approved_by, recorded, approves, now):
            raise Refused(self._format_title(), reasons, reason_code="not_approved")
        return people

    def _refuse_superseded(self, state: State, run: Run) -> None:
        """For example after old Airflow tasks were cleared."""
        if run.ended_ms is not None and not self.is_in_effect(state, run):
            reason = f"it has ended, and is not what {run.plan.mirror} is in any more: nothing is done by it"
            raise Refused(f"run {run.id}", [reason], reason_code="run_superseded")

    def _open_run(
        self,
        writer: StateWriter,
        decision: PlanDecision,
        plan_hash: str,
        approved_by: str | Sequence[Approval] | ApprovalPolicy,
        part_of: SetMembership | None,
        *,
        silent: bool,
    ) -> Run:
        self._check_begin(decision, plan_hash)
        approved = self._check_approvals(writer.state, approved_by, plan_hash, part_of)
        started = writer.now_ms()
        people = () if isinstance(approved, str) else approved
        run = Run(
            id=self._create_run_id(started),
            number=max(writer.state.next_run_number(), part_of.least_number if part_of else 0),
            plan=decision.plan,
            plan_hash=decision.plan.hash,
            state=RunState.RUNNING,
            started_by=self.started_by,
            started_ms=started,
            desired=writer.state.mirrors[self.link.mirror.name].desired,
            conducted_by=self.started_by,
            approved_by=approved if isinstance(approved, str) else ", ".join(approval.name for approval in people),
            approvals=people,
            set_run=part_of.attempt if part_of else "",
            set_mirrors=part_of.mirrors if part_of else (),
            source_silent=silent,
            failback_run=writer.state.mirrors[self.link.mirror.name].failback_run,
        )
        run, further_records = self._complete_run(run, decision, writer)
        writer.put(
            run, make_begin_entry(writer, run), make_released_heartbeat(run.id, self.started_by), *further_records
        )
        return run

    def _create_run_id(self, started_ms: int) -> str:
        timestamp = datetime.fromtimestamp(started_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S")
        return f"{self.link.mirror.name}-{self.KIND}-{timestamp}-{secrets.token_hex(2)}"

    def _find_own_run(self, state: State, run_id: str) -> Run:
        run = find_run(state, run_id)
        if run.plan.mirror != self.link.mirror.name or run.plan.kind is not self.KIND:
            raise BadRequest(f"run {run_id} is a {run.plan.kind} of mirror {run.plan.mirror}")
        return run

    def _run_step(self, writer: StateWriter, journal: Journal, name: str) -> StepRecord:
        journal.check_turn(name)
        if journal.is_done(name):
            record = journal.perform(name, dict)
        else:
            action = self._act(writer, journal, name)
            self._print_line(f"{name} ...")
            record = journal.perform(name, action)
            seconds = measure_step_s(record)
            self._print_line(f"{name} done" if seconds is None else f"{name} done in {seconds:.1f} s")
        if journal.next_step() is None:
            self._write_evidence(writer, self._finish(writer, journal))
        return record

    def _record_agreement(self, writer: StateWriter, journal: Journal, person: str) -> None:
        if person:
            writer.put(make_audit_entry(writer, journal.run, AuditEntryKind.STOP_CONFIRMED, {"by": person}))

    def _write_evidence(self, writer: StateWriter, run: Run) -> Run:
        write_bundle_or_report(self.services, self.link.config, run, writer.state, self._print_line)
        return run

    def _check_abort(self, state: State, run_id: str, only_mine: bool) -> Run:
        run = self._find_own_run(state, run_id)
        if only_mine and run.conducted_by != self.started_by:
            raise LostOwnership(f"run {run_id} is conducted by {run.conducted_by} now, who ends it: nothing is aborted")
        if run.state is RunState.SUPERSEDED:
            raise Refused(f"run {run_id}: abort", [run.note], reason_code="run_superseded")
        if run.state is RunState.DONE:
            raise Refused(
                f"run {run_id}: abort",
                [f"the {run.plan.kind} is complete: {self._format_next_after_end()}"],
                reason_code="run_done",
            )
        if is_past_no_return(state, run):
            no_return_step = find_no_return_step(self.KIND, run.plan.mode)
            raise Refused(
                f"run {run_id}: abort",
                [f"step {no_return_step} has begun: {self._format_no_way_back()}"],
                reason_code="past_no_return",
            )
        return run


def is_step_done(state: State, run_id: str, name: str) -> bool:
    record = state.steps.get((run_id, name))
    return record is not None and record.state is StepState.DONE


def list_run_steps(run: Run) -> tuple[str, ...]:
    return list_step_names(run.plan.kind, run.plan.mode)


MAX_TRIES: Final = 3
RETRY_PAUSE_S: Final = 2.0


def run_parallel(
    actions: Mapping[MirrorName, Callable[[], object]], print_line: Callable[[str], None]
) -> dict[MirrorName, MirrorError]:
    """Runs all; returns the errors. LostOwnership of one ends all."""
    errors: dict[MirrorName, BaseException] = {}

    def run_action(name: MirrorName) -> None:
        try:
            actions[name]()
        except BaseException as error:  # noqa: BLE001 - raised by the waiting thread
            errors[name] = error

    # Daemons: Ctrl-C must end the process.
    threads = [
        threading.Thread(target=run_action, args=(name,), name=f"mirror {name}", daemon=True) for name in actions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, error in errors.items():
        print_line(f"{name}: {error}")
    for name, error in errors.items():
        if isinstance(error, LostOwnership):
            others_advice = "the others wait where they are: run the set again, or resume them one by one"
            raise LostOwnership(f"{name}: {error}; {others_advice}") from None
        if not isinstance(error, MirrorError):
            raise error
    return {name: error for name, error in errors.items() if isinstance(error, MirrorError)}


def retry_until_done(name: MirrorName, print_line: Callable[[str], None], action: Callable[[], object]) -> None:
    for tries_left in reversed(range(MAX_TRIES)):
        try:
            action()
            return
        except MirrorError as error:
            if not error.retryable or not tries_left:
                raise
            print_line(f"{name}: {error}; once more")
            time.sleep(RETRY_PAUSE_S)
