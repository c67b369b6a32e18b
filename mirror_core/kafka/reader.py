"""A partition's committed batches as stored, one response in memory at a time.

Verifies every CRC. Skips control, aborted and empty batches, and hidden records.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Final, Protocol

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Principal
from mirror_core.kafka.connection import CLIENT_ID, Connection
from mirror_core.kafka.empty_answers import Proof, proof
from mirror_core.kafka.faults import ErrorCode, code_of
from mirror_core.kafka.kept import KEPT
from mirror_core.kafka.log_faults import Damaged, Trimmed, Unreadable
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.kafka.silence import NOBODY, Leader, Silence
from mirror_core.kafka.tiered import SILENT, local_start
from mirror_core.kafka.transient import TRANSIENT
from mirror_core.model.errors import MirrorError, MissingPermission, RemoteFault, SignInFailed, Unreachable
from mirror_core.model.names import Offset, Partition
from mirror_core.wire import fetch, legacy
from mirror_core.wire.batch import HEADER, NEWEST, BatchHeader, MalformedBatch, begins_whole
from mirror_core.wire.committed import committed
from mirror_core.wire.fields import MalformedAnswer
from mirror_core.wire.records import Record, decode

MAX_BYTES: Final = 8 << 20
"""Also a reader's memory (a single larger batch comes complete)."""
AHEAD: Final = 200
AHEAD_BYTES: Final = 4 << 20
MAX_WAIT_MS: Final = 500
PAUSE_S: Final = 0.05
_RETRY: Final = frozenset({*TRANSIENT, ErrorCode.unknown_topic_or_partition, ErrorCode.offset_not_available})
_SILENT: Final = frozenset({Proof.ONCE_MORE, Proof.REMOTE})

Batch = tuple[BatchHeader, memoryview]


class Pace(Protocol):
    def took(self, size: int, now: float) -> None: ...

    def wait_s(self, now: float) -> float: ...

    def answer_bytes(self, most: int) -> int: ...


class LogReader:
    """Not thread-safe."""

    def __init__(
        self,
        cluster: ClusterConfig,
        principal: Principal = Principal.DATA,
        *,
        timeout_s: float = 10.0,
        max_bytes: int = MAX_BYTES,
        pace: Pace | None = None,
        go_on: Callable[[], None] = lambda: None,
    ) -> None:
        """`check_continue` runs before each Fetch and may raise."""
        self.name, self._cluster = cluster.name, cluster
        self._pace, self._go_on = pace, go_on
        self._max_bytes = pace.answer_bytes(max_bytes) if pace else max_bytes
        self._client = ClusterClient(cluster, principal, timeout_s=timeout_s)
        self._connections: dict[tuple[str, int], Connection] = {}
        self._leaders: dict[Partition, tuple[Leader, int]] = {}
        self._ahead: dict[Partition, tuple[int, fetch.Fetched]] = {}
        self._one_by_one, self._silence = False, Silence()

    def ahead(self, wanted: Mapping[Partition, Offset]) -> None:
        """The beginnings of these logs, one request per leader.

        Thousands of small ranges one by one take minutes at a distance. What is missing, and errors, come in their
        turn.
        """
        self._ahead.clear()
        if self._one_by_one or len(wanted) < 2:
            return
        most = self._pace.answer_bytes(AHEAD_BYTES) if self._pace else AHEAD_BYTES
        share = max(1, most // len(wanted))
        asked: dict[tuple[str, int], tuple[dict[Partition, Offset], int]] = {}
        leaders: set[tuple[str, int]] = set()
        try:
            self._learn(wanted)
            leaders = {self._leaders[partition][0] for partition in wanted if partition in self._leaders}
            for address in leaders:
                mine = {p: at for p, at in wanted.items() if p in self._leaders and self._leaders[p][0] == address}
                asked[address] = mine, self._send(self._connect(address), mine, 0, most, share)
            for address, (mine, correlation) in asked.items():
                for row in self._received(self._connections[address], correlation, mine)[1]:
                    if not row.error and begins_whole(row.records):
                        self._ahead[row.partition] = mine[row.partition], row
        except MirrorError:
            self._one_by_one = True  # errors show in the partition's own turn
            for address in leaders & self._connections.keys():  # its response may be in flight
                self._connections.pop(address).close()

    def batches(self, partition: Partition, start: Offset, end: Offset) -> Iterator[Batch]:
        """Data batches overlapping [start, end); the first and last may reach beyond.

        Unreachable if `end` stays beyond the last stable offset. LogTrimmed if the log starts after `start`; LogDamaged
        for bytes that are no batch.
        """
        position = int(start)
        while position < end:
            answer = self._fetch(partition, position, end)
            before = position
            for header, batch in self._whole(partition, answer, position):
                if header.base_offset >= end:
                    return
                position = header.next_offset
                if header.record_count:
                    yield header, batch
            if position == before and len(answer.records):
                raise Damaged(self.name, partition, before, f"offset {before}: an answer without a whole batch")
            if not len(answer.records):
                position = answer.last_stable

    def records(self, partition: Partition, start: Offset, end: Offset) -> Iterator[tuple[BatchHeader, Record]]:
        """Records of [start, end) with their batch's header."""
        for header, batch in self.batches(partition, start, end):
            try:
                for record in decode(header, batch):
                    if start <= record.offset < end:
                        yield header, record
            except MalformedBatch as error:
                raise Damaged(self.name, partition, max(start, header.base_offset), error) from None

    def log_start(self, partition: Partition) -> Offset:
        return list_offsets(self._client, [partition], Point.START)[partition]

    def stable_end(self, partition: Partition) -> Offset:
        """Last stable offset."""
        return list_offsets(self._client, [partition], Point.STABLE_END)[partition]

    def connection(self, partition: Partition) -> Connection:
        """To the leader, nothing in flight; not the caller's."""
        return self._connection(partition)[0]

    def _whole(self, partition: Partition, answer: fetch.Fetched, position: int) -> Iterator[Batch]:
        reached = position
        try:
            for header, batch, visible in committed(answer, position):
                if header.magic < NEWEST:
                    yield from _as_copied(header, batch, position)
                else:
                    yield header if visible else header._replace(record_count=0), batch
                reached = header.next_offset
        except MalformedBatch as error:
            raise Damaged(self.name, partition, reached, error) from None

    def _fetch(self, partition: Partition, position: int, end: int) -> fetch.Fetched:
        """With data, or proving that none is left below the last stable offset."""
        at, ready = self._ahead.pop(partition, (-1, None))
        if ready is not None and at == position:
            return ready
        where = f"cluster {self.name}, {partition}, offset {position}"
        known = self._leaders.get(partition)
        self._silence.heed(where, known and known[0], partial(self._leader, partition, anew=True))
        deadline = time.monotonic() + self._client.timeout_s
        empty, in_vain = 0, set[Leader | None]()
        while True:
            self._go_on()
            whom: Leader | None = None
            try:
                whom = self._leader(partition)
                throttle_ms, answer = self._ask(partition, position)
                code = code_of(answer.error)
                self._silence.ended(whom)
                in_vain.clear()
                problem = f"readable up to {answer.last_stable} only, and {end} was asked for"
                if code is ErrorCode.none and len(answer.records):
                    return answer
                if code is ErrorCode.none:
                    found = self._proof(partition, position, answer, honest=not throttle_ms, before=empty)
                    if found is Proof.GAP:
                        return answer
                    empty += found in _SILENT
                    problem = SILENT if found in _SILENT else problem
                if code is ErrorCode.offset_out_of_range and position < (first := self.log_start(partition)):
                    raise Trimmed(where, first)
                if code is not ErrorCode.none:
                    problem = code.name
                    self._retriable(code, partition, position)
                    self._leaders.pop(partition, None)
                pause = max(PAUSE_S, throttle_ms / 1000)
                deadline += throttle_ms / 1000  # throttling is no failure
            except Unreachable as error:
                self._drop(partition)
                if isinstance(error, SignInFailed):
                    raise  # retries may lock the login
                problem, pause = str(error), PAUSE_S
                in_vain.add(whom)
            if time.monotonic() + pause > deadline:
                self._silence.kept(in_vain)
                raise Unreachable(f"{where}: not read within {self._client.timeout_s:g} s: {problem}")
            time.sleep(pause)

    def _retriable(self, code: ErrorCode, partition: Partition, position: int) -> None:
        where = f"cluster {self.name}, {partition}, offset {position}"
        if code is ErrorCode.corrupt_message:  # broken batch header
            raise Damaged(self.name, partition, position, f"offset {position}: Fetch: {code.name}")
        if code is ErrorCode.topic_authorization_failed:
            user = self._cluster.user(self._client.principal) or "this principal"
            raise MissingPermission(f"{where}: {user} may not READ this topic")
        if code not in _RETRY and code is not ErrorCode.offset_out_of_range:
            raise Unreadable(f"{where}: Fetch: {code.name}")

    def _proof(self, partition: Partition, position: int, answer: fetch.Fetched, *, honest: bool, before: int) -> Proof:
        """May request the local log start."""
        upto, size = answer.last_stable, len(answer.records)
        found = proof(position, upto, size, honest=honest, before=before, local_start=None)
        if found is not Proof.ASK_LEADER:
            return found
        _, epoch = self._leaders[partition]
        start = local_start(self._client, partition, epoch)
        if start is None:  # leader changed
            return Proof.ONCE_MORE
        return proof(position, upto, size, honest=honest, before=before, local_start=start)

    def _ask(self, partition: Partition, position: int) -> tuple[int, fetch.Fetched]:
        connection, _ = self._connection(partition)
        wanted = {partition: Offset(position)}
        correlation = self._send(connection, wanted, MAX_WAIT_MS, self._max_bytes, self._max_bytes)
        try:
            throttle_ms, rows = self._received(connection, correlation, wanted)
        except RemoteFault:  # unread bytes would answer the next request
            self._drop(partition)
            raise
        return throttle_ms, rows[0] if rows else fetch.Fetched(partition, 0, -1, -1, -1, (), memoryview(b""))

    def _send(
        self,
        connection: Connection,
        wanted: Mapping[Partition, Offset],
        max_wait_ms: int,
        max_bytes: int,
        partition_max_bytes: int,
    ) -> int:
        """Returns the correlation id."""
        if self._pace:
            time.sleep(self._pace.wait_s(time.monotonic()))
        connection.renew_session()
        correlation = connection.next_id()
        request = fetch.encode(
            [fetch.Wanted(partition, at, self._leaders[partition][1]) for partition, at in wanted.items()],
            correlation,
            CLIENT_ID,
            isolation=fetch.Isolation.READ_COMMITTED,
            max_wait_ms=max_wait_ms,
            max_bytes=max_bytes,
            partition_max_bytes=partition_max_bytes,
        )
        connection.send([request])
        return correlation

    def _received(
        self, connection: Connection, correlation: int, wanted: Iterable[Partition]
    ) -> tuple[int, list[fetch.Fetched]]:
        """Throttle time (ms), one row per partition; no rows when throttled."""
        frame = connection.receive()
        if self._pace:
            self._pace.took(len(frame), time.monotonic())
        known = {(partition.topic, partition.index): partition for partition in wanted}
        try:
            answered, throttle_ms = struct.unpack_from(">ii", frame)
            rows = list(fetch.decode(memoryview(frame)[4:], known))
        except (MalformedAnswer, struct.error) as error:
            raise RemoteFault(f"{connection.where}: Fetch answer not understood: {error}") from None
        told = {(r.partition.topic, r.partition.index) for r in rows}
        if answered != correlation or (told != known.keys() and not (throttle_ms and not told)):
            raise RemoteFault(f"{connection.where}: a Fetch answer to something else than what was asked")
        return throttle_ms, rows

    def _learn(self, partitions: Iterable[Partition]) -> None:
        unknown = [partition for partition in partitions if partition not in self._leaders]
        if not unknown:
            return
        view = self._client.metadata({partition.topic for partition in unknown})
        for partition in unknown:
            topic = view.topics.get(partition.topic)
            leader = topic.partitions.get(partition.index) if topic else None
            if leader is not None and leader.broker in view.brokers:
                self._leaders[partition] = view.brokers[leader.broker], leader.epoch

    def _leader(self, partition: Partition, *, anew: bool = False) -> Leader:
        if anew:
            self._leaders.pop(partition, None)
        self._learn([partition])
        return self._leaders[partition][0] if partition in self._leaders else NOBODY

    def _connection(self, partition: Partition) -> tuple[Connection, int]:
        if self._leader(partition) == NOBODY:
            raise Unreachable(f"cluster {self.name}, {partition}: no leader, or no such partition")
        address, epoch = self._leaders[partition]
        return self._connect(address), epoch

    def _connect(self, address: tuple[str, int]) -> Connection:
        if address not in self._connections:
            if kept := KEPT.take(self._client.key(address)):
                kept.wait_for(self._client.timeout_s)
            self._connections[address] = kept or self._client.open(address)
        return self._connections[address]

    def _drop(self, partition: Partition) -> None:
        leader = self._leaders.pop(partition, None)
        connection = self._connections.pop(leader[0], None) if leader else None
        if leader and connection:
            connection.close()
            KEPT.forget(self._client.key(leader[0]))

    def close(self) -> None:
        for address in list(self._connections):
            KEPT.put(self._client.key(address), self._connections.pop(address))
        self._client.close()

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _as_copied(header: BatchHeader, message: memoryview, position: int) -> Iterator[Batch]:
    """As the magic 2 batches that a mirror makes of it, verified."""
    for run in legacy.dense_runs(header, message, position):
        made = BatchHeader._make(HEADER.unpack_from(run.batch))
        yield made._replace(base_offset=run.base_offset), memoryview(run.batch)
