"""Fetches from one source broker: one request in flight, one reused buffer.

A response without a complete batch may mean that compaction removed the last readable batches, that others used up the
size, or a throttle. Beyond `remote.fetch.max.wait.ms` or `remote.log.manager.fetch.max.bytes.per.second` tiered logs
(KIP-405) return nothing, without error or throttle time: the leader is asked what it holds locally.
"""

from __future__ import annotations

import math
import struct
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import Enum
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v8.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v8.response import ListOffsetsResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i64

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.cluster_info import fetch_api_versions
from mirror_core.kafka.connection import CLIENT_ID, Connection, parse_frame_size
from mirror_core.kafka.sockets import wait_readable
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.names import Offset, Partition
from mirror_core.wire import fetch
from mirror_core.wire.fields import MalformedResponse, ResponseReader, strip_response_header

INITIAL_FETCH_BYTES: Final = 2 << 20
FAR_RESPONSE_S: Final = 0.02
_MIN_SAMPLES: Final = 3
_IDLE_SHARE_BYTES: Final = 1 << 20


def split_budget(budget: int, active_brokers: int, idle_brokers: int, *, is_active: bool) -> int:
    """Active brokers (more data than the last response held) share equally what idle ones leave; if none is active,
    the idle ones share everything.
    """
    if not active_brokers:
        return budget // idle_brokers
    idle_share = min(_IDLE_SHARE_BYTES, budget // (2 * (active_brokers + idle_brokers)))
    return (budget - idle_brokers * idle_share) // active_brokers if is_active else idle_share


class FetchSizer:
    """Grows the fetch size only as far as keeps the broker busy.

    Fresh data is still in CPU caches: 2 MiB responses cost a fifth less than 8 MiB ones. With one in flight a distant
    broker needs larger ones.
    """

    def __init__(self, max_bytes: int, initial_bytes: int = INITIAL_FETCH_BYTES) -> None:
        self.max_bytes = max_bytes
        self.request_bytes = min(max_bytes, initial_bytes)
        self._initial_bytes = initial_bytes
        self._samples = 0
        self._fastest_s = math.inf

    def set_limit(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.request_bytes = min(max_bytes, max(self.request_bytes, self._initial_bytes))

    def record_response(self, size: int, seconds: float) -> None:
        """`seconds`: until the response came or we were ready for it."""
        if size <= self.request_bytes // 2:
            return  # little data: the broker may have waited for it
        self._samples += 1
        self._fastest_s = min(self._fastest_s, seconds)
        if self._samples >= _MIN_SAMPLES and self._fastest_s > FAR_RESPONSE_S:
            self.request_bytes = min(self.max_bytes, 2 * self.request_bytes)
            self._samples, self._fastest_s = 0, math.inf


_INT32: Final = struct.Struct(">i")
_MIN_PARTITION_BYTES: Final = 128 << 10
"""A thousand partitions take turns."""
_BYTES_PER_PARTITION: Final = 16 << 10
"""For the response: many partitions cost the broker more."""
_BUFFER_SPARE_BYTES: Final = 1 << 20
_LENGTH_BYTES: Final = 4


class FetchLink:
    """Views are valid until the next Fetch."""

    def __init__(
        self,
        connection: Connection,
        *,
        max_bytes: int,
        partition_max_bytes: int,
        full_size: bool = False,
        receive_timeout_s: float | None = None,
    ) -> None:
        """Requests mostly ask for less than the limits, or for all with `full_size`.

        `receive_timeout_s`: for the rest of a response; None: the usual timeout.
        """
        self.connection = connection
        self._receive_timeout_s = receive_timeout_s
        if receive_timeout_s is not None:
            connection.set_receive_timeout(receive_timeout_s)
        self.pending = False
        self.request_count = 0
        self.throttle_ms = 0
        """A throttled broker returns no data."""
        self.room_bytes = 0
        """A response of at most this size had room for more of every partition."""
        self.response_bytes = 0
        self.has_more = False
        """The newest response was so full that more must exist."""
        self._sizer = FetchSizer(max_bytes, sys.maxsize if full_size else INITIAL_FETCH_BYTES)
        self._partition_max_bytes = partition_max_bytes
        self._partition_share_bytes = 0
        self._sent_at = self._last_received_at = 0.0
        self._max_wait_ms = 0
        self._buffer = bytearray(_LENGTH_BYTES)
        self._received_bytes, self._expected_bytes = 0, _LENGTH_BYTES
        self._receive_piecewise = False
        self._correlation = 0
        self._requested: dict[tuple[str, int], Partition] = {}
        self._requested_by_id: dict[tuple[bytes, int], Partition] = {}
        """Empty for a Fetch by name."""
        self._is_redirected = False
        """To another replica; a Fetch by name is not."""

    def set_limits(self, max_bytes: int, partition_max_bytes: int) -> None:
        """For later requests; also frees a much larger buffer."""
        if max_bytes < self.max_bytes and len(self._buffer) > 2 * max_bytes + _BUFFER_SPARE_BYTES:
            self._buffer = bytearray(_LENGTH_BYTES)  # views keep the old buffer
        self._sizer.set_limit(max_bytes)
        self._partition_max_bytes = partition_max_bytes

    def send_fetch(
        self, wanted: Iterable[fetch.FetchPosition], *, max_wait_ms: int, isolation: fetch.IsolationLevel
    ) -> None:
        """The broker answers when it has a byte, or after the wait."""
        wanted_list = list(wanted)
        self.connection.renew_session()
        self._correlation = self.connection.next_id()
        self.request_count += 1
        self._requested = {(i.partition.topic, i.partition.index): i.partition for i in wanted_list}
        by_id = self._can_use_ids(wanted_list)
        self._requested_by_id = {(i.topic_id, i.partition.index): i.partition for i in wanted_list} if by_id else {}
        size = min(self._sizer.max_bytes, max(self._sizer.request_bytes, _BYTES_PER_PARTITION * len(wanted_list)))
        # All partitions in each response: the more there are, the fewer Produce requests.
        # No single one may fill the response: then `room_bytes` would never hold.
        min_share = min(_MIN_PARTITION_BYTES, size // 2)
        self._partition_share_bytes = min(self._partition_max_bytes, max(min_share, size // max(1, len(wanted_list))))
        self.room_bytes = size - self._partition_share_bytes
        request = fetch.encode_request(
            wanted_list,
            self._correlation,
            CLIENT_ID,
            isolation=isolation,
            max_wait_ms=max_wait_ms,
            max_bytes=size,
            partition_max_bytes=self._partition_share_bytes,
            by_id=by_id,
        )
        self.connection.send([request])
        self._sent_at = self._last_received_at = time.monotonic()
        self._max_wait_ms = max_wait_ms
        self._received_bytes, self._expected_bytes = 0, _LENGTH_BYTES
        self.pending = True

    def _can_use_ids(self, wanted: Sequence[fetch.FetchPosition]) -> bool:
        if self._is_redirected or not fetch.can_use_ids(wanted):
            return False
        return self.connection.newest_versions.get(fetch.API_KEY, 0) >= fetch.VERSION_BY_ID

    @property
    def overdue_s(self) -> float:
        """Time since a response, or more of it, was due; negative before."""
        due_at = max(self._last_received_at, self._sent_at + (self._max_wait_ms + self.throttle_ms) / 1000)
        return time.monotonic() - due_at if self.pending else -math.inf

    @property
    def in_flight_partitions(self) -> Collection[Partition]:
        return self._requested.values() if self.pending else ()

    @property
    def requested_partitions(self) -> Collection[Partition]:
        return self._requested.values()

    @property
    def max_bytes(self) -> int:
        return self._sizer.max_bytes

    @property
    def is_single_partition(self) -> bool:
        return len(self._requested) == 1

    def receive_response(self) -> bool:
        """True when complete. After a time limit it takes only available bytes: others get their turn."""
        began_at, brief = time.monotonic(), self._receive_timeout_s is not None
        limit_s = self._receive_timeout_s or self.connection.timeout_s
        while self._received_bytes < self._expected_bytes:
            if self._receive_piecewise and not self.connection.is_readable:
                return False
            view = memoryview(self._buffer)[self._received_bytes : self._expected_bytes]
            count = self.connection.receive_chunk(view, whole=not self._receive_piecewise, brief=brief)
            self._received_bytes += count
            now = time.monotonic()
            if count:
                self._last_received_at = now
            if count and self._received_bytes == _LENGTH_BYTES:
                self._resize_buffer()
            self._receive_piecewise = (
                self._receive_piecewise
                or not count
                or (self._received_bytes < self._expected_bytes and now - began_at >= limit_s)
            )
            if not count:
                return False
        self._receive_piecewise = False
        return True

    def _resize_buffer(self) -> None:
        self._expected_bytes = _LENGTH_BYTES + parse_frame_size(self._buffer, self.connection.where)
        if len(self._buffer) < self._expected_bytes:
            # Replace, not extend: page faults of fresh memory cost more than the copy.
            self._buffer = bytearray(self._expected_bytes + _BUFFER_SPARE_BYTES)

    def read_response(self) -> Iterator[fetch.FetchedPartition]:
        while not self.receive_response():
            if not wait_readable([self.connection.sock], self.connection.timeout_s):
                raise Unreachable(f"{self.connection.where}: no answer within {self.connection.timeout_s} s")
        size = self._expected_bytes - _LENGTH_BYTES
        frame = memoryview(self._buffer)[_LENGTH_BYTES : self._expected_bytes]
        self.pending = False
        self.response_bytes = size
        self.has_more = 2 * size > self._sizer.request_bytes
        self._sizer.record_response(size, time.monotonic() - self._sent_at)
        (correlation,) = _INT32.unpack_from(frame)
        if correlation != self._correlation:
            raise RemoteFault(f"{self.connection.where}: Fetch answer {correlation} where {self._correlation} was due")
        by_id = self._requested_by_id
        try:
            body = strip_response_header(frame, is_flexible=bool(by_id))
            (self.throttle_ms,) = ResponseReader(body).unpack(_INT32)
            rows = fetch.decode_response_by_id(body, by_id) if by_id else fetch.decode_response(body, self._requested)
            for fetched in rows:
                if (fetched.partition.topic, fetched.partition.index) not in self._requested:
                    raise MalformedResponse(f"{fetched.partition} was not asked for")
                if fetched.preferred_replica >= 0:
                    self._is_redirected = True
                    continue
                self.has_more = self.has_more or len(fetched.records) >= self._partition_share_bytes
                yield fetched
        except MalformedResponse as error:
            raise RemoteFault(f"{self.connection.where}: Fetch answer makes no sense: {error}") from None


def fetch_once(link: FetchLink, partition: Partition, offset: int) -> fetch.FetchedPartition | None:
    """Uncommitted records included; does not wait. None: no data."""
    wanted = [fetch.FetchPosition(partition, offset)]
    link.send_fetch(wanted, max_wait_ms=0, isolation=fetch.IsolationLevel.READ_UNCOMMITTED)
    return next(iter(list(link.read_response())), None)


REMOTE_STORAGE_HINT: Final = (
    "remote storage gives nothing there: it is slow (more than the brokers' remote.fetch.max.wait.ms), or the brokers "
    "limit reading from it (remote.log.manager.fetch.max.bytes.per.second)"
)
_EARLIEST_LOCAL_TIMESTAMP: Final = -4
_LOCAL_START_VERSION: Final = 8
"""Older brokers have no remote storage."""


def fetch_local_start(client: ClusterClient, partition: Partition, leader_epoch: int) -> Offset | None:
    """Only grows while this leader leads. None: another leader, or unknown."""
    [broker] = client.leaders([partition])
    if broker < 0:
        return None
    if fetch_api_versions(client, broker)[int(ListOffsetsRequest.__api_key__)][1] < _LOCAL_START_VERSION:
        return Offset(0)
    requested = ListOffsetsPartition(
        partition_index=i32(partition.index),
        current_leader_epoch=i32(leader_epoch),
        timestamp=i64(_EARLIEST_LOCAL_TIMESTAMP),
    )
    request = ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=i8(0),
        topics=(ListOffsetsTopic(name=TopicName(partition.topic), partitions=(requested,)),),
    )
    [topic] = client.call(request, ListOffsetsResponse, broker).topics
    [row] = topic.partitions
    return Offset(int(row.offset)) if row.error_code is ErrorCode.none else None


REQUIRED_EMPTY_FETCHES: Final = 2
"""In a row, conclusive, before the rest counts as empty."""


class EmptyFetch(Enum):
    END = "end"
    INCONCLUSIVE = "nothing"
    """Size used up or throttled."""
    MALFORMED = "torn"
    """Bytes that are no batch."""
    RETRY = "once more"
    CHECK_LOCAL_START = "ask leader"
    """The leader's local log start decides (what is local now was local then)."""
    REMOTE_STORAGE = "remote"
    """Empty responses prove no gap here."""
    GAP = "gap"
    """Nothing left below the readable end."""


def classify_empty_fetch(
    position: int, end: int, size: int, *, conclusive: bool, previous_empty: int, local_start: int | None
) -> EmptyFetch:
    """`size` bytes and no complete batch came for [position, end).

    `conclusive`: only this partition, unthrottled. `local_start`: None: unknown yet.
    """
    if position >= end:
        return EmptyFetch.END
    if not conclusive:
        return EmptyFetch.INCONCLUSIVE
    if size:
        return EmptyFetch.MALFORMED
    if previous_empty + 1 < REQUIRED_EMPTY_FETCHES:
        return EmptyFetch.RETRY
    if local_start is None:
        return EmptyFetch.CHECK_LOCAL_START
    return EmptyFetch.REMOTE_STORAGE if position < local_start else EmptyFetch.GAP
