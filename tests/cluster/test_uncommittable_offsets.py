"""Offsets that the destination does not have: without metadata that is too large, named where they cannot be at all."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from mirror_core.kafka.acl_requests import create_acls, delete_acls, wait_until_acls_absent, wait_until_acls_present
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.topics import alter_configs
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.describe import describe_mirror
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.model.acl import Acl, Operation, Resource
from mirror_core.model.figures import FigureKey
from mirror_core.model.names import Partition
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.sync_state import DriftRow, GroupCoverage, SyncAction, SyncCategory
from mirror_core.model.timing import now_ms
from mirror_core.rights.acl_rules import build_denial
from mirror_core.runbook.readiness_report import assess_readiness
from tests.support.broker_faults import killed
from tests.support.group_commits import fetch_offsets
from tests.support.group_consumers import java
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, produce
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.offset_following import replicating
from tests.support.separate_cluster import in_place_of
from tests.support.share_groups import set_start_offset
from tests.support.unplanned_runs import begin
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

LARGE = 20_000
OFFSETS = "__consumer_offsets"


def commit_on_source(
    pair: Pair, group: str, topic: str, offset: int, metadata: str = "", partitions: Iterable[int] = (0,)
) -> None:
    member = Consumer({**pair.east.client_config("admin"), "group.id": group, "log_level": 0})
    offsets = [TopicPartition(topic, index, offset, metadata) for index in partitions]

    def taken() -> bool:
        try:
            return bool(member.commit(offsets=offsets, asynchronous=False))
        except KafkaException:  # coordinators of a new cluster load
            return False

    wait_until(taken, timeout_s=60, why=f"the coordinator of {group} takes the commit")
    member.close()


def rows_of(mirrored: Mirrored) -> list[DriftRow]:
    return list(mirror_commands.run_sync(mirrored.link, only=frozenset({SyncCategory.GROUPS})).rows)


def test_an_offset_is_committed_without_metadata_that_the_destination_refuses(pair: Pair, tmp_path: Path) -> None:
    """The source's brokers take more of it (offset.metadata.max.bytes). Without its offset the group would skip."""
    with in_place_of(pair, "east", tmp_path, pair.east.brokers[0].jars, {"offset.metadata.max.bytes": "65536"}) as wide:
        topic, group = new_topic(wide.east), "g-" + secrets.token_hex(4)
        produce(wide.east, topic, 9)
        mirrored = new_mirror(wide, tmp_path, topic, groups=(group + ".*",))
        mirrored.copy()
        commit_on_source(wide, group, topic, 4, "x" * LARGE)
        (row,) = rows_of(mirrored)
        assert (row.action, row.done, row.offset) == (SyncAction.COMMIT, True, 4)
        assert "without the application's metadata" in row.reason
        (row,) = rows_of(mirrored)
        assert (row.action, row.offset) == (SyncAction.EQUAL, 4)
        assert "without the application's metadata" in row.reason
        with ClusterClient(mirrored.link.destination) as west, replicating(mirrored.link):  # and by the data plane
            commit_on_source(wide, group, topic, 7, "y" * LARGE)
            commit_on_source(wide, group + "-2", topic, 3, "z" * LARGE)
            for name, offset in ((group, 7), (group + "-2", 3)):

                def arrived(name: str = name, offset: int = offset) -> bool:
                    found = fetch_offsets(west, name).committed.get(Partition(topic, 0))
                    return found is not None and (found.offset, found.metadata) == (offset, "")

                wait_until(arrived, timeout_s=60, why=f"{name} is committed without its metadata")


def test_offsets_that_no_batch_of_the_destination_holds_together_are_committed_in_parts(
    pair: Pair, tmp_path: Path
) -> None:
    """On the source each member commits its share. By default brokers take less than 300 with the longest note."""
    width, note = 12, "x" * 4_000
    topic, group = new_topic(pair.east, width), "g-" + secrets.token_hex(4)
    for index in range(width):
        produce(pair.east, topic, 2, partition=index)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()

    def commit(offset: int) -> None:
        for first in range(0, width, 2):
            commit_on_source(pair, group, topic, offset, note, range(first, first + 2))

    commit(1)
    with ClusterClient(mirrored.link.destination) as west:
        fetch_offsets(west, group)  # the topic is there from then on
        alter_configs(west, {OFFSETS: {"max.message.bytes": "20000"}})
        try:
            rows = rows_of(mirrored)
            assert {(row.action, row.done, row.reason, row.offset) for row in rows} == {
                (SyncAction.COMMIT, True, "", 1)
            }
            assert len(rows) == width
            with replicating(mirrored.link):  # and by the data plane
                commit(2)

                def arrived() -> bool:
                    found = fetch_offsets(west, group).committed.values()
                    # confluent-kafka's client has put a zero byte behind it.
                    return [(one.offset, one.metadata.rstrip("\0")) for one in found] == [(2, note)] * width

                wait_until(arrived, timeout_s=60, why="all are committed, with their metadata")
        finally:
            alter_configs(west, {OFFSETS: {"max.message.bytes": None}})


def test_javas_consumer_resumes_where_the_group_was_and_commits_behind_it_are_its_own(
    pair: Pair, tmp_path: Path
) -> None:
    """Synced with the leader epoch of the destination's log: with another one it would hang."""
    topic, group = new_topic(pair.east), "g-" + secrets.token_hex(4)
    produce(pair.east, topic, 9)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    commit_on_source(pair, group, topic, 4)
    assert [row.done for row in rows_of(mirrored)] == [True]
    partition, handled = Partition(topic, 0), list[tuple[float, int, int]]()
    with ClusterClient(mirrored.link.destination) as west:
        assert fetch_offsets(west, group).committed[partition].leader_epoch == 0
        with java(pair.west, group, topic, handled, tmp_path, reset="none"):
            wait_until(lambda: len(handled) == 5, timeout_s=90, why="it reads on")

            def committed() -> bool:
                return fetch_offsets(west, group).committed[partition].offset == 9

            wait_until(committed, timeout_s=60, why="it commits by itself")
    assert [offset for _, _, offset in handled] == [4, 5, 6, 7, 8]


def test_what_cannot_be_committed_is_named_wherever_somebody_looks_in_a_disaster(pair: Pair, tmp_path: Path) -> None:
    topic, group = new_topic(pair.east), "g-" + secrets.token_hex(4)
    produce(pair.east, topic, 9)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    commit_on_source(pair, group, topic, 4)
    users = (mirrored.link.destination.control, mirrored.link.destination.data)
    denied = {_denied(group, f"User:{user['sasl.username']}") for user in users if user}
    with ClusterClient(mirrored.link.destination) as west:
        create_acls(west, denied)
        try:
            wait_until_acls_present(west, denied)
            (row,) = rows_of(mirrored)
            assert (row.action, row.done) == (SyncAction.SKIP, False)
            name, why = f"{group} {topic}-0", "group_authorization_failed"
            assert named(str(describe_mirror(mirrored.link, mirrored.state, now_ms()).facts), name, why)
            assert any(named(line, name, why) for line in map(str, mirrored.failover.plan(RunMode.PLANNED).warnings))
            with killed(pair.east):
                assert named(str(describe_mirror(mirrored.link, mirrored.state, now_ms()).facts), name, why)
                ready = assess_readiness(mirrored.link, mirrored.state, mirrored.services, with_drift=False)
                assert any(named(str(point), name, why) for point in ready.points)
                assert any(named(finding.text, name, why) for finding in ready.unplanned.warnings)
                groups = ready.unplanned.groups
                assert groups is not None
                assert groups[group].most is None
                plan = mirrored.failover.plan(RunMode.UNPLANNED)
                assert any(named(line, name, why) for line in map(str, plan.warnings))
                assert plan.groups[group][FigureKey.WITHOUT_OFFSET_PARTITIONS] == 1
                run = begin(mirrored.failover)
                done = mirrored.failover.drive(run.id)
                assert done.state is RunState.DONE
                steps = {step.step: step for step in mirrored.failover.read_status(run.id)[1]}
                assert named(str(steps["final_offsets"].evidence["offsets_not_committed"]), name, why)
        finally:
            delete_acls(west, denied)
            wait_until_acls_absent(west, denied)


def _denied(group: str, user: str) -> Acl:
    return build_denial(group, user, resource=Resource.GROUP, operation=Operation.READ)


def named(words: str, name: str, why: str) -> bool:
    return name in words and why in words and "where auto.offset.reset says" in words


def test_a_commit_that_gets_no_answer_is_named_and_goes_on(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator there does not give the group's offset while a transaction holds it."""
    monkeypatch.setattr("mirror_core.sync.offset_commits.MAX_UNRECORDED_WAIT_S", 1.0)
    topic, group = new_topic(pair.east), "g-" + secrets.token_hex(4)
    produce(pair.east, topic, 9)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    commit_on_source(pair, group, topic, 2)
    config = pair.west.client_config("admin")
    member, producer = Consumer({**config, "group.id": group}), Producer({**config, "transactional.id": group})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 3)], member.consumer_group_metadata(), TIMEOUT_S)

    def find_waiting() -> object:
        return describe_mirror(mirrored.link, mirrored.state, now_ms()).facts[FactKey.WAITING_GROUPS].value

    with replicating(mirrored.link):
        wait_until(lambda: find_waiting() == (group,), timeout_s=TIMEOUT_S, why="the wait is named")
        (waiting,) = mirrored.state.uncommitted_groups[mirrored.name].uncommitted
        assert (waiting.coverage, waiting.has_reset_start) == (GroupCoverage.WAITING, False)
        assert "transaction" in waiting.reason
        producer.abort_transaction(TIMEOUT_S)
        with ClusterClient(mirrored.link.destination) as west:
            wait_until(
                lambda: [o.offset for o in fetch_offsets(west, group).committed.values()] == [2],
                timeout_s=TIMEOUT_S,
                why="it is committed",
            )
        wait_until(lambda: find_waiting() == (), timeout_s=TIMEOUT_S, why="nothing waits")
    member.close()


def test_a_group_that_is_of_another_type_on_the_destination_is_named_though_it_has_offsets_there(
    pair: Pair, tmp_path: Path
) -> None:
    topic, group = new_topic(pair.east), "g-" + secrets.token_hex(4)
    produce(pair.east, topic, 9)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    with ClusterClient(mirrored.link.destination) as west:
        set_start_offset(west, group, topic, 2)
    commit_on_source(pair, group, topic, 4)
    (row,) = rows_of(mirrored)
    assert row.reason == "is a share group on the destination"
    with killed(pair.east):
        plan = mirrored.failover.plan(RunMode.UNPLANNED)
        ready = assess_readiness(mirrored.link, mirrored.state, mirrored.services, with_drift=False)
    assert any(named(line, group, row.reason) for line in map(str, plan.warnings))
    assert any(named(str(point), group, row.reason) for point in ready.points)
