"""Gaps used up by hidden records (`wire.hidden`), in line with the data before and behind them.

They carry sequences like any data, so that no copier has to be alone, to wait, or to look at log ends.
"""

from __future__ import annotations

from typing import Final

from mirror_core.copy.outbox import Hidden, Outbox, Ready, Sent
from mirror_core.wire.batch import readdress
from mirror_core.wire.hidden import hidden_batch

HIDDEN_AT_ONCE: Final = 20_000
"""Of one batch, which takes 220 KB: brokers take it, since mirror topics admit 1 MiB more than their sources."""


def first_hidden(outbox: Outbox, gap: Hidden, producer_id: int, producer_epoch: int) -> Ready:
    """The first batch for a gap that has been taken out of the line; what it leaves goes back there."""
    count = outbox.take_hidden(gap, HIDDEN_AT_ONCE)
    batch = memoryview(hidden_batch(count, gap.time_ms))
    readdress(batch, producer_id, producer_epoch, gap.sequence)
    return Sent(gap.base, count, len(batch), None), batch
