"""Builds batches of hidden records (`wire.hidden`) that use up gaps.

They carry sequences like data, so the task need not be the only writer, wait, or check log ends.
"""

from __future__ import annotations

from typing import Final

from mirror_core.copy.outbox import Hidden, Outbox, Ready, Sent
from mirror_core.wire.batch import readdress
from mirror_core.wire.hidden import hidden_batch

HIDDEN_AT_ONCE: Final = 20_000
"""220 KB: mirror topics accept 1 MiB more than their sources."""


def first_hidden(outbox: Outbox, gap: Hidden, producer_id: int, producer_epoch: int) -> Ready:
    count = outbox.take_hidden(gap, HIDDEN_AT_ONCE)
    batch = memoryview(hidden_batch(count, gap.time_ms))
    readdress(batch, producer_id, producer_epoch, gap.sequence)
    return Sent(gap.base, count, len(batch), None), batch
