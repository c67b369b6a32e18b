"""What a Fetch response without a complete batch proves. Pure.

Compaction may remove the last readable batches. But brokers also return nothing when other partitions used up the size,
a quota throttles, or remote storage is slow.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

REQUIRED_EMPTY_FETCHES: Final = 2
"""In a row, conclusive, before the rest counts as empty."""


class EmptyFetch(Enum):
    END = "end"
    """Everything readable was read."""
    INCONCLUSIVE = "nothing"
    """Size used up or throttled."""
    MALFORMED = "torn"
    """Bytes that are no batch."""
    RETRY = "once more"
    CHECK_LOCAL_START = "ask leader"
    """The leader's local log start decides (what is local now was local then)."""
    REMOTE_STORAGE = "remote"
    """Empty responses prove no gap here."""
    GAP = "gap"
    """Nothing left below the readable end."""


def classify_empty_fetch(
    position: int, end: int, size: int, *, conclusive: bool, previous_empty: int, local_start: int | None
) -> EmptyFetch:
    """`size` bytes and no complete batch came for [position, end).

    `conclusive`: only this partition, unthrottled. `previous_empty`: earlier ones. `local_start`: None: unknown yet.
    """
    if position >= end:
        return EmptyFetch.END
    if not conclusive:
        return EmptyFetch.INCONCLUSIVE
    if size:
        return EmptyFetch.MALFORMED
    if previous_empty + 1 < REQUIRED_EMPTY_FETCHES:
        return EmptyFetch.RETRY
    if local_start is None:
        return EmptyFetch.CHECK_LOCAL_START
    return EmptyFetch.REMOTE_STORAGE if position < local_start else EmptyFetch.GAP
