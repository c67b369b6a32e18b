"""Builds batches of hidden records (`wire.hidden`) that use up gaps.

They carry sequences like data, so the task need not be the only writer, wait, or check log ends.
"""

from __future__ import annotations

from typing import Final

from mirror_core.copy.outbox import HiddenGap, ReadyBatch, SendQueue, SentBatch
from mirror_core.wire.batch import readdress
from mirror_core.wire.hidden import build_hidden_batch

MAX_HIDDEN_RECORDS: Final = 20_000
"""220 KB: mirror topics accept 1 MiB more than their sources."""


def pop_hidden_batch(queue: SendQueue, gap: HiddenGap, producer_id: int, producer_epoch: int) -> ReadyBatch:
    count = queue.pop_hidden(gap, MAX_HIDDEN_RECORDS)
    batch = memoryview(build_hidden_batch(count, gap.time_ms))
    readdress(batch, producer_id, producer_epoch, gap.sequence)
    return SentBatch(gap.base_offset, count, len(batch), None), batch
