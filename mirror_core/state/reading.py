"""Reads the state topic from its leader, from the start or a known position.

Open transactions hide what follows. A commit is acknowledged before its marker is in the log (KIP-98), so the end is
reached only at the leader's log end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.faults import ErrorCode, code_of, fault
from mirror_core.kafka.fetching import FetchLink
from mirror_core.kafka.lent import lent
from mirror_core.kafka.offsets import log_start
from mirror_core.kafka.transient import MISLED, TRANSIENT
from mirror_core.kafka.unfinished_transactions import (
    DecidedTransaction,
    decided_transactions_in,
    write_last_marker,
)
from mirror_core.model.errors import MissingPermission, RemoteFault, SignInFailed, Unreachable
from mirror_core.model.limits import LIMITS
from mirror_core.model.names import MirrorName, Partition
from mirror_core.state.encoding import lasting
from mirror_core.state.records import TOPIC, State
from mirror_core.state.short import for_want_of_replicas
from mirror_core.wire.batch import LOG_APPEND_TIME, MalformedBatch, is_dense
from mirror_core.wire.committed import committed
from mirror_core.wire.fetch import Fetched, Isolation, Wanted
from mirror_core.wire.records import decode

MARKER_S: Final = 1.0
"""Killed owners' stay open longer."""
_MAX_BYTES: Final = 1 << 20
"""A slow link delivers this within the timeout."""
_ANSWER_S: Final = 10.0
_MAX_WAIT_MS: Final = 50
_PAUSE_S: Final = 0.05
_MOST_PAUSE_S: Final = 0.5
_NO_END: Final = ErrorCode.offset_not_available.name.upper()
"""A new leader with too few in-sync replicas (KIP-207)."""
_LEASE: Final = "lease/"
_NO_ID: Final = "0" * 32
_AGAIN: Final = TRANSIENT | {ErrorCode.unknown_topic_or_partition, ErrorCode.offset_out_of_range}
"""Retriable, or cured by reading from the start."""


@dataclass(frozen=True, slots=True)
class Log:
    topic: str
    topic_id: str
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Sum of a log's records up to a position."""

    log: Log
    log_start: int
    position: int
    """Next offset to be read."""
    state: State


@dataclass(frozen=True, slots=True)
class Whole:
    """`cached`: if it can be read further."""

    state: State
    memory: Memory | None = None


class NotTheSame(Exception):
    """The log must be read from the start."""


class _Again(NotTheSame):
    """The message says why."""


class _Undecided(Exception):
    pass


def read_from_start(
    cluster: ClusterConfig, topic: str, *, timeout_s: float, whole: bool, heard: Callable[[], None], hanging: str
) -> Whole:
    """Empty without the topic; ends before an open transaction, unless `wait_for_open`.

    The limit is for silence and restarts with progress, until the end was seen once. `hanging_hint`: message for a
    transaction that never ends.
    """
    reader, pause_s = _Reader(topic, timeout_s, heard), _PAUSE_S
    with ClusterClient(cluster, timeout_s=min(timeout_s, _ANSWER_S)) as client:
        while True:
            try:
                found = _leader(client, topic)
                return Whole(State()) if found is None else reader.read(client, *found, whole=whole)
            except SignInFailed:
                raise  # retries may lock the login
            except Unreachable as silent:  # the leader or its metadata
                client.ask_another()
                why = str(silent)
            except _Again as again:
                why = str(again)
            except _Undecided:
                why = hanging
            if time.monotonic() > reader.deadline:
                short = for_want_of_replicas(cluster, timeout_s) if why == _NO_END else ""
                why = f"{why}. {short}" if short else why
                raise Unreachable(f"cluster {cluster.name}, state topic {topic}: not read within {timeout_s} s: {why}")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)


class _StuckTransactions:
    """Decided ones that their coordinator cannot finish: those decided at two checks."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._decided: dict[str, DecidedTransaction] = {}
        self._next_look = math.inf
        """Infinite before the first wait: mostly the marker is there at once."""

    def end(self, client: ClusterClient) -> None:
        """Without rights it keeps waiting."""
        now = time.monotonic()
        if now < self._next_look:
            self._next_look = min(self._next_look, now + LIMITS.transaction_marker_s)
            return
        try:
            decided = decided_transactions_in(client, self._partition)
            for transactional_id, transaction in decided.items():
                if self._decided.get(transactional_id) == transaction:
                    producer_id = transaction.producer_id
                    write_last_marker(client, self._partition, producer_id, committed=transaction.committed)
            self._decided = decided
        except (MissingPermission, Unreachable):
            pass
        self._next_look = time.monotonic() + LIMITS.transaction_marker_s


class _Reader:
    """Continues after a broken connection."""

    def __init__(self, topic: str, timeout_s: float, heard: Callable[[], None]) -> None:
        self.deadline = time.monotonic() + timeout_s
        self._partition = Partition(topic, 0)
        self._timeout_s = timeout_s
        self._stuck = _StuckTransactions(self._partition)
        self._heard = heard
        self._at_end = False
        """Everything committed was seen once."""
        self._furthest = -1
        """Of the best attempt."""
        self._known: Memory | None = None
        """For the same leader and epoch."""

    def read(self, client: ClusterClient, log: Log, address: tuple[str, int], *, whole: bool) -> Whole:
        with lent(client, address) as connection:
            try:
                return self._read(client, connection, log, whole=whole)
            except MalformedBatch as error:
                raise RemoteFault(f"{connection.where}: state topic {log.topic}: {error}") from None
            except _Again:
                self._known = None
                raise

    def _read(self, client: ClusterClient, connection: Connection, log: Log, *, whole: bool) -> Whole:
        link = FetchLink(connection, max_bytes=_MAX_BYTES, partition_max_bytes=_MAX_BYTES, at_once=True)
        if self._known is None or self._known.log != log:
            code, start = log_start(connection, self._partition)
            _refuse(client, code, "ListOffsets (needs DESCRIBE)")
            self._known = Memory(log, start, start, State())
        known, waiting, settled = self._known, False, math.inf
        while True:
            asked = time.monotonic()
            answer = _asked(link, Wanted(self._partition, known.position, log.leader_epoch), waiting=waiting)
            if answer is None:  # throttling is no failure
                time.sleep(link.throttle_ms / 1000)
                self.deadline += link.throttle_ms / 1000
                continue
            _refuse(client, code_of(answer.error), "Fetch (needs READ)")
            before, position = known.position, _applied(answer, known.state, known.position)
            self._known = known = replace(known, position=position)
            waiting = position == before
            if position > self._furthest and not self._at_end:
                self._furthest, self.deadline = position, time.monotonic() + self._timeout_s
                self._heard()
            if position >= answer.high_watermark:
                return Whole(known.state, known if log.topic_id != _NO_ID else None)
            if waiting:
                if len(answer.records):
                    raise RemoteFault(f"{connection.where}: state topic {log.topic}, offset {before}: no whole batch")
                self._at_end = True
                # Read once more: this process may have been suspended.
                if not whole and asked > settled:
                    return Whole(known.state)
                settled = min(settled, time.monotonic() + MARKER_S)
                self._stuck.end(client)
            if self._at_end and time.monotonic() > self.deadline:
                raise _Undecided


def read_on(cluster: ClusterConfig, known: Memory, heard: Callable[[], None], timeout_s: float) -> Memory:
    """Consumes `cached`. LogChanged or other errors: read from the start.

    Only for provably the same log without gaps: see `state_topic`.
    """
    with ClusterClient(cluster, timeout_s=timeout_s) as client:
        found = _leader(client, known.log.topic)
        if found is None or found[0] != known.log:
            raise NotTheSame
        heard()
        with lent(client, found[1]) as connection:
            position = _to_the_end(connection, known)
    return replace(known, position=position)


def _to_the_end(connection: Connection, known: Memory) -> int:
    """Returns the next offset to be read."""
    link = FetchLink(connection, max_bytes=_MAX_BYTES, partition_max_bytes=_MAX_BYTES, at_once=True)
    position, waiting, settled = known.position, False, time.monotonic() + MARKER_S
    while True:
        wanted = Wanted(Partition(known.log.topic, 0), position, known.log.leader_epoch)
        asked = time.monotonic()
        answer = _asked(link, wanted, waiting=waiting)
        if answer is None:
            time.sleep(link.throttle_ms / 1000)
            settled += link.throttle_ms / 1000
            continue
        if answer.error or answer.log_start != known.log_start:
            raise NotTheSame
        before, position = position, _applied(answer, known.state, position, dense=True)
        waiting = position == before
        if position >= answer.high_watermark:
            return position
        if not waiting:
            settled = time.monotonic() + MARKER_S
        if asked > settled:  # after one more read, as above
            raise Unreachable(f"{connection.where}: transactions are open")


def _leader(client: ClusterClient, topic: str) -> tuple[Log, tuple[str, int]] | None:
    """None: no topic, confirmed by a second broker."""
    view = client.metadata([topic])
    if topic not in view.topics and topic not in view.denied:
        client.ask_another()
        view = client.metadata([topic])
    if topic in view.denied:  # never return an empty state
        raise fault(client, f"state topic {topic}", "Metadata (needs DESCRIBE)", ErrorCode.topic_authorization_failed)
    found = view.topics.get(topic)
    if found is None:
        return None
    leader = found.partitions.get(0)
    if leader is None or leader.broker not in view.brokers:
        raise _Again("LEADER_NOT_AVAILABLE")
    return Log(topic, found.id, leader.epoch), view.brokers[leader.broker]


def _refuse(client: ClusterClient, code: ErrorCode, action: str) -> None:
    if code is ErrorCode.none:
        return
    if code in MISLED:
        client.ask_another()
    if code in _AGAIN:
        raise _Again(code.name.upper())
    raise fault(client, f"state topic {TOPIC}", action, code)


def _asked(link: FetchLink, wanted: Wanted, *, waiting: bool) -> Fetched | None:
    """None: throttled. `is_waiting`: the leader may hold the response."""
    link.ask([wanted], max_wait_ms=_MAX_WAIT_MS if waiting else 0, isolation=Isolation.READ_COMMITTED)
    for answer in link.take():
        return answer
    if link.throttle_ms:
        return None
    raise RemoteFault(f"{link.connection.where}: a Fetch answer without {wanted.partition}")


def _applied(answer: Fetched, state: State, position: int, *, dense: bool = False) -> int:
    """Returns the next offset. `dense`: LogChanged where compaction removed a record."""
    told: list[tuple[str, bytes | None]] = []
    leases: dict[MirrorName, int | None] = {}
    for header, batch, visible in committed(answer, position):
        if dense and (header.base_offset != position or not is_dense(header)):
            raise NotTheSame
        rows = [
            (record.key.decode("utf-8", "replace"), record.value)
            for record in (decode(header, batch) if visible else ())
            if record.key is not None and record.offset >= position
        ]
        appended_ms = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
        leases |= {MirrorName(key[len(_LEASE) :]): appended_ms for key, _ in rows if key.startswith(_LEASE)}
        told += rows
        position = header.next_offset
    for key, value in lasting(told):
        state.apply(key, value)
    for mirror, at_ms in leases.items():
        state.appended_ms.pop(mirror, None)
        if at_ms is not None:
            state.appended_ms[mirror] = at_ms
    return position
