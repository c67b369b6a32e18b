from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from mirror_core.decide.clock_skew import compute_age_s
from mirror_core.decide.failover_scope import find_scope_changes
from mirror_core.decide.forecast_accuracy import (
    LossCount,
    add_left_behind,
    count_lost_planned,
    make_unseen_count,
)
from mirror_core.decide.mirror_snapshot import join_limited, select_healthy
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.mirrors.incremental_verification import add_differences, compare_unverified
from mirror_core.model.acl import AclPurpose
from mirror_core.model.errors import LostOwnership, MirrorError, Refused, RemoteFault
from mirror_core.model.figures import FigureKey, limit_names
from mirror_core.model.findings import Finding
from mirror_core.model.names import Offset, Partition, PartitionOffsets, select_application_partitions
from mirror_core.model.parity_verdict import ParityRange, ParityResult
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import StepEvidence
from mirror_core.model.sync_state import SyncCategory
from mirror_core.parity.check import OnParityProgress
from mirror_core.runbook.drain import (
    format_held,
    format_left_behind,
    make_uncompared_refusal,
    read_left_behind,
    readmit_led_partitions,
    record_deletions,
    report_drain_progress,
    verify_drained,
    wait_for_tasks_to_stop,
)
from mirror_core.runbook.fence_actions import LIFT_COMMAND_KEY, CommandFence, LiftFile
from mirror_core.runbook.fence_recheck import (
    PromotionProbe,
    close_again,
    count_lost_while_lifted,
    probe_source,
    probe_uncontradicted,
    reapply_fence,
    refuse_if_lifted,
    refuse_if_unfenced,
    refuse_in_doubt,
)
from mirror_core.runbook.parity_gate import (
    MAX_REMAINING_RATIO,
    MAX_ROUNDS,
    SPARK_MIN_OFFSETS,
    CompareRound,
    GateClosed,
    RemainingCompare,
    check_gate,
    estimate_remaining,
    refuse_above_limit,
    report_compare_progress,
)
from mirror_core.runbook.promotion_steps import PromotionSteps, count_actions
from mirror_core.runbook.run_services import ParityCheck, retry_on_lease_loss
from mirror_core.runbook.step_records import (
    DrainResult,
    FenceResult,
    GateResult,
    GroupResumeOffsets,
    LeftBehindPartition,
    ProveResult,
    read_output,
)
from mirror_core.state.journal import make_checkpoint
from mirror_core.state.state_records import StateRecord, Tombstone
from mirror_core.sync.acl_ledger import list_entries
from mirror_core.sync.failover_offsets import to_resume_offsets
from mirror_core.sync.fence_acls import apply_fence, build_denials, is_deniable_id
from mirror_core.sync.fence_command import ClusterClosed, has_closed_source
from mirror_core.sync.mirror_sync import sync_mirror
from mirror_core.sync.offset_commits import deny_offset_commits

MAX_LISTED_PARTITIONS: Final = 20
NOT_DENIED_REASON: Final = "a denial would deny every transactional id, or Mirrorbook's own, so it was only waited for"
DRAIN_LIMIT_S: Final = 3600.0
COMPARISON_MAX_AGE_S: Final = 60.0
"""After a longer wait even a few new records are compared before the fence, not left to the gate."""
MIN_MEASURED_OFFSETS: Final = 1_000
"""A shorter comparison is mostly its start, and says no rate."""


class PlannedSteps(PromotionSteps):
    __slots__ = ()

    def prove(self) -> StepEvidence:
        """Compare what is mirrored while applications write: keeps the write block short."""
        self._refuse_if_strayed()
        ranges = self._list_mirrored_ranges()
        if not ranges:
            self.journal.save_checkpoint("prove", ProveResult(ends=PartitionOffsets(), records=0))
            return {FigureKey.PARITY_VERDICT: "nothing_mirrored", "records": 0}
        first_round = self._compare_once(ranges, self.services.parity, "prove")
        rounds: list[CompareRound] = []
        try:
            rounds, remaining = self._compare_new_records(
                self._estimate_remaining(first_round.ends, first_round.per_second), "prove"
            )
            remaining_text = str(remaining)
        except RemoteFault as error:  # results are kept; estimated again before the fence
            remaining_text = f"not known: {error}"
        return {
            FigureKey.PARITY_VERDICT: first_round.verdict,
            "records": first_round.records + sum(compare_round.records for compare_round in rounds),
            "records_proved_before": first_round.records_before,
            "chunks": first_round.chunks + sum(compare_round.chunks for compare_round in rounds),
            "partitions": len(first_round.ends),
            "report": first_round.report,
            "rounds": 1 + len(rounds),
            "left_for_the_gate": remaining_text,
        }

    def compare_before_fence(self, limit_s: float | None) -> RemainingCompare | None:
        """Compare what was written since `prove`, while applications still write.

        A few records are left to the gate, unless `prove` ended more than `COMPARISON_MAX_AGE_S` ago. Refused if the
        gate would still exceed `limit_s`. None if a fence may already stand.
        """
        if self._may_be_fenced():
            return None
        self.services.prepare_gate(self.journal.run_id)  # not during the write block
        min_rounds = 1 if self._is_comparison_old() else 0
        while True:
            try:
                readmit_led_partitions(self, self.scope)
                proven = read_output(self.journal, "prove", ProveResult)
                remaining = self._estimate_remaining(proven.ends.to_mapping(), proven.offsets_per_s)
            except RemoteFault:
                self.check_approval("fence", source_needed=True)  # names the ways on
                raise
            is_above_limit = limit_s is not None and remaining.seconds > limit_s
            if not remaining.is_little or is_above_limit or (remaining.offsets and min_rounds):
                self.print_line("records written since prove are compared before the fence")
                _, remaining = self._compare_new_records(remaining, "close-in", min_rounds)
                min_rounds = 0
            if not readmit_led_partitions(self, self.scope):  # may have changed meanwhile
                break
        refuse_above_limit(remaining, limit_s, self.journal.run_id, self.link.mirror.name)
        return remaining

    def _is_comparison_old(self) -> bool:
        proof = self.journal.record("prove")
        if proof is None or proof.ended_ms is None:
            return True
        age_s = compute_age_s(self.writer.now_ms(), proof.ended_ms)
        return age_s is None or age_s > COMPARISON_MAX_AGE_S

    def _compare_new_records(
        self, remaining: RemainingCompare, folder: str, min_rounds: int = 0
    ) -> tuple[list[CompareRound], RemainingCompare]:
        rounds = list[CompareRound]()
        while (
            (len(rounds) < min_rounds or not remaining.is_little)
            and len(rounds) < MAX_ROUNDS
            and (ranges := self._list_mirrored_ranges())
        ):
            compare = self.services.parity if remaining.offsets > SPARK_MIN_OFFSETS else self.services.quick_parity
            rounds.append(self._compare_once(ranges, compare, f"{folder}-{len(rounds) + 2}"))
            previous, remaining = remaining, self._estimate_remaining(rounds[-1].ends, rounds[-1].per_second)
            if remaining.offsets > previous.offsets * MAX_REMAINING_RATIO:
                break
        return rounds, remaining

    def _estimate_remaining(self, proven: Mapping[Partition, Offset], per_second: float | None) -> RemainingCompare:
        return estimate_remaining(self.link, self.scope.drained, proven, per_second)

    def _list_mirrored_ranges(self) -> list[ParityRange]:
        with ClusterClient(self.link.destination) as destination:
            positions = list_offsets(destination, self.scope.drained, OffsetPoint.LOG_END)
        return [ParityRange(partition=p, start=Offset(0), end=end) for p, end in sorted(positions.items()) if end]

    def _compare_once(self, ranges: Sequence[ParityRange], compare: ParityCheck, folder_name: str) -> CompareRound:

        def compare_ranges(ranges_left: Sequence[ParityRange], so_far: OnParityProgress) -> ParityResult:
            folder, on_progress = (
                self.services.run_dir(self.journal.run_id) / folder_name,
                report_compare_progress(ranges_left, so_far, self.print_line),
            )
            return compare(
                self.link.mirror.source_identity,
                self.link.mirror.destination_identity,
                ranges_left,
                folder,
                on_progress,
            )

        # Compacted logs are compared whole in the first round only: else no round would be shorter.
        proven = self.journal.load_checkpoint("prove", ProveResult)
        result, proof, earlier_proof = compare_unverified(
            self.link,
            self.writer.state,
            ranges,
            compare_ranges,
            compare_all=False,
            save_proof=self.writer.put,
            now_ms=self.writer.now_ms,
            recent=proven.ends.to_mapping() if proven else (),
            lookbacks=(),
        )
        earlier = earlier_proof.count_verified_records(ranges)
        self.writer.put(proof)  # also when the gate fails
        try:
            verdict = check_gate(result, "the proof of what is mirrored so far", earlier_records=earlier)
        except GateClosed:
            self.writer.refresh()
            self._refuse_if_strayed()  # what differs has FAILED meanwhile: no resume ends otherwise
            raise
        offsets = sum(max(0, result.verified_ends[r.partition] - r.start) for r in earlier_proof.list_remaining(ranges))
        per_second = offsets / result.seconds if result.seconds else None
        earlier_rate = None if proven is None else proven.offsets_per_s
        is_measured = offsets >= MIN_MEASURED_OFFSETS
        self.journal.save_checkpoint(
            "prove",
            ProveResult(
                ends=PartitionOffsets.from_mapping(dict(result.verified_ends)),
                records=result.records + earlier,
                offsets_per_s=per_second if is_measured else earlier_rate,
            ),
        )
        return CompareRound(
            verdict=verdict,
            ends=result.verified_ends,
            records=result.records,
            records_before=earlier,
            chunks=result.chunks,
            report=result.report,
            per_second=per_second,
        )

    def _report_fence_wait(self, line: str) -> None:
        """LostOwnership if another process has taken the run meanwhile; a silent destination does not end the wait."""
        self.print_line(f"fence: {line}")
        if step_record := self.journal.record("fence"):
            try:
                self.writer.put(step_record)
            except LostOwnership:
                raise
            except MirrorError as error:
                self.print_line(f"fence: not known whether another run has taken this one's place: {error}")

    def fence(self) -> StepEvidence:
        self.writer.refresh()  # `prove` may have taken hours
        self.check_approval("fence", source_needed=True)
        if readmit_led_partitions(self, self.scope):  # shows a destination that is ahead
            self.check_approval("fence", source_needed=True)
            if not self._may_be_fenced():
                raise make_uncompared_refusal(self)
        self._refuse_if_strayed()
        pending_fence = self.writer.state.pending_fences.get(self.link.mirror.name)
        if pending_fence is not None:  # an earlier run's pending lift: ours from here on
            closing_records = (
                [make_checkpoint(self.journal.run_id, "fence", ClusterClosed(cluster=pending_fence.cluster))]
                if pending_fence.by_command
                else []
            )
            self.writer.put(*closing_records, Tombstone(pending_fence))
        with ClusterClient(self.link.source) as source:
            # A fence that stands already must not wait for the file.
            lift_file = LiftFile(self, needed=not self._may_be_fenced())
            while True:
                command_fence = CommandFence(self, "fence", lift_file)
                fence = apply_fence(
                    self.link,
                    self.writer,
                    source,
                    self.scope.topic_names,
                    self.scope.drained,
                    before_deny=lift_file,
                    close_cluster=command_fence,
                    report_wait=self._report_fence_wait,
                )
                if not readmit_led_partitions(self, self.scope):  # written until the fence stood
                    break
        ends = PartitionOffsets.from_mapping(fence.ends)
        self.journal.save_at_end("fence", FenceResult(ends=ends, authorizer=fence.authorizer, command=fence.command))
        not_denied = [id_ for id_ in fence.transactions if not is_deniable_id(id_)]
        return {
            "authorizer": fence.authorizer,
            **({"fence_command": "done"} if fence.command else {}),
            "denials": len(fence.denials),
            "shown_by_brokers": join_limited(fence.brokers),
            "transactions_waited_for": join_limited(fence.transactions),
            **({"not_denied": f"{join_limited(not_denied)}: {NOT_DENIED_REASON}"} if not_denied else {}),
            "still_s": fence.still_s,
            "partitions": len(fence.ends),
            **({LIFT_COMMAND_KEY: lift_file.text} if lift_file.text else {}),
        }

    def _may_be_fenced(self) -> bool:
        entries = list_entries(self.writer, self.link.mirror.name, self.link.source.name, AclPurpose.FENCE)
        return bool(entries) or has_closed_source(self.writer.state, self.journal.run)

    def drain(self) -> StepEvidence:
        """Fence the driver from the state topic, then copy up to the source's log ends."""
        refuse_if_unfenced(self)
        return retry_on_lease_loss(self, "drain", self._drain)

    def _drain(self) -> StepEvidence:
        with self.hold_lease("drain") as lease:
            # Read what the data plane recorded until now. From here on nobody else writes partition states.
            self.writer.refresh()
            self._refuse_if_strayed()
            partitions = self.scope.drained
            with ClusterClient(self.link.source) as source:
                ends = list_offsets(source, partitions, OffsetPoint.LOG_END)
            started_s = time.monotonic()
            # So may we: whoever gives up a hanging source must know until when we copy.
            on_deletions = partial(record_deletions, self.link, self.writer)
            before_round = report_drain_progress(self.link, ends, self.print_line, lease.renew)
            self.services.copy(self.link)(ends, DRAIN_LIMIT_S, before_round, on_deletions)
            left_partitions = wait_for_tasks_to_stop(
                self, lease.old_writers_end_s, select_healthy(self.statuses()).keys() & set(self.scope.left_behind)
            )
            lease.renew()
        with ClusterClient(self.link.destination) as destination:
            late_commits = deny_offset_commits(self.link.mirror, self.writer, destination)
        drained = verify_drained(self.link, ends, self.writer)
        left_behind = read_left_behind(self.link, left_partitions)
        self.journal.save_at_end(
            "drain",
            DrainResult(positions=PartitionOffsets.from_mapping(drained.positions), left_partitions=left_behind),
        )
        return {
            "partitions": len(drained.positions),
            **format_left_behind(left_behind),
            **format_held(drained.held),
            "copied_ms": round((time.monotonic() - started_s) * 1000),
            "late_commits": late_commits,
        }

    def final_sync(self) -> StepEvidence:
        """No new topics: only what was approved is fenced."""
        refuse_if_lifted(self)
        report = sync_mirror(
            self.link,
            self.writer,
            only=frozenset(SyncCategory) - {SyncCategory.TOPICS},
            run_id=self.journal.run_id,
        )
        self.journal.save_at_end("promote", GroupResumeOffsets.from_groups(to_resume_offsets(report.rows)))
        return {**count_actions(report.rows), **self.format_groups_left(report.rows)}

    def parity(self) -> StepEvidence:
        """The gate: records since `prove` are equal, and so are log ends."""
        proof = read_output(self.journal, "prove", ProveResult)
        proven = proof.ends.to_mapping()
        with ClusterClient(self.link.destination) as destination:
            ends = list_offsets(destination, self.scope.drained, OffsetPoint.LOG_END)
        ranges = [
            ParityRange(partition=p, start=min(proven.get(p, Offset(0)), end), end=end)
            for p, end in sorted(ends.items())
        ]
        result = self.services.compare_at_gate(
            self.link.mirror.source_identity, self.link.mirror.destination_identity, ranges, self.journal.run_id
        )
        if result.findings or result.damage_findings:  # also for an aborted run
            self.writer.put(add_differences(self.writer.state, self.link.mirror.name, result, self.writer.now_ms()))
        verdict = check_gate(result, "the parity gate", earlier_records=proof.records)
        self.journal.save_at_end("parity", GateResult(ends=PartitionOffsets.from_mapping(ends)))
        return {
            FigureKey.PARITY_VERDICT: verdict,
            "records_since_proof": result.records,
            "records_in_all": result.records + proof.records,
            "partitions": len(ends),
            **self._list_not_compared(),
            "report": result.report,
        }

    def _list_not_compared(self) -> StepEvidence:
        not_compared = set(self.scope.promoted) - set(self.scope.drained)
        heartbeats = not_compared - select_application_partitions(self.scope.promoted)
        return {
            FigureKey.NOT_COMPARED: limit_names(sorted(not_compared - heartbeats)),
            **({FigureKey.HEARTBEATS_NOT_COMPARED: limit_names(sorted(heartbeats))} if heartbeats else {}),
        }

    @property
    def positions(self) -> dict[Partition, Offset]:
        return read_output(self.journal, "drain", DrainResult).positions.to_mapping()

    @property
    def left_behind(self) -> dict[Partition, LeftBehindPartition]:
        return read_output(self.journal, "drain", DrainResult).left_behind()

    def list_fence_records(self) -> Iterator[StateRecord]:
        fence_result, fenced_ms = read_output(self.journal, "fence", FenceResult), self.writer.now_ms()
        yield PendingFence(
            mirror=self.link.mirror.name,
            cluster=self.link.source.name,
            action=FenceAction.APPLY,
            run=self.journal.run_id,
            since_ms=fenced_ms,
            applied_at_ms=fenced_ms if fence_result.is_fenced else None,
            log_ends=fence_result.ends,
            by_command=fence_result.command,
            trouble=None if fence_result.is_fenced else Finding("fence_not_confirmed", self.link.source.name),
        )

    def ensure_fenced(self) -> StepEvidence:
        is_fenced = read_output(self.journal, "fence", FenceResult).is_fenced
        return reapply_fence(self, self.scope.topic_names, self.scope.drained) if is_fenced else {}

    def count_lost(self) -> LossCount:
        """0 only if promotion saw the whole source; later looks can only add."""
        fence_result, source = read_output(self.journal, "fence", FenceResult), self.link.source.name
        counted = select_application_partitions(self.scope.promoted)
        left_partitions = counted & set(self.scope.left_behind)
        if lost_while_unfenced := count_lost_while_lifted(self, fence_result.is_fenced):
            return add_left_behind(lost_while_unfenced, left_partitions)
        gate = self.journal.record("parity")
        failed = counted - set(self.scope.drained) - left_partitions
        lost = count_lost_planned(gate.evidence if gate else {}, failed, left_partitions)
        check, uncounted = self.load_check(), lost.basis if lost.offsets is None else ""
        if not uncounted and (check is None or not check.source_confirmed):
            found = "promotion recorded nothing of it" if check is None else f"promotion found it {check.source_state}"
            lost = make_unseen_count(source, f"{found}, and nobody saw it fenced since")
        return lost if fence_result.authorizer else self._add_accepted(lost, uncounted, by_command=fence_result.command)

    def _add_accepted(self, lost: LossCount, uncounted: str, *, by_command: bool) -> LossCount:
        """Without ACLs, only log ends show writes after the drain."""
        positions, source = self.positions, self.link.source.name
        probe = probe_source(self.link, (), positions)
        is_complete = probe.is_complete and probe.log_ends.keys() >= positions.keys()
        applications = select_application_partitions(probe.log_ends)
        if accepted := sum(max(0, probe.log_ends[p] - positions[p]) for p in applications):
            counted = LossCount(
                accepted,
                f"by what {source} took {'behind its fence_command' if by_command else 'since it was drained'}",
            )
            counted = counted.add_uncounted(uncounted) if uncounted else counted
            return counted if is_complete else counted.add_uncounted(f"{source} was {probe.text}")
        return (
            lost
            if by_command or is_complete or lost.offsets is None
            else make_unseen_count(source, f"it was {probe.text}")
        )

    def check_before_promotion(self) -> PromotionProbe:
        """Refused if the approval no longer holds, or the source was written behind the fence.

        Log ends show a super user's writes, removed denials and a missing authorizer.
        """
        self.check_approval("promotion", source_needed=False)
        positions, topic_names = self.positions, self.scope.topic_names
        fence_result = read_output(self.journal, "fence", FenceResult)
        denials = tuple(build_denials(topic_names)) if fence_result.authorizer else ()
        probe, has_file = probe_uncontradicted(self, denials, positions)
        if fence_result.command and probe.has_answered and close_again(self, "fence", topic_names):
            probe, has_file = probe_uncontradicted(self, denials, positions)
        refuse_in_doubt(self, probe, is_fenced=fence_result.is_fenced, has_file=has_file)
        return probe

    def _refuse_if_strayed(self) -> None:
        reasons = tuple(find_scope_changes(self.scope, self.statuses()))
        if reasons:
            raise Refused(
                f"run {self.journal.run_id}: abort it and plan again",
                reasons[:MAX_LISTED_PARTITIONS],
                reason_code="scope_changed",
            )
