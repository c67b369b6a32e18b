"""A topic must not come back to the cluster that it is copied from; mirrors that share none are free to cross."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.mirror_topology import (
    InboundMirror,
    build_reverse_mirror,
    explain_circles,
    find_circles,
    list_inbound_mirrors,
)
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState, FailureKind, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Partition

TOPICS = ("orders-eu", "orders-us", "bills", "stock")


def mirror(
    name: str, source: str, destination: str, *topics: str, desired: DesiredState = DesiredState.STARTED
) -> Mirror:
    return Mirror(
        name=MirrorName(name),
        source=ClusterName(source),
        destination=ClusterName(destination),
        source_id=source.upper(),
        destination_id=destination.upper(),
        topics=topics,
        producer_id=1 << 62,
        desired=desired,
        created_ms=0,
    )


def status(topic: str, state: PartitionState, kind: FailureKind | None = None) -> PartitionStatus:
    return PartitionStatus(
        partition=Partition(topic, 0), state=state, kind=kind, source_topic_id="s", destination_topic_id="d"
    )


def asked(*mirrors: Mirror) -> dict[str, tuple[InboundMirror, ...]]:
    """All clusters of these mirrors have been asked."""
    clusters = {m.source_id for m in mirrors} | {m.destination_id for m in mirrors}
    return {one: list_inbound_mirrors(one, mirrors, {}, MirrorName("new")) for one in clusters}


def circles(new: Mirror, *others: Mirror) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    found = find_circles(new, TOPICS, asked(new, *others))
    assert not found.not_asked
    return [(one.mirrors, one.topics) for one in found.circles]


def test_opposite_mirrors_of_disjoint_topics_make_no_circle() -> None:
    assert circles(mirror("new", "b", "a", "bills"), mirror("there", "a", "b", "orders-.*")) == []


def test_opposite_mirrors_that_share_a_topic_make_one() -> None:
    back = mirror("new", "b", "a", ".*-eu", "bills")
    assert circles(back, mirror("there", "a", "b", "orders-.*")) == [(("there",), ("orders-eu",))]
    excluded = replace(back, exclude_topics=("orders-eu",))
    assert circles(excluded, mirror("there", "a", "b", "orders-.*")) == []


def test_a_ring_of_three_is_a_circle_where_one_topic_passes_all_filters() -> None:
    new = mirror("new", "c", "a", ".*")
    assert circles(new, mirror("ab", "a", "b", "orders-.*"), mirror("bc", "b", "c", ".*-eu")) == [
        (("ab", "bc"), ("orders-eu",))
    ]
    assert circles(new, mirror("ab", "a", "b", "orders-.*"), mirror("bc", "b", "c", "bills")) == []


def test_a_chain_and_a_fan_in_make_no_circle() -> None:
    assert circles(mirror("new", "b", "c", ".*"), mirror("ab", "a", "b", ".*")) == []
    assert circles(mirror("new", "b", "c", ".*"), mirror("ac", "a", "c", ".*")) == []


def test_a_ring_that_does_not_hold_the_new_mirror_is_searched_once() -> None:
    ring = (mirror("bc", "b", "c", ".*"), mirror("cb", "c", "b", ".*"))
    assert circles(mirror("new", "b", "a", ".*"), *ring) == []


def test_paused_mirrors_count_and_stopped_ones_do_not() -> None:
    there = mirror("there", "a", "b", ".*", desired=DesiredState.PAUSED)
    new = mirror("new", "b", "a", "bills")
    assert circles(new, there) == [(("there",), ("bills",))]
    assert circles(new, replace(there, desired=DesiredState.STOPPED)) == []


@pytest.mark.parametrize("kind", [FailureKind.OCCUPIED, FailureKind.CIRCLE])
def test_topics_that_the_other_mirror_has_given_up_or_never_made_come_from_nobody(kind: FailureKind) -> None:
    there, new = mirror("there", "a", "b", ".*"), mirror("new", "b", "a", ".*")
    statuses = [
        status("orders-eu", PartitionState.STOPPED),
        status("orders-us", PartitionState.FAILED, kind),
        status("bills", PartitionState.FAILED, FailureKind.DENIED),
    ]
    known = {there.name: {one.partition: one for one in statuses}}
    found = find_circles(new, TOPICS, {"B": list_inbound_mirrors("B", [there], known, new.name)})
    assert [one.topics for one in found.circles] == [("bills", "stock")]


def test_only_clusters_that_a_topic_may_come_from_are_asked_for() -> None:
    new = mirror("new", "b", "a", "bills")
    assert find_circles(new, TOPICS, {}).not_asked == {"B": "b"}
    assert find_circles(new, ("orders-eu",), {}).not_asked == {}
    cb = mirror("cb", "c", "b", "bills")
    assert find_circles(new, TOPICS, {"B": list_inbound_mirrors("B", [cb], {}, new.name)}).not_asked == {"C": "c"}
    other = replace(cb, topics=("stock",))
    assert find_circles(new, TOPICS, {"B": list_inbound_mirrors("B", [other], {}, new.name)}).not_asked == {}


def test_a_filter_that_cannot_be_read_copies_nothing() -> None:
    assert circles(mirror("new", "b", "a", ".*"), mirror("there", "a", "b", "(")) == []


def test_a_record_of_a_mirror_elsewhere_is_not_an_inbound_one() -> None:
    assert list_inbound_mirrors("B", [mirror("strange", "a", "c", ".*")], {}, MirrorName("new")) == ()


def test_what_is_said_names_the_topics_the_mirrors_and_what_to_do() -> None:
    new, there = mirror("new", "b", "a", "bills"), mirror("there", "a", "b", ".*")
    [reason] = explain_circles(new, find_circles(new, TOPICS, asked(new, there)).circles)
    assert reason == Finding("mirror_circle", "new", mirrors=["there"], topics=["bills"], source="b")
    assert "--exclude-topics" in str(reason)


clusters = st.sampled_from(["a", "b", "c", "d"])
filters = st.lists(st.sampled_from([*TOPICS, "orders-.*", ".*"]), min_size=1, max_size=2, unique=True).map(tuple)
ends = st.tuples(clusters, clusters).filter(lambda pair: pair[0] != pair[1])


@given(st.lists(st.tuples(ends, filters), max_size=5), ends, filters)
def test_a_circle_is_found_exactly_where_a_topic_can_walk_it(
    made: list[tuple[tuple[str, str], tuple[str, ...]]], new_ends: tuple[str, str], new_filter: tuple[str, ...]
) -> None:
    others = [mirror(f"m{i}", *pair, *chosen) for i, (pair, chosen) in enumerate(made)]
    new = mirror("new", *new_ends, *new_filter)
    found = {topic for _, topics in circles(new, *others) for topic in topics}
    expected = set[str]()
    for topic in InboundMirror(mirror=new).select(TOPICS):
        reached, size = {new.destination}, 0
        while len(reached) > size:
            size = len(reached)
            reached |= {
                m.destination for m in others if m.source in reached and InboundMirror(mirror=m).select([topic])
            }
        if new.source in reached:
            expected.add(topic)
    assert found == expected


def test_the_way_home_is_the_mirror_turned_around() -> None:
    there = mirror("m", "a", "b", ".*")
    back = build_reverse_mirror(there)
    assert (back.name, back.source, back.destination_id) == ("m-back", "b", "A")
    assert circles(back, there) == [(("m",), tuple(sorted(TOPICS)))]
