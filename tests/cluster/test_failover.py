"""Planned failover between real clusters, and what refuses or undoes it."""

from __future__ import annotations

import html
import json
import secrets
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from mirror_core.decide.audit_log_check import BOTH_EMPTY_VERDICT
from mirror_core.decide.steps import StepNeed, list_step_names, list_steps_needing
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.topics import alter_configs, delete_records, describe_configs
from mirror_core.model.errors import MirrorError, PartitionFailed, Refused
from mirror_core.model.forecast import PlanForecast
from mirror_core.model.mirror import DesiredState, PartitionState
from mirror_core.model.names import Offset, Partition, get_heartbeat_topic
from mirror_core.model.run import RunKind, RunMode, RunState, StepState
from mirror_core.runbook.parity_gate import GateClosed
from mirror_core.runbook.run_outcome import read_run_outcome
from tests.support.checked_threads import beside
from tests.support.cli_process import mirrorbook
from tests.support.cluster_admin import as_admin
from tests.support.data_plane_thread import beating, driving
from tests.support.failover_runs import acls, app_topic, begin, commit, committed, denied
from tests.support.kafka_clients import Pair, produce, read_all, read_all_aiokafka
from tests.support.mirrored_topics import new_mirror, replicate
from tests.support.topic_equality import assert_same_offsets
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

STEPS = list_step_names(RunKind.FAILOVER)


def test_what_the_source_deleted_at_the_last_moment_does_not_rise_from_the_dead(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair, 2)
    kept = produce(pair.east, topic, 20)[12:] + produce(pair.east, topic, 5, partition=1)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()  # the data plane looks at log starts, and no more
    with as_admin(pair.east) as east:
        delete_records(east, {Partition(topic, 0): Offset(12)})
    mirrored.failover.drive(begin(mirrored.failover))
    assert read_all(pair.west, topic) == sorted(kept)
    assert_same_offsets(pair, [topic])


def test_a_planned_failover_moves_records_groups_and_rights(pair: Pair, tmp_path: Path) -> None:
    topic, group = app_topic(pair, 2, retention_ms="86400000"), "g-" + secrets.token_hex(4)
    sent = produce(pair.east, topic, 500) + produce(pair.east, topic, 300, partition=1, compression_type="zstd")
    commit(pair.east, group, topic, 120)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    sent += produce(pair.east, topic, 50)  # not copied yet when the run begins: the drain's work
    assert denied(pair.west, topic), "an application can write to a mirror topic"
    failover = mirrored.failover
    run = failover.begin(failover.plan(RunMode.PLANNED).hash)
    for name in STEPS[: STEPS.index("promote")]:
        failover.run_step(run.id, name)
    commit(pair.east, group, topic, 150)  # it still reads there, behind the final sync
    assert denied(pair.east, topic), "the fence does not hold"
    assert denied(pair.west, topic), "promoted too early"

    done = mirrored.failover.drive(run.id)

    assert done.state is RunState.DONE
    assert not denied(pair.west, topic)
    assert denied(pair.east, topic)
    assert denied(pair.west, topic, "mirror-data"), "a task of the past could write a promoted topic"
    expected = sorted(sent)
    assert [r for r in read_all(pair.west, topic) if r.value != b"x"] == expected
    assert [r for r in read_all_aiokafka(pair.west, topic) if r.value != b"x"] == expected
    assert committed(pair.west, group, topic) == 120
    assert {p: s.lmo for p, s in mirrored.statuses.items()} == {Partition(topic, 0): 550, Partition(topic, 1): 300}
    assert {s.state for s in mirrored.statuses.values()} == {PartitionState.STOPPED}
    assert mirrored.state.mirrors[mirrored.name].desired is DesiredState.STOPPED
    assert mirrored.state.leases[mirrored.name].released
    with ClusterClient(mirrored.config.cluster("west")) as client:
        assert describe_configs(client, [topic])[topic].overrides == {"retention.ms": "86400000"}
    _, steps = failover.read_status(run.id)
    assert [(s.step, s.state, s.attempt) for s in steps] == [(name, StepState.DONE, 1) for name in STEPS]
    evidence = json.loads((tmp_path / f"run-{run.id}" / "run.json").read_text())
    assert [p["lmo"] for p in evidence["partitions"]] == [550, 300]
    assert evidence["clocks"]["write_block_upper"] > 0
    forecast = {(row["key"], row["item"]): row for row in evidence["forecast"]}
    assert [forecast["lost_offsets", ""][key] for key in ("at_least", "at_most", "counted", "error")] == [0, 0, 0, 0]
    assert [forecast["read_again_offsets", group][key] for key in ("at_most", "counted", "error")] == [0, 30, 30]
    assert forecast["without_writes_s", ""]["counted"] == evidence["clocks"]["write_block_upper"]
    assert stat.S_IMODE((tmp_path / f"run-{run.id}").stat().st_mode) == 0o700, "others may read it"
    page = (tmp_path / f"run-{run.id}" / "report.html").read_text()
    assert run.plan_hash in page
    assert "http" not in page, "the report reaches out of itself"


@pytest.mark.parametrize("last", ["begin", "fence", "record_lmo"])
def test_an_abort_before_promotion_restores_everything(pair: Pair, tmp_path: Path, last: str) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    before = acls(mirrored, "east"), acls(mirrored, "west")
    failover = mirrored.failover
    run = begin(failover)
    for name in STEPS[: STEPS.index(last) + 1] if last in STEPS else ():
        failover.run_step(run, name)

    assert failover.abort(run).state is RunState.ABORTED

    assert failover.abort(run).state is RunState.ABORTED
    assert acls(mirrored, "east") == before[0]
    # The final sync may have copied READ rights, which a mirror keeps; it must not have opened anything.
    assert not any(a.operation == "WRITE" for a in acls(mirrored, "west") - before[1])
    assert not denied(pair.east, topic)
    assert denied(pair.west, topic)
    assert {s.state for s in mirrored.statuses.values()} == {PartitionState.MIRRORING}
    assert mirrored.state.mirrors[mirrored.name].desired is DesiredState.STARTED
    with pytest.raises(Refused, match="the run is ABORTED"):
        failover.run_step(run, "canary" if last == "begin" else "promote")
    produce(pair.east, topic, 5)
    mirrored.copy()
    assert read_all(pair.west, topic) == read_all(pair.east, topic)


def test_after_promotion_an_abort_is_refused(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 3)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    failover = mirrored.failover
    run = begin(failover)
    failover.drive(run)
    with pytest.raises(Refused, match="only a failback leads back"):
        failover.abort(run)


def test_a_plan_that_no_longer_holds_is_refused_with_the_new_hash(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 3)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    failover = mirrored.failover
    with pytest.raises(Refused, match=f"the current one is {failover.plan(RunMode.PLANNED).hash[:12]}"):
        failover.begin("0123456789ab")
    assert mirrored.state.active_run(mirrored.name) is None
    begin(failover)
    with pytest.raises(Refused, match="holds mirror"):
        begin(failover)


def test_a_topic_that_appears_during_the_run_stops_the_promotion(pair: Pair, tmp_path: Path) -> None:
    prefix = "t-" + secrets.token_hex(4)
    topic = app_topic(pair, prefix=prefix)
    produce(pair.east, topic, 3)
    mirrored = new_mirror(pair, tmp_path, prefix + ".*")
    mirrored.copy()
    failover = mirrored.failover
    run = begin(failover)
    late = app_topic(pair, prefix=prefix)
    with pytest.raises(Refused, match=f"topic {late}: approved was absent"):
        failover.drive(run)
    assert denied(pair.west, topic)
    failover.abort(run)
    assert not denied(pair.east, topic)


@pytest.mark.parametrize(
    ("behind", "closed", "error", "said"),
    [
        ("fence", "drain", PartitionFailed, "offset 10 was not written by this mirror"),
        ("drain", "parity", GateClosed, "value"),
    ],
)
def test_a_foreign_record_on_the_destination_is_never_promoted(
    pair: Pair, tmp_path: Path, behind: str, closed: str, error: type[MirrorError], said: str
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    failover = mirrored.failover
    run = begin(failover)
    for name in STEPS[: STEPS.index(behind) + 1]:
        failover.run_step(run, name)
    produce(pair.west, topic, 1)  # a super user, whom no missing right keeps out
    produce(pair.east, topic, 1)  # the same length on both sides: only the content tells

    with pytest.raises(error, match=f"{topic}.*{said}"):
        failover.drive(run)

    last = failover.read_status(run)[1][-1]
    assert (last.step, last.state) == (closed, StepState.FAILED)
    assert denied(pair.west, topic), "promoted in spite of a difference"
    failover.abort(run)
    if error is GateClosed:
        lost = str(failover.plan(RunMode.UNPLANNED).warnings[0])
        assert f"THE COPY DIFFERS from east in 1 partition: {topic}-0 from offset 10 on (" in lost


def test_a_partition_that_fails_after_the_plan_ends_the_run_by_name(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair, 2)
    produce(pair.east, topic, 5)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    failover = mirrored.failover
    run = begin(failover)
    with as_admin(pair.west) as client:
        alter_configs(client, {topic: {"message.timestamp.type": "LogAppendTime"}})
    produce(pair.east, topic, 3)
    assert [*replicate(mirrored.link).failed] == [Partition(topic, 0)]

    for _ in range(2):
        with pytest.raises(Refused, match=rf"\s{topic}-0 has FAILED .*, kind altered: "):
            failover.drive(run)
    outcome = " ".join(read_run_outcome(mirrored.link, failover.read_status(run)[0]))
    assert f"{topic}-0 has FAILED" in outcome
    assert ", kind altered: " in outcome
    assert f"Next: `mirrorbook failover abort {mirrored.name}`" in outcome
    assert "resume" not in outcome
    described = mirrorbook("mirror", "describe", mirrored.name, "--config", str(mirrored.config.path)).stdout
    assert f"mirrorbook failover abort {mirrored.name}" in described
    assert "failover resume" not in described

    failover.abort(run)
    assert failover.drive(begin(failover)).state is RunState.DONE, "promoted as it is"


def test_logs_that_retention_has_emptied_go_over_with_their_offsets(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 5)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    with as_admin(pair.east) as client:
        delete_records(client, {Partition(topic, 0): Offset(5)})
    mirrored.copy()
    failover = mirrored.failover
    run = failover.drive(failover.begin(failover.plan(RunMode.PLANNED).hash).id)
    _, steps = failover.read_status(run.id)
    gate = next(s for s in steps if s.step == "parity")
    assert (run.state, gate.evidence["parity_verdict"], gate.evidence["records_in_all"]) == (
        RunState.DONE,
        BOTH_EMPTY_VERDICT,
        0,
    )
    produce(pair.west, topic, 1)
    assert [record.offset for record in read_all(pair.west, topic)] == [5]


def test_a_failed_partition_is_promoted_as_it_is_and_the_others_whole(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair, 2)
    sent = produce(pair.east, topic, 10) + produce(pair.east, topic, 10, partition=1)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    foreign = produce(pair.west, topic, 1, partition=1)
    produce(pair.east, topic, 5, partition=1)
    assert [*replicate(mirrored.link).failed] == [Partition(topic, 1)]
    sent += produce(pair.east, topic, 7)  # the drain's work
    failover = mirrored.failover
    plan = failover.plan(RunMode.PLANNED)
    (warning,) = [warning for warning in plan.warnings if warning.code == "partitions_failed"]
    assert (warning.values["count"], warning.values["lost"]) == (1, 5)
    assert f"{topic}-1 at offset 10 " in str(warning.values["failures"])

    assert failover.drive(failover.begin(plan.hash).id).state is RunState.DONE

    assert read_all(pair.west, topic) == sorted(sent + foreign)
    assert not denied(pair.west, topic)
    assert denied(pair.east, topic)
    healthy, failed = mirrored.statuses[Partition(topic, 0)], mirrored.statuses[Partition(topic, 1)]
    assert (healthy.state, healthy.lmo, healthy.reason) == (PartitionState.STOPPED, 17, None)
    assert (failed.state, failed.lmo) == (PartitionState.STOPPED, 11)
    assert failed.reason is not None, "that it had failed is forgotten"
    [page] = mirrored.evidence.rglob("report.html")
    assert f"promoted as they were, and not compared: {topic}-1" in page.read_text()
    assert '"verdict":"moved; not proved equal"' in page.with_name("head.json").read_text()


def test_a_failed_heartbeats_partition_casts_no_doubt_on_what_applications_have(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    sent = produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, topic)
    with driving(mirrored):
        beating(mirrored, 1)
    mirrored.copy()
    heartbeats = get_heartbeat_topic(mirrored.name)
    produce(pair.west, heartbeats, 1)
    produce(pair.east, heartbeats, 5)
    assert [*replicate(mirrored.link).failed] == [Partition(heartbeats, 0)]
    sent += produce(pair.east, topic, 7)
    failover = mirrored.failover
    plan = failover.plan(RunMode.PLANNED)
    assert isinstance(plan.forecast, PlanForecast)
    assert (plan.forecast.lost_offsets, plan.forecast.lost_is_minimum) == (0, False)

    run = failover.drive(failover.begin(plan.hash).id)

    assert read_all(pair.west, topic) == sorted(sent)
    assert run.forecast_outcome is not None
    assert run.forecast_outcome.lost_offsets == 0
    [page] = mirrored.evidence.rglob("report.html")
    assert f"not compared: Mirrorbook's own heartbeats ({heartbeats}-0)" in html.unescape(page.read_text())
    assert '"verdict":"moved, and proved equal"' in page.with_name("head.json").read_text()


@pytest.mark.slow
def test_a_source_that_dies_when_no_step_needs_it_any_more_does_not_hold_the_failover_up(
    pair: Pair, tmp_path: Path
) -> None:
    topic = app_topic(pair)
    sent = produce(pair.east, topic, 30)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    failover = mirrored.failover
    run = begin(failover)
    for name in STEPS[: STEPS.index(list_steps_needing(RunKind.FAILOVER, StepNeed.SOURCE)[-1]) + 1]:
        failover.run_step(run, name)
    pair.east.kill()
    try:
        assert failover.drive(run).state is RunState.DONE
        assert not denied(pair.west, topic)
        assert [r for r in read_all(pair.west, topic) if r.value != b"x"] == sent
    finally:
        pair.east.start()
    assert denied(pair.east, topic), "the old source came back without its fence"


def test_a_failover_under_load_loses_nothing_that_was_acknowledged(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair, 2)
    acked: list[tuple[int, int, bytes]] = []
    refused = threading.Event()

    def delivered(error: KafkaError | None, message: Message) -> None:
        partition, offset, value = message.partition(), message.offset(), message.value()
        if error is not None:
            refused.set()
        elif partition is not None and offset is not None and isinstance(value, bytes):
            acked.append((partition, offset, value))

    def application() -> None:
        producer = Producer({**pair.east.client_config("app"), "enable.idempotence": True, "linger.ms": 5})
        number = 0
        while not refused.is_set():
            try:
                producer.produce(topic, b"%d" % number, partition=number % 2, on_delivery=delivered)
            except KafkaException:  # librdkafka raises the refusal of the topic here, once it knows of it
                break
            number += 1
            producer.poll(0.001)
        producer.flush(60)

    mirrored = new_mirror(pair, tmp_path, topic)
    command = [sys.executable, "-c", "from mirror_core.cli.main import main; main()", "replicate", mirrored.name]
    command += ["--runner", "local", "--config", str(mirrored.config.path), "--receipts", str(tmp_path / "receipts")]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as data_plane,
        beside(application, refused.set, timeout_s=90),
    ):
        try:
            wait_until(
                lambda: mirrored.statuses and len(read_all(pair.west, topic)) > 100, timeout_s=90, why="data flows"
            )
            failover = mirrored.failover
            done = failover.drive(begin(failover))
            assert done.state is RunState.DONE
            # Fenced at the drain: its next heartbeat told it.
            assert data_plane.wait(60) == 5, data_plane.communicate()[0]
        finally:
            data_plane.kill()
    there = read_all(pair.west, topic)
    assert [(r.partition, r.offset, r.value) for r in there] == sorted(acked)
    assert there == read_all(pair.east, topic)
    assert not denied(pair.west, topic)
