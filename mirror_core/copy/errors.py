"""What an answer to a Fetch or a Produce that brings an error, or nothing, does to the lane that it is about."""

from __future__ import annotations

from mirror_core.copy.partition import Lane, Sent, denied, foreign, not_now
from mirror_core.decide.gaps import NO_MARKER
from mirror_core.kafka.client import TRANSIENT, ClusterClient
from mirror_core.kafka.faults import ErrorCode
from mirror_core.kafka.produced import Meaning, meaning
from mirror_core.kafka.tiered import local_start
from mirror_core.model.mirror import FailureKind
from mirror_core.wire.produce import Produced


def fetch_refused(lane: Lane, code: int, source: ClusterClient) -> None:
    """Take in the error of one partition of a Fetch answer."""
    try:
        error = ErrorCode(code)
    except ValueError:
        error = ErrorCode.unknown_server_error
    where = f"cluster {source.name}, {lane.partition}, offset {lane.position}"
    if error is ErrorCode.topic_authorization_failed:
        lane.end(denied(source, lane.partition, "READ"), lane.position, FailureKind.DENIED)
    elif error in TRANSIENT or error in (
        ErrorCode.offset_out_of_range,
        ErrorCode.offset_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_server_error,
    ):
        lane.lose(f"{where}: Fetch answered {error.name.upper()}")  # aligning finds out what is behind it
    else:
        lane.end(f"{where}: Fetch answered {error.name.upper()}", lane.position)


def nothing_up_to(lane: Lane, end: int, source: ClusterClient) -> None:
    """Take in that the source gave nothing from the lane's position up to `end`, its last stable offset: a gap, where
    its leader reads its own log.

    To be called after the answers that said so: a part of the log that is local now was local then.
    """
    if lane.position < lane.local_start:
        return
    start = local_start(source, lane.partition, lane.source_epoch)
    if start is None:
        words = "the leader does not tell which part of the log it holds itself"
        lane.lose(not_now(source.name, lane.partition, lane.position, words))
        return
    lane.local_start = start
    if lane.position >= start:
        lane.skip_to(end)
        lane.empty = 0


def produce_refused(sent: Sent, produced: Produced, destination: ClusterClient) -> None:
    """Take in that a batch did not land, or not where it should have."""
    lane = sent.lane
    kind, remedy, name = meaning(produced.error)
    if kind is Meaning.APPENDED and lane.claim.newest != NO_MARKER and produced.base_offset > sent.base:
        # A foreign record, or a marker too many: the log tells which.
        words = f"a batch landed at {produced.base_offset}"
        lane.lose(not_now(destination.name, lane.partition, sent.base, words))
    elif kind is Meaning.APPENDED:
        # It landed, but elsewhere: the log had grown by somebody else's records, from our expected offset on.
        words = foreign(destination.name, lane.partition, lane.acknowledged)
        lane.fail(words, lane.acknowledged, FailureKind.FOREIGN)
    elif kind is Meaning.LOOK_AGAIN:
        lane.lose(not_now(destination.name, lane.partition, sent.base, name, remedy))
    elif kind is Meaning.DENIED:
        lane.fail(denied(destination, lane.partition, "WRITE"), sent.base, FailureKind.DENIED)
    else:
        words = f"{name}: {produced.message}" if produced.message else name
        lane.fail(
            f"cluster {destination.name}, {lane.partition}, offset {sent.base}: {words}; {remedy}",
            sent.base,
            FailureKind.UNKEYED if kind is Meaning.UNKEYED else FailureKind.REFUSED,
        )
