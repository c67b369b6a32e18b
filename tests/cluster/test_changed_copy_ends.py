"""A destination whose logs do not begin or end where its mirror left them: written by others, lost, or deleted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mirror_core.kafka.topics import delete_records
from mirror_core.mirrors.describe import describe_mirror
from mirror_core.mirrors.fence_watcher import check_fence
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.forecast import PlanForecast, UncopiedReason
from mirror_core.model.mirror import GapFilling
from mirror_core.model.names import Offset, Partition
from mirror_core.model.pending_fence import LateSplit
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.source_observation import ObservedTopic, SourceObservation
from mirror_core.model.timing import now_ms
from mirror_core.runbook.readiness_report import assess_readiness
from mirror_core.state.writer import StateWriter, make_data_id
from tests.support.broker_faults import await_service, killed
from tests.support.cli_process import mirrorbook
from tests.support.cluster_admin import as_admin
from tests.support.failback_runs import failback_of, go_home
from tests.support.failover_runs import app_topic
from tests.support.kafka_clients import TIMEOUT_S, Pair, produce, read_all
from tests.support.log_cutting import batch_of_100, lose_tails
from tests.support.log_shapes import new_producer
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.saved_tails import saved_rows
from tests.support.unplanned_runs import begin

pytestmark = pytest.mark.cluster


def observe(mirrored: Mirrored, *topics: ObservedTopic) -> int:
    with StateWriter(mirrored.link.destination, make_data_id(mirrored.name)) as data:
        at_ms = data.now_ms()
        data.put(SourceObservation(mirror=mirrored.name, at_ms=at_ms, listed_ms=at_ms, topics=topics))
    return at_ms


def find_listed_mirror(mirrored: Mirrored) -> dict[str, Any]:
    done = mirrorbook("mirror", "list", "--config", str(mirrored.config.path), "--json")
    [row] = [row for row in json.loads(done.stdout)["mirrors"] if row["name"] == mirrored.name]
    return dict(row)


def test_what_others_have_written_is_no_copy_of_what_the_dead_source_had(pair: Pair, tmp_path: Path) -> None:
    written, clean = app_topic(pair), app_topic(pair)
    for topic in (written, clean):
        produce(pair.east, topic, 100)
    mirrored, partition = new_mirror(pair, tmp_path, written, clean), Partition(written, 0)
    mirrored.copy()
    copied = read_all(pair.west, written)
    lost = produce(pair.east, written, 50)
    observe(
        mirrored,
        ObservedTopic(topic=clean, ends=(100,), reported=((0, 60),)),  # the last report was not stored
        ObservedTopic(topic=written, ends=(150,), reported=((0, 100),)),
    )
    with killed(pair.east):
        before = mirrored.failover.plan(RunMode.UNPLANNED)
        early = produce(pair.west, written, 50)
        plan = mirrored.failover.plan(RunMode.UNPLANNED)
        assert plan.figures[FigureKey.LOST_OFFSETS] == before.figures[FigureKey.LOST_OFFSETS] == len(lost)
        assert plan.figures[FigureKey.UNCOPIED_REASONS] == {f"{partition}": UncopiedReason.DIVERGED}
        assert plan.figures[FigureKey.COMPLETE_UP_TO_MS] == {"all topics together": None}
        assert Finding("written_before_promotion", "west", listed=f"{partition} from offset 100") in plan.warnings
        assert plan.hash != before.hash, "nobody has approved it"
        described = describe_mirror(mirrored.link, mirrored.state, now_ms())
        assert [row.position for row in described.rows if row.partition == str(partition)] == [100]
        assert described.facts[FactKey.MISSING_OFFSETS].value == len(lost)
        assert described.facts[FactKey.UNCOPIED].value == (str(partition),)
        assert find_listed_mirror(mirrored)["behind_s"] is None
        run = begin(mirrored.failover)
        assert mirrored.failover.drive(run.id).state is RunState.DONE
        assert {p: s.lmo for p, s in mirrored.statuses.items()} == {partition: 100, Partition(clean, 0): 100}
    assert check_fence(mirrored.link).late_split == LateSplit(
        before={partition: (Offset(100), Offset(150))}, since={}, unknown={}
    )
    failback = failback_of(mirrored)
    home = failback.begin(failback.plan().hash)
    failback.drive(home.id)
    go_home(failback, home.id)
    for cluster in (pair.east, pair.west):
        assert [r for r in read_all(cluster, written) if r.value != b"x"] == copied + early


def test_a_copy_that_has_lost_its_end_is_not_complete_up_to_when_it_had_it(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair, retention_ms="-1")
    for first in range(0, 500, 100):
        batch_of_100(pair.east, topic, first)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    at_ms = observe(mirrored, ObservedTopic(topic=topic, ends=(600,), recovery_points=((0, 700, 500),)))
    with killed(pair.east):
        whole = mirrored.failover.plan(RunMode.UNPLANNED).figures
        lose_tails(pair.west, {topic: 300})
        cut = mirrored.failover.plan(RunMode.UNPLANNED).figures
    complete = FigureKey.COMPLETE_UP_TO_MS
    assert (whole[FigureKey.LOST_OFFSETS], whole[complete]) == (100, {"all topics together": at_ms - 700})
    assert (cut[FigureKey.LOST_OFFSETS], cut[complete]) == (300, {"all topics together": None})


def test_what_the_copy_alone_has_deleted_is_lost_with_the_source(pair: Pair, tmp_path: Path) -> None:
    """Not what the source has deleted as well, or had before the copy began."""
    cut, both, late = (app_topic(pair) for _ in range(3))
    for topic in (cut, both, late):
        produce(pair.east, topic, 100)
    with as_admin(pair.east) as east, as_admin(pair.west) as west:
        delete_records(east, {Partition(late, 0): Offset(30)})
        mirrored, partition = new_mirror(pair, tmp_path, cut, both, late), Partition(cut, 0)
        mirrored.copy()
        delete_records(east, {Partition(both, 0): Offset(60)})
        mirrored.copy()
        observe(mirrored, *(ObservedTopic(topic=topic, ends=(100,)) for topic in sorted((cut, both, late))))
        living = mirrored.failover.plan(RunMode.PLANNED)
        with killed(pair.east):
            before = mirrored.failover.plan(RunMode.UNPLANNED)
            delete_records(west, {partition: Offset(60)})
            plan = mirrored.failover.plan(RunMode.UNPLANNED)
            described = describe_mirror(mirrored.link, mirrored.state, now_ms())
            deleted = Finding("deleted_early", "west", source="east", listed=f"{partition} [0, 60)")
            assert (before.figures[FigureKey.LOST_OFFSETS], plan.figures[FigureKey.LOST_OFFSETS]) == (0, 60)
            assert plan.figures[FigureKey.UNCOPIED_REASONS] == {f"{partition}": UncopiedReason.DELETED}
            assert plan.figures[FigureKey.COMPLETE_UP_TO_MS] == {"all topics together": None}
            assert deleted in plan.warnings
            assert "partitions_uncopied" not in {warning.code for warning in plan.warnings}
            assert find_listed_mirror(mirrored)["behind_s"] is None
            assert plan.hash != before.hash, "nobody has approved it"
            assert FactKey.UNCOPIED in described.not_normal
            assert described.facts[FactKey.MISSING_OFFSETS].value == 60
        readiness = assess_readiness(mirrored.link, mirrored.state, mirrored.services, with_drift=False)
        assert deleted not in living.warnings
        assert deleted in readiness.obstacles
        planned = mirrored.failover.plan(RunMode.PLANNED)
        assert deleted in planned.warnings
        assert planned.figures[FigureKey.LOST_OFFSETS] == 60
        assert isinstance(planned.forecast, PlanForecast)
        assert planned.forecast.lost_offsets == 60
        with killed(pair.east):
            run = begin(mirrored.failover)
            assert mirrored.failover.drive(run.id).state is RunState.DONE
        evidence = mirrored.state.steps[run.id, "record_lmo"].evidence
        assert evidence[FigureKey.UNCOPIED_OFFSETS] == 60


def test_a_beginning_that_only_the_old_source_has_is_saved_before_the_way_home_deletes_it(
    pair: Pair, tmp_path: Path
) -> None:
    cut, kept = app_topic(pair), app_topic(pair)
    for topic in (cut, kept):
        produce(pair.east, topic, 100)
    mirrored, partition = new_mirror(pair, tmp_path, cut, kept), Partition(cut, 0)
    mirrored.copy()
    observe(mirrored, *(ObservedTopic(topic=topic, ends=(100,)) for topic in sorted((cut, kept))))
    with as_admin(pair.west) as west, killed(pair.east):
        delete_records(west, {partition: Offset(60)})
        assert mirrored.failover.drive(begin(mirrored.failover).id).state is RunState.DONE
    failback = failback_of(mirrored)
    plan = failback.plan()
    listed = (f"{partition} [0, 60)",)
    assert Finding("beginnings_discarded", "east", destination="west", partitions=listed) in plan.warnings
    assert (plan.discarded, plan.figures[FigureKey.DISCARDED_OFFSETS]) == (60, 60)
    home = failback.begin(plan.hash)
    failback.run_step(home.id, "salvage")
    folder = tmp_path / f"run-{home.id}" / "salvage-beginnings"
    saved = saved_rows(folder)
    assert len(saved) == 60
    shutil.rmtree(folder)  # as on another machine
    failback.drive(home.id)
    assert len(saved_rows(folder)) == len(saved)
    evidence = mirrored.state.steps[home.id, "salvage"].evidence
    assert evidence["beginnings_salvaged"] == f"{partition} [0, 60): 60 records"
    assert evidence["offsets_lost"] == 60
    go_home(failback, home.id)
    for cluster in (pair.east, pair.west):
        assert [len([r for r in read_all(cluster, topic) if r.value != b"x"]) for topic in (cut, kept)] == [40, 100]
    assert mirrored.statuses[partition].deleted_until is None


@pytest.mark.parametrize("gaps", list(GapFilling))
def test_what_the_mirror_has_filled_behind_the_last_stored_report_is_its_own(
    pair: Pair, tmp_path: Path, gaps: GapFilling
) -> None:
    topic = app_topic(pair, retention_ms="-1")
    producer = new_producer(pair.east, transactional_id=f"{topic}-id")
    producer.init_transactions(TIMEOUT_S)
    for number in range(8):
        producer.begin_transaction()
        producer.produce(topic, value=b"%d" % number, partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        end_transaction = producer.commit_transaction if number % 3 else producer.abort_transaction
        end_transaction(TIMEOUT_S)
    mirrored, partition = new_mirror(pair, tmp_path, topic, gaps=gaps), Partition(topic, 0)
    mirrored.copy()
    observe(mirrored, ObservedTopic(topic=topic, ends=(20,), reported=((0, 3),)))
    with killed(pair.east):
        plan = mirrored.failover.plan(RunMode.UNPLANNED)
        assert plan.figures[FigureKey.UNCOPIED_PARTITIONS] == 0
        assert plan.figures[FigureKey.LOST_OFFSETS] == 4
        produce(pair.west, topic, 2)
        plans = [mirrored.failover.plan(RunMode.UNPLANNED)]
        observe(mirrored, ObservedTopic(topic=topic, ends=(20,)))  # no task has reported yet
        plans += [mirrored.failover.plan(RunMode.UNPLANNED)]
    for plan in plans:
        assert plan.figures[FigureKey.LOST_OFFSETS] == 4
        assert Finding("written_before_promotion", "west", listed=f"{partition} from offset 16") in plan.warnings


def test_what_others_wrote_is_no_copy_where_the_leader_has_forgotten_the_mirror(pair: Pair, tmp_path: Path) -> None:
    written, clean = app_topic(pair, retention_ms="-1"), app_topic(pair, retention_ms="-1")
    for topic in (written, clean):
        batch_of_100(pair.east, topic, 0)  # of 2023: a broker that starts forgets who wrote them
    mirrored, partition = new_mirror(pair, tmp_path, written, clean), Partition(written, 0)
    mirrored.copy()
    observe(mirrored, ObservedTopic(topic=clean, ends=(110,)), ObservedTopic(topic=written, ends=(150,)))
    with killed(pair.east):
        pair.west.terminate()
        pair.west.start()
        await_service(pair.west)
        produce(pair.west, written, 50)
        plan = mirrored.failover.plan(RunMode.UNPLANNED)
        assert plan.figures[FigureKey.LOST_OFFSETS] == 60
        assert plan.figures[FigureKey.UNCOPIED_REASONS] == {f"{partition}": UncopiedReason.DIVERGED}
        assert Finding("written_before_promotion", "west", listed=f"{partition} from offset 100") in plan.warnings


def test_a_planned_failover_is_refused_before_the_fence_where_others_wrote(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 100)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    produce(pair.east, topic, 70)
    assert not mirrored.failover.decide(RunMode.PLANNED).reasons
    produce(pair.west, topic, 50)
    decision = mirrored.failover.decide(RunMode.PLANNED)
    ahead = Finding("destination_ahead", Partition(topic, 0), destination="west", source="east", offsets=50)
    assert ahead in decision.reasons
    assert decision.plan.figures[FigureKey.LAG_OFFSETS] == 70
