"""Home again on real clusters: nothing to take back, a tail to take back, and twice around."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.decide.truncation import AllowedStrategies
from mirror_core.kafka.acl_requests import create_acls, delete_acls, wait_until_acls_absent, wait_until_acls_present
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.topics import delete_topic, describe_configs
from mirror_core.mirrors import mirror_commands
from mirror_core.model.acl import Acl, Operation, Permission, Resource
from mirror_core.model.errors import HeldByRun, Refused, SettingRefused
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState, FailureKind, PartitionState
from mirror_core.model.names import ClusterName, Partition, format_reverse_name
from mirror_core.model.run import FailbackStrategy, RunKind, RunMode, RunState
from mirror_core.model.timing import now_ms
from mirror_core.parity.salvage import MANIFEST
from mirror_core.rights.acl_rules import build_denial
from mirror_core.rights.required_acls import CLUSTER_NAME
from mirror_core.runbook.failback_steps import load_reverse_link, require_source_times
from mirror_core.runbook.run_outcome import read_run_outcome
from mirror_core.state import writer
from mirror_core.state.state_topic import read_state
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.drill.dying import DeathAt
from tests.support.broker_faults import killed
from tests.support.cli_process import mirrorbook
from tests.support.cluster_admin import as_admin
from tests.support.failback_runs import content, failback_of, failed_over, go_home
from tests.support.failover_runs import app_topic, begin, denied
from tests.support.kafka_clients import Pair, grant, produce, read_all, read_all_aiokafka
from tests.support.killed_conductors import ENDS_S, conducted
from tests.support.log_shapes import Row, new_producer, send
from tests.support.mirrored_topics import Mirrored, new_mirror, replicate
from tests.support.saved_tails import saved_rows
from tests.support.topic_equality import assert_parity, assert_same

pytestmark = pytest.mark.cluster


def assert_known_since_the_way_home(mirrored: Mirrored, since_s: float) -> None:
    """Of a mirror that nobody has copied since: nor has anybody seen whether the source has further topics now."""
    listed = mirrorbook("mirror", "list", "--json", "--config", str(mirrored.config.path)).stdout
    (row,) = [row for row in json.loads(listed)["mirrors"] if row["name"] == mirrored.name]
    assert row["unproved"] == 0
    assert row["behind_s"] is None
    assert 0 < row["oldest_proof_s"] < time.monotonic() - since_s + 2


def test_twice_around_without_a_tail(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair, 2, retention_ms="86400000")
    sent = produce(pair.east, topic, 100) + produce(pair.east, topic, 40, partition=1)
    mirrored = failed_over(pair, tmp_path, topic)
    sent += produce(pair.west, topic, 60)
    assert mirrored.state.verifications[mirrored.name].topics
    failback = failback_of(mirrored)
    plan = failback.plan()
    assert plan.strategies == {topic: "none"}
    assert plan.figures[FigureKey.DISCARDED_OFFSETS] == 0
    assert plan.figures[FigureKey.OFFSETS_TO_COPY] == 60

    run = failback.begin(plan.hash)
    assert failback.drive(run.id).state is RunState.RUNNING
    with pytest.raises(Refused, match="is not failed over yet"):
        failback.run_step(run.id, "reprotect")
    assert not denied(pair.west, topic), "applications must be able to write while the old source catches up"
    since_s = time.monotonic()
    assert denied(pair.east, topic), "two primaries"
    go_home(failback, run.id)

    assert not denied(pair.east, topic)
    assert denied(pair.west, topic)
    assert content(read_all(pair.east, topic)) == sorted(sent)
    assert content(read_all_aiokafka(pair.east, topic)) == sorted(sent)
    assert {s.state for s in mirrored.statuses.values()} == {PartitionState.MIRRORING}
    assert mirrored.state.mirrors[mirrored.name].desired is DesiredState.STARTED
    assert_known_since_the_way_home(mirrored, since_s)
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
    east, back = mirrored.config.cluster("east"), format_reverse_name(mirrored.name)
    assert back in read_state(east).verifications, "of the first way home"
    run = failback.begin(failback.plan().hash)
    failback.drive(run.id)
    assert back not in read_state(east).verifications, (
        "the new primary's logs are others than those that were compared then"
    )
    go_home(failback, run.id)
    assert not denied(pair.east, topic)
    assert content(read_all(pair.east, topic)) == sorted(sent)
    mirrored.copy()
    assert read_all(pair.west, topic) == read_all(pair.east, topic)


@pytest.mark.slow
def test_a_late_write_on_the_new_primary_is_kept_to_be_saved_and_protects_the_rest_again(
    pair: Pair, tmp_path: Path
) -> None:
    """By a super user, whom no fence stops; or where there is no authorizer, by one producer that was forgotten."""
    topic = app_topic(pair, 2)
    produce(pair.east, topic, 5)
    mirrored = failed_over(pair, tmp_path, topic)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.drive(run.id)
    home = failback.make_reverse_failover()
    home.drive(home.begin(home.plan(RunMode.PLANNED).hash).id)
    late = produce(pair.west, topic, 2)
    assert failback.drive(run.id).state is RunState.DONE
    assert denied(pair.west, topic)
    written, other = mirrored.statuses[Partition(topic, 0)], mirrored.statuses[Partition(topic, 1)]
    assert (written.state, written.kind, written.failed_at) == (PartitionState.FAILED, FailureKind.DIVERGED, 5)
    assert "its log goes from 5 to 7" in (written.reason or "")
    assert other.state is PartitionState.MIRRORING
    produce(pair.east, topic, 3)
    produce(pair.east, topic, 3, partition=1)
    assert [*replicate(mirrored.link).failed] == [Partition(topic, 0)]
    there = read_all(pair.west, topic)
    assert [r for r in there if r.partition == 0][-2:] == late, "what is to be saved is gone"
    assert len([r for r in there if r.partition == 1]) == 3


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


def test_nothing_is_copied_home_before_its_topics_have_a_mirror_topics_settings(pair: Pair, tmp_path: Path) -> None:
    """A data plane takes the reverse mirror up at once, and the conductor is killed in the step that makes it."""
    topic = app_topic(pair, message_timestamp_type="LogAppendTime")
    produce(pair.east, topic, 5)
    mirrored = failed_over(pair, tmp_path, topic)
    produce(pair.west, topic, 5)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    before_settings = DeathAt("mirror_core.runbook.failback_steps", "sync_mirror", before=True)
    conductor = conducted(mirrored, "settings before records")
    with conductor.command("failback", "resume", death=before_settings) as process:
        assert process.wait(ENDS_S) == -signal.SIGKILL, conductor.log.read_text(encoding="utf-8")
    reverse = load_reverse_link(mirrored.link)
    with pytest.raises(HeldByRun, match=f"failback {run.id} has not made all of mirror {reverse.mirror.name}"):
        replicate(reverse)
    east = mirrored.config.cluster("east")
    with ClusterClient(east) as client, pytest.raises(SettingRefused, match=f"on {topic}: let .* set it"):
        require_source_times(client, [topic])

    failback.drive(run.id)
    assert not replicate(reverse).failed
    assert read_all(pair.east, topic) == read_all(pair.west, topic), "times, too"
    go_home(failback, run.id)
    with ClusterClient(east) as client:
        assert describe_configs(client, [topic])[topic].overrides == {"message.timestamp.type": "LogAppendTime"}


def test_a_divergent_tail_is_salvaged_and_the_topic_copied_anew(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair, 2, retention_ms="86400000", segment_bytes="2000000")
    produce(pair.east, topic, 30)
    mirrored = failed_over(pair, tmp_path, topic)
    # A super user passes every fence: the tail that only the old source has.
    tail = produce(pair.east, topic, 5, compression_type="lz4") + produce(pair.east, topic, 2, partition=1)
    produce(pair.west, topic, 9)
    primary = read_all(pair.west, topic)
    failback = failback_of(mirrored)
    nothing = AllowedStrategies(FailbackStrategy.NONE)
    with pytest.raises(Refused, match=f"or other ones below it, in {topic}"):
        failback.begin(failback.plan(nothing).hash, nothing)
    plan = failback.plan()
    assert plan.strategies == {topic: "recreate"}
    assert plan.figures[FigureKey.DISCARDED_OFFSETS] == 7
    assert list(plan.partitions[f"{Partition(topic, 0)}"].values()) == [5, 30, 35]

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


@pytest.mark.slow
def test_a_failed_partition_is_discarded_from_where_it_differs_and_comes_home(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair, 2)
    copied = produce(pair.east, topic, 10) + produce(pair.east, topic, 10, partition=1)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    foreign = produce(pair.west, topic, 6)
    only_old = produce(pair.east, topic, 5)
    assert [*replicate(mirrored.link).failed] == [Partition(topic, 0)]
    mirrored.failover.drive(begin(mirrored.failover))
    failback = failback_of(mirrored)
    plan = failback.plan()
    assert (plan.discarded, plan.strategies) == (5, {topic: "recreate"})
    run = failback.begin(plan.hash)
    failback.drive(run.id)
    rows = saved_rows(tmp_path / f"run-{run.id}" / "salvage")
    assert [(row["offset"], row["value"]) for row in rows] == [(record.offset, record.value) for record in only_old]
    go_home(failback, run.id)
    assert content(read_all(pair.east, topic)) == content(sorted(copied + foreign))


@pytest.mark.slow
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
        assert not failback.is_reverse_failover_done(run), "an earlier way home is taken for this one"
        with monkeypatch.context() as patched:
            patched.setattr(writer, "read_broker_time_ms", lambda cluster, hours=hours: now_ms() + hours * 3_600_000)
            home = failback.make_reverse_failover()
            home.drive(home.begin(home.plan(RunMode.PLANNED).hash).id)
        assert failback.drive(run.id).state is RunState.DONE
    assert content(read_all(pair.east, topic)) == sorted(sent)


@pytest.mark.slow
def test_a_topic_that_has_gone_since_the_last_homecoming_is_brought_home_as_a_whole(pair: Pair, tmp_path: Path) -> None:
    kept, gone = app_topic(pair), app_topic(pair)
    sent = produce(pair.east, gone, 20)
    produce(pair.east, kept, 20)
    mirrored = new_mirror(pair, tmp_path, kept, gone)
    for turn in range(2):
        mirrored.copy()
        failover = mirrored.failover
        failover.drive(begin(failover))
        if turn:
            with as_admin(pair.east) as client:
                delete_topic(client, gone, client.metadata([gone]).topics[gone].id)
        sent += produce(pair.west, gone, 5)
        failback = failback_of(mirrored)
        run = failback.begin(failback.plan().hash)
        failback.drive(run.id)
        go_home(failback, run.id)
    assert content(read_all(pair.east, gone)) == sorted(sent)
    mirrored.copy()
    assert_parity(mirrored)


def test_a_grant_to_everybody_is_found_before_anything_is_changed(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 5)
    mirrored = failed_over(pair, tmp_path, topic)
    failback = failback_of(mirrored)
    for cluster in (pair.east, pair.west):
        grant(cluster, "*", ResourceType.TOPIC, topic, [AclOperation.WRITE])
        with pytest.raises(Refused) as refused:
            failback.begin(failback.plan().hash)
        assert f"cluster {cluster.name} allows everybody to write: " in str(refused.value)
        assert f"--remove --allow-principal 'User:*' --operation Write --topic {topic}" in str(refused.value)
        with ClusterClient(mirrored.config.cluster(cluster.name)) as client:
            everybody = replace(build_denial(topic), permission=Permission.ALLOW)
            delete_acls(client, [everybody])
            wait_until_acls_absent(client, {everybody})
    assert failback.decide().reasons == ()


def test_a_failback_can_be_given_up_before_anything_is_changed(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 4)
    mirrored = failed_over(pair, tmp_path, topic)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.run_step(run.id, "salvage")
    assert failback.abort(run.id).state is RunState.ABORTED
    assert not denied(pair.west, topic)
    assert denied(pair.east, topic), "the failover's fence"
    assert failback.decide().reasons == ()


def test_a_plan_warns_of_a_transaction_that_is_open_on_the_new_primary(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 4)
    failback = failback_of(failed_over(pair, tmp_path, topic))
    producer = Producer(
        {**pair.west.client_config("admin"), "transactional.id": topic, "transaction.timeout.ms": 50_000}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    began_ms = now_ms()
    producer.produce(topic, b"open")
    assert producer.flush(30) == 0

    def list_open() -> list[Finding]:
        return [w for w in failback.plan().warnings if w.code == "failback_transaction_open"]

    [warning] = list_open()
    assert warning.subject == topic
    assert warning.values["partitions"] == (f"{topic}-0",)
    assert (warning.values["cluster"], warning.values["timeout_s"]) == ("west", 50.0)
    started_ms = warning.values["started_ms"]
    assert isinstance(started_ms, int)
    assert began_ms - 2_000 < started_ms <= now_ms()
    producer.commit_transaction(30)
    assert list_open() == []


def test_a_mirror_that_was_only_stopped_cannot_come_home_and_the_live_primary_is_left_alone(
    pair: Pair, tmp_path: Path
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 4)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    mirror_commands.stop_mirror(mirrored.link)
    produce(pair.east, topic, 4)

    failback = failback_of(mirrored)
    with pytest.raises(Refused, match="no failover has ended this mirror, it was stopped"):
        failback.begin(failback.plan().hash)

    assert not denied(pair.east, topic)
    produce(pair.east, topic, 4)
    mirror_commands.start_mirror(mirrored.link)
    mirrored.copy()
    assert_same(pair, [topic])


def test_a_mirror_that_is_not_failed_over_cannot_come_home(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    failback = failback_of(mirrored)
    with pytest.raises(Refused, match="not failed over"):
        failback.begin(failback.plan().hash)


def test_a_plan_names_the_rights_that_its_strategy_lacks_and_a_run_asks_again_before_it_changes_anything(
    pair: Pair, tmp_path: Path
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 5)
    mirrored = failed_over(pair, tmp_path, topic)
    produce(pair.east, topic, 3)
    offline = AllowedStrategies(FailbackStrategy.OFFLINE)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan(offline).hash, offline)
    failback.run_step(run.id, "salvage")
    user = "User:mirror-control"
    rights = [
        Acl(resource=Resource.CLUSTER, name=CLUSTER_NAME, principal=user, operation=operation)
        for operation in (Operation.ALTER, Operation.ALTER_CONFIGS)
    ]
    with as_admin(pair.east) as client:
        delete_acls(client, rights)
        wait_until_acls_absent(client, rights)
    try:
        with pytest.raises(Refused, match="strategy offline needs ALTER on the cluster"):
            failback.run_step(run.id, "align")
        failback.abort(run.id)
        with pytest.raises(Refused, match="strategy replica needs ALTER and ALTER_CONFIGS on the cluster"):
            failback.begin(
                failback.plan(AllowedStrategies(FailbackStrategy.REPLICA)).hash,
                AllowedStrategies(FailbackStrategy.REPLICA),
            )
    finally:
        with as_admin(pair.east) as client:
            create_acls(client, rights)
            wait_until_acls_present(client, rights)


def test_a_promoted_destination_that_dies_in_a_failback_is_not_said_to_be_behind_a_fence(
    pair: Pair, tmp_path: Path
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 5)
    mirrored = failed_over(pair, tmp_path, topic)
    [failover] = [run for run in mirrored.state.runs.values() if run.plan.mirror == mirrored.name]
    failback, link = failback_of(mirrored), mirrored.link
    run = failback.begin(failback.plan().hash)
    with killed(pair.west):
        first, *others = read_run_outcome(link, run)
    assert first == f"{Finding('run_state_unread', 'west', mirror=mirrored.name, run_kind=RunKind.FAILBACK)}."
    assert any(failover.id in line for line in others), "east knows where applications were told to write"
    assert f"{Finding('fence_state_unread', 'east', destination='west')}." not in others
