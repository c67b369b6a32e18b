"""Reads backwards from a log's end: does it hold what it must, and where does that stop?"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from mirror_core.copy.divergence import Divergence
from mirror_core.copy.words import Side, denied
from mirror_core.decide.gaps import FILLED_MASK
from mirror_core.decide.position import Seen
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.empty_answers import Proof, proof
from mirror_core.kafka.faults import ErrorCode
from mirror_core.kafka.fetching import FetchLink, fetch_once
from mirror_core.kafka.reader import LogReader
from mirror_core.kafka.tiered import SILENT, local_start
from mirror_core.model.acl import Operation
from mirror_core.model.errors import MissingPermission, Unreachable
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.batch import CONTROL, LOG_APPEND_TIME, BatchHeader, batches
from mirror_core.wire.records import Record

_WINDOW: Final = 1 << 20
_FIRST_STEP: Final = 1_000
_FAR: Final = 1_000_000


def first_foreign(
    client: ClusterClient, link: FetchLink, partition: Partition, producer_id: int, filled: int, seen: Seen
) -> int | None:
    """First batch near the log end that this producer id did not write at its offset.

    `filled`: how many offsets its markers should have taken. Goes back in growing steps to a batch of ours at the right
    offset (its offset is its sequence plus the markers before it): later batches of others are foreign. None when all
    are ours: then there are too many markers, and nothing shows which. Reads headers only.
    """
    for start, headers in _further_back(client, link, partition, seen):
        right = _last_right(headers, producer_id, filled)
        if right is not None or start == seen.log_start:
            behind = headers if right is None else headers[right + 1 :]
            foreign = next((header for header in behind if header.producer_id != producer_id), None)
            return max(foreign.base_offset, seen.log_start) if foreign else None
    return None


def _last_right(headers: list[BatchHeader], producer_id: int, filled: int) -> int | None:
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


def last_behind_a_hole(
    client: ClusterClient, link: FetchLink, partition: Partition, producer_id: int, seen: Seen
) -> BatchHeader | None:
    """Header of the log's last batch, if only data of this producer id follows the nearest hole in the
    offsets.

    Only compaction leaves such holes, and never in the last segment. So a marker that a leader does not know may have
    been there; a foreign record, or a marker too many, would stand directly before what it has shifted.
    """
    for start, headers in _further_back(client, link, partition, seen):
        after = seen.log_end
        for header in reversed(headers):
            if header.next_offset != after:
                return headers[-1] if after < seen.log_end else None
            if header.producer_id != producer_id or header.attributes & CONTROL:
                return None
            after = header.base_offset
        if start == seen.log_start:
            return headers[-1] if seen.log_start < after < seen.log_end else None
    return None


def stranger_behind(
    client: ClusterClient, link: FetchLink, partition: Partition, producer_id: int, seen: Seen, since: int | None
) -> int | None:
    """First batch from `since` on that another producer wrote after one of ours.

    Others may have written before our first one: a failback mirrors into a log that applications started. Without
    `since`, searches backwards within a limit.
    """
    step = _FIRST_STEP
    while True:
        start = max(seen.log_start, seen.log_end - step if since is None else since)
        mine = False
        # A generator: millions of markers may follow the last record.
        for header in _headers(client, link, partition, start, seen.log_end):
            if mine and header.producer_id != producer_id:
                return header.base_offset
            mine |= header.producer_id == producer_id
        if since is not None or mine or start == seen.log_start or step > _FAR:
            return None
        step *= 4


def last_record(reader: LogReader, partition: Partition, start: int, end: int) -> Record | None:
    step = _FIRST_STEP
    while True:
        low = max(start, end - step)
        last = deque(reader.records(partition, Offset(low), Offset(end)), maxlen=1)
        if last or low == start:
            return last[0][1] if last else None
        step *= 8


def record_at(reader: LogReader, partition: Partition, offset: int) -> Record | None:
    return next((record for _, record in reader.records(partition, Offset(offset), Offset(offset + 1))), None)


def timed_by_broker(reader: LogReader, partition: Partition, offset: int) -> bool:
    found = reader.records(partition, Offset(offset), Offset(offset + 1))
    return any(header.attributes & LOG_APPEND_TIME for header, _ in found)


def first_retimed(
    client: ClusterClient, link: FetchLink, partition: Partition, producer_id: int, start: int, end: int, log_start: int
) -> int | None:
    """Our first batch in [start, end) with the broker's time; we send none with it.

    If all of ours there have it, searches on backwards for the first of the row. Reads headers only.
    """
    found, step = None, _FIRST_STEP
    while True:
        mine = [
            header
            for header in _headers(client, link, partition, start, end)
            if header.producer_id == producer_id and not header.attributes & CONTROL
        ]
        altered = [header.base_offset for header in mine if header.attributes & LOG_APPEND_TIME]
        if not altered:
            return found
        found = max(altered[0], log_start)
        if start == log_start or altered[0] != mine[0].base_offset:
            return found
        start, step = max(log_start, start - step), step * 4


class Halted(Unreachable): ...


class BothLogs:
    """Reads both clusters' logs for `copy.resume_decision`. Connects on use; reconnects after an error."""

    def __init__(self, source: ClusterClient, destination: ClusterClient, producer_id: int) -> None:
        self._source, self._destination = source.alike(), destination.alike()
        self._producer_id = producer_id
        self._halted = False
        self._connection: Connection | None = None
        self._begin()

    def halt(self) -> None:
        """Thread-safe: a running comparison reads nothing more."""
        self._halted = True
        if (connection := self._connection) is not None:
            connection.cut()

    def _go_on(self) -> None:
        if self._halted:
            raise Halted("nobody waits for this look any more")

    def _begin(self) -> None:
        self._divergence = Divergence(self._source, self._destination, self._go_on)
        self._there, self._here = self._divergence.readers

    def first_foreign(self, partition: Partition, filled: int, seen: Seen) -> int | None:
        return first_foreign(self._destination, self._link(partition), partition, self._producer_id, filled, seen)

    def next_sequence_behind_a_hole(self, partition: Partition, seen: Seen) -> int | None:
        last = last_behind_a_hole(self._destination, self._link(partition), partition, self._producer_id, seen)
        return None if last is None else last.base_sequence + last.last_offset_delta + 1

    def stranger_behind(self, partition: Partition, seen: Seen, since: int | None) -> int | None:
        return stranger_behind(self._destination, self._link(partition), partition, self._producer_id, seen, since)

    def last_record(self, partition: Partition, start: int, end: int) -> Record | None:
        return last_record(self._there, partition, start, end)

    def record_at(self, partition: Partition, offset: int) -> Record | None:
        return record_at(self._here, partition, offset)

    def first_divergence(self, partition: Partition, position: int, since: int | None) -> Offset | None:
        return self._divergence.first_divergence(partition, Offset(position), since)

    def timed_by_broker(self, partition: Partition, offset: int) -> bool:
        return timed_by_broker(self._here, partition, offset)

    def first_retimed(self, partition: Partition, start: int, seen: Seen) -> int | None:
        link, log_start = self._link(partition), seen.log_start
        return first_retimed(
            self._destination, link, partition, self._producer_id, max(start, log_start), seen.log_end, log_start
        )

    def close(self) -> None:
        self._connection = None
        self._divergence.close()
        self._source.close()
        self._destination.close()
        self._begin()

    def _link(self, partition: Partition) -> FetchLink:
        self._connection = connection = self._here.connection(partition)
        self._go_on()  # not before it is there to be seen: who halts says so first, and then looks for it
        return FetchLink(connection, max_bytes=_WINDOW, partition_max_bytes=_WINDOW)


def _further_back(
    client: ClusterClient, link: FetchLink, partition: Partition, seen: Seen
) -> Iterator[tuple[int, list[BatchHeader]]]:
    step = _FIRST_STEP
    while True:
        start = max(seen.log_start, seen.log_end - step)
        yield start, list(_headers(client, link, partition, start, seen.log_end))
        if start == seen.log_start:
            return
        step *= 4


def _headers(
    client: ClusterClient, link: FetchLink, partition: Partition, start: int, end: int
) -> Iterator[BatchHeader]:
    position, empty = start, 0
    deadline = time.monotonic() + client.timeout_s
    while position < end:
        fetched = fetch_once(link, partition, position)
        if fetched is not None and fetched.error == ErrorCode.topic_authorization_failed.value:
            raise MissingPermission(denied(Side.of(client), partition, Operation.READ))
        if fetched is None or fetched.error:
            raise Unreachable(f"{link.connection.where}: {partition} cannot be read at offset {position}")
        headers = [header for header, _ in batches(fetched.records)]
        if headers:
            yield from headers
            position, empty = headers[-1].next_offset, 0
            deadline = time.monotonic() + client.timeout_s
            continue
        size, honest = len(fetched.records), not link.throttle_ms
        verdict = proof(position, end, size, honest=honest, before=empty, local_start=None)
        if verdict is Proof.ASK_LEADER:
            local = local_start(client, partition, -1)
            if local is not None and proof(position, end, 0, honest=True, before=empty, local_start=local) is Proof.GAP:
                break  # compacted
        if verdict is Proof.NOTHING and time.monotonic() + link.throttle_ms / 1000 < deadline:
            time.sleep(link.throttle_ms / 1000)  # a quota is no failure
            continue
        if verdict is not Proof.ONCE_MORE:
            why = SILENT if honest else "the broker throttles"
            raise Unreachable(f"{link.connection.where}: {partition}, offset {position}: {why}")
        empty += 1
