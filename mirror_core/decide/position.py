"""Where copying a partition goes on, and whether the destination still holds what we wrote. Pure.

Every offset of a mirror partition was taken by a record of ours, which counts in the sequence, or by a marker of ours,
which counts in the number that it carries (`decide.gaps`). So a healthy log ends at

    next sequence + offsets filled

A log that ends before that has a gap half filled. One that ends behind it holds what somebody else wrote. For logs
without gaps sequences are offsets, and the broker itself refuses a batch that would not land at its offset.

A broker that forgets producers (producer.id.expiration.ms, counted from the records' own times) forgets both numbers at
once, also under a copier at work, and then learns again only the one that comes first. What it knows then adds up to
less than the log, as if somebody else had written: the logs themselves have to be looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mirror_core.decide.gaps import FILLED_MASK, NO_MARKER, filled, filled_by, marker_number
from mirror_core.wire.batch import SEQUENCE_MASK

MARKED_START: Final = 100_000
"""A log that starts at most so far behind the position is reached by markers, which no consumer ever sees."""
ANYWHERE: Final = -1
"""In place of an offset below which both sides are known to agree: none is known."""
_HALF: Final = (FILLED_MASK + 1) // 2


@dataclass(frozen=True, slots=True)
class Ours:
    """What the destination's leader remembers of the mirror's producer id."""

    next_sequence: int
    """The sequence that the next batch must begin with; 0 when there were only markers."""
    coordinator_epoch: int
    """Of the newest marker; -1 without one."""
    newest_ms: int = -1
    """Time of the newest batch, as its producer gave it; -1 without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Both logs of a partition at about one moment."""

    log_start: int
    """First offset on the destination."""
    log_end: int
    """Next offset to be written on the destination, as its leader knows it: the position."""
    ours: Ours | None
    """None when the leader remembers nothing of our producer id."""
    source_start: int
    source_end: int
    """Next offset to be written on the source, as its leader knows it."""
    ends_as_sent: bool = False
    """The batch that ends the destination's log was looked at: it has the time that it was sent with."""
    proved_end: int | None = None
    """Up to there (next offset) both sides were compared and equal, and the destination has had no other leader since;
    None: nobody has, or it has had one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Copy on from here."""

    offset: int
    sequence: int
    """Sequence of the next batch."""
    gap_end: int
    """Offsets [offset, gap_end) are to be filled first: a gap that was left half filled, or that the source's log start
    leaves. Equal to `offset`: none."""
    seed_end: int
    """Offsets [offset, seed_end) are to be seeded first, and deleted. Equal to `offset`: none."""
    check_tail: bool
    """Nothing vouches for the end of the destination's log: compare it with the source's first."""
    newest_ms: int = -1
    """Time of the newest batch of ours, as far as it is remembered."""
    deleted_from: int | None = None
    """The source deleted the offsets from this one up to its log start before they were copied; None: it did not. On a
    partition of which nothing was copied yet, that is where the copy begins (`decide.deletions`)."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """Somebody else wrote into the destination, at this offset or before."""

    offset: int
    filled: int
    """Offsets of the log that the mirror's own markers took."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The partition cannot go on: the source lost what was copied."""

    position: int
    """Next offset to copy, behind the gap that may be half filled."""
    reason: str
    check_tail: bool
    """Nothing vouches for the end of the destination's log: perhaps it was somebody else who made it longer."""


def where_to_resume(seen: Seen) -> Resume | Foreign | Stop:
    """The position is the destination's log end, if that is where our own records and markers end."""
    position = seen.log_end
    missing = 0 if seen.ours is None else _missing(seen.ours, position)
    if seen.ours is not None and missing < 0 and not _perhaps_forgotten(seen.ours):
        return Foreign(max(seen.log_start, position + missing), filled_by(seen.ours.coordinator_epoch))
    gap_end = position + max(missing, 0)
    unvouched = seen.ours is None or missing < 0
    if gap_end > seen.source_end:
        return Stop(
            gap_end,
            f"the source's log ends at {seen.source_end}, before the position {gap_end}: it lost records that were "
            "copied (unclean leader election)",
            unvouched,
        )
    start, seed_end, deleted_from = seen.source_start, position, None
    if gap_end < start:
        deleted_from = gap_end
        # What the source itself deleted before it was copied is a gap like any other; a wide one is seeded instead. One
        # that is half filled becomes longer: before its old end the source has nothing left to tell where it ends.
        marked = gap_end > position or start - position <= MARKED_START
        gap_end, seed_end = (start, position) if marked else (position, start)
    nothing_to_check = position == seen.log_start or position <= start
    return Resume(
        offset=position,
        # A leader that knows nothing of us takes any sequence; the offset keeps the count of filled offsets small.
        sequence=position & SEQUENCE_MASK if seen.ours is None else seen.ours.next_sequence,
        gap_end=gap_end,
        seed_end=seed_end,
        check_tail=unvouched and not nothing_to_check,
        newest_ms=-1 if seen.ours is None else seen.ours.newest_ms,
        deleted_from=deleted_from,
    )


def ours_behind_data(log_end: int, next_sequence: int) -> Ours:
    """What a leader remembers of a log that ends with our data, with no marker of it lost."""
    return Ours(next_sequence, marker_number(filled(log_end, next_sequence)))


def _perhaps_forgotten(ours: Ours) -> bool:
    """Whether the leader has seen only data or only markers of ours: all there is, or all since it forgot the rest."""
    return ours.coordinator_epoch == NO_MARKER or ours.next_sequence == 0


def _missing(ours: Ours, log_end: int) -> int:
    """Offsets that our newest gap still lacks; negative: how many somebody else has written."""
    if ours.coordinator_epoch == NO_MARKER:
        return -((log_end - ours.next_sequence) & SEQUENCE_MASK)
    missing = (ours.next_sequence + filled_by(ours.coordinator_epoch) - log_end) & FILLED_MASK
    return missing if missing < _HALF else missing - FILLED_MASK - 1
