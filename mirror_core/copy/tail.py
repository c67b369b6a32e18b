"""Reads backwards from a log's end: does it hold what it must, and where does that stop?"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from mirror_core.copy.divergence import DivergenceFinder
from mirror_core.copy.words import ClusterSide, format_denied
from mirror_core.decide.gaps import FILLED_MASK
from mirror_core.decide.position import BothLogBounds
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.empty_answers import EmptyFetch, classify_empty_fetch
from mirror_core.kafka.faults import ErrorCode
from mirror_core.kafka.fetching import FetchLink, fetch_once
from mirror_core.kafka.reader import LogReader
from mirror_core.kafka.tiered import REMOTE_STORAGE_HINT, fetch_local_start
from mirror_core.model.acl import Operation
from mirror_core.model.errors import MissingPermission, Unreachable
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.batch import CONTROL, LOG_APPEND_TIME, BatchHeader, split_batches
from mirror_core.wire.records import Record

_HEADER_FETCH_BYTES: Final = 1 << 20
_FIRST_READ_STEP: Final = 1_000
_MAX_BACKWARD_STEP: Final = 1_000_000


def find_first_foreign(
    client: ClusterClient, link: FetchLink, partition: Partition, producer_id: int, filled: int, bounds: BothLogBounds
) -> int | None:
    """First batch near the log end that this producer id did not write at its offset.

    `filled`: how many offsets its markers should have taken. Goes back in growing steps to a batch of ours at the right
    offset (its offset is its sequence plus the markers before it): later batches of others are foreign. None when all
    are ours: then there are too many markers, and nothing shows which. Reads headers only.
    """
    for start, headers in _read_headers_backwards(client, link, partition, bounds):
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
    """Header of the log's last batch, if only data of this producer id follows the nearest hole in the
    offsets.

    Only compaction leaves such holes, and never in the last segment. So a marker that a leader does not know may have
    been there; a foreign record, or a marker too many, would stand directly before what it has shifted.
    """
    for start, headers in _read_headers_backwards(client, link, partition, bounds):
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
    """First batch from `since` on that another producer wrote after one of ours.

    Others may have written before our first one: a failback mirrors into a log that applications started. Without
    `since`, searches backwards within a limit.
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
    """Reads both clusters' logs for `copy.resume_decision`. Connects on use; reconnects after an error."""

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

    def find_first_divergence(self, partition: Partition, position: int, agreed_end: int | None) -> Offset | None:
        return self._divergence.find_first_divergence(partition, Offset(position), agreed_end)

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
    client: ClusterClient, link: FetchLink, partition: Partition, bounds: BothLogBounds
) -> Iterator[tuple[int, list[BatchHeader]]]:
    step = _FIRST_READ_STEP
    while True:
        start = max(bounds.log_start, bounds.log_end - step)
        yield start, list(_read_headers(client, link, partition, start, bounds.log_end))
        if start == bounds.log_start:
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
