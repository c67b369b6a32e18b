"""From the last Kafka 3.x to the newest: every shape of log, the formats before 2, and a failover."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.kafka.acl_requests import create_acls, wait_until_acls_present
from mirror_core.kafka.topics import NewTopic, create_topics, describe_configs
from mirror_core.model.acl import Acl, Operation, Pattern, Permission, Resource
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.sync_state import SyncAction, SyncCategory
from mirror_core.sync.acl_sync import apply_promotion
from mirror_core.sync.mirror_sync import preview_sync, sync_mirror
from tests.cluster.links import new_link, writer_of
from tests.support import log_shapes
from tests.support.cluster_admin import as_admin, rights_of
from tests.support.group_commits import commit_offsets, fetch_offsets
from tests.support.kafka3_source import older_source
from tests.support.kafka_clients import (
    Pair,
    new_topic,
    produce,
    read_all,
    read_all_aiokafka,
    read_topics,
    read_topics_aiokafka,
)
from tests.support.mirrored_topics import new_mirror
from tests.support.old_message_formats import OldLog, old_logs, put_in_place
from tests.support.topic_equality import assert_equal, assert_parity, assert_same, assert_same_offsets

pytestmark = [pytest.mark.cluster, pytest.mark.drill]


@pytest.fixture(scope="module")
def older(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with older_source(pair, tmp_path_factory.mktemp("older")) as found:
        yield found


@pytest.fixture(scope="module")
def old_topics(older: Pair) -> dict[str, OldLog]:
    """Logs of old formats by their topics."""
    topics = {
        new_topic(older.east, prefix=f"old-{log.data[16]}-", retention_ms="-1"): log for log in old_logs().values()
    }
    put_in_place(older.east, topics)
    return topics


def test_every_shape_crosses_from_an_older_cluster(older: Pair, tmp_path: Path) -> None:
    made = log_shapes.build(older.east)
    mirrored = new_mirror(older, tmp_path, f"{made.prefix}.*")
    mirrored.copy()
    assert_same(older, made.topics.values())
    made.end_the_open_transaction()
    made.append()
    mirrored.copy()
    assert_same(older, made.topics.values())
    assert_parity(mirrored)


def test_formats_before_2_cross_with_their_offsets_and_times(
    older: Pair, tmp_path: Path, old_topics: dict[str, OldLog]
) -> None:
    for topic, log in old_topics.items():
        assert read_all(older.east, topic) == log.records, "the source's broker reads the log as it was meant"
    mirrored = new_mirror(older, tmp_path, *old_topics)
    mirrored.copy()
    # Some readers take the first message's format for that of all others, so the source is read by one family only.
    expected = {
        topic: log.records + produce(older.east, topic, 30, compression_type="lz4") for topic, log in old_topics.items()
    }
    mirrored.copy()
    topics = list(old_topics)
    assert read_topics(older.east, topics) == expected
    assert_equal(expected, read_topics(older.west, topics), "librdkafka")
    assert_equal(expected, read_topics_aiokafka(older.west, topics), "aiokafka")
    assert_same_offsets(older, old_topics)
    assert_parity(mirrored)


def test_a_failover_leaves_an_older_cluster(older: Pair, tmp_path: Path) -> None:
    # Settings that brokers of 4.0 no longer know.
    topic = new_topic(older.east, 2, message_format_version="0.10.0", message_downconversion_enable="true")
    sent = produce(older.east, topic, 300) + produce(older.east, topic, 200, partition=1, compression_type="zstd")
    group = "g-" + secrets.token_hex(4)
    with as_admin(older.east) as client:
        assert commit_offsets(client, group, {Partition(topic, 0): (Offset(120), "")}) == {}
    mirrored = new_mirror(older, tmp_path, topic, groups=(group,))
    mirrored.copy()
    sent += produce(older.east, topic, 50)
    done = mirrored.failover.drive(mirrored.failover.begin(mirrored.failover.plan(RunMode.PLANNED).hash).id)
    assert done.state is RunState.DONE
    assert read_all(older.west, topic) == sorted(sent)
    assert read_all_aiokafka(older.west, topic) == sorted(sent)
    with as_admin(older.west) as client:
        moved = fetch_offsets(client, group).committed[Partition(topic, 0)]
    assert moved.offset == 120


def test_rights_that_an_older_destination_does_not_know_hold_no_others_up(older: Pair) -> None:
    topic = new_topic(older.west)
    read = Acl(resource=Resource.TOPIC, name=topic, principal="User:app", operation=Operation.READ)
    write = replace(read, operation=Operation.WRITE)
    two_phases = replace(read, resource=Resource.TRANSACTIONAL_ID, name="tx", operation=Operation.TWO_PHASE_COMMIT)
    with as_admin(older.west) as client:
        create_acls(client, [read, write, two_phases])
        wait_until_acls_present(client, [read, write, two_phases])
    link = new_link(older, topic, source="west", destination="east")
    with writer_of(link) as writer:
        rows = {
            row.subject: row
            for row in sync_mirror(link, writer, only=frozenset({SyncCategory.TOPICS, SyncCategory.ACLS})).rows
        }
    assert [rows[str(acl)].action for acl in (read, write)] == [SyncAction.CREATE, SyncAction.STAGE]
    assert rows[str(two_phases)].action is SyncAction.SKIP
    assert "the brokers of east may be too old for it: " in rows[str(two_phases)].reason
    assert read in rights_of(older.east)


def test_rights_that_an_older_destination_does_not_know_hold_no_promotion_up(older: Pair) -> None:
    """By prefix on topics, and a denial for everybody: both wait for promotion."""
    topic = new_topic(older.west)
    write = Acl(resource=Resource.TOPIC, name=topic, principal="User:app", operation=Operation.WRITE)
    two_phases = replace(write, name=topic[:-1], pattern=Pattern.PREFIXED, operation=Operation.TWO_PHASE_COMMIT)
    nobody = Acl(
        resource=Resource.TRANSACTIONAL_ID,
        name="other",
        principal="User:*",
        operation=Operation.TWO_PHASE_COMMIT,
        permission=Permission.DENY,
    )
    with as_admin(older.west) as client:
        create_acls(client, [write, two_phases, nobody])
        wait_until_acls_present(client, [write, two_phases, nobody])
    link = new_link(older, topic, source="west", destination="east")
    with writer_of(link) as writer:
        sync_mirror(link, writer, only=frozenset({SyncCategory.TOPICS, SyncCategory.ACLS}))
        for _ in range(2):  # a promotion may be repeated
            rows = {row.subject: row for row in apply_promotion(link, writer, {topic})}
            assert write in rights_of(older.east)
            for unknown in (two_phases, nobody):
                assert rows[str(unknown)].action is SyncAction.SKIP
                assert "the brokers of east may be too old for it: " in rows[str(unknown)].reason


def test_a_setting_that_the_destination_refuses_is_left_out_and_named(older: Pair, tmp_path: Path) -> None:
    """Brokers of 4.0 and later take no segment.bytes below 1 MiB."""
    made, adopted = (new_topic(older.east, 2, segment_bytes="100000", flush_ms="77") for _ in range(2))
    sent = {topic: produce(older.east, topic, 300) for topic in (made, adopted)}
    with as_admin(older.west) as client:
        create_topics(client, [NewTopic(name=adopted, partitions=2, replication_factor=1)])
    warnings = list[str]()
    mirrored = new_mirror(older, tmp_path, made, adopted, warn=warnings.append)
    assert len(warnings) == 1, warnings
    assert warnings[0].startswith(f"west refuses segment.bytes of {', '.join(sorted((made, adopted)))} (")
    said = preview_sync(mirrored.link, mirrored.state)
    left_out = {f"{topic}: segment.bytes" for topic in (made, adopted)}
    assert {row.subject for row in said.rows if row.reason.startswith("left out: ")} == left_out
    mirrored.copy()
    for topic in (made, adopted):
        assert read_all(older.west, topic) == sent[topic]
    with as_admin(older.west) as client:
        found = describe_configs(client, [made, adopted])
    assert {one.overrides["flush.ms"] for one in found.values()} == {"77"}
    assert {one.overrides["retention.ms"] for one in found.values()} == {"-1"}
    with writer_of(mirrored.link) as writer:
        for _ in range(2):
            rows = {row.subject: row for row in sync_mirror(mirrored.link, writer).rows if row.subject in left_out}
            assert {row.action for row in rows.values()} == {SyncAction.SKIP}
            assert {row.source for row in rows.values()} == {"100000"}
            reason = rows[f"{made}: segment.bytes"].reason
            assert "INVALID_CONFIG" in reason.upper()
            assert "needs" not in reason
    plan = mirrored.failover.plan(RunMode.PLANNED)
    (refused,) = [finding.values["settings"] for finding in plan.warnings if finding.code == "settings_refused"]
    assert refused == tuple(f"{subject}=100000" for subject in sorted(left_out))
    done = mirrored.failover.drive(mirrored.failover.begin(plan.hash).id)
    assert done.state is RunState.DONE
    step = mirrored.state.steps[done.id, "promote"]
    assert all(f"configs {subject}: left out: " in str(step.evidence["not_done"]) for subject in left_out)
