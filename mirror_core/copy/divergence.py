"""Finds the first offset where the source no longer holds what was copied from it.

An unclean leader election, or a restored backup, makes a source lose its newest records and write others, perhaps
beyond our position. Leader epochs show that this may have happened (KIP-101, KIP-320). Only records show whether
anything differs: a producer that retries may write the same records again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from mirror_core.copy.verdict import Undecided
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_faults import Trimmed, Unreadable
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.kafka.reader import LogReader
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.records import Record

_FIRST_STEP: Final = 1_000
_WINDOW: Final = 1_000
_READ_BYTES: Final = 256 << 10


@dataclass(slots=True)
class _Seen:
    differs: Offset | None = None
    equal: bool = False
    lone: list[Record] = field(default_factory=list)
    bare: dict[bytes, int] = field(default_factory=dict)

    def agrees(self, record: Record) -> None:
        """History is the same up to here: what only the destination has before it was compacted on the source."""
        self.equal, self.lone = True, []
        self.replaced(record.key)

    def differs_at(self, offset: int) -> None:
        self.differs = Offset(offset)

    def only_here(self, record: Record) -> None:
        self.lone.append(record)
        self.replaced(record.key)

    def only_there(self, key: bytes, record: Record) -> None:
        self.bare[key] = record.offset
        if record.value is None:
            self.replaced(key)  # each side compacts a tombstone at its own time

    def replaced(self, key: bytes | None) -> None:
        if key is not None:
            self.bare.pop(key, None)


class Divergence:
    def __init__(
        self, source: ClusterClient, destination: ClusterClient, go_on: Callable[[], None] = lambda: None
    ) -> None:
        self._source, self._destination = source, destination
        self._go_on = go_on
        self._one = LogReader(source.config, source.principal, max_bytes=_READ_BYTES, go_on=go_on)
        self._two = LogReader(destination.config, destination.principal, max_bytes=_READ_BYTES, go_on=go_on)

    @property
    def readers(self) -> tuple[LogReader, LogReader]:
        return self._one, self._two

    def first_divergence(self, partition: Partition, position: Offset, since: int | None = None) -> Offset | None:
        """First offset below `position` (next offset to copy) where the sides differ; None: they agree.

        `since`: both sides agree below it. In a history that was cut once, everything before an equal record is equal.
        So both ends of a long range are compared first: where a log was cut and written anew its first record differs,
        otherwise its last one is equal. If that is inconclusive, or without `since`, the search goes backwards. A
        record on one side only counts unless compaction explains it; so does one that the source cannot read.

        Raises ComparisonUndecided when the source cannot show it yet.
        """
        there = list_offsets(self._source, [partition], Point.START)[partition]
        here = list_offsets(self._destination, [partition], Point.START)[partition]
        log_end = list_offsets(self._source, [partition], Point.LOG_END)[partition]
        readable = list_offsets(self._source, [partition], Point.STABLE_END)[partition]
        low, end = max(there, here), min(position, readable)
        start = self._last_equal(partition, low, end) if since is None else max(low, min(since, end))
        found = self._differs(partition, start, end)
        if found is not None:
            return found
        if log_end < position:
            return Offset(log_end)
        if readable < position:
            where = f"cluster {self._source.name}, {partition}"
            raise Undecided(f"{where}: readable up to {readable} only, and copied to {position}")
        return None

    def _last_equal(self, partition: Partition, low: int, end: int) -> int:
        """An offset near the last equal record; `low` when none is found. Reads few records: steps grow, then
        halve."""
        step, high = _FIRST_STEP, end
        try:
            while (start := end - step) > low and not self._equal_at(partition, start, end):
                step, high = 4 * step, start
            low = max(low, start)
            while high - low > _FIRST_STEP:
                middle = (low + high) // 2
                low, high = (middle, high) if self._equal_at(partition, middle, end) else (low, middle)
        except Unreadable:
            pass
        return low

    def _equal_at(self, partition: Partition, start: int, end: int) -> bool:
        """Whether the first record from `start` on is equal. After compaction it may differ although nothing
        is wrong."""
        try:
            mine, theirs = (next(self._records(r, partition, start, end), None) for r in (self._one, self._two))
        except Trimmed as error:
            raise Undecided(str(error)) from None
        return mine is not None and mine == theirs

    def _differs(self, partition: Partition, start: int, end: int) -> Offset | None:
        if end - start > 2 * _WINDOW:
            first = self._look(partition, start, start + _WINDOW)
            if first.differs is not None:
                return first.differs
            last = self._look(partition, end - _WINDOW, end)
            unexplained = last.differs is not None or self._left(partition, last, end)
            if not self._bare(partition, first.bare, start + _WINDOW):
                if last.equal and not unexplained:
                    return None
                start = self._last_equal(partition, start, end)
        seen = self._look(partition, start, end)
        if seen.differs is not None:
            return seen.differs
        left = self._left(partition, seen, end)
        return Offset(min(left)) if left else None

    def _look(self, partition: Partition, start: int, end: int) -> _Seen:
        seen = _Seen()
        agreed = start
        since: list[int] = []
        one, two = (self._records(reader, partition, start, end) for reader in (self._one, self._two))
        try:
            theirs = next(two, None)
            for mine in one:
                while theirs is not None and theirs.offset < mine.offset:
                    seen.only_here(theirs)
                    theirs = next(two, None)
                if mine.key is not None and (theirs is None or theirs.offset > mine.offset):
                    since.append(mine.offset)
                    seen.only_there(mine.key, mine)
                    continue
                if mine != theirs:
                    seen.differs_at(min([mine.offset, *since, *(record.offset for record in seen.lone)]))
                    return seen
                seen.agrees(mine)
                since = []
                agreed = mine.offset + 1
                theirs = next(two, None)
            for record in (*(() if theirs is None else (theirs,)), *two):
                seen.only_here(record)
        except Trimmed as error:
            raise Undecided(str(error)) from None
        except Unreadable:
            seen.differs_at(agreed)
        return seen

    def _left(self, partition: Partition, seen: _Seen, end: int) -> list[int]:
        lone = self._unexplained(partition, seen.lone, end)
        return [*(record.offset for record in lone), *self._bare(partition, seen.bare, end)]

    def _unexplained(self, partition: Partition, lone: list[Record], end: int) -> list[Record]:
        newer = self._newer(self._one, partition, {r.key for r in lone if r.key is not None}, end)
        return [record for record in lone if record.key is None or record.key not in newer]

    def _bare(self, partition: Partition, bare: dict[bytes, int], end: int) -> list[int]:
        newer = self._newer(self._two, partition, set(bare), end)
        return [offset for key, offset in bare.items() if key not in newer]

    def _newer(self, reader: LogReader, partition: Partition, wanted: set[bytes], end: int) -> set[bytes]:
        newer: set[bytes] = set()
        if not wanted:
            return newer
        try:
            for record in self._records(reader, partition, end, reader.stable_end(partition)):
                if record.key in wanted:
                    newer.add(record.key)
                    if newer == wanted:
                        break
        except (Trimmed, Unreadable) as error:
            raise Undecided(str(error)) from None
        return newer

    def _records(self, reader: LogReader, partition: Partition, start: int, end: int) -> Iterator[Record]:
        for _, record in reader.records(partition, Offset(start), Offset(end)):
            self._go_on()
            yield record

    def close(self) -> None:
        self._one.close()
        self._two.close()

    def __enter__(self) -> Divergence:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
