"""Where copying a partition goes on, and whether the destination still holds what we wrote. Pure.

Sequences are offsets: each data batch is sent with `base sequence = offset mod 2**31`, so the broker itself refuses a
batch that would not land at its offset (a compare-and-append), two copiers of one source cannot both append, and the
producer state of a partition tells at any time where ours end. A log end elsewhere means that somebody else wrote.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirror_core.wire.batch import SEQUENCE_MASK


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Both logs of a partition at about one moment."""

    log_start: int
    """First offset on the destination."""
    log_end: int
    """Next offset to be written on the destination, as its leader knows it: the position."""
    last_sequence: int | None
    """Last sequence that the leader remembers of our producer id; None when it remembers none."""
    source_start: int
    source_end: int
    """Next offset to be written on the source, as its leader knows it."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Copy on from this offset."""

    offset: int
    check_tail: bool
    """Nothing vouches for the last record on the destination: compare it with the source's first."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """Somebody else wrote into the destination, at this offset or before."""

    offset: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The partition cannot go on."""

    offset: int
    reason: str


def where_to_resume(seen: Seen) -> Resume | Foreign | Stop:
    """The position is the destination's log end, if that is where our own records end."""
    position = seen.log_end
    if seen.last_sequence is not None:
        ours_end = (seen.last_sequence + 1) & SEQUENCE_MASK
        beyond = (position - ours_end) & SEQUENCE_MASK
        if beyond:
            return Foreign(max(seen.log_start, position - beyond))
    if position > seen.source_end:
        return Stop(
            seen.source_end,
            f"the source's log ends at {seen.source_end}, before the position {position}: it lost records that were "
            "copied (unclean leader election, or another topic of the same name); compare both sides before going on",
        )
    if position < seen.source_start:
        if position == 0:
            return Stop(
                0,
                f"the source's log starts at {seen.source_start}, not at 0: this version copies logs from 0 only; "
                "leave the topic out with --exclude-topics",
            )
        return Stop(
            position,
            f"the source deleted offsets {position} to {seen.source_start - 1} before they were copied (retention or "
            "DeleteRecords); delete the mirror topic and let it be copied anew",
        )
    nothing_to_check = position in (seen.log_start, seen.source_start)
    return Resume(position, check_tail=seen.last_sequence is None and not nothing_to_check)
