"""What error codes of Fetch and Produce responses do to a partition."""

from __future__ import annotations

from typing import Final

from mirror_core.copy.messages import ClusterSide, format_denied, format_foreign, format_retriable, format_shifted
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.send_queue import SentBatch
from mirror_core.kafka.error_mapping import RETRIABLE_CODES, STALE_METADATA_CODES, ErrorCode, to_error_code
from mirror_core.kafka.produce_link import ProduceOutcome, classify_produce_error
from mirror_core.model.acl import Operation
from mirror_core.model.mirror import FailureKind
from mirror_core.wire.produce import ProducedPartition

_WRITTEN_BY_OTHERS: Final = frozenset(
    {ErrorCode.out_of_order_sequence_number.value, ErrorCode.duplicate_sequence_number.value}
)


def handle_fetch_error(replicator: PartitionReplicator, code: int, source: ClusterSide) -> None:
    error = to_error_code(code)
    partition, position = replicator.partition, replicator.progress.position
    subject = f"cluster {source.name}, {partition}, offset {position}"
    if error is ErrorCode.topic_authorization_failed:
        replicator.fail_after(format_denied(source, partition, Operation.READ), position, FailureKind.DENIED)
    elif error in RETRIABLE_CODES or error in (
        ErrorCode.offset_out_of_range,
        ErrorCode.offset_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.unknown_server_error,
    ):
        # Aligning finds the cause.
        replicator.mark_lost(
            f"{subject}: Fetch answered {error.name.upper()}", source.name if error in STALE_METADATA_CODES else None
        )
    else:
        replicator.fail_after(f"{subject}: Fetch answered {error.name.upper()}", position, FailureKind.REFUSED)


def handle_produce_response(
    replicator: PartitionReplicator, sent: SentBatch, produced: ProducedPartition, destination: ClusterSide
) -> bool:
    """True when seeded records must be deleted (`PartitionReplicator.acknowledge`)."""
    replicator.progress.remove_in_flight()
    is_appended = produced.error == 0
    if is_appended and produced.base_offset == sent.base_offset == replicator.progress.acknowledged:
        if produced.append_time == -1:
            return replicator.acknowledge(sent)
        _handle_duplicate(replicator, sent, destination)
        return False
    if is_appended and produced.base_offset != sent.base_offset:
        _handle_wrong_offset(replicator, sent, produced.base_offset, destination)
    elif replicator.can_send:
        _handle_produce_error(replicator, sent, produced, destination)
    return False


def _handle_duplicate(replicator: PartitionReplicator, sent: SentBatch, destination: ClusterSide) -> None:
    """A duplicate, perhaps of another batch, or a broker that sets its own record times: comparing both logs tells."""
    replicator.mark_doubtful(sent.base_offset)
    if replicator.can_send:
        text = "the broker says that it has this batch already"
        replicator.mark_lost(format_retriable(destination.name, replicator.partition, sent.base_offset, text))


def _handle_wrong_offset(
    replicator: PartitionReplicator, sent: SentBatch, appended_at: int, destination: ClusterSide
) -> None:
    partition, cluster = replicator.partition, destination.name
    if replicator.gap_claim.has_markers and appended_at > sent.base_offset and replicator.state is not CopyState.FAILED:
        # A foreign record, or a marker too many.
        if replicator.can_send:
            replicator.mark_lost(
                format_retriable(cluster, partition, sent.base_offset, f"a batch landed at {appended_at}")
            )
    elif replicator.can_send:
        # Others have appended from our expected offset on.
        expected = replicator.progress.acknowledged
        replicator.fail(format_foreign(cluster, partition, expected), expected, FailureKind.FOREIGN)
    elif replicator.state is not CopyState.DONE:
        replicator.fail_shifted(
            format_shifted(cluster, partition, sent.base_offset, appended_at), min(sent.base_offset, appended_at)
        )


def _handle_produce_error(
    replicator: PartitionReplicator, sent: SentBatch, produced: ProducedPartition, destination: ClusterSide
) -> None:
    partition = replicator.partition
    kind, remedy, name = classify_produce_error(produced.error)
    if kind is ProduceOutcome.APPENDED:
        expected = replicator.progress.acknowledged
        replicator.fail(format_foreign(destination.name, partition, expected), expected, FailureKind.FOREIGN)
    elif kind is ProduceOutcome.RECHECK_LOG_END:
        if produced.error in _WRITTEN_BY_OTHERS:
            replicator.mark_doubtful(replicator.progress.acknowledged)
        misleading = destination.name if to_error_code(produced.error) in STALE_METADATA_CODES else None
        replicator.mark_lost(format_retriable(destination.name, partition, sent.base_offset, name, remedy), misleading)
    elif kind is ProduceOutcome.DENIED:
        replicator.fail(format_denied(destination, partition, Operation.WRITE), sent.base_offset, FailureKind.DENIED)
    else:
        text = f"{name}: {produced.message}" if produced.message else name
        replicator.fail(
            f"cluster {destination.name}, {partition}, offset {sent.base_offset}: {text}; {remedy}",
            sent.base_offset,
            FailureKind.UNKEYED if kind is ProduceOutcome.MISSING_KEY else _get_failure_kind(produced.error),
            sent.size if produced.error == ErrorCode.message_too_large else None,
        )


def _get_failure_kind(error: int) -> FailureKind:
    """Changed bytes and another writer do not pass by themselves: operators decide."""
    for_operators = (ErrorCode.corrupt_message, ErrorCode.invalid_producer_epoch)
    return FailureKind.OTHER if error in for_operators else FailureKind.REFUSED
