"""Partitions that give nothing have a link of their own; and each is asked for, on one or the other, come what may."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_core.copy import batch_fetcher, fetch_links
from mirror_core.copy.partition_states import CopyState
from mirror_core.model.errors import Unreachable
from mirror_core.model.mirror import FailureKind
from tests.support.idle_source import BROKERS, PARTITIONS, SIDE, Link, World

MANY = 4


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirror_core.copy.batch_fetcher.ClusterSide.from_client", lambda client: SIDE)
    monkeypatch.setattr(fetch_links, "MIN_IDLE_PARTITIONS", MANY)
    monkeypatch.setattr(fetch_links, "_IDLE_AFTER_S", 1000.0)
    monkeypatch.setattr(fetch_links, "_DESTINATION_WAIT_S", 100.0)
    monkeypatch.setattr(batch_fetcher, "_MIN_FETCHES", 0)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    for _ in range(3):
        made.round()
    yield made
    made.close()


def names(link: Link | None) -> set[int]:
    return {one.index for one in link.in_flight_partitions} if link is not None else set()


def test_who_gives_nothing_is_asked_for_apart_and_who_does_is_alone(world: World) -> None:
    lanes, calm = (world.link(1, calm=which) for which in (False, True))
    assert (names(lanes), names(calm)) == (set(), {0, 2, 4, 6, 8, 10})
    busy = world.names[4]
    world.ends[busy] += 3
    world.answer(calm)
    world.turn()
    assert (names(lanes), names(calm)) == ({4}, {0, 2, 6, 8, 10})
    assert lanes is not None
    assert calm is not None
    assert lanes.max_wait_ms < calm.max_wait_ms, "a question about many rests longer"
    for _ in range(5):
        world.ends[busy] += 1
        world.answer(lanes)
        world.turn()
    assert world.of[busy].progress.acknowledged == 8
    assert calm.named.keys() == {world.names[index] for index in (0, 2, 6, 8, 10)}
    world.of[busy].source.last_data_at = -math.inf
    world.answer(calm)
    world.turn()
    assert names(calm) == {0, 2, 4, 6, 8, 10}


def test_who_begins_to_give_while_the_lanes_wait_moves_to_their_next_question(world: World) -> None:
    for index in (4, 6):
        world.ends[world.names[index]] += 1
    lanes, calm = (world.link(1, calm=which) for which in (False, True))
    world.answer(calm)
    world.turn()
    assert names(lanes) == {4, 6}
    world.ends[world.names[8]] += 1
    world.answer(calm)
    world.turn()
    assert lanes is not None
    assert calm is not None
    assert (names(lanes), names(calm)) == ({4, 6}, {0, 2, 10}), "its first batch went alone, and was not answered yet"
    assert calm.max_wait_ms < lanes.max_wait_ms, "it is not kept waiting for either"
    world.answer(calm)
    world.turn()
    assert (names(lanes), names(calm)) == ({4, 6}, {0, 2, 8, 10}), "it is asked for, though not alone yet"
    assert calm.max_wait_ms > lanes.max_wait_ms
    world.ends[world.names[4]] += 1
    world.answer(lanes)
    world.turn()
    assert names(lanes) == {4, 6, 8}
    world.ends[world.names[8]] += 1
    world.answer(calm)
    world.answer(lanes)
    world.turn()
    assert (names(lanes), names(calm)) == ({4, 6, 8}, {0, 2, 10})
    assert not world.behind()


def test_a_destination_that_does_not_answer_makes_nobody_ask_again_and_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in (4, 6):
        world.ends[world.names[index]] += 1
    lanes, calm = (world.link(1, calm=which) for which in (False, True))
    world.answer(calm)
    world.turn()
    monkeypatch.setattr("tests.support.idle_source.handle_produce_response", lambda *unused: None)
    world.ends[world.names[8]] += 1
    world.answer(calm)
    world.turn()
    assert lanes is not None
    assert calm is not None
    assert calm.max_wait_ms < lanes.max_wait_ms
    world.of[world.names[8]].source.last_data_at -= 200
    world.answer(calm)
    world.turn()
    assert calm.max_wait_ms > lanes.max_wait_ms


def test_who_has_found_its_place_anew_does_not_wait_for_the_calm_question(world: World) -> None:
    world.placed(world.names[4], 1)
    world.turn()
    assert names(world.link(1, calm=False)) == {4}
    world.placed(world.names[6], 2)
    world.turn()
    assert names(world.link(2, calm=False)) == {6}


def test_who_has_to_wait_is_not_asked_for_and_then_does_not_wait_for_the_calm_question(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm, waits, usual = world.link(1, calm=True), {world.names[4]}, world.receiver._can_fetch_more
    monkeypatch.setattr(world.receiver, "_can_fetch_more", lambda one: one.partition not in waits and usual(one))
    world.of[world.names[6]].fail("by the test", None, FailureKind.OTHER)
    world.answer(calm)
    world.turn()
    assert (names(world.link(1, calm=False)), names(calm)) == (set(), {0, 2, 8, 10})
    waits.clear()
    world.turn()
    assert (names(world.link(1, calm=False)), names(calm)) == ({4}, {0, 2, 8, 10})


def test_who_is_to_be_asked_for_alone_is_not_asked_for_with_the_calm_ones(world: World) -> None:
    for index in (4, 6):
        world.ends[world.names[index]] += 1
    lanes, calm = (world.link(1, calm=which) for which in (False, True))
    world.answer(calm)
    world.turn()
    world.placed(world.names[8], 1)
    world.of[world.names[8]].source.must_fetch_alone = True
    world.answer(calm)
    world.turn()
    assert (names(lanes), names(calm)) == ({4, 6}, {0, 2, 10})
    world.answer(lanes)
    world.turn()
    assert names(lanes) == {8}


@pytest.mark.parametrize("how", ["closed", "silent"])
def test_a_calm_link_that_does_not_work_costs_nothing_but_itself(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    lanes, calm = (world.link(1, calm=which) for which in (False, True))
    assert lanes is not None
    assert calm is not None
    if how == "silent":
        calm.overdue_s = 60.0
        world.receiver.disconnect_silent()
    else:

        def closed() -> bool:
            raise Unreachable("cluster east, broker 1: the broker closed the connection")

        monkeypatch.setattr(calm, "receive_response", closed)
        world.answer(calm)
    world.turn()
    assert all(one.state is CopyState.READY for one in world.of.values())
    assert world.link(1, calm=True) is None
    assert world.link(1, calm=False) is lanes
    assert names(lanes) == {0, 2, 4, 6, 8, 10}
    for _ in range(5):
        world.round()
    assert world.link(1, calm=True) is None, "it is not tried again"


def test_a_broker_that_hung_up_is_asked_for_all_that_it_leads(world: World) -> None:
    world.hangs_up(1)
    world.turn()
    assert names(world.link(1, calm=False)) == {0, 2, 4, 6, 8, 10}


ACTS = st.one_of(
    st.tuples(st.just("gives"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("gives"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("answers"), st.sampled_from([(b, c) for b in BROKERS for c in (False, True)])),
    st.tuples(st.just("placed anew"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("moves"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("calms down"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("is suspected"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("fails"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("hangs up"), st.sampled_from(BROKERS)),
)


@settings(max_examples=150)
@given(st.lists(ACTS, max_size=60))
def test_whatever_happens_all_that_there_is_comes_before_long(acts: list[tuple[str, object]]) -> None:
    world = World()
    try:
        for act, whom in acts:
            happens(world, act, whom)
            world.turn()
        for one in world.of.values():
            one.source.is_suspect = False
        for _ in range(3):
            world.round()
        assert world.behind() == []
        assert all(one.counts.gaps == 0 for one in world.of.values())
    finally:
        world.close()


def happens(world: World, act: str, whom: object) -> None:
    if act == "answers":
        broker, calm = cast("tuple[int, bool]", whom)
        world.answer(world.link(broker, calm=calm))
        return
    if act == "hangs up":
        world.hangs_up(cast("int", whom))
        return
    name = world.names[cast("int", whom)]
    one = world.of[name]
    if act == "gives":
        world.ends[name] += 2
    elif act == "placed anew":
        world.placed(name, one.source_broker)
    elif act == "moves":
        world.placed(name, sum(BROKERS) - one.source_broker)
    elif act == "calms down":
        one.source.last_data_at = -math.inf
    elif act == "is suspected":
        one.source.is_suspect = True
    elif not one.is_ended:
        one.fail("by the test", None, FailureKind.OTHER)
