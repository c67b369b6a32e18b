"""How long an epoch of the data plane lasts.

A comparison of logs that an epoch's end cuts short starts over in the next epoch, so the next one is twice as long.
Long epochs have a price, so there is a limit: tasks that lost their driver may write until their epoch ends, and
configuration changes wait for the next one.
"""

from __future__ import annotations

from typing import Final

MAX_EPOCH_S: Final = 120.0
_SLOT_RESERVE_S: Final = 10.0
"""Before the next epoch ends, the following epoch's tasks need the slots of comparing tasks."""
_MIN_COMPARISON_S: Final = 1.0


def compute_epoch_s(usual_s: float, now_s: float, lasted_s: float, *, was_cut_short: bool, is_unknown: bool) -> float:
    """`now_s`: the length otherwise; epochs overlap, and an older one may have made it longer. `untold`: a
    task could not report, so a comparison may still be open.
    """
    if not was_cut_short:
        return now_s if is_unknown else usual_s
    return max(now_s, min(2 * lasted_s, max(MAX_EPOCH_S, usual_s)))


def compute_comparison_s(usual_s: float) -> float:
    """How long tasks may compare logs past their epoch. There are slots for two epochs, not three."""
    return max(usual_s - _SLOT_RESERVE_S, _MIN_COMPARISON_S)
