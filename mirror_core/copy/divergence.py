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

from mirror_core.copy.verdict import ComparisonUndecided
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_faults import LogTrimmed, LogUnreadable
from mirror_core.kafka.offsets import OffsetPoint, list_offsets
from mirror_core.kafka.reader import LogReader
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.records import Record

_FIRST_BACKWARD_STEP: Final = 1_000
_COMPARED_OFFSETS: Final = 1_000
_READ_BYTES: Final = 256 << 10


@dataclass(slots=True)
class _RangeComparison:
    first_difference: Offset | None = None
    has_equal: bool = False
    destination_only: list[Record] = field(default_factory=list)
    source_only_keys: dict[bytes, int] = field(default_factory=dict)

    def add_equal(self, record: Record) -> None:
        """History is the same up to here: what only the destination has before it was compacted on the source."""
        self.has_equal, self.destination_only = True, []
        self.forget_key(record.key)

    def set_difference(self, offset: int) -> None:
        self.first_difference = Offset(offset)

    def add_destination_only(self, record: Record) -> None:
        self.destination_only.append(record)
        self.forget_key(record.key)

    def add_source_only(self, key: bytes, record: Record) -> None:
        self.source_only_keys[key] = record.offset
        if record.value is None:
            self.forget_key(key)  # each side compacts a tombstone at its own time

    def forget_key(self, key: bytes | None) -> None:
        if key is not None:
            self.source_only_keys.pop(key, None)


class DivergenceFinder:
    def __init__(
        self, source: ClusterClient, destination: ClusterClient, check_cancelled: Callable[[], None] = lambda: None
    ) -> None:
        self._source, self._destination = source, destination
        self._check_cancelled = check_cancelled
        self._source_reader = LogReader(
            source.config, source.principal, max_bytes=_READ_BYTES, check_continue=check_cancelled
        )
        self._destination_reader = LogReader(
            destination.config, destination.principal, max_bytes=_READ_BYTES, check_continue=check_cancelled
        )

    @property
    def readers(self) -> tuple[LogReader, LogReader]:
        return self._source_reader, self._destination_reader

    def find_first_divergence(
        self, partition: Partition, position: Offset, agreed_end: int | None = None
    ) -> Offset | None:
        """First offset below `position` (next offset to copy) where the sides differ; None: they agree.

        `since`: both sides agree below it. In a history that was cut once, everything before an equal record is equal.
        So both ends of a long range are compared first: where a log was cut and written anew its first record differs,
        otherwise its last one is equal. If that is inconclusive, or without `since`, the search goes backwards. A
        record on one side only counts unless compaction explains it; so does one that the source cannot read.

        Raises ComparisonUndecided when the source cannot show it yet.
        """
        source_start = list_offsets(self._source, [partition], OffsetPoint.START)[partition]
        destination_start = list_offsets(self._destination, [partition], OffsetPoint.START)[partition]
        log_end = list_offsets(self._source, [partition], OffsetPoint.LOG_END)[partition]
        readable = list_offsets(self._source, [partition], OffsetPoint.STABLE_END)[partition]
        low, end = max(source_start, destination_start), min(position, readable)
        start = self._find_last_equal(partition, low, end) if agreed_end is None else max(low, min(agreed_end, end))
        difference = self._find_difference(partition, start, end)
        if difference is not None:
            return difference
        if log_end < position:
            return Offset(log_end)
        if readable < position:
            subject = f"cluster {self._source.name}, {partition}"
            raise ComparisonUndecided(f"{subject}: readable up to {readable} only, and copied to {position}")
        return None

    def _find_last_equal(self, partition: Partition, low: int, end: int) -> int:
        """An offset near the last equal record; `low` when none is found. Reads few records: steps grow, then
        halve."""
        step, high = _FIRST_BACKWARD_STEP, end
        try:
            while (start := end - step) > low and not self._is_equal_at(partition, start, end):
                step, high = 4 * step, start
            low = max(low, start)
            while high - low > _FIRST_BACKWARD_STEP:
                middle = (low + high) // 2
                low, high = (middle, high) if self._is_equal_at(partition, middle, end) else (low, middle)
        except LogUnreadable:
            pass
        return low

    def _is_equal_at(self, partition: Partition, start: int, end: int) -> bool:
        """Whether the first record from `start` on is equal. After compaction it may differ although nothing
        is wrong."""
        try:
            source_record, destination_record = (
                next(self._read_records(reader, partition, start, end), None)
                for reader in (self._source_reader, self._destination_reader)
            )
        except LogTrimmed as error:
            raise ComparisonUndecided(str(error)) from None
        return source_record is not None and source_record == destination_record

    def _find_difference(self, partition: Partition, start: int, end: int) -> Offset | None:
        if end - start > 2 * _COMPARED_OFFSETS:
            first = self._compare_range(partition, start, start + _COMPARED_OFFSETS)
            if first.first_difference is not None:
                return first.first_difference
            last = self._compare_range(partition, end - _COMPARED_OFFSETS, end)
            unexplained = last.first_difference is not None or self._find_unexplained(partition, last, end)
            if not self._find_unexplained_source(partition, first.source_only_keys, start + _COMPARED_OFFSETS):
                if last.has_equal and not unexplained:
                    return None
                start = self._find_last_equal(partition, start, end)
        comparison = self._compare_range(partition, start, end)
        if comparison.first_difference is not None:
            return comparison.first_difference
        unexplained_offsets = self._find_unexplained(partition, comparison, end)
        return Offset(min(unexplained_offsets)) if unexplained_offsets else None

    def _compare_range(self, partition: Partition, start: int, end: int) -> _RangeComparison:
        comparison = _RangeComparison()
        agreed_end = start
        source_only: list[int] = []
        source_records, destination_records = (
            self._read_records(reader, partition, start, end)
            for reader in (self._source_reader, self._destination_reader)
        )
        try:
            destination_record = next(destination_records, None)
            for source_record in source_records:
                while destination_record is not None and destination_record.offset < source_record.offset:
                    comparison.add_destination_only(destination_record)
                    destination_record = next(destination_records, None)
                if source_record.key is not None and (
                    destination_record is None or destination_record.offset > source_record.offset
                ):
                    source_only.append(source_record.offset)
                    comparison.add_source_only(source_record.key, source_record)
                    continue
                if source_record != destination_record:
                    comparison.set_difference(
                        min(
                            [
                                source_record.offset,
                                *source_only,
                                *(record.offset for record in comparison.destination_only),
                            ]
                        )
                    )
                    return comparison
                comparison.add_equal(source_record)
                source_only = []
                agreed_end = source_record.offset + 1
                destination_record = next(destination_records, None)
            for record in (*(() if destination_record is None else (destination_record,)), *destination_records):
                comparison.add_destination_only(record)
        except LogTrimmed as error:
            raise ComparisonUndecided(str(error)) from None
        except LogUnreadable:
            comparison.set_difference(agreed_end)
        return comparison

    def _find_unexplained(self, partition: Partition, comparison: _RangeComparison, end: int) -> list[int]:
        unexplained = self._find_unexplained_destination(partition, comparison.destination_only, end)
        return [
            *(record.offset for record in unexplained),
            *self._find_unexplained_source(partition, comparison.source_only_keys, end),
        ]

    def _find_unexplained_destination(
        self, partition: Partition, destination_only: list[Record], end: int
    ) -> list[Record]:
        newer_keys = self._find_newer_keys(
            self._source_reader,
            partition,
            {candidate.key for candidate in destination_only if candidate.key is not None},
            end,
        )
        return [record for record in destination_only if record.key is None or record.key not in newer_keys]

    def _find_unexplained_source(self, partition: Partition, source_only: dict[bytes, int], end: int) -> list[int]:
        newer_keys = self._find_newer_keys(self._destination_reader, partition, set(source_only), end)
        return [offset for key, offset in source_only.items() if key not in newer_keys]

    def _find_newer_keys(self, reader: LogReader, partition: Partition, wanted: set[bytes], end: int) -> set[bytes]:
        newer_keys: set[bytes] = set()
        if not wanted:
            return newer_keys
        try:
            for record in self._read_records(reader, partition, end, reader.stable_end(partition)):
                if record.key in wanted:
                    newer_keys.add(record.key)
                    if newer_keys == wanted:
                        break
        except (LogTrimmed, LogUnreadable) as error:
            raise ComparisonUndecided(str(error)) from None
        return newer_keys

    def _read_records(self, reader: LogReader, partition: Partition, start: int, end: int) -> Iterator[Record]:
        for _, record in reader.records(partition, Offset(start), Offset(end)):
            self._check_cancelled()
            yield record

    def close(self) -> None:
        self._source_reader.close()
        self._destination_reader.close()

    def __enter__(self) -> DivergenceFinder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
