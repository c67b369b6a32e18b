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

from mirror_core.decide.gaps import FILLED_MASK, NO_MARKER, filled, filled_by, marker_number
from mirror_core.wire.batch import SEQUENCE_MASK

MARKED_START: Final = 100_000
"""A log start at most this far behind the position is reached by markers, which consumers never see."""
ANYWHERE: Final = -1
_HALF: Final = (FILLED_MASK + 1) // 2


@dataclass(frozen=True, slots=True)
class Ours:
    next_sequence: int
    """Of the next batch; 0 if there were only markers."""
    coordinator_epoch: int
    """Of the newest marker; -1 without one."""
    newest_ms: int = -1
    """Producer's time of the newest batch; -1 without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Both logs of a partition at about one moment."""

    log_start: int
    log_end: int
    ours: Ours | None
    source_start: int
    source_end: int
    ends_as_sent: bool = False
    """The destination's last batch was checked: it has the time that it was sent with."""
    proved_end: int | None = None
    """Both sides were compared equal up to here (next offset), and the destination's leader has not
    changed since; None otherwise.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    offset: int
    sequence: int
    gap_end: int
    """[offset, gap_end) is filled first: a half filled gap, or up to the source's log start. Equal to
    `offset`: none.
    """
    seed_end: int
    """[offset, seed_end) is seeded first, and deleted. Equal to `offset`: none."""
    check_tail: bool
    """The destination's tail is unverified: compare it with the source's first."""
    newest_ms: int = -1
    deleted_from: int | None = None
    """The source deleted [this, its log start) before it was copied; None: nothing. For a partition never
    copied it is where the copy begins.
    """


@dataclass(frozen=True, slots=True)
class Foreign:
    """A foreign write on the destination, at this offset or before."""

    offset: int
    filled: int


@dataclass(frozen=True, slots=True)
class Stop:
    position: int
    """Next offset to copy, behind a half filled gap."""
    reason: str
    check_tail: bool
    """The destination's tail is unverified: a foreign write may have made it longer."""


def where_to_resume(seen: Seen) -> Resume | Foreign | Stop:
    """The position is the destination's log end, if our own records and markers end there."""
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
    return Ours(next_sequence, marker_number(filled(log_end, next_sequence)))


def _perhaps_forgotten(ours: Ours) -> bool:
    """The leader has seen only data or only markers: that is all, or all since it forgot the rest."""
    return ours.coordinator_epoch == NO_MARKER or ours.next_sequence == 0


def _missing(ours: Ours, log_end: int) -> int:
    """Offsets that our newest gap lacks; negative: offsets of a foreign write."""
    if ours.coordinator_epoch == NO_MARKER:
        return -((log_end - ours.next_sequence) & SEQUENCE_MASK)
    missing = (ours.next_sequence + filled_by(ours.coordinator_epoch) - log_end) & FILLED_MASK
    return missing if missing < _HALF else missing - FILLED_MASK - 1
