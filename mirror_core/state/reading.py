"""Reading the state topic from its leader: whole, or on from a place that is known.

Only committed records count. A reader gets nothing behind the first transaction that is open; and since a commit is
answered before its marker is in the log (KIP-98), he is at the end only when that is where the log ends for the leader.
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
"""How long a reader waits for open transactions to be decided; a killed owner's stay open for longer."""
_MAX_BYTES: Final = 1 << 20
"""So much comes by a slow way within the time that a silent cluster is given."""
_ANSWER_S: Final = 10.0
"""For each answer: there may be another leader by then."""
_MAX_WAIT_MS: Final = 50
"""For what is not there yet."""
_PAUSE_S: Final = 0.05
_MOST_PAUSE_S: Final = 0.5
_NO_END: Final = ErrorCode.offset_not_available.name.upper()
"""Of a new leader with too few replicas in sync to know its high watermark (KIP-207)."""
_LEASE: Final = "lease/"
_NO_ID: Final = "0" * 32
_AGAIN: Final = TRANSIENT | {ErrorCode.unknown_topic_or_partition, ErrorCode.offset_out_of_range}
"""What passes by itself, or when the log is read from its beginning anew."""


@dataclass(frozen=True, slots=True)
class Log:
    """What tells whether a log is still the one that was read."""

    topic: str
    topic_id: str
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What a log's records add up to, before a place."""

    log: Log
    log_start: int
    position: int
    """Next offset to be read: all before it was decided."""
    state: State


@dataclass(frozen=True, slots=True)
class Whole:
    """A topic that was read from its beginning. `memory`: of one that can be read on later."""

    state: State
    memory: Memory | None = None


class NotTheSame(Exception):
    """Why the log must be read whole."""


class _Again(NotTheSame):
    """Why it is to be read once more, from its beginning."""


class _Undecided(Exception):
    """A transaction is open before the end of the log, and nobody has ended it in time."""


def read_from_start(
    cluster: ClusterConfig, topic: str, *, timeout_s: float, whole: bool, heard: Callable[[], None], hanging: str
) -> Whole:
    """The committed state; empty when the topic does not exist.

    Behind an open transaction it is what stands before it; with `whole` that is waited for. The limit is for silence:
    while it comes further, it begins anew, until the end was seen once. `hanging`: what is said of a transaction that
    nobody ends.
    """
    reader, pause_s = _Reader(topic, timeout_s, heard), _PAUSE_S
    with ClusterClient(cluster, timeout_s=min(timeout_s, _ANSWER_S)) as client:
        while True:
            try:
                found = _leader(client, topic)
                return Whole(State()) if found is None else reader.read(client, *found, whole=whole)
            except SignInFailed:
                raise  # not mended within seconds, and a login refused in a row may lock us out
            except Unreachable as silent:  # the leader, perhaps, and who named it is behind
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
    """Ends transactions of a partition that their coordinator has decided and cannot finish: see
    `unfinished_transactions`. One that stays decided between two looks is taken for stuck."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._decided: dict[str, DecidedTransaction] = {}
        self._next_look = math.inf
        """Monotonic time; infinite before the first wait: mostly a marker is there in a moment."""

    def end(self, client: ClusterClient) -> None:
        """Nothing is done where this principal may not look, or may not write markers: it goes on waiting."""
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
    """Of one topic, from its beginning. Where a connection breaks, it goes on with the next one."""

    def __init__(self, topic: str, timeout_s: float, heard: Callable[[], None]) -> None:
        self.deadline = time.monotonic() + timeout_s
        self._partition = Partition(topic, 0)
        self._timeout_s = timeout_s
        self._stuck = _StuckTransactions(self._partition)
        self._heard = heard
        self._at_end = False
        """Whether all that is committed was seen once."""
        self._furthest = -1
        """Next offset to be read, of the attempt that came furthest."""
        self._known: Memory | None = None
        """What is read so far: of the same leader and epoch it is read on."""

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
            if answer is None:  # a quota makes us wait, and is no failure
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
                # Whoever was held up meanwhile looks once more: what he waited for may be there by now.
                if not whole and asked > settled:
                    return Whole(known.state)
                settled = min(settled, time.monotonic() + MARKER_S)
                self._stuck.end(client)
            if self._at_end and time.monotonic() > self.deadline:
                raise _Undecided


def read_on(cluster: ClusterConfig, known: Memory, heard: Callable[[], None], timeout_s: float) -> Memory:
    """The committed state at this moment. `known` is used up by it. NotTheSame, or what has gone wrong: then the topic
    has to be read whole.

    Read on is only what is provably the same log with nothing missing: see `remembered`.
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
    """Apply what was written since; the next offset to be read, with all before it decided."""
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
        if asked > settled:  # looked at once more by whoever was held up meanwhile, as above
            raise Unreachable(f"{connection.where}: transactions are open")


def _leader(client: ClusterClient, topic: str) -> tuple[Log, tuple[str, int]] | None:
    """The log as it is now, and who leads it; None where there is none, by the word of two brokers if there are two."""
    view = client.metadata([topic])
    if topic not in view.topics and topic not in view.denied:
        client.ask_another()
        view = client.metadata([topic])
    if topic in view.denied:  # an empty state would be believed
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
    """None: a quota keeps the broker from answering now. `waiting`: nothing more has come before, so the leader may
    hold the answer until something does."""
    link.ask([wanted], max_wait_ms=_MAX_WAIT_MS if waiting else 0, isolation=Isolation.READ_COMMITTED)
    for answer in link.take():
        return answer
    if link.throttle_ms:
        return None
    raise RemoteFault(f"{link.connection.where}: a Fetch answer without {wanted.partition}")


def _applied(answer: Fetched, state: State, position: int, *, dense: bool = False) -> int:
    """The next offset to be read. `dense`: NotTheSame where the cleaner has taken a record, or a batch."""
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
