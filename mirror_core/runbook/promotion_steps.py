"""The steps that end every failover. Nothing here needs the source."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Final

from mirror_core.decide.failover_plan import list_bound_facts, list_changed_facts, list_new_reasons
from mirror_core.decide.failover_scope import FailoverScope
from mirror_core.decide.forecast_accuracy import LossCount
from mirror_core.decide.group_coverage import find_not_brought_over, format_all_deleted, format_all_refused
from mirror_core.decide.mirror_snapshot import SourceSnapshot, UnseenCluster, join_limited
from mirror_core.decide.steps import find_no_return_step
from mirror_core.evidence.run_report import write_run_report
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets, list_offsets
from mirror_core.model.errors import Indeterminate, MirrorError, Refused, Unreachable
from mirror_core.model.figures import FigureKey, limit_names
from mirror_core.model.mirror import DesiredState, Mirror, PartitionStatus
from mirror_core.model.mirror import PartitionState as State
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import RunKind, RunMode, StepEvidence, shorten_hash
from mirror_core.model.sync_state import DriftRow, SyncAction, SyncCategory
from mirror_core.model.timing import TIMEOUTS
from mirror_core.runbook import forecast_check
from mirror_core.runbook.canary_probe import run_canary
from mirror_core.runbook.fence_recheck import PROBE_EVIDENCE_KEY, PromotionProbe
from mirror_core.runbook.run_services import StepContext
from mirror_core.runbook.snapshot_reader import take_snapshot
from mirror_core.runbook.step_records import LeftBehindPartition, read_all_outputs, read_output
from mirror_core.runbook.switch import check_health, switch
from mirror_core.state.lease import RunLease, take_lease_for_run
from mirror_core.state.partition_transitions import PartitionEvent, apply_events
from mirror_core.state.point_of_no_return import PromotionCheck, is_past_no_return
from mirror_core.state.state_records import PartitionRecord, StateRecord
from mirror_core.sync.acl_sync import apply_promotion
from mirror_core.sync.fence_command import DestinationOpened, build_command_target
from mirror_core.sync.fence_command_runner import open_destination
from mirror_core.sync.quota_sync import promote_quotas

MAX_PROBES: Final = 3


class PromotionSteps(StepContext):
    __slots__ = ()

    @property
    def scope(self) -> FailoverScope:
        return read_output(self.journal, "begin", FailoverScope)

    def hold_lease(self, step: str) -> AbstractContextManager[RunLease]:
        step_record = self.journal.record(step)
        assert step_record is not None
        lease_owner = format_lease_owner(self.journal.run_id)
        return take_lease_for_run(self.link.destination, self.link.mirror.name, lease_owner, self.writer, step_record)

    @property
    @abstractmethod
    def positions(self) -> dict[Partition, Offset]:
        """Destination log ends (next offset) at which an earlier step saw partitions stable."""

    @property
    def left_behind(self) -> Mapping[Partition, LeftBehindPartition]:
        return {}

    @property
    def foreign_starts(self) -> Mapping[Partition, Offset | None]:
        """First offsets that somebody else wrote before the promotion. None: not known."""
        return {}

    @abstractmethod
    def count_lost(self) -> LossCount: ...

    def count_taken_since(self) -> int:
        """Offsets that the source took after it was given up, as far as known."""
        return 0

    def certify(self) -> StepEvidence:
        return {}

    @abstractmethod
    def check_before_promotion(self) -> PromotionProbe:
        """Refused if the source contradicts."""

    @abstractmethod
    def ensure_fenced(self) -> StepEvidence:
        """Apply a pending fence, or reapply a lifted one."""

    def get_action(self, name: str) -> Callable[[], StepEvidence]:
        """From promotion on, each step checks the fence first: a source that answers must not accept writes beside the
        destination.
        """
        action, steps, run = super().get_action(name), self.journal.steps, self.journal.run
        no_return_step = find_no_return_step(RunKind.FAILOVER, run.plan.mode)
        if steps.index(name) < steps.index(no_return_step):
            return action
        if name == no_return_step and not is_past_no_return(self.writer.state, run):
            return partial(self._promote_first_time, self._probe_before_promotion())

        def act_behind_fence() -> StepEvidence:
            fence_evidence = self.ensure_fenced()
            return {**action(), **fence_evidence}

        return act_behind_fence

    def _probe_before_promotion(self) -> PromotionProbe:
        probe = self.check_before_promotion()
        self._save_check(probe)
        return probe

    def _save_check(self, probe: PromotionProbe, *, rights_given: bool = False) -> None:
        check = PromotionCheck(source_state=probe.text, source_confirmed=probe.is_complete, rights_given=rights_given)
        self.journal.save_checkpoint("promote", check)

    def _promote_first_time(self, probe: PromotionProbe) -> StepEvidence:
        """A probe older than `TIMEOUTS.promotion_probe_max_age_s` proves nothing any more: it is repeated."""
        fence_evidence = self._fence_answering_source(probe)

        def before_grant() -> None:
            nonlocal probe, fence_evidence
            for _ in range(MAX_PROBES):
                if probe.began.age_s > TIMEOUTS.promotion_probe_max_age_s:
                    probe = self._probe_before_promotion()
                    fence_evidence = {**fence_evidence, **self._fence_answering_source(probe)}
                self._save_check(probe, rights_given=True)
                if probe.began.age_s <= TIMEOUTS.promotion_probe_max_age_s:
                    return
                self._save_check(probe)
            raise MirrorError(
                f"run {self.journal.run_id}: {MAX_PROBES} looks at {self.link.source.name} were older than"
                f" {TIMEOUTS.promotion_probe_max_age_s:.0f} s before the first right could be given: resume the run on"
                " a machine that does not sleep"
            )

        evidence = self._grant_rights(before_grant)
        return {**evidence, PROBE_EVIDENCE_KEY: probe.text, **fence_evidence}

    def _fence_answering_source(self, probe: PromotionProbe) -> StepEvidence:
        return {} if probe.is_fenced or not probe.has_answered else {**self.ensure_fenced()}

    @abstractmethod
    def list_fence_records(self) -> Iterator[StateRecord]: ...

    def check_approval(self, step_name: str, *, source_needed: bool) -> bool:
        """Refused if the approval no longer holds. Returns whether a planned run saw the source."""
        approved = self.journal.run.plan
        snapshot = take_snapshot(self.link, self.writer.state, approved.mode, offsets=False, fences=source_needed)
        snapshot = replace(snapshot, left_behind=frozenset(self.scope.left_behind))
        is_source_seen = approved.mode is RunMode.PLANNED and isinstance(snapshot.source, SourceSnapshot)
        reasons = list_changed_facts(approved.bound_facts, list_bound_facts(snapshot), source_seen=is_source_seen)
        if source_needed and not reasons and isinstance(snapshot.source, UnseenCluster):
            name = self.link.source.name
            raise Unreachable(
                f"run {self.journal.run_id}: {step_name}: {snapshot.source.reason}; resume the run when {name} answers."
                f" If it is lost: `mirrorbook failover run {self.link.mirror.name} --mode unplanned` goes on from here"
            )
        reasons += tuple(map(str, list_new_reasons(snapshot, source_seen=is_source_seen or source_needed)))
        if reasons:
            raise Refused(
                f"run {self.journal.run_id}: {step_name}, since the approved plan ({shorten_hash(approved.hash)}) is no"
                " longer valid; abort this run and plan again",
                reasons,
                reason_code="plan_outdated",
            )
        return is_source_seen

    def record_lmo(self) -> StepEvidence:
        """Stop all partitions atomically, with the destination's log end as LMO.

        An offline or deleted one gets no LMO; failback finds out what it holds. One left behind stops at its high
        watermark: its leader may lose what is beyond, and later writes there must not count as the source's. Nor must
        what somebody else has written before: it stops where that begins, and gets no LMO if that is not known.
        """
        statuses, positions, left_behind = self.statuses(), self.positions, self.left_behind
        with ClusterClient(self.link.destination) as destination:
            ends = list_offsets(destination, positions, OffsetPoint.LOG_END)
            moved = [
                f"{p} from {earlier_end} to {ends[p]}" for p, earlier_end in positions.items() if ends[p] != earlier_end
            ]
            grown = list_known_offsets(destination, left_behind, OffsetPoint.LOG_END)
            moved += [
                f"{p} from {left_behind[p].end} to {end}"
                for p, end in grown.items()
                if not (left_behind[p].high_watermark or 0) <= end <= left_behind[p].end
            ]
            if moved:
                raise MirrorError(
                    f"cluster {destination.name}: somebody has written mirror topics since they stood still: "
                    f"{join_limited(moved)}. Find out who may, abort the run, and plan again"
                )
            ends |= list_known_offsets(
                destination, statuses.keys() - positions.keys() - left_behind.keys(), OffsetPoint.LOG_END
            )
            ends |= {
                p: left_partition.high_watermark
                for p, left_partition in left_behind.items()
                if left_partition.high_watermark is not None
            }
        mirror = self.writer.state.mirrors[self.link.mirror.name]
        lmos = {p: end for p, end in {**ends, **self.foreign_starts}.items() if end is not None}
        self.writer.put(*list_stopped_records(mirror, statuses, lmos), *self.list_fence_records())
        unknown = sorted(p for p, s in self.statuses().items() if s.lmo is None)
        return {
            "partitions": len(statuses) - len(unknown),
            **({"without_offset": f"{len(unknown)}: {join_limited(unknown)}"} if unknown else {}),
        }

    def format_groups_left(self, rows: Collection[DriftRow]) -> StepEvidence:
        recorded_groups = self.writer.state.uncommitted_groups.get(self.link.mirror.name)
        committed_subjects = {
            row.subject for row in rows if row.part is SyncCategory.GROUPS and isinstance(row.offset, int)
        }
        uncommitted = (
            [
                u
                for u in recorded_groups.uncommitted
                if not u.has_reset_start or f"{u.group} {u.partition}" not in committed_subjects
            ]
            if recorded_groups
            else []
        )
        left_groups = find_not_brought_over(uncommitted, self.scope.topic_names)
        uncommitted_text, deleted_text = format_all_refused(uncommitted), format_all_deleted(uncommitted)
        return {
            **(
                {FigureKey.GROUPS_NOT_BROUGHT_OVER: limit_names(f"{g} ({why})" for g, why in left_groups.items())}
                if left_groups
                else {}
            ),
            **({"offsets_not_committed": uncommitted_text} if uncommitted_text else {}),
            **({"offsets_deleted_on_source": deleted_text} if deleted_text else {}),
        }

    def promote(self) -> StepEvidence:
        """When it is repeated, some applications may write already."""
        evidence, check = self._grant_rights(lambda: None), self.load_check()
        return evidence if check is None else {**evidence, PROBE_EVIDENCE_KEY: check.source_state}

    def load_check(self) -> PromotionCheck | None:
        try:
            return self.journal.load_checkpoint("promote", PromotionCheck)
        except Indeterminate:
            return None

    def _grant_rights(self, before_grant: Callable[[], None]) -> StepEvidence:
        is_unplanned = self.journal.run.plan.mode is RunMode.UNPLANNED
        rows = apply_promotion(
            self.link,
            self.writer,
            self.scope.topic_names,
            ask_source=not is_unplanned,
            before_change=before_grant,
            open_cluster=self._open_destination,
        )
        return count_actions((*rows, *promote_quotas(self.link, self.writer)))

    def _open_destination(self, topics: Collection[str]) -> bool:

        def record_opening() -> None:
            self.journal.save_checkpoint("promote", DestinationOpened(cluster=self.link.destination.name))

        closable_cluster = build_command_target(self.link, self.link.destination.name, self.journal.run_id, topics)
        return open_destination(self.link, closable_cluster, record_opening)

    def switch(self) -> StepEvidence:
        return switch(self.link, self.journal)

    def canary(self) -> StepEvidence:
        payload = f"run {self.journal.run_id}"
        evidence = run_canary(self.link.destination, self.link.mirror.name, payload, self.scope.topic_names)
        return {**evidence, **check_health(self.link, self.journal)}

    def report(self) -> StepEvidence:
        pending_fence = self.writer.state.pending_fences.get(self.link.mirror.name)
        ask_source = self.journal.run.plan.mode is RunMode.PLANNED or (
            pending_fence is not None and pending_fence.applied_at_ms is not None
        )
        outcome = forecast_check.count_outcome(
            self.link,
            self.journal,
            self.count_lost(),
            ask_source=ask_source,
            taken_since=self.count_taken_since(),
        )
        self.writer.put(replace(self.journal.run, forecast_outcome=outcome))
        steps = [r for r in (self.journal.record(name) for name in self.journal.steps) if r and r.step != "report"]
        folder, outputs = self.services.run_dir(self.journal.run_id), read_all_outputs(self.journal)
        run, sides = self.journal.run, (self.link.source.name, self.link.destination.name)
        proof, chronicle = self.certify(), self.writer.state.audit_lines(run.id)
        page = write_run_report(
            folder, run, steps, self.statuses(), outputs, sides=sides, chronicle=chronicle, proof=proof
        )
        return {"report": str(page), **forecast_check.format_outcome(outcome), **proof}


def format_lease_owner(run_id: str) -> str:
    return f"run:{run_id}"


def list_stopped_records(
    mirror: Mirror, statuses: Mapping[Partition, PartitionStatus], ends: Mapping[Partition, Offset]
) -> Iterator[StateRecord]:
    yield replace(mirror, desired=DesiredState.STOPPED, paused_topics=())
    for partition, status in statuses.items():
        if status.state is State.STOPPED:
            continue
        events = {State.UNKNOWN: (PartitionEvent.START, PartitionEvent.STOP), State.STOPPING: ()}.get(
            status.state, (PartitionEvent.STOP,)
        )
        state = apply_events(status.state, *events, PartitionEvent.LMO_RECORDED)
        yield PartitionRecord(mirror.name, replace(status, state=state, lmo=ends.get(partition)))


def count_actions(rows: tuple[DriftRow, ...] | list[DriftRow]) -> StepEvidence:
    counts = {f"{action}": sum(r.action is action for r in rows) for action in SyncAction}
    skipped = [f"{r.part} {r.subject}: {r.reason}" for r in rows if r.action in (SyncAction.SKIP, SyncAction.REFUSE)]
    return {**{k: v for k, v in counts.items() if v}, "not_done": join_limited(skipped) or "none"}
