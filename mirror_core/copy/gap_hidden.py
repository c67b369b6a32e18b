"""Gaps used up by hidden records (`wire.hidden`), in line with the data before and behind them.

They carry sequences like any data, so that no copier has to be alone, to wait, or to look at log ends.
"""

from __future__ import annotations

from typing import Final

from mirror_core.copy.partition import Hidden, Lane, Sent
from mirror_core.wire.batch import SEQUENCE_MASK, readdress
from mirror_core.wire.hidden import hidden_batch

HIDDEN_AT_ONCE: Final = 20_000
"""Of one batch, which takes 220 KB: brokers take it, since mirror topics admit 1 MiB more than their sources."""


def first_hidden(lane: Lane, gap: Hidden, producer_id: int, producer_epoch: int) -> tuple[Sent, memoryview]:
    """The first batch for a gap that has been taken out of the lane's line; what it leaves goes back there."""
    count = min(HIDDEN_AT_ONCE, gap.end - gap.base)
    base = gap.base + count
    if base < gap.end:
        lane.queue.appendleft(gap._replace(base=base, sequence=(gap.sequence + count) & SEQUENCE_MASK))
    lane.hiding.append((gap.base, base))
    batch = memoryview(hidden_batch(count, gap.time_ms))
    readdress(batch, producer_id, producer_epoch, gap.sequence)
    return Sent(lane, gap.base, count, len(batch), b""), batch
