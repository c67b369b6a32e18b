"""What is sent to several brokers, of which one answers nothing."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from mirror_core.copy import sending
from mirror_core.copy.outbox import Sent
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.sending import Item, Sender
from mirror_core.copy.states import State
from mirror_core.copy.words import Side
from mirror_core.decide.position import Resume
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.producing import ProduceLink
from mirror_core.model.copying import Assigned
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import ClusterName, Partition

HANGS, WELL = 1, 2
PATIENCE_S = 0.2


class Brokers:
    """They take what is sent, and answer nothing; a connection is the test's to look at."""

    def __init__(self) -> None:
        self.ends: dict[int, socket.socket] = {}
        self.sent: dict[int, int] = {HANGS: 0, WELL: 0}
        self.dead: set[int] = set()

    def connect(self, client: object, broker: int) -> Connection:
        if broker in self.dead:
            raise Unreachable(f"broker {broker}: cannot connect")
        ours, self.ends[broker] = socket.socketpair()

        def send(parts: object) -> None:
            self.sent[broker] += 1

        return cast(
            "Connection",
            SimpleNamespace(
                sock=ours,
                where=f"broker {broker}",
                round_trip_s=0.001,
                next_id=itertools.count(1).__next__,
                send=send,
                close=ours.close,
            ),
        )

    def answer(self, broker: int, one: PartitionReplicator, correlation: int, base: int, throttle_ms: int = 0) -> None:
        """It has appended one partition's batch there."""
        topic = one.partition.topic.encode()
        row = struct.pack(">ihqqqih", one.partition.index, 0, base, -1, 0, 0, -1)
        body = struct.pack(">iih", correlation, 1, len(topic)) + topic + struct.pack(">i", 1) + row
        body += struct.pack(">i", throttle_ms)
        self.ends[broker].sendall(struct.pack(">i", len(body)) + body)


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    made = Brokers()
    yield made
    for end in made.ends.values():
        end.close()


def replicator(index: int, broker: int) -> PartitionReplicator:
    assigned = Assigned(partition=Partition("orders", index), source_topic_id="", destination_topic_id="")
    made = PartitionReplicator(assigned)
    made.route(1, 1, broker)
    made.resume_at(Resume(offset=0, sequence=0, gap_end=0, seed_end=0, check_tail=False))
    return made


@pytest.fixture
def both() -> tuple[PartitionReplicator, PartitionReplicator]:
    return replicator(0, HANGS), replicator(1, WELL)


@pytest.fixture
def sender(
    brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Sender]:
    monkeypatch.setattr(sending, "_PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(Side, "of", lambda client: Side(ClusterName("west"), "data"))
    made = Sender(cast("ClusterClient", None), both, float("inf"), 1, brokers.connect)
    yield made
    made.close()


def item(one: PartitionReplicator) -> Item:
    base = one.place.position
    one.place.took(10)
    sent = Sent(base=base, records=10, size=100, content=7)
    return one, sent, memoryview(bytes(100))


def test_all_others_do_not_wait_for_a_broker_that_is_owed_answers(
    sender: Sender, brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator]
) -> None:
    hangs, well = both
    sender.send([item(hangs)])
    sender.send([item(hangs), item(well)])
    assert brokers.sent == {HANGS: 1, WELL: 1}
    assert (hangs.state, hangs.place.in_flight, well.state) == (State.LOST, 1, State.READY)
    assert "broker 1 has answered nothing" in hangs.lost_why


def test_they_wait_once_for_it_however_many_partitions_it_leads(sender: Sender, brokers: Brokers) -> None:
    many = [replicator(index, HANGS) for index in range(20)]
    sender.send([item(many[0])])
    began = time.monotonic()
    for one in many[1:]:
        sender.send([item(one)])
    assert [one.state for one in many[1:]] == [State.LOST] * 19
    assert time.monotonic() - began < 10 * PATIENCE_S


def test_who_has_answered_is_waited_for_again(
    sender: Sender, brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator]
) -> None:
    slow, other = replicator(2, HANGS), replicator(3, HANGS)
    sender.send([item(both[0])])
    sender.send([item(slow)])
    assert slow.state is State.LOST
    assert "is owed too much" in sender.owed(HANGS)
    brokers.answer(HANGS, both[0], 1, 0)
    sender.answers(HANGS)
    assert not sender.owed(HANGS)
    sender.send([item(both[0])])
    answering = threading.Timer(PATIENCE_S / 2, brokers.answer, (HANGS, both[0], 2, 10))
    answering.start()
    sender.send([item(other)])
    answering.join()
    assert (other.state, brokers.sent[HANGS]) == (State.READY, 3)


def test_a_slow_one_is_waited_for_as_long_as_it_took_before(
    sender: Sender, brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator]
) -> None:
    slow, other = replicator(2, HANGS), both[0]
    sender.send([item(other)])
    time.sleep(1.2 * PATIENCE_S)  # what is measured
    brokers.answer(HANGS, other, 1, 0)
    sender.answers(HANGS)
    sender.send([item(other)])
    answering = threading.Timer(1.5 * PATIENCE_S, brokers.answer, (HANGS, other, 2, 10))
    answering.start()
    sender.send([item(slow)])
    answering.join()
    assert (slow.state, brokers.sent[HANGS]) == (State.READY, 3)


def test_what_a_quota_keeps_a_broker_from_reading_is_not_sent_and_nobody_waits_for_it(
    sender: Sender, brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator]
) -> None:
    """Sent, it would fill the buffers between us, and block us until the link counts as dead."""
    throttled, well = both
    sender.send([item(throttled)])
    brokers.answer(HANGS, throttled, 1, 0, throttle_ms=60_000)
    sender.answers(HANGS)
    began = time.monotonic()
    sender.send([item(throttled), item(well)])
    assert time.monotonic() - began < PATIENCE_S
    assert brokers.sent == {HANGS: 1, WELL: 1}
    assert (throttled.state, throttled.place.in_flight, well.state) == (State.LOST, 0, State.READY)
    assert "a quota" in throttled.lost_why
    assert "a quota" in sender.owed(HANGS), "nor is more fetched for it"
    sender.give_up()
    assert list(sender.links) == [HANGS, WELL], "it is no broker that hangs"


def test_who_waits_for_an_answer_behind_a_quota_is_not_hung_up_on(
    sender: Sender,
    brokers: Brokers,
    both: tuple[PartitionReplicator, PartitionReplicator],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "_SILENCE_S", 0.0)
    first, second = both[0], replicator(2, HANGS)
    monkeypatch.setattr(ProduceLink, "full", False)
    sender.send([item(first)])
    sender.send([item(second)])
    brokers.answer(HANGS, first, 1, 0, throttle_ms=60_000)
    sender.answers(HANGS)
    sender.give_up()
    assert (list(sender.links), second.place.in_flight) == ([HANGS], 1)
    with pytest.raises(Unreachable, match="a quota"):
        sender.drain(0.0)


def test_a_quota_that_holds_a_broker_back_for_a_moment_changes_nothing(
    sender: Sender, brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator]
) -> None:
    throttled, _ = both
    sender.send([item(throttled)])
    brokers.answer(HANGS, throttled, 1, 0, throttle_ms=int(500 * PATIENCE_S))
    sender.answers(HANGS)
    assert not sender.owed(HANGS)
    sender.send([item(throttled)])
    assert (throttled.state, brokers.sent[HANGS]) == (State.READY, 2)


def test_a_broker_that_cannot_be_reached_loses_the_places_of_what_it_leads(
    sender: Sender, brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator]
) -> None:
    hangs, well = both
    brokers.dead.add(HANGS)
    sender.send([item(hangs), item(well)])
    assert (hangs.state, hangs.place.in_flight, well.state, well.place.in_flight) == (State.LOST, 0, State.READY, 1)


def test_a_broker_that_hangs_up_has_answered_nothing_of_its_own_and_all_of_others(
    sender: Sender, brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator]
) -> None:
    hangs, well = both
    sender.send([item(hangs), item(well)])
    brokers.ends[HANGS].close()
    sender.answers(HANGS)
    assert (hangs.state, hangs.place.in_flight, well.state, well.place.in_flight) == (State.LOST, 0, State.READY, 1)
    assert list(sender.links) == [WELL]


def test_the_end_waits_for_answers_only_so_long(
    sender: Sender, both: tuple[PartitionReplicator, PartitionReplicator]
) -> None:
    sender.send([item(both[1])])
    with pytest.raises(Unreachable, match="no answer from broker"):
        sender.drain(0.05)


def test_a_broker_that_hangs_up_on_whatever_it_is_sent_is_tried_less_and_less_often(
    sender: Sender, brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator]
) -> None:
    hangs, _ = both
    waits = list[float]()
    for _ in range(8):
        sender.send([item(hangs)])
        brokers.ends[HANGS].close()
        sender.answers(HANGS)
        waits.append(hangs.look_at - time.monotonic())
        hangs.resume_at(Resume(offset=0, sequence=0, gap_end=0, seed_end=0, check_tail=False))
    assert waits[0] < 0.1, "at once, the first time"
    assert waits[-1] > 0.5
