"""Groups of kinds that are not synced: a plan names them, also without the source, by what was remembered."""

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
from mirror_core.kafka.consumer_groups import find_coordinator
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.describe import describe_mirror
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.model.run import RunMode
from mirror_core.model.timing import now_ms
from mirror_core.runbook.readiness_report import assess_readiness
from tests.support.broker_faults import killed
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic
from tests.support.mirrored_topics import new_mirror
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def test_a_share_group_is_named_in_the_plan_also_when_the_source_is_dead(pair: Pair, tmp_path: Path) -> None:
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
    warnings = tuple(map(str, mirrored.failover.plan(RunMode.PLANNED).warnings))
    assert [line for line in warnings if f"will not be there on west: {group} (share)." in line]
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link)
    remembered = f"will not be there on west, as of the last sync: {group} (share)."
    with killed(pair.east):
        assert [line for line in map(str, mirrored.failover.plan(RunMode.UNPLANNED).warnings) if remembered in line]
        ready = assess_readiness(mirrored.link, mirrored.state, mirrored.services, with_drift=False)
        assert [point for point in ready.points if remembered in str(point)]
        assert [finding for finding in ready.unplanned.warnings if remembered in finding.text]
        assert (
            describe_mirror(mirrored.link, mirrored.state, now_ms()).facts[FactKey.UNSYNCED_GROUPS].text
            == f"{group} (share)"
        )
