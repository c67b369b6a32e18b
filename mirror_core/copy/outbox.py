"""A partition's send queue: batches, and the gaps between them."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from mirror_core.wire.batch import SEQUENCE_MASK

QUEUE_BYTES: Final = 1 << 20


class Gap(NamedTuple):
    """Offsets up to `end` (exclusive) without a record on the source. It starts where the item before it
    ends."""

    end: int


class Hidden(NamedTuple):
    """Offsets [base, end) without a record on the source, to be used up by hidden records."""

    base: int
    end: int
    sequence: int
    time_ms: int


class Sent(NamedTuple):
    base: int
    records: int
    size: int
    content: int | None
    """Its digest (`wire.digest`); None for hidden records and seeds."""
    newest_ms: int = -1
    """Newest record time. A broker that already has the batch responds with this time instead of its own."""


Ready = tuple[Sent, memoryview]


class Waiting:
    """Bytes queued by all partitions of a task."""

    __slots__ = ("bytes", "most")

    def __init__(self, most: int = 64 << 20) -> None:
        self.bytes = 0
        self.most = most

    @property
    def half_full(self) -> bool:
        return self.bytes >= self.most // 2

    def changed(self, size: int) -> None:
        self.bytes += size


class Outbox:
    __slots__ = ("bytes", "hiding", "items", "newest_ms", "waiting")

    def __init__(self, waiting: Waiting) -> None:
        self.waiting = waiting
        self.items: deque[Gap | Hidden | Ready] = deque()
        self.bytes = 0
        self.hiding: deque[tuple[int, int]] = deque()
        self.newest_ms = -1
        """Time of the newest batch. Hidden records take it over: lookups by time find the same segment as
        without them, and brokers remember the producer as long as for its data (they go by its last batch)."""

    @property
    def full(self) -> bool:
        """Its own limit, or the task's. Partitions with something queued stop first: that is sent soon, while
        those with nothing hold nothing up."""
        if self.bytes >= QUEUE_BYTES:
            return True
        return self.waiting.half_full if self.bytes else self.waiting.bytes >= self.waiting.most

    @property
    def first_gap(self) -> Gap | None:
        head = self.items[0] if self.items else None
        return head if isinstance(head, Gap) else None

    def resume(self, newest_ms: int) -> None:
        self.drop()
        self.hiding.clear()
        self.newest_ms = newest_ms

    def drop(self) -> None:
        self.items.clear()
        self.waiting.changed(-self.bytes)
        self.bytes = 0

    def saw(self, newest_ms: int) -> None:
        self.newest_ms = newest_ms

    def put(self, sent: Sent, batch: memoryview) -> None:
        self.items.append((sent, memoryview(bytearray(batch))))
        self.bytes += sent.size
        self.waiting.changed(sent.size)

    def keep(self, sent: Sent, batch: memoryview) -> None:
        at = 0
        while self.goes_before(sent.base, at):
            at += 1
        self.items.insert(at, (sent, memoryview(bytearray(batch))))
        self.bytes += sent.size
        self.waiting.changed(sent.size)

    def goes_before(self, base: int, at: int = 0) -> bool:
        item = self.items[at] if at < len(self.items) else None
        return item is not None and not isinstance(item, Gap | Hidden) and item[0].base < base

    def mark_to(self, end: int) -> None:
        if self.items and isinstance(self.items[-1], Gap):
            self.items.pop()
        self.items.append(Gap(end))

    def hide_to(self, base: int, end: int, sequence: int) -> None:
        last = self.items[-1] if self.items else None
        if isinstance(last, Hidden):
            self.items[-1] = last._replace(end=end)
        else:
            self.items.append(Hidden(base, end, sequence, self.newest_ms))

    def take(self) -> Hidden | Ready:
        item = self.items.popleft()
        assert not isinstance(item, Gap)
        if not isinstance(item, Hidden):
            self.bytes -= item[0].size
            self.waiting.changed(-item[0].size)
        return item

    def take_hidden(self, gap: Hidden, most: int) -> int:
        count = min(most, gap.end - gap.base)
        base = gap.base + count
        if base < gap.end:
            self.items.appendleft(gap._replace(base=base, sequence=(gap.sequence + count) & SEQUENCE_MASK))
        self.hiding.append((gap.base, base))
        return count

    def hid(self) -> None:
        self.hiding.popleft()

    def filled_to(self, offset: int) -> None:
        gap = self.first_gap
        if gap is not None and gap.end == offset:
            self.items.popleft()
