"""Topics and partitions that are new, recreated or never copied when the source dies are counted as lost."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions, NewTopic

from mirror_core.cli.plan_costs import list_costs
from mirror_core.decide.mirror_change import FilterChange
from mirror_core.decide.run_result import UncountedLoss, decide_loss, find_uncounted_loss, format_run_loss
from mirror_core.mirrors.describe import describe_mirror
from mirror_core.mirrors.fence_watcher import check_fence
from mirror_core.mirrors.mirror_change import change_mirror, prepare_change
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.model.errors import MirrorError
from mirror_core.model.figures import FigureKey
from mirror_core.model.forecast import UncopiedReason
from mirror_core.model.mirror import FailureKind, PartitionState
from mirror_core.model.names import HEARTBEAT_TOPIC_PREFIX, ClusterName, Partition
from mirror_core.model.run import Run, RunMode, RunState, StepEvidence
from mirror_core.model.timing import now_ms
from mirror_core.runbook.run_outcome import read_run_result
from tests.support.broker_faults import killed
from tests.support.cli_process import mirrorbook
from tests.support.data_plane_thread import beating, driving
from tests.support.failover_runs import app_topic
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, produce, read_all
from tests.support.log_cutting import batch_of_100, lose_tails
from tests.support.mirrored_topics import Mirrored, new_mirror, replicate
from tests.support.pending_fences import stood
from tests.support.sentences import format_sentence
from tests.support.unplanned_runs import begin
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def test_partitions_and_topics_younger_than_the_last_plan_are_counted_and_named(pair: Pair, tmp_path: Path) -> None:
    """No epoch takes them up before the source dies: one lasts longer than this test."""
    prefix = "t-" + secrets.token_hex(4)
    topic = app_topic(pair, 3, prefix=prefix)
    produce(pair.east, topic, 50)
    mirrored = new_mirror(pair, tmp_path, prefix + ".*")
    before = now_ms()
    with driving(mirrored, epoch_s=600):
        beating(mirrored, 1)
        admin = admin_client(pair.east)
        admin.create_partitions([NewPartitions(topic, 6)])[topic].result(TIMEOUT_S)
        later = app_topic(pair, 2, prefix=prefix)
        written = {Partition(topic, 3): 700, Partition(topic, 4): 40, Partition(topic, 5): 9, Partition(later, 1): 25}
        for partition, count in written.items():
            wait_until(partial(has, pair, partition), timeout_s=TIMEOUT_S, why=f"{partition} has a leader")
            produce(pair.east, partition.topic, count, partition=partition.index)

        def observed() -> bool:
            ends = {p: seen.end for p, seen in mirrored.state.source_observations[mirrored.name].get_ends()}
            return ends.items() >= written.items()

        wait_until(observed, timeout_s=TIMEOUT_S, why="the data plane observes them")
        assert topic_and_width(mirrored) == {topic: 3}, "and no plan has recorded them"
        described = describe_mirror(mirrored.link, mirrored.state, now_ms()).facts[FactKey.UNCOPIED].text
        with killed(pair.east):
            told = mirrorbook("readiness", mirrored.name, "--json", "--config", str(mirrored.config.path))
            plan = mirrored.failover.plan(RunMode.UNPLANNED)
            run = begin(mirrored.failover)
            assert mirrored.failover.drive(run.id).state is RunState.DONE
    first = f"{topic}-3 (not mirrored yet: 700 offsets, its end last seen"
    assert str(described).startswith(f"5 partitions, {sum(written.values())} offsets: {first} ")
    recorded = evidence_of(mirrored, run, "record_lmo")
    for figures in (plan.figures, recorded):
        assert figures[FigureKey.UNCOPIED_PARTITIONS] == 5
        assert figures[FigureKey.UNCOPIED_OFFSETS] == sum(written.values())
        sizes = figures[FigureKey.UNCOPIED_SIZES]
        assert isinstance(sizes, Mapping)
        assert sizes.keys() >= {str(partition) for partition in (*written, Partition(later, 0))}
    lost = plan.figures[FigureKey.LOST_OFFSETS]
    assert isinstance(lost, int)
    assert sum(written.values()) <= lost < sum(written.values()) + 100
    assert any("HAS NO COPY" in line and f"{topic}-3" in line for line in map(str, plan.warnings))
    for figures in (plan.figures, recorded):
        assert figures[FigureKey.COMPLETE_UP_TO_MS] == {"all topics together": None}
        assert f"{topic}-3 (not mirrored yet)" in str(figures[FigureKey.COMPLETE_LIMITED_BY])
    unplanned = json.loads(told.stdout)["unplanned"]
    assert unplanned["missing"] >= sum(written.values())
    assert unplanned["behind_s"] is None
    counted = mirrored.state.runs[run.id].forecast_outcome
    assert counted is not None
    assert counted.lost_offsets is None
    page = next((tmp_path / run.id).rglob("report.html"), None) or next(tmp_path.rglob(f"*{run.id}*/report.html"))
    assert first in page.read_text()
    assert before < (mirrored.state.source_observations[mirrored.name].listed_ms or 0)


def has(pair: Pair, partition: Partition) -> bool:
    found = admin_client(pair.east).list_topics(partition.topic, timeout=TIMEOUT_S).topics[partition.topic].partitions
    return partition.index in found and found[partition.index].leader >= 0


def topic_and_width(mirrored: Mirrored) -> dict[str, int]:
    names = [p.topic for p in mirrored.statuses if not p.topic.startswith(HEARTBEAT_TOPIC_PREFIX)]
    return {name: names.count(name) for name in names}


def evidence_of(mirrored: Mirrored, run: Run, step: str) -> StepEvidence:
    return next(s.evidence for s in mirrored.failover.read_status(run.id)[1] if s.step == step)


def test_a_topic_that_was_deleted_and_made_anew_before_the_source_died_counts_as_a_whole(
    pair: Pair, tmp_path: Path
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 50)
    mirrored = new_mirror(pair, tmp_path, topic)
    with driving(mirrored, epoch_s=600):
        beating(mirrored, 1)
        wait_until(lambda: len(read_all(pair.west, topic)) == 50, timeout_s=TIMEOUT_S, why="all is copied")
        admin = admin_client(pair.east)
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        wait_until(
            lambda: topic not in admin.list_topics(timeout=TIMEOUT_S).topics, timeout_s=TIMEOUT_S, why="it is deleted"
        )
        admin.create_topics([NewTopic(topic, 1)])[topic].result(TIMEOUT_S)
        wait_until(partial(has, pair, Partition(topic, 0)), timeout_s=TIMEOUT_S, why="it is there again")
        produce(pair.east, topic, 20)  # fewer than were copied of the old one

        def observed() -> bool:
            seen = mirrored.state.source_observations[mirrored.name]
            return topic in seen.get_new_topic_ids() and dict(seen.get_ends())[Partition(topic, 0)].end == 20

        wait_until(observed, timeout_s=TIMEOUT_S, why="the data plane observes the new one")
        with killed(pair.east):
            plan = mirrored.failover.plan(RunMode.UNPLANNED)
    assert plan.figures[FigureKey.UNCOPIED_SIZES] == {f"{topic}-0": 20}
    assert plan.figures[FigureKey.UNCOPIED_REASONS] == {f"{topic}-0": UncopiedReason.RECREATED}
    assert plan.figures[FigureKey.COMPLETE_UP_TO_MS] == {"all topics together": None}


@pytest.mark.parametrize("rewritten", [1, 3], ids=["shorter", "longer"])
def test_what_a_source_writes_again_after_it_lost_its_end_counts_from_there_when_it_dies(
    pair: Pair, tmp_path: Path, rewritten: int
) -> None:
    """A power failure takes records that were acknowledged, and copied: other ones are at their offsets then."""
    topic, compared = app_topic(pair, retention_ms="-1"), app_topic(pair, retention_ms="-1")
    for first in range(0, 400, 100):
        batch_of_100(pair.east, topic, first)
        batch_of_100(pair.east, compared, first)
    mirrored, other, end = (
        new_mirror(pair, tmp_path, topic),
        new_mirror(pair, tmp_path, compared),
        200 + 100 * rewritten,
    )
    other.copy()
    with driving(mirrored, epoch_s=600):
        beating(mirrored, 1)
        wait_until(lambda: len(read_all(pair.west, topic)) == 400, timeout_s=TIMEOUT_S, why="all is copied")
        wait_until(partial(observed_end, mirrored, topic, 400), timeout_s=TIMEOUT_S, why="the monitor has seen it")
        lose_tails(pair.east, {topic: 200, compared: 200})
        for first in range(1_000, 1_000 + 100 * rewritten, 100):
            batch_of_100(pair.east, topic, first)
            batch_of_100(pair.east, compared, first)
        wait_until(partial(observed_end, mirrored, topic, end), timeout_s=TIMEOUT_S, why="the monitor sees what is new")
        replicate(other.link)
        with killed(pair.east):
            plans = {topic: mirrored.failover.plan(RunMode.UNPLANNED), compared: other.failover.plan(RunMode.UNPLANNED)}
    assert mirrored.statuses[Partition(topic, 0)].state is PartitionState.MIRRORING, "nothing has compared it"
    assert other.statuses[Partition(compared, 0)].kind is FailureKind.DIVERGED
    for name, plan in plans.items():
        assert plan.figures[FigureKey.UNCOPIED_SIZES] == {f"{name}-0": end - 200}
        assert plan.figures[FigureKey.UNCOPIED_REASONS] == {f"{name}-0": UncopiedReason.DIVERGED}
        assert plan.figures[FigureKey.COMPLETE_UP_TO_MS] == {"all topics together": None}


def observed_end(mirrored: Mirrored, topic: str, end: int) -> bool:
    observation = mirrored.state.source_observations.get(mirrored.name)
    seen = dict(observation.get_ends()).get(Partition(topic, 0)) if observation else None
    return seen is not None and seen.end == end


def test_a_topic_without_a_copy_forbids_a_planned_failover_and_is_lost_as_a_whole_by_an_unplanned_one(
    pair: Pair, tmp_path: Path
) -> None:
    """Its name collides with one that the destination has: brokers take a dot and an underscore for the same there."""
    prefix = "t-" + secrets.token_hex(4)
    well, never, stranger = app_topic(pair, prefix=prefix), f"{prefix}.pay", f"{prefix}_pay"
    mirrored = new_mirror(pair, tmp_path, prefix + r"[^_]*")  # which would be refused once the names collide
    for side, name in ((pair.east, never), (pair.west, stranger)):
        admin = admin_client(side)
        admin.create_topics([NewTopic(name, 1)])[name].result(TIMEOUT_S)
    wait_until(partial(has, pair, Partition(never, 0)), timeout_s=TIMEOUT_S, why="east has it")
    produce(pair.east, well, 10)
    produce(pair.east, never, 30)
    with pytest.raises(MirrorError):
        mirrored.copy()
    said = mirrorbook("readiness", mirrored.name, "--json", "--config", str(mirrored.config.path))
    told = json.loads(said.stdout)
    (refusal,) = [point["text"] for point in told["points"] if point["weight"] == "refusal"]
    assert refusal.startswith(format_sentence("topic_has_no_copy", never, "west")), refusal
    assert f"mirrorbook mirror recover {mirrored.name} --topics {never} --action retry" in refusal
    assert (said.returncode, told["ready"]) == (3, False)
    assert not any("without their newer records" in point["text"] for point in told["points"])
    with killed(pair.east):
        decision = mirrored.failover.decide(RunMode.UNPLANNED)
        plan = decision.plan
        assert decision.reasons == ()
        assert plan.figures[FigureKey.LOST_OFFSETS] == 30
        assert plan.figures[FigureKey.UNCOPIED_SIZES] == {f"{never}-0": 30}
        assert plan.figures[FigureKey.UNCOPIED_REASONS] == {f"{never}-0": UncopiedReason.NO_COPY}
        assert any(
            line.startswith(f"topic {never} was never created on west: it is left out")
            for line in map(str, plan.warnings)
        )
        run = begin(mirrored.failover)
        assert mirrored.failover.drive(run.id).state is RunState.DONE
    assert len([r for r in read_all(pair.west, well) if r.value != b"x"]) == 10
    recorded = evidence_of(mirrored, run, "record_lmo")
    assert recorded[FigureKey.UNCOPIED_SIZES] == plan.figures[FigureKey.UNCOPIED_SIZES]


def test_topics_that_new_filters_match_are_said_to_be_unknown_until_they_were_listed(
    pair: Pair, tmp_path: Path
) -> None:
    """One mirror has a data plane, whose next plan is far away. The other one has none."""
    prefixes = ("t-" + secrets.token_hex(4), "t-" + secrets.token_hex(4))
    watched, other = (new_mirror(pair, tmp_path, prefix + ".*") for prefix in prefixes)
    for prefix in prefixes:
        produce(pair.east, app_topic(pair, prefix=prefix), 50)
        produce(pair.east, app_topic(pair, prefix="z" + prefix), 777)
    other.copy()
    with driving(watched, epoch_s=600):
        beating(watched, 1)
        for prefix, mirrored in zip(prefixes, (watched, other), strict=True):
            before = mirrored.failover.plan(RunMode.UNPLANNED)
            assert find_uncounted_loss(before) == UncountedLoss()
            wanted = FilterChange(topics=(prefix + ".*", "z" + prefix + ".*"))
            change_mirror(mirrored.link, wanted, prepare_change(mirrored.link, mirrored.state, wanted).plan.hash)
        with killed(pair.east):
            plans = [mirrored.failover.plan(RunMode.UNPLANNED) for mirrored in (watched, other)]
            run = begin(other.failover)
            assert other.failover.drive(run.id).state is RunState.DONE
            done, _ = other.failover.read_status(run.id)
    page = next((tmp_path / run.id).rglob("report.html"), None) or next(tmp_path.rglob(f"*{run.id}*/report.html"))
    for plan, mirrored in zip(plans, (watched, other), strict=True):
        uncounted = find_uncounted_loss(plan).unlisted
        assert uncounted
        assert dict(list_costs(plan, mirrored.link.mirror))["lost"].endswith(f"; and {uncounted}")
        (warning,) = (warning for warning in plan.warnings if warning.code == "topics_unlisted")
        assert str(warning) in page.read_text()
    assert format_run_loss(decide_loss(done), ClusterName(pair.east.name)).endswith(f"; and {uncounted}")
    wait_until(lambda: stood(check_fence(other.link)), timeout_s=TIMEOUT_S, why="the source is back, and fenced")
    result = read_run_result(other.link, other.state, other.state.runs[run.id])
    assert result is not None
    assert result.loss is not None
    assert (result.loss.offsets, result.loss.is_minimum) == (777, False)
    assert [name.startswith(f"z{prefixes[1]}") for name in result.loss.uncounted.uncopied] == [True]
