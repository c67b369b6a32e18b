"""What a read_committed consumer sees of a response. The only code that follows transactions (KIP-98)."""

from __future__ import annotations

from collections.abc import Iterator

from mirror_core.wire.batch import CONTROL, NEWEST, TRANSACTIONAL, BatchHeader, MalformedBatch, batches, crc_matches
from mirror_core.wire.fetch import Fetched
from mirror_core.wire.hidden import is_hidden
from mirror_core.wire.records import is_abort_marker

Batch = tuple[BatchHeader, memoryview, bool]
"""Header, bytes, and whether a consumer sees records: not of control, aborted, hidden or empty
batches."""


class DamagedBatch(MalformedBatch):
    def __init__(self, offset: int) -> None:
        self.offset = offset
        super().__init__(f"batch at offset {offset} is damaged: CRC does not match")


def committed(answer: Fetched, position: int) -> Iterator[Batch]:
    transactions = _Aborted(answer.aborted) if answer.aborted else None
    for header, batch in batches(answer.records):
        if 0 <= header.magic < NEWEST:
            if header.last_offset >= position:
                yield header, batch, True
            continue
        aborted = transactions is not None and transactions.holds(header, batch)
        if header.last_offset < position:
            continue
        if header.magic != NEWEST:  # not covered by the CRC
            words = f"is damaged: there is no magic {header.magic & 0xFF}"
            raise MalformedBatch(f"batch at offset {header.base_offset} {words}")
        if not crc_matches(header, batch):
            raise DamagedBatch(header.base_offset)
        nothing = aborted or header.attributes & CONTROL or not header.record_count or is_hidden(header, batch)
        yield header, batch, not nothing


class _Aborted:
    """Must get every batch in log order, control batches too."""

    def __init__(self, transactions: tuple[tuple[int, int], ...]) -> None:
        self._coming = sorted(transactions, key=lambda pair: pair[1], reverse=True)
        self._open: set[int] = set()

    def holds(self, header: BatchHeader, batch: memoryview) -> bool:
        while self._coming and self._coming[-1][1] <= header.last_offset:
            self._open.add(self._coming.pop()[0])
        if header.producer_id not in self._open:
            return False
        if header.attributes & CONTROL:
            if header.record_count and is_abort_marker(header, batch):
                self._open.discard(header.producer_id)
            return False
        return bool(header.attributes & TRANSACTIONAL)
