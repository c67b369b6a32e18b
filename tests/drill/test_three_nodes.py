"""Clusters of three nodes: in service while one is dead; and a mirror between them while replicas and leaders come and
go."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v0.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v0.response import IncrementalAlterConfigsResponse
from kio.static.primitive import i8

from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.decide.mirror_snapshot import DestinationSnapshot, MinIsrShortfall
from mirror_core.kafka.acl_requests import create_acls, wait_until_acls_present
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.kafka.topics import NewTopic, alter_configs, create_topics, describe_configs, wait_for_leaders
from mirror_core.mirrors import mirror_commands
from mirror_core.model.acl import Acl, Operation, Permission, Resource
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import ACTIVE_TOPIC, MirrorName, Partition
from mirror_core.model.run import RunMode, StepEvidence
from mirror_core.model.sync_state import SyncAction, SyncCategory
from mirror_core.model.timing import TIMEOUTS
from mirror_core.runbook import canary_probe
from mirror_core.runbook.canary_probe import run_canary
from mirror_core.runbook.snapshot_reader import take_snapshot
from mirror_core.state.state_records import STATE_TOPIC
from mirror_core.state.state_topic import read_state
from mirror_core.sync.mirror_sync import preview_sync, sync_mirror
from tests.cluster.links import new_link, record, writer_of
from tests.drill.histories import history
from tests.drill.one_task import one_task
from tests.drill.weather import Usurper, equal_or_failed
from tests.support.broker_faults import suspended, woken_at_once
from tests.support.cluster_admin import active_controller, as_admin, known_topic
from tests.support.dedicated_clusters import two_clusters
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, new_topic, produce, read_all
from tests.support.mirrored_topics import new_mirror, replicate
from tests.support.sentences import format_sentence
from tests.support.three_nodes import dead, log_end, replicas
from tests.support.three_source_nodes import NODES, topic_on
from tests.support.topic_equality import assert_same
from tests.support.waiting import patience, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    extra = {"broker.session.timeout.ms": "9000", "log.cleaner.backoff.ms": "1000"}
    with two_clusters(tmp_path_factory.mktemp("three"), nodes=3, extra=extra) as pair:
        yield pair


def _in_sync(client: ClusterClient, topics: Iterable[str]) -> set[int]:
    return {view.in_sync for view in client.metadata(topics).topics.values()}


@contextmanager
def default_of_all(client: ClusterClient, name: str, value: str, before: str) -> Iterator[None]:
    """A dynamic default of the cluster, for as long as the context lasts: librdkafka cannot name it."""

    def put(value: str) -> None:
        change = AlterableConfig(name=name, config_operation=i8(0), value=value)
        of_all = AlterConfigsResource(resource_type=i8(4), resource_name="", configs=(change,))
        request = IncrementalAlterConfigsRequest(resources=(of_all,), validate_only=False)
        [answer] = client.call(request, IncrementalAlterConfigsResponse).responses
        assert answer.error_code is ErrorCode.none, answer

    put(value)
    try:
        yield
    finally:
        put(before)  # with eligible leader replicas it cannot be removed


def test_a_cluster_of_three_serves_without_one_and_takes_it_back(three: Pair) -> None:
    east = three.east
    topic = new_topic(east, partitions=3)
    for number in range(3):
        produce(east, topic, 20, partition=number)
    east.kill(2)
    assert east.pid(2) is None
    for number in range(3):
        produce(east, topic, 20, partition=number)
    assert len(read_all(east, topic)) == 120

    east.start(2)
    admin = admin_client(east)

    def all_in_sync() -> bool:
        seen = admin.list_topics(topic, timeout=10).topics[topic].partitions
        return all(sorted(partition.isrs) == [1, 2, 3] for partition in seen.values())

    wait_until(all_in_sync, timeout_s=60, why="node 2 catches up")
    dumped = east.tool(
        "org.apache.kafka.tools.DumpLogSegments",
        "--files",
        str(east.log_dir(2) / f"{topic}-0" / f"{0:020}.log"),
    )
    assert dumped.returncode == 0
    assert "lastOffset: 39" in dumped.stdout


def test_a_controller_that_hangs_delays_what_it_is_asked_for_and_refuses_nothing(three: Pair) -> None:
    west, topic = three.west, new_topic(three.west)
    denied = Acl(
        resource=Resource.TOPIC, name=topic, principal="User:app", operation=Operation.WRITE, permission=Permission.DENY
    )
    with as_admin(west) as client, suspended(west, active_controller(west)):
        # Its successor is there within seconds; the other brokers still wait for the old one.
        create_acls(client, [denied])
        alter_configs(client, {topic: {"retention.ms": "-1"}})
        assert describe_configs(client, [topic])[topic].overrides["retention.ms"] == "-1"
        wait_until_acls_present(client, [denied])
    wait_until(lambda: west.answering(1) == [1, 2, 3], timeout_s=TIMEOUT_S, why="it is back")


@pytest.mark.parametrize(("policy", "created"), [("source", 2), ("default", 3), ("1", 1), ("9", 3)])
def test_topics_are_created_with_the_replicas_that_the_mirror_says(three: Pair, policy: str, created: int) -> None:
    topic, only = f"t-{secrets.token_hex(5)}", frozenset({SyncCategory.TOPICS})
    with as_admin(three.east) as east:
        create_topics(east, [NewTopic(name=topic, partitions=2, replication_factor=2)])
        wait_for_leaders(east, [topic])
    link = new_link(three, topic)
    link = replace(link, mirror=replace(link.mirror, replication_factor=policy))
    with writer_of(link) as writer:
        sync_mirror(link, writer, only=only)
    with as_admin(three.west) as west:
        wait_for_leaders(west, [topic])
        assert west.metadata([topic]).topics[topic].replication_factor == created
        overrides = describe_configs(west, [topic])[topic].overrides
        assert overrides["min.insync.replicas"] == ("2" if created == 3 else "1"), "before any sync of settings"
    record(link, [topic])
    state, others = read_state(link.destination), {1, 2, 3} - {created}
    assert preview_sync(link, state, only=only).rows == ()
    for other in others:
        changed = replace(link, mirror=replace(link.mirror, replication_factor=str(other)))
        [row] = preview_sync(changed, state, only=only).rows
        assert (row.action, row.source) == (SyncAction.KEEP, "replication factor 2")
        assert row.destination == f"replication factor {created}"
        assert str(other) in row.reason


def test_what_too_few_replicas_hold_is_not_called_copied(three: Pair, tmp_path: Path) -> None:
    topic = known_topic(three.east, 3)
    first, _, last = partitions = [Partition(topic, number) for number in range(3)]
    mirrored = new_mirror(three, tmp_path, topic)
    mirrored.copy()
    with as_admin(three.west) as client:
        # With all replicas wanted, one that stops is enough: the clusters' own logs go on meanwhile.
        alter_configs(client, {topic: {"min.insync.replicas": "3"}})
        produce(three.east, topic, 1, partition=last.index)
        with one_task(mirrored, partitions) as task:
            wait_until(lambda: log_end(client, last) == 1, timeout_s=TIMEOUT_S, why="the copier is at work")
            follower = min({1, 2, 3} - {replicas(three.west, partition)[0] for partition in (first, last)})
            with suspended(three.west, follower):
                produce(three.east, topic, 10, partition=last.index)
                wait_until(lambda: task.waits(last), timeout_s=TIMEOUT_S, why="it hears that this is not replicated")
                assert log_end(client, last) == 11, "the leader has appended it all the same"
                produce(three.east, topic, 10)
                wait_until(lambda: task.waits(first), timeout_s=TIMEOUT_S, why="the leader refuses to append")
                report = task.ended()
                words = f"cluster west, {first}, offset 0: NOT_ENOUGH_REPLICAS: fewer replicas are in sync"
                assert words in report.retry_reason
                assert "(2 partitions wait)" in report.retry_reason
                with one_task(mirrored, [last], {last: 11}) as task:
                    wait_until(lambda: task.waits(last), timeout_s=TIMEOUT_S, why="what is not replicated is not done")
                    report = task.ended()
                assert format_sentence("log_end_not_replicated", "west", last, 11, 1) in report.retry_reason
                assert not any(receipt.next == 11 for receipt in report.receipts)
                assert report.failures == ()
    mirrored.copy()
    assert_same(three, [topic])


def test_a_plan_names_what_could_not_be_written_after_promotion(three: Pair, tmp_path: Path) -> None:
    all_three, two = (known_topic(three.east, min_insync_replicas=number) for number in ("3", "2"))
    by_default = known_topic(three.east)
    topics = sorted((all_three, by_default, two))
    mirrored = new_mirror(three, tmp_path, *topics)
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link)

    def named() -> tuple[MinIsrShortfall, ...]:
        seen = take_snapshot(mirrored.link, mirrored.state, RunMode.UNPLANNED).destination
        assert isinstance(seen, DestinationSnapshot)
        return seen.min_isr_shortfalls

    assert named() == ()
    with as_admin(three.west) as client, default_of_all(client, "min.insync.replicas", "3", "1"):
        assert named() == ()
        with dead(three.west, 3):
            left = partial(_in_sync, client, topics)
            wait_until(lambda: left() == {2}, timeout_s=TIMEOUT_S, why="node 3 is missed")
            assert named() == tuple(MinIsrShortfall(topic, in_sync=2, needed=3) for topic in topics if topic != two)


def test_a_mirror_comes_through_lost_majorities_and_moved_leaders(three: Pair, tmp_path: Path) -> None:
    with history(three, tmp_path / "history", 1) as made:
        watched = Partition(made.kept, 0)

        def work() -> None:
            made.tasks.start()
            for _ in range(3):
                made.writers.transact()
                made.writers.plain()

        work()
        leader = replicas(three.west, watched)[0]
        with dead(three.west, leader, leader % 3 + 1):  # no majority of anything is left
            work()
        work()
        leader = replicas(three.west, watched)[0]
        with woken_at_once(three.west, leader):
            work()
            wait_until(
                lambda: replicas(three.west, watched)[0] not in (leader, -1),
                timeout_s=TIMEOUT_S,
                why="another node takes the stopped one's place",
            )
            work()
        work()
        with dead(three.east, replicas(three.east, watched)[0]):
            work()
        for cluster in (three.east, three.west):
            made.elect(cluster)
            work()
        made.settle()
        assert made.check() > 0


def test_an_unclean_election_is_a_wrong_copy_without_a_word_where_epochs_are_not_kept(
    three: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`test_guard_removal`, with what needs three nodes. That it is found where they are: `weather`."""
    topic = known_topic(three.east, retention_ms="-1")
    partition = Partition(topic, 0)
    usurps = Usurper(three.east, partition)
    produce(three.east, topic, 10)
    mirrored = new_mirror(three, tmp_path, topic)
    mirrored.copy()

    def copied() -> bool:
        return replicate(mirrored.link).caught_up

    usurps(copied)
    monkeypatch.setattr(PartitionReplicator, "agreed_epoch", property(lambda one: one.source_epoch))
    wait_until(copied, timeout_s=TIMEOUT_S, why="its successor's records are copied behind those that it has lost")
    with pytest.raises(AssertionError, match=f"{partition} differs, and is not FAILED"):
        equal_or_failed(mirrored, partition, FailureKind.DIVERGED, struck=True)


def canary_of(pair: Pair, topic: str) -> StepEvidence:
    west = load_config(pair.config_path).cluster("west")
    return run_canary(west, MirrorName("m-" + secrets.token_hex(4)), "run", {topic})


def test_the_canary_tries_every_broker_and_waits_for_none_that_is_not_needed(
    three: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, leader, idle = "t-" + secrets.token_hex(5), 2, 3
    with as_admin(three.west) as client:
        create_topics(client, [NewTopic(name=topic, partitions=1, replication_factor=1, assignments=((leader,),))])
    assert canary_of(three, topic)["brokers"] == "1, 2, 3"

    with suspended(three.west, idle):
        shown = canary_of(three, topic)  # in the metadata until its session ends, or not any more
        assert shown["brokers"] == ", ".join(str(node) for node in (1, 2, 3) if node != idle), shown
        assert str(shown.get("brokers that do not answer", idle)).startswith(str(idle))
    wait_until(lambda: three.west.answering(1) == [1, 2, 3], timeout_s=TIMEOUT_S, why="it is back")

    with suspended(three.west, leader):
        with monkeypatch.context() as patched:
            patched.setattr(canary_probe, "TIMEOUTS", replace(TIMEOUTS, canary_missing_broker_s=0.0))
            with pytest.raises(Unreachable, match=f"broker {leader} leads {topic}-0 and does not answer"):
                canary_of(three, topic)
        shown = canary_of(three, topic)
        assert shown["partitions without a leader"] == f"{topic}-0", "a broker that is gone holds up no report"
    wait_until(lambda: three.west.answering(1) == [1, 2, 3], timeout_s=TIMEOUT_S, why="it is back")


def test_a_canary_that_a_broker_does_not_take_names_broker_kind_and_partition(
    three: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(three.west)
    monkeypatch.setattr(canary_probe, "TIMEOUTS", replace(TIMEOUTS, canary_trial_s=patience(12)))

    def and_then_it_hangs(client: ClusterClient, topics: Iterable[NewTopic]) -> None:
        create_topics(client, topics)
        three.west.stop_process(2)

    monkeypatch.setattr(canary_probe, "create_topics", and_then_it_hangs)
    try:
        with pytest.raises(RemoteFault) as failed:
            canary_of(three, topic)
    finally:
        three.west.cont_process(2)
    said = str(failed.value)
    for kind in ("plain", "idempotent", "transactional"):
        assert re.search(rf"broker 2, {kind} producer: __mirrorbook_canary\.m-\w+-1: ", said), said
    assert "broker 1, plain producer" not in said
    wait_until(lambda: three.west.answering(1) == [1, 2, 3], timeout_s=TIMEOUT_S, why="it is back")


def test_a_topic_that_is_copied_while_a_broker_is_down_has_as_many_replicas_as_its_source(
    three: Pair, tmp_path: Path
) -> None:
    [partition] = topic_on(three.east, NODES)
    produce(three.east, partition.topic, 5)
    with dead(three.west, 3), as_admin(three.west) as client:

        def is_missed() -> bool:
            client.mark_metadata_stale()
            return 3 not in client.brokers()

        wait_until(is_missed, timeout_s=TIMEOUT_S, why="the controllers miss it")
        mirrored = new_mirror(three, tmp_path, partition.topic)
        mirrored.copy()
        views = client.metadata([partition.topic, STATE_TOPIC, ACTIVE_TOPIC]).topics
        configs = describe_configs(client, [partition.topic])[partition.topic].overrides
    assert {name: view.replication_factor for name, view in views.items()} == dict.fromkeys(views, 3)
    assert len(views) == 3
    assert configs["min.insync.replicas"] == "2"
