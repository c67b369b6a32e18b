"""Reading back from a log's end: does the tail hold what it must, and where does it stop doing so?"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
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
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.kafka.reader import LogReader
from mirror_core.kafka.tiered import SILENT, local_start
from mirror_core.model.errors import MissingPermission, Unreachable
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.batch import CONTROL, LOG_APPEND_TIME, BatchHeader, batches
from mirror_core.wire.records import Record

_WINDOW: Final = 1 << 20
_FIRST_STEP: Final = 1_000
_FAR: Final = 1_000_000


def first_foreign(
    client: ClusterClient, partition: Partition, producer_id: int, filled: int, log_start: int, log_end: int
) -> int | None:
    """Offset of the first batch in the newest part of the log that this producer id did not write where it stands.

    `filled`: how many offsets of the log its markers should have taken. Goes back in growing steps until a batch of
    ours is found that stands right (its offset is its sequence and the markers before it): what comes behind the last
    such one, and is not ours, is foreign. None when all is ours: then there are markers too many, and they don't tell
    which. Only headers are looked at.
    """
    with _open(client, partition) as connection:
        for start, headers in _further_back(client, connection, partition, log_start, log_end):
            right = _last_right(headers, producer_id, filled)
            if right is not None or start == log_start:
                behind = headers if right is None else headers[right + 1 :]
                foreign = next((header for header in behind if header.producer_id != producer_id), None)
                return max(foreign.base_offset, log_start) if foreign else None
    return None


def _last_right(headers: list[BatchHeader], producer_id: int, filled: int) -> int | None:
    """Index of the last data batch of ours that stands where its sequence says."""
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
    client: ClusterClient, partition: Partition, producer_id: int, log_start: int, log_end: int
) -> BatchHeader | None:
    """Header of the batch that ends the log, if there is nothing but data of this producer id between it and the next
    offsets, going back, that are in no batch.

    Only the cleaner leaves such holes, and never in the last segment. So a marker that a leader does not know of can
    have been there; while a foreign record, or a marker too many, would stand directly before what it has shifted.
    """
    with _open(client, partition) as connection:
        for start, headers in _further_back(client, connection, partition, log_start, log_end):
            after = log_end
            for header in reversed(headers):
                if header.next_offset != after:
                    return headers[-1] if after < log_end else None
                if header.producer_id != producer_id or header.attributes & CONTROL:
                    return None
                after = header.base_offset
            if start == log_start:
                return headers[-1] if log_start < after < log_end else None
    return None


def stranger_behind(
    client: ClusterClient, partition: Partition, producer_id: int, log_start: int, log_end: int, since: int | None
) -> int | None:
    """Offset of the first batch from `since` on that is another producer's and lies behind one of this producer id.

    Before the first of ours others may well have written: a failback mirrors into a log that applications began.
    Without `since` the newest of ours that a stranger's follows is looked for from the end, not for ever.
    """
    with _open(client, partition) as connection:
        link = FetchLink(connection, max_bytes=_WINDOW, partition_max_bytes=_WINDOW)
        step = _FIRST_STEP
        while True:
            start = max(log_start, log_end - step if since is None else since)
            headers = _headers(client, link, partition, start, log_end)
            mine = next((n for n, header in enumerate(headers) if header.producer_id == producer_id), None)
            if since is not None or mine is not None or start == log_start or step > _FAR:
                behind = [] if mine is None else headers[mine:]
                return next((header.base_offset for header in behind if header.producer_id != producer_id), None)
            step *= 4


def last_record(client: ClusterClient, partition: Partition, offset: int) -> Record | None:
    """The last committed record before `offset`; None when the log holds none there any more."""
    start = list_offsets(client, [partition], Point.START)[partition]
    with LogReader(client.config, client.principal, timeout_s=client.timeout_s) as reader:
        step = _FIRST_STEP
        while True:
            low = max(start, offset - step)
            last = deque(reader.records(partition, Offset(low), Offset(offset)), maxlen=1)
            if last or low == start:
                return last[0][1] if last else None
            step *= 8


def record_at(client: ClusterClient, partition: Partition, offset: int) -> Record | None:
    """The committed record at `offset`; None when there is none."""
    with LogReader(client.config, client.principal, timeout_s=client.timeout_s) as reader:
        return next((record for _, record in reader.records(partition, Offset(offset), Offset(offset + 1))), None)


def timed_by_broker(client: ClusterClient, partition: Partition, offset: int) -> bool:
    """Whether the committed record at `offset` has the broker's time (LogAppendTime); not where there is none."""
    with LogReader(client.config, client.principal, timeout_s=client.timeout_s) as reader:
        found = reader.records(partition, Offset(offset), Offset(offset + 1))
        return any(header.attributes & LOG_APPEND_TIME for header, _ in found)


class BothLogs:
    """The logs of both clusters, as `copy.verdict` looks into them. Connects when it is first asked."""

    def __init__(self, source: ClusterClient, destination: ClusterClient, producer_id: int) -> None:
        self._source, self._destination = source, destination
        self._producer_id = producer_id
        self._divergence = Divergence(source, destination)

    def first_foreign(self, partition: Partition, filled: int, seen: Seen) -> int | None:
        return first_foreign(self._destination, partition, self._producer_id, filled, seen.log_start, seen.log_end)

    def next_sequence_behind_a_hole(self, partition: Partition, seen: Seen) -> int | None:
        last = last_behind_a_hole(self._destination, partition, self._producer_id, seen.log_start, seen.log_end)
        return None if last is None else last.base_sequence + last.last_offset_delta + 1

    def stranger_behind(self, partition: Partition, seen: Seen, since: int | None) -> int | None:
        return stranger_behind(self._destination, partition, self._producer_id, seen.log_start, seen.log_end, since)

    def last_record(self, partition: Partition, end: int) -> Record | None:
        return last_record(self._source, partition, end)

    def record_at(self, partition: Partition, offset: int) -> Record | None:
        return record_at(self._destination, partition, offset)

    def first_divergence(self, partition: Partition, position: int, since: int | None) -> Offset | None:
        return self._divergence.first_divergence(partition, Offset(position), since)

    def timed_by_broker(self, partition: Partition, offset: int) -> bool:
        return timed_by_broker(self._destination, partition, offset)

    def __enter__(self) -> BothLogs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._divergence.close()


def _open(client: ClusterClient, partition: Partition) -> Connection:
    view = client.metadata([partition.topic])
    leader = view.topics[partition.topic].partitions[partition.index].broker
    if leader not in view.brokers:
        raise Unreachable(f"cluster {client.name}: no leader for {partition}")
    return Connection(client.config, client.principal, *view.brokers[leader], timeout_s=client.timeout_s)


def _further_back(
    client: ClusterClient, connection: Connection, partition: Partition, log_start: int, log_end: int
) -> Iterator[tuple[int, list[BatchHeader]]]:
    """Headers up to the log's end, from one offset and then from others ever further back; the last is its start."""
    link = FetchLink(connection, max_bytes=_WINDOW, partition_max_bytes=_WINDOW)
    step = _FIRST_STEP
    while True:
        start = max(log_start, log_end - step)
        yield start, _headers(client, link, partition, start, log_end)
        if start == log_start:
            return
        step *= 4


def _headers(client: ClusterClient, link: FetchLink, partition: Partition, start: int, end: int) -> list[BatchHeader]:
    found: list[BatchHeader] = []
    position, empty = start, 0
    deadline = time.monotonic() + client.timeout_s
    while position < end:
        fetched = fetch_once(link, partition, position)
        if fetched is not None and fetched.error == ErrorCode.topic_authorization_failed.value:
            raise MissingPermission(denied(Side.of(client), partition, "READ"))
        if fetched is None or fetched.error:
            raise Unreachable(f"{link.connection.where}: {partition} cannot be read at offset {position}")
        headers = [header for header, _ in batches(fetched.records)]
        if headers:
            found += headers
            position, empty = headers[-1].next_offset, 0
            continue
        size, honest = len(fetched.records), not link.throttle_ms
        verdict = proof(position, end, size, honest=honest, before=empty, local_start=None)
        if verdict is Proof.ASK_LEADER:
            local = local_start(client, partition, -1)
            if local is not None and proof(position, end, 0, honest=True, before=empty, local_start=local) is Proof.GAP:
                break  # the cleaner took what was there
        if verdict is Proof.NOTHING and time.monotonic() + link.throttle_ms / 1000 < deadline:
            time.sleep(link.throttle_ms / 1000)  # a quota makes us wait, and is no failure
            continue
        if verdict is not Proof.ONCE_MORE:
            why = SILENT if honest else "the broker throttles"
            raise Unreachable(f"{link.connection.where}: {partition}, offset {position}: {why}")
        empty += 1
    return found
