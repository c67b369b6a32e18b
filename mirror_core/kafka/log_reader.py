"""A partition's committed batches as stored, one response in memory at a time. Verifies every CRC."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Final, Protocol

from mirror_core.kafka.broker_health import NO_LEADER, BrokerBackoff, LeaderAddress
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Principal
from mirror_core.kafka.connection import CLIENT_ID, Connection
from mirror_core.kafka.connection_pool import CONNECTION_POOL
from mirror_core.kafka.error_mapping import RETRIABLE_CODES, ErrorCode, to_error_code
from mirror_core.kafka.fetch_link import REMOTE_STORAGE_HINT, EmptyFetch, classify_empty_fetch, fetch_local_start
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.model.errors import AuthenticationFailed, MirrorError, MissingPermission, RemoteFault, Unreachable
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.wire import fetch, message_v0_v1
from mirror_core.wire.batch import CURRENT_MAGIC, HEADER, BatchHeader, MalformedBatch, has_whole_batch
from mirror_core.wire.fields import MalformedResponse
from mirror_core.wire.read_committed import filter_committed
from mirror_core.wire.records import Record, decode_placed_records


class LogUnreadable(RemoteFault):
    """Refused, or unreadable."""


class LogDamaged(LogUnreadable):
    """Not the batch that was written; usually a broker's disk."""

    def __init__(self, cluster: ClusterName, partition: Partition, offset: int, reason: object) -> None:
        """`offset`: the first unreadable one."""
        self.cluster, self.offset = cluster, Offset(offset)
        super().__init__(f"cluster {cluster}, {partition}: {reason}")


class LogTrimmed(RemoteFault):
    """Retention or DeleteRecords passed the position."""

    def __init__(self, where: str, log_start: Offset) -> None:
        self.log_start = log_start
        super().__init__(f"{where}: the log now starts at {log_start}")


MAX_READ_BYTES: Final = 8 << 20
"""Also a reader's memory (a single larger batch comes complete)."""
PREFETCH_LOGS: Final = 200
PREFETCH_BYTES: Final = 4 << 20
FETCH_MAX_WAIT_MS: Final = 500
RETRY_PAUSE_S: Final = 0.05
_RETRIED_CODES: Final = frozenset(
    {*RETRIABLE_CODES, ErrorCode.unknown_topic_or_partition, ErrorCode.offset_not_available}
)
_REMOTE_EMPTY: Final = frozenset({EmptyFetch.RETRY, EmptyFetch.REMOTE_STORAGE})
LogBatch = tuple[BatchHeader, memoryview]


class ReadPace(Protocol):
    def record_read(self, size: int, now: float) -> None: ...

    def wait_s(self, now: float) -> float: ...

    def limit_fetch_bytes(self, max_bytes: int) -> int: ...


class LogReader:
    """Not thread-safe."""

    def __init__(
        self,
        cluster: ClusterConfig,
        principal: Principal = Principal.DATA,
        *,
        timeout_s: float = 10.0,
        max_bytes: int = MAX_READ_BYTES,
        pace: ReadPace | None = None,
        check_continue: Callable[[], None] = lambda: None,
    ) -> None:
        """`check_continue` runs before each Fetch and may raise."""
        self.name, self._cluster = cluster.name, cluster
        self._pace, self._check_continue = pace, check_continue
        self._max_bytes = pace.limit_fetch_bytes(max_bytes) if pace else max_bytes
        self._client = ClusterClient(cluster, principal, timeout_s=timeout_s)
        self._connections: dict[tuple[str, int], Connection] = {}
        self._leaders: dict[Partition, tuple[LeaderAddress, int]] = {}
        self._prefetched: dict[Partition, tuple[int, fetch.FetchedPartition]] = {}
        self._prefetch_failed, self._backoff = False, BrokerBackoff()

    def prefetch(self, start_offsets: Mapping[Partition, Offset]) -> None:
        """One request per leader: thousands of small ranges one by one take minutes at a distance. What is missing,
        and errors, come in their turn.
        """
        self._prefetched.clear()
        if self._prefetch_failed or len(start_offsets) < 2:
            return
        max_bytes = self._pace.limit_fetch_bytes(PREFETCH_BYTES) if self._pace else PREFETCH_BYTES
        share = max(1, max_bytes // len(start_offsets))
        in_flight: dict[tuple[str, int], tuple[dict[Partition, Offset], int]] = {}
        leaders: set[tuple[str, int]] = set()
        try:
            self._learn_leaders(start_offsets)
            leaders = {self._leaders[partition][0] for partition in start_offsets if partition in self._leaders}
            for address in leaders:
                leader_offsets = {
                    p: offset
                    for p, offset in start_offsets.items()
                    if p in self._leaders and self._leaders[p][0] == address
                }
                in_flight[address] = (
                    leader_offsets,
                    self._send_fetch(self._connect(address), leader_offsets, 0, max_bytes, share),
                )
            for address, (leader_offsets, correlation) in in_flight.items():
                for row in self._receive_fetch(self._connections[address], correlation, leader_offsets)[1]:
                    if not row.error and has_whole_batch(row.records):
                        self._prefetched[row.partition] = leader_offsets[row.partition], row
        except MirrorError:
            self._prefetch_failed = True  # errors show in the partition's own turn
            for address in leaders & self._connections.keys():  # its response may be in flight
                self._connections.pop(address).close()

    def batches(self, partition: Partition, start: Offset, end: Offset) -> Iterator[LogBatch]:
        """Data batches overlapping [start, end); the first and last may reach beyond.

        Unreachable if `end` stays beyond the last stable offset. LogTrimmed if the log starts after `start`; LogDamaged
        for bytes that are no batch.
        """
        position = int(start)
        while position < end:
            fetched = self._fetch(partition, position, end)
            previous = position
            for header, batch in self._verified_batches(partition, fetched, position):
                if header.base_offset >= end:
                    return
                position = header.next_offset
                if header.record_count:
                    yield header, batch
            if position == previous and len(fetched.records):
                raise LogDamaged(self.name, partition, previous, f"offset {previous}: an answer without a whole batch")
            if not len(fetched.records):
                position = fetched.last_stable_offset

    def records(self, partition: Partition, start: Offset, end: Offset) -> Iterator[tuple[BatchHeader, Record]]:
        for header, batch in self.batches(partition, start, end):
            try:
                for record in decode_placed_records(header, batch):
                    if start <= record.offset < end:
                        yield header, record
            except MalformedBatch as error:
                raise LogDamaged(self.name, partition, max(start, header.base_offset), error) from None

    def find_offset_before(self, partition: Partition, start: Offset, end: Offset, wanted_bytes: int) -> Offset | None:
        """Highest batch start with `wanted_bytes` of committed batches from there to `end`. None: log too short."""
        distance = 1000
        while True:
            low_offset = Offset(max(start, end - distance))
            size = 0
            sizes = [(header.base_offset, len(batch)) for header, batch in self.batches(partition, low_offset, end)]
            for base, length in reversed(sizes):
                size += length
                if size >= wanted_bytes:
                    return Offset(max(start, base))
            if low_offset == start:
                return None
            distance *= 4

    def measure_bytes(self, partition: Partition, start: Offset, end: Offset, enough_bytes: int) -> int:
        """Committed batches only. Stops above `enough_bytes`."""
        size = 0
        for _, batch in self.batches(partition, start, end):
            size += len(batch)
            if size > enough_bytes:
                break
        return size

    def log_start(self, partition: Partition) -> Offset:
        return list_offsets(self._client, [partition], OffsetPoint.START)[partition]

    def stable_end(self, partition: Partition) -> Offset:
        return list_offsets(self._client, [partition], OffsetPoint.STABLE_END)[partition]

    def leader_connection(self, partition: Partition) -> Connection:
        """Nothing in flight; not the caller's."""
        return self._connection(partition)[0]

    def _verified_batches(
        self, partition: Partition, fetched: fetch.FetchedPartition, position: int
    ) -> Iterator[LogBatch]:
        next_offset = position
        try:
            for header, batch, visible in filter_committed(fetched, position):
                if header.magic < CURRENT_MAGIC:
                    yield from _to_mirrored_batches(header, batch, position)
                else:
                    yield header if visible else header._replace(record_count=0), batch
                next_offset = header.next_offset
        except MalformedBatch as error:
            raise LogDamaged(self.name, partition, next_offset, error) from None

    def _fetch(self, partition: Partition, position: int, end: int) -> fetch.FetchedPartition:
        """With data, or proving that none is left below the last stable offset."""
        ready_position, prefetched = self._prefetched.pop(partition, (-1, None))
        if prefetched is not None and ready_position == position:
            return prefetched
        where = f"cluster {self.name}, {partition}, offset {position}"
        known_leader = self._leaders.get(partition)
        self._backoff.check_leader(
            where, known_leader and known_leader[0], partial(self._leader, partition, refresh=True)
        )
        deadline = time.monotonic() + self._client.timeout_s
        empty_count, timed_out = 0, set[LeaderAddress | None]()
        while True:
            self._check_continue()
            leader: LeaderAddress | None = None
            try:
                leader = self._leader(partition)
                throttle_ms, fetched = self._fetch_partition(partition, position)
                code = to_error_code(fetched.error)
                self._backoff.record_response(leader)
                timed_out.clear()
                problem = f"readable up to {fetched.last_stable_offset} only, and {end} was asked for"
                if code is ErrorCode.none and len(fetched.records):
                    return fetched
                if code is ErrorCode.none:
                    meaning = self._classify_empty(
                        partition, position, fetched, conclusive=not throttle_ms, previous_empty=empty_count
                    )
                    if meaning is EmptyFetch.GAP:
                        return fetched
                    empty_count += meaning in _REMOTE_EMPTY
                    problem = REMOTE_STORAGE_HINT if meaning in _REMOTE_EMPTY else problem
                if code is ErrorCode.offset_out_of_range and position < (log_start := self.log_start(partition)):
                    raise LogTrimmed(where, log_start)
                if code is not ErrorCode.none:
                    problem = code.name
                    self._raise_unless_retriable(code, partition, position)
                    self._leaders.pop(partition, None)
                pause = max(RETRY_PAUSE_S, throttle_ms / 1000)
                deadline += throttle_ms / 1000  # throttling is no failure
            except Unreachable as error:
                self._drop(partition)
                if isinstance(error, AuthenticationFailed):
                    raise  # retries may lock the login
                problem, pause = str(error), RETRY_PAUSE_S
                timed_out.add(leader)
            if time.monotonic() + pause > deadline:
                self._backoff.record_timeouts(timed_out)
                raise Unreachable(f"{where}: not read within {self._client.timeout_s:g} s: {problem}")
            time.sleep(pause)

    def _raise_unless_retriable(self, code: ErrorCode, partition: Partition, position: int) -> None:
        where = f"cluster {self.name}, {partition}, offset {position}"
        if code is ErrorCode.corrupt_message:  # broken batch header
            raise LogDamaged(self.name, partition, position, f"offset {position}: Fetch: {code.name}")
        if code is ErrorCode.topic_authorization_failed:
            user = self._cluster.user(self._client.principal) or "this principal"
            raise MissingPermission(f"{where}: {user} may not READ this topic")
        if code not in _RETRIED_CODES and code is not ErrorCode.offset_out_of_range:
            raise LogUnreadable(f"{where}: Fetch: {code.name}")

    def _classify_empty(
        self,
        partition: Partition,
        position: int,
        fetched: fetch.FetchedPartition,
        *,
        conclusive: bool,
        previous_empty: int,
    ) -> EmptyFetch:
        stable_end, size = fetched.last_stable_offset, len(fetched.records)
        meaning = classify_empty_fetch(
            position, stable_end, size, conclusive=conclusive, previous_empty=previous_empty, local_start=None
        )
        if meaning is not EmptyFetch.CHECK_LOCAL_START:
            return meaning
        _, epoch = self._leaders[partition]
        start = fetch_local_start(self._client, partition, epoch)
        if start is None:  # leader changed
            return EmptyFetch.RETRY
        return classify_empty_fetch(
            position, stable_end, size, conclusive=conclusive, previous_empty=previous_empty, local_start=start
        )

    def _fetch_partition(self, partition: Partition, position: int) -> tuple[int, fetch.FetchedPartition]:
        connection, _ = self._connection(partition)
        offsets = {partition: Offset(position)}
        correlation = self._send_fetch(connection, offsets, FETCH_MAX_WAIT_MS, self._max_bytes, self._max_bytes)
        try:
            throttle_ms, rows = self._receive_fetch(connection, correlation, offsets)
        except RemoteFault:  # unread bytes would answer the next request
            self._drop(partition)
            raise
        return throttle_ms, rows[0] if rows else fetch.FetchedPartition(partition, 0, -1, -1, -1, (), memoryview(b""))

    def _send_fetch(
        self,
        connection: Connection,
        offsets: Mapping[Partition, Offset],
        max_wait_ms: int,
        max_bytes: int,
        partition_max_bytes: int,
    ) -> int:
        if self._pace:
            time.sleep(self._pace.wait_s(time.monotonic()))
        connection.renew_session()
        correlation = connection.next_id()
        request = fetch.encode_request(
            [
                fetch.FetchPosition(partition, offset, self._leaders[partition][1])
                for partition, offset in offsets.items()
            ],
            correlation,
            CLIENT_ID,
            isolation=fetch.IsolationLevel.READ_COMMITTED,
            max_wait_ms=max_wait_ms,
            max_bytes=max_bytes,
            partition_max_bytes=partition_max_bytes,
        )
        connection.send([request])
        return correlation

    def _receive_fetch(
        self, connection: Connection, correlation: int, partitions: Iterable[Partition]
    ) -> tuple[int, list[fetch.FetchedPartition]]:
        """Throttle time (ms), one row per partition; no rows when throttled."""
        frame = connection.receive()
        if self._pace:
            self._pace.record_read(len(frame), time.monotonic())
        requested = {(partition.topic, partition.index): partition for partition in partitions}
        try:
            answered, throttle_ms = struct.unpack_from(">ii", frame)
            rows = list(fetch.decode_response(memoryview(frame)[4:], requested))
        except (MalformedResponse, struct.error) as error:
            raise RemoteFault(f"{connection.where}: Fetch answer not understood: {error}") from None
        received = {(r.partition.topic, r.partition.index) for r in rows}
        if answered != correlation or (received != requested.keys() and not (throttle_ms and not received)):
            raise RemoteFault(f"{connection.where}: a Fetch answer to something else than what was asked")
        return throttle_ms, rows

    def _learn_leaders(self, partitions: Iterable[Partition]) -> None:
        unknown = [partition for partition in partitions if partition not in self._leaders]
        if not unknown:
            return
        metadata = self._client.metadata({partition.topic for partition in unknown})
        for partition in unknown:
            topic = metadata.topics.get(partition.topic)
            leader = topic.partitions.get(partition.index) if topic else None
            if leader is not None and leader.broker in metadata.brokers:
                self._leaders[partition] = metadata.brokers[leader.broker], leader.epoch

    def _leader(self, partition: Partition, *, refresh: bool = False) -> LeaderAddress:
        if refresh:
            self._leaders.pop(partition, None)
        self._learn_leaders([partition])
        return self._leaders[partition][0] if partition in self._leaders else NO_LEADER

    def _connection(self, partition: Partition) -> tuple[Connection, int]:
        if self._leader(partition) == NO_LEADER:
            raise Unreachable(f"cluster {self.name}, {partition}: no leader, or no such partition")
        address, epoch = self._leaders[partition]
        return self._connect(address), epoch

    def _connect(self, address: tuple[str, int]) -> Connection:
        if address not in self._connections:
            if pooled := CONNECTION_POOL.acquire(self._client.pool_key(address)):
                pooled.set_timeout(self._client.timeout_s)
            self._connections[address] = pooled or self._client.open(address)
        return self._connections[address]

    def _drop(self, partition: Partition) -> None:
        leader = self._leaders.pop(partition, None)
        connection = self._connections.pop(leader[0], None) if leader else None
        if leader and connection:
            connection.close()
            CONNECTION_POOL.discard(self._client.pool_key(leader[0]))

    def close(self) -> None:
        for address in list(self._connections):
            CONNECTION_POOL.release(self._client.pool_key(address), self._connections.pop(address))
        self._client.close()

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _to_mirrored_batches(header: BatchHeader, message: memoryview, position: int) -> Iterator[LogBatch]:
    for run in message_v0_v1.split_message_into_runs(header, message, position):
        mirrored = BatchHeader._make(HEADER.unpack_from(run.batch))
        yield mirrored._replace(base_offset=run.base_offset), memoryview(run.batch)
