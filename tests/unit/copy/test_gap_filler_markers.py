"""Gaps at several brokers, of which one hangs in the middle of a round."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from mirror_core.copy import gap_filler, gap_ownership
from mirror_core.copy.background import BackgroundThreads
from mirror_core.copy.gap_filler import GapFiller
from mirror_core.copy.messages import ClusterSide
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.decide.gaps_and_resume import ResumePoint
from mirror_core.kafka import marker_link
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Principal
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.sockets import wait_readable
from mirror_core.model.names import ClusterName, Partition
from mirror_core.model.task_messages import PartitionAssignment
from mirror_core.wire.txn_markers import API_KEY as MARKERS
from tests.support.checked_threads import beside
from tests.support.fake_metadata import frame
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

HANGS, WELL = 1, 2
NUMBER = 1 << 3
"""Of the markers before."""
PRODUCER = 7
FOREVER = float("inf")


class Broker:
    """Leads one partition, whose log ends at 10; it may be held before it answers a question of one kind."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.end = 10
        self.asked = list[int]()
        """Kinds of all requests."""
        self.holds: int | None = None
        self.go_on = threading.Event()
        self.hung_up = threading.Event()
        """Somebody has, of those that connected."""
        self.led = list[PartitionReplicator]()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                while request := frame(connection):
                    self._answer(connection, request)
            self.hung_up.set()

    def _answer(self, connection: socket.socket, request: bytes) -> None:
        kind, correlation = struct.unpack_from(">h", request)[0], request[4:8]
        self.asked.append(kind)
        if kind == self.holds:
            assert self.go_on.wait(60)
        if kind == MARKERS:
            self.end += 1
            said = struct.pack(">bbqb7sbihbbbb", 0, 2, PRODUCER, 2, b"\x07orders", 2, self.index, 0, 0, 0, 0, 0)
        else:
            said = struct.pack(">iih6siihqqi", 0, 1, 6, b"orders", 1, self.index, 0, -1, self.end, 0)
        answer = correlation + said
        with suppress(OSError):  # nobody waits for it any more
            connection.sendall(len(answer).to_bytes(4, "big") + answer)

    @property
    def index(self) -> int:
        return int(self.listener.getsockname()[1]) % 1000

    @property
    def partition(self) -> Partition:
        return Partition("orders", self.index)


@pytest.fixture
def brokers() -> Iterator[dict[int, Broker]]:
    with ExitStack() as opened:
        made = {}
        for broker in (HANGS, WELL):
            made[broker] = one = Broker(opened.enter_context(socket.create_server(("127.0.0.1", 0))))
            opened.enter_context(beside(one.serve, partial(one.listener.shutdown, socket.SHUT_RDWR)))
            opened.callback(one.go_on.set)
        yield made


@pytest.fixture
def lost() -> dict[int, str]:
    return {}


@pytest.fixture
def filler(brokers: dict[int, Broker], lost: dict[int, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[GapFiller]:
    monkeypatch.setattr(ClusterSide, "from_client", lambda client: ClusterSide(ClusterName("west"), "data"))
    config = ClusterConfig(ClusterName("west"), {}, {})

    def connect(broker: int) -> Callable[[], Connection]:
        return lambda: Connection(config, Principal.DATA, *brokers[broker].listener.getsockname())

    def tell(broker: int, why: str) -> None:
        lost[broker] = why
        for one in brokers[broker].led:
            one.handle_disconnect(why)

    west = cast("ClusterClient", None)
    with (
        closing(BackgroundThreads()) as threads,
        closing(GapFiller(west, PRODUCER, 0, 1, connect, tell, threads, time.time)) as made,
    ):
        yield made


def waiting(brokers: dict[int, Broker], broker: int) -> PartitionReplicator:
    """Its gap of one offset is its own to fill."""
    assigned = PartitionAssignment(partition=brokers[broker].partition, source_topic_id="", destination_topic_id="")
    made = PartitionReplicator(assigned)
    made.set_leaders(1, 1, broker)
    made.resume_at(ResumePoint(offset=10, sequence=9, gap_end=11, seed_end=10, must_check_tail=False))
    made.gap_claim.note_epoch(NUMBER)
    made.gap_claim.mark_landed(NUMBER)
    brokers[broker].led.append(made)
    return made


@pytest.fixture
def hangs(brokers: dict[int, Broker]) -> PartitionReplicator:
    return waiting(brokers, HANGS)


@pytest.fixture
def well(brokers: dict[int, Broker]) -> PartitionReplicator:
    return waiting(brokers, WELL)


def ask(filler: GapFiller, broker: Broker, kind: int) -> None:
    """Fill what it leads, until it has been asked this."""

    def asked() -> bool:
        filler.fill(broker.led, FOREVER)
        return kind in broker.asked

    wait_until(asked, timeout_s=20, why=f"broker was not asked {kind}")


LOG_ENDS = 2
KINDS = pytest.mark.parametrize("kind", [LOG_ENDS, MARKERS])


@KINDS
def test_a_broker_that_hangs_in_a_round_holds_up_no_other_brokers_partitions(
    kind: int, filler: GapFiller, brokers: dict[int, Broker], hangs: PartitionReplicator, well: PartitionReplicator
) -> None:
    brokers[HANGS].holds = kind
    wait_until(
        lambda: filler.fill([hangs, well], FOREVER) and well.due_gap is None,
        timeout_s=5,
        why="it waits for another broker",
    )
    assert (well.progress.acknowledged, hangs.progress.acknowledged, hangs.in_background) == (11, 10, True)
    brokers[HANGS].go_on.set()
    wait_until(lambda: filler.fill([hangs, well], FOREVER), timeout_s=20, why="its round never ends")
    assert (hangs.progress.acknowledged, hangs.in_background, hangs.gap_claim.is_owned) == (11, False, True)


def test_markers_count_and_are_owned_though_the_place_was_lost_meanwhile(
    filler: GapFiller, brokers: dict[int, Broker], hangs: PartitionReplicator
) -> None:
    brokers[HANGS].holds = MARKERS
    ask(filler, brokers[HANGS], MARKERS)
    hangs.mark_lost("the source has hung up")
    wait_until(lambda: hangs._clock() >= hangs.next_attempt_at, timeout_s=20, why="time stands still")
    assert not hangs.is_due(), "its log's end moves"
    brokers[HANGS].go_on.set()
    wait_until(lambda: filler.fill([hangs], FOREVER), timeout_s=20, why="its round never ends")
    assert (hangs.state, hangs.is_due(), hangs.gap_claim.is_owned, hangs.counts.gaps) == (CopyState.LOST, True, True, 1)


def test_nothing_is_sent_by_a_round_that_nobody_waits_for(
    filler: GapFiller, lost: dict[int, str], brokers: dict[int, Broker], hangs: PartitionReplicator
) -> None:
    """Another round may have begun: there would be two who fill the same gap."""
    brokers[HANGS].holds = LOG_ENDS
    ask(filler, brokers[HANGS], LOG_ENDS)
    filler.abandon_slow(0.0)
    assert format_sentence("broker_no_answer_to_markers", "west", 1) in lost[HANGS]
    brokers[HANGS].go_on.set()
    assert brokers[HANGS].hung_up.wait(20)
    assert MARKERS not in brokers[HANGS].asked
    assert (hangs.in_background, hangs.gap_claim.is_owned) == (False, True)


def test_what_a_round_has_sent_that_nobody_waits_for_is_nobodys(
    filler: GapFiller, brokers: dict[int, Broker], hangs: PartitionReplicator
) -> None:
    brokers[HANGS].holds = MARKERS
    ask(filler, brokers[HANGS], MARKERS)
    filler.close()
    assert (hangs.in_background, hangs.gap_claim.is_owned, hangs.gap_claim.newest_epoch >> 3) == (False, False, 2)


def test_a_broker_that_ends_a_round_without_an_answer_is_lost_with_words(
    filler: GapFiller, lost: dict[int, str], brokers: dict[int, Broker], hangs: PartitionReplicator
) -> None:
    brokers[HANGS].holds = MARKERS
    ask(filler, brokers[HANGS], MARKERS)
    (one,) = filler._rounds.values()
    one.link.connection.shut_down()
    wait_until(lambda: filler.fill([hangs], FOREVER) or lost, timeout_s=20, why="its end is not seen")
    assert "the broker closed the connection" in lost[HANGS]
    assert (hangs.in_background, hangs.gap_claim.is_owned) == (False, False)


def test_the_end_waits_for_rounds_only_so_long(
    filler: GapFiller,
    brokers: dict[int, Broker],
    hangs: PartitionReplicator,
    well: PartitionReplicator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers[HANGS].holds = MARKERS
    ask(filler, brokers[HANGS], MARKERS)
    brokers[WELL].holds = LOG_ENDS
    ask(filler, brokers[WELL], LOG_ENDS)
    brokers[WELL].go_on.set()
    limits = list[float]()

    def comes(sockets: list[socket.socket], limit_s: float) -> set[socket.socket]:
        """An answer, while one is still to come of the broker that does not hang; and then none does."""
        limits.append(limit_s)
        return wait_readable(sockets, 20.0) if well.in_background else set()

    monkeypatch.setattr(gap_filler, "wait_readable", comes)
    filler.wait_for_rounds(0.5)
    assert (well.due_gap, hangs.in_background) == (None, True)
    assert 0.5 >= limits[0] >= limits[-1], "all of them together"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """By which it is judged how old an answer is. It stands still, whatever the machine does."""
    made = SimpleNamespace(now=time.monotonic())
    stopped = SimpleNamespace(monotonic=lambda: made.now, time=time.time)
    monkeypatch.setattr(gap_filler, "time", stopped)
    monkeypatch.setattr(marker_link, "time", stopped)
    return made


def test_who_comes_to_answers_late_looks_again_at_once_and_goes_on(
    filler: GapFiller, brokers: dict[int, Broker], well: PartitionReplicator, clock: SimpleNamespace
) -> None:
    """What it has seen may be so no longer; and a task that is always busy would else never send anything."""
    brokers[WELL].holds = LOG_ENDS
    ask(filler, brokers[WELL], LOG_ENDS)
    brokers[WELL].go_on.set()
    for _ in range(20):
        assert wait_readable(filler.sockets, 20.0), "no answer comes"
        clock.now += 0.15  # it copies meanwhile
        if filler.fill([well], FOREVER):
            break
    assert (brokers[WELL].asked, well.due_gap) == ([LOG_ENDS, LOG_ENDS, MARKERS], None)


def test_a_newcomer_does_not_act_on_an_answer_that_it_takes_late(
    filler: GapFiller,
    brokers: dict[int, Broker],
    well: PartitionReplicator,
    clock: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The owner may have gone on since."""
    monkeypatch.setattr(gap_filler, "find_turn", lambda epoch, wall_ms: 0)
    monkeypatch.setattr(gap_ownership, "QUIET_S", 0.0)
    broker = brokers[WELL]
    well.gap_claim.forget()
    well.gap_claim.is_quiet(10, clock.now, clock.now, 0.0)  # it has looked before
    well.source.readable_end = 11
    broker.holds = LOG_ENDS
    ask(filler, broker, LOG_ENDS)
    clock.now += 0.15  # it copies meanwhile
    broker.go_on.set()
    wait_until(lambda: wait_readable(filler.sockets, 0.0), timeout_s=20, why="no answer comes")
    wait_until(lambda: filler.fill([well], FOREVER), timeout_s=20, why="its round never ends")
    assert broker.asked.index(MARKERS) > 1, "it looks again first"


def test_a_machine_without_another_thread_is_told_of(
    filler: GapFiller, hangs: PartitionReplicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(threads: BackgroundThreads, work: Callable[[], object]) -> object:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(BackgroundThreads, "submit", begin)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            filler.fill([hangs], FOREVER)
    filler.abandon_slow(0.0)
    filler.wait_for_rounds(0.0)
    assert not hangs.in_background


def test_a_connection_that_is_long_in_coming_is_not_waited_for(
    filler: GapFiller, lost: dict[int, str], brokers: dict[int, Broker], hangs: PartitionReplicator
) -> None:
    """It may come all the same, and is closed."""
    may_come = threading.Event()
    connect = filler._connect(HANGS)
    filler._connect = lambda broker: lambda: connect() if may_come.wait(60) else pytest.fail("not waited for")
    filler.fill([hangs], FOREVER)
    assert (filler.is_connecting, hangs.in_background) == (True, False)
    filler.abandon_slow(0.0)
    assert "cluster west, broker 1: no answer on a new connection for" in lost[HANGS]
    may_come.set()
    assert brokers[HANGS].hung_up.wait(20)
    assert brokers[HANGS].asked == []


def test_a_connection_that_was_just_opened_when_the_task_ends_loses_nobodys_place(
    filler: GapFiller, lost: dict[int, str], hangs: PartitionReplicator
) -> None:
    """The first gap of an epoch at this broker, in its last moments."""
    filler.fill([hangs], FOREVER)
    opened = filler._opening[HANGS].future
    assert opened.result(20)
    filler.wait_for_rounds(1.0)
    filler.abandon_slow(0.0)
    assert lost == {}, "it has answered, and nothing was sent"
    assert (hangs.state, hangs.all_answered) == (CopyState.READY, True)
    wait_until(lambda: opened.result().sock.fileno() < 0, timeout_s=20, why="it is closed")
