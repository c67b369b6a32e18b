"""Groups of kinds that are not synced: a plan names them."""

from __future__ import annotations

from pathlib import Path

import pytest
from kio.schema.alter_share_group_offsets.v0.request import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from kio.schema.alter_share_group_offsets.v0.response import AlterShareGroupOffsetsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.groups import find_coordinator
from mirror_core.model.run import Mode
from tests.brokers import TIMEOUT_S, Pair, new_topic
from tests.mirroring import new_mirror
from tests.waiting import wait_until

pytestmark = pytest.mark.cluster


def test_a_share_group_is_named_in_the_plan(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    group = f"{topic}-queue"
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    start = AlterShareGroupOffsetsRequestPartition(partition_index=i32(0), start_offset=i64(0))
    wanted = AlterShareGroupOffsetsRequestTopic(topic_name=TopicName(topic), partitions=(start,))
    request = AlterShareGroupOffsetsRequest(group_id=GroupId(group), topics=(wanted,))
    with ClusterClient(mirrored.link.source) as east:

        def made() -> bool:
            answer = east.call(request, AlterShareGroupOffsetsResponse, find_coordinator(east, group))
            return answer.error_code is ErrorCode.none

        wait_until(made, timeout_s=TIMEOUT_S, why="the share group is there")
    warnings = mirrored.failover.plan(Mode.PLANNED).warnings
    assert [line for line in warnings if f"will not be there on west: {group} (share)." in line]
