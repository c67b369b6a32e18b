"""Batches of many partitions to several brokers, whose links break, hang, and bring late what was sent on them.

Brokers and connections are a model, and everything else is the product's: whatever happens, no partition counts as
acknowledged what is not in its log, nothing is in flight that nobody will answer, and once nothing goes wrong any more
all is copied.
"""

from __future__ import annotations

import itertools
import random
import socket
import struct
import time
from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from mirror_core.copy import batch_producer
from mirror_core.copy.batch_producer import BatchProducer
from mirror_core.copy.messages import ClusterSide
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.send_queue import ReadyBatch, SentBatch
from mirror_core.decide.gaps_and_resume import ResumePoint
from mirror_core.kafka import produce_link
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.error_mapping import ErrorCode
from mirror_core.kafka.sockets import wait_readable
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import ClusterName, Partition
from mirror_core.model.task_messages import PartitionAssignment
from tests.support.sent_batches import reading

BROKERS, PARTITIONS, END = 3, 6, 200
WALKS, STEPS = 100, 100
THROTTLES_MS = (0, 0, 0, 5_000, 25_000)
"""By a quota of the broker's: it is as if it took nothing more, until the time is over."""
_REMEMBERED = 5
_LATE_MS = 1_700_000_000_000
"""A time in an answer: the broker takes the batch for one that it has."""
Rows = list[tuple[int, SentBatch]]
"""Of one request: partitions' numbers, and what was sent to each."""


class Log:
    """Of one partition, with the sequences that its leader goes by: here they are the offsets."""

    def __init__(self) -> None:
        self.end = 0
        self.newest = deque[tuple[int, int]](maxlen=_REMEMBERED)

    def append(self, sent: SentBatch) -> tuple[int, int, int]:
        """Error, base offset and time of the answer."""
        batch = sent.base_offset, sent.records
        if batch in self.newest:
            return 0, sent.base_offset, _LATE_MS
        if sent.base_offset != self.end:
            early = ErrorCode.duplicate_sequence_number, ErrorCode.out_of_order_sequence_number
            return early[sent.base_offset > self.end].value, -1, -1
        self.newest.append(batch)
        self.end += sent.records
        return 0, sent.base_offset, -1


class Wire:
    """One connection: what was sent on it, and what has not been handled yet."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.requests = deque[tuple[int, Rows]]()

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


class World:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.logs = [Log() for _ in range(PARTITIONS)]
        self.led_by = [index % BROKERS for index in range(PARTITIONS)]
        self.wires: dict[int, Wire] = {}
        self.old: list[Wire] = []
        self.down = set[int]()
        self.breaks = set[int]()
        self.now = 0.0
        self.replicators = [self._replicator(index) for index in range(PARTITIONS)]
        client = cast("ClusterClient", None)
        self.sender = BatchProducer(client, self.replicators, float("inf"), 150, self.connect, time.time)

    def _replicator(self, index: int) -> PartitionReplicator:
        assigned = PartitionAssignment(
            partition=Partition("orders", index), source_topic_id="", destination_topic_id=""
        )
        return PartitionReplicator(assigned, clock=lambda: self.now)

    def connect(self, broker: int) -> Connection:
        if broker in self.down:
            raise Unreachable("cannot connect")
        if broker in self.wires:
            self.old.append(self.wires[broker])
        wire = self.wires[broker] = Wire()

        def push(parts: list[bytes], patience_s: float) -> memoryview:
            """The system takes it in one or in two parts."""
            if len(parts) > 1 and self.chance.random() < 0.2:
                return memoryview(b"the rest of it")
            due = self.sender.links[broker].in_flight[-1]
            if broker in self.breaks and self.chance.random() < 0.5:
                raise Unreachable("lost while sending")
            wire.requests.append((due.correlation, [(index, sent) for (_, index), (_, sent) in due.tags.items()]))
            return memoryview(b"")

        made = SimpleNamespace(
            sock=wire.ours,
            where=f"broker {broker}",
            round_trip_s=0.001,
            is_session_expiring=False,
            renew_session=lambda: None,
            timeout_s=1.0,
            next_id=itertools.count(1).__next__,
            push=push,
            receive_chunk=reading(wire.ours, broker),
            close=wire.ours.close,
        )
        return cast("Connection", made)

    # -- what happens --------------------------------------------------------------------------------------------

    def sends(self) -> None:
        found = list[tuple[PartitionReplicator, list[ReadyBatch]]]()
        for one in self.chance.sample(self.replicators, self.chance.randint(1, PARTITIONS)):
            queue, place = list[ReadyBatch](), one.progress
            while one.can_send and not place.is_first_unanswered and place.position < END and len(queue) < 3:
                sent = SentBatch(place.position, self.chance.randint(1, 9), 50, 7)
                if one.enqueue(sent, batch := memoryview(bytes(50))):
                    queue.append((sent, batch))
            found.append((one, queue))
        self.sender.send_all(found)

    def handles(self) -> None:
        """A broker handles a request, be it from a connection that we have given up."""
        wires = [*self.wires.values(), *self.old]
        wire = self.chance.choice(wires) if wires else None
        if wire is None or not wire.requests:
            return
        correlation, rows = wire.requests.popleft()
        topic, body = b"orders", b""
        for index, sent in rows:
            error, base, time_ms = self.logs[index].append(sent)
            body += struct.pack(">ihqqqih", index, error, base, time_ms, 0, 0, -1)
        throttle_ms = self.chance.choice(THROTTLES_MS)
        frame = struct.pack(">iih", correlation, 1, len(topic)) + topic + struct.pack(">i", len(rows)) + body
        frame += struct.pack(">i", throttle_ms)
        try:
            wire.theirs.sendall(struct.pack(">i", len(frame)) + frame)
        except OSError:
            return  # nobody is there any more

    def goes_on(self) -> None:
        """What waits in line is sent as soon as there is room, as the task's loop does."""
        self.sender.flush()
        for _ in range(self.chance.randint(1, 3)):
            ready = [
                one
                for one in self.replicators
                if one.has_sendable_batch and self.sender.can_accept(one.destination_broker)
            ]
            self.sender.send([(one, *cast("ReadyBatch", one.pop())) for one in ready])

    def reads(self) -> None:
        for broker, link in list(self.sender.links.items()):
            if link.in_flight and (link.has_buffered or wait_readable([link.connection.sock], 0.0)):
                self.sender.receive(broker)

    def breaks_a_link(self) -> None:
        if self.wires:
            self.chance.choice(list(self.wires.values())).theirs.close()

    def goes_down(self) -> None:
        self.down ^= {self.chance.randrange(BROKERS)}

    def breaks_while_sending(self) -> None:
        self.breaks ^= {self.chance.randrange(BROKERS)}

    def is_given_up(self) -> None:
        if self.sender.links:
            self.sender.disconnect(self.chance.choice(list(self.sender.links)), "no answer to a Produce")

    def moves_a_leader(self) -> None:
        self.led_by[self.chance.randrange(PARTITIONS)] = self.chance.randrange(BROKERS)

    def aligns(self) -> None:
        self.now += 10.0
        for one, log, broker in zip(self.replicators, self.logs, self.led_by, strict=True):
            if one.is_due() and broker not in self.down and not self.sender.explain_backlog(broker):
                one.set_leaders(1, 1, broker)
                one.resume_at(
                    ResumePoint(offset=log.end, sequence=log.end, gap_end=0, seed_end=0, must_check_tail=False)
                )

    # -- what must hold ------------------------------------------------------------------------------------------

    def holds(self) -> None:
        awaited = [0] * PARTITIONS
        for broker, link in self.sender.links.items():
            for due in link.in_flight:
                for _, index in due.tags:
                    assert self.replicators[index].destination_broker == broker
                    awaited[index] += 1
        assert [one.progress.in_flight for one in self.replicators] == awaited
        for one, log in zip(self.replicators, self.logs, strict=True):
            assert one.progress.acknowledged <= log.end
            assert one.state in (CopyState.LOST, CopyState.READY), one.failure

    def comes_to_rest(self) -> None:
        self.down, self.breaks = set(), set()
        for _ in range(20 * END):
            if all(one.progress.acknowledged >= END for one in self.replicators):
                return
            for move in (self.aligns, self.sends, *[self.handles] * 6, self.reads, self.goes_on):
                move()
                self.holds()
        raise AssertionError([(one.state, one.progress.acknowledged, one.lost_reason) for one in self.replicators])

    def close(self) -> None:
        self.sender.close()
        for wire in (*self.wires.values(), *self.old):
            wire.close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for patience in ("_SINGLE_LINK_WAIT_S", "_FULL_LINK_WAIT_S", "_MAX_THROTTLE_S"):
        monkeypatch.setattr(batch_producer, patience, 0.0)
    monkeypatch.setattr(ClusterSide, "from_client", lambda client: ClusterSide(ClusterName("west"), "data"))


@pytest.mark.parametrize("seed", range(5))
def test_nothing_counts_that_is_not_there_and_nothing_waits_for_ever(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for walk in range(WALKS // 5):
        world = World(random.Random(1000 * seed + walk))
        monkeypatch.setattr(produce_link, "time", SimpleNamespace(monotonic=partial(getattr, world, "now")))
        usual = [world.sends, world.handles, world.handles, world.reads, world.goes_on, world.aligns]
        bad = [
            world.breaks_a_link,
            world.goes_down,
            world.breaks_while_sending,
            world.is_given_up,
            world.moves_a_leader,
        ]
        try:
            for _ in range(STEPS):
                world.chance.choice(usual * 4 + bad)()
                world.holds()
            world.comes_to_rest()
        finally:
            world.close()
