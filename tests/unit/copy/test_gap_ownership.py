"""The right to fill gaps goes from one epoch to the next one, once, and to nobody who does not know the token."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from queue import SimpleQueue
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from mirror_core.copy.driver_messages import ClaimBoard, ClaimClient
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.task import CopyTask
from mirror_core.copy.task_datagrams import Datagram, DatagramKind, DriverChannel, seal_datagram
from mirror_core.dataplane.datagram_receiver import DatagramReceiver
from mirror_core.decide.gaps_and_resume import ResumePoint
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import Partition
from mirror_core.model.task_messages import ListenAddress, PartitionAssignment
from tests.support.waiting import wait_until

A = Partition("orders", 0)
NUMBER = 7 << 3


@pytest.fixture
def board() -> ClaimBoard:
    return ClaimBoard()


@pytest.fixture
def channel(board: ClaimBoard) -> Iterator[DatagramReceiver]:
    with DatagramReceiver(ListenAddress(), {DatagramKind.CLAIMS: board.handle}) as channel:
        yield channel


def letter(epoch: int, **message: object) -> Datagram:
    return Datagram(DatagramKind.CLAIMS, epoch, bytes(8), 1, json.dumps(message).encode())


def leave(board: ClaimBoard, epoch: int) -> None:
    assert board.handle(letter(epoch, left=[["orders", 0, NUMBER]])) == b""


def ask(board: ClaimBoard, epoch: int) -> list[list[object]]:
    answer = board.handle(letter(epoch, wants=[["orders", 0], ["orders", 1]]))
    given: list[list[object]] = json.loads(answer)["given"] if answer else []
    return given


def test_what_one_epoch_leaves_the_next_one_gets_once(board: ClaimBoard) -> None:
    assert ask(board, 2) == []
    leave(board, 1)
    assert ask(board, 2) == [["orders", 0, NUMBER]]
    assert ask(board, 2) == []  # another attempt of the same task waits


def test_nobody_gets_back_what_was_left_by_its_own_epoch_or_a_later_one(board: ClaimBoard) -> None:
    leave(board, 2)
    assert ask(board, 1) == ask(board, 2) == []
    assert ask(board, 3) == [["orders", 0, NUMBER]]


def test_what_is_asked_for_twice_is_given_once(board: ClaimBoard) -> None:
    leave(board, 1)
    answer = board.handle(letter(2, wants=[["orders", 0], ["orders", 0]]))
    assert json.loads(answer)["given"] == [["orders", 0, NUMBER]]


@pytest.mark.parametrize("damage", [{"left": [["orders", 0]]}, {"left": 5}, {"wants": [["orders"]]}])
def test_what_makes_no_sense_leaves_nothing(board: ClaimBoard, damage: dict[str, object]) -> None:
    with pytest.raises(msgspec.MsgspecError):
        board.handle(letter(1, **{"left": [["orders", 0, NUMBER]], "wants": [], **damage}))
    assert ask(board, 2) == []


def test_a_claim_that_somebody_kept_and_sends_again_is_not_given_twice(board: ClaimBoard) -> None:
    channel = DatagramReceiver(ListenAddress(), {DatagramKind.CLAIMS: board.handle})
    left = seal_datagram(
        channel.address_for(1).token, Datagram(DatagramKind.CLAIMS, 1, b"one task", 7, b'{"left":[["orders",0,56]]}')
    )
    assert channel.handle(left) == b""
    wants = Datagram(DatagramKind.CLAIMS, 2, b"the next", 1, b'{"wants":[["orders",0]]}')
    assert channel.handle(seal_datagram(channel.address_for(2).token, wants))
    assert channel.handle(left) is None
    assert channel.handle(seal_datagram(channel.address_for(2).token, wants._replace(number=2))) == b""
    channel.socket.close()


def test_a_task_inherits_what_its_predecessor_has_left(channel: DatagramReceiver) -> None:
    before, after = replicator(), replicator()
    before.gap_claim.note_epoch(NUMBER)
    before.gap_claim.mark_landed(NUMBER)
    after.skip_to(20)
    after.gap_claim.note_epoch(NUMBER)
    assert not after.gap_claim.is_owned
    with closing(line(channel, 1)) as ends:
        ClaimClient(ends).release([before])
    begins = line(channel, 2)
    heir = ClaimClient(begins)

    def inherits() -> bool:
        heir.exchange({A: after})
        return after.gap_claim.is_owned

    wait_until(inherits, timeout_s=10, why="the claim is handed on")
    begins.close()
    after.gap_claim.note_epoch(NUMBER + 1)  # somebody has come between: then it is worth nothing
    assert not after.gap_claim.is_owned


def test_what_is_not_certain_is_not_left() -> None:
    unanswered, sending, lost, filling, well = (replicator() for _ in range(5))
    for one in (unanswered, sending, lost, filling, well):
        one.gap_claim.note_epoch(NUMBER)
        one.gap_claim.mark_landed(NUMBER)
    unanswered.gap_claim.mark_sending(NUMBER)
    sending.progress.add_in_flight(0.0)
    lost.mark_lost("the connection broke")
    filling.skip_to(filling.progress.position + 1)
    filling.start_gap_round()
    taken: list[bytes] = []

    def take(letter: Datagram) -> bytes:
        taken.append(letter.body)
        return b""

    with DatagramReceiver(ListenAddress(), {DatagramKind.CLAIMS: take}) as channel, closing(line(channel, 1)) as ends:
        ClaimClient(ends).release([unanswered, sending, lost, filling])
        ClaimClient(ends).release([well])
    assert [json.loads(body)["left"] for body in taken] == [[["orders", 0, NUMBER]]]


def test_what_is_certain_is_left_while_a_broker_that_hangs_is_waited_for() -> None:
    """Who comes next has begun already. Nothing is left twice: it may have gone from hand to hand since."""
    well, waiting = replicator(), replicator(Partition("orders", 1))
    taken = SimpleQueue[bytes]()
    for one in (well, waiting):
        one.gap_claim.note_epoch(NUMBER)
        one.gap_claim.mark_landed(NUMBER)
    waiting.progress.add_in_flight(0.0)
    told = list[object]()

    def take(letter: Datagram) -> bytes:
        taken.put(letter.body)
        return b""

    def drain(limit_s: float) -> None:
        if not told:
            told.append("nothing yet")
            raise Unreachable("a broker hangs")
        told.append(json.loads(taken.get(timeout=10))["left"])
        waiting.progress.remove_in_flight()

    with DatagramReceiver(ListenAddress(), {DatagramKind.CLAIMS: take}) as channel, closing(line(channel, 1)) as ends:
        task = SimpleNamespace(
            producer=SimpleNamespace(wait_for_responses=drain), replicators=[well, waiting], _last_error=""
        )
        task.stop_s, task.assignment = 0.0, SimpleNamespace(comparison_grace_s=0.0)
        task.is_cancelled = lambda: False
        task._now_s = time.time
        task._claim_client = ClaimClient(ends)
        task._gap_filler = SimpleNamespace(wait_for_rounds=lambda limit_s: None, abandon_slow=lambda limit_s: None)
        task._resume_finder = SimpleNamespace(finish=lambda limit_s, cancelled: 0)
        CopyTask._finish(cast("CopyTask", task))
        told.append(json.loads(taken.get(timeout=10))["left"])
    assert told == ["nothing yet", [["orders", 0, NUMBER]], [["orders", 1, NUMBER]]]
    assert taken.empty()


def test_without_a_driver_nothing_is_handed_on() -> None:
    waiting = replicator()
    waiting.skip_to(20)
    waiting.gap_claim.note_epoch(NUMBER)
    heir = ClaimClient(DriverChannel(1, None))
    heir.exchange({A: waiting})
    heir.release([waiting])
    assert not waiting.gap_claim.is_owned


def line(channel: DatagramReceiver, epoch: int) -> DriverChannel:
    return DriverChannel(epoch, channel.address_for(epoch))


def replicator(partition: Partition = A) -> PartitionReplicator:
    made = PartitionReplicator(PartitionAssignment(partition=partition, source_topic_id="", destination_topic_id=""))
    made.resume_at(ResumePoint(offset=10, sequence=3, gap_end=10, seed_end=10, must_check_tail=False))
    assert made.state is CopyState.READY
    return made
