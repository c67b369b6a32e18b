"""What waits in a partition's line: batches, and the gaps between them."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from mirror_core.wire.batch import SEQUENCE_MASK

QUEUE_BYTES: Final = 1 << 20
"""Of a partition's batches that wait; then no more are fetched."""


class Gap(NamedTuple):
    """Offsets up to `end` (the next one after it) that hold no record on the source.

    It begins where what is before it ends.
    """

    end: int


class Hidden(NamedTuple):
    """Offsets [base, end) that hold no record on the source, in a mirror that uses them up by hidden records."""

    base: int
    end: int
    sequence: int
    time_ms: int


class Sent(NamedTuple):
    """What is remembered of a batch in flight."""

    base: int
    records: int
    size: int
    content: int | None
    """What it says (`wire.digest`); None where records stand for nothing: hidden ones, and seeds."""
    newest_ms: int = -1
    """Time of its newest record. A broker that has it already answers with this time, as if it were its own."""


Ready = tuple[Sent, memoryview]
"""A batch, and its bytes."""


class Waiting:
    """What waits in all lines of a task together."""

    __slots__ = ("bytes", "most")

    def __init__(self, most: int = 64 << 20) -> None:
        self.bytes = 0
        self.most = most

    @property
    def half_full(self) -> bool:
        return self.bytes >= self.most // 2

    def changed(self, size: int) -> None:
        """So many bytes more, or fewer."""
        self.bytes += size


class Outbox:
    """The line; it begins with a gap, or with what waits for an answer, and bytes in it are its own."""

    __slots__ = ("bytes", "hiding", "items", "newest_ms", "waiting")

    def __init__(self, waiting: Waiting) -> None:
        self.waiting = waiting
        self.items: deque[Gap | Hidden | Ready] = deque()
        self.bytes = 0
        self.hiding: deque[tuple[int, int]] = deque()
        """Offsets [base, end) of batches of hidden records in flight."""
        self.newest_ms = -1
        """Time of the newest batch in line. Hidden records take it over: so no lookup by time finds another segment
        than it would without them, and brokers remember the producer as long as for its data (they go by its last
        batch)."""

    @property
    def full(self) -> bool:
        """Of its own; or all lines together hold too much: then those first wait that hold some of it, which is sent
        before long, and not those that hold nothing up."""
        if self.bytes >= QUEUE_BYTES:
            return True
        return self.waiting.half_full if self.bytes else self.waiting.bytes >= self.waiting.most

    @property
    def first_gap(self) -> Gap | None:
        """What is first in line, where that is for markers."""
        head = self.items[0] if self.items else None
        return head if isinstance(head, Gap) else None

    def resume(self, newest_ms: int) -> None:
        """Begin anew, with nothing in line."""
        self.drop()
        self.hiding.clear()
        self.newest_ms = newest_ms

    def drop(self) -> None:
        """Nothing of it will be sent."""
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
        """What could not be sent goes back to where it was: behind what went back before it, and before all else."""
        at = 0
        while self.goes_before(sent.base, at):
            at += 1
        self.items.insert(at, (sent, memoryview(bytearray(batch))))
        self.bytes += sent.size
        self.waiting.changed(sent.size)

    def goes_before(self, base: int, at: int = 0) -> bool:
        """Whether a batch at this place in line is one for an offset before `base`."""
        item = self.items[at] if at < len(self.items) else None
        return item is not None and not isinstance(item, Gap | Hidden) and item[0].base < base

    def mark_to(self, end: int) -> None:
        """A gap for markers; one with the gap before it."""
        if self.items and isinstance(self.items[-1], Gap):
            self.items.pop()
        self.items.append(Gap(end))

    def hide_to(self, base: int, end: int, sequence: int) -> None:
        """A gap for hidden records; one with the gap before it."""
        last = self.items[-1] if self.items else None
        if isinstance(last, Hidden):
            self.items[-1] = last._replace(end=end)
        else:
            self.items.append(Hidden(base, end, sequence, self.newest_ms))

    def take(self) -> Hidden | Ready:
        """The first thing in line, which is not a gap for markers."""
        item = self.items.popleft()
        assert not isinstance(item, Gap)
        if not isinstance(item, Hidden):
            self.bytes -= item[0].size
            self.waiting.changed(-item[0].size)
        return item

    def take_hidden(self, gap: Hidden, most: int) -> int:
        """So many of the first offsets of a gap that was taken go out; the rest stays first in line."""
        count = min(most, gap.end - gap.base)
        base = gap.base + count
        if base < gap.end:
            self.items.appendleft(gap._replace(base=base, sequence=(gap.sequence + count) & SEQUENCE_MASK))
        self.hiding.append((gap.base, base))
        return count

    def hid(self) -> None:
        """The first batch of hidden records in flight is acknowledged."""
        self.hiding.popleft()

    def filled_to(self, offset: int) -> None:
        """The log ends there: drop the gap that is full."""
        gap = self.first_gap
        if gap is not None and gap.end == offset:
            self.items.popleft()
