"""How long an epoch of the data plane lasts.

A comparison of logs that an epoch's end cuts short starts over in the next epoch, so the next one is twice as long.
Long epochs have a price, so there is a limit: tasks that lost their driver may write until their epoch ends, and
configuration changes wait for the next one.
"""

from __future__ import annotations

from typing import Final

LONGEST_S: Final = 120.0
_SPARE_S: Final = 10.0
"""Before the next epoch ends, the following epoch's tasks need the slots of comparing tasks."""
_SHORTEST_LOOKS_S: Final = 1.0


def next_s(usual_s: float, now_s: float, lasted_s: float, *, cut_short: bool, untold: bool) -> float:
    """`now_s`: the length otherwise; epochs overlap, and an older one may have made it longer. `untold`: a
    task could not report, so a comparison may still be open.
    """
    if not cut_short:
        return now_s if untold else usual_s
    return max(now_s, min(2 * lasted_s, max(LONGEST_S, usual_s)))


def looks_s(usual_s: float) -> float:
    """How long tasks may compare logs past their epoch. There are slots for two epochs, not three."""
    return max(usual_s - _SPARE_S, _SHORTEST_LOOKS_S)
