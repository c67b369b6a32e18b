"""Streams groups (KIP-1071): their offsets travel as those of consumer groups do."""

from __future__ import annotations

import secrets
from datetime import timedelta
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.streams_group_heartbeat.v0.request import StreamsGroupHeartbeatRequest, Subtopology, Topology
from kio.schema.streams_group_heartbeat.v0.response import StreamsGroupHeartbeatResponse
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i32Timedelta

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.consumer_groups import find_coordinator, list_groups
from mirror_core.mirrors import mirror_commands
from mirror_core.model.figures import FigureKey
from mirror_core.model.names import Partition
from mirror_core.model.run import RunMode
from mirror_core.model.sync_state import DriftRow, SyncAction, SyncCategory
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.broker_faults import killed
from tests.support.cluster_admin import as_admin
from tests.support.group_commits import fetch_offsets
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, produce
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.synced_groups import commit
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

LEAVE = -1


class StreamsMember:
    """One member of a streams group that reads one topic, by its heartbeats."""

    def __init__(self, client: ClusterClient, group: str, topic: str) -> None:
        self._client, self._group, self._topic = client, group, topic
        self._id, self._process = secrets.token_hex(16), secrets.token_hex(16)

    def beat(self, epoch: int) -> ErrorCode:
        subtopology = Subtopology(
            subtopology_id="0",
            source_topics=(TopicName(self._topic),),
            source_topic_regex=(),
            state_changelog_topics=(),
            repartition_sink_topics=(),
            repartition_source_topics=(),
            copartition_groups=(),
        )
        joins = epoch == 0
        request = StreamsGroupHeartbeatRequest(
            group_id=GroupId(self._group),
            member_id=self._id,
            member_epoch=i32(epoch),
            endpoint_information_epoch=i32(0),
            rebalance_timeout=i32Timedelta.parse(timedelta(minutes=1) if joins else timedelta(milliseconds=-1)),
            topology=Topology(epoch=i32(0), subtopologies=(subtopology,)) if joins else None,
            active_tasks=() if joins else None,
            standby_tasks=() if joins else None,
            warmup_tasks=() if joins else None,
            process_id=self._process if joins else None,
            client_tags=() if joins else None,
            task_offsets=None,
            task_end_offsets=None,
        )
        coordinator = find_coordinator(self._client, self._group)
        return self._client.call(request, StreamsGroupHeartbeatResponse, coordinator).error_code


def form_streams_group(cluster: SandboxCluster, group: str, topic: str) -> None:
    """It has no members any more."""
    with as_admin(cluster) as client:
        member = StreamsMember(client, group, topic)
        wait_until(lambda: member.beat(0) is ErrorCode.none, timeout_s=TIMEOUT_S, why=f"a member joins {group}")
        assert member.beat(LEAVE) is ErrorCode.none
        wait_until(lambda: list_groups(client)[group].is_idle, timeout_s=TIMEOUT_S, why=f"{group} has no members")
        assert list_groups(client)[group].kind == "streams"


def sync(mirrored: Mirrored) -> DriftRow:
    (row,) = mirror_commands.run_sync(mirrored.link, only=frozenset({SyncCategory.GROUPS})).rows
    return row


def test_offsets_of_a_streams_group_are_synced_and_a_streams_member_takes_them_over(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    group = f"{topic}-streams"
    produce(pair.east, topic, 9)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    form_streams_group(pair.east, group, topic)
    commit(mirrored.link, "source", group, topic, 4, "its stream time")
    row = sync(mirrored)
    assert (row.action, row.done, row.offset) == (SyncAction.COMMIT, True, 4)
    form_streams_group(pair.west, group, topic)
    with as_admin(pair.west) as west:
        committed = fetch_offsets(west, group).committed[Partition(topic, 0)]
    assert (committed.offset, committed.metadata) == (4, "its stream time")
    commit(mirrored.link, "source", group, topic, 7)
    row = sync(mirrored)
    assert (row.action, row.done, row.offset) == (SyncAction.COMMIT, True, 7)


def test_an_unplanned_plan_names_a_streams_group_of_a_dead_source(pair: Pair, tmp_path: Path) -> None:
    """As earlier syncs saw it: with its offset, and where the destination has none."""
    topic = new_topic(pair.east)
    groups = f"{topic}-streams", f"{topic}-refused"
    produce(pair.east, topic, 9)
    mirrored = new_mirror(pair, tmp_path, topic, groups=groups)
    mirrored.copy()
    for group in groups:
        form_streams_group(pair.east, group, topic)
        commit(mirrored.link, "source", group, topic, 4)
    commit(mirrored.link, "destination", groups[1], topic, 6)
    mirror_commands.run_sync(mirrored.link, only=frozenset({SyncCategory.GROUPS}))
    with killed(pair.east):
        plan = mirrored.failover.plan(RunMode.UNPLANNED)
    assert plan.groups.keys() == {*groups}
    assert plan.groups[groups[0]][FigureKey.READ_AGAIN_MOST] == 5
    (left,) = [finding for finding in plan.warnings if finding.code == "group_offsets_uncommitted"]
    assert f"{groups[1]} {topic}-0 (stays at 6)" in str(left)
