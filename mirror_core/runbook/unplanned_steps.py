"""Steps of an unplanned failover: the source is presumed dead."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from mirror_core.copy.log_inspection import find_foreign_writes
from mirror_core.decide.clock_skew import compute_observer_ahead_ms, compute_writer_ahead_ms, to_broker_clock_ms
from mirror_core.decide.consistency_groups import find_consistency_groups, list_group_completeness
from mirror_core.decide.deletion_hold import EarlyDeletion, find_early_deletions, format_early_deletions
from mirror_core.decide.forecast_accuracy import (
    LossCount,
    compute_last_losses,
    count_lost_unplanned,
    count_taken_since,
    find_not_copied,
)
from mirror_core.decide.loss_bound import (
    compute_loss,
    find_agreed_ends,
    find_lowest_ends,
    find_uncopied,
    list_transaction_figures,
    list_uncopied_figures,
)
from mirror_core.decide.mirror_change import apply_current_filters, list_leaving_topics
from mirror_core.decide.mirror_snapshot import format_foreign_starts, join_limited
from mirror_core.decide.quiescence_check import format_unreplicated_remedies, has_confirmed_all
from mirror_core.decide.set_schedule import find_next_mirror, parse_set_name
from mirror_core.decide.source_probe import format_ways_on_unfenced, needs_confirmation
from mirror_core.decide.verification import summarize_compared
from mirror_core.evidence import receipt_index
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.cluster_info import measure_clock_ahead_ms
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets
from mirror_core.mirrors.departures import drop_leaving_topics
from mirror_core.mirrors.incremental_verification import add_differences, read_basis
from mirror_core.model.config_sections import AuthorizerKind
from mirror_core.model.errors import MirrorError, Refused
from mirror_core.model.figures import FigureKey
from mirror_core.model.mirror import TopicAccess
from mirror_core.model.names import NO_OFFSETS, Offset, Partition, PartitionOffsets
from mirror_core.model.parity_verdict import ParityResult
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import StepEvidence
from mirror_core.model.source_observation import SourceObservation
from mirror_core.model.timing import CLOCK_TIMEOUT_S, now_ms, read_steady_s
from mirror_core.runbook.certification import certify_destination
from mirror_core.runbook.drain import format_left_behind
from mirror_core.runbook.fence_actions import LiftFile
from mirror_core.runbook.fence_recheck import (
    PromotionProbe,
    apply_fence,
    probe_source,
    reapply_fence,
    refuse_if_lifted,
    refuse_uncopied_records,
)
from mirror_core.runbook.promotion_steps import PromotionSteps, count_actions
from mirror_core.runbook.quiescence import QUIESCENCE_LIMIT_S, wait_for_quiescence
from mirror_core.runbook.run_services import retry_on_lease_loss
from mirror_core.runbook.step_records import (
    ComparedBeforeLoss,
    GroupResumeOffsets,
    LeftBehindPartition,
    SettleResult,
    UnderReplicatedLogs,
    read_output,
)
from mirror_core.state.journal import make_checkpoint
from mirror_core.state.point_of_no_return import SourceReturned, is_past_no_return
from mirror_core.state.state_records import PartitionRecord, StateRecord, Tombstone
from mirror_core.sync.failover_offsets import clamp_groups, to_resume_offsets
from mirror_core.sync.fence_acls import build_denials, to_fence_entries
from mirror_core.sync.offset_commits import deny_offset_commits
from mirror_core.sync.promotion_acls import fence_old_tasks

MAX_LISTED_BROKERS: Final = 20
UNDELAYED_PROMOTION_S: Final = 60.0
"""From the fence on, of an undisturbed run."""
CONFIRMATION_VALID_S: Final = 300.0
"""For a source that cannot be fenced."""


class UnplannedSteps(PromotionSteps):
    __slots__ = ()

    def settle(self) -> StepEvidence:
        """No mirror task writes; logs are stable and on all in-sync replicas.

        Copying appends whole batches only, so logs are whole wherever it stopped. A half-filled gap ends where filling
        ended.
        """
        return retry_on_lease_loss(self, "settle", self._settle)

    def _settle(self) -> StepEvidence:
        started_s = time.monotonic()
        with self.hold_lease("settle") as lease:
            state = self.writer.refresh()
        leaving_topics = list_leaving_topics(state.mirrors[self.link.mirror.name], self.statuses())
        with ClusterClient(self.link.destination) as destination:
            closed_topics = sorted({*self.scope.topic_names, *leaving_topics})
            fenced_tasks = fence_old_tasks(self.link, self.writer, destination, closed_topics)
            if not fenced_tasks.is_certain:
                # Fencing is uncertain: wait until tasks stop by their own clock.
                time.sleep(max(0.0, lease.old_writers_end_s - read_steady_s()))
            if leaving_topics:  # whatever a later step lists is moved by this run
                leaving = [p for p in self.statuses() if p.topic in leaving_topics]
                ends = list_known_offsets(destination, leaving, OffsetPoint.LOG_END)
                drop_leaving_topics(self.link, self.writer, leaving_topics, ends)
            late_commits = deny_offset_commits(self.link.mirror, self.writer, destination)
            settle_result = self._wait_for_stable_logs(destination)
            positions = settle_result.positions.to_mapping()
            writes = find_foreign_writes(
                destination, state.mirrors[self.link.mirror.name], self.statuses(), self._read_observation(), positions
            )
            foreign_starts = find_lowest_ends(writes)
            doubtful_ends = {p: positions[p] for p in writes.keys() - foreign_starts.keys()}
            log_starts = list_known_offsets(destination, self.statuses(), OffsetPoint.START)
        early_deletions = find_early_deletions(self.statuses().values(), log_starts)
        settle_result = replace(
            settle_result,
            foreign_starts=PartitionOffsets.from_mapping(foreign_starts),
            doubtful_ends=PartitionOffsets.from_mapping(doubtful_ends),
            log_starts=PartitionOffsets.from_mapping({p: deletion.next for p, deletion in early_deletions.items()}),
        )
        left_behind = settle_result.left_behind()
        offline_partitions = sorted(set(self.scope.drained) - positions.keys() - left_behind.keys())
        self.journal.save_checkpoint("settle", settle_result)
        return {
            "partitions": len(positions),
            "without_leader": join_limited(offline_partitions) or "none",
            **format_left_behind(tuple(left_behind.values())),
            "copiers": "denied to write" if fenced_tasks.is_certain else "outwaited",
            **({"copiers_in_doubt": str(fenced_tasks.uncertainty)} if fenced_tasks.uncertainty else {}),
            "late_commits": late_commits,
            **({"written_by_others": format_foreign_starts(foreign_starts)} if foreign_starts else {}),
            **({"deleted_early": format_early_deletions(early_deletions)} if early_deletions else {}),
            **({"writers_unknown": join_limited(sorted(doubtful_ends))} if doubtful_ends else {}),
            **({"left_the_mirror": self._format_left_topics()} if self._list_left_topics() else {}),
            "settled_ms": round((time.monotonic() - started_s) * 1000),
        }

    def _list_left_topics(self) -> list[str]:
        departures = self.writer.state.departures.get(self.link.mirror.name, {}).values()
        return sorted(d.topic for d in departures if d.access is TopicAccess.CLOSED or not d.is_done)

    def _format_left_topics(self) -> str:
        mirror = self.link.mirror.name
        return (
            f"{join_limited(self._list_left_topics())}: not promoted, and closed; `mirrorbook mirror change {mirror}`"
            " finishes what is not finished, and `--release` gives applications what is closed"
        )

    def stand(self) -> StepEvidence:
        """Record the pending fence first, then apply it if the source answers now."""
        refuse_if_lifted(self)  # a rewritten file would hide it
        topic_names, cluster = self.scope.topic_names, self.link.source.name
        pending_fence = PendingFence(
            mirror=self.link.mirror.name,
            cluster=cluster,
            action=FenceAction.APPLY,
            run=self.journal.run_id,
            since_ms=self.writer.now_ms(),
        )
        authorizer_config, lift_file = self.link.source.ruling, LiftFile(self, needed=False)
        # A watcher may close the source, and the destination die afterwards.
        if has_kafka_acls := authorizer_config.authorizer is AuthorizerKind.KAFKA:
            lift_file(tuple(build_denials(topic_names)))
        elif authorizer_config.fence_command is not None:
            lift_file.write_for_command(topic_names)
        self.writer.put(
            pending_fence,
            *(to_fence_entries(self.link.mirror, cluster, build_denials(topic_names)) if has_kafka_acls else ()),
        )
        evidence = apply_fence(self, pending_fence, topic_names, self.scope.promoted, lift_file)
        if self._pending_fence.applied_at_ms is not None and self._needs_confirmation(
            held_up=self._was_settle_delayed()
        ):
            self.journal.save_checkpoint("promote", SourceReturned())
        return evidence

    def ensure_fenced(self) -> StepEvidence:
        """A fence applied only now, before any grant, needs the same confirmation."""
        can_abort = not is_past_no_return(self.writer.state, self.journal.run)
        is_new = (
            self._pending_fence.applied_at_ms is None
            and self.journal.load_checkpoint("promote", SourceReturned) is None
        )
        if can_abort and is_new and self._needs_confirmation(held_up=False):
            self.journal.save_checkpoint("promote", SourceReturned())
        evidence = reapply_fence(self, self.scope.topic_names, self.scope.promoted)
        if can_abort:
            self._forget_unreported_return()
            refuse_uncopied_records(self, PromotionProbe())
        return evidence

    def record_lmo(self) -> StepEvidence:
        evidence = super().record_lmo()
        with ClusterClient(self.link.destination) as destination:
            verification = read_basis(self.link, self.writer.state, destination)
        ends = {p: s.lmo for p, s in self.statuses().items() if s.lmo is not None}
        self.journal.save_checkpoint(
            "record_lmo",
            ComparedBeforeLoss(
                ends=PartitionOffsets.from_mapping({p: Offset(item.end) for p, item in verification.valid.items()})
            ),
        )
        state, name = self.writer.state, self.link.mirror.name
        groups = self.link.config.consistency_groups(name)
        observation, statuses = self._read_observation(), self.statuses()
        foreign_starts, early_deletions = find_lowest_ends(self.foreign_starts), self._early_deletions
        cut_copies = (replace(statuses[p], deleted_until=deletion.next) for p, deletion in early_deletions.items())
        self.writer.put(*(PartitionRecord(name, status) for status in cut_copies))
        ahead_ms = measure_clock_ahead_ms(self.link.destination, timeout_s=CLOCK_TIMEOUT_S)
        observed = observation.at_ms if observation else None, state.find_append_time_ms(observation)
        observer_now_ms = to_broker_clock_ms(now_ms(), ahead_ms) + compute_writer_ahead_ms(*observed)
        return {
            **evidence,
            **dict(
                list_uncopied_figures(
                    compute_loss(
                        statuses,
                        observation,
                        ends,
                        (),
                        now_ms=observer_now_ms,
                        foreign_starts=foreign_starts,
                        early_deletions=early_deletions,
                    )
                )
            ),
            **dict(
                list_group_completeness(
                    find_consistency_groups(
                        groups,
                        statuses,
                        observation,
                        ends,
                        find_uncopied(
                            statuses, observation, foreign_starts=foreign_starts, early_deletions=early_deletions
                        ),
                    ),
                    compute_observer_ahead_ms(*observed),
                )
            ),
            **dict(
                list_transaction_figures(statuses, observation, ends, observer_now_ms)
                if FigureKey.CUT_TRANSACTIONS in self.journal.run.plan.figures
                else ()
            ),
            **summarize_compared(verification, ends),
            "receipts": receipt_index.format_receipts(state.receipts.get(name, {})),
        }

    def certify(self) -> StepEvidence:
        folder, run = self.services.run_dir(self.journal.run_id), self.journal.run
        mirror_set = self.link.config.sets.get(parse_set_name(run.set_run))
        waiting_mirror = None if mirror_set is None else find_next_mirror(run.plan.mirror, mirror_set)

        def record_differences(result: ParityResult) -> None:
            state, name = self.writer.state, self.link.mirror.name
            self.writer.put(add_differences(state, name, result, self.writer.now_ms()))

        return certify_destination(
            self.link,
            self.writer.state,
            self.services.open_receipts,
            folder,
            self.print_line,
            record_differences=record_differences,
            waiting_mirror=waiting_mirror,
        )

    def final_offsets(self) -> StepEvidence:
        observation = self._read_observation()
        reported_ends = dict(observation.get_reported_ends()) if observation else {}
        rows = clamp_groups(
            self.link,
            self.scope.topic_names,
            {p: left_partition.high_watermark for p, left_partition in self.left_behind.items()},
            self.writer.state.group_offsets.get(self.link.mirror.name, {}).values(),
            find_lowest_ends(find_agreed_ends(self.statuses(), observation), self.foreign_starts),
            {p: Offset(reported_ends.get(p, 0)) for p, start in self.foreign_starts.items() if start is None},
        )
        self.journal.save_checkpoint("promote", GroupResumeOffsets.from_groups(to_resume_offsets(rows)))
        return {**count_actions(rows), **self.format_groups_left(rows)}

    @property
    def positions(self) -> dict[Partition, Offset]:
        return read_output(self.journal, "settle", SettleResult).positions.to_mapping()

    @property
    def left_behind(self) -> dict[Partition, LeftBehindPartition]:
        return read_output(self.journal, "settle", SettleResult).left_behind()

    @property
    def foreign_starts(self) -> dict[Partition, Offset | None]:
        settle_result = read_output(self.journal, "settle", SettleResult)
        return {**dict.fromkeys(settle_result.doubtful_ends.to_mapping()), **settle_result.foreign_starts.to_mapping()}

    @property
    def _early_deletions(self) -> dict[Partition, EarlyDeletion]:
        log_starts = read_output(self.journal, "settle", SettleResult).log_starts.to_mapping()
        return find_early_deletions(self.statuses().values(), log_starts)

    def _read_observation(self) -> SourceObservation | None:
        state, name = self.writer.state, self.link.mirror.name
        return apply_current_filters(state.mirrors[name], self.statuses(), state.find_observation(name))

    def list_fence_records(self) -> Iterator[StateRecord]:
        yield from ()

    def count_lost(self) -> LossCount:
        state, name, statuses = self.writer.state, self.link.mirror.name, self.statuses()
        observation, fence = state.find_observation(name), self._pending_fence
        losses = compute_last_losses(state.mirrors[name], statuses, observation, fence)
        lost = count_lost_unplanned(fence, statuses, losses)
        if not (left_behind := self.left_behind):
            return lost
        some = f"of {join_limited(left_behind)} some may be on {self.link.destination.name} all the same"
        return lost._replace(basis=f"{lost.basis}; {some}: left behind by settle")

    def count_taken_since(self) -> int:
        late_ranges, _ = find_not_copied(self._pending_fence, self.statuses())
        return count_taken_since(self._pending_fence, late_ranges)

    def check_before_promotion(self) -> PromotionProbe:
        """Refused if the approval no longer holds, or an applied fence was lifted.

        A silent source, or one that cannot be fenced, delays nobody, unless a promotion is resumed, perhaps days later.
        A source that answers after it was given up, or had time to accept writes, is fenced first. Its uncopied records
        are left behind only after confirmation; so is such a source that cannot be fenced.
        """
        self.check_approval("promotion", source_needed=False)
        topic_names, source_name, run_id = self.scope.topic_names, self.link.source.name, self.journal.run_id
        is_fenced = self._pending_fence.applied_at_ms is not None
        has_visible_denials = is_fenced and not self._pending_fence.by_command  # no broker shows a command's fence
        probe = probe_source(self.link, build_denials(topic_names) if has_visible_denials else (), self.scope.promoted)
        self._refuse_lifted(probe)
        held_up = self.journal.is_begun("promote") or self._was_held_up()
        silent = self.journal.run.source_silent
        if needs_confirmation(
            has_answered=probe.has_answered, fence_held=is_fenced, was_silent=silent, was_stalled=held_up
        ):
            returned = self.journal.load_checkpoint("promote", SourceReturned)
            was_reported = returned is not None and (
                is_fenced or (returned.log_ends == NO_OFFSETS and not self._is_confirmation_expired(returned))
            )
            if returned is None or not was_reported:  # outdated
                returned = SourceReturned()
                self.journal.save_checkpoint("promote", returned)
            evidence = {} if is_fenced else reapply_fence(self, topic_names, self.scope.promoted)
            if self._pending_fence.applied_at_ms is None and held_up and not returned.loss_confirmed:
                self.journal.save_checkpoint("promote", replace(returned, fence_failure_reported=True))
                reason = str(evidence.get("source", self._pending_fence.trouble))
                raise Refused(
                    f"run {run_id}: promotion",
                    [format_ways_on_unfenced(self.link.mirror.name, source_name, reason)],
                    reason_code="source_unfenced",
                )
            if not held_up:
                self._forget_unreported_return()
            if not is_fenced:  # fencing took time
                probe = probe_source(self.link, (), self.scope.promoted)
        refuse_uncopied_records(self, probe)
        return probe

    def _refuse_lifted(self, probe: PromotionProbe) -> None:
        name, run = self.link.source.name, self.journal.run_id
        if probe.unfenced_brokers:
            raise Refused(
                f"run {run}: promotion, since somebody has lifted the fence on {name}, where applications may write "
                "again; abort this run, and plan again",
                probe.unfenced_brokers[:MAX_LISTED_BROKERS],
                reason_code="fence_removed",
            )
        if self._pending_fence.applied_at_ms is not None and self._pending_fence.by_command:
            refuse_if_lifted(self)
            ends = self._pending_fence.log_ends.to_mapping()
            if accepted := [
                f"{p} from {ends[p]} to {end}" for p, end in probe.log_ends.items() if end > ends.get(p, end)
            ]:
                raise Refused(
                    f"run {run}: promotion, since {name} has taken writes behind its fence_command; abort this run, "
                    "and plan again",
                    accepted[:MAX_LISTED_BROKERS],
                    reason_code="written_behind_fence",
                )

    def _is_confirmation_expired(self, returned: SourceReturned) -> bool:
        """For a writable source: nobody agreed to later writes."""
        return returned.loss_confirmed and (self.writer.now_ms() - returned.confirmed_ms) / 1000 > CONFIRMATION_VALID_S

    def _forget_unreported_return(self) -> None:
        returned = self.journal.load_checkpoint("promote", SourceReturned)
        if (
            returned is None
            or returned.loss_confirmed
            or returned.fence_failure_reported
            or self._pending_fence.applied_at_ms is not None
        ):
            return
        self.writer.put(Tombstone(make_checkpoint(self.journal.run_id, "promote", returned)))

    def _needs_confirmation(self, *, held_up: bool) -> bool:
        return needs_confirmation(
            has_answered=True, fence_held=False, was_silent=self.journal.run.source_silent, was_stalled=held_up
        )

    def _was_held_up(self) -> bool:
        stand_record = self.journal.record("stand")
        if stand_record is None:
            return False
        return (self.writer.now_ms() - (stand_record.ended_ms or 0)) / 1000 > UNDELAYED_PROMOTION_S

    def _was_settle_delayed(self) -> bool:
        settle = self.journal.record("settle")
        if settle is None or settle.attempt == 1:
            return False
        return ((settle.ended_ms or 0) - settle.first_attempt_ms) / 1000 > UNDELAYED_PROMOTION_S

    @property
    def _pending_fence(self) -> PendingFence:
        return self.writer.state.pending_fences[self.link.mirror.name]

    def _wait_for_stable_logs(self, client: ClusterClient) -> SettleResult:
        """Skips FAILED partitions, promoted as they are.

        Under-replicated ones are left behind only after confirmation.
        """
        confirmation = self.journal.load_checkpoint("settle", UnderReplicatedLogs)
        reported = confirmation.to_reported() if confirmation is not None and confirmation.left_behind else None
        quiescence, name, run = (
            wait_for_quiescence(client, self.scope.drained, reported),
            client.name,
            self.journal.run_id,
        )
        if quiescence.moving:
            moving_text = join_limited(
                [f"{p}: {log}" for p, log in (*quiescence.moving.items(), *quiescence.held_up.items())]
            )
            raise MirrorError(
                f"cluster {name} has log ends that still move after {QUIESCENCE_LIMIT_S:.0f} s: {moving_text}. A"
                " replica may be away that is still counted as in sync, or somebody else writes: fix it and resume"
                " the run"
            )
        if quiescence.held_up and (reported is None or not has_confirmed_all(quiescence.held_up, reported)):
            # A confirmation covers only what was reported.
            self.journal.save_checkpoint("settle", UnderReplicatedLogs.from_held_up(quiescence.held_up))
            listed = [f"{p}: {log}" for p, log in quiescence.held_up.items()]
            # Name all of them: a confirmation covers only these.
            unlisted = [str(p) for p in list(quiescence.held_up)[MAX_LISTED_BROKERS:]]
            unlisted_lines = [f"and {len(unlisted)} more partitions: {', '.join(unlisted)}"] if unlisted else []
            remedies = format_unreplicated_remedies(
                name, self.link.destination.control["bootstrap.servers"], self.link.mirror.name, quiescence.held_up
            )
            raise Refused(
                f"run {run}: too few replicas on {name} are in sync",
                [*listed[:MAX_LISTED_BROKERS], *unlisted_lines, *remedies],
                reason_code="replicas_too_few",
            )
        return SettleResult(
            positions=PartitionOffsets.from_mapping(quiescence.ends),
            left_partitions=tuple(
                LeftBehindPartition(topic=p.topic, index=p.index, end=log.end, high_watermark=log.high_watermark)
                for p, log in quiescence.held_up.items()
            ),
        )
