"""Topic `__mirrorbook_active` of a cluster: which cluster each mirror's applications should use, for them to follow.

One partition, compacted; the key is the mirror's name, the value JSON. Both clusters have one, so that applications may
ask whichever answers: the higher generation is right, and of equal ones the later. It is no memory of ours: nothing is
decided by it but the next generation. Written in a transaction of the mirror's own transactional id, so whoever slept
since it looked is shut out.
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
"""Times that it takes to connect and be answered once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """What is announced of one mirror. Applications read these fields by their names."""

    mirror: MirrorName
    active: ClusterName
    """The cluster where its applications may write."""
    cluster_id: str
    bootstrap_servers: str
    """As Mirrorbook reaches it: applications may have another listener."""
    since_ms: int
    run: str
    """The run that moved them; empty: none did yet."""
    generation: int
    """Grows with every move."""

    @property
    def order(self) -> tuple[int, int]:
        """The greater one is right. Both sides count alike unless one was dead: then the time decides."""
        return self.generation, self.since_ms


def newest(config: ClusterConfig, mirror: MirrorName, timeout_s: float) -> Active | None:
    """What this cluster's topic says of a mirror now; None: nothing, or there is no such topic.

    The limit is for silence: a cluster that is far away gets more, by the time of its first answer.
    """
    asked = time.monotonic()
    with ClusterClient(config, timeout_s=timeout_s) as broker:
        view = broker.metadata([ACTIVE_TOPIC])
    deadline = asked + _patience_s(asked, timeout_s)
    if ACTIVE_TOPIC in view.denied:
        raise _needs_read(config)
    return _read(config, mirror, deadline) if ACTIVE_TOPIC in view.topics else None


def announce(config: ClusterConfig, active: Active, timeout_s: float = LIMITS.silent_source_s) -> Active:
    """Say so on one cluster, unless a later generation is known there; what the topic says now.

    May be repeated, by anybody, at any time: makes the topic if need be, and writes nothing that stands there already.
    Each wait is for `timeout_s` at most, or more where the first answer has come from far away. MirrorError when it
    could not be written.
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
    """Say on another cluster, to which it was owed, what this one says of a mirror; what stands there now.

    None: nothing was ever said. MirrorError when one of them does not answer.
    """
    said = newest(here, mirror, timeout_s)
    return None if said is None else announce(there, said, timeout_s)


def ensure_topic(broker: ClusterClient) -> None:
    """Make it unless it is there, as well replicated as the cluster allows. MirrorError when that may not be done."""
    if ACTIVE_TOPIC in broker.metadata([ACTIVE_TOPIC]).topics:
        return
    factor = min(3, len(broker.brokers()))
    configs = {"cleanup.policy": "compact", "min.insync.replicas": "2" if factor == 3 else "1", **BROKER_TIME}
    create_topics(broker, [NewTopic(name=ACTIVE_TOPIC, partitions=1, replication_factor=factor, configs=configs)])


def _read(config: ClusterConfig, mirror: MirrorName, deadline: float) -> Active | None:
    """The newest record of this mirror, also of a transaction that was given up: its generation is not used twice."""
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
    """Read from the log's start to its end. Unreachable for what passes."""
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


_DECODER: Final = msgspec.json.Decoder(Active)  # made once: see state/records.py


def _decoded(value: str | bytes | None) -> Active | None:
    """None for what is none of ours: anybody who may write there can write anything."""
    try:
        return None if value is None else _DECODER.decode(value)
    except msgspec.MsgspecError:
        return None


def _patience_s(asked: float, timeout_s: float) -> float:
    """How long a cluster may take whose first answer has just come."""
    return max(timeout_s, _AS_LONG * (time.monotonic() - asked))


def _left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())
