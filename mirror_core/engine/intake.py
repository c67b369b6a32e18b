"""From a Fetch answer to batches that may be sent: verified, re-addressed, in order, each at the lane's position."""

from __future__ import annotations

from typing import NamedTuple

import xxhash
from kio.schema.errors import ErrorCode

from mirror_core.decide.passthrough import obstacle
from mirror_core.engine.lanes import Lane, LaneState, denied
from mirror_core.kafka.client import TRANSIENT, ClusterClient
from mirror_core.model.names import ClusterName
from mirror_core.wire.batch import HEADER_SIZE, SEQUENCE_MASK, MalformedBatch, batches, crc_matches, readdress

PRODUCER_EPOCH = 0


class Sent(NamedTuple):
    """What is remembered of a batch in flight."""

    lane: Lane
    base: int
    records: int
    size: int
    payload: bytes
    """XXH3-128 of the bytes after the header."""


def accept(lane: Lane, records: memoryview, source: ClusterName, producer_id: int) -> list[tuple[Sent, memoryview]]:
    """Batches of one partition that may be sent, in place; the lane's position moves past them.

    The first batch that may not cross ends the lane, after what came before it.
    """
    queue: list[tuple[Sent, memoryview]] = []
    where = f"cluster {source}, {lane.partition}"
    try:
        for header, batch in batches(records):
            if header.magic >= 2 and header.last_offset < lane.position:
                continue
            if not lane.fetchable:
                break
            hindrance = obstacle(header, lane.position)
            if hindrance:
                lane.end(f"{where}, offset {hindrance.offset}: {hindrance.reason}", hindrance.offset)
                break
            if not crc_matches(header, batch):
                lane.end(
                    f"{where}: the batch at offset {header.base_offset} is corrupt (its CRC-32C does not match) "
                    "and was not copied; repair the source's replica, then recover the partition",
                    header.base_offset,
                )
                break
            payload = xxhash.xxh3_128_digest(batch[HEADER_SIZE:])
            readdress(batch, producer_id, PRODUCER_EPOCH, header.base_offset & SEQUENCE_MASK)
            queue.append((Sent(lane, header.base_offset, header.record_count, len(batch), payload), batch))
            lane.position = header.next_offset
    except MalformedBatch as error:
        lane.end(
            f"{where}: what came back for offset {lane.position} is not a record batch ({error}); it was not copied",
            lane.position,
        )
    return queue


def fetch_refused(lane: Lane, code: int, source: ClusterClient) -> None:
    """Take in the error of one partition of a Fetch answer."""
    try:
        error = ErrorCode(code)
    except ValueError:
        error = ErrorCode.unknown_server_error
    where = f"cluster {source.name}, {lane.partition}, offset {lane.position}"
    if error is ErrorCode.topic_authorization_failed:
        lane.end(denied(source, lane.partition, "READ"), lane.position)
    elif error in TRANSIENT or error in (
        ErrorCode.offset_out_of_range,
        ErrorCode.offset_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_server_error,
    ):
        lane.state = LaneState.LOST  # aligning finds out what is behind it
    else:
        lane.end(f"{where}: Fetch answered {error.name.upper()}", lane.position)
