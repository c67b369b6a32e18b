"""What one group committed, and committing for it as an administrator does."""

from __future__ import annotations

from collections.abc import Mapping

from kio.schema.errors import ErrorCode
from kio.schema.offset_delete.v0.request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kio.schema.offset_delete.v0.response import OffsetDeleteResponse
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.consumer_groups import COMMITTED, CommittedOffsets, GroupOffsetsClient, find_coordinator
from mirror_core.model.names import Offset, Partition
from tests.support.waiting import wait_until


def fetch_offsets(client: ClusterClient, group: str) -> CommittedOffsets:
    """All that the group committed."""
    fetched = GroupOffsetsClient(client).fetch_until_known({group: None})
    for error in fetched.faults.values():
        raise error
    return fetched.offsets[group]


def commit_offsets(
    client: ClusterClient, group: str, offsets: Mapping[Partition, tuple[Offset, str]]
) -> dict[Partition, str]:
    """Commit offsets (next to be read), without leader epochs; the partitions that were refused, with the broker's word
    for it."""
    batches, said = GroupOffsetsClient(client), dict[Partition, str]()

    def all_answered() -> bool:
        rest = {p: row for p, row in offsets.items() if p not in said}
        said.update(batches.commit({group: rest}).get(group, {}))
        return said.keys() >= offsets.keys()

    wait_until(all_answered, timeout_s=60, why=f"the coordinator of {group} takes the commit")
    return {partition: word for partition, word in said.items() if word != COMMITTED}


def delete_offset(client: ClusterClient, group: str, partition: Partition) -> None:
    """As an administrator's tool does it."""
    topic = OffsetDeleteRequestTopic(
        name=TopicName(partition.topic),
        partitions=(OffsetDeleteRequestPartition(partition_index=i32(partition.index)),),
    )
    request = OffsetDeleteRequest(group_id=GroupId(group), topics=(topic,))
    said = client.call(request, OffsetDeleteResponse, find_coordinator(client, group))
    assert (said.error_code, said.topics[0].partitions[0].error_code) == (ErrorCode.none, ErrorCode.none), said
