"""Copies that never were complete: promoted without the source by a word only, and named with what they hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.decide.failover_plan import decide_failover
from mirror_core.decide.failover_scope import find_never_complete
from mirror_core.decide.mirror_snapshot import MirrorSnapshot
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import RunMode
from mirror_core.model.source_observation import ObservedTopic
from tests.support import loss_views
from tests.support.loss_views import A0, A1, B0, DESTINATION, SIGHTING, status

lost = loss_views.view
TOPIC_A, TOPIC_B = SIGHTING.topics


def observing(lost: MirrorSnapshot, *topics: ObservedTopic, positions: dict[Partition, int]) -> MirrorSnapshot:
    return replace(
        lost,
        source_observation=replace(SIGHTING, topics=topics),
        destination=replace(DESTINATION, positions={p: Offset(end) for p, end in positions.items()}),
    )


@pytest.fixture
def view(lost: MirrorSnapshot) -> MirrorSnapshot:
    """Both partitions of `a` were complete some time ago."""
    return observing(
        lost,
        replace(TOPIC_A, recovery_points=((0, 5_000, 93), (1, 9_000, 20))),
        TOPIC_B,
        positions={A0: 93, A1: 20, B0: 11},
    )


def names_of(view: MirrorSnapshot) -> tuple[Partition, ...]:
    return tuple(find_never_complete(view))


def test_a_copy_that_lags_was_complete_once(view: MirrorSnapshot) -> None:
    assert names_of(view) == ()
    assert decide_failover(view).reasons == ()


def test_one_of_three_partitions_that_was_emptied_is_refused_and_named(view: MirrorSnapshot) -> None:
    emptied = observing(
        view, replace(TOPIC_A, recovery_points=((0, 5_000, 93),)), TOPIC_B, positions={A0: 93, A1: 0, B0: 11}
    )
    [reason] = decide_failover(emptied).reasons
    assert (reason.code, reason.subject) == ("copy_never_complete", "west")
    assert reason.values == {
        "source": "east",
        "mirror": "m",
        "left_behind": False,
        "count": 1,
        "held": 0,
        "partitions": ("a-1 (0 of 50)",),
    }
    approved = decide_failover(replace(emptied, left_behind=frozenset({A1})))
    assert (approved.reasons, approved.plan.warnings[0].code) == ((), "copy_never_complete")
    assert approved.plan.hash != decide_failover(emptied).plan.hash
    more = replace(emptied, destination=replace(DESTINATION, positions={A0: Offset(93), A1: Offset(0), B0: Offset(0)}))
    assert decide_failover(replace(more, left_behind=frozenset({A1}))).reasons, "the word was for another set"


def test_the_partition_that_lacks_most_is_named_first(view: MirrorSnapshot) -> None:
    both = replace(view, source_observation=replace(SIGHTING, topics=(replace(TOPIC_A, ends=(100, 1_000)), TOPIC_B)))
    [reason] = decide_failover(both).reasons
    assert reason.values["partitions"] == ("a-1 (20 of 1,000)", "a-0 (93 of 100)")


def test_an_empty_copy_of_a_source_that_nobody_observed_is_no_copy_either(view: MirrorSnapshot) -> None:
    unseen = replace(view, source_observation=None)
    assert names_of(unseen) == (), "what it lacks is not known"
    empty = observing(view, positions=dict.fromkeys((A0, A1, B0), 0))
    [reason] = decide_failover(replace(empty, source_observation=None)).reasons
    assert reason.values["partitions"] == tuple(f"{p} (0 of an unknown number)" for p in (A0, A1, B0))


def test_a_copy_that_lost_its_end_after_tasks_had_reported_all_of_it_was_complete_once(view: MirrorSnapshot) -> None:
    reported = replace(view, source_observation=replace(SIGHTING, topics=(replace(TOPIC_A, reported=()), TOPIC_B)))
    assert names_of(reported) == ()
    behind = replace(TOPIC_A, reported=((0, 93), (1, None)))
    assert names_of(replace(view, source_observation=replace(SIGHTING, topics=(behind, TOPIC_B)))) == (
        A0,
        A1,
    )


def test_what_has_failed_in_its_first_copy_counts_and_a_topic_that_is_gone_from_the_source_does_not(
    view: MirrorSnapshot,
) -> None:
    never = replace(view, source_observation=SIGHTING)
    denied = replace(status(A1, "denied"), kind=FailureKind.DENIED)
    gone = replace(status(A1, "gone"), kind=FailureKind.GONE)
    assert names_of(replace(never, statuses={**never.statuses, A1: denied})) == (A0, A1)
    assert names_of(replace(never, statuses={**never.statuses, A1: gone})) == ()


def test_a_planned_or_drained_failover_copies_the_rest(view: MirrorSnapshot) -> None:
    never = replace(view, source_observation=SIGHTING)
    assert names_of(never) == (A0, A1)
    assert names_of(replace(never, mode=RunMode.PLANNED)) == ()
    assert names_of(replace(never, is_drained=True)) == ()
