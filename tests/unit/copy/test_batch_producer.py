"""What is sent to several brokers, of which one answers nothing."""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.copy import batch_producer
from mirror_core.copy.batch_producer import BatchProducer, OutgoingBatch
from mirror_core.copy.messages import ClusterSide
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.send_queue import Gap, HiddenGap, ReadyBatch, SentBatch
from mirror_core.copy.task import build_report
from mirror_core.decide.gaps_and_resume import ResumePoint
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.error_mapping import ErrorCode
from mirror_core.kafka.sockets import wait_readable
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import ClusterName, Partition
from mirror_core.model.task_messages import PartitionAssignment, TaskReport
from tests.support.sent_batches import reading
from tests.support.sentences import format_sentence
from tests.support.task_assignments import assignment

HANGS, WELL = 1, 2
PATIENCE_S, ALONE_S = 0.2, 0.6


class Brokers:
    """They take what is sent, and answer nothing; a connection is the test's to look at."""

    def __init__(self) -> None:
        self.ends: dict[int, socket.socket] = {}
        self.sent: dict[int, int] = {HANGS: 0, WELL: 0}
        self.dead: set[int] = set()
        self.push: Callable[[Sequence[bytes], float], memoryview] | None = None
        """To the one that hangs; None: the system takes all."""

    def connect(self, broker: int) -> Connection:
        if broker in self.dead:
            raise Unreachable(f"broker {broker}: cannot connect")
        ours, self.ends[broker] = socket.socketpair()

        def push(parts: Sequence[bytes], patience_s: float) -> memoryview:
            self.sent[broker] += 1
            return self.push(parts, patience_s) if self.push and broker == HANGS else memoryview(b"")

        return cast(
            "Connection",
            SimpleNamespace(
                sock=ours,
                where=f"broker {broker}",
                round_trip_s=0.001,
                is_session_expiring=False,
                renew_session=lambda: None,
                next_id=itertools.count(1).__next__,
                push=push,
                receive_chunk=reading(ours, broker),
                close=ours.close,
            ),
        )

    def answer(
        self,
        broker: int,
        one: PartitionReplicator,
        correlation: int,
        base: int,
        throttle_ms: int = 0,
        error: ErrorCode = ErrorCode.none,
    ) -> None:
        """It has appended one partition's batch there, or refused it."""
        topic = one.partition.topic.encode()
        row = struct.pack(">ihqqqih", one.partition.index, error.value, base, -1, 0, 0, -1)
        body = struct.pack(">iih", correlation, 1, len(topic)) + topic + struct.pack(">i", 1) + row
        body += struct.pack(">i", throttle_ms)
        self.ends[broker].sendall(struct.pack(">i", len(body)) + body)


class Waits:
    """For how long each time a broker's answer is waited for."""

    def __init__(self) -> None:
        self.limits: list[float] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def readable(self, waiting: Collection[socket.socket], limit_s: float, **more: Any) -> set[socket.socket]:
        if limit_s:
            self.limits.append(limit_s)
            self.meanwhile()
        return wait_readable(waiting, limit_s, **more)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    made = Waits()
    monkeypatch.setattr(batch_producer, "wait_readable", made.readable)
    return made


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    made = Brokers()
    yield made
    for end in made.ends.values():
        end.close()


def replicator(index: int, broker: int) -> PartitionReplicator:
    assigned = PartitionAssignment(partition=Partition("orders", index), source_topic_id="", destination_topic_id="")
    made = PartitionReplicator(assigned)
    made.set_leaders(1, 1, broker)
    made.resume_at(ResumePoint(offset=0, sequence=0, gap_end=0, seed_end=0, must_check_tail=False))
    return made


@pytest.fixture
def both() -> tuple[PartitionReplicator, PartitionReplicator]:
    return replicator(0, HANGS), replicator(1, WELL)


@pytest.fixture
def sender(
    brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator], monkeypatch: pytest.MonkeyPatch
) -> Iterator[BatchProducer]:
    monkeypatch.setattr(batch_producer, "_FULL_LINK_WAIT_S", PATIENCE_S)
    monkeypatch.setattr(batch_producer, "_SINGLE_LINK_WAIT_S", ALONE_S)
    monkeypatch.setattr(ClusterSide, "from_client", lambda client: ClusterSide(ClusterName("west"), "data"))
    made = BatchProducer(cast("ClusterClient", None), both, float("inf"), 1, brokers.connect, time.time)
    yield made
    made.close()


def item(one: PartitionReplicator) -> OutgoingBatch:
    base = one.progress.position
    one.progress.add_queued(10)
    sent = SentBatch(base_offset=base, records=10, size=100, digest=7)
    return one, sent, memoryview(bytes(100))


def in_line(one: PartitionReplicator) -> list[int]:
    """Offsets of what waits."""
    return [entry[0].base_offset for entry in one.queue.items if not isinstance(entry, Gap | HiddenGap)]


def test_all_others_do_not_wait_for_a_broker_that_is_owed_answers(
    sender: BatchProducer, brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator]
) -> None:
    hangs, well = both
    sender.send([item(hangs)])
    sender.send([item(hangs), item(well)])
    assert brokers.sent == {HANGS: 1, WELL: 1}
    assert (hangs.state, hangs.progress.in_flight, well.state) == (CopyState.READY, 1, CopyState.READY)
    assert in_line(hangs) == [10]
    assert "broker 1: it has answered nothing" in sender.explain_backlog(HANGS)
    assert not sender.can_accept(HANGS)


def test_they_wait_once_for_it_however_many_partitions_it_leads(
    sender: BatchProducer, brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator], waits: Waits
) -> None:
    sender.send([item(both[1])])
    many = [replicator(index, HANGS) for index in range(20)]
    sender.send([item(many[0])])
    for one in many[1:]:
        sender.send([item(one)])
    assert [in_line(one) for one in many[1:]] == [[0]] * 19
    assert waits.limits == [PATIENCE_S]


def test_who_has_answered_is_waited_for_again(
    sender: BatchProducer, brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator], waits: Waits
) -> None:
    slow, other, busy = replicator(2, HANGS), replicator(3, HANGS), both[0]
    sender.send([item(busy)])
    sender.send([item(slow)])
    assert in_line(slow) == [0]
    assert "is owed too much" in sender.explain_backlog(HANGS)
    brokers.answer(HANGS, busy, 1, 0)
    sender.receive(HANGS)
    assert not sender.explain_backlog(HANGS)
    sender.send([item(busy)])
    brokers.answer(HANGS, busy, 2, 10)
    sender.receive(HANGS)  # at once
    sender.send([item(busy)])
    waits.meanwhile = partial(brokers.answer, HANGS, busy, 3, 20)
    sender.send([item(other)])
    assert (in_line(other), brokers.sent[HANGS]) == ([], 4)


def test_one_that_usually_takes_long_is_not_waited_for(
    sender: BatchProducer, brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator], waits: Waits
) -> None:
    """All others would have the pace of a slow broker."""
    slow, other = replicator(2, HANGS), both[0]
    sender.send([item(other), item(both[1])])
    time.sleep(1.2 * PATIENCE_S)  # what is measured
    brokers.answer(HANGS, other, 1, 0)
    sender.receive(HANGS)
    sender.send([item(other)])
    sender.send([item(slow)])
    assert waits.limits == []
    assert (slow.state, in_line(slow), brokers.sent[HANGS]) == (CopyState.READY, [0], 2)
    assert not sender.explain_backlog(HANGS), "it is at work"


def test_one_is_waited_for_longer_while_no_other_is_sent_anything(
    sender: BatchProducer, brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator], waits: Waits
) -> None:
    """What waits in line is copied for that, and there is nothing else to do."""
    one, other = both[0], replicator(2, HANGS)
    sender.send([item(one)])
    waits.meanwhile = partial(brokers.answer, HANGS, one, 1, 0)
    sender.send([item(other)])
    assert (in_line(other), brokers.sent[HANGS], waits.limits) == ([], 2, [ALONE_S])


def test_what_waits_keeps_its_turn(
    sender: BatchProducer, brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator]
) -> None:
    """An answer comes between two batches of one partition: the second one does not overtake the first."""
    one, busy = replicator(2, HANGS), both[0]
    one.progress.is_sequence_known = True
    sender.send([item(busy)])
    first, second, third = (item(one) for _ in range(3))
    sender.send([first])
    one.skip_to(40)
    one.enqueue(SentBatch(base_offset=40, records=10, size=100, digest=7), memoryview(bytes(100)))
    assert in_line(one) == [0, 40]
    brokers.answer(HANGS, busy, 1, 0)
    sender.receive(HANGS)
    assert sender.can_accept(HANGS)
    sender.send([second])
    sender.send([third])
    assert brokers.sent[HANGS] == 1
    assert in_line(one) == [0, 10, 20, 40]
    assert one.queue.bytes == one.queue.budget.bytes == 400
    sender.send([(one, *cast("ReadyBatch", one.pop()))])
    assert (brokers.sent[HANGS], in_line(one), one.progress.in_flight) == (2, [10, 20, 40], 1)
    one.handle_disconnect("the link broke")
    assert (one.state, in_line(one), one.queue.budget.bytes) == (CopyState.LOST, [], 0)


def test_what_the_system_does_not_take_is_sent_on_and_nobody_waits_for_it(
    sender: BatchProducer,
    brokers: Brokers,
    both: tuple[PartitionReplicator, PartitionReplicator],
) -> None:
    hangs, well = both
    pushed, most = list[bytes](), 7

    def push(parts: Sequence[bytes], patience_s: float) -> memoryview:
        whole = b"".join(parts)
        pushed.append(whole[:most])
        return memoryview(whole[most:])

    brokers.push = push
    sender.send([item(hangs)])
    sender.send([item(hangs), item(well)])
    assert (in_line(hangs), brokers.sent[WELL]) == ([10], 1)
    assert [one.fileno() for one in sender.unsent_sockets] == [sender.links[HANGS].connection.sock.fileno()]
    most = 1 << 20
    sender.flush()
    assert sender.unsent_sockets == []
    assert len(b"".join(pushed)) == 4 + int.from_bytes(b"".join(pushed)[:4], "big"), "one frame, whole"


def test_what_a_quota_keeps_a_broker_from_reading_is_not_sent_and_nobody_waits_for_it(
    sender: BatchProducer, brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator], waits: Waits
) -> None:
    """Sent, it would fill the buffers between us."""
    throttled, well = both
    sender.send([item(throttled)])
    brokers.answer(HANGS, throttled, 1, 0, throttle_ms=60_000)
    sender.receive(HANGS)
    sender.send([item(throttled), item(well)])
    assert waits.limits == []
    assert brokers.sent == {HANGS: 1, WELL: 1}
    assert (throttled.state, throttled.progress.in_flight, well.state) == (CopyState.READY, 0, CopyState.READY)
    assert in_line(throttled) == [10]
    assert not sender.can_accept(HANGS)
    assert "a quota" in sender.explain_backlog(HANGS)
    assert "a quota" in told([throttled, well], sender).retry_reason, "people are told what it waits for"
    assert told([well], sender).retry_reason.startswith("cluster west, broker 2: it has answered nothing for 0 s")
    assert told([replicator(3, WELL)], sender).retry_reason == "", "nothing of it is on its way, or waits"


def test_many_short_rests_for_a_quota_are_told_like_one_long_one(
    sender: BatchProducer, brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator]
) -> None:
    slowed, _ = both
    for correlation in (1, 2, 3, 4):
        sender.send([item(slowed)])
        brokers.answer(HANGS, slowed, correlation, 10 * (correlation - 1), throttle_ms=1_000)
        sender.receive(HANGS)
        assert told([slowed], sender).retry_reason == "", "nothing waits: it keeps up"
    _, sent, batch = item(slowed)
    slowed.put_back(sent, batch)
    assert format_sentence("read_nothing_for_a_quota", 4) in told([slowed], sender).retry_reason


def told(ones: list[PartitionReplicator], sender: BatchProducer) -> TaskReport:
    partitions = tuple(one.assigned for one in ones)
    return build_report(assignment(*partitions), ones, "", 0.0, 0.0, 0.0, sender.explain_wait)


class Forgetful:
    """A leader that goes by sequences, and may forget who wrote: then it takes any."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers, self.end = brokers, 0
        self.expected: int | None = None
        self.refuses = 0

    def handles(self, one: PartitionReplicator, correlation: int, sent: SentBatch, throttle_ms: int = 0) -> None:
        error, base = ErrorCode.none, self.end
        if self.refuses:
            self.refuses, error = self.refuses - 1, ErrorCode.not_enough_replicas
        elif self.expected not in (None, sent.base_offset):
            error = ErrorCode.out_of_order_sequence_number
        else:
            self.end, self.expected = self.end + sent.records, sent.base_offset + sent.records
        self.brokers.answer(HANGS, one, correlation, base if error is ErrorCode.none else -1, throttle_ms, error)


def test_what_waited_for_long_is_not_sent_in_a_row_to_who_may_have_forgotten_us(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one that is refused would be followed by the next ones, and each be taken in the place of another."""
    monkeypatch.setattr(ClusterSide, "from_client", lambda client: ClusterSide(ClusterName("west"), "data"))
    one, leader, now = replicator(0, HANGS), Forgetful(brokers), time.monotonic()
    sender = BatchProducer(cast("ClusterClient", None), [one], float("inf"), 1 << 20, brokers.connect, time.time)
    monkeypatch.setattr("mirror_core.copy.batch_producer.time.monotonic", lambda: now)
    first = item(one)
    sender.send([first])
    leader.handles(one, 1, first[1], throttle_ms=25_000)
    sender.receive(HANGS)
    for _ in range(3):
        sender.send([item(one)])
    assert in_line(one) == [10, 20, 30]
    now += 26.0
    leader.expected, leader.refuses = None, 1
    waiting = [entry[0] for entry in one.queue.items if not isinstance(entry, Gap | HiddenGap)]
    for _ in waiting:
        if one.has_sendable_batch and sender.can_accept(HANGS):
            sender.send([(one, *cast("ReadyBatch", one.pop()))])
    assert (brokers.sent[HANGS], in_line(one)) == (2, [20, 30]), "the first one goes alone"
    leader.handles(one, 2, waiting[0])
    sender.receive(HANGS)
    assert (one.state, leader.end) == (CopyState.LOST, 10)
    sender.close()


def test_a_request_that_is_still_on_its_way_out_is_no_silence(
    sender: BatchProducer, brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator]
) -> None:
    """By a slow way it takes longer than a broker may keep silent; cut, it would begin anew each time."""
    brokers.push = lambda parts, patience_s: memoryview(b"".join(parts))[7:]
    sender.send([item(both[0])])
    link = sender.links[HANGS]
    time.sleep(0.1)
    waited = link.overdue_s
    sender.flush()
    assert link.overdue_s < waited
    brokers.push = lambda parts, patience_s: memoryview(b"".join(parts))
    time.sleep(0.1)
    waited = link.overdue_s
    sender.flush()
    assert link.overdue_s >= waited > 0.05, "nothing more was taken"


def test_what_answers_nothing_ends_the_link_and_not_the_task(
    sender: BatchProducer, brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator]
) -> None:
    sender.send([item(both[0])])
    brokers.answer(HANGS, both[0], 1, 0)
    brokers.ends[HANGS].sendall(b"HTTP/1.1 400")
    sender.receive(HANGS)
    assert HANGS not in sender.links
    assert (both[0].state, both[0].progress.acknowledged, both[0].progress.in_flight) == (CopyState.LOST, 10, 0)


def test_nobody_waits_for_the_rest_of_an_answer(
    sender: BatchProducer, brokers: Brokers, both: tuple[PartitionReplicator, PartitionReplicator]
) -> None:
    sender.send([item(both[0])])
    brokers.ends[HANGS].sendall(b"\0\0\0\x40\0\0\0\1")
    sender.receive(HANGS)
    assert both[0].progress.in_flight == 1
