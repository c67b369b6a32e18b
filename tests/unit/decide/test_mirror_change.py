"""What another choice of topics and groups means, and why it may be refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.filters import build_topic_filter
from mirror_core.decide.mirror_change import (
    ChangeInputs,
    ChangePlan,
    FilterChange,
    apply_current_filters,
    build_departures,
    explain_leaving_refusal,
    explain_wrong_hash,
    format_plan,
    format_split,
    list_leaving_topics,
    list_releasable_topics,
    plan_change,
    plan_split,
    select_staying,
    split_filters,
)
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState, Mirror, PartitionState, PartitionStatus, TopicAccess, TopicDeparture
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.source_observation import ObservedTopic, SourceObservation
from tests.support.sentences import format_sentence

MIRROR = Mirror(
    name=MirrorName("m"),
    source=ClusterName("east"),
    destination=ClusterName("west"),
    source_id="e",
    destination_id="w",
    topics=("a", "b"),
    producer_id=1 << 62,
    desired=DesiredState.STARTED,
    created_ms=0,
)
CLOSED, RELEASED = TopicAccess.CLOSED, TopicAccess.RELEASED


def status(topic: str, state: PartitionState = PartitionState.MIRRORING, lmo: int | None = None) -> PartitionStatus:
    return PartitionStatus(
        partition=Partition(topic, 0),
        state=state,
        source_topic_id=f"source-{topic}",
        destination_topic_id=f"id-{topic}",
        lmo=None if lmo is None else Offset(lmo),
    )


def departed(topic: str, access: TopicAccess, lmo: int = 7) -> TopicDeparture:
    return TopicDeparture(
        mirror=MIRROR.name,
        topic=topic,
        access=access,
        since_ms=1,
        is_done=True,
        statuses=(status(topic, PartitionState.STOPPED, lmo),),
    )


def inputs(*recorded: PartitionStatus, departures: tuple[TopicDeparture, ...] = ()) -> ChangeInputs:
    topics = {"a", "b", "c"}
    return ChangeInputs(
        mirror=MIRROR,
        statuses={s.partition: s for s in recorded},
        departures={d.topic: d for d in departures},
        source_topics=topics,
        source_groups=("g1", "g2"),
        destination_ids={topic: f"id-{topic}" for topic in topics},
        destination_ends={Partition(topic, 0): Offset(7) for topic in topics},
    )


BOTH = inputs(status("a"), status("b"))


def planned(change: FilterChange, seen: ChangeInputs = BOTH) -> ChangePlan:
    return plan_change(change, seen)


def test_a_plan_names_what_starts_stops_and_is_kept() -> None:
    plan = planned(FilterChange(topics=("a", "c"), groups=("g1",), access=CLOSED))
    assert (plan.starts, plan.stops, plan.kept, plan.kept_closed) == (("c",), ("b",), ("a",), ("b",))
    assert (plan.group_starts, plan.group_stops) == ((), ("g2",))
    assert (plan.released, plan.returns, plan.refused) == ((), (), ())
    assert any("kept closed on west" in line for line in format_plan(plan, MIRROR))


def test_rights_that_are_excluded_are_bound_to_the_plan_and_those_withdrawn_are_named() -> None:
    seen = replace(BOTH, right_starts=(), right_stops=("ALLOW READ on TOPIC literal 'a' for User:app from *",))
    plan = planned(FilterChange(exclude_rights=("READ TOPIC .*",)), seen)
    lines = list(format_plan(plan, MIRROR))
    assert "rights excluded: READ TOPIC .*" in lines
    assert any(line.startswith("copied rights that the next sync withdraws on west: 1 right: ALLOW") for line in lines)
    assert plan.refused == ()
    assert plan.hash != planned(FilterChange(exclude_rights=("WRITE TOPIC .*",)), seen).hash


def test_what_becomes_of_a_topic_that_leaves_has_to_be_said() -> None:
    undecided = planned(FilterChange(topics=("a",)))
    assert "--release" in undecided.refused[0]
    assert undecided.kept_closed == (), "nobody has chosen that"
    assert planned(FilterChange(topics=("a",), access=RELEASED)).released == ("b",)


def test_a_topic_that_never_had_a_copy_leaves_without_a_word() -> None:
    never_copied = replace(status("b", PartitionState.FAILED), destination_topic_id="")
    plan = planned(FilterChange(topics=("a",)), inputs(status("a"), never_copied))
    assert (plan.stops, plan.kept_closed, plan.refused) == (("b",), (), ())


@pytest.mark.parametrize("change", [FilterChange(topics=("a", "b")), FilterChange(groups=(".*",)), FilterChange()])
def test_a_change_of_nothing_is_refused(change: FilterChange) -> None:
    assert planned(change).refused == ("this changes nothing: the mirror has these filters already",)


@pytest.mark.parametrize("access", [CLOSED, RELEASED])
def test_a_departed_topic_returns_only_if_it_still_ends_where_mirroring_ended(access: TopicAccess) -> None:
    wanted = FilterChange(topics=("a", "b", "c"))
    seen = inputs(status("a"), status("b"), departures=(departed("c", access),))
    plan = planned(wanted, seen)
    assert (plan.returns, plan.starts, plan.refused) == (("c",), (), ())
    moved = replace(seen, departures={"c": departed("c", access, lmo=6)})
    assert "mirroring ended at 6, it ends at 7 now" in planned(wanted, moved).refused[0]
    replaced = replace(seen, destination_ids={**seen.destination_ids, "c": "another"})
    assert "gone or was replaced" in planned(wanted, replaced).refused[0]
    unknown = replace(seen, destination_ends={})
    assert "not known" in planned(wanted, unknown).refused[0]


def test_closed_topics_are_released_by_a_release_alone() -> None:
    seen = inputs(status("a"), status("b"), departures=(departed("c", CLOSED), departed("d", RELEASED)))
    change = FilterChange(access=RELEASED, with_rights=False)
    plan = planned(change, seen)
    assert (plan.released, plan.kept_closed, plan.refused) == (("c",), (), ())
    [departure] = build_departures(change, plan, seen, 5)
    assert (departure.topic, departure.access, departure.is_done, departure.with_rights) == (
        "c",
        RELEASED,
        False,
        False,
    )
    assert departure.statuses == (status("c", PartitionState.STOPPED, 7),)


def test_an_unfinished_change_is_finished_before_another_one_and_before_any_run() -> None:
    stopping = inputs(status("a"), status("b"), status("x", PartitionState.STOPPING))
    assert planned(FilterChange(), stopping).refused == ()
    assert planned(FilterChange(), stopping).unfinished == ("x",)
    assert (
        "an earlier change is not finished: x still leaves" in planned(FilterChange(topics=("a",)), stopping).refused[0]
    )
    for access in TopicAccess:
        assert "an earlier change is not finished" in planned(FilterChange(access=access), stopping).refused[0]
    refusals = list(explain_leaving_refusal(MIRROR, stopping.statuses))
    assert refusals == [Finding("topics_leaving", "m", topics=["x"], source="east")]
    assert not list(explain_leaving_refusal(MIRROR, BOTH.statuses))


@pytest.mark.parametrize(
    ("asked", "is_refused"),
    [
        (FilterChange(), False),
        (FilterChange(access=RELEASED), False),
        (FilterChange(topics=("a", "b"), access=RELEASED), False),
        (FilterChange(access=CLOSED), True),
        (FilterChange(access=RELEASED, with_rights=False), True),
        (FilterChange(topics=("a",), access=RELEASED), True),
    ],
)
def test_an_unfinished_change_is_repeated_but_not_changed(asked: FilterChange, is_refused: bool) -> None:
    """Anything else that it says would be ignored."""
    releasing = TopicDeparture(mirror=MIRROR.name, topic="x", access=RELEASED, since_ms=1)
    seen = inputs(status("a"), status("b"), status("x", PartitionState.STOPPING), departures=(releasing,))
    assert bool(planned(asked, seen).refused) is is_refused


def test_a_release_of_more_than_an_unfinished_change_had_named_is_refused() -> None:
    releasing = replace(departed("x", RELEASED), is_done=False)
    seen = inputs(status("a"), status("b"), departures=(releasing, departed("c", CLOSED)))
    assert planned(FilterChange(access=RELEASED), seen).refused
    assert not planned(FilterChange(), seen).refused


def test_a_plan_says_so_where_nothing_keeps_a_closed_topic_closed() -> None:
    change, open_side = FilterChange(topics=("a",), access=CLOSED), replace(BOTH, unenforced="has no authorizer")
    assert not planned(change).warnings
    [warning] = planned(change, open_side).warnings
    assert format_sentence("no_authorizer_keeps_applications_out", "west") in warning
    assert warning in format_plan(planned(change, open_side), MIRROR)
    assert not planned(replace(change, access=RELEASED), open_side).warnings


def test_filters_do_not_change_after_a_failover_but_what_left_may_be_released() -> None:
    moved = replace(inputs(status("a"), status("b"), departures=(departed("c", CLOSED),)), has_failed_over=True)
    assert "a failover has moved applications" in planned(FilterChange(topics=("a",), access=CLOSED), moved).refused[0]
    assert planned(FilterChange(access=RELEASED), moved).refused == ()


def test_what_has_left_is_not_counted_as_lost_by_an_older_look_at_the_source() -> None:
    seen = SourceObservation(
        mirror=MIRROR.name, at_ms=1, topics=tuple(ObservedTopic(topic=t, id="", ends=(Offset(9),)) for t in "abx")
    )
    staying = inputs(status("a"), status("b")).statuses
    kept = apply_current_filters(MIRROR, staying, seen)
    assert kept is not None
    assert [topic.topic for topic in kept.topics] == ["a", "b"]
    both = inputs(status("a"), status("x", PartitionState.STOPPING)).statuses
    assert select_staying(MIRROR, both).keys() == {Partition("a", 0)}
    assert apply_current_filters(MIRROR, both, seen) is seen, "until it has left"


def test_the_way_home_carries_what_it_was_made_for() -> None:
    assert list_leaving_topics(replace(MIRROR, failback_run="r"), {Partition("x", 0): status("x")}) == frozenset()


def test_a_topic_is_not_released_while_a_task_may_append() -> None:
    leaving = {
        Partition("x", n): replace(status("x", PartitionState.STOPPED), partition=Partition("x", n)) for n in (0, 1)
    }
    waiting = TopicDeparture(mirror=MIRROR.name, topic="x", access=RELEASED, since_ms=1)
    assert list_releasable_topics(MIRROR, leaving, [waiting]) == {"x"}
    leaving[Partition("x", 1)] = replace(leaving[Partition("x", 1)], state=PartitionState.STOPPING)
    assert list_releasable_topics(MIRROR, leaving, [waiting]) == frozenset()


def test_a_plan_is_bound_to_its_hash_and_not_to_log_ends() -> None:
    change = FilterChange(topics=("a",), access=CLOSED)
    plan = planned(change)
    assert planned(change, replace(BOTH, destination_ends={})).hash == plan.hash
    assert not list(explain_wrong_hash(plan, plan.hash))
    for other in (replace(change, access=RELEASED), replace(change, groups=("g1",))):
        assert "out of date" in next(explain_wrong_hash(planned(other), plan.hash))


@given(st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef"), min_size=1), st.sampled_from(TopicAccess))
def test_each_recorded_topic_is_kept_or_stops_and_nothing_is_two_things(
    recorded: set[str], wanted: set[str], access: TopicAccess
) -> None:
    seen = replace(inputs(*map(status, sorted(recorded))), mirror=replace(MIRROR, topics=("[a-f]",)))
    plan = planned(FilterChange(topics=tuple(sorted(wanted)), access=access), seen)
    assert sorted((*plan.kept, *plan.stops)) == sorted(recorded)
    assert set(plan.kept) <= wanted
    assert not wanted & set(plan.stops)
    assert sorted((*plan.released, *plan.kept_closed)) == sorted(plan.stops)


NEW = MirrorName("n")


def test_a_split_gives_its_topics_to_the_new_mirror_and_no_topic_passes_both_filters() -> None:
    seen = inputs(status("a"), status("b"), departures=(departed("c", CLOSED),))
    plan = plan_split(NEW, ("b", "c"), replace(seen, source_topics={"b"}))
    assert (plan.moved, plan.kept, plan.departed, plan.refused) == (("b",), ("a",), ("c",), ())
    left, new = split_filters(MIRROR, NEW, ("b",))
    assert (left.exclude_topics, new.topics, new.exclude_topics) == (("b",), ("b",), ())
    assert (new.name, new.groups, new.producer_id) == (NEW, MIRROR.groups, MIRROR.producer_id)
    assert any("move to n, at their offsets: 1 topic: b" in line for line in format_split(plan, MIRROR))


def test_a_topic_that_leaves_by_a_split_or_a_change_is_paused_only_where_it_is_carried() -> None:
    before = replace(MIRROR, paused_topics=("a", "b"))
    left, new = split_filters(before, NEW, ("b",))
    assert (left.paused_topics, new.paused_topics) == (("a",), ("b",))
    assert FilterChange(exclude_topics=("b",)).apply(before).paused_topics == ("a",)


@given(
    patterns=st.lists(st.sampled_from(["a", "b", "ab", "a.*", ".*b", ".*"]), min_size=1, max_size=3),
    topics=st.lists(st.sampled_from(["a", "b", "ab", "ba", "c"]), min_size=1, max_size=4, unique=True),
)
def test_a_topic_is_of_exactly_one_mirror_after_a_split(patterns: list[str], topics: list[str]) -> None:
    before = replace(MIRROR, topics=(".*",), exclude_topics=("c",))
    left, new = split_filters(before, NEW, tuple(patterns))
    carriers = {topic: [topic in build_topic_filter(mirror) for mirror in (left, new)] for topic in topics}
    assert {topic: sum(found) for topic, found in carriers.items()} == {topic: int(topic != "c") for topic in topics}


@pytest.mark.parametrize(
    ("topics", "change", "reason"),
    [
        (("x",), {}, "x: the mirror carries no such topic"),
        (("a", "b"), {}, "nothing would be left of it"),
        (("b", "c"), {}, "c on east would start, too"),
        (("b",), {"has_failed_over": True}, "it can be split after a failback"),
        (("b",), {"problems": ("a fence",)}, "a fence"),
        (("b",), {"together": (("b|x", "a"),)}, "b|x, a belong together"),
        (("b",), {"departures": {"d": replace(departed("d", CLOSED), is_done=False)}}, "d still leaves"),
    ],
)
def test_a_split_is_refused(topics: tuple[str, ...], change: dict[str, object], reason: str) -> None:
    _, new = split_filters(MIRROR, NEW, topics)
    seen = replace(BOTH, source_topics={t for t in BOTH.source_topics if t in build_topic_filter(new)}, **change)  # type: ignore[arg-type]
    [refused] = plan_split(NEW, topics, seen).refused
    assert reason in refused


def test_the_heartbeats_of_the_mirror_are_nothing_that_would_be_left() -> None:
    seen = inputs(status("a"), status("mirrorbook.heartbeats.m"))
    plan = plan_split(NEW, ("a",), replace(seen, source_topics={"a", "mirrorbook.heartbeats.n"}))
    assert len(plan.refused) == 1
    assert "nothing would be left" in plan.refused[0]


@pytest.mark.parametrize("together", [("b", "x"), (".*",)])
def test_topics_that_belong_together_and_are_all_of_one_mirror_do_not_refuse_a_split(together: tuple[str, ...]) -> None:
    seen = replace(inputs(status("b"), status("mirrorbook.heartbeats.m")), source_topics={"b"}, together=(together,))
    assert not [r for r in plan_split(NEW, ("b",), seen).refused if "together" in r]


def test_a_split_plan_is_of_these_partitions_and_of_this_mirror() -> None:
    hashes = {
        plan_split(name, ("b",), seen).hash
        for name, seen in [
            (NEW, BOTH),
            (MirrorName("o"), BOTH),
            (NEW, replace(BOTH, mirror=replace(MIRROR, created_ms=1))),
            (NEW, replace(BOTH, statuses={**BOTH.statuses, Partition("b", 1): status("b")})),
        ]
    }
    assert len(hashes) == 4
