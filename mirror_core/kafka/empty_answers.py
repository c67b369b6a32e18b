"""What a Fetch answer without a whole batch proves. Said once, for whoever reads a log. Pure.

Compaction may take the last batches before the end of what is readable: then a broker answers with nothing, though
there should be something. But it does so, too, where other partitions of the same answer have used up its size; where
a quota throttles it; and where remote storage should have given what lies there (`kafka.tiered`).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

SURE: Final = 2
"""Honest empty answers in a row that it takes to believe that nothing is left there."""


class Proof(Enum):
    END = "end"
    """All that is readable has been read."""
    NOTHING = "nothing"
    """The answer's size was used up, or the broker throttled: ask for this partition alone."""
    TORN = "torn"
    """The log holds bytes there that are no batch."""
    ONCE_MORE = "once more"
    """Not yet: ask again."""
    ASK_LEADER = "ask leader"
    """A gap, if the leader holds that part of the log itself: ask it now (a part that is local now was local then)."""
    REMOTE = "remote"
    """Remote storage should have given it: no number of empty answers proves a gap."""
    GAP = "gap"
    """There is nothing up to the end of what is readable."""


def proof(position: int, upto: int, size: int, *, honest: bool, before: int, local_start: int | None) -> Proof:
    """What an answer says of [position, upto), which brought `size` bytes and no whole batch.

    `honest`: it was asked for this partition alone, and was not throttled. `before`: such answers before it, in a row.
    `local_start`: before it the leader holds nothing itself; None: not asked.
    """
    if position >= upto:
        return Proof.END
    if not honest:
        return Proof.NOTHING
    if size:
        return Proof.TORN
    if before + 1 < SURE:
        return Proof.ONCE_MORE
    if local_start is None:
        return Proof.ASK_LEADER
    return Proof.REMOTE if position < local_start else Proof.GAP
