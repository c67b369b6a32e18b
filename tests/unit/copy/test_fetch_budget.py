"""How much each of the source's brokers is asked for at a time: all their answers together have a budget."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.copy.batch_fetcher import BatchFetcher
from mirror_core.copy.fetch_links import MAX_FETCH_LINKS
from mirror_core.copy.messages import ClusterSide
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.decide.gaps_and_resume import ResumePoint
from mirror_core.decide.task_assignment import MIN_FETCH_BYTES
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.fetch_link import FetchLink, FetchSizer, split_budget
from mirror_core.model.errors import Unreachable
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import ClusterName, Partition
from mirror_core.model.task_messages import PartitionAssignment
from tests.support.fetch_links import FAR_S, NEAR_S, Wire
from tests.support.fetch_responses import Rows, fetch_answer
from tests.support.source_batches import batch
from tests.support.task_assignments import assignment
from tests.support.waiting import wait_until

BUDGET = 32 << 20
MIB = 1 << 20
BROKERS = 10


class Source:
    """Four partitions on each of so many brokers; every question is sent, and the test says what came of it."""

    def __init__(self, brokers: int, round_trip_s: float, throttle: int | None = None) -> None:
        awake = set[PartitionReplicator]()
        self.replicators = [
            PartitionReplicator(_assigned(number), active=awake) for number in range(brokers * MAX_FETCH_LINKS)
        ]
        for number, one in enumerate(self.replicators):
            led_by(one, number % brokers)
        given = assignment(throttle=throttle)
        client = cast("ClusterClient", SimpleNamespace(name="east", config=None, principal=None))
        by_partition = {one.partition: one for one in self.replicators}
        self.taking = True
        """Whether destination brokers take more."""
        self.receiver = BatchFetcher(
            given, client, by_partition, lambda broker: Wire(round_trip_s), lambda broker: self.taking, awake, time.time
        )
        self.ask()

    def ask(self) -> None:
        self.receiver.send_fetches(time.time())

    def links(self) -> list[FetchLink]:
        return [link for lanes in self.receiver.links.values() for link in lanes.links]

    def asked(self) -> int:
        return sum(link.max_bytes for link in self.links())

    def answered(self, broker: int, *, filled: bool) -> None:
        """All that it was asked, one answer after the other; and after each it is asked again."""
        lanes = self.receiver.links[broker]
        for link in [link for link in lanes.links if link.pending]:
            link.pending = False
            lanes.note_response(filled)
            self.ask()

        def made() -> bool:
            lanes.get_free_links()
            return not lanes._attempts

        wait_until(made, timeout_s=10, why="links are made")

    def most(self, broker: int) -> int:
        """Bytes that may come of it at the same time."""
        return sum(link.max_bytes for link in self.receiver.links[broker].links)


def led_by(replicator: PartitionReplicator, broker: int) -> None:
    replicator.mark_lost("its place is to be found")
    replicator.set_leaders(broker, 1, 1)
    replicator.resume_at(ResumePoint(offset=0, sequence=0, gap_end=0, seed_end=0, must_check_tail=False))


def answers(link: FetchLink, rows: Rows) -> None:
    """A broker's answer to the newest question of this link is there, and not yet taken."""
    far_end = cast("Wire", link.connection)._other
    far_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MIB)
    frame = struct.pack(">i", link._correlation) + fetch_answer(rows)
    far_end.sendall(struct.pack(">i", len(frame)) + frame)


def _assigned(number: int) -> PartitionAssignment:
    return PartitionAssignment(partition=Partition("t", number), source_topic_id="", destination_topic_id="")


@pytest.fixture(autouse=True)
def _side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "mirror_core.copy.batch_fetcher.ClusterSide.from_client",
        lambda client: ClusterSide(ClusterName("east"), "data"),
    )


@pytest.fixture
def far() -> Iterator[Source]:
    source = Source(BROKERS, FAR_S)
    yield source
    source.receiver.close()


@pytest.mark.parametrize(("brokers", "most"), [(1, 8 * MIB), (4, 8 * MIB), (8, 4 * MIB), (32, MIB), (500, MIB)])
def test_brokers_near_by_share_the_room_for_answers(brokers: int, most: int) -> None:
    with closing(Source(brokers, NEAR_S).receiver) as receiver:
        assert {link.max_bytes for lanes in receiver.links.values() for link in lanes.links} == {most}


def test_a_far_broker_that_alone_has_something_to_give_is_asked_for_nearly_all_that_may_come(far: Source) -> None:
    for _ in range(MAX_FETCH_LINKS):
        far.answered(0, filled=True)
    assert far.most(0) <= BUDGET // BROKERS, "the others have not answered yet"
    for broker in range(1, BROKERS):
        far.answered(broker, filled=False)
    for _ in range(MAX_FETCH_LINKS):
        far.answered(0, filled=True)
    assert far.most(0) > 0.6 * BUDGET
    assert far.asked() <= BUDGET


def test_what_nobody_else_has_to_give_may_come_at_once(far: Source) -> None:
    for _ in range(2):
        for broker in range(BROKERS):
            far.answered(broker, filled=False)
    assert {far.most(broker) for broker in range(BROKERS)} == {BUDGET // BROKERS // MAX_FETCH_LINKS}, (
        "each on its only link"
    )


def test_who_begins_to_give_has_its_share_as_soon_as_the_others_have_made_room(far: Source) -> None:
    for _ in range(MAX_FETCH_LINKS):
        far.answered(0, filled=True)
        for broker in range(1, BROKERS):
            far.answered(broker, filled=False)
    assert far.most(0) > 0.6 * BUDGET
    for broker in range(BROKERS):
        far.answered(broker, filled=True)
        assert far.asked() <= BUDGET + MAX_FETCH_LINKS * BROKERS * MIN_FETCH_BYTES
    for _ in range(2):
        for broker in range(BROKERS):
            far.answered(broker, filled=True)
    assert {far.most(broker) // MIB for broker in range(BROKERS)} == {BUDGET // BROKERS // MIB}
    assert far.asked() <= BUDGET


def test_who_has_nothing_left_to_give_keeps_no_large_buffers(far: Source) -> None:
    for _ in range(MAX_FETCH_LINKS):
        far.answered(0, filled=True)
        for broker in range(1, BROKERS):
            far.answered(broker, filled=False)
    for link in far.receiver.links[0].links:
        link._buffer = bytearray(link.max_bytes)
    for one in far.replicators[BROKERS:]:  # of one partition is asked on one link
        one.mark_lost("its place is to be found")
    far.answered(1, filled=True)
    for _ in range(MAX_FETCH_LINKS):
        far.answered(0, filled=False)
    assert far.most(0) <= MIB
    assert sum(len(link._buffer) for link in far.receiver.links[0].links) <= MIB


@pytest.mark.parametrize("how", ["moved", "failed"])
def test_who_has_nothing_more_to_be_asked_for_holds_no_room(how: str) -> None:
    with closing((source := Source(3, FAR_S)).receiver):
        for _ in range(MAX_FETCH_LINKS):
            source.answered(0, filled=True)
            for broker in (1, 2):
                source.answered(broker, filled=False)
        assert source.most(0) > BUDGET // 2
        for one in source.replicators[::3]:
            if how == "moved":
                led_by(one, 1)
            else:
                one.fail("it is damaged", None, FailureKind.OTHER)
        for _ in range(MAX_FETCH_LINKS):
            source.answered(0, filled=False)
            source.answered(1, filled=True)
            source.answered(2, filled=False)
        assert (source.most(0), source.most(1)) == (0, BUDGET - MIB), "broker 2 keeps a first answer's room"
        for _ in range(MAX_FETCH_LINKS):
            for broker in (1, 2):
                source.answered(broker, filled=True)
        assert [source.most(broker) for broker in range(3)] == [0, BUDGET // 2, BUDGET // 2]


def test_a_broker_that_is_gone_takes_no_room_from_others() -> None:
    with closing((source := Source(2, FAR_S)).receiver):
        source.receiver.disconnect(1, "it is gone")
        for _ in range(MAX_FETCH_LINKS):
            source.answered(0, filled=True)
        assert source.most(0) == BUDGET


def test_a_broker_that_takes_no_more_connections_is_asked_for_as_much_on_those_there_are() -> None:
    def refused() -> Connection:
        raise Unreachable("too many connections")

    with closing((source := Source(2, FAR_S)).receiver):
        source.receiver.links[0]._first_connection.open_another = refused  # type: ignore[method-assign]
        for _ in range(2):
            source.answered(0, filled=True)
        assert source.most(0) == 8 * MIB, "the most that is asked for at a time"


def test_a_broker_of_which_one_partition_has_more_is_not_quiet() -> None:
    """However little that is of all that was asked for."""
    with closing((source := Source(16, FAR_S)).receiver):
        link = source.receiver.links[0].links[0]
        first, *others = link.requested_partitions
        assert len(others) == MAX_FETCH_LINKS - 1
        for size, filled in ((link._partition_share_bytes - 1, False), (link._partition_share_bytes, True)):
            rows: Rows = {first: (1000, 1000, [], bytes(size))}
            answers(link, rows | {one: (0, 0, [], b"") for one in others})
            assert len(list(link.read_response())) == MAX_FETCH_LINKS
            assert link.has_more is filled
            assert 2 * link.response_bytes < link.max_bytes
            source.ask()


@pytest.mark.parametrize(
    ("brokers", "round_trip_s", "throttle"),
    [(64, FAR_S, None), (500, FAR_S, None), (1, FAR_S, 1000), (1, NEAR_S, 1000)],
)
def test_a_partition_that_gives_nothing_is_suspected_though_answers_are_small(
    brokers: int, round_trip_s: float, throttle: int | None
) -> None:
    """A gap is proven by asking for it alone. Without suspicion nobody does, and it stands still."""
    with closing((source := Source(brokers, round_trip_s, throttle)).receiver) as receiver:
        link = receiver.links[0].links[0]
        gives, *empty = link.requested_partitions
        assert empty
        rows: Rows = {gives: (1000, 1000, [], batch(0, 10))}
        answers(link, rows | {one: (1000, 1000, [], b"") for one in empty})
        receiver.receive(link)
        assert link.max_bytes >= MIN_FETCH_BYTES
        by_partition = {one.partition: one for one in source.replicators}
        assert (by_partition[gives].progress.position, by_partition[gives].source.is_suspect) == (10, False)
        assert all(by_partition[one].source.is_suspect for one in empty)


@given(giving=st.integers(0, 1000), quiet=st.integers(0, 1000), budget=st.integers(1, 1 << 30))
def test_no_more_is_shared_out_than_there_is_and_all_have_something(giving: int, quiet: int, budget: int) -> None:
    if not giving + quiet:
        return
    large = split_budget(budget, giving, quiet, is_active=True) if giving else 0
    small = split_budget(budget, giving, quiet, is_active=False) if quiet else 0
    assert giving * large + quiet * small <= budget
    if giving:
        assert large >= budget // (giving + quiet) - 1, "never less than an equal share"


def test_what_was_learnt_of_a_far_broker_is_forgotten_only_where_it_has_no_room() -> None:
    near, at_once = FetchSizer(8 * MIB), FetchSizer(8 * MIB, 1 << 40)
    assert (near.request_bytes, at_once.request_bytes) == (2 * MIB, 8 * MIB)
    near.set_limit(MIB)
    at_once.set_limit(MIB)
    assert (near.request_bytes, at_once.request_bytes) == (MIB, MIB)
    near.set_limit(8 * MIB)
    at_once.set_limit(4 * MIB)
    assert (near.request_bytes, at_once.request_bytes) == (2 * MIB, 4 * MIB)


def test_what_is_for_brokers_that_take_nothing_leaves_half_of_the_room_to_others() -> None:
    """However many partitions they lead: with an empty line each would be asked for until all of it is used up."""
    with closing((source := Source(1, NEAR_S)).receiver):
        one, wanted = source.replicators[0], source.receiver._can_fetch_more
        waiting = one.queue.budget
        waiting.add(waiting.max_bytes // 2)
        assert wanted(one)
        source.taking = False
        assert not wanted(one)
        waiting.add(-1)
        assert wanted(one)
