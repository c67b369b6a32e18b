"""May a source batch cross as it stands? Pure: a header and a position in, an obstacle or nothing out."""

from __future__ import annotations

from dataclasses import dataclass

from mirror_core.wire.batch import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL, BatchHeader


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a partition cannot be copied past an offset by this version."""

    offset: int
    reason: str


_LATER = "this version copies dense, non-transactional logs only; leave the topic out with --exclude-topics"


def obstacle(header: BatchHeader, position: int) -> Obstacle | None:
    """What keeps the batch that holds (or follows) `position`, the next offset to copy, from crossing unchanged."""
    base = header.base_offset
    if header.magic != 2:
        return Obstacle(base, f"the batch is in message format v{header.magic}, not v2: {_LATER}")
    if header.attributes & CONTROL:
        return Obstacle(base, f"a transaction ends here (control batch): {_LATER}")
    if header.attributes & TRANSACTIONAL:
        return Obstacle(base, f"the batch is part of a transaction: {_LATER}")
    if base > position:
        return Obstacle(position, f"offsets {position} to {base - 1} hold no record (compacted?): {_LATER}")
    if header.record_count != header.last_offset_delta + 1 or header.attributes & DELETE_HORIZON:
        return Obstacle(base, f"the batch has been compacted: {_LATER}")
    if header.attributes & LOG_APPEND_TIME:
        return Obstacle(base, f"the topic uses message.timestamp.type=LogAppendTime: {_LATER}")
    if base < position:
        return Obstacle(position, f"the position lies inside the batch {base} to {header.last_offset}: {_LATER}")
    return None
