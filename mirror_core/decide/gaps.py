"""Gaps: offsets that hold no record for a reader. How they are numbered, and which marker may fill one. Pure.

A gap [start, end) is filled with one transaction marker per offset. Markers know no sequence, so nothing makes the
broker refuse one too many; what it does refuse is a marker whose coordinator epoch is lower than the newest one of the
same producer id (TRANSACTION_COORDINATOR_FENCED). Hence the number in every marker's coordinator epoch:

    (end - next data sequence) mod 2**28 << 3 | attempt

The first part is the count of all offsets filled in the log so far once this gap is full. It grows with each gap, so
markers of an older gap are refused after the first of a newer one. A higher attempt does the same inside one gap.
"""

from __future__ import annotations

from typing import Final

FILLED_MASK: Final = (1 << 28) - 1
"""Offsets that can be filled in one partition before it has to be copied anew."""
MAX_ATTEMPT: Final = 7
NO_MARKER: Final = -1
"""Coordinator epoch of a producer that has written no marker."""

_ATTEMPT_BITS: Final = 3
_TURNS: Final = 4
_SHORT_MS: Final = 200
_SHORT_OPEN_MS: Final = 80
_LONG_MS: Final = 1200
LONG_OPEN_MS: Final = 600
"""Within it newcomers look at a log end and have the answer: no further than this may a destination be."""
_ROUND_MS: Final = _TURNS * _SHORT_MS + _LONG_MS


def filled(end: int, sequence: int) -> int:
    """Offsets filled in the log when it ends at `end` and the next batch's first sequence is `sequence`."""
    return (end - sequence) & FILLED_MASK


def filled_by(coordinator_epoch: int) -> int:
    """The same, from a marker. 0 when there was none."""
    return max(coordinator_epoch, 0) >> _ATTEMPT_BITS


def marker_number(count: int) -> int:
    """Coordinator epoch of a gap's first attempt, that makes `count` filled offsets."""
    return count << _ATTEMPT_BITS


def marker_epoch(count: int, newest: int, *, owned: bool) -> int | None:
    """Coordinator epoch for the markers of the gap that makes `count` filled offsets; None: there is none left.

    `newest` is the highest one known to have been sent, by anybody. `owned`: it is the caller's own, and everything
    that the caller has sent is answered; nobody's markers can then be on their way to this gap, and none is fenced.
    """
    first = marker_number(count)
    if newest < first:
        return first if owned else first + 1
    if newest >> _ATTEMPT_BITS != count:
        return None  # the count has gone once around
    if owned:
        return newest
    return newest + 1 if newest & MAX_ATTEMPT < MAX_ATTEMPT else None


def at_once(missing: int) -> int:
    """Markers that may be unanswered at a time while so many offsets are missing: all but one.

    Whoever comes after a crash then always has room for a marker of a higher attempt, which shuts out the stragglers.
    """
    return max(1, missing - 1)


def turn(epoch: int, wall_ms: int) -> int | None:
    """The number of the turn that is now, if the task of this epoch may shut another one out in it; else None.

    Two that wait for the same gap would else find it due at the same moment, and both fill it: nothing in the log tells
    their markers apart. Turns are by the clock, since neither knows of the other; neighbours in epochs, who meet at
    each change of them, never have the same. What lies between two turns is for clocks that differ and for requests
    on their way. Who has looked at the log in one turn must not act on it in another: the others' lie between.

    Each round has a short turn for everybody, and a long one for one of them, in which there is time for an answer from
    far away.
    """
    number, into = divmod(wall_ms, _ROUND_MS)
    mine = epoch % _TURNS
    short, into_short = divmod(into, _SHORT_MS)
    if short < _TURNS:
        return number * (_TURNS + 1) + short if short == mine and into_short < _SHORT_OPEN_MS else None
    into_long = into - _TURNS * _SHORT_MS
    return number * (_TURNS + 1) + _TURNS if number % _TURNS == mine and into_long < LONG_OPEN_MS else None
