"""Finds the first offset where the source no longer holds what was copied from it.

After an unclean election or a restored backup leader epochs show that a source may have lost records (KIP-101,
KIP-320). Only records show a difference: a producer that retries may write the same ones again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from mirror_core.copy.log_ends import find_own_producer
from mirror_core.copy.messages import ClusterSide, format_denied
from mirror_core.copy.resume_decision import ComparisonUndecided
from mirror_core.decide.gaps_and_resume import FILLED_MASK, BothLogBounds, find_own_end
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.error_mapping import ErrorCode
from mirror_core.kafka.fetch_link import (
    REMOTE_STORAGE_HINT,
    EmptyFetch,
    FetchLink,
    classify_empty_fetch,
    fetch_local_start,
    fetch_once,
)
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.kafka.log_reader import LogReader, LogTrimmed, LogUnreadable
from mirror_core.kafka.log_snapshot import snapshot_logs
from mirror_core.model.acl import Operation
from mirror_core.model.errors import MissingPermission, RemoteFault, Unreachable
from mirror_core.model.mirror import DesiredState, Mirror, PartitionStatus, is_healthy
from mirror_core.model.names import Offset, Partition
from mirror_core.model.source_observation import SourceObservation
from mirror_core.wire.batch import CONTROL, LOG_APPEND_TIME, BatchHeader, MalformedBatch, split_batches
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
        """Up to here history is the same: what only the destination has before it was compacted on the source."""
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
        self, partition: Partition, position: Offset, agreed_end: int | None = None, doubted_from: int | None = None
    ) -> Offset | None:
        """First offset below `position` (next offset to copy) where the sides differ; None: they agree.

        `agreed_end`: both sides agree below it. In a history that was cut once, everything before an equal record is
        equal, so both ends of a long range are compared first. If that is inconclusive, or without `agreed_end`, the
        search goes backwards. A record on one side only counts unless compaction explains it; so does one that the
        source cannot read. From `doubted_from` on true records may follow those of others: all are compared.

        Raises ComparisonUndecided when the source cannot show it yet.
        """
        source_start = list_offsets(self._source, [partition], OffsetPoint.START)[partition]
        destination_start = list_offsets(self._destination, [partition], OffsetPoint.START)[partition]
        log_end = list_offsets(self._source, [partition], OffsetPoint.LOG_END)[partition]
        readable = list_offsets(self._source, [partition], OffsetPoint.STABLE_END)[partition]
        low, end = max(source_start, destination_start), min(position, readable)
        start = self._find_last_equal(partition, low, end) if agreed_end is None else max(low, min(agreed_end, end))
        if doubted_from is None or doubted_from > start:
            difference = self._find_difference(partition, start, end)
        else:
            difference = self._compare_all(partition, start, end)
        if difference is None and doubted_from is not None and start < doubted_from < end:
            difference = self._compare_all(partition, doubted_from, end)
        if difference is not None:
            return difference
        if log_end < position:
            return Offset(log_end)
        if readable < position:
            subject = f"cluster {self._source.name}, {partition}"
            raise ComparisonUndecided(f"{subject}: readable up to {readable} only, and copied to {position}")
        return None

    def _find_last_equal(self, partition: Partition, low: int, end: int) -> int:
        """`low` when none is found. Reads few records: steps grow, then halve."""
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
        """By the first record from `start` on. After compaction it may differ although nothing is wrong."""
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
        return self._compare_all(partition, start, end)

    def _compare_all(self, partition: Partition, start: int, end: int) -> Offset | None:
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


_HEADER_FETCH_BYTES: Final = 1 << 20
_FIRST_READ_STEP: Final = 1_000
_MAX_BACKWARD_STEP: Final = 1_000_000
_MAX_TAIL_OFFSETS: Final = 16_000
"""How many a plan reads of one log at most: it waits for seconds only."""


def find_first_foreign(
    client: ClusterClient, link: FetchLink, partition: Partition, producer_id: int, filled: int, bounds: BothLogBounds
) -> int | None:
    """First batch near the log end that this producer id did not write at its offset.

    `filled`: how many offsets its markers should have taken. Goes back in growing steps to a batch of ours at the right
    offset (its sequence plus the markers before it). None when all are ours: then there are too many markers, and
    nothing shows which. Reads headers only.
    """
    for start, headers in _read_headers_backwards(client, link, partition, bounds.log_start, bounds.log_end):
        last_in_place = _find_last_in_place(headers, producer_id, filled)
        if last_in_place is not None or start == bounds.log_start:
            later = headers if last_in_place is None else headers[last_in_place + 1 :]
            foreign = next((header for header in later if header.producer_id != producer_id), None)
            return max(foreign.base_offset, bounds.log_start) if foreign else None
    return None


def _find_last_in_place(headers: list[BatchHeader], producer_id: int, filled: int) -> int | None:
    before = filled
    for index in range(len(headers) - 1, -1, -1):
        header = headers[index]
        if header.producer_id != producer_id:
            continue
        if header.attributes & CONTROL:
            before -= 1
        elif (header.base_offset - header.base_sequence - before) & FILLED_MASK == 0:
            return index
    return None


def find_last_after_hole(
    client: ClusterClient, link: FetchLink, partition: Partition, producer_id: int, bounds: BothLogBounds
) -> BatchHeader | None:
    """Header of the log's last batch, if only data of this producer id follows the nearest hole in the offsets.

    Only compaction leaves holes, and never in the last segment: a marker that a leader does not know may have been
    there. A foreign record, or a marker too many, would stand directly before what it has shifted.
    """
    for start, headers in _read_headers_backwards(client, link, partition, bounds.log_start, bounds.log_end):
        next_base = bounds.log_end
        for header in reversed(headers):
            if header.next_offset != next_base:
                return headers[-1] if next_base < bounds.log_end else None
            if header.producer_id != producer_id or header.attributes & CONTROL:
                return None
            next_base = header.base_offset
        if start == bounds.log_start:
            return headers[-1] if bounds.log_start < next_base < bounds.log_end else None
    return None


def find_foreign_after_own(
    client: ClusterClient,
    link: FetchLink,
    partition: Partition,
    producer_id: int,
    bounds: BothLogBounds,
    search_from: int | None,
) -> int | None:
    """First batch from `search_from` on that another producer wrote after one of ours.

    Others may have written before our first one: a failback mirrors into a log that applications started. Without
    `search_from`, searches backwards within a limit.
    """
    step = _FIRST_READ_STEP
    while True:
        start = max(bounds.log_start, bounds.log_end - step if search_from is None else search_from)
        own_found = False
        # A generator: millions of markers may follow the last record.
        for header in _read_headers(client, link, partition, start, bounds.log_end):
            if own_found and header.producer_id != producer_id:
                return header.base_offset
            own_found |= header.producer_id == producer_id
        if search_from is not None or own_found or start == bounds.log_start or step > _MAX_BACKWARD_STEP:
            return None
        step *= 4


def find_foreign_writes(
    client: ClusterClient,
    mirror: Mirror,
    statuses: Mapping[Partition, PartitionStatus],
    observation: SourceObservation | None,
    log_ends: Mapping[Partition, int],
) -> dict[Partition, Offset | None]:
    """First offsets at the ends of the mirror's healthy logs that somebody else wrote. None: not known.

    Empty once the mirror is STOPPED: applications write then.
    """
    if mirror.desired is DesiredState.STOPPED:
        return {}
    healthy = {p: end for p, end in log_ends.items() if p in statuses and is_healthy(statuses[p])}
    reported_ends = dict(observation.get_reported_ends()) if observation else {}
    return find_foreign_starts(client, mirror.producer_id, reported_ends, healthy)


def find_foreign_starts(
    client: ClusterClient, producer_id: int, reported_ends: Mapping[Partition, int], log_ends: Mapping[Partition, int]
) -> dict[Partition, Offset | None]:
    """First offsets beyond the tasks' reports that another producer wrote; asks the destination only.

    None: not known. `reported_ends`: next offset after what tasks reported as copied. Without one, the mirror wrote up
    to where the leader says, or else up to the last batch header near the log's end that has its producer id. Reads
    headers only.
    """
    unreported = [p for p, end in log_ends.items() if reported_ends.get(p, 0) < end]
    by_leader = client.leaders(unreported) if unreported else {}
    logs = snapshot_logs(client, {broker: partitions for broker, partitions in by_leader.items() if broker >= 0}).logs
    foreign_starts = dict[Partition, Offset | None]()
    with LogReader(client.config, client.principal, timeout_s=client.timeout_s, max_bytes=_READ_BYTES) as reader:
        for partition in unreported:
            if (log := logs.get(partition)) is None:
                foreign_starts[partition] = None
                continue
            producer, log_end = find_own_producer(log.producers, producer_id), log_ends[partition]
            leader_end = find_own_end(producer, log.end_after) if producer else None
            if leader_end == log.end_after:
                continue
            own_end = reported_ends.get(partition, leader_end)
            try:
                link = FetchLink(
                    reader.leader_connection(partition),
                    max_bytes=_HEADER_FETCH_BYTES,
                    partition_max_bytes=_HEADER_FETCH_BYTES,
                )
                if own_end is None:
                    own_end = _find_last_own_end(client, link, partition, producer_id, log.start, log_end)
                if own_end is None:
                    foreign_starts[partition] = None
                    continue
                headers = _read_headers(client, link, partition, own_end, log_end)
                foreign = next((header for header in headers if header.producer_id != producer_id), None)
            except (RemoteFault, MalformedBatch):
                foreign_starts[partition] = None
            else:
                if foreign is not None:
                    foreign_starts[partition] = Offset(max(foreign.base_offset, own_end))
    return foreign_starts


def _find_last_own_end(
    client: ClusterClient, link: FetchLink, partition: Partition, producer_id: int, log_start: int, log_end: int
) -> int | None:
    """Next offset after this producer's last batch. None: it is not among the last offsets."""
    oldest = max(log_start, log_end - _MAX_TAIL_OFFSETS)
    for _, headers in _read_headers_backwards(client, link, partition, oldest, log_end):
        own_ends = [header.next_offset for header in headers if header.producer_id == producer_id]
        if own_ends:
            return own_ends[-1]
    return None


def read_last_record(reader: LogReader, partition: Partition, start: int, end: int) -> Record | None:
    step = _FIRST_READ_STEP
    while True:
        low = max(start, end - step)
        last = deque(reader.records(partition, Offset(low), Offset(end)), maxlen=1)
        if last or low == start:
            return last[0][1] if last else None
        step *= 8


def read_record(reader: LogReader, partition: Partition, offset: int) -> Record | None:
    return next((record for _, record in reader.records(partition, Offset(offset), Offset(offset + 1))), None)


def has_broker_time(reader: LogReader, partition: Partition, offset: int) -> bool:
    records = reader.records(partition, Offset(offset), Offset(offset + 1))
    return any(header.attributes & LOG_APPEND_TIME for header, _ in records)


def find_first_retimed(
    client: ClusterClient, link: FetchLink, partition: Partition, producer_id: int, start: int, end: int, log_start: int
) -> int | None:
    """Our first batch in [start, end) with the broker's time; we send none with it.

    If all of ours there have it, searches on backwards for the first of the row. Reads headers only.
    """
    first_offset, step = None, _FIRST_READ_STEP
    while True:
        own_headers = [
            header
            for header in _read_headers(client, link, partition, start, end)
            if header.producer_id == producer_id and not header.attributes & CONTROL
        ]
        retimed_offsets = [header.base_offset for header in own_headers if header.attributes & LOG_APPEND_TIME]
        if not retimed_offsets:
            return first_offset
        first_offset = max(retimed_offsets[0], log_start)
        if start == log_start or retimed_offsets[0] != own_headers[0].base_offset:
            return first_offset
        start, step = max(log_start, start - step), step * 4


class InspectionHalted(Unreachable): ...


class RemoteLogInspector:
    """Connects on use; reconnects after an error."""

    def __init__(self, source: ClusterClient, destination: ClusterClient, producer_id: int) -> None:
        self._source, self._destination = source.clone(), destination.clone()
        self._producer_id = producer_id
        self._halted = False
        self._connection: Connection | None = None
        self._reset_readers()

    def halt(self) -> None:
        """Thread-safe: a running comparison reads nothing more."""
        self._halted = True
        if (connection := self._connection) is not None:
            connection.shut_down()

    def _check_halted(self) -> None:
        if self._halted:
            raise InspectionHalted("nobody waits for this look any more")

    def _reset_readers(self) -> None:
        self._divergence = DivergenceFinder(self._source, self._destination, self._check_halted)
        self._source_reader, self._destination_reader = self._divergence.readers

    def find_first_foreign(self, partition: Partition, filled: int, bounds: BothLogBounds) -> int | None:
        return find_first_foreign(
            self._destination, self._get_link(partition), partition, self._producer_id, filled, bounds
        )

    def next_sequence_after_hole(self, partition: Partition, bounds: BothLogBounds) -> int | None:
        last = find_last_after_hole(self._destination, self._get_link(partition), partition, self._producer_id, bounds)
        return None if last is None else last.base_sequence + last.last_offset_delta + 1

    def find_foreign_after_own(
        self, partition: Partition, bounds: BothLogBounds, search_from: int | None
    ) -> int | None:
        return find_foreign_after_own(
            self._destination, self._get_link(partition), partition, self._producer_id, bounds, search_from
        )

    def read_last_record(self, partition: Partition, start: int, end: int) -> Record | None:
        return read_last_record(self._source_reader, partition, start, end)

    def read_record(self, partition: Partition, offset: int) -> Record | None:
        return read_record(self._destination_reader, partition, offset)

    def find_first_divergence(
        self, partition: Partition, position: int, agreed_end: int | None, doubted_from: int | None
    ) -> Offset | None:
        return self._divergence.find_first_divergence(partition, Offset(position), agreed_end, doubted_from)

    def has_broker_time(self, partition: Partition, offset: int) -> bool:
        return has_broker_time(self._destination_reader, partition, offset)

    def find_first_retimed(self, partition: Partition, start: int, bounds: BothLogBounds) -> int | None:
        link, log_start = self._get_link(partition), bounds.log_start
        return find_first_retimed(
            self._destination, link, partition, self._producer_id, max(start, log_start), bounds.log_end, log_start
        )

    def close(self) -> None:
        self._connection = None
        self._divergence.close()
        self._source.close()
        self._destination.close()
        self._reset_readers()

    def _get_link(self, partition: Partition) -> FetchLink:
        self._connection = connection = self._destination_reader.leader_connection(partition)
        self._check_halted()  # not before it is there to be seen: who halts says so first, and then looks for it
        return FetchLink(connection, max_bytes=_HEADER_FETCH_BYTES, partition_max_bytes=_HEADER_FETCH_BYTES)


def _read_headers_backwards(
    client: ClusterClient, link: FetchLink, partition: Partition, log_start: int, log_end: int
) -> Iterator[tuple[int, list[BatchHeader]]]:
    step = _FIRST_READ_STEP
    while True:
        start = max(log_start, log_end - step)
        yield start, list(_read_headers(client, link, partition, start, log_end))
        if start == log_start:
            return
        step *= 4


def _read_headers(
    client: ClusterClient, link: FetchLink, partition: Partition, start: int, end: int
) -> Iterator[BatchHeader]:
    position, empty = start, 0
    deadline = time.monotonic() + client.timeout_s
    while position < end:
        fetched = fetch_once(link, partition, position)
        if fetched is not None and fetched.error == ErrorCode.topic_authorization_failed.value:
            raise MissingPermission(format_denied(ClusterSide.from_client(client), partition, Operation.READ))
        if fetched is None or fetched.error:
            raise Unreachable(f"{link.connection.where}: {partition} cannot be read at offset {position}")
        headers = [header for header, _ in split_batches(fetched.records)]
        if headers:
            yield from headers
            position, empty = headers[-1].next_offset, 0
            deadline = time.monotonic() + client.timeout_s
            continue
        size, is_conclusive = len(fetched.records), not link.throttle_ms
        outcome = classify_empty_fetch(
            position, end, size, conclusive=is_conclusive, previous_empty=empty, local_start=None
        )
        if outcome is EmptyFetch.CHECK_LOCAL_START:
            leader_start = fetch_local_start(client, partition, -1)
            if (
                leader_start is not None
                and classify_empty_fetch(
                    position, end, 0, conclusive=True, previous_empty=empty, local_start=leader_start
                )
                is EmptyFetch.GAP
            ):
                break  # compacted
        if outcome is EmptyFetch.INCONCLUSIVE and time.monotonic() + link.throttle_ms / 1000 < deadline:
            time.sleep(link.throttle_ms / 1000)  # a quota is no failure
            continue
        if outcome is not EmptyFetch.RETRY:
            reason = REMOTE_STORAGE_HINT if is_conclusive else "the broker throttles"
            raise Unreachable(f"{link.connection.where}: {partition}, offset {position}: {reason}")
        empty += 1
