"""Where copying a partition resumes, and whether the destination still holds what we wrote.

Every offset of a mirror partition was taken by a record of ours, which counts in the sequence, or by a marker of ours,
which counts in the number it carries. So a healthy log ends at

    next sequence + offsets filled

A log that ends before that has a half filled gap. One that ends behind it holds a foreign write. Without gaps sequences
equal offsets, and the broker itself refuses a batch that would not land at its offset.

A broker that forgets producers (producer.id.expiration.ms, counted from record times) forgets both numbers at once,
even under a running copier, and then learns only the one that comes first. The sum is then less than the log, as if
others had written: the logs themselves must be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mirror_core.decide.gaps import FILLED_MASK, NO_MARKER, count_filled, decode_filled, to_first_marker_epoch
from mirror_core.wire.batch import SEQUENCE_MASK

MAX_MARKED_START: Final = 100_000
"""A log start at most this far behind the position is reached by markers, which consumers never see."""
NO_KNOWN_OFFSET: Final = -1
_HALF: Final = (FILLED_MASK + 1) // 2


@dataclass(frozen=True, slots=True)
class OwnProducerState:
    next_sequence: int
    """Of the next batch; 0 if there were only markers."""
    coordinator_epoch: int
    """Of the newest marker; -1 without one."""
    newest_ms: int = -1
    """Producer's time of the newest batch; -1 without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BothLogBounds:
    """Both logs of a partition at about one moment."""

    log_start: int
    log_end: int
    producer: OwnProducerState | None
    source_start: int
    source_end: int
    ends_as_sent: bool = False
    """The destination's last batch was checked: it has the time that it was sent with."""
    verified_end: int | None = None
    """Both sides were compared equal up to here (next offset), and the destination's leader has not
    changed since; None otherwise.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    offset: int
    sequence: int
    gap_end: int
    """[offset, gap_end) is filled first: a half filled gap, or up to the source's log start. Equal to
    `offset`: none.
    """
    seed_end: int
    """[offset, seed_end) is seeded first, and deleted. Equal to `offset`: none."""
    must_check_tail: bool
    """The destination's tail is unverified: compare it with the source's first."""
    newest_ms: int = -1
    deleted_from: int | None = None
    """The source deleted [this, its log start) before it was copied; None: nothing. For a partition never
    copied it is where the copy begins.
    """


@dataclass(frozen=True, slots=True)
class ForeignWrite:
    """A foreign write on the destination, at this offset or before."""

    offset: int
    filled_offsets: int


@dataclass(frozen=True, slots=True)
class SourceLostRecords:
    position: int
    """Next offset to copy, behind a half filled gap."""
    reason: str
    must_check_tail: bool
    """The destination's tail is unverified: a foreign write may have made it longer."""


def decide_resume_point(logs: BothLogBounds) -> ResumePoint | ForeignWrite | SourceLostRecords:
    """The position is the destination's log end, if our own records and markers end there."""
    position = logs.log_end
    missing = 0 if logs.producer is None else _count_missing(logs.producer, position)
    if logs.producer is not None and missing < 0 and not _can_be_forgotten(logs.producer):
        return ForeignWrite(max(logs.log_start, position + missing), decode_filled(logs.producer.coordinator_epoch))
    gap_end = position + max(missing, 0)
    is_unverified = logs.producer is None or missing < 0
    if gap_end > logs.source_end:
        return SourceLostRecords(
            gap_end,
            f"the source's log ends at {logs.source_end}, before the position {gap_end}: it lost records that were "
            "copied (unclean leader election)",
            is_unverified,
        )
    source_start, seed_end, deleted_from = logs.source_start, position, None
    if gap_end < source_start:
        deleted_from = gap_end
        # What the source itself deleted before it was copied is a gap like any other; a wide one is seeded instead. One
        # that is half filled becomes longer: before its old end the source has nothing left to tell where it ends.
        uses_markers = gap_end > position or source_start - position <= MAX_MARKED_START
        gap_end, seed_end = (source_start, position) if uses_markers else (position, source_start)
    nothing_to_check = position == logs.log_start or position <= source_start
    return ResumePoint(
        offset=position,
        # A leader that knows nothing of us takes any sequence; the offset keeps the count of filled offsets small.
        sequence=position & SEQUENCE_MASK if logs.producer is None else logs.producer.next_sequence,
        gap_end=gap_end,
        seed_end=seed_end,
        must_check_tail=is_unverified and not nothing_to_check,
        newest_ms=-1 if logs.producer is None else logs.producer.newest_ms,
        deleted_from=deleted_from,
    )


def to_own_producer_state(log_end: int, next_sequence: int) -> OwnProducerState:
    return OwnProducerState(next_sequence, to_first_marker_epoch(count_filled(log_end, next_sequence)))


def _can_be_forgotten(producer: OwnProducerState) -> bool:
    """The leader has seen only data or only markers: that is all, or all since it forgot the rest."""
    return producer.coordinator_epoch == NO_MARKER or producer.next_sequence == 0


def _count_missing(producer: OwnProducerState, log_end: int) -> int:
    """Offsets that our newest gap lacks; negative: offsets of a foreign write."""
    if producer.coordinator_epoch == NO_MARKER:
        return -((log_end - producer.next_sequence) & SEQUENCE_MASK)
    missing = (producer.next_sequence + decode_filled(producer.coordinator_epoch) - log_end) & FILLED_MASK
    return missing if missing < _HALF else missing - FILLED_MASK - 1
