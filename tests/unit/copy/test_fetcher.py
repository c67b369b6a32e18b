"""Answers of a source's brokers, to what is asked of them now and to what was asked before a place was found anew."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from mirror_core.copy.batch_fetcher import BatchFetcher
from mirror_core.copy.driver_messages import ProgressSender
from mirror_core.copy.fetch_links import FetchLinks
from mirror_core.copy.messages import ClusterSide
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.task_datagrams import DatagramKind, DriverChannel
from mirror_core.dataplane.progress import TASK_PROGRESS_DECODER, ProgressTracker
from mirror_core.decide.gaps_and_resume import ResumePoint
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.error_mapping import ErrorCode
from mirror_core.kafka.fetch_link import FetchLink
from mirror_core.kafka.sockets import wait_readable
from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import ClusterName, Partition
from mirror_core.model.task_messages import PartitionAssignment
from mirror_core.wire import fetch
from tests.support.checked_threads import Work
from tests.support.fetch_responses import fetch_answer
from tests.support.source_batches import batch, fetched
from tests.support.task_assignments import assignment

PARTITION = Partition("orders", 0)
LIMIT_S = 0.2
"""Of a wait for an answer."""
NEAR = cast("Connection", SimpleNamespace(round_trip_s=0.001))


class Link:
    """To one broker; its answer is the test's."""

    is_single_partition, has_more, room_bytes, throttle_ms, max_bytes = True, False, 1 << 20, 0, 0
    overdue_s = 0.0

    def __init__(self) -> None:
        sock, self.far_end = socket.socketpair()
        self.connection = SimpleNamespace(sock=sock, where="cluster east, broker", close=lambda: None)
        self.pending, self.request_count = False, 0
        self.offsets: list[int] = []
        self.waits_ms: list[int] = []
        self.stable = 1_000
        self.answer: list[fetch.FetchedPartition] = []

    def send_fetch(
        self, wanted: list[fetch.FetchPosition], *, max_wait_ms: int, isolation: fetch.IsolationLevel
    ) -> None:
        self.pending, self.request_count = True, self.request_count + 1
        self.waits_ms.append(max_wait_ms)
        self.offsets += [one.offset for one in wanted]

    def set_limits(self, max_bytes: int, partition_max_bytes: int) -> None:
        """What comes is the test's."""

    @property
    def in_flight_partitions(self) -> list[Partition]:
        return [PARTITION] if self.pending else []

    @property
    def requested_partitions(self) -> list[Partition]:
        return [PARTITION]

    def receive_response(self) -> bool:
        return True

    def read_response(self) -> Iterator[fetch.FetchedPartition]:
        self.pending = False
        yield from self.answer


def lanes(link: Link) -> FetchLinks:
    return FetchLinks(NEAR, lambda connection, far: cast("FetchLink", link))


class Source:
    """A partition that is copied from two brokers in turn."""

    def __init__(self) -> None:
        assigned = PartitionAssignment(partition=PARTITION, source_topic_id="", destination_topic_id="")
        self.assignment = assignment(assigned)
        awake = set[PartitionReplicator]()
        self.replicator = PartitionReplicator(assigned, active=awake)
        self.client = cast("ClusterClient", SimpleNamespace(name="east", config=None, principal=None))
        self.receiver = BatchFetcher(
            self.assignment,
            self.client,
            {PARTITION: self.replicator},
            lambda broker: NEAR,
            lambda broker: True,
            awake,
            lambda: time.time(),
        )
        self.links = {broker: Link() for broker in (1, 2)}
        self.receiver.links = {broker: lanes(link) for broker, link in self.links.items()}

    def led_by(self, broker: int, epoch: int, position: int) -> None:
        """Its place is found, there and then; and asked for from there on."""
        self.replicator.mark_lost("its place is found anew")
        self.replicator.set_leaders(broker, epoch, 1)
        self.replicator.resume_at(
            ResumePoint(offset=position, sequence=position, gap_end=position, seed_end=position, must_check_tail=False)
        )
        self.receiver.send_fetches(time.time())

    def answers(self, broker: int, *records: bytes) -> list[int]:
        """Offsets of what is to be sent at once for it."""
        link = self.links[broker]
        link.answer = [fetched(*records, stable=link.stable)]
        found = self.receiver.receive(cast("FetchLink", link))
        return [sent.base_offset for _, ready in found for sent, _ in ready]


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    monkeypatch.setattr(
        "mirror_core.copy.batch_fetcher.ClusterSide.from_client",
        lambda client: ClusterSide(ClusterName("east"), "data"),
    )
    made = Source()
    yield made
    for link in made.links.values():
        link.connection.sock.close()
        link.far_end.close()


def test_a_late_answer_of_the_leader_before_is_no_answer_to_what_its_successor_was_asked(source: Source) -> None:
    source.led_by(1, 1, 100)
    source.led_by(2, 2, 90)  # the destination had refused [90, 100)
    assert source.answers(1, batch(100, 10)) == []
    assert (source.replicator.progress.position, len(source.replicator.queue.items)) == (90, 0), (
        "no gap instead of 90-99"
    )
    assert source.answers(2, batch(90, 20)) == [90]


def test_who_keeps_silent_is_given_up_alone(source: Source) -> None:
    source.led_by(1, 1, 100)
    source.links[2].overdue_s = 60.0
    source.receiver.disconnect_silent()
    assert list(source.receiver.links) == [1]
    assert source.replicator.can_send
    source.links[1].overdue_s = 60.0
    source.links[1].far_end.send(b"answer")
    source.receiver.disconnect_silent()
    assert source.replicator.can_send, "an answer has come, while we waited for somebody else"
    source.links[1].connection.sock.recv(100)
    source.receiver.disconnect_silent()
    assert (source.replicator.state, list(source.receiver.links)) == (CopyState.LOST, [])
    assert source.answers(1, batch(100, 10)) == [], "it was hung up"


@pytest.mark.parametrize(("local_start", "waits_ms"), [(1_000, 500), (0, 0)])
def test_remote_storage_has_the_time_that_it_takes_also_when_one_partition_is_asked_for_alone(
    source: Source, local_start: int, waits_ms: int
) -> None:
    """Brokers of 3.6 and 3.7 wait for remote storage as long as the question says, and no longer."""
    source.led_by(1, 1, 100)
    source.replicator.source.local_start, source.replicator.source.must_fetch_alone = local_start, True
    source.links[1].pending = False
    source.receiver.send_fetches(time.time())
    assert source.links[1].waits_ms == [500, waits_ms]


@pytest.mark.parametrize(("local_start", "waits_ms"), [(1_000, 500), (0, 20)])
def test_who_waits_for_the_destination_takes_no_time_from_remote_storage(
    source: Source, local_start: int, waits_ms: int
) -> None:
    source.led_by(1, 1, 100)
    source.replicator.skip_to(150)
    source.replicator.source.local_start = local_start
    source.links[1].pending = False
    source.receiver.send_fetches(time.time())
    assert source.links[1].waits_ms == [500, waits_ms]


def test_nor_is_it_when_it_leads_again(source: Source) -> None:
    source.led_by(1, 1, 100)
    source.led_by(2, 2, 90)
    source.led_by(1, 3, 90)
    assert source.answers(1, batch(100, 10)) == []
    assert (source.replicator.progress.position, len(source.replicator.queue.items)) == (90, 0)
    assert source.links[1].offsets == [100, 90], "it is asked again"
    assert source.answers(1, batch(90, 20)) == [90]


def test_what_was_asked_before_both_sides_were_compared_is_asked_again(source: Source) -> None:
    source.led_by(1, 1, 100)
    source.led_by(1, 3, 100)  # another one has led meanwhile, and records may be others now
    assert source.answers(1, batch(100, 10)) == []
    assert source.answers(1, batch(100, 10)) == [100]


class Dripping(Connection):
    """Of an answer a byte comes at a time; none of the waits for it is long."""

    def __init__(self) -> None:
        self.where, self.round_trip_s = "cluster east, broker", 0.001
        self.sock, self.far_end = socket.socketpair()
        self._tls_hint = ""
        self._ids = itertools.count(1)
        self.set_timeout(LIMIT_S)

    def drip(self, pause: Callable[[], object]) -> None:
        answer = struct.pack(">iihi", 1, 0, ErrorCode.not_leader_or_follower.value, 0) + bytes(20)
        for byte in struct.pack(">i", len(answer)) + answer:
            pause()
            self.far_end.send(bytes([byte]))


def drop_by_drop(source: Source, *, in_turn: bool) -> list[float]:
    """What each look at an answer took that comes so, until it was whole. `in_turn`: a drop comes after each look."""
    took, looks = list[float](), threading.Semaphore(1)
    pause: Callable[[], object] = looks.acquire if in_turn else partial(time.sleep, LIMIT_S / 4)
    with closing(Dripping()) as connection, closing(connection.far_end):
        link = FetchLink(connection, max_bytes=1, partition_max_bytes=1)
        source.receiver.links[1] = FetchLinks(connection, lambda connection, far: link)
        source.led_by(1, 1, 100)
        dripping = Work(partial(connection.drip, pause), "drip").start()
        while source.replicator.state is CopyState.READY:
            assert wait_readable([connection.sock], 60.0)
            began = time.monotonic()
            assert source.receiver.receive(link) == []
            took.append(time.monotonic() - began)
            source.receiver.disconnect_silent()
            looks.release()
        dripping.join()
    assert "NOT_LEADER" in source.replicator.lost_reason, "it was taken in when it was whole"
    return took


def test_an_answer_that_comes_drop_by_drop_is_not_waited_for_until_it_is_whole(source: Source) -> None:
    assert len(drop_by_drop(source, in_turn=True)) > 2


@pytest.mark.timed
def test_an_answer_that_comes_drop_by_drop_holds_up_nobody_else(source: Source) -> None:
    took = drop_by_drop(source, in_turn=False)
    assert max(took) < 3 * LIMIT_S
    assert sorted(took)[-2] < LIMIT_S, "and waited for once"


def test_an_answer_about_what_was_not_asked_for_makes_no_sense(source: Source) -> None:
    """And is no reason for the task to end, nor for all others with it."""
    answer = fetch_answer({Partition("payments", 7): (9, 9, [], b"")})
    with closing(Dripping()) as connection, closing(connection.far_end):
        link = FetchLink(connection, max_bytes=1, partition_max_bytes=1)
        source.receiver.links[1] = FetchLinks(connection, lambda connection, far: link)
        source.led_by(1, 1, 100)
        connection.far_end.send(struct.pack(">ii", 4 + len(answer), 1) + answer)
        assert source.receiver.receive(link) == []
    assert "payments-7" in source.replicator.lost_reason
    assert (source.replicator.state, source.replicator.source.must_fetch_alone) == (CopyState.LOST, True)


class Told:
    """What a task says of itself, straight to who keeps it."""

    is_open = True

    def __init__(self) -> None:
        self.progress = ProgressTracker(lambda: time.time())

    def send(self, sort: DatagramKind, body: bytes) -> None:
        self.progress.update(TASK_PROGRESS_DECODER.decode(body), 1)


@pytest.mark.parametrize(("stable", "lag"), [(100, None), (150, 50)])
def test_a_source_that_does_not_answer_any_more_has_no_lag_of_0(
    source: Source, monkeypatch: pytest.MonkeyPatch, stable: int, lag: int | None
) -> None:
    began, told = time.time(), Told()
    beacon = ProgressSender(0, cast("DriverChannel", told), lambda: time.time())
    source.led_by(1, 1, 100)
    source.links[1].stable = stable
    source.answers(1)
    for second in range(25):
        monkeypatch.setattr(time, "time", lambda second=second: began + second)
        beacon.send([source.replicator])
        if second < 5:
            assert told.progress.partitions()[PARTITION].lag == max(0, stable - 100)
    assert told.progress.partitions()[PARTITION].lag == lag


@pytest.mark.parametrize("at_first", [True, False])
def test_one_whose_answers_make_no_sense_is_told_from_those_that_were_asked_for_with_it(
    source: Source, monkeypatch: pytest.MonkeyPatch, at_first: bool
) -> None:
    def senseless() -> bool:
        raise RemoteFault("frame of 300000000 bytes announced")

    link = source.links[1]
    monkeypatch.setattr(link, "receive_response", senseless)
    for alone, state in ((at_first, CopyState.LOST), (True, CopyState.FAILED)):
        link.is_single_partition = alone
        source.receiver.links[1] = lanes(link)
        source.led_by(1, 1, 100)
        source.receiver.receive(cast("FetchLink", link))
        source.replicator.finish_if_acknowledged()
        assert source.replicator.state is state
        assert source.replicator.source.must_fetch_alone, "it is asked for alone"
    assert source.replicator.failure is not None
    assert "frame of" in source.replicator.failure.reason


def test_an_answer_that_makes_sense_again_ends_the_suspicion(source: Source) -> None:
    source.led_by(1, 1, 100)
    source.replicator.source.mark_malformed()
    assert source.answers(1, batch(100, 10)) == [100]
    assert not source.replicator.source.must_fetch_alone
