"""Home again on real clusters: nothing to take back, a tail to take back, and twice around."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.decide.acls import denial
from mirror_core.decide.strategies import Allowed
from mirror_core.kafka.acls import absent_on_every_broker, delete_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.topics import NewTopic, create_topics, delete_topic, describe_configs
from mirror_core.model.acl import Permission
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import Refused
from mirror_core.model.mirror import Desired, PartitionState
from mirror_core.model.names import ClusterName, Partition
from mirror_core.model.run import Mode, RunState, Strategy
from mirror_core.parity.salvage import MANIFEST
from mirror_core.runbook import conductor
from mirror_core.runbook.checkpoints import OldTopic
from mirror_core.runbook.failback import Failback
from mirror_core.runbook.failback_steps import FailbackSteps
from mirror_core.sandbox.cluster import SandboxCluster
from mirror_core.state.records import PartitionRecord
from mirror_core.state.writer import StateWriter, control_id
from tests.brokers import Pair, Record, grant, produce, read_all, read_all_aiokafka
from tests.cluster.test_failover import app_topic, begin, denied
from tests.mirroring import Mirrored, new_mirror
from tests.same import assert_parity
from tests.shapes import Row, new_producer, send

pytestmark = pytest.mark.cluster


def content(records: list[Record]) -> list[Record]:
    """Without the single writes by which tests probe who may write."""
    return [r for r in records if r.value != b"x"]


def failed_over(pair: Pair, evidence: Path, topic: str) -> Mirrored:
    mirrored = new_mirror(pair, evidence, topic)
    mirrored.copy()
    failover = mirrored.failover
    failover.drive(begin(failover))
    return mirrored


def failback_of(mirrored: Mirrored) -> Failback:
    return Failback(mirrored.link, mirrored.services, started_by="test")


def go_home(failback: Failback, run_id: str) -> None:
    """The second approval, and what follows it."""
    home = failback.home()
    home.drive(home.begin(home.plan(Mode.PLANNED).hash).id)
    assert failback.drive(run_id).state is RunState.DONE


def test_twice_around_without_a_tail(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair, 2, retention_ms="86400000")
    sent = produce(pair.east, topic, 100) + produce(pair.east, topic, 40, partition=1)
    mirrored = failed_over(pair, tmp_path, topic)
    sent += produce(pair.west, topic, 60)
    failback = failback_of(mirrored)
    plan = failback.plan()
    assert plan.strategies == {topic: "none"}
    assert plan.figures["offsets to discard"] == "0"
    assert plan.figures["offsets to copy"] == "60"

    run = failback.begin(plan.hash)
    assert failback.drive(run.id).state is RunState.RUNNING
    with pytest.raises(Refused, match="is not failed over yet"):
        failback.step(run.id, "reprotect")
    assert not denied(pair.west, topic), "applications must be able to write while the old source catches up"
    assert denied(pair.east, topic), "two primaries"
    go_home(failback, run.id)

    assert not denied(pair.east, topic)
    assert denied(pair.west, topic)
    assert content(read_all(pair.east, topic)) == sorted(sent)
    assert content(read_all_aiokafka(pair.east, topic)) == sorted(sent)
    assert {s.state for s in mirrored.statuses.values()} == {PartitionState.MIRRORING}
    assert mirrored.state.mirrors[mirrored.name].desired is Desired.STARTED
    with ClusterClient(mirrored.config.cluster("east")) as client:
        assert describe_configs(client, [topic])[topic].overrides == {"retention.ms": "86400000"}
    assert (tmp_path / f"run-{run.id}" / "report.html").exists()

    sent += produce(pair.east, topic, 25)
    mirrored.copy()
    assert read_all(pair.west, topic) == read_all(pair.east, topic)
    again = mirrored.failover
    again.drive(begin(again))
    assert not denied(pair.west, topic)
    assert denied(pair.east, topic)
    sent += produce(pair.west, topic, 7, partition=1)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.drive(run.id)
    go_home(failback, run.id)
    assert not denied(pair.east, topic)
    assert content(read_all(pair.east, topic)) == sorted(sent)
    mirrored.copy()
    assert read_all(pair.west, topic) == read_all(pair.east, topic)


def test_a_compacted_topic_goes_there_and_back(pair: Pair, tmp_path: Path) -> None:
    def changelog(cluster: SandboxCluster, version: int) -> None:
        rows = [Row(key=b"k%d" % (number % 10), value=b"%d" % version) for number in range(50)]
        send(new_producer(cluster), topic, rows)

    def settings(cluster: str) -> dict[str, str]:
        with ClusterClient(mirrored.config.cluster(ClusterName(cluster))) as client:
            return dict(describe_configs(client, [topic])[topic].overrides)

    topic = app_topic(pair, cleanup_policy="compact")
    changelog(pair.east, 1)
    mirrored = failed_over(pair, tmp_path, topic)
    assert settings("west") == {"cleanup.policy": "compact"}
    changelog(pair.west, 2)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.drive(run.id)
    assert settings("east")["cleanup.policy"] == "compact,delete", "it was cleaned before it became a mirror topic"
    go_home(failback, run.id)
    assert settings("east") == {"cleanup.policy": "compact"}
    assert settings("west")["cleanup.policy"] in ("delete", "compact,delete"), "a mirror topic again"
    changelog(pair.east, 3)
    mirrored.copy()
    assert_parity(mirrored)
    assert len(read_all(pair.west, topic)) == 150


def test_a_divergent_tail_is_salvaged_and_the_topic_copied_anew(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair, 2, retention_ms="86400000", segment_bytes="2000000")
    produce(pair.east, topic, 30)
    mirrored = failed_over(pair, tmp_path, topic)
    # A super user passes every fence: the tail that only the old source has.
    tail = produce(pair.east, topic, 5, compression_type="lz4") + produce(pair.east, topic, 2, partition=1)
    produce(pair.west, topic, 9)
    primary = read_all(pair.west, topic)
    failback = failback_of(mirrored)
    nothing = Allowed(Strategy.NONE)
    with pytest.raises(Refused, match=f"or other ones below it, in {topic}"):
        failback.begin(failback.plan(nothing).hash, nothing)
    plan = failback.plan()
    assert plan.strategies == {topic: "recreate"}
    assert plan.figures["offsets to discard"] == "7"
    assert plan.partitions[f"{Partition(topic, 0)}"] == "5 offset(s) discarded, [30, 35)"

    run = failback.begin(plan.hash)
    failback.drive(run.id)

    folder = tmp_path / f"run-{run.id}" / "salvage"
    rows = [row for path in folder.rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    saved = sorted((r["partition"], r["offset"], r["timestamp_ms"], r["key"], r["value"]) for r in rows)
    assert saved == sorted((r.partition, r.offset, r.timestamp_ms, r.key, r.value) for r in tail)
    assert (folder / MANIFEST).exists()
    go_home(failback, run.id)
    assert read_all(pair.east, topic) == primary
    with ClusterClient(mirrored.config.cluster("east")) as client:
        assert describe_configs(client, [topic])[topic].overrides == {
            "retention.ms": "86400000",
            "segment.bytes": "2000000",
        }
    assert not denied(pair.east, topic)
    mirrored.copy()
    assert read_all(pair.west, topic) == read_all(pair.east, topic)


def saved_rows(folder: Path) -> list[dict[str, Any]]:
    """All records of a salvage, in order."""
    rows = [row for path in folder.rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def test_what_is_written_after_the_salvage_is_salvaged_too_before_anything_is_deleted(
    pair: Pair, tmp_path: Path
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 10)
    mirrored = failed_over(pair, tmp_path, topic)
    tail = produce(pair.east, topic, 3)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.step(run.id, "salvage")
    late = produce(pair.east, topic, 2)
    primary = read_all(pair.west, topic)

    failback.drive(run.id)

    folder = tmp_path / f"run-{run.id}"
    assert [row["value"] for row in saved_rows(folder / "salvage")] == [r.value for r in tail]
    assert [row["value"] for row in saved_rows(folder / "salvage-2")] == [r.value for r in late]
    aligned = next(s for s in failback.status(run.id)[1] if s.step == "align")
    assert aligned.evidence["saved_again"] == 2
    go_home(failback, run.id)
    assert content(read_all(pair.east, topic)) == content(primary)


def test_what_comes_between_the_last_look_and_the_deletion_is_not_deleted(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 10)
    mirrored = failed_over(pair, tmp_path, topic)
    produce(pair.east, topic, 3)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.step(run.id, "salvage")
    last_look = FailbackSteps._save_growth

    def overtaken(steps: FailbackSteps, old: ClusterClient, noted: tuple[OldTopic, ...]) -> dict[str, str | int]:
        found = last_look(steps, old, noted)
        produce(pair.east, topic, 1)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(FailbackSteps, "_save_growth", overtaken)
        with pytest.raises(Refused, match="has grown since its tail was salvaged"):
            failback.step(run.id, "align")
    assert len(read_all(pair.east, topic)) == 14
    with pytest.raises(Refused, match="step align has begun"):
        failback.abort(run.id)
    failback.drive(run.id)
    assert len(saved_rows(tmp_path / f"run-{run.id}" / "salvage-2")) == 1
    go_home(failback, run.id)


def test_a_topic_of_which_nothing_was_to_go_and_that_grew_makes_another_plan(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 10)
    mirrored = failed_over(pair, tmp_path, topic)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    produce(pair.east, topic, 1)
    with pytest.raises(Refused, match=r"is not what was approved: that was none, it is 1: .*\[10, 11\)"):
        failback.step(run.id, "salvage")
    failback.abort(run.id)
    run = failback.begin(failback.plan().hash)
    failback.step(run.id, "salvage")
    failback.abort(run.id)

    other = app_topic(pair)
    produce(pair.east, other, 10)
    mirrored = failed_over(pair, tmp_path, other)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.step(run.id, "salvage")
    produce(pair.east, other, 1)
    with pytest.raises(Refused, match=f"nothing was to be discarded: {other}-0 from 10 to 11"):
        failback.step(run.id, "align")
    assert failback.abort(run.id).state is RunState.ABORTED, "nothing was changed, and yet there was no way back"


def test_an_old_source_whose_fence_is_gone_is_fenced_before_its_tail_is_saved(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 5)
    mirrored = failed_over(pair, tmp_path, topic)
    with ClusterClient(mirrored.config.cluster("east")) as client:
        delete_acls(client, [denial(topic)])
        absent_on_every_broker(client, {denial(topic)})
    assert not denied(pair.east, topic)
    failback = failback_of(mirrored)
    plan = failback.plan()
    assert any("not under this mirror's fence" in warning for warning in plan.warnings)
    run = failback.begin(plan.hash)
    failback.step(run.id, "salvage")
    assert denied(pair.east, topic), "what an application writes now would be neither salvaged nor mirrored"


def test_other_content_below_the_last_mirrored_offset_is_found_and_salvaged(pair: Pair, tmp_path: Path) -> None:
    """As after an unclean election on the old source: as long as it was, with other records in its newest part."""
    topic = app_topic(pair, retention_ms="-1")
    produce(pair.east, topic, 40)
    mirrored = failed_over(pair, tmp_path, topic)
    primary = read_all(pair.west, topic)
    with ClusterClient(mirrored.config.cluster("east")) as client:
        old_id = client.metadata([topic]).topics[topic].id
        delete_topic(client, topic, old_id)
        create_topics(
            client, [NewTopic(name=topic, partitions=1, replication_factor=1, configs={"retention.ms": "-1"})]
        )
        new_id = client.metadata([topic]).topics[topic].id
    again = [Row(key=r.key, value=r.value, timestamp_ms=r.timestamp_ms, headers=list(r.headers)) for r in primary[:30]]
    send(new_producer(pair.east), topic, again)
    others = [Row(key=b"k%d" % n, value=b"other") for n in range(10)]
    send(new_producer(pair.east), topic, others)
    with StateWriter(mirrored.config.cluster("west"), control_id(mirrored.name)) as writer:
        status = writer.state.partitions[mirrored.name][Partition(topic, 0)]
        writer.put(PartitionRecord(mirrored.name, replace(status, source_topic_id=new_id)))
    failback = failback_of(mirrored)
    plan = failback.plan()
    assert (plan.strategies, plan.discarded) == ({topic: "none"}, 0)
    run = failback.begin(plan.hash)
    with pytest.raises(Refused, match=f"below the last mirrored offset it differs in {topic}-0 from offset 30"):
        failback.step(run.id, "salvage")
    with pytest.raises(Refused, match="is not what was approved"):
        failback.step(run.id, "salvage")
    failback.abort(run.id)

    plan = failback.plan()
    assert (plan.strategies, plan.discarded) == ({topic: "recreate"}, 10)
    assert plan.partitions[f"{Partition(topic, 0)}"] == "10 offset(s) discarded, [30, 40)"
    run = failback.begin(plan.hash)
    failback.drive(run.id)
    rows = saved_rows(tmp_path / f"run-{run.id}" / "salvage")
    assert [(row["offset"], row["value"]) for row in rows] == [(30 + n, b"other") for n in range(10)]
    go_home(failback, run.id)
    assert content(read_all(pair.east, topic)) == content(primary)
    assert mirrored.statuses[Partition(topic, 0)].differs_at is None


def test_each_record_of_a_tail_is_held_against_what_the_new_primary_has(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair, retention_ms="-1")
    produce(pair.east, topic, 5)
    mirrored = failed_over(pair, tmp_path, topic)
    send(
        new_producer(pair.east),
        topic,
        [
            Row(key=b"lost", value=b"1"),
            Row(key=b"same", value=b"2"),
            Row(key=b"other", value=b"3"),
            Row(key=None, value=b"4"),
            Row(key=b"gone", value=None),
        ],
    )
    rows = [Row(key=b"other", value=b"30"), Row(key=b"same", value=b"2"), Row(key=b"same", value=b"20")]
    send(new_producer(pair.west), topic, [*rows, Row(key=b"gone", value=None), Row(key=None, value=b"4")])
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    found = failback.step(run.id, "salvage").evidence
    assert {name: found[name] for name in ("missing", "there_too", "conflicting", "without_a_key")} == {
        "missing": 1,
        "there_too": 2,
        "conflicting": 1,
        "without_a_key": 1,
    }
    folder = tmp_path / f"run-{run.id}" / "salvage"
    fates = [(row["key"], row["fate"]) for row in saved_rows(folder)]
    assert fates == [
        (b"lost", "missing"),
        (b"same", "there too"),
        (b"other", "conflicting"),
        (None, "without a key"),
        (b"gone", "there too"),
    ]
    page = (folder / "_report.html").read_text()
    assert f'<td class="break">{topic}-0</td>' in page
    assert pq.read_table(folder).num_rows == 5, "the page disturbs readers of the folder"


def test_a_way_home_is_known_by_its_run_and_not_by_clocks(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host that brings applications home is an hour behind the one that began; then one is an hour ahead."""
    topic = app_topic(pair)
    sent = produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    for hours in (-1, 1):
        mirrored.copy()
        failover = mirrored.failover
        failover.drive(begin(failover))
        sent += produce(pair.west, topic, 5)
        failback = failback_of(mirrored)
        run = failback.begin(failback.plan().hash)
        failback.drive(run.id)
        assert not failback.is_home(run), "an earlier way home is taken for this one"
        with monkeypatch.context() as patched:
            patched.setattr(conductor, "now_ms", lambda hours=hours: now_ms() + hours * 3_600_000)
            home = failback.home()
            home.drive(home.begin(home.plan(Mode.PLANNED).hash).id)
        assert failback.drive(run.id).state is RunState.DONE
    assert content(read_all(pair.east, topic)) == sorted(sent)


def test_a_grant_to_everybody_is_found_before_anything_is_changed(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 5)
    mirrored = failed_over(pair, tmp_path, topic)
    failback = failback_of(mirrored)
    for cluster in (pair.east, pair.west):
        grant(cluster, "*", ResourceType.TOPIC, topic, [AclOperation.WRITE])
        with pytest.raises(Refused) as refused:
            failback.begin(failback.plan().hash)
        assert f"cluster {cluster.name}: everybody may change mirror topics" in str(refused.value)
        assert f"--remove --allow-principal 'User:*' --operation Write --topic '{topic}'" in str(refused.value)
        with ClusterClient(mirrored.config.cluster(cluster.name)) as client:
            everybody = replace(denial(topic), permission=Permission.ALLOW)
            delete_acls(client, [everybody])
            absent_on_every_broker(client, {everybody})
    assert failback.decide().reasons == ()


def test_a_failback_can_be_given_up_before_anything_is_changed(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 4)
    mirrored = failed_over(pair, tmp_path, topic)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.step(run.id, "salvage")
    assert failback.abort(run.id).state is RunState.ABORTED
    assert not denied(pair.west, topic)
    assert failback.decide().reasons == ()


def test_a_mirror_that_is_not_failed_over_cannot_come_home(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    failback = failback_of(mirrored)
    with pytest.raises(Refused, match="not failed over"):
        failback.begin(failback.plan().hash)
