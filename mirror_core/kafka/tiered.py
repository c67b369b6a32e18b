"""Tiered logs (KIP-405): what the leader holds locally.

Beyond `remote.fetch.max.wait.ms` or `remote.log.manager.fetch.max.bytes.per.second` a Fetch returns no records, error
or throttle time. So empty responses prove no gap there.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v8.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v8.response import ListOffsetsResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i64

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.versions import fetch_api_versions
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
