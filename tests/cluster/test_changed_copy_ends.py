"""A destination whose log ends are not where its mirror left them: written by others, or lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_core.mirrors.fence_watcher import check_fence
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.forecast import UncopiedReason
from mirror_core.model.mirror import GapFilling
from mirror_core.model.names import Offset, Partition
from mirror_core.model.pending_fence import LateSplit
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.source_observation import ObservedTopic, SourceObservation
from mirror_core.state.writer import StateWriter, make_data_id
from tests.support.broker_faults import killed
from tests.support.failback_runs import failback_of, go_home
from tests.support.failover_runs import app_topic
from tests.support.kafka_clients import TIMEOUT_S, Pair, produce, read_all
from tests.support.log_cutting import batch_of_100, lose_tails
from tests.support.log_shapes import new_producer
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.unplanned_runs import begin

pytestmark = pytest.mark.cluster


def observe(mirrored: Mirrored, *topics: ObservedTopic) -> int:
    with StateWriter(mirrored.link.destination, make_data_id(mirrored.name)) as data:
        at_ms = data.now_ms()
        data.put(SourceObservation(mirror=mirrored.name, at_ms=at_ms, listed_ms=at_ms, topics=topics))
    return at_ms


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
