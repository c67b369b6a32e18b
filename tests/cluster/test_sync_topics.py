"""Mirror topics and their settings, on real brokers."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import UNSET

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.topics import (
    NewTopic,
    TopicConfigs,
    create_partitions,
    delete_topics,
    describe_configs,
)
from mirror_core.mirrors import mirror_commands
from mirror_core.model.errors import RemoteFault
from mirror_core.model.mirror import FailureKind, PartitionState
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.sync_state import DriftRow, SyncAction, SyncCategory
from mirror_core.runbook.readiness_report import assess_readiness
from mirror_core.state.state_topic import read_state
from mirror_core.sync import mirror_topics, topic_errors
from mirror_core.sync.acl_sync import apply_promotion
from mirror_core.sync.mirror_sync import preview_sync, sync_mirror
from mirror_core.sync.topic_errors import find_accepted_topics, find_unstageable
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.links import new_link, record, writer_of
from tests.support.cluster_admin import alter_topic
from tests.support.failover_runs import app_topic, begin
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, new_topic, produce
from tests.support.mirrored_topics import new_mirror
from tests.support.separate_cluster import in_place_of
from tests.support.synced_topics import client, put_topic
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster
TOPICS = frozenset({SyncCategory.TOPICS})
BOTH = frozenset({SyncCategory.TOPICS, SyncCategory.CONFIGS})


def overrides(pair: Pair, cluster: str, topic: str) -> dict[str, str]:
    with client(pair, cluster) as asked:
        return dict(describe_configs(asked, [topic])[topic].overrides)


def width(cluster: SandboxCluster, topic: str) -> int:
    return len(admin_client(cluster).list_topics(topic, timeout=30).topics[topic].partitions)


def by_subject(rows: tuple[DriftRow, ...]) -> dict[str, DriftRow]:
    return {row.subject: row for row in rows}


def test_a_missing_topic_is_created_as_wide_as_the_sources_and_never_deletes_by_its_own_clock(pair: Pair) -> None:
    topic = new_topic(pair.east, partitions=3, cleanup_policy="compact", retention_ms="1000", segment_bytes="2000000")
    link = new_link(pair, topic)
    with writer_of(link) as writer:
        report = sync_mirror(link, writer, only=BOTH)
        state = writer.state
    assert by_subject(report.rows)[topic].action is SyncAction.CREATE
    assert width(pair.west, topic) == 3
    there = overrides(pair, "west", topic)
    assert there["segment.bytes"] == "2000000"
    assert (there["retention.ms"], there["retention.bytes"], there["cleanup.policy"]) == ("-1", "-1", "compact,delete")
    assert (there["compression.type"], there["message.timestamp.type"]) == ("producer", "CreateTime")
    assert int(there["max.message.bytes"]) > 1_048_588
    waiting = {s: r.reason for s, r in by_subject(report.rows).items() if r.action is SyncAction.STAGE}
    assert waiting == {
        f"{topic}: cleanup.policy": "set to compact at promotion",
        f"{topic}: retention.ms": "set to 1000 at promotion",
    }
    assert dict(state.topic_settings[link.mirror.name, topic].overrides) == overrides(pair, "east", topic)
    record(link, [topic])
    with writer_of(link) as writer:
        assert preview_sync(link, writer.state, only=BOTH).pending == ()


def test_a_dry_run_says_the_same_and_does_nothing(pair: Pair) -> None:
    topic = new_topic(pair.east, partitions=2)
    link = new_link(pair, topic)
    said = preview_sync(link, read_state(link.destination), only=BOTH)
    assert [(row.subject, row.action, row.done) for row in said.rows] == [(topic, SyncAction.CREATE, False)]
    with client(pair, "west") as west:
        assert west.metadata([topic]).topics == {}


def test_a_foreign_topic_with_data_is_refused_by_name_and_the_others_go_on(pair: Pair) -> None:
    good, taken, empty = (new_topic(pair.east, partitions=2) for _ in range(3))
    link = new_link(pair, good, taken, empty)
    put_topic(pair, taken, 2)
    put_topic(pair, empty, 2)
    produce(pair.west, taken, 5, partition=1)
    with writer_of(link) as writer:
        report = sync_mirror(link, writer, only=BOTH)
    rows = by_subject(report.rows)
    assert (rows[good].action, rows[empty].action, rows[taken].action) == (
        SyncAction.CREATE,
        SyncAction.ADOPT,
        SyncAction.REFUSE,
    )
    assert (rows[taken].code, rows[good].code) == (FailureKind.OCCUPIED, UNSET)
    assert f"destination topic {taken} on cluster west already holds 5 records" in rows[taken].reason
    assert "retention.ms" not in overrides(pair, "west", taken)
    wait_until(
        lambda: overrides(pair, "west", empty).get("retention.ms") == "-1",
        timeout_s=TIMEOUT_S,
        why="the broker shows what the sync has set",
    )


def test_a_topic_that_was_deleted_and_created_anew_on_the_destination_is_refused(pair: Pair) -> None:
    topic = new_topic(pair.east)
    link = new_link(pair, topic)
    with writer_of(link) as writer:
        sync_mirror(link, writer, only=TOPICS)
    record(link, [topic])
    with client(pair, "west") as west:
        delete_topics(west, [topic])
    put_topic(pair, topic, 1)
    with writer_of(link) as writer:
        report = sync_mirror(link, writer, only=TOPICS)
    assert "was deleted and created anew" in by_subject(report.rows)[topic].reason


def test_new_partitions_cross_and_a_wider_destination_is_refused(pair: Pair) -> None:
    topic, wide = new_topic(pair.east, partitions=2), new_topic(pair.east, partitions=1)
    link = new_link(pair, topic, wide)
    put_topic(pair, wide, 4)
    with writer_of(link) as writer:
        first = by_subject(sync_mirror(link, writer, only=TOPICS).rows)
    assert "has 4 partitions, the source's has 1" in first[wide].reason
    record(link, [topic])
    with client(pair, "east") as east:
        create_partitions(east, {topic: 5})
    with writer_of(link) as writer:
        assert by_subject(sync_mirror(link, writer, only=TOPICS).rows)[topic].action is SyncAction.WIDEN
    assert width(pair.west, topic) == 5


def test_settings_are_set_and_removed_but_not_those_that_the_mirror_needs(pair: Pair) -> None:
    topic = new_topic(pair.east, segment_bytes="2000000")
    link = new_link(pair, topic)
    with writer_of(link) as writer:
        sync_mirror(link, writer, only=BOTH)
    record(link, [topic])
    with client(pair, "east") as east:
        alter_topic(east, topic, {"segment.bytes": None, "segment.ms": "99000", "retention.ms": "5000"})
    with client(pair, "west") as west:
        alter_topic(west, topic, {"flush.ms": "7", "retention.bytes": "1000"})
    with writer_of(link) as writer:
        report = sync_mirror(link, writer, only=BOTH)
    actions = {row.subject.removeprefix(f"{topic}: "): row.action for row in report.rows}
    assert actions == {
        "segment.bytes": SyncAction.REMOVE,
        "segment.ms": SyncAction.SET,
        "flush.ms": SyncAction.REMOVE,
        "retention.bytes": SyncAction.SET,
        "retention.ms": SyncAction.STAGE,
    }

    def set_and_removed() -> bool:
        """The broker shows it some time after the controller has taken it."""
        there = overrides(pair, "west", topic)
        wanted = {"segment.ms": "99000", "retention.bytes": "-1", "retention.ms": "-1"}
        return wanted.items() <= there.items() and not {"segment.bytes", "flush.ms"} & there.keys()

    wait_until(set_and_removed, timeout_s=TIMEOUT_S, why="settings are as the sync has said")


def test_excluded_settings_stay_each_clusters_own_also_at_promotion(pair: Pair) -> None:
    topic = new_topic(pair.east, segment_bytes="2000000", segment_ms="99000", retention_ms="5000000")
    link = new_link(pair, topic)
    link = replace(link, mirror=replace(link.mirror, exclude_settings=(r"segment\..*", "flush.*")))
    with writer_of(link) as writer:
        sync_mirror(link, writer, only=BOTH)
    record(link, [topic])
    assert not {"segment.bytes", "segment.ms"} & overrides(pair, "west", topic).keys()
    own = {"flush.ms": "7000", "segment.bytes": "3000000"}
    with client(pair, "west") as west:
        alter_topic(west, topic, dict(own))
    wait_until(lambda: own.items() <= overrides(pair, "west", topic).items(), timeout_s=TIMEOUT_S, why="they are set")
    with writer_of(link) as writer:
        report = sync_mirror(link, writer, only=BOTH)
        actions = {row.subject.removeprefix(f"{topic}: "): row.action for row in report.rows}
        assert actions == {
            **dict.fromkeys(("segment.bytes", "segment.ms"), SyncAction.KEEP),
            "retention.ms": SyncAction.STAGE,
        }
        apply_promotion(link, writer, [topic])
    wanted = {**own, "retention.ms": "5000000"}
    wait_until(lambda: overrides(pair, "west", topic) == wanted, timeout_s=TIMEOUT_S, why="it is promoted")


def test_a_promoted_topic_keeps_and_accepts_what_its_source_did_by_the_clusters_defaults(
    pair: Pair, tmp_path: Path
) -> None:
    """No topic has an override for it. By west's own defaults records would be deleted, and others refused."""
    defaults = {
        "log.retention.hours": "720",
        "message.max.bytes": "5000000",
        "log.message.timestamp.after.max.ms": "7200000",
    }
    expected = {
        "retention.ms": "2592000000",
        "max.message.bytes": "5000000",
        "message.timestamp.after.max.ms": "7200000",
    }
    with in_place_of(pair, "east", tmp_path, pair.east.brokers[0].jars, defaults) as other:
        topic = app_topic(other)
        mirrored = new_mirror(other, tmp_path, topic)
        mirrored.copy()
        rows = by_subject(mirror_commands.run_sync(mirrored.link, only=BOTH).rows)
        assert {s: r.reason for s, r in rows.items() if r.action is SyncAction.STAGE} == {
            f"{topic}: {key}": f"set to {value} at promotion" for key, value in expected.items()
        }
        run = begin(mirrored.failover)
        assert mirrored.failover.drive(run).state is RunState.DONE
        with client(other, "west") as west:
            assert expected.items() <= describe_configs(west, [topic])[topic].effective.items()
        assert overrides(other, "west", topic) == expected


def test_a_stopped_topic_belongs_to_the_applications(pair: Pair) -> None:
    topic = new_topic(pair.east)
    link = new_link(pair, topic)
    with writer_of(link) as writer:
        sync_mirror(link, writer, only=BOTH)
    record(link, [topic], PartitionState.STOPPED)
    with client(pair, "west") as west:
        alter_topic(west, topic, {"retention.ms": "12345"})
    with writer_of(link) as writer:
        report = sync_mirror(link, writer)
    assert [(row.subject, row.action) for row in report.rows] == [(topic, SyncAction.SKIP)]
    assert overrides(pair, "west", topic)["retention.ms"] == "12345"


def test_settings_that_a_cluster_refuses_are_found_without_creating_anything(pair: Pair) -> None:
    """Those of several topics together; one without whose retention a copy would not be safe is refused with it."""
    good = {"flush.ms": "7", "retention.ms": "-1"}
    configs = {
        "two": {**good, "segment.bytes": "100000", "no.such.setting": "1"},
        "none": good,
        "harmed": {**good, "retention.ms": "-7"},
        "wide": good,
    }
    names = {what: f"{what}-{secrets.token_hex(4)}" for what in configs}
    topics = [
        NewTopic(name=names[what], partitions=1, replication_factor=9 if what == "wide" else 1, configs=mine)
        for what, mine in configs.items()
    ]
    with client(pair, "west") as west:
        accepted, refused, faults = find_accepted_topics(west, topics)
        assert west.metadata(list(names.values())).topics == {}
    assert {topic.name: topic.configs for topic in accepted} == {names["two"]: good, names["none"]: good}
    assert refused[names["two"]].keys() == {"segment.bytes", "no.such.setting"}
    assert faults.keys() == {names["harmed"]}
    assert "retention.ms=-7 is refused" in str(faults[names["harmed"]])
    assert "604800000 would hold" in str(faults[names["harmed"]])


def test_settings_that_a_promotion_could_not_set_are_found_without_creating_anything(pair: Pair) -> None:
    """Each of them, of those topics that have it, and no other one."""
    held = {"retention.ms": "-1", "cleanup.policy": "delete"}
    staged = {
        "both": {"retention.ms": "-7", "cleanup.policy": "compact", "min.insync.replicas": "0"},
        "one": {"retention.ms": "-7"},
        "good": {"cleanup.policy": "compact", "retention.ms": "1000"},
        "nothing": dict[str, str](),
    }
    names = {what: f"{what}-{secrets.token_hex(4)}" for what in staged}
    topics = [NewTopic(name=name, partitions=1, replication_factor=1, configs=held) for name in names.values()]
    with client(pair, "west") as west:
        refused = find_unstageable(west, topics, {names[what]: configs for what, configs in staged.items()})
        assert west.metadata(list(names.values())).topics == {}
    assert {name: reasons.keys() for name, reasons in refused.items()} == {
        names["both"]: {"retention.ms", "min.insync.replicas"},
        names["one"]: {"retention.ms"},
    }


def test_what_a_promotion_cannot_set_is_named_when_a_mirror_is_created_and_by_readiness_and_plans(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the destination has a policy: brokers of one version without policies refuse nothing of each other's."""
    made, adopted = (new_topic(pair.east, segment_bytes="2000000") for _ in range(2))
    put_topic(pair, adopted, 1)
    describe, is_refused = topic_errors.describe_visible_configs, True

    def describe_with_retention(
        asked: ClusterClient, names: Collection[str], total: int
    ) -> tuple[dict[str, TopicConfigs], dict[str, RemoteFault]]:
        configs, hidden = describe(asked, names, total)
        if is_refused and asked.name == "east":
            configs = {n: replace(c, overrides={**c.overrides, "retention.ms": "-7"}) for n, c in configs.items()}
        return configs, hidden

    monkeypatch.setattr(mirror_topics, "describe_visible_configs", describe_with_retention)
    warnings = list[str]()
    mirrored = new_mirror(pair, tmp_path, made, adopted, warn=warnings.append)
    assert len(warnings) == 1, warnings
    assert all(text in warnings[0] for text in (made, adopted, "retention.ms"))
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link, only=BOTH)

    def list_refused() -> list[object]:
        findings = [w for mode in RunMode for w in mirrored.failover.decide(mode).plan.warnings]
        readiness = assess_readiness(mirrored.link, mirrored.state, mirrored.services, with_drift=False)
        findings += [point.finding for point in readiness.points]
        return [finding.values["settings"] for finding in findings if finding.code == "settings_refused"]

    assert list_refused() == [tuple(f"{topic}: retention.ms=-7" for topic in sorted((made, adopted)))] * 3
    is_refused = False
    mirror_commands.run_sync(mirrored.link, only=BOTH)
    assert list_refused() == []
