"""Reads the state topic from its leader; explains failed writes by too few replicas.

A commit is acknowledged before its marker is in the log (KIP-98), so the end is the leader's log end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from mirror_core.decide.quiescence_check import IsrStatus, MinIsrTopic, explain_under_min_isr
from mirror_core.kafka.client import ClusterClient, borrowed_connection
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.error_mapping import RETRIABLE_CODES, STALE_METADATA_CODES, ErrorCode, make_fault, to_error_code
from mirror_core.kafka.fetch_link import FetchLink
from mirror_core.kafka.log_offsets import fetch_log_start
from mirror_core.kafka.reassignment import describe_placements
from mirror_core.kafka.topics import describe_available_configs
from mirror_core.kafka.transactions import (
    DecidedTransaction,
    end_hanging_transactions,
    list_decided_transactions,
    write_final_marker,
)
from mirror_core.model.errors import AuthenticationFailed, MirrorError, MissingPermission, RemoteFault, Unreachable
from mirror_core.model.names import Partition
from mirror_core.model.timing import TIMEOUTS
from mirror_core.state.record_encoding import drop_replaced_rows
from mirror_core.state.state_records import STATE_TOPIC, State
from mirror_core.wire.batch import LOG_APPEND_TIME, MalformedBatch, is_dense
from mirror_core.wire.fetch import FetchedPartition, FetchPosition, IsolationLevel
from mirror_core.wire.read_committed import filter_committed
from mirror_core.wire.records import decode_records

_WRITTEN_TOPICS: Final = (STATE_TOPIC, "__transaction_state")
_MIN_ISR_TIMEOUT_S: Final = 3.0


def explain_min_isr(cluster: ClusterConfig, timeout_s: float) -> str:
    """Empty: another reason, or unknown."""
    try:
        with ClusterClient(cluster, timeout_s=min(_MIN_ISR_TIMEOUT_S, timeout_s)) as client:
            short_topics = list(_find_short_topics(client))
    except MirrorError:  # the caller has an error already
        return ""
    return explain_under_min_isr(cluster.name, cluster.control["bootstrap.servers"], short_topics)


def _find_short_topics(client: ClusterClient) -> Iterator[MinIsrTopic]:
    configs, _ = describe_available_configs(client, _WRITTEN_TOPICS)
    for topic, topic_configs in configs.items():
        if (min_isr_text := topic_configs.effective.get("min.insync.replicas")) is None or not min_isr_text.isdecimal():
            continue
        min_isr = int(min_isr_text)
        placements_found = describe_placements(client, [topic]).values()
        partitions = [
            IsrStatus(replicas=row.replicas, in_sync=row.in_sync, min_insync_replicas=min_isr)
            for row in placements_found
        ]
        if short_partitions := [partition for partition in partitions if partition.is_under_min_isr]:
            yield MinIsrTopic(topic=topic, worst=min(short_partitions, key=lambda partition: len(partition.in_sync)))


OPEN_TRANSACTION_WAIT_S: Final = 1.0
"""Killed owners' stay open longer."""
_MAX_FETCH_BYTES: Final = 1 << 20
"""A slow link delivers this within the timeout."""
_RESPONSE_TIMEOUT_S: Final = 10.0
_MAX_WAIT_MS: Final = 50
_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 0.5
_NO_HIGH_WATERMARK: Final = ErrorCode.offset_not_available.name.upper()
"""A new leader with too few in-sync replicas (KIP-207)."""
_BATCH_KIND: Final = "batch"
"""In place of a key: that of its records is not known."""
_NO_TOPIC_ID: Final = "0" * 32
_RETRIED_CODES: Final = RETRIABLE_CODES | {ErrorCode.unknown_topic_or_partition, ErrorCode.offset_out_of_range}
"""Retriable, or cured by reading from the start."""


@dataclass(frozen=True, slots=True)
class LogIdentity:
    topic: str
    topic_id: str
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class CachedState:
    log: LogIdentity
    log_start: int
    position: int
    """Next offset to be read."""
    state: State


@dataclass(frozen=True, slots=True)
class TopicRead:
    """`cached`: if it can be read further."""

    state: State
    cached: CachedState | None = None


class LogChanged(Exception):
    """The log must be read from the start."""


class _ReadAgain(LogChanged):
    """The message says why."""


class _TransactionOpen(Exception):
    pass


def read_from_start(
    cluster: ClusterConfig,
    topic: str,
    *,
    timeout_s: float,
    wait_for_open: bool,
    on_progress: Callable[[], None],
    hanging_hint: str,
) -> TopicRead:
    """Empty without the topic; ends before an open transaction, unless `wait_for_open`.

    The limit is for silence and restarts with progress, until the end was seen once. `hanging_hint`: message for a
    transaction that never ends.
    """
    reader, pause_s = _TopicReader(topic, timeout_s, on_progress), _PAUSE_S
    with ClusterClient(cluster, timeout_s=min(timeout_s, _RESPONSE_TIMEOUT_S)) as client:
        while True:
            try:
                leader = _find_leader(client, topic)
                return (
                    TopicRead(State()) if leader is None else reader.read(client, *leader, wait_for_open=wait_for_open)
                )
            except AuthenticationFailed:
                raise  # retries may lock the login
            except Unreachable as unreachable:  # the leader or its metadata
                client.mark_metadata_stale()
                reason = str(unreachable)
            except _ReadAgain as read_again:
                reason = str(read_again)
            except _TransactionOpen:
                reason = hanging_hint
            if time.monotonic() > reader.deadline:
                min_isr_reason = explain_min_isr(cluster, timeout_s) if reason == _NO_HIGH_WATERMARK else ""
                reason = f"{reason}. {min_isr_reason}" if min_isr_reason else reason
                raise Unreachable(
                    f"cluster {cluster.name}, state topic {topic}: not read within {timeout_s} s: {reason}"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)


class _StuckTransactions:
    """Decided ones that their coordinator cannot finish: those decided at two checks."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._decided: dict[str, DecidedTransaction] = {}
        self._next_check_at = math.inf
        """Infinite before the first wait: mostly the marker is there at once."""

    def end_stuck(self, client: ClusterClient) -> None:
        """Without rights it keeps waiting."""
        began_at = time.monotonic()
        if began_at < self._next_check_at:
            self._next_check_at = min(self._next_check_at, began_at + TIMEOUTS.transaction_marker_s)
            return
        try:
            decided = list_decided_transactions(client, self._partition)
            for transactional_id, transaction in decided.items():
                if self._decided.get(transactional_id) == transaction:
                    producer_id = transaction.producer_id
                    write_final_marker(client, self._partition, producer_id, committed=transaction.committed)
            self._decided = decided
            end_hanging_transactions(client, self._partition)
        except (MissingPermission, Unreachable):
            pass
        self._next_check_at = time.monotonic() + TIMEOUTS.transaction_marker_s


class _TopicReader:
    def __init__(self, topic: str, timeout_s: float, on_progress: Callable[[], None]) -> None:
        self.deadline = time.monotonic() + timeout_s
        self._partition = Partition(topic, 0)
        self._timeout_s = timeout_s
        self._stuck_transactions = _StuckTransactions(self._partition)
        self._on_progress = on_progress
        self._has_reached_end = False
        """Everything committed was seen once."""
        self._furthest_position = -1
        """For the best attempt."""
        self._cached: CachedState | None = None
        """For the same leader and epoch."""

    def read(
        self, client: ClusterClient, log: LogIdentity, address: tuple[str, int], *, wait_for_open: bool
    ) -> TopicRead:
        with borrowed_connection(client, address) as connection:
            try:
                return self._read(client, connection, log, wait_for_open=wait_for_open)
            except MalformedBatch as error:
                raise RemoteFault(f"{connection.where}: state topic {log.topic}: {error}") from None
            except _ReadAgain:
                self._cached = None
                raise

    def _read(
        self, client: ClusterClient, connection: Connection, log: LogIdentity, *, wait_for_open: bool
    ) -> TopicRead:
        link = FetchLink(connection, max_bytes=_MAX_FETCH_BYTES, partition_max_bytes=_MAX_FETCH_BYTES, full_size=True)
        if self._cached is None or self._cached.log != log:
            code, start = fetch_log_start(connection, self._partition)
            _raise_for_code(client, code, "ListOffsets (needs DESCRIBE)")
            self._cached = CachedState(log, start, start, _make_empty_state(log, start))
        cached, is_waiting, settle_deadline = self._cached, False, math.inf
        while True:
            asked_at = time.monotonic()
            fetched = _fetch_records(
                link, FetchPosition(self._partition, cached.position, log.leader_epoch), is_waiting=is_waiting
            )
            if fetched is None:  # throttling is no failure
                time.sleep(link.throttle_ms / 1000)
                self.deadline += link.throttle_ms / 1000
                continue
            _raise_for_code(client, to_error_code(fetched.error), "Fetch (needs READ)")
            previous, position = cached.position, _apply_records(fetched, cached.state, cached.position)
            self._cached = cached = replace(cached, position=position)
            is_waiting = position == previous
            if position > self._furthest_position and not self._has_reached_end:
                self._furthest_position, self.deadline = position, time.monotonic() + self._timeout_s
                self._on_progress()
            if position >= fetched.high_watermark:
                return TopicRead(cached.state, cached if log.topic_id != _NO_TOPIC_ID else None)
            if is_waiting:
                if len(fetched.records):
                    raise RemoteFault(f"{connection.where}: state topic {log.topic}, offset {previous}: no whole batch")
                self._has_reached_end = True
                # Read once more: this process may have been suspended.
                if not wait_for_open and asked_at > settle_deadline:
                    return TopicRead(cached.state)
                settle_deadline = min(settle_deadline, time.monotonic() + OPEN_TRANSACTION_WAIT_S)
                self._stuck_transactions.end_stuck(client)
            if self._has_reached_end and time.monotonic() > self.deadline:
                raise _TransactionOpen


def _make_empty_state(log: LogIdentity, start: int) -> State:
    return State(log_start_offset=start, topic_id="" if log.topic_id == _NO_TOPIC_ID else log.topic_id)


def read_newer(
    cluster: ClusterConfig, cached: CachedState, on_progress: Callable[[], None], timeout_s: float
) -> CachedState:
    """Consumes `cached`. On LogChanged or another error, read from the start."""
    with ClusterClient(cluster, timeout_s=timeout_s) as client:
        leader = _find_leader(client, cached.log.topic)
        if leader is None or leader[0] != cached.log:
            raise LogChanged
        on_progress()
        with borrowed_connection(client, leader[1]) as connection:
            position = _apply_newer(connection, cached)
    return replace(cached, position=position)


def _apply_newer(connection: Connection, cached: CachedState) -> int:
    link = FetchLink(connection, max_bytes=_MAX_FETCH_BYTES, partition_max_bytes=_MAX_FETCH_BYTES, full_size=True)
    position, is_waiting, settle_deadline = cached.position, False, time.monotonic() + OPEN_TRANSACTION_WAIT_S
    while True:
        wanted = FetchPosition(Partition(cached.log.topic, 0), position, cached.log.leader_epoch)
        asked_at = time.monotonic()
        fetched = _fetch_records(link, wanted, is_waiting=is_waiting)
        if fetched is None:
            time.sleep(link.throttle_ms / 1000)
            settle_deadline += link.throttle_ms / 1000
            continue
        if fetched.error or fetched.log_start_offset != cached.log_start:
            raise LogChanged
        previous, position = position, _apply_records(fetched, cached.state, position, dense=True)
        is_waiting = position == previous
        if position >= fetched.high_watermark:
            return position
        if not is_waiting:
            settle_deadline = time.monotonic() + OPEN_TRANSACTION_WAIT_S
        if asked_at > settle_deadline:  # after one more read, as above
            raise Unreachable(f"{connection.where}: transactions are open")


def _find_leader(client: ClusterClient, topic: str) -> tuple[LogIdentity, tuple[str, int]] | None:
    """None if there is no topic, confirmed by a second broker."""
    metadata = client.metadata([topic])
    if topic not in metadata.topics and topic not in metadata.denied:
        client.mark_metadata_stale()
        metadata = client.metadata([topic])
    if topic in metadata.denied:  # never return an empty state
        raise make_fault(
            client, f"state topic {topic}", "Metadata (needs DESCRIBE)", ErrorCode.topic_authorization_failed
        )
    described = metadata.topics.get(topic)
    if described is None:
        return None
    leader = described.partitions.get(0)
    if leader is None or leader.broker not in metadata.brokers:
        raise _ReadAgain("LEADER_NOT_AVAILABLE")
    return LogIdentity(topic, described.id, leader.epoch), metadata.brokers[leader.broker]


def _raise_for_code(client: ClusterClient, code: ErrorCode, action: str) -> None:
    if code is ErrorCode.none:
        return
    if code in STALE_METADATA_CODES:
        client.mark_metadata_stale()
    if code in _RETRIED_CODES:
        raise _ReadAgain(code.name.upper())
    raise make_fault(client, f"state topic {STATE_TOPIC}", action, code)


def _fetch_records(link: FetchLink, wanted: FetchPosition, *, is_waiting: bool) -> FetchedPartition | None:
    """None while throttled."""
    link.send_fetch([wanted], max_wait_ms=_MAX_WAIT_MS if is_waiting else 0, isolation=IsolationLevel.READ_COMMITTED)
    for fetched in link.read_response():
        return fetched
    if link.throttle_ms:
        return None
    raise RemoteFault(f"{link.connection.where}: a Fetch answer without {wanted.partition}")


def _apply_records(fetched: FetchedPartition, state: State, position: int, *, dense: bool = False) -> int:
    """Returns the next offset. `dense`: LogChanged where compaction removed a record."""
    new_rows: list[tuple[str, bytes | None]] = []
    append_times = dict[str, int | None]()
    for header, batch, visible in filter_committed(fetched, position):
        if dense and (header.base_offset != position or not is_dense(header)):
            raise LogChanged
        try:
            rows = [
                (record.key.decode("utf-8", "replace"), record.value)
                for record in (decode_records(header, batch) if visible else ())
                if record.key is not None and record.offset >= position
            ]
        except MalformedBatch as error:  # its CRC is right: somebody else wrote it so, and ends no reader by it
            rows = []
            state.unreadable[f"{_BATCH_KIND}/{header.base_offset}"] = f"{error}: somebody else wrote it?"
        appended_ms = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
        append_times |= dict.fromkeys((key for key, _ in rows), appended_ms)
        state.last_append_ms = appended_ms
        new_rows += rows
        position = header.next_offset
    for key, value in drop_replaced_rows(new_rows):
        state.apply(key, value, append_times[key])
    return position
