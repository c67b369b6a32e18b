"""What a read_committed consumer sees. The only code that follows transactions (KIP-98)."""

from __future__ import annotations

from collections.abc import Iterator

from mirror_core.wire.batch import (
    CONTROL,
    CURRENT_MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    MalformedBatch,
    crc_matches,
    split_batches,
)
from mirror_core.wire.fetch import FetchedPartition
from mirror_core.wire.hidden_records import is_hidden
from mirror_core.wire.records import is_abort_marker

VisibleBatch = tuple[BatchHeader, memoryview, bool]
"""Header, bytes, and whether a consumer sees records: not of control, aborted, hidden or empty batches."""


class DamagedBatch(MalformedBatch):
    def __init__(self, offset: int) -> None:
        self.offset = offset
        super().__init__(f"batch at offset {offset} is damaged: CRC does not match")


def filter_committed(response: FetchedPartition, position: int) -> Iterator[VisibleBatch]:
    transactions = _AbortedTransactions(response.aborted_transactions) if response.aborted_transactions else None
    for header, batch in split_batches(response.records):
        if 0 <= header.magic < CURRENT_MAGIC:
            if header.last_offset >= position:
                yield header, batch, True
            continue
        aborted = transactions is not None and transactions.includes(header, batch)
        if header.last_offset < position:
            continue
        if header.magic != CURRENT_MAGIC:  # not covered by the CRC
            problem = f"is damaged: there is no magic {header.magic & 0xFF}"
            raise MalformedBatch(f"batch at offset {header.base_offset} {problem}")
        if not crc_matches(header, batch):
            raise DamagedBatch(header.base_offset)
        is_invisible = aborted or header.attributes & CONTROL or not header.record_count or is_hidden(header, batch)
        yield header, batch, not is_invisible


class _AbortedTransactions:
    """Must get every batch in log order, control batches too."""

    def __init__(self, transactions: tuple[tuple[int, int], ...]) -> None:
        self._coming = sorted(transactions, key=lambda pair: pair[1], reverse=True)
        self._open: set[int] = set()

    def includes(self, header: BatchHeader, batch: memoryview) -> bool:
        while self._coming and self._coming[-1][1] <= header.last_offset:
            self._open.add(self._coming.pop()[0])
        if header.producer_id not in self._open:
            return False
        if header.attributes & CONTROL:
            if header.record_count and is_abort_marker(header, batch):
                self._open.discard(header.producer_id)
            return False
        return bool(header.attributes & TRANSACTIONAL)
