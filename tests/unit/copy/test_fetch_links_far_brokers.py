"""Partitions of one far broker, shared out over several questions at a time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from mirror_core.copy.fetch_links import MAX_FETCH_LINKS, FetchLinks
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.fetch_link import FetchLink
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import Partition
from mirror_core.model.task_messages import PartitionAssignment
from mirror_core.wire import fetch
from tests.support.fetch_links import FAR_S, NEAR_S, Wire
from tests.support.waiting import wait_until


def link_of(connection: Connection, far: bool) -> FetchLink:
    return FetchLink(connection, max_bytes=8 << 20, partition_max_bytes=8 << 20, full_size=far)


def replicators(number: int) -> list[PartitionReplicator]:
    names = [Partition("t", index) for index in range(number)]
    return [
        PartitionReplicator(PartitionAssignment(partition=name, source_topic_id="", destination_topic_id=""))
        for name in names
    ]


def ask(lanes: FetchLinks, link: FetchLink, wanted: list[PartitionReplicator]) -> set[int]:
    mine = lanes.select_partitions(link, wanted)[: lanes.partitions_per_link(len(wanted))]
    if mine:
        items = [fetch.FetchPosition(one.partition, 0) for one in mine]
        link.send_fetch(items, max_wait_ms=0, isolation=fetch.IsolationLevel.READ_COMMITTED)
    return {one.partition.index for one in mine}


def opened(round_trip_s: float) -> FetchLinks:
    lanes = FetchLinks(Wire(round_trip_s), link_of)
    lanes.add_links()
    wait_until(
        lambda: len(lanes.get_free_links()) == (MAX_FETCH_LINKS if round_trip_s == FAR_S else 1),
        timeout_s=10,
        why="links are made",
    )
    return lanes


@pytest.fixture
def far() -> Iterator[FetchLinks]:
    lanes = opened(FAR_S)
    yield lanes
    lanes.close()


def test_a_near_broker_has_one_link_that_asks_for_all() -> None:
    lanes = opened(NEAR_S)
    assert ask(lanes, lanes.links[0], replicators(10)) == set(range(10))
    assert lanes.get_free_links() == []
    lanes.close()


def test_no_partition_is_in_two_questions_and_all_are_in_one(far: FetchLinks) -> None:
    wanted = replicators(10)
    asked = [ask(far, link, wanted) for link in far.get_free_links()]
    assert [len(each) for each in asked] == [3, 3, 3, 1]
    assert set.union(*asked) == set(range(10))
    answered = far.links[1]
    answered.pending = False
    assert ask(far, answered, wanted) == asked[1], "what it gave back is free again, and nothing else is"


def test_while_the_first_link_asks_for_all_the_others_wait() -> None:
    lanes = FetchLinks(Wire(FAR_S), link_of)
    wanted = replicators(8)
    assert len(ask(lanes, lanes.links[0], wanted)) == 8
    lanes.add_links()
    wait_until(lambda: len(lanes.get_free_links()) == MAX_FETCH_LINKS - 1, timeout_s=10, why="links are made")
    assert [ask(lanes, link, wanted) for link in lanes.get_free_links()] == [set()] * (MAX_FETCH_LINKS - 1)
    lanes.close()


def test_every_partition_has_its_turn_on_every_link(far: FetchLinks) -> None:
    wanted, seen = replicators(9), set[int]()
    for _ in range(9):
        seen |= ask(far, far.links[0], wanted)
        far.links[0].pending = False
    assert seen == set(range(9))


def firsts(lanes: FetchLinks, wanted: list[PartitionReplicator], questions: int) -> list[int]:
    """Which partition is named first in each of so many questions."""
    link, found = lanes.links[0], list[int]()
    for _ in range(questions):
        found.append(lanes.select_partitions(link, wanted)[0].partition.index)
        link.request_count += 1
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 10, 610, 1000])
def test_each_partition_is_named_first_about_as_often_as_any_other(count: int) -> None:
    lanes = opened(NEAR_S)
    turns = Counter(firsts(lanes, replicators(count), 10 * count))
    assert turns.keys() == set(range(count))
    assert min(turns.values()) >= 8
    assert max(turns.values()) <= 12
    lanes.close()


def test_when_all_are_behind_none_waits_until_those_before_it_have_been_served_many_times() -> None:
    """An answer has room for some of them only."""
    count, room = 1000, 16
    lanes = opened(NEAR_S)
    begun = firsts(lanes, replicators(count), 4 * count // room)
    assert {(first + step) % count for first in begun for step in range(room)} == set(range(count))
    lanes.close()


def test_a_broker_that_takes_no_more_connections_is_asked_on_those_there_are() -> None:
    def connect() -> Connection:
        raise Unreachable("too many connections")

    lanes = FetchLinks(Wire(FAR_S, connect), link_of)
    lanes.add_links()
    wait_until(lambda: lanes.get_free_links() and not lanes._attempts, timeout_s=10, why="it has been tried")
    lanes.add_links()
    assert (lanes._attempts, len(lanes.links)) == (0, 1)
    lanes.close()


def test_a_connection_that_is_made_too_late_is_closed() -> None:
    made: list[Wire] = []
    gate = threading.Event()

    def connect() -> Connection:
        wait_until(gate.is_set, timeout_s=10, why="the links are closed")
        made.append(Wire(FAR_S))
        return made[-1]

    lanes = FetchLinks(Wire(FAR_S, connect), link_of)
    lanes.add_links()
    lanes.close()
    gate.set()
    wait_until(
        lambda: len(made) == MAX_FETCH_LINKS - 1 and all(wire.sock.fileno() == -1 for wire in made),
        timeout_s=10,
        why="all are closed",
    )
