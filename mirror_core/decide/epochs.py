"""How long an epoch of the data plane lasts. Pure.

What is compared in one epoch is compared anew in the next one, if it was cut short. So an epoch whose tasks could not
finish that is followed by one of twice its length. It costs: tasks that have lost their driver may write until their
epoch ends, and what people change is heeded when the next one begins. So that has an end, too.
"""

from __future__ import annotations

from typing import Final

LONGEST_S: Final = 120.0
_SPARE_S: Final = 10.0
"""Before the next epoch ends, tasks of the one after it need the slots of those that look into logs."""
_SHORTEST_LOOKS_S: Final = 1.0


def next_s(usual_s: float, now_s: float, lasted_s: float, *, cut_short: bool, untold: bool) -> float:
    """The length of the next epoch, after one that lasted `lasted_s` has told whether a comparison was cut short in it.
    `now_s`: what it would be otherwise: two epochs overlap, and an older one may have made it longer. `untold`: one of
    its tasks could not tell; what was to be compared may be so still."""
    if not cut_short:
        return now_s if untold else usual_s
    return max(now_s, min(2 * lasted_s, max(LONGEST_S, usual_s)))


def looks_s(usual_s: float) -> float:
    """How long tasks may go on comparing logs after their epoch. The next one may be as short as usual: two epochs have
    slots, and not three."""
    return max(usual_s - _SPARE_S, _SHORTEST_LOOKS_S)
