"""Gaps: offsets without a record for a reader. Which transaction marker may fill one.

A gap [start, end) is filled with one marker per offset. Markers have no sequence, so the broker does not refuse one too
many. It does refuse a marker whose coordinator epoch is below the newest of the same producer id
(TRANSACTION_COORDINATOR_FENCED). So each marker's coordinator epoch is

    (end - next data sequence) mod 2**28 << 3 | attempt

The first part is the count of filled offsets once this gap is full. It grows with each gap, so markers of an older gap
are refused after the first marker of a newer one. A higher attempt does the same inside one gap.
"""

from __future__ import annotations

from typing import Final

FILLED_MASK: Final = (1 << 28) - 1
"""Offsets that can be filled in one partition before it must be copied anew."""
MAX_ATTEMPT: Final = 7
NO_MARKER: Final = -1

_ATTEMPT_BITS: Final = 3
_TURN_COUNT: Final = 4
_SHORT_TURN_MS: Final = 200
_SHORT_TURN_OPEN_MS: Final = 80
_LONG_TURN_MS: Final = 1200
LONG_TURN_OPEN_MS: Final = 600
"""A new task reads the log end within this time: a bound on the destination's latency."""
_ROUND_MS: Final = _TURN_COUNT * _SHORT_TURN_MS + _LONG_TURN_MS


def count_filled(end: int, sequence: int) -> int:
    return (end - sequence) & FILLED_MASK


def decode_filled(coordinator_epoch: int) -> int:
    return max(coordinator_epoch, 0) >> _ATTEMPT_BITS


def to_first_marker_epoch(count: int) -> int:
    """Coordinator epoch of a gap's first attempt that makes `count` filled offsets."""
    return count << _ATTEMPT_BITS


def choose_marker_epoch(count: int, newest_epoch: int, *, is_owned: bool) -> int | None:
    """Coordinator epoch for the gap that makes `count` filled offsets; None: none is left.

    `newest`: the highest epoch known to be sent, by any task. `owned`: it is the caller's own and all its requests are
    answered; then no other task's markers can be in flight to this gap, and none must be fenced.
    """
    first_epoch = to_first_marker_epoch(count)
    if newest_epoch < first_epoch:
        return first_epoch if is_owned else first_epoch + 1
    if newest_epoch >> _ATTEMPT_BITS != count:
        return None  # the count has gone once around
    if is_owned:
        return newest_epoch
    return newest_epoch + 1 if newest_epoch & MAX_ATTEMPT < MAX_ATTEMPT else None


def limit_markers_in_flight(missing: int) -> int:
    """All but one of the missing offsets.

    After a crash there is then always room for one marker of a higher attempt, which fences those in flight.
    """
    return max(1, missing - 1)


def find_turn(epoch: int, wall_ms: int) -> int | None:
    """The number of the current turn if the task of this epoch may fence another in it; else None.

    Two tasks that wait for the same gap would otherwise find it due at once and both fill it: nothing in the log tells
    their markers apart. Turns go by the clock, since neither knows of the other; tasks of neighbouring epochs, which
    meet at each epoch change, never share one. The time between two turns covers clock differences and requests in
    flight. A task that read the log in one turn must not act on it in another: the others' turns lie between.

    Each round has a short turn for every task, and one long turn that leaves time for a distant broker's response.
    """
    round_number, into_round = divmod(wall_ms, _ROUND_MS)
    own_turn = epoch % _TURN_COUNT
    short_turn, into_short = divmod(into_round, _SHORT_TURN_MS)
    if short_turn < _TURN_COUNT:
        return (
            round_number * (_TURN_COUNT + 1) + short_turn
            if short_turn == own_turn and into_short < _SHORT_TURN_OPEN_MS
            else None
        )
    into_long = into_round - _TURN_COUNT * _SHORT_TURN_MS
    return (
        round_number * (_TURN_COUNT + 1) + _TURN_COUNT
        if round_number % _TURN_COUNT == own_turn and into_long < LONG_TURN_OPEN_MS
        else None
    )
