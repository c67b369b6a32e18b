"""Topic `__mirrorbook_active`: which cluster each mirror's applications should use.

One compacted partition, JSON by mirror name, on both clusters: the higher generation wins, then the later one. Only the
next generation is decided by it. Written under the mirror's own transactional id, which fences a writer that slept.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Final

import msgspec

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.exclusive import ExclusiveProducer, ForeignAbort, IdUsedUp
from mirror_core.kafka.faults import ErrorCode, code_of, fault
from mirror_core.kafka.fetching import FetchLink, fetch_once
from mirror_core.kafka.lent import lent
from mirror_core.kafka.offsets import log_start
from mirror_core.kafka.topics import BROKER_TIME, NewTopic, create_topics
from mirror_core.kafka.transaction_brokers import Fenced
from mirror_core.kafka.transient import TRANSIENT
from mirror_core.model.errors import MissingPermission, RemoteFault, SignInFailed, Unreachable
from mirror_core.model.limits import LIMITS
from mirror_core.model.names import ACTIVE_TOPIC, ClusterName, MirrorName, Partition
from mirror_core.state.topic import TRANSACTION_MS
from mirror_core.wire.batch import MalformedBatch
from mirror_core.wire.committed import committed
from mirror_core.wire.records import decode

_PARTITION: Final = Partition(ACTIVE_TOPIC, 0)
_MAX_BYTES: Final = 1 << 20
_PAUSE_S: Final = 0.05
_AS_LONG: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """Applications read these fields."""

    mirror: MirrorName
    active: ClusterName
    """The cluster that accepts the applications' writes."""
    cluster_id: str
    bootstrap_servers: str
    """As Mirrorbook connects."""
    since_ms: int
    run: str
    """Empty before the first."""
    generation: int
    """Grows with every move."""

    @property
    def order(self) -> tuple[int, int]:
        """The greater wins. Equal generations only if one cluster was down; then time decides."""
        return self.generation, self.since_ms


def newest(config: ClusterConfig, mirror: MirrorName, timeout_s: float) -> Active | None:
    """None: no entry or no topic. The limit is for silence; distance extends it."""
    asked = time.monotonic()
    with ClusterClient(config, timeout_s=timeout_s) as broker:
        view = broker.metadata([ACTIVE_TOPIC])
    deadline = asked + _patience_s(asked, timeout_s)
    if ACTIVE_TOPIC in view.denied:
        raise _needs_read(config)
    return _read(config, mirror, deadline) if ACTIVE_TOPIC in view.topics else None


def announce(config: ClusterConfig, active: Active, timeout_s: float = LIMITS.silent_source_s) -> Active:
    """Unless the cluster has a later generation. Returns the entry there.

    Idempotent; creates the topic. Distance extends `timeout_s`. MirrorError if not written.
    """
    asked = time.monotonic()
    with ClusterClient(config, timeout_s=timeout_s) as broker:
        broker.metadata(())
        patience_s = _patience_s(asked, timeout_s)
        ensure_topic(broker)
    deadline = time.monotonic() + patience_s
    producer = ExclusiveProducer(
        config,
        f"mirrorbook.active.{active.mirror}",
        _PARTITION,
        transaction_ms=TRANSACTION_MS,
        where=f"cluster {config.name}, topic {ACTIVE_TOPIC}",
    )
    try:
        producer.take(_left(deadline))
        found = _read(config, active.mirror, deadline)
        if found is not None and found.order >= active.order:
            return found
        producer.write([(active.mirror, msgspec.json.encode(active))], _left(deadline))
    except (Fenced, ForeignAbort, IdUsedUp) as error:
        raise RemoteFault(
            f"cluster {config.name}, topic {ACTIVE_TOPIC}: cannot write: {error or type(error).__name__}"
        ) from None
    return active


def repeat(
    here: ClusterConfig, there: ClusterConfig, mirror: MirrorName, timeout_s: float = LIMITS.silent_source_s
) -> Active | None:
    """To a cluster that missed it. Returns the entry there; None: no entry."""
    said = newest(here, mirror, timeout_s)
    return None if said is None else announce(there, said, timeout_s)


def ensure_topic(broker: ClusterClient) -> None:
    """As well replicated as the cluster allows."""
    if ACTIVE_TOPIC in broker.metadata([ACTIVE_TOPIC]).topics:
        return
    factor = min(3, len(broker.brokers()))
    configs = {"cleanup.policy": "compact", "min.insync.replicas": "2" if factor == 3 else "1", **BROKER_TIME}
    create_topics(broker, [NewTopic(name=ACTIVE_TOPIC, partitions=1, replication_factor=factor, configs=configs)])


def _read(config: ClusterConfig, mirror: MirrorName, deadline: float) -> Active | None:
    """Aborted ones included: no generation is used twice."""
    with ClusterClient(config, timeout_s=_left(deadline)) as client:
        while True:
            try:
                return _newest_in_log(client, mirror)
            except SignInFailed:
                raise
            except Unreachable as silent:
                why = silent
            if time.monotonic() > deadline:
                raise Unreachable(f"cluster {config.name}, topic {ACTIVE_TOPIC}: not read in time: {why}")
            client.ask_another()
            time.sleep(_PAUSE_S)


def _newest_in_log(client: ClusterClient, mirror: MirrorName) -> Active | None:
    """Unreachable for retriable errors."""
    view = client.metadata([ACTIVE_TOPIC])
    if ACTIVE_TOPIC in view.denied:
        raise _needs_read(client.config)
    topic = view.topics.get(ACTIVE_TOPIC)
    leader = topic.partitions.get(_PARTITION.index) if topic else None
    if leader is None or leader.broker < 0:
        raise Unreachable("LEADER_NOT_AVAILABLE")
    with lent(client, client.address(leader.broker)) as connection:
        try:
            return _last_said(client, connection, mirror.encode())
        except MalformedBatch as error:
            raise RemoteFault(f"{connection.where}: topic {ACTIVE_TOPIC}: {error}") from None


def _last_said(client: ClusterClient, connection: Connection, mirror: bytes) -> Active | None:
    code, start = log_start(connection, _PARTITION)
    _refuse(client, code)
    link = FetchLink(connection, max_bytes=_MAX_BYTES, partition_max_bytes=_MAX_BYTES, at_once=True)
    found, position, end = None, int(start), math.inf
    while position < end:
        answer = fetch_once(link, _PARTITION, position)
        if answer is None:
            raise Unreachable(f"{connection.where}: a quota holds its answer back")
        _refuse(client, code_of(answer.error))
        before, end = position, answer.high_watermark
        for header, batch, visible in committed(answer, position):
            for record in decode(header, batch) if visible else ():
                if record.key == mirror:
                    found = _decoded(record.value)
            position = header.next_offset
        if position == before < end:
            raise Unreachable(f"{connection.where}: nothing came of what stands behind offset {position}")
    return found


def _needs_read(config: ClusterConfig) -> MissingPermission:
    return MissingPermission(f"cluster {config.name}, topic {ACTIVE_TOPIC}: needs READ")


def _refuse(client: ClusterClient, code: ErrorCode) -> None:
    if code in TRANSIENT:
        raise Unreachable(code.name.upper())
    if code is not ErrorCode.none:
        raise fault(client, f"topic {ACTIVE_TOPIC}", "read it (needs READ)", code)


_DECODER: Final = msgspec.json.Decoder(Active)  # made once: see `state_records`


def _decoded(value: str | bytes | None) -> Active | None:
    """None for foreign records: any client with WRITE can add some."""
    try:
        return None if value is None else _DECODER.decode(value)
    except msgspec.MsgspecError:
        return None


def _patience_s(asked: float, timeout_s: float) -> float:
    return max(timeout_s, _AS_LONG * (time.monotonic() - asked))


def _left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())
