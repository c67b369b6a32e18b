"""Topic `__mirrorbook_active`: which cluster each mirror's applications should use.

On both clusters: the higher generation wins, then the later one. Written under the mirror's own transactional id, which
fences a writer that slept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from mirror_core.kafka.client import ClusterClient, borrowed_connection
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.error_mapping import RETRIABLE_CODES, ErrorCode, make_fault, to_error_code
from mirror_core.kafka.fetch_link import FetchLink, fetch_once
from mirror_core.kafka.log_offsets import fetch_log_start
from mirror_core.kafka.topics import BROKER_TIME_CONFIGS, NewTopic, create_topics, find_max_replicas
from mirror_core.kafka.transactional_producer import (
    ForeignAbort,
    ProducerFenced,
    TransactionalIdExhausted,
    TransactionalProducer,
)
from mirror_core.model.errors import AuthenticationFailed, MirrorError, MissingPermission, RemoteFault, Unreachable
from mirror_core.model.names import ACTIVE_TOPIC, ClusterName, MirrorName, Partition
from mirror_core.model.timing import TIMEOUTS
from mirror_core.state.state_topic import STATE_TRANSACTION_MS
from mirror_core.wire.batch import MalformedBatch
from mirror_core.wire.read_committed import filter_committed
from mirror_core.wire.records import decode_records

_PARTITION: Final = Partition(ACTIVE_TOPIC, 0)
_MAX_FETCH_BYTES: Final = 1 << 20
_PAUSE_S: Final = 0.05
_TIMEOUT_ROUND_TRIPS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceLift:
    """A person opened by its file the cluster that applications had left."""

    cluster: ClusterName
    by: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveCluster:
    """Applications read these fields."""

    mirror: MirrorName
    active: ClusterName
    cluster_id: str
    bootstrap_servers: str
    """As Mirrorbook connects."""
    since_ms: int
    run: str
    """Empty before the first."""
    generation: int
    """Grows with every move."""
    fence_lift: FenceLift | UnsetType = UNSET

    @property
    def precedence(self) -> tuple[int, int]:
        """The greater wins. Equal generations only if one cluster was down and no sync told it; then time decides."""
        return self.generation, self.since_ms


def read_active_cluster(config: ClusterConfig, mirror: MirrorName, timeout_s: float) -> ActiveCluster | None:
    """None without an entry or topic. The limit is for silence; distance extends it."""
    return read_active_clusters(config, timeout_s).get(mirror)


def read_active_clusters(config: ClusterConfig, timeout_s: float) -> dict[MirrorName, ActiveCluster]:
    began_at = time.monotonic()
    with ClusterClient(config, timeout_s=timeout_s) as client:
        metadata = client.metadata([ACTIVE_TOPIC])
    deadline = began_at + _compute_timeout_s(began_at, timeout_s)
    if ACTIVE_TOPIC in metadata.denied:
        raise _missing_read(config)
    return _read_until_deadline(config, deadline) if ACTIVE_TOPIC in metadata.topics else {}


def read_newest_announcements(clusters: Collection[ClusterConfig], timeout_s: float) -> dict[MirrorName, ActiveCluster]:
    """By mirror, over all clusters. One that does not answer tells nothing."""

    def read(cluster: ClusterConfig) -> dict[MirrorName, ActiveCluster]:
        try:
            return read_active_clusters(cluster, timeout_s)
        except MirrorError:
            return {}

    newest = dict[MirrorName, ActiveCluster]()
    with ThreadPoolExecutor(max(1, len(clusters))) as pool:
        for entries in pool.map(read, clusters):
            for name, entry in entries.items():
                newest[name] = max(newest.get(name, entry), entry, key=lambda row: row.precedence)
    return newest


def announce_active_cluster(
    config: ClusterConfig, active: ActiveCluster, timeout_s: float = TIMEOUTS.silent_source_s
) -> ActiveCluster:
    """Unless the cluster has a later generation. Returns the entry there.

    Idempotent; creates the topic. Distance extends `timeout_s`. MirrorError if not written.
    """

    def choose(announced: ActiveCluster | None) -> ActiveCluster:
        return active if announced is None or announced.precedence < active.precedence else announced

    return _update_entry(config, active.mirror, choose, timeout_s) or active


def record_lift(
    config: ClusterConfig, mirror: MirrorName, lift: FenceLift | None, timeout_s: float
) -> ActiveCluster | None:
    """No lift: fenced again. Returns None without an entry. MirrorError if not written."""

    def choose(announced: ActiveCluster | None) -> ActiveCluster | None:
        return None if announced is None else replace(announced, fence_lift=lift or UNSET)

    return _update_entry(config, mirror, choose, timeout_s)


def forget_lift(config: ClusterConfig, mirror: MirrorName, timeout_s: float) -> None:
    """Once the cluster is fenced again. If it fails, screens go on naming the lift."""
    with suppress(MirrorError):
        announced = read_active_cluster(config, mirror, timeout_s)
        if announced is not None and announced.fence_lift:
            record_lift(config, mirror, None, timeout_s)


def _update_entry(
    config: ClusterConfig,
    mirror: MirrorName,
    choose: Callable[[ActiveCluster | None], ActiveCluster | None],
    timeout_s: float,
) -> ActiveCluster | None:
    began_at = time.monotonic()
    with ClusterClient(config, timeout_s=timeout_s) as client:
        client.metadata(())
        cluster_timeout_s = _compute_timeout_s(began_at, timeout_s)
        ensure_active_topic(client)
    deadline = time.monotonic() + cluster_timeout_s
    producer = TransactionalProducer(
        config,
        f"mirrorbook.active.{mirror}",
        _PARTITION,
        transaction_ms=STATE_TRANSACTION_MS,
        where=f"cluster {config.name}, topic {ACTIVE_TOPIC}",
    )
    try:
        producer.take_over(_remaining_s(deadline))
        announced = _read_until_deadline(config, deadline).get(mirror)
        chosen = choose(announced)
        if chosen is not None and chosen != announced:
            producer.write([(mirror, msgspec.json.encode(chosen))], _remaining_s(deadline))
    except (ProducerFenced, ForeignAbort, TransactionalIdExhausted) as error:
        raise RemoteFault(
            f"cluster {config.name}, topic {ACTIVE_TOPIC}: cannot write: {error or type(error).__name__}"
        ) from None
    return chosen


def copy_announcement(
    known_cluster: ClusterConfig,
    other_cluster: ClusterConfig,
    mirror: MirrorName,
    timeout_s: float = TIMEOUTS.silent_source_s,
) -> ActiveCluster | None:
    """To a cluster that missed it. Returns its entry now; None: there was none to copy."""
    announced = read_active_cluster(known_cluster, mirror, timeout_s)
    if announced is None:
        return None
    existing = read_active_cluster(other_cluster, mirror, timeout_s)
    if existing is not None and existing.precedence >= announced.precedence:
        return existing
    return announce_active_cluster(other_cluster, announced, timeout_s)


def ensure_active_topic(client: ClusterClient) -> None:
    """As well replicated as the cluster allows."""
    if ACTIVE_TOPIC in client.metadata([ACTIVE_TOPIC]).topics:
        return
    replication_factor = min(3, find_max_replicas(client, {ACTIVE_TOPIC: 3}))
    configs = {
        "cleanup.policy": "compact",
        "min.insync.replicas": "2" if replication_factor == 3 else "1",
        **BROKER_TIME_CONFIGS,
    }
    create_topics(
        client, [NewTopic(name=ACTIVE_TOPIC, partitions=1, replication_factor=replication_factor, configs=configs)]
    )


def _read_until_deadline(config: ClusterConfig, deadline: float) -> dict[MirrorName, ActiveCluster]:
    """Aborted ones included: no generation is used twice."""
    with ClusterClient(config, timeout_s=_remaining_s(deadline)) as client:
        while True:
            try:
                return _read_from_leader(client)
            except AuthenticationFailed:
                raise
            except Unreachable as silent:
                last_error = silent
            if time.monotonic() > deadline:
                raise Unreachable(f"cluster {config.name}, topic {ACTIVE_TOPIC}: not read in time: {last_error}")
            client.mark_metadata_stale()
            time.sleep(_PAUSE_S)


def _read_from_leader(client: ClusterClient) -> dict[MirrorName, ActiveCluster]:
    metadata = client.metadata([ACTIVE_TOPIC])
    if ACTIVE_TOPIC in metadata.denied:
        raise _missing_read(client.config)
    topic = metadata.topics.get(ACTIVE_TOPIC)
    leader = topic.partitions.get(_PARTITION.index) if topic else None
    if leader is None or leader.broker < 0:
        raise Unreachable("LEADER_NOT_AVAILABLE")
    with borrowed_connection(client, client.address(leader.broker)) as connection:
        try:
            return _read_newest_entries(client, connection)
        except MalformedBatch as error:
            raise RemoteFault(f"{connection.where}: topic {ACTIVE_TOPIC}: {error}") from None


def _read_newest_entries(client: ClusterClient, connection: Connection) -> dict[MirrorName, ActiveCluster]:
    code, start = fetch_log_start(connection, _PARTITION)
    _raise_for_code(client, code)
    link = FetchLink(connection, max_bytes=_MAX_FETCH_BYTES, partition_max_bytes=_MAX_FETCH_BYTES, full_size=True)
    entries, position, end = dict[bytes | None, ActiveCluster | None](), int(start), math.inf
    while position < end:
        fetched = fetch_once(link, _PARTITION, position)
        if fetched is None:
            raise Unreachable(f"{connection.where}: a quota holds its answer back")
        _raise_for_code(client, to_error_code(fetched.error))
        previous, end = position, fetched.high_watermark
        for header, batch, visible in filter_committed(fetched, position):
            for record in decode_records(header, batch) if visible else ():
                entries[record.key] = _decode_active(record.value)
            position = header.next_offset
        if position == previous < end:
            raise Unreachable(f"{connection.where}: nothing came of what stands behind offset {position}")
    return {entry.mirror: entry for key, entry in entries.items() if entry and key == entry.mirror.encode()}


def _missing_read(config: ClusterConfig) -> MissingPermission:
    return MissingPermission(f"cluster {config.name}, topic {ACTIVE_TOPIC}: needs READ")


def _raise_for_code(client: ClusterClient, code: ErrorCode) -> None:
    if code in RETRIABLE_CODES:
        raise Unreachable(code.name.upper())
    if code is not ErrorCode.none:
        raise make_fault(client, f"topic {ACTIVE_TOPIC}", "read it (needs READ)", code)


_DECODER: Final = msgspec.json.Decoder(ActiveCluster)  # made once: see `state_records`


def _decode_active(value: str | bytes | None) -> ActiveCluster | None:
    """None for foreign records: any client with WRITE can add some."""
    try:
        return None if value is None else _DECODER.decode(value)
    except msgspec.MsgspecError:
        return None


def _compute_timeout_s(began_at: float, timeout_s: float) -> float:
    return max(timeout_s, _TIMEOUT_ROUND_TRIPS * (time.monotonic() - began_at))


def _remaining_s(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())
