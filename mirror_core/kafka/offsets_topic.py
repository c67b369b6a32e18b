"""Follows `__consumer_offsets` from its end, each partition in order.

Reads below the last stable offset, without aborted transactions. Anything unusual (new leader, truncation) raises:
start again and fetch the groups' offsets first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from kio.schema.errors import ErrorCode

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.faults import fault
from mirror_core.kafka.fetching import FetchLink
from mirror_core.kafka.offsets import Point, known_offsets
from mirror_core.kafka.transient import TRANSIENT
from mirror_core.model.errors import MissingPermission, RemoteFault, Unreachable
from mirror_core.model.names import Partition
from mirror_core.wire import fetch
from mirror_core.wire.batch import MalformedBatch
from mirror_core.wire.committed import committed
from mirror_core.wire.group_offsets import TOPIC
from mirror_core.wire.records import Record, decode

_MAX_BYTES: Final = 4 << 20
_PARTITION_BYTES: Final = 1 << 20
_STUCK: Final = 5
"""In a row although more exists: compaction, or a slow cache."""


class OffsetsTopic:
    """Not thread-safe."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._links: list[tuple[FetchLink, list[Partition]]] = []
        self._position: dict[Partition, int] = {}
        self._stuck: dict[Partition, int] = {}
        self._seen: dict[Partition, float] = {}
        view = client.metadata([TOPIC])
        if TOPIC in view.denied:
            raise fault(client, f"topic {TOPIC}", "Metadata (needs READ)", ErrorCode.topic_authorization_failed)
        topic = view.topics.get(TOPIC)
        self._partitions = [Partition(TOPIC, index) for index in topic.partitions] if topic else []
        stable = known_offsets(client, self._partitions, Point.STABLE_END)
        self._position = {partition: int(offset) for partition, offset in stable.items()}
        try:
            for broker, mine in client.leaders(self._position).items():
                if broker < 0:
                    raise Unreachable(f"cluster {client.name}: no leader for {mine[0]}")
                link = Connection(client.config, client.principal, *client.address(broker), timeout_s=client.timeout_s)
                self._links.append((FetchLink(link, max_bytes=_MAX_BYTES, partition_max_bytes=_PARTITION_BYTES), mine))
        except BaseException:
            self.close()
            raise

    @property
    def empty(self) -> bool:
        """No group ever committed."""
        return not self._partitions

    @property
    def in_part(self) -> bool:
        """They are not followed."""
        return len(self._position) < len(self._partitions)

    def seen_s(self) -> float | None:
        """Monotonic: commits up to then were read."""
        return min(self._seen.values()) if len(self._seen) == len(self._partitions) and self._seen else None

    def poll(self, max_wait_ms: int) -> Iterator[Record]:
        """Waits this long for a byte. Consume completely."""
        asked = time.monotonic()
        for link, partitions in self._links:
            first = link.asked % len(partitions)  # rotate: a response may be full before the last one
            wanted = [fetch.Wanted(p, self._position[p]) for p in partitions[first:] + partitions[:first]]
            link.ask(wanted, max_wait_ms=max_wait_ms, isolation=fetch.Isolation.READ_COMMITTED)
        for link, _ in self._links:
            answers = list(link.take())
            honest = not link.throttle_ms and sum(len(a.records) for a in answers) <= link.room
            for answer in answers:
                yield from self._records(answer, honest=honest)
                if self._position[answer.partition] >= answer.high_watermark:
                    self._seen[answer.partition] = asked

    def _records(self, answer: fetch.Fetched, *, honest: bool) -> Iterator[Record]:
        partition, position = answer.partition, self._position[answer.partition]
        where = f"cluster {self._client.name}, {partition}, offset {position}"
        code = ErrorCode(answer.error)
        if code is ErrorCode.topic_authorization_failed:
            raise MissingPermission(f"{where}: {self._client.config.user(self._client.principal)} may not READ it")
        if code is not ErrorCode.none:
            kind = Unreachable if code in TRANSIENT else RemoteFault
            raise kind(f"{where}: Fetch: {code.name}")
        try:
            for header, batch, visible in committed(answer, position):
                self._position[partition] = header.next_offset
                if visible:
                    yield from (r for r in decode(header, batch) if r.offset >= position)
        except MalformedBatch as error:
            raise RemoteFault(f"{where}: {error}") from None
        stuck = self._position[partition] == position and answer.last_stable > position and honest
        self._stuck[partition] = self._stuck.get(partition, 0) + 1 if stuck else 0
        if self._stuck[partition] > _STUCK:
            raise RemoteFault(f"{where}: nothing can be read there, though the log goes on to {answer.last_stable}")

    def close(self) -> None:
        for link, _ in self._links:
            link.connection.close()
        self._links.clear()

    def __enter__(self) -> OffsetsTopic:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
