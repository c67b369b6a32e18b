"""Tiered logs (KIP-405): what the leader holds locally.

Beyond `remote.fetch.max.wait.ms` or `remote.log.manager.fetch.max.bytes.per.second` a Fetch returns no records, error
or throttle time. So empty responses prove no gap there.

What a Fetch response without a complete batch proves. Pure.

Compaction may remove the last readable batches. But brokers also return nothing when other partitions used up the size,
a quota throttles, or remote storage is slow.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v8.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v8.response import ListOffsetsResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i64

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.cluster_info import fetch_api_versions
from mirror_core.model.names import Offset, Partition

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
    """Everything readable was read."""
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

    `conclusive`: only this partition, unthrottled. `previous_empty`: earlier ones. `local_start`: None: unknown yet.
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
