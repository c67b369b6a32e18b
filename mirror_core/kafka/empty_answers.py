"""What a Fetch response without a complete batch proves. Pure.

Compaction may remove the last readable batches. But brokers also return nothing when other partitions used up the size,
a quota throttles, or remote storage is slow.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

SURE: Final = 2
"""In a row, conclusive, before the rest counts as empty."""


class Proof(Enum):
    END = "end"
    """Everything readable was read."""
    NOTHING = "nothing"
    """Size used up or throttled."""
    TORN = "torn"
    """Bytes that are no batch."""
    ONCE_MORE = "once more"
    ASK_LEADER = "ask leader"
    """The leader's local log start decides (what is local now was local then)."""
    REMOTE = "remote"
    """Empty responses prove no gap here."""
    GAP = "gap"
    """Nothing left below the readable end."""


def proof(position: int, upto: int, size: int, *, honest: bool, before: int, local_start: int | None) -> Proof:
    """`size` bytes and no complete batch came for [position, end).

    `conclusive`: only this partition, unthrottled. `previous_empty`: earlier ones. `local_start`: None: unknown yet.
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
