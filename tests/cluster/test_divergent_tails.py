"""Tails that only the old source has: found, saved, and taken away, on real clusters."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mirror_core.dataplane.epoch_results import raise_if_failed
from mirror_core.decide.truncation import AllowedStrategies
from mirror_core.kafka.acl_requests import delete_acls, wait_until_acls_absent
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.topics import delete_records
from mirror_core.model.errors import Refused
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import FailbackStrategy, RunMode, RunState, StepEvidence
from mirror_core.rights.acl_rules import build_denial
from mirror_core.runbook.failback_steps import FailbackSteps, load_reverse_link
from mirror_core.runbook.run_outcome import read_run_result
from mirror_core.runbook.step_records import RecreatedTopic
from mirror_core.state.state_topic import read_state
from tests.support.cluster_admin import as_admin
from tests.support.failback_runs import content, failback_of, failed_over, go_home
from tests.support.failover_runs import app_topic, begin, denied
from tests.support.gap_logs import transactional
from tests.support.kafka_clients import Pair, produce, read_all
from tests.support.log_shapes import Row, new_producer, send
from tests.support.mirrored_topics import new_mirror, replicate
from tests.support.saved_tails import saved_rows
from tests.support.topic_equality import assert_parity

pytestmark = pytest.mark.cluster


def test_what_is_written_after_the_salvage_is_salvaged_too_before_anything_is_deleted(
    pair: Pair, tmp_path: Path
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 10)
    mirrored = failed_over(pair, tmp_path, topic)
    tail = produce(pair.east, topic, 3)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.run_step(run.id, "salvage")
    late = produce(pair.east, topic, 2)
    primary = read_all(pair.west, topic)

    failback.drive(run.id)

    folder = tmp_path / f"run-{run.id}"
    assert [row["value"] for row in saved_rows(folder / "salvage")] == [r.value for r in tail]
    assert [row["value"] for row in saved_rows(folder / "salvage-2")] == [r.value for r in late]
    aligned = next(s for s in failback.read_status(run.id)[1] if s.step == "align")
    assert aligned.evidence["records_grown_since"] == 2
    go_home(failback, run.id)
    result = read_run_result(mirrored.link, read_state(mirrored.link.destination), failback.read_status(run.id)[0])
    assert result is not None
    assert (result.saved, result.saved_to) == (5, (str(folder / "salvage"), str(folder / "salvage-2")))
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
    failback.run_step(run.id, "salvage")
    last_look = FailbackSteps._save_growth

    def overtaken(steps: FailbackSteps, old: ClusterClient, noted: tuple[RecreatedTopic, ...]) -> StepEvidence:
        found = last_look(steps, old, noted)
        produce(pair.east, topic, 1)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(FailbackSteps, "_save_growth", overtaken)
        with pytest.raises(Refused, match="has grown since its tail was salvaged"):
            failback.run_step(run.id, "align")
    assert len(read_all(pair.east, topic)) == 14
    with pytest.raises(Refused, match="step align has begun"):
        failback.abort(run.id)
    failback.drive(run.id)
    assert len(saved_rows(tmp_path / f"run-{run.id}" / "salvage-2")) == 1
    go_home(failback, run.id)


@pytest.mark.slow
def test_a_topic_of_which_nothing_was_to_go_and_that_grew_makes_another_plan(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 10)
    mirrored = failed_over(pair, tmp_path, topic)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    produce(pair.east, topic, 1)
    with pytest.raises(Refused, match=r"is not what was approved: that was none, it is 1: .*\[10, 11\)"):
        failback.run_step(run.id, "salvage")
    failback.abort(run.id)
    run = failback.begin(failback.plan().hash)
    failback.run_step(run.id, "salvage")
    failback.abort(run.id)

    other = app_topic(pair)
    produce(pair.east, other, 10)
    mirrored = failed_over(pair, tmp_path, other)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.run_step(run.id, "salvage")
    produce(pair.east, other, 1)
    with pytest.raises(Refused, match=f"nothing was to be discarded: {other}-0 from 10 to 11"):
        failback.run_step(run.id, "align")
    assert failback.abort(run.id).state is RunState.ABORTED, "nothing was changed, and yet there was no way back"


def test_an_old_source_whose_fence_is_gone_is_fenced_before_its_tail_is_saved(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 5)
    mirrored = failed_over(pair, tmp_path, topic)
    with ClusterClient(mirrored.config.cluster("east")) as client:
        delete_acls(client, [build_denial(topic)])
        wait_until_acls_absent(client, {build_denial(topic)})
    assert not denied(pair.east, topic)
    failback = failback_of(mirrored)
    plan = failback.plan()
    assert any("not under this mirror's fence" in warning for warning in map(str, plan.warnings))
    run = failback.begin(plan.hash)
    failback.run_step(run.id, "salvage")
    assert denied(pair.east, topic), "what an application writes now would be neither salvaged nor mirrored"


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
    found = failback.run_step(run.id, "salvage").evidence
    assert {name: found[name] for name in ("missing", "same_value", "conflicting", "no_key")} == {
        "missing": 1,
        "same_value": 2,
        "conflicting": 1,
        "no_key": 1,
    }
    folder = tmp_path / f"run-{run.id}" / "salvage"
    matches = [(row["key"], row["match"]) for row in saved_rows(folder)]
    assert matches == [
        (b"lost", "missing"),
        (b"same", "same value"),
        (b"other", "conflicting"),
        (None, "no key"),
        (b"gone", "same value"),
    ]
    page = (folder / "_report.html").read_text()
    assert f'<td class="break">{topic}-0</td>' in page
    assert pq.read_table(folder).num_rows == 5, "the page disturbs readers of the folder"


def test_a_transactional_tail_is_saved_as_readers_see_it(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair, retention_ms="-1")
    produce(pair.east, topic, 10)
    mirrored = failed_over(pair, tmp_path, topic)
    producer = transactional(pair.east)
    for commit in (True, False, True):
        producer.begin_transaction()
        send(producer, topic, [Row(key=b"t", value=b"committed" if commit else b"aborted")])
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)
    failback = failback_of(mirrored)
    plan = failback.plan()
    assert plan.discarded == 6, "three records and three markers"
    run = failback.begin(plan.hash)
    failback.drive(run.id)
    rows = saved_rows(tmp_path / f"run-{run.id}" / "salvage")
    assert [(row["offset"], row["value"]) for row in rows] == [(10, b"committed"), (14, b"committed")]
    go_home(failback, run.id)
    mirrored.copy()
    assert_parity(mirrored)


@pytest.mark.slow
def test_a_compacted_topic_with_a_tail_comes_home(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair, cleanup_policy="compact")
    versions = [[Row(key=b"k%d" % n, value=b"%d" % version) for n in range(10)] for version in range(4)]
    send(new_producer(pair.east), topic, versions[0] + versions[1])
    mirrored = failed_over(pair, tmp_path, topic)
    send(new_producer(pair.east), topic, versions[2])
    send(new_producer(pair.west), topic, versions[3][:5])
    failback = failback_of(mirrored)
    assert "compaction may have taken records below" in str(
        failback.decide(AllowedStrategies(FailbackStrategy.OFFLINE)).reasons[0]
    )
    run = failback.begin(failback.plan().hash)
    failback.drive(run.id)
    matches = [row["match"] for row in saved_rows(tmp_path / f"run-{run.id}" / "salvage")]
    assert matches == ["conflicting"] * 5 + ["missing"] * 5
    go_home(failback, run.id)
    newest = {r.key: r.value for r in content(read_all(pair.east, topic))}
    assert newest == {b"k%d" % n: b"3" if n < 5 else b"1" for n in range(10)}


@pytest.mark.slow
def test_logs_that_begin_behind_the_last_mirrored_offset(pair: Pair, tmp_path: Path) -> None:
    """On west retention has taken all that was mirrored; on east it has taken the beginning of the tail."""
    plain, tailed = app_topic(pair), app_topic(pair)
    for topic in (plain, tailed):
        produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, plain, tailed)
    mirrored.copy()
    mirrored.failover.drive(begin(mirrored.failover))
    for topic in (plain, tailed):
        produce(pair.west, topic, 30)
    tail = produce(pair.east, tailed, 10)
    with as_admin(pair.west) as west, as_admin(pair.east) as east:
        delete_records(west, {Partition(plain, 0): Offset(35), Partition(tailed, 0): Offset(35)})
        delete_records(east, {Partition(tailed, 0): Offset(26)})
    failback, offline = failback_of(mirrored), AllowedStrategies(FailbackStrategy.OFFLINE)
    assert f"the log of {tailed}-0 on east begins at or behind" in str(failback.decide(offline).reasons[0])
    plan = failback.plan()
    assert plan.strategies == {plain: "none", tailed: "recreate"}
    run = failback.begin(plan.hash)
    failback.drive(run.id)
    saved = saved_rows(tmp_path / f"run-{run.id}" / "salvage")
    assert [row["value"] for row in saved] == [r.value for r in tail[6:]]
    # So little is left to the drain by default, and the proof before it would have nothing to compare.
    raise_if_failed(replicate(load_reverse_link(mirrored.link)))
    go_home(failback, run.id)
    for topic in (plain, tailed):
        there, here = (content(read_all(cluster, topic)) for cluster in (pair.west, pair.east))
        assert [r for r in here if r.offset >= 35] == there
        assert len(there) == 15


@pytest.mark.slow
def test_a_source_that_died_under_load_comes_back_and_applications_come_home(pair: Pair, tmp_path: Path) -> None:
    """The data plane was behind, and the failover unplanned: what had not been copied is the tail."""
    topic, well = app_topic(pair), app_topic(pair)
    kept = produce(pair.east, topic, 20)
    produce(pair.east, well, 5)
    mirrored = new_mirror(pair, tmp_path, topic, well)
    mirrored.copy()
    lost = produce(pair.east, topic, 7)
    failover = mirrored.failover
    pair.east.kill()
    try:
        failover.drive(failover.begin(failover.plan(RunMode.UNPLANNED).hash, RunMode.UNPLANNED).id)
    finally:
        pair.east.start()
    late = [] if denied(pair.east, topic) else [b"x"]
    kept += produce(pair.west, topic, 30)
    failback = failback_of(mirrored)
    plan = failback.plan()
    assert plan.strategies == {topic: "recreate", well: "none"}
    run = failback.begin(plan.hash)
    failback.drive(run.id)
    saved = saved_rows(tmp_path / f"run-{run.id}" / "salvage")
    assert [row["value"] for row in saved] == [*(r.value for r in lost), *late]
    assert mirrored.name not in mirrored.state.pending_fences, "a fence that is lifted would be put up again"
    go_home(failback, run.id)
    assert not denied(pair.east, topic)
    assert content(read_all(pair.east, topic)) == kept
    mirrored.copy()
    assert_parity(mirrored)
