"""The state topic, read on from where a run at work has read it before: a look costs what was written since.

Read on is only what is provably the same log with nothing missing: same topic id, same leader epoch (so nothing was cut
off), same log start, and from the place on a record for every offset. Where the cleaner has taken one it may have been
a tombstone, whose key is still remembered here: this needs no clock, however long the process was asleep. Whatever
else may be wrong, the topic is read whole, and that says so. Outside of `keeping()` nothing is remembered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.fetching import FetchLink
from mirror_core.model.errors import MirrorError, Unreachable
from mirror_core.model.limits import LIMITS
from mirror_core.model.names import Partition
from mirror_core.state.records import State
from mirror_core.wire.batch import MalformedBatch, is_dense
from mirror_core.wire.committed import committed
from mirror_core.wire.fetch import Fetched, Isolation, Wanted
from mirror_core.wire.records import decode

_DECIDED_S: Final = 1.0
"""How long open transactions are waited for here; a whole read knows how to wait for those of killed owners."""
_MAX_BYTES: Final = 4 << 20
_MAX_WAIT_MS: Final = 10
_NO_ID: Final = "0" * 32


class NotTheSame(Exception):
    """Why the log must be read whole."""


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


class Remembered:
    """By cluster, as it is reached. Whoever takes a memory has it alone; another one reads whole meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at_work = 0
        self._known: dict[Hashable, Memory] = {}

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Until the last one leaves; then all is forgotten."""
        with self._lock:
            self._at_work += 1
        try:
            yield
        finally:
            with self._lock:
                self._at_work -= 1
                if not self._at_work:
                    self._known.clear()

    @property
    def keeps(self) -> bool:
        return self._at_work > 0

    def take(self, cluster: ClusterConfig) -> Memory | None:
        with self._lock:
            return self._known.pop(_key(cluster), None)

    def put(self, cluster: ClusterConfig, memory: Memory) -> None:
        with self._lock:
            if self._at_work:
                self._known[_key(cluster)] = memory


REMEMBERED: Final = Remembered()
"""This process's."""


def _key(cluster: ClusterConfig) -> Hashable:
    return tuple(sorted(cluster.properties().items()))


def log_now(cluster: ClusterConfig, topic: str) -> Log | None:
    """The log as it is before it is read whole; None when that cannot be told: then it is not read on later."""
    try:
        with ClusterClient(cluster, timeout_s=LIMITS.remembered_state_s) as client:
            return _leader(client, topic)[0]
    except (MirrorError, NotTheSame):
        return None


def read_on(cluster: ClusterConfig, known: Memory, heard: Callable[[], None]) -> Memory | None:
    """The committed state at this moment; None when the topic has to be read whole. `known` is used up by it."""
    try:
        with ClusterClient(cluster, timeout_s=LIMITS.remembered_state_s) as client:
            now, address = _leader(client, known.log.topic)
            if now != known.log:
                raise NotTheSame
            heard()
            connection = client.lend(address) or client.open(address)
            try:
                position = _to_the_end(connection, known)
            except BaseException:
                connection.close()
                raise
            client.give_back(address, connection)
    except (MirrorError, MalformedBatch, NotTheSame):
        return None
    return replace(known, position=position)


def _leader(client: ClusterClient, topic: str) -> tuple[Log, tuple[str, int]]:
    view = client.metadata([topic])
    found = view.topics.get(topic)
    leader = found.partitions.get(0) if found else None
    if found is None or leader is None or leader.broker not in view.brokers or found.id == _NO_ID:
        raise NotTheSame
    return Log(topic, found.id, leader.epoch), view.brokers[leader.broker]


def _to_the_end(connection: Connection, known: Memory) -> int:
    """Apply what was written since; the next offset to be read, with all before it decided.

    The leader refuses an epoch that is not its own, and a reader of committed records gets nothing behind the first
    transaction that is open. A commit is answered before its marker is in the log (KIP-98), so that is waited for.
    """
    link = FetchLink(connection, max_bytes=_MAX_BYTES, partition_max_bytes=_MAX_BYTES, at_once=True)
    position, partition = known.position, Partition(known.log.topic, 0)
    settled = time.monotonic() + _DECIDED_S
    while True:
        wanted = [Wanted(partition, position, known.log.leader_epoch)]
        link.ask(
            wanted, max_wait_ms=0 if position == known.position else _MAX_WAIT_MS, isolation=Isolation.READ_COMMITTED
        )
        for answer in link.take():
            if answer.error or answer.log_start != known.log_start:
                raise NotTheSame
            before, position = position, _applied(answer, known.state, position)
            if position >= answer.high_watermark:
                return position
            if position > before:
                settled = time.monotonic() + _DECIDED_S
        if time.monotonic() > settled:
            raise Unreachable(f"{connection.where}: transactions are open")


def _applied(answer: Fetched, state: State, position: int) -> int:
    for header, batch, visible in committed(answer, position):
        if header.base_offset != position or not is_dense(header):
            raise NotTheSame  # cleaned
        for record in decode(header, batch) if visible else ():
            if record.key is not None and record.offset >= position:
                state.apply(record.key.decode("utf-8", "replace"), record.value)
        position = header.next_offset
    return position
