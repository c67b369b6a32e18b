"""A partition's batches to send, and the gaps between them."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from mirror_core.wire.batch import SEQUENCE_MASK

MAX_QUEUED_BYTES: Final = 1 << 20


class Gap(NamedTuple):
    """Without a record on the source: from the end of the item before it up to `end` (exclusive)."""

    end: int


class HiddenGap(NamedTuple):
    """[base, end) without a record on the source, to be used up by hidden records."""

    base_offset: int
    end: int
    sequence: int
    time_ms: int


class SentBatch(NamedTuple):
    base_offset: int
    records: int
    size: int
    digest: int | None
    """See `wire.batch`; None for hidden records and seeds."""
    newest_ms: int = -1
    """Newest record time. A broker that already has the batch responds with this time instead of its own."""


ReadyBatch = tuple[SentBatch, memoryview]


class QueueBudget:
    """All partitions of a task share it."""

    __slots__ = ("bytes", "max_bytes")

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self.bytes = 0
        self.max_bytes = max_bytes

    @property
    def is_half_full(self) -> bool:
        return self.bytes >= self.max_bytes // 2

    def add(self, size: int) -> None:
        self.bytes += size


class SendQueue:
    __slots__ = ("budget", "bytes", "hidden_in_flight", "items", "newest_ms")

    def __init__(self, budget: QueueBudget) -> None:
        self.budget = budget
        self.items: deque[Gap | HiddenGap | ReadyBatch] = deque()
        self.bytes = 0
        self.hidden_in_flight: deque[tuple[int, int]] = deque()
        self.newest_ms = -1
        """Time of the newest batch. Hidden records take it over: lookups by time find the same segment, and brokers
        remember the producer as long as for its data."""

    @property
    def is_full(self) -> bool:
        """Its own limit, or the task's. Partitions with something queued stop first: that is sent soon."""
        if self.bytes >= MAX_QUEUED_BYTES:
            return True
        return self.budget.is_half_full if self.bytes else self.budget.bytes >= self.budget.max_bytes

    @property
    def first_gap(self) -> Gap | None:
        head = self.items[0] if self.items else None
        return head if isinstance(head, Gap) else None

    def restart(self, newest_ms: int) -> None:
        self.clear()
        self.hidden_in_flight.clear()
        self.newest_ms = newest_ms

    def clear(self) -> None:
        self.items.clear()
        self.budget.add(-self.bytes)
        self.bytes = 0

    def note_time(self, newest_ms: int) -> None:
        self.newest_ms = newest_ms

    def put(self, sent: SentBatch, batch: memoryview) -> None:
        self.items.append((sent, memoryview(bytearray(batch))))
        self.bytes += sent.size
        self.budget.add(sent.size)

    def put_back(self, sent: SentBatch, batch: memoryview) -> None:
        index = 0
        while self.has_batch_before(sent.base_offset, index):
            index += 1
        self.items.insert(index, (sent, memoryview(bytearray(batch))))
        self.bytes += sent.size
        self.budget.add(sent.size)

    def has_batch_before(self, base_offset: int, index: int = 0) -> bool:
        item = self.items[index] if index < len(self.items) else None
        return item is not None and not isinstance(item, Gap | HiddenGap) and item[0].base_offset < base_offset

    def add_marker_gap(self, end: int) -> None:
        if self.items and isinstance(self.items[-1], Gap):
            self.items.pop()
        self.items.append(Gap(end))

    def add_hidden_gap(self, base_offset: int, end: int, sequence: int) -> None:
        last = self.items[-1] if self.items else None
        if isinstance(last, HiddenGap):
            self.items[-1] = last._replace(end=end)
        else:
            self.items.append(HiddenGap(base_offset, end, sequence, self.newest_ms))

    def pop(self) -> HiddenGap | ReadyBatch:
        item = self.items.popleft()
        assert not isinstance(item, Gap)
        if not isinstance(item, HiddenGap):
            self.bytes -= item[0].size
            self.budget.add(-item[0].size)
        return item

    def pop_hidden(self, gap: HiddenGap, max_records: int) -> int:
        count = min(max_records, gap.end - gap.base_offset)
        next_offset = gap.base_offset + count
        if next_offset < gap.end:
            self.items.appendleft(
                gap._replace(base_offset=next_offset, sequence=(gap.sequence + count) & SEQUENCE_MASK)
            )
        self.hidden_in_flight.append((gap.base_offset, next_offset))
        return count

    def acknowledge_hidden(self) -> None:
        self.hidden_in_flight.popleft()

    def drop_filled_gap(self, offset: int) -> None:
        gap = self.first_gap
        if gap is not None and gap.end == offset:
            self.items.popleft()
