"""Follows committed records of `__consumer_offsets` from its end.

A new leader or truncation raises: start again, and fetch the groups' offsets first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from kio.schema.errors import ErrorCode

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.error_mapping import RETRIABLE_CODES, make_fault
from mirror_core.kafka.fetch_link import FetchLink
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets
from mirror_core.model.errors import MissingPermission, RemoteFault, Unreachable
from mirror_core.model.names import Partition
from mirror_core.wire import fetch
from mirror_core.wire.batch import MalformedBatch
from mirror_core.wire.group_records import CONSUMER_OFFSETS_TOPIC
from mirror_core.wire.read_committed import filter_committed
from mirror_core.wire.records import Record, decode_records

_MAX_BYTES: Final = 4 << 20
_PARTITION_BYTES: Final = 1 << 20
_MAX_EMPTY_FETCHES: Final = 5
"""In a row although more exists: compaction, or a slow cache."""


class ConsumerOffsetsFollower:
    """Not thread-safe."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._links: list[tuple[FetchLink, list[Partition]]] = []
        self._position: dict[Partition, int] = {}
        self._empty_fetches: dict[Partition, int] = {}
        self._read_at: dict[Partition, float] = {}
        metadata = client.metadata([CONSUMER_OFFSETS_TOPIC])
        if CONSUMER_OFFSETS_TOPIC in metadata.denied:
            raise make_fault(
                client, f"topic {CONSUMER_OFFSETS_TOPIC}", "Metadata (needs READ)", ErrorCode.topic_authorization_failed
            )
        topic = metadata.topics.get(CONSUMER_OFFSETS_TOPIC)
        self._partitions = [Partition(CONSUMER_OFFSETS_TOPIC, index) for index in topic.partitions] if topic else []
        stable_ends = list_known_offsets(client, self._partitions, OffsetPoint.STABLE_END)
        self._position = {partition: int(offset) for partition, offset in stable_ends.items()}
        try:
            for broker, leader_partitions in client.leaders(self._position).items():
                if broker < 0:
                    raise Unreachable(f"cluster {client.name}: no leader for {leader_partitions[0]}")
                connection = Connection(
                    client.config, client.principal, *client.address(broker), timeout_s=client.timeout_s
                )
                self._links.append(
                    (
                        FetchLink(connection, max_bytes=_MAX_BYTES, partition_max_bytes=_PARTITION_BYTES),
                        leader_partitions,
                    )
                )
        except BaseException:
            self.close()
            raise

    @property
    def is_absent(self) -> bool:
        """No group ever committed."""
        return not self._partitions

    @property
    def has_offline_partitions(self) -> bool:
        """They are not followed."""
        return len(self._position) < len(self._partitions)

    def read_up_to_s(self) -> float | None:
        """Monotonic: commits up to then were read."""
        return min(self._read_at.values()) if len(self._read_at) == len(self._partitions) and self._read_at else None

    def poll(self, max_wait_ms: int) -> Iterator[Record]:
        """Waits this long for a byte. Consume completely."""
        sent_at = time.monotonic()
        for link, partitions in self._links:
            rotation = link.request_count % len(partitions)  # rotate: a response may be full before the last one
            wanted = [fetch.FetchPosition(p, self._position[p]) for p in partitions[rotation:] + partitions[:rotation]]
            link.send_fetch(wanted, max_wait_ms=max_wait_ms, isolation=fetch.IsolationLevel.READ_COMMITTED)
        for link, _ in self._links:
            fetched_partitions = list(link.read_response())
            conclusive = not link.throttle_ms and sum(len(row.records) for row in fetched_partitions) <= link.room_bytes
            for fetched in fetched_partitions:
                yield from self._records(fetched, conclusive=conclusive)
                if self._position[fetched.partition] >= fetched.high_watermark:
                    self._read_at[fetched.partition] = sent_at

    def _records(self, fetched: fetch.FetchedPartition, *, conclusive: bool) -> Iterator[Record]:
        partition, position = fetched.partition, self._position[fetched.partition]
        where = f"cluster {self._client.name}, {partition}, offset {position}"
        code = ErrorCode(fetched.error)
        if code is ErrorCode.topic_authorization_failed:
            raise MissingPermission(f"{where}: {self._client.config.user(self._client.principal)} may not READ it")
        if code is not ErrorCode.none:
            kind = Unreachable if code in RETRIABLE_CODES else RemoteFault
            raise kind(f"{where}: Fetch: {code.name}")
        try:
            for header, batch, visible in filter_committed(fetched, position):
                self._position[partition] = header.next_offset
                if visible:
                    yield from (r for r in decode_records(header, batch) if r.offset >= position)
        except MalformedBatch as error:
            raise RemoteFault(f"{where}: {error}") from None
        is_empty = self._position[partition] == position and fetched.last_stable_offset > position and conclusive
        self._empty_fetches[partition] = self._empty_fetches.get(partition, 0) + 1 if is_empty else 0
        if self._empty_fetches[partition] > _MAX_EMPTY_FETCHES:
            raise RemoteFault(
                f"{where}: nothing can be read there, though the log goes on to {fetched.last_stable_offset}"
            )

    def close(self) -> None:
        for link, _ in self._links:
            link.connection.close()
        self._links.clear()

    def __enter__(self) -> ConsumerOffsetsFollower:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
