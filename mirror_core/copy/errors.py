"""Applies the error codes of Fetch and Produce responses to a partition."""

from __future__ import annotations

from typing import Final

from mirror_core.copy.outbox import Sent
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.states import State
from mirror_core.copy.words import Side, denied, foreign, not_now, shifted
from mirror_core.kafka.faults import ErrorCode, code_of
from mirror_core.kafka.produced import Meaning, meaning
from mirror_core.kafka.transient import MISLED, TRANSIENT
from mirror_core.model.acl import Operation
from mirror_core.model.mirror import FailureKind
from mirror_core.wire.produce import Produced

_TAKEN: Final = frozenset({ErrorCode.out_of_order_sequence_number.value, ErrorCode.duplicate_sequence_number.value})


def fetch_refused(replicator: PartitionReplicator, code: int, source: Side) -> None:
    error = code_of(code)
    partition, position = replicator.partition, replicator.place.position
    where = f"cluster {source.name}, {partition}, offset {position}"
    if error is ErrorCode.topic_authorization_failed:
        replicator.end(denied(source, partition, Operation.READ), position, FailureKind.DENIED)
    elif error in TRANSIENT or error in (
        ErrorCode.offset_out_of_range,
        ErrorCode.offset_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_server_error,
    ):
        # Aligning finds the cause.
        replicator.lose(f"{where}: Fetch answered {error.name.upper()}", source.name if error in MISLED else None)
    else:
        replicator.end(f"{where}: Fetch answered {error.name.upper()}", position, FailureKind.REFUSED)


def answered(replicator: PartitionReplicator, sent: Sent, produced: Produced, destination: Side) -> bool:
    """Applies one Produce response. True when seeded records must be deleted
    (`PartitionReplicator.acknowledge`)."""
    replicator.place.answered()
    landed = produced.error == 0
    if landed and produced.base_offset == sent.base == replicator.place.acknowledged:
        if produced.append_time == -1:
            return replicator.acknowledge(sent)
        _there_already(replicator, sent, destination)
        return False
    if landed and produced.base_offset != sent.base:
        _elsewhere(replicator, sent, produced.base_offset, destination)
    elif replicator.working:
        _refused(replicator, sent, produced, destination)
    return False


def _there_already(replicator: PartitionReplicator, sent: Sent, destination: Side) -> None:
    """A time in the response: the broker took the batch for a duplicate, perhaps of another batch, or it
    sets its own record times. Comparing both logs tells which."""
    replicator.doubt(sent.base)
    if replicator.working:
        words = "the broker says that it has this batch already"
        replicator.lose(not_now(destination.name, replicator.partition, sent.base, words))


def _elsewhere(replicator: PartitionReplicator, sent: Sent, landed: int, destination: Side) -> None:
    """Appended at a wrong offset: this outweighs every other failure of the partition."""
    partition, cluster = replicator.partition, destination.name
    if replicator.gaps.marked and landed > sent.base and replicator.state is not State.FAILED:
        # A foreign record, or a marker too many.
        if replicator.working:
            replicator.lose(not_now(cluster, partition, sent.base, f"a batch landed at {landed}"))
    elif replicator.working:
        # Others have appended from our expected offset on.
        expected = replicator.place.acknowledged
        replicator.fail(foreign(cluster, partition, expected), expected, FailureKind.FOREIGN)
    elif replicator.state is not State.DONE:
        replicator.shifted(shifted(cluster, partition, sent.base, landed), min(sent.base, landed))


def _refused(replicator: PartitionReplicator, sent: Sent, produced: Produced, destination: Side) -> None:
    partition = replicator.partition
    kind, remedy, name = meaning(produced.error)
    if kind is Meaning.APPENDED:
        expected = replicator.place.acknowledged
        replicator.fail(foreign(destination.name, partition, expected), expected, FailureKind.FOREIGN)
    elif kind is Meaning.LOOK_AGAIN:
        if produced.error in _TAKEN:
            replicator.doubt(replicator.place.acknowledged)
        misled = destination.name if code_of(produced.error) in MISLED else None
        replicator.lose(not_now(destination.name, partition, sent.base, name, remedy), misled)
    elif kind is Meaning.DENIED:
        replicator.fail(denied(destination, partition, Operation.WRITE), sent.base, FailureKind.DENIED)
    else:
        words = f"{name}: {produced.message}" if produced.message else name
        replicator.fail(
            f"cluster {destination.name}, {partition}, offset {sent.base}: {words}; {remedy}",
            sent.base,
            FailureKind.UNKEYED if kind is Meaning.UNKEYED else _kind_of(produced.error),
            sent.size if produced.error == ErrorCode.message_too_large else None,
        )


def _kind_of(error: int) -> FailureKind:
    """Bytes that change on the way, and another writer, do not pass by themselves: operators decide."""
    peoples = (ErrorCode.corrupt_message, ErrorCode.invalid_producer_epoch)
    return FailureKind.OTHER if error in peoples else FailureKind.REFUSED
