"""Failover: plan, begin, take steps, abort."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from mirror_core.decide import failover_plan as decision
from mirror_core.decide.approval_rules import count_failed, explain_source_answers_again, is_in_effect
from mirror_core.decide.failover_plan import AUTHORIZER_FACT
from mirror_core.decide.failover_readiness import UnplannedForecast, forecast_unplanned
from mirror_core.decide.failover_scope import (
    EMPTY_SCOPE,
    LEFT_BEHIND_FACT,
    FailoverScope,
    find_never_complete,
    list_leavable,
)
from mirror_core.decide.forecast_accuracy import explain_uncopied_records
from mirror_core.decide.mirror_snapshot import MirrorSnapshot
from mirror_core.decide.process_liveness import ConductorState
from mirror_core.decide.steps import list_standstill_steps
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.cluster_info import measure_clock_ahead_ms
from mirror_core.model.acl import AclPurpose
from mirror_core.model.audit_log import AuditEntryKind, to_canonical_json
from mirror_core.model.config_sections import WriteBarrier
from mirror_core.model.errors import Refused
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState, Lease, PartitionState
from mirror_core.model.names import ClusterName
from mirror_core.model.pending_fence import FenceAction
from mirror_core.model.run import PlanFact, Run, RunKind, RunMode, RunState, StepEvidence, StepState
from mirror_core.model.run_checkpoints import StepValue
from mirror_core.model.timing import CLOCK_TIMEOUT_S, TIMEOUTS, read_steady_s
from mirror_core.runbook.conductor import Conductor, process_caches
from mirror_core.runbook.fence_actions import is_known_to_stand, lift_fence_or_record
from mirror_core.runbook.forecast_check import list_retained_checkpoints
from mirror_core.runbook.planned_steps import PlannedSteps
from mirror_core.runbook.promotion_steps import format_lease_owner
from mirror_core.runbook.snapshot_reader import presume_source_dead, take_snapshot
from mirror_core.runbook.step_records import DrainResult, UnderReplicatedLogs
from mirror_core.runbook.unplanned_steps import UnplannedSteps
from mirror_core.state.journal import Journal, load_checkpoint, make_audit_entry, make_checkpoint, make_end_entry
from mirror_core.state.lease import date_lease, find_writers_left_ms
from mirror_core.state.mirror_link import is_source_alive
from mirror_core.state.partition_transitions import PartitionEvent, apply_events
from mirror_core.state.point_of_no_return import SourceReturned, is_past_no_return
from mirror_core.state.run_heartbeat import observe_conductor
from mirror_core.state.state_records import PartitionRecord, State, StateRecord, Tombstone
from mirror_core.state.state_topic import read_state
from mirror_core.state.writer import StateWriter, make_data_id
from mirror_core.sync.fence_acls import lift_all_denials
from mirror_core.sync.fence_command import ClusterClosed, has_closed_source


class Failover(Conductor[RunMode]):
    KIND = RunKind.FAILOVER
    DISTURBANCE = "stops applications"

    def _decide(self, state: State, choice: RunMode | None) -> decision.PlanDecision:
        mode = choice or RunMode.PLANNED
        return decision.decide_failover(self._as_continuation(self._snapshot(state, mode), state))

    def decide_both_modes(self) -> tuple[decision.PlanDecision, UnplannedForecast]:
        state = read_state(self.link.destination, timeout_s=TIMEOUTS.plan_state_s)
        planned_view = self._snapshot(state, RunMode.PLANNED)
        unplanned_view = self._as_continuation(
            presume_source_dead(planned_view, self.link, state, conductor=self.started_by), state
        )
        return decision.decide_failover(planned_view), forecast_unplanned(
            decision.decide_failover(unplanned_view), unplanned_view, planned_view
        )

    def _snapshot(self, state: State, mode: RunMode) -> MirrorSnapshot:
        mirror = state.mirrors.get(self.link.mirror.name, self.link.mirror)
        snapshot = take_snapshot(replace(self.link, mirror=mirror), state, mode, conductor=self.started_by)
        return replace(snapshot, left_behind=frozenset(list_leavable(snapshot))) if self._leave_behind else snapshot

    def _as_continuation(self, snapshot: MirrorSnapshot, state: State) -> MirrorSnapshot:
        holding_run = state.active_run(snapshot.mirror.name)
        # Past the point of no return it is resumed, without the source.
        if (
            holding_run is None
            or not self._can_continue(holding_run, snapshot.mode)
            or is_past_no_return(state, holding_run)
        ):
            return snapshot
        conductor_status = observe_conductor(self.link.destination, state, holding_run)
        return replace(
            snapshot,
            mirror=replace(snapshot.mirror, desired=holding_run.desired),
            active_run=None,
            continues_run=holding_run.id,
            conducted_by=str(conductor_status) if conductor_status.state is ConductorState.ALIVE else "",
            is_drained=is_drained_behind_fence(state, holding_run) and is_known_to_stand(self.services, holding_run.id),
        )

    def decide_again(self, run: Run) -> decision.PlanDecision:
        state = read_state(self.link.destination, timeout_s=TIMEOUTS.plan_state_s)
        mirror = replace(state.mirrors.get(self.link.mirror.name, self.link.mirror), desired=run.desired)
        snapshot = take_snapshot(replace(self.link, mirror=mirror), state, run.plan.mode, conductor=self.started_by)
        scope = load_checkpoint(state, run.id, "begin", FailoverScope) or EMPTY_SCOPE
        has_left_copies = any(fact.name == LEFT_BEHIND_FACT for fact in run.plan.bound_facts)
        left_copies = find_never_complete(snapshot) if has_left_copies else ()
        return decision.decide_failover(
            replace(snapshot, active_run=None, left_behind=frozenset((*scope.left_behind, *left_copies)))
        )

    def decide_unplanned(self) -> tuple[decision.PlanDecision, bool]:
        """(the unplanned plan, whether no source broker answers)"""
        unplanned, source_answers = self._decide_with_source_probe(lambda: self.decide(RunMode.UNPLANNED))
        if source_answers and not unplanned.source_seen:
            partly = Finding(
                "source_answers_partly", self.link.source.name, failed=count_failed(unplanned.plan.warnings)
            )
            warnings = (partly, *unplanned.plan.warnings)
            unplanned = replace(unplanned, plan=replace(unplanned.plan, warnings=warnings))
        return unplanned, not source_answers

    def _decide_at_begin(
        self, state: State, choice: RunMode | None, holding_run: Run | None, *, silent: bool
    ) -> decision.PlanDecision:
        if not silent:
            return self._decide(state, choice)
        new_decision, source_answers = self._decide_with_source_probe(lambda: self._decide(state, choice))
        source, retry_command = self.link.source.name, f"failover run {self.link.mirror.name}"
        if reasons := explain_source_answers_again(
            source,
            retry_command,
            was_silent=silent,
            has_answered=source_answers,
            has_answered_fully=new_decision.source_seen,
            failed=count_failed(new_decision.plan.warnings),
            held_run=holding_run,
        ):
            raise Refused(self._format_title(), reasons, "source_answers")
        return new_decision

    def refuse_conducted_planned_run(self) -> None:
        """An unplanned run would end it."""
        run = self.find_active_run()
        if run is not None and self._can_continue(run, RunMode.UNPLANNED):
            self.refuse_conducted(run.id, f"run {run.id}: unplanned failover", take_over=True)

    def is_source_reachable(self) -> bool:
        return is_source_alive(self.link)

    def _decide_with_source_probe(
        self, decide: Callable[[], decision.PlanDecision]
    ) -> tuple[decision.PlanDecision, bool]:
        """Probes at the same time: a dead source costs seconds."""
        with ThreadPoolExecutor(1) as pool:
            source_probe = pool.submit(self.is_source_reachable)
            new_decision = decide()
            return new_decision, new_decision.source_seen or source_probe.result()

    @process_caches()
    def confirm_leave_behind(self, run_id: str, shown_losses: tuple[str, ...]) -> None:
        """Refused unless the run has stopped for it.

        `shown_losses`: what `list_refused_losses` gave when the person was asked; refused if it has changed since.
        """
        title = f"run {run_id}: --leave-behind"
        with self._conduct(run_id) as (writer, journal):
            awaited = self._find_awaited_confirmation(writer, journal)
            if awaited is None:
                raise Refused(
                    title,
                    ["it has not stopped for records that could be left behind: resume it without"],
                    "nothing_left_behind",
                )
            if shown_losses != list_refused_losses(writer.state, journal.run):
                raise Refused(
                    title, ["what stays behind has changed since it was approved: ask again"], "left_behind_changed"
                )
            step, confirmation = awaited
            body = {"by": self.started_by, "left_behind": True, "step": step}
            writer.put(
                make_checkpoint(run_id, step, confirmation),
                make_audit_entry(writer, journal.run, AuditEntryKind.STOP_CONFIRMED, body),
            )

    def _find_awaited_confirmation(self, writer: StateWriter, journal: Journal) -> tuple[str, StepValue] | None:
        if journal.run.state is not RunState.RUNNING or is_past_no_return(writer.state, journal.run):
            return None
        if journal.next_step() == "settle":
            under_replicated = journal.load_checkpoint("settle", UnderReplicatedLogs)
            return None if under_replicated is None else ("settle", replace(under_replicated, left_behind=True))
        returned = journal.load_checkpoint("promote", SourceReturned)
        return (
            None
            if returned is None
            else ("promote", replace(returned, loss_confirmed=True, confirmed_ms=writer.now_ms()))
        )

    def is_in_effect(self, state: State, run: Run) -> bool:
        """A reverse failover is in effect as long as its failback."""
        if not run.failback_run:
            return super().is_in_effect(state, run)
        source_state = read_state(self.link.source)
        failback = source_state.runs.get(run.failback_run)
        if failback is None:
            return False
        failback_in_effect = is_in_effect(
            failback, source_state.runs.values(), source_state.pending_fences.get(failback.plan.mirror)
        )
        return failback.state is RunState.RUNNING or (failback.state is RunState.DONE and failback_in_effect)

    def has_disturbed(self, run: Run) -> bool:
        return has_disturbed_applications(read_state(self.link.destination), run, self.link.source.name)

    def _can_continue(self, active_run: Run, choice: RunMode | None) -> bool:
        """Without its source it becomes unplanned, with its own plan and approval."""
        is_planned = active_run.plan.kind is RunKind.FAILOVER and active_run.plan.mode is RunMode.PLANNED
        return choice is RunMode.UNPLANNED and is_planned and active_run.state is RunState.RUNNING

    def _complete_run(
        self, run: Run, new_decision: decision.PlanDecision, writer: StateWriter
    ) -> tuple[Run, tuple[StateRecord | Tombstone, ...]]:
        further_records: list[StateRecord | Tombstone] = [make_checkpoint(run.id, "begin", new_decision.scope)]
        state = writer.state
        previous_run, pending_fence = state.active_run(run.plan.mirror), state.pending_fences.get(run.plan.mirror)
        left_closed = (
            pending_fence is not None and pending_fence.action is FenceAction.LIFT and pending_fence.by_command
        )
        if left_closed or (
            previous_run is not None and has_closed_source(state, previous_run)
        ):  # this run's abort must open it
            further_records.append(make_checkpoint(run.id, "begin", ClusterClosed(cluster=self.link.source.name)))
        if previous_run is None:
            return run, tuple(further_records)
        further_records += [Tombstone(c) for c in state.checkpoints.values() if c.run == previous_run.id]
        note = f"its source died; run {run.id} goes on from where it was"
        previous_run = replace(previous_run, state=RunState.SUPERSEDED, ended_ms=run.started_ms, note=note)
        further_records += [previous_run, make_end_entry(writer, previous_run)]
        return replace(run, continues=previous_run.id, desired=previous_run.desired), tuple(further_records)

    def _act(self, writer: StateWriter, journal: Journal, name: str) -> Callable[[], StepEvidence]:
        link = replace(self.link, mirror=writer.state.mirrors[self.link.mirror.name])
        mode = journal.run.plan.mode
        steps = (PlannedSteps if mode is RunMode.PLANNED else UnplannedSteps)(
            link, self.services, writer, journal, self._print_line
        )
        if isinstance(steps, PlannedSteps) and name == list_standstill_steps(self.KIND)[0]:
            remaining = steps.compare_before_fence(self._gate_limit_s)
            if remaining is not None:
                self._print_line(f"left to compare behind the fence: {remaining}")
        return steps.get_action(name)

    def _finish(self, writer: StateWriter, journal: Journal) -> Run:
        if journal.run.ended_ms is None:
            self._release_lease(writer, journal.run_id)
        return journal.end(RunState.DONE, keep_kinds=list_retained_checkpoints(journal.run))

    def _format_no_way_back(self) -> str:
        return (
            f"applications may have written on {self.link.destination.name}; only a failback leads back. Resume the "
            f"run, then `mirrorbook failback plan {self.link.mirror.name}`"
        )

    def _format_next_after_end(self) -> str:
        return f"only a failback leads back: `mirrorbook failback plan {self.link.mirror.name}`"

    def _abort(self, writer: StateWriter, journal: Journal) -> Run:
        """A silent source gets a pending lift."""
        run, mirror = journal.run, self.link.mirror
        was_fenced = has_disturbed_applications(writer.state, run, mirror.source)
        note = lift_fence_or_record(self.link, writer, run)
        with ClusterClient(self.link.destination) as destination:
            lift_all_denials(mirror, writer, destination)
        writer.put(*self._list_restored_records(writer.state, run))
        self._release_lease(writer, run.id)
        undone = "the fence is lifted" if was_fenced else f"writes on {mirror.source} were never stopped"
        self._print_line(f"aborted: {note or undone}; copying goes on")
        return journal.end(RunState.ABORTED, note)

    def _list_restored_records(self, state: State, run: Run) -> list[StateRecord]:
        name = self.link.mirror.name
        restart_events = (
            (PartitionEvent.ALIGNED, PartitionEvent.PAUSE, PartitionEvent.NO_WRITERS)
            if run.desired is DesiredState.PAUSED
            else (PartitionEvent.ALIGNED,)
        )
        records: list[StateRecord] = [replace(state.mirrors[name], desired=run.desired)]
        for status in state.partitions.get(name, {}).values():
            if status.state in (PartitionState.STOPPED, PartitionState.STOPPING):
                restored_state = apply_events(
                    status.state, PartitionEvent.ABORT, *((PartitionEvent.FAIL,) if status.reason else restart_events)
                )
                records.append(
                    PartitionRecord(name, replace(status, state=restored_state, lmo=None, deleted_until=None))
                )
        return records

    def _release_lease(self, writer: StateWriter, run_id: str) -> None:
        # Refresh: a step took the lease with the data plane's transactional id.
        name = self.link.mirror.name
        if _find_own_lease(writer.refresh().leases.get(name), run_id) is None:
            return
        # With the data plane's id: fences another conductor that may still drain.
        with StateWriter(self.link.destination, make_data_id(name)) as data:
            lease = _find_own_lease(data.state.leases.get(name), run_id)
            if lease is not None:
                ahead_ms = measure_clock_ahead_ms(self.link.destination, timeout_s=CLOCK_TIMEOUT_S)
                end_s = read_steady_s() + (find_writers_left_ms(data.state, name, ahead_ms) or 0) / 1000
                data.put(replace(date_lease(lease, end_s), released=True))


def list_refused_losses(state: State, run: Run) -> tuple[str, ...]:
    """Steps that stopped the run for records that only a person can leave behind, with reported log ends. To be
    compared, not shown.
    """
    logs = load_checkpoint(state, run.id, "settle", UnderReplicatedLogs)
    returned = load_checkpoint(state, run.id, "promote", SourceReturned)
    return (
        *([f"settle {to_canonical_json((logs.ends, logs.high_watermarks))}"] if logs else []),
        *([f"promote {to_canonical_json(returned.log_ends)}"] if returned else []),
    )


def format_refused_losses(state: State, run: Run) -> tuple[str, ...]:
    """The records behind `list_refused_losses`, for the person who is asked."""
    name, lines = run.plan.mirror, list[str]()
    mirror, statuses = state.mirrors[name], state.partitions.get(name, {})
    logs = load_checkpoint(state, run.id, "settle", UnderReplicatedLogs)
    if logs is not None:
        high_watermarks = logs.high_watermarks.to_mapping()
        partitions = [f"{p} [{high_watermarks.get(p, 0)}, {end})" for p, end in logs.ends.to_mapping().items()]
        lines.append(str(Finding("under_replicated_left_behind", mirror.destination, partitions=partitions)))
    returned, pending_fence = load_checkpoint(state, run.id, "promote", SourceReturned), state.pending_fences.get(name)
    if returned is not None and pending_fence is not None:
        reported = replace(pending_fence, log_ends=returned.log_ends, applied_at_ms=pending_fence.applied_at_ms or 0)
        records = explain_uncopied_records(mirror, reported, statuses, state.find_observation(name))
        lines += [*records.known, *records.unknown]
    return tuple(lines)


def has_disturbed_applications(state: State, run: Run, source: ClusterName) -> bool:
    if run.plan.mode is RunMode.UNPLANNED:
        return is_past_no_return(state, run)
    fence, pending_fence = (
        state.steps.get((run.id, list_standstill_steps(RunKind.FAILOVER)[0])),
        state.pending_fences.get(run.plan.mirror),
    )
    if fence is not None and fence.state is StepState.DONE:
        return True
    # An earlier run's pending lift is no fence of this run, whose first act is to delete it.
    is_earlier_lift = pending_fence is not None and pending_fence.action is FenceAction.LIFT
    own_denials = (
        e for e in state.ledger_entries(run.plan.mirror) if e.purpose is AclPurpose.FENCE and e.cluster == source
    )
    return not is_earlier_lift and (any(own_denials) or has_closed_source(state, run))


def _find_own_lease(lease: Lease | None, run_id: str) -> Lease | None:
    return lease if lease is not None and lease.owner == format_lease_owner(run_id) and not lease.released else None


def is_drained_behind_fence(state: State, run: Run) -> bool:
    """Everything on a fenced source was copied. Without a real fence it may have moved since."""
    if any(fact.name == LEFT_BEHIND_FACT for fact in run.plan.bound_facts):
        return False
    fenced = any(
        PlanFact(AUTHORIZER_FACT, barred) in run.plan.bound_facts for barred in (str(True), WriteBarrier.COMMAND)
    )
    return fenced and (run.id, "drain", DrainResult.__name__) in state.checkpoints
