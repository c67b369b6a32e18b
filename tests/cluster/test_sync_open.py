"""Two clusters without an authorizer: everything that can work works, and the rest is said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.kafka.acl_requests import AuthorizerOff, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.kafka.topics import find_late_brokers
from mirror_core.mirrors.preflight import RightStatus, check_cluster
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.sync_state import SyncAction, SyncCategory
from mirror_core.sync.acl_sync import apply_promotion, demote_topics
from mirror_core.sync.mirror_sync import sync_mirror
from mirrorbook_tools.sandbox.sandbox import Sandbox
from mirrorbook_tools.sandbox.state import load_state, save_state
from tests.cluster.links import new_link, record, writer_of
from tests.support.data_plane_thread import beating, beats, driving
from tests.support.kafka_clients import Pair, new_topic, produce
from tests.support.mirrored_topics import new_mirror

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture(scope="module")
def open_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A sandbox whose brokers were started again without their authorizer."""
    sandbox = Sandbox(tmp_path_factory.mktemp("open") / "sandbox")
    try:
        sandbox.up(nodes=1)
        sandbox.down()
        state = load_state(sandbox.dir)
        assert state is not None
        save_state(sandbox.dir, replace(state, extra={"authorizer.class.name": ""}))
        sandbox.up()
        config_path = sandbox.dir.parent / "mirrorbook.yaml"
        config_path.write_text(sandbox.mirrorbook_yaml(), encoding="utf-8")
        yield Pair(sandbox=sandbox, east=sandbox.cluster("east"), west=sandbox.cluster("west"), config_path=config_path)
    finally:
        sandbox.down(delete=True)


def test_sync_promotion_and_demotion_work_without_an_authorizer_and_say_so(open_pair: Pair) -> None:
    topic = new_topic(open_pair.east, retention_ms="90000")
    link = new_link(open_pair, topic)
    with ClusterClient(link.destination) as client:
        assert describe_acls(client) == AuthorizerOff("west")
    with writer_of(link) as writer:
        rows = sync_mirror(link, writer).rows
    assert [(row.subject, row.action) for row in rows if row.part is SyncCategory.TOPICS] == [
        (topic, SyncAction.CREATE)
    ]
    said = [(row.subject, row.action) for row in rows if row.part is SyncCategory.ACLS]
    assert said == [("cluster east", SyncAction.SKIP), ("cluster west", SyncAction.SKIP)]
    assert all("no authorizer" in row.reason for row in rows if row.part is SyncCategory.ACLS)
    record(link, [topic])
    with writer_of(link) as writer:
        promoted = apply_promotion(link, writer, [topic])
        assert f"{topic}: retention.ms" in {row.subject for row in promoted if row.action is SyncAction.SET}
        assert [row.action for row in promoted if row.part is SyncCategory.ACLS] == [SyncAction.SKIP]
        assert not [row.reason for row in promoted if "did not show" in row.reason]
        with ClusterClient(link.destination) as client:
            gone = {"message.timestamp.type": None}  # of the mirror's own, which were taken away for the first record
            assert find_late_brokers(client, {topic: gone}, within_s=0.0) == set()
            assert find_late_brokers(client, {topic: {**gone, "retention.ms": "1"}}, within_s=0.0) == set(
                client.brokers()
            )
        assert [row.action for row in demote_topics(link, writer, [topic], link.destination.name)] == [SyncAction.SKIP]


def test_every_right_is_there_and_the_reason_is_given(open_pair: Pair) -> None:
    found = check_cluster(load_config(open_pair.config_path).cluster("west"))
    assert found.authorizer == "off"
    assert {(right.verdict, right.detail) for right in found.rights} == {
        (RightStatus.OK, "no authorizer: everybody may")
    }


def test_heartbeats_do_not_keep_a_source_that_nobody_can_fence_from_standing_still(
    open_pair: Pair, tmp_path: Path
) -> None:
    topic = new_topic(open_pair.east)
    produce(open_pair.east, topic, 20)
    mirrored = new_mirror(open_pair, tmp_path, topic)
    with driving(mirrored):
        beating(mirrored, 2)
        failover = mirrored.failover
        run = failover.begin(failover.plan(RunMode.PLANNED).hash)
        assert failover.drive(run.id).state is RunState.DONE  # NotFenced, if heartbeats were waited for
    assert beats(mirrored) == beats(mirrored, "east")
