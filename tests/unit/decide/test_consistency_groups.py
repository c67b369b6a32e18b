"""Until when topics that belong together are whole: never later than the truth, and unknown where nobody can tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.dataplane.observed_source import MAX_OBSERVATIONS, ObservedSource, RecoveryPoints
from mirror_core.decide.clock_skew import compute_observer_ahead_ms
from mirror_core.decide.consistency_groups import find_consistency_groups
from mirror_core.decide.mirror_snapshot import MirrorSnapshot
from mirror_core.decide.plan_figures import list_plan_figures
from mirror_core.kafka.config import load_config
from mirror_core.model.errors import BadRequest
from mirror_core.model.figures import FigureKey
from mirror_core.model.mirror import FailureKind, PartitionStatus
from mirror_core.model.names import HEARTBEAT_TOPIC_PREFIX, MirrorName, Offset, Partition
from mirror_core.model.run import RunMode
from mirror_core.model.source_observation import ObservedEnd, ObservedTopic, SourceObservation
from tests.support import loss_views
from tests.support.loss_views import A0, A1, B0, DESTINATION, status
from tests.support.source_offsets import offsets

view = loss_views.view
SIGHTING = SourceObservation(
    mirror=MirrorName("m"),
    at_ms=100_000,
    topics=(
        ObservedTopic(topic="a", ends=(100, 50), ages_ms=(0, 2_000), recovery_points=((1, 7_000, 20),)),
        ObservedTopic(topic="b", ends=(10,)),
    ),
    listed_ms=100_000,
)
STATUSES = {p: status(p) for p in (A0, A1, B0)}
ALL_THERE = offsets(a0=100, a1=50, b0=10)
HOUR_MS = 3_600_000


def upto(positions: Mapping[Partition, Offset], *groups: tuple[str, ...]) -> list[int | None]:
    return [one.complete_up_to_ms for one in find_consistency_groups(groups, STATUSES, SIGHTING, positions)]


def test_where_all_has_arrived_it_is_whole_up_to_the_look_that_is_longest_ago() -> None:
    assert upto(ALL_THERE) == [98_000]
    assert upto({**ALL_THERE, A1: Offset(90)}) == [98_000], "what came after the look is not dated"


def test_a_partition_that_is_behind_counts_from_when_it_was_whole() -> None:
    assert upto({**ALL_THERE, A1: Offset(49)}) == [93_000]
    assert upto({**ALL_THERE, A1: Offset(19)}) == [None], "the copy has lost, by now, what it had then"


def test_what_was_never_whole_or_has_no_position_is_unknown_for_all_that_belong_to_it() -> None:
    (behind,) = find_consistency_groups((), STATUSES, SIGHTING, {**ALL_THERE, B0: Offset(9)})
    assert (behind.complete_up_to_ms, behind.limiting_partitions) == (None, (B0,))
    assert upto({A0: Offset(100), A1: Offset(50)}) == [None]
    (never,) = find_consistency_groups((), STATUSES, None, ALL_THERE)
    assert never.complete_up_to_ms is None
    assert never.limit == "a-0, a-1, b-0"
    unseen = {**STATUSES, Partition("c", 0): status(Partition("c", 0))}
    assert [one.complete_up_to_ms for one in find_consistency_groups((), unseen, SIGHTING, ALL_THERE)] == [None]


def test_only_topics_that_belong_together_wait_for_each_other() -> None:
    positions = {**ALL_THERE, B0: Offset(9)}
    assert upto(positions, ("a",), ("b", "a"), (".*",)) == [98_000, None, None]
    (nothing,) = find_consistency_groups((("x.*",),), STATUSES, SIGHTING, positions)
    assert nothing.limit == "no_topic"


def test_a_topic_that_the_source_has_deleted_lacks_nothing_if_all_of_it_was_copied() -> None:
    """Its end is never seen again: without this, the time would be that of the deletion for ever."""
    old = ObservedTopic(topic="c", ends=(5, 5), ages_ms=(60_000, 60_000))
    whole, behind = Partition("c", 0), Partition("c", 1)
    gone = {p: replace(status(p, "deleted"), kind=FailureKind.GONE) for p in (whole, behind)}
    sighting = replace(SIGHTING, topics=(*SIGHTING.topics, old))

    def find(statuses: Mapping[Partition, PartitionStatus], position: int) -> int | None:
        positions = {**ALL_THERE, whole: Offset(5), behind: Offset(position)}
        (one,) = find_consistency_groups((), {**STATUSES, **statuses}, sighting, positions)
        return one.complete_up_to_ms

    assert find(gone, 5) == 98_000
    assert find(gone, 4) is None, "its last records were not copied"
    assert find({p: status(p, "diverged") for p in gone}, 5) == 40_000
    anew = replace(sighting, topics=(*SIGHTING.topics, replace(old, id="another")))
    (one,) = find_consistency_groups((), {**STATUSES, **gone}, anew, {**ALL_THERE, whole: Offset(5), behind: Offset(5)})
    assert one.complete_up_to_ms is None, "another one has its name by now"


def test_heartbeats_are_nobodys_topic() -> None:
    beat = Partition(f"{HEARTBEAT_TOPIC_PREFIX}m", 0)
    (one,) = find_consistency_groups((), {**STATUSES, beat: status(beat)}, SIGHTING, ALL_THERE)
    assert one.complete_up_to_ms == 98_000


def test_a_plan_without_the_source_says_it(view: MirrorSnapshot) -> None:
    here = replace(DESTINATION, positions={**ALL_THERE, A1: Offset(20)})
    lost = replace(view, source_observation=SIGHTING, destination=here, consistency_groups=(("a", "b.*"),))
    figures = dict(list_plan_figures(lost))
    assert figures[FigureKey.COMPLETE_UP_TO_MS] == {"topics a, b.* together": 93_000}
    assert figures[FigureKey.COMPLETE_LIMITED_BY] == {"topics a, b.* together": "a-1"}
    ahead = compute_observer_ahead_ms(100_000, 100_000 - 2 * HOUR_MS + 400)  # of an observation that took a while
    figures = dict(list_plan_figures(replace(lost, observer_ahead_ms=ahead)))
    assert figures[FigureKey.COMPLETE_UP_TO_MS] == {"topics a, b.* together": 93_000 - 2 * HOUR_MS - 9_600}, (
        "by the brokers' clock, and not too late"
    )
    assert [compute_observer_ahead_ms(100_000, appended) for appended in (99_000, 109_000, None)] == [0, 0, 0]
    for drained in (replace(lost, is_drained=True), replace(view, is_drained=True, mode=RunMode.PLANNED)):
        assert FigureKey.COMPLETE_UP_TO_MS not in dict(list_plan_figures(drained)), "nothing is missing"


# -- the looks --------------------------------------------------------------------------------------------------------


def looked(
    whole: RecoveryPoints, at_ms: int, ends: dict[Partition, Offset], positions: dict[Partition, Offset]
) -> None:
    whole.add_observations({p: ObservedEnd(end, at_ms) for p, end in ends.items()})
    whole.update_positions(positions)


def complete_until(points: RecoveryPoints) -> dict[Partition, int]:
    return {partition: reached.at_ms for partition, reached in points.get_reached().items()}


def test_a_copy_that_is_behind_is_whole_up_to_the_newest_look_that_it_has_passed() -> None:
    whole = RecoveryPoints()
    for second in range(1, 5):
        looked(whole, 1_000 * second, {A0: Offset(10 * second)}, {A0: Offset(10 * second - 15)})
    assert complete_until(whole) == {A0: 2_000}, "at 25 it has passed 20"
    whole.update_positions({A0: Offset(40)})
    assert complete_until(whole) == {}
    assert whole.get_incomplete() == frozenset()


def test_a_partition_that_nobody_writes_stays_whole_without_being_asked_for() -> None:
    whole = RecoveryPoints()
    looked(whole, 1_000, {A0: Offset(10)}, {A0: Offset(10)})
    whole.add_observations({A0: ObservedEnd(Offset(10), 9_000)})
    assert whole.get_incomplete() == frozenset()
    whole.add_observations({A0: ObservedEnd(Offset(20), 10_000)})
    assert complete_until(whole) == {A0: 9_000}


def test_one_that_is_copied_anew_is_not_whole_any_more() -> None:
    whole = RecoveryPoints()
    looked(whole, 1_000, {A0: Offset(10)}, {A0: Offset(10)})
    looked(whole, 2_000, {A0: Offset(20)}, {A0: Offset(3)})
    assert complete_until(whole) == {}
    assert whole.get_incomplete() == {A0}


def test_far_behind_looks_become_fewer_and_never_wrong() -> None:
    whole = RecoveryPoints()
    for second in range(1, 1_000):
        looked(whole, second, {A0: Offset(second)}, {A0: Offset(0)})
    for position in range(1, 999):
        whole.update_positions({A0: Offset(position)})
        assert all(at_ms <= position for at_ms in complete_until(whole).values())
    assert len(whole._unreached[A0]) <= MAX_OBSERVATIONS


def test_what_an_earlier_process_knew_is_a_beginning() -> None:
    whole = RecoveryPoints({A0: ObservedEnd(Offset(4), 500)})
    looked(whole, 1_000, {A0: Offset(10), A1: Offset(10)}, {A0: Offset(5), A1: Offset(5)})
    assert complete_until(whole) == {A0: 500}
    whole.update_positions({A0: Offset(3)})
    assert complete_until(whole) == {}, "recopied, or its end was lost meanwhile"
    whole.keep_only({A1})
    assert complete_until(whole) == {}
    assert whole.get_incomplete() == {A1}


def test_since_when_something_lacks_is_known_also_of_what_was_never_whole() -> None:
    whole = RecoveryPoints()
    for second in range(1, 60):
        looked(whole, second, {A0: Offset(10), A1: Offset(second)}, {A0: Offset(7), A1: Offset(second - 1)})
    assert whole.get_incomplete_since() == {A0: 1, A1: 58}
    looked(whole, 60, {A0: Offset(12), A1: Offset(60)}, {A0: Offset(10), A1: Offset(60)})
    assert whole.get_incomplete_since().keys() == {A0}
    assert whole.get_incomplete_since()[A0] > 1, "what there was before is there"
    whole.update_positions({A0: Offset(12)})
    assert whole.get_incomplete_since() == {}


def test_a_sighting_tells_of_those_that_are_behind() -> None:
    memory = ObservedSource(MirrorName("m"), {}, recorded=STATUSES)
    memory.update_ends(1_000, offsets(a0=10, a1=20, b0=5), [])
    memory.recovery_points.update_positions(offsets(a0=10, a1=20, b0=4))
    memory.update_ends(3_000, offsets(a0=11, a1=25, b0=6), [])
    memory.recovery_points.update_positions(offsets(a0=11, a1=24, b0=4))
    assert dict(memory.to_observation().get_recovery_points()) == {A1: ObservedEnd(Offset(20), 1_000)}


# -- the file ---------------------------------------------------------------------------------------------------------


def test_what_belongs_together_is_said_in_the_file_also_for_the_way_home(tmp_path: Path) -> None:
    path = tmp_path / "mirrorbook.yaml"
    head = "clusters:\n  east: {bootstrap.servers: '127.0.0.1:1'}\nmirrors:\n  m:\n    "
    path.write_text(f"{head}together: [[orders.*, payments], [b]]\n")
    config = load_config(path)
    for name in ("m", "m-back"):
        assert config.consistency_groups(MirrorName(name)) == (("orders.*", "payments"), ("b",))
    assert config.consistency_groups(MirrorName("n")) == ()
    for wrong, why in (
        ("together: orders", "a list of lists"),
        ("together: [orders]", "a list of lists"),
        ("together: [[]]", "a list of lists"),
        ("together: [['(']]", "not a regular expression"),
        ("apart: []", "`owner`, `rto`, `switch` and `together` only"),
    ):
        path.write_text(f"{head}{wrong}\n")
        with pytest.raises(BadRequest, match=why):
            load_config(path)
