"""The way home of an old source that holds partitions and topics which no plan of the mirror ever recorded."""

from __future__ import annotations

import secrets
import shutil
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions

from mirror_core.decide.truncation import AllowedStrategies
from mirror_core.kafka.topics import NewTopic, create_topics
from mirror_core.mirrors.describe import describe_mirror
from mirror_core.mirrors.fence_watcher import check_fence
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.mirrors.old_source_fence import find_returned_source
from mirror_core.model.errors import Refused
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.names import Partition
from mirror_core.model.run import FailbackStrategy, RunState
from mirror_core.model.timing import now_ms
from mirror_core.runbook.run_outcome import read_run_result
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.broker_faults import suspended
from tests.support.cluster_admin import as_admin
from tests.support.failback_runs import content, failback_of, failed_over, go_home
from tests.support.failover_runs import app_topic, denied
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.pending_fences import stood
from tests.support.saved_tails import saved_rows
from tests.support.topic_equality import assert_same
from tests.support.unplanned_runs import begin as give_up
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def widen(cluster: SandboxCluster, topic: str, width: int) -> None:
    admin = admin_client(cluster)
    admin.create_partitions([NewPartitions(topic, width)])[topic].result(TIMEOUT_S)
    wait_until(partial(is_led, cluster, topic, width), timeout_s=TIMEOUT_S, why=f"all of {topic} has leaders")


def is_led(cluster: SandboxCluster, topic: str, width: int) -> bool:
    partitions = admin_client(cluster).list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    return len(partitions) == width and all(partition.leader >= 0 for partition in partitions.values())


def width_of(cluster: SandboxCluster, topic: str) -> int:
    return len(admin_client(cluster).list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)


def saved_in(folder: Path) -> Counter[tuple[str, int, int, bytes | None]]:
    return Counter((row["topic"], row["partition"], row["offset"], row["value"]) for row in saved_rows(folder))


def test_partitions_that_no_plan_has_recorded_are_salvaged_before_their_topic_is_made_anew(
    pair: Pair, tmp_path: Path
) -> None:
    tailed, widened, empty, both = (app_topic(pair, 3) for _ in range(4))
    topics = (tailed, widened, empty, both)
    for topic in topics:
        produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, *topics)
    mirrored.copy()
    only_east = {}
    for topic in topics:  # the data plane makes no plan any more
        widen(pair.east, topic, 6)
    only_east[Partition(tailed, 0)] = produce(pair.east, tailed, 2)
    for topic, index, count in ((tailed, 3, 7), (widened, 4, 5), (both, 5, 3)):
        only_east[Partition(topic, index)] = produce(pair.east, topic, count, partition=index)
    with suspended(pair.east):
        mirrored.failover.drive(give_up(mirrored.failover).id)
    widen(pair.west, both, 6)
    produce(pair.west, both, 4, partition=5)
    primary = {topic: read_all(pair.west, topic) for topic in topics}
    failback = failback_of(mirrored)

    for strategy in (FailbackStrategy.NONE, FailbackStrategy.OFFLINE, FailbackStrategy.REPLICA):
        with pytest.raises(Refused) as refused:
            failback.begin(failback.plan(AllowedStrategies(strategy)).hash, AllowedStrategies(strategy))
        for topic in (tailed, widened, both):
            assert topic in str(refused.value), strategy
    plan = failback.plan()
    assert plan.strategies == dict.fromkeys(topics, "recreate")
    assert plan.discarded == 17
    assert list(plan.partitions[f"{widened}-4"].values()) == [5, 0, 5]
    assert plan.figures[FigureKey.UNCOPIED_PARTITIONS] == 3
    assert plan.figures[FigureKey.UNCOPIED_OFFSETS] == 15
    run = failback.begin(plan.hash)
    failback.run_step(run.id, "salvage")
    saved = saved_in(tmp_path / f"run-{run.id}" / "salvage")
    assert saved == Counter((p.topic, p.index, r.offset, r.value) for p, records in only_east.items() for r in records)
    (salvaged,) = [s for s in failback.read_status(run.id)[1] if s.step == "salvage"]
    assert f"{widened}-4 [0, 5): 5 records" in str(salvaged.evidence["salvaged"])
    failback.drive(run.id)
    go_home(failback, run.id)

    for topic in topics:
        assert content(read_all(pair.east, topic)) == content(primary[topic]), topic
    assert {topic: width_of(pair.east, topic) for topic in topics} == {tailed: 3, widened: 3, empty: 3, both: 6}
    mirrored.copy()
    assert_same(pair, list(topics))


def failed_over_with_growth(pair: Pair, tmp_path: Path) -> tuple[Mirrored, str]:
    topic = app_topic(pair, 2)
    produce(pair.east, topic, 10)
    return failed_over(pair, tmp_path, topic), topic


def test_partitions_that_are_added_after_the_plan_make_another_plan(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic = failed_over_with_growth(pair, tmp_path)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.run_step(run.id, "salvage")
    widen(pair.east, topic, 3)
    with pytest.raises(Refused, match=f"{topic} has 3 partition"):
        failback.run_step(run.id, "align")
    failback.abort(run.id)
    late = produce(pair.east, topic, 4, partition=2)

    run = failback.begin(failback.plan().hash)
    failback.run_step(run.id, "salvage")
    widen(pair.east, topic, 4)
    later = produce(pair.east, topic, 2, partition=3)
    failback.drive(run.id)
    folder = tmp_path / f"run-{run.id}"
    assert [row["value"] for row in saved_rows(folder / "salvage")] == [r.value for r in late]
    assert [row["value"] for row in saved_rows(folder / "salvage-2")] == [r.value for r in later]
    go_home(failback, run.id)
    assert width_of(pair.east, topic) == 2


def test_a_run_that_goes_on_where_its_salvage_is_not_saves_it_again_before_it_deletes_anything(
    pair: Pair, tmp_path: Path
) -> None:
    mirrored, topic = failed_over_with_growth(pair, tmp_path)
    widen(pair.east, topic, 3)
    tail = produce(pair.east, topic, 3) + produce(pair.east, topic, 4, partition=2)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.run_step(run.id, "salvage")
    folder = tmp_path / f"run-{run.id}"
    before = saved_in(folder / "salvage")
    assert len(before) == len(tail)
    shutil.rmtree(folder / "salvage")  # as on another machine
    failback.run_step(run.id, "align")
    assert saved_in(folder / "salvage") == before
    aligned = next(s for s in failback.read_status(run.id)[1] if s.step == "align")
    assert aligned.evidence["records_saved_again"] == len(before)
    assert "grown_since" not in aligned.evidence, "nothing was written since"
    assert width_of(pair.east, topic) == 2
    assert failback.drive(run.id).state is RunState.RUNNING, "until applications are home"


def test_a_topic_that_either_side_made_on_its_own_forbids_the_way_home_before_anything_is_changed(
    pair: Pair, tmp_path: Path
) -> None:
    """Just before the disaster on one side, by applications after the failover on the other one."""
    prefix = f"t-{secrets.token_hex(4)}-"
    topic, only_east = app_topic(pair, prefix=prefix), f"{prefix}only-east"
    strange, hollow = f"{prefix}strange", f"{prefix}hollow"
    mirrored = new_mirror(pair, tmp_path, f"{prefix}.*")
    produce(pair.east, topic, 20)
    produce(pair.east, topic, 20)
    mirrored.copy()
    for cluster, names in ((pair.east, (only_east, strange, hollow)), (pair.west, (strange, hollow))):
        with as_admin(cluster) as client:
            create_topics(client, [NewTopic(name=n, partitions=1, replication_factor=1, configs={}) for n in names])
        for name in names:
            wait_until(partial(is_led, cluster, name, 1), timeout_s=TIMEOUT_S, why=f"{name} has a leader")
        if cluster is pair.east:
            with suspended(pair.east):
                mirrored.failover.drive(give_up(mirrored.failover).id)
    produce(pair.east, only_east, 5)
    produce(pair.east, strange, 5)
    produce(pair.west, strange, 7)
    failback = failback_of(mirrored)
    decision = failback.decide()
    (reason,) = decision.reasons
    assert (reason.code, reason.subject) == ("topic_on_both_sides", strange)
    assert any(only_east in line and "5 offsets" in line for line in map(str, decision.plan.warnings))
    with pytest.raises(Refused):
        failback.begin(decision.plan.hash)
    assert (len(read_all(pair.east, strange)), len(read_all(pair.west, strange))) == (5, 7)


def test_a_topic_that_only_the_source_had_when_it_died_is_closed_there_until_applications_are_home(
    pair: Pair, tmp_path: Path
) -> None:
    prefix = f"t-{secrets.token_hex(4)}-"
    topic = app_topic(pair, prefix=prefix)
    mirrored = new_mirror(pair, tmp_path, f"{prefix}.*")
    produce(pair.east, topic, 20)
    mirrored.copy()
    late = app_topic(pair, prefix=prefix)
    produce(pair.east, late, 5)
    with suspended(pair.east):
        given_up = mirrored.failover.drive(give_up(mirrored.failover).id)
    produce(pair.east, topic, 2)
    produce(pair.east, late, 3)
    state = mirrored.state
    returned = find_returned_source(mirrored.link, {mirrored.link.destination.name: state})
    assert returned is not None
    assert returned.values["taken"] == 5, "also where there is no copy"
    wait_until(lambda: stood(check_fence(mirrored.link)), timeout_s=TIMEOUT_S, why="the source is back, and fenced")
    assert {name: denied(pair.east, name) for name in (topic, late)} == {topic: True, late: True}
    fence = mirrored.state.pending_fences[mirrored.name]
    assert fence.uncopied_offsets == {Partition(late, 0): 5}
    result = read_run_result(mirrored.link, mirrored.state, mirrored.state.runs[given_up.id])
    assert result is not None
    assert result.loss is not None
    assert (result.loss.offsets, result.loss.taken_since) == (5, 5)
    facts = describe_mirror(mirrored.link, mirrored.state, now_ms()).facts
    assert facts[FactKey.UNCOPIED].value == (f"{late}-0",)
    uncopied = Finding("late_uncopied", "east", taken=3, lost=5, unmeasured=[], partitions=[Partition(late, 0)])
    assert facts[FactKey.LATE_WRITES].text.endswith(str(uncopied))
    assert stood(check_fence(mirrored.link)), "nothing of it is lacking"

    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.drive(run.id)
    assert denied(pair.east, topic)
    go_home(failback, run.id)
    assert {name: denied(pair.east, name) for name in (topic, late)} == {topic: False, late: False}
    mirrored.copy()
    assert_same(pair, [topic, late])
