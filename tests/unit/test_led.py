"""Partitions that give nothing have a link of their own; and each is asked for, on one or the other, come what may."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_core.copy import led, receiving
from mirror_core.copy.errors import answered
from mirror_core.copy.lanes import Lanes
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.receiving import Receiver
from mirror_core.copy.states import State
from mirror_core.copy.task import _rests
from mirror_core.copy.words import Side
from mirror_core.decide.position import Resume
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.fetching import FetchLink
from mirror_core.model.copying import Assigned, Assignment
from mirror_core.model.errors import Unreachable
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import ClusterName, MirrorName, Partition
from mirror_core.wire import fetch
from mirror_core.wire.produce import Produced
from tests.unit.test_lanes import NEAR_S, Wire
from tests.unit.test_rewrite import batch
from tests.waiting import wait_until

BROKERS = (1, 2)
MANY = 4
PARTITIONS = 12
SIDE = Side(ClusterName("west"), "data")


class Link:
    """To a broker that answers when it is told to."""

    throttle_ms, waits_s, filled = 0, 0.0, False
    room = 1 << 20

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.named: dict[Partition, int] = {}
        self.pending, self.asked, self.most = False, 0, 0
        self.max_wait_ms = 0
        self.rows: list[fetch.Fetched] = []

    def ask(self, wanted: list[fetch.Wanted], *, max_wait_ms: int, isolation: fetch.Isolation) -> None:
        assert not self.pending
        assert len({one.partition for one in wanted}) == len(wanted) > 0
        self.named, self.max_wait_ms = {one.partition: one.offset for one in wanted}, max_wait_ms
        self.pending, self.asked = True, self.asked + 1

    def limit(self, max_bytes: int, partition_max_bytes: int) -> None:
        self.most = max_bytes

    @property
    def alone(self) -> bool:
        return len(self.named) == 1

    @property
    def partitions(self) -> list[Partition]:
        return list(self.named) if self.pending else []

    def arrived(self) -> bool:
        return True

    def take(self) -> Iterator[fetch.Fetched]:
        self.pending = False
        yield from self.rows


class World:
    """A source of two brokers, and a destination that takes everything."""

    def __init__(self) -> None:
        self.names = [Partition("t", index) for index in range(PARTITIONS)]
        self.ends = dict.fromkeys(self.names, 0)
        self.awake = set[PartitionReplicator]()
        self.of = {
            name: PartitionReplicator(
                Assigned(partition=name, source_topic_id="", destination_topic_id=""), awake=self.awake
            )
            for name in self.names
        }
        assignment = Assignment(
            mirror=MirrorName("m"),
            source=ClusterName("east"),
            destination=ClusterName("west"),
            config_path="",
            producer_id=1 << 62,
            partitions=(),
            epoch=1,
            task=0,
            start_ms=0,
            stop_ms=int(1000 * (time.time() + 600)),
        )
        east = cast("ClusterClient", SimpleNamespace(name="east", config=None, principal=None))
        self.receiver = Receiver(
            assignment, east, self.of, lambda broker: Wire(NEAR_S), lambda broker: True, self.awake
        )
        self.receiver._link = lambda connection, far: cast("FetchLink", Link(connection))  # type: ignore[method-assign]
        for number, name in enumerate(self.names):
            self.placed(name, BROKERS[number % 2])
        self.turn()

    def turn(self) -> None:
        self.receiver.ask(time.time())
        self.awake -= {one for one in self.awake if _rests(one)}
        wait_until(lambda: not any(lanes._making for lanes in self._lanes()), timeout_s=10, why="it connects")

    def _lanes(self) -> list[Lanes]:
        """All, with the connections that are made by now."""
        for lanes in self.receiver.lanes.values():
            lanes.idle()
        return list(self.receiver.lanes.values())

    def placed(self, name: Partition, broker: int) -> None:
        """Its place is found anew, led by this broker."""
        one = self.of[name]
        if one.ended:
            return
        at, sequence = one.place.acknowledged, one.place.acknowledged_sequence
        one.place.disconnected()
        one.lose("looked for anew")
        one.route(broker, 1, 1)
        one.resume_at(Resume(offset=at, sequence=sequence, gap_end=at, seed_end=at, check_tail=False))
        one.place.in_mind_at -= 20  # its next batch goes alone, and its answer is waited for

    def link(self, broker: int, *, calm: bool) -> Link | None:
        lanes = self.receiver.lanes.get(broker)
        found = None if lanes is None else lanes.calm if calm else lanes.links[0]
        return cast("Link | None", found)

    def answer(self, link: Link | None) -> None:
        """What there is of whom it was asked for; each batch is acknowledged at once."""
        if link is None or not link.pending:
            return
        link.rows = []
        for name, offset in link.named.items():
            end = self.ends[name]
            records = batch(offset, end - offset) if end > offset else b""
            link.rows.append(fetch.Fetched(name, 0, end, end, 0, (), memoryview(bytearray(records))))
        for one, ready in self.receiver.take(cast("FetchLink", link)):
            for sent, _ in ready:
                one.place.sent(time.monotonic())
                answered(one, sent, Produced("t", one.partition.index, 0, sent.base, ""), SIDE)

    def round(self) -> None:
        for calm in (False, True):
            for broker in BROKERS:
                self.answer(self.link(broker, calm=calm))
                self.turn()

    def hangs_up(self, broker: int) -> None:
        self.receiver.lost(broker, "it hung up")
        for name, one in self.of.items():
            if one.source_broker == broker and one.state is State.LOST:
                self.placed(name, broker)

    def behind(self) -> list[Partition]:
        return [name for name, one in self.of.items() if not one.ended and one.place.acknowledged < self.ends[name]]

    def close(self) -> None:
        self.receiver.close()


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirror_core.copy.receiving.Side.of", lambda client: SIDE)
    monkeypatch.setattr(led, "MANY", MANY)
    monkeypatch.setattr(led, "_CALM_S", 1000.0)
    monkeypatch.setattr(led, "_SOON_S", 100.0)
    monkeypatch.setattr(receiving, "_QUESTIONS", 0)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    for _ in range(3):
        made.round()
    yield made
    made.close()


def names(link: Link | None) -> set[int]:
    return {one.index for one in link.partitions} if link is not None else set()


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
    assert world.of[busy].place.acknowledged == 8
    assert calm.named.keys() == {world.names[index] for index in (0, 2, 6, 8, 10)}
    world.of[busy].source.gave_at = -math.inf
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
    monkeypatch.setattr("tests.unit.test_led.answered", lambda *unused: None)
    world.ends[world.names[8]] += 1
    world.answer(calm)
    world.turn()
    assert lanes is not None
    assert calm is not None
    assert calm.max_wait_ms < lanes.max_wait_ms
    world.of[world.names[8]].source.gave_at -= 200
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
    calm, waits, usual = world.link(1, calm=True), {world.names[4]}, world.receiver._wanted
    monkeypatch.setattr(world.receiver, "_wanted", lambda one: one.partition not in waits and usual(one))
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
    world.of[world.names[8]].source.alone = True
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
        calm.waits_s = 60.0
        world.receiver.give_up()
    else:

        def closed() -> bool:
            raise Unreachable("cluster east, broker 1: the broker closed the connection")

        monkeypatch.setattr(calm, "arrived", closed)
        world.answer(calm)
    world.turn()
    assert all(one.state is State.READY for one in world.of.values())
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
            one.source.suspect = False
        for _ in range(3):
            world.round()
        assert world.behind() == []
        assert all(one.tally.gaps == 0 for one in world.of.values())
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
        one.source.gave_at = -math.inf
    elif act == "is suspected":
        one.source.suspect = True
    elif not one.ended:
        one.fail("by the test", None, FailureKind.OTHER)
