"""Builds the task's report: receipts of what was acknowledged, failures, and why partitions wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.states import CopyState
from mirror_core.copy.words import format_retriable
from mirror_core.decide.crowded import round_filled
from mirror_core.decide.gaps import count_filled
from mirror_core.kafka.tiered import REMOTE_STORAGE_HINT
from mirror_core.model.clock import now_ms
from mirror_core.model.copying import AlignedPartition, Assignment, Receipt, TaskReport
from mirror_core.model.names import Offset


def build_report(
    assignment: Assignment,
    replicators: Sequence[PartitionReplicator],
    last_error: str,
    started_s: float,
    cpu_s: float,
    explain_wait: Callable[[int], str],
    interrupted_comparisons: int = 0,
) -> TaskReport:
    receipts = [
        Receipt(
            mirror=assignment.mirror,
            partition=replicator.partition,
            epoch=assignment.epoch,
            task=assignment.task,
            first=Offset(replicator.counts.first),
            next=Offset(replicator.progress.acknowledged),
            records=replicator.records,
            gaps=replicator.counts.gaps,
            batches=replicator.counts.batches,
            bytes=replicator.counts.bytes,
            pieces=replicator.counts.pieces,
            source_topic_id=replicator.assigned.source_topic_id,
            destination_topic_id=replicator.assigned.destination_topic_id,
            source_end=None if replicator.source.end is None else Offset(replicator.source.end),
            started_ms=int(started_s * 1000),
            ended_ms=now_ms(),
        )
        for replicator in replicators
        if replicator.counts.first is not None
    ]
    return TaskReport(
        receipts=tuple(receipts),
        failures=tuple(
            replicator.failure
            for replicator in replicators
            if replicator.failure and replicator.state is CopyState.FAILED
        ),
        cpu_s=cpu_s,
        aligned=tuple(
            _complete_aligned(replicator, replicator.aligned)
            for replicator in replicators
            if replicator.aligned is not None
        ),
        trimmed_ranges=tuple(
            trimmed
            for replicator in replicators
            for trimmed in replicator.trims.to_trimmed_ranges(replicator.partition)
        ),
        retry_reason=_format_retry_reason(assignment.source, replicators, last_error, explain_wait),
        interrupted_comparisons=interrupted_comparisons,
        comparisons_unknown=started_s * 1000 >= assignment.stop_ms,
    )


def _complete_aligned(replicator: PartitionReplicator, aligned: AlignedPartition) -> AlignedPartition:
    start = replicator.trims.get_reached_start(replicator.progress.acknowledged)
    return replace(
        aligned,
        all_answered=replicator.all_answered,
        source_start=None if start is None else Offset(start),
        filled_gap_offsets=0
        if replicator.uses_hidden_records
        else round_filled(count_filled(replicator.progress.acknowledged, replicator.progress.acknowledged_sequence)),
    )


def _format_retry_reason(
    source: str, replicators: Sequence[PartitionReplicator], last_error: str, explain_wait: Callable[[int], str]
) -> str:
    lost = [replicator for replicator in replicators if replicator.state is CopyState.LOST]
    reasons = [replicator.lost_reason for replicator in lost if replicator.lost_reason]
    awaiting_remote = [replicator for replicator in replicators if is_awaiting_remote_storage(replicator)]
    reasons += [
        format_retriable(source, replicator.partition, replicator.progress.position, REMOTE_STORAGE_HINT)
        for replicator in awaiting_remote
    ]
    unanswered = [
        replicator
        for replicator in replicators
        if replicator.can_send and (replicator.progress.in_flight or replicator.has_sendable_batch)
    ]
    blocked = [replicator for replicator in unanswered if explain_wait(replicator.destination_broker)]
    reasons += [explain_wait(broker) for broker in sorted({replicator.destination_broker for replicator in blocked})]
    if not lost and not awaiting_remote and not blocked:
        return ""
    text, waiting_count = reasons[0] if reasons else last_error, len({*lost, *awaiting_remote, *blocked})
    return f"{text} ({waiting_count} partitions wait)" if text and waiting_count > 1 else text


def is_awaiting_remote_storage(replicator: PartitionReplicator) -> bool:
    return (
        replicator.can_send
        and replicator.source.empty_fetches > 0
        and replicator.source.is_remote(replicator.progress.position)
    )
