"""A destination of three nodes has lost one while it was written: what Kafka holds back, and how a failover goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.decide.quiescence_check import format_min_isr_command
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets
from mirror_core.kafka.topics import alter_configs
from mirror_core.mirrors import mirror_commands
from mirror_core.model.errors import MirrorError, Refused
from mirror_core.model.figures import FigureKey
from mirror_core.model.mirror import PartitionState
from mirror_core.model.names import Partition
from mirror_core.model.run import Run, RunState
from mirror_core.runbook import quiescence
from mirror_core.runbook.failover_conductor import list_refused_losses
from mirror_core.state.state_records import STATE_TOPIC
from tests.drill.one_task import one_task
from tests.support.cluster_admin import as_admin, known_topic
from tests.support.dedicated_clusters import two_clusters
from tests.support.failback_runs import failback_of, go_home
from tests.support.failover_runs import commit, committed, denied
from tests.support.kafka_clients import TIMEOUT_S, Pair, grant, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.three_nodes import log_end, replicas
from tests.support.topic_equality import assert_same
from tests.support.unplanned_runs import begin
from tests.support.waiting import patience, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]

ALL = {1, 2, 3}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_clusters(tmp_path_factory.mktemp("three"), nodes=3) as pair:
        yield pair


def high(client: ClusterClient, partition: Partition) -> int | None:
    return list_known_offsets(client, [partition], OffsetPoint.HIGH_WATERMARK).get(partition)


def asks_for(client: ClusterClient, topic: str, replicas_in_sync: int) -> None:
    alter_configs(client, {topic: {"min.insync.replicas": str(replicas_in_sync)}})


@contextmanager
def held_up(three: Pair, mirrored: Mirrored, partition: Partition) -> Iterator[int]:
    """Of a log that ends at 11, consumers see one record: a follower is gone, of three that are asked for. Which one.

    All three, so that the clusters' own topics, which ask for two, go on.
    """
    west = three.west
    with as_admin(west) as client:
        asks_for(client, partition.topic, 3)
        leader = replicas(west, partition)[0]
        follower = min(ALL - {leader})
        produce(three.east, partition.topic, 1)
        with one_task(mirrored, [partition]) as task:
            wait_until(lambda: high(client, partition) == 1, timeout_s=TIMEOUT_S, why="the copier is at work")
            west.stop_process(follower)
            produce(three.east, partition.topic, 10)
            wait_until(lambda: task.waits(partition), timeout_s=TIMEOUT_S, why="it hears that this is not replicated")
            task.ended()
        west.kill(follower)
        try:
            wait_until(lambda: replicas(west, partition)[1] == 2, timeout_s=TIMEOUT_S, why=f"{follower} is missed")
            assert (log_end(client, partition), high(client, partition)) == (11, 1)
            yield follower
        finally:
            west.start(follower)
            wait_until(lambda: replicas(west, partition)[1] == 3, timeout_s=TIMEOUT_S, why="all have caught up")


def stopped(mirrored: Mirrored, run: Run) -> str:
    with pytest.raises(Refused) as refused:
        mirrored.failover.drive(run.id)
    assert "too few replicas on west are in sync" in str(refused.value)
    return str(refused.value)


@pytest.fixture
def mirrored(three: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mirrored:
    monkeypatch.setattr(quiescence, "QUIESCENCE_LIMIT_S", patience(3))
    monkeypatch.setattr(quiescence, "STABLE_AFTER_S", 1.0)
    topic = known_topic(three.east)
    grant(three.east, "app", ResourceType.TOPIC, topic, [AclOperation.READ, AclOperation.WRITE])
    made = new_mirror(three, tmp_path, topic, groups=(f"g-{topic}",))
    made.copy()
    mirror_commands.run_sync(made.link)
    return made


def test_lowering_what_is_asked_for_lets_a_failover_go_on(three: Pair, mirrored: Mirrored) -> None:
    [partition] = mirrored.statuses
    with held_up(three, mirrored, partition) as follower, as_admin(three.west) as client:
        run = begin(mirrored.failover)
        said = stopped(mirrored, run)
        assert f"{partition}: log end 11, high watermark 1; 2 of 3 replicas in sync" in said
        assert f"min.insync.replicas=3; not in sync: broker {follower}" in said
        assert format_min_isr_command(three.west.bootstrap, partition.topic, 2) in said
        asks_for(client, partition.topic, 2)
        assert mirrored.failover.drive(run.id).state is RunState.DONE
        assert mirrored.statuses[partition].lmo == 11
        assert high(client, partition) == 1, "a leader looks at it again when something is appended"
    assert_same(three, [partition.topic])
    assert not denied(three.west, partition.topic)


def test_it_is_left_behind_by_a_word_and_comes_home_whole(three: Pair, mirrored: Mirrored) -> None:
    [partition] = mirrored.statuses
    topic, group = partition.topic, f"g-{partition.topic}"
    with held_up(three, mirrored, partition):
        commit(three.west, group, topic, 7)
        run = begin(mirrored.failover)
        with pytest.raises(Refused, match="has not stopped for records"):
            mirrored.failover.confirm_leave_behind(run.id, list_refused_losses(mirrored.state, run))
        stopped(mirrored, run)
        mirrored.failover.confirm_leave_behind(run.id, list_refused_losses(mirrored.state, run))
        assert mirrored.failover.drive(run.id).state is RunState.DONE
        [settled] = [s for s in mirrored.failover.read_status(run.id)[1] if s.step == "settle"]
        assert settled.evidence["left_behind_ends"] == {str(partition): 11}
        assert settled.evidence["left_behind_high_watermarks"] == {str(partition): 1}
        status = mirrored.statuses[partition]
        assert (status.state, status.lmo) == (PartitionState.STOPPED, 1)
        assert committed(three.west, group, topic) == 1
    with as_admin(three.west) as client:
        wait_until(lambda: high(client, partition) == 11, timeout_s=TIMEOUT_S, why="its replicas are back")
    produce(three.west, topic, 5)
    failback = failback_of(mirrored)
    plan = failback.plan()
    assert plan.figures[FigureKey.DISCARDED_OFFSETS] == 10, "as if none of them were on west: that is always safe"
    home = failback.begin(plan.hash)
    assert failback.drive(home.id).state is RunState.RUNNING
    go_home(failback, home.id)
    assert len(read_all(three.east, topic)) == 16
    assert_same(three, [topic])


def test_a_state_topic_that_is_short_says_so_and_what_ends_it(three: Pair, mirrored: Mirrored) -> None:
    west = three.west
    with as_admin(west) as client:
        asks_for(client, STATE_TOPIC, 3)
        state = Partition(STATE_TOPIC, 0)
        gone = min(ALL - {replicas(west, state)[0]})  # a new leader might not even know how far it can be read
        try:
            west.kill(gone)
            wait_until(lambda: replicas(west, state)[1] == 2, timeout_s=TIMEOUT_S, why=f"node {gone} is missed")
            with pytest.raises(MirrorError) as failed:
                begin(mirrored.failover)
            said = str(failed.value)
            assert (
                f"{STATE_TOPIC}: 2 of 3 replicas in sync, and min.insync.replicas=3; not in sync: broker {gone}" in said
            ), said
            assert format_min_isr_command(west.bootstrap, STATE_TOPIC, 2) in said
            asks_for(client, STATE_TOPIC, 2)
            assert mirrored.failover.drive(begin(mirrored.failover).id).state is RunState.DONE
        finally:
            asks_for(client, STATE_TOPIC, 2)
            west.start(gone)
