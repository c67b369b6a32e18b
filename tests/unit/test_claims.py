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

from mirror_core.copy.datagrams import Letter, Line, Sort, sealed
from mirror_core.copy.handover import Board, Successor
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.states import State
from mirror_core.copy.task import CopyTask
from mirror_core.dataplane.channel import Channel
from mirror_core.decide.position import Resume
from mirror_core.model.copying import Assigned, Listening
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import Partition
from tests.waiting import wait_until

A = Partition("orders", 0)
NUMBER = 7 << 3


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
def channel(board: Board) -> Iterator[Channel]:
    with Channel(Listening(), {Sort.CLAIMS: board.take}) as channel:
        yield channel


def letter(epoch: int, **message: object) -> Letter:
    return Letter(Sort.CLAIMS, epoch, bytes(8), 1, json.dumps(message).encode())


def leave(board: Board, epoch: int) -> None:
    assert board.take(letter(epoch, left=[["orders", 0, NUMBER]])) == b""


def ask(board: Board, epoch: int) -> list[list[object]]:
    answer = board.take(letter(epoch, wants=[["orders", 0], ["orders", 1]]))
    given: list[list[object]] = json.loads(answer)["given"] if answer else []
    return given


def test_what_one_epoch_leaves_the_next_one_gets_once(board: Board) -> None:
    assert ask(board, 2) == []
    leave(board, 1)
    assert ask(board, 2) == [["orders", 0, NUMBER]]
    assert ask(board, 2) == []  # another attempt of the same task waits


def test_nobody_gets_back_what_was_left_by_its_own_epoch_or_a_later_one(board: Board) -> None:
    leave(board, 2)
    assert ask(board, 1) == ask(board, 2) == []
    assert ask(board, 3) == [["orders", 0, NUMBER]]


def test_what_is_asked_for_twice_is_given_once(board: Board) -> None:
    leave(board, 1)
    answer = board.take(letter(2, wants=[["orders", 0], ["orders", 0]]))
    assert json.loads(answer)["given"] == [["orders", 0, NUMBER]]


@pytest.mark.parametrize("damage", [{"left": [["orders", 0]]}, {"left": 5}, {"wants": [["orders"]]}])
def test_what_makes_no_sense_leaves_nothing(board: Board, damage: dict[str, object]) -> None:
    with pytest.raises(msgspec.MsgspecError):
        board.take(letter(1, **{"left": [["orders", 0, NUMBER]], "wants": [], **damage}))
    assert ask(board, 2) == []


def test_a_claim_that_somebody_kept_and_sends_again_is_not_given_twice(board: Board) -> None:
    channel = Channel(Listening(), {Sort.CLAIMS: board.take})
    left = sealed(channel.at(1).token, Letter(Sort.CLAIMS, 1, b"one task", 7, b'{"left":[["orders",0,56]]}'))
    assert channel.take(left) == b""
    wants = Letter(Sort.CLAIMS, 2, b"the next", 1, b'{"wants":[["orders",0]]}')
    assert channel.take(sealed(channel.at(2).token, wants))
    assert channel.take(left) is None
    assert channel.take(sealed(channel.at(2).token, wants._replace(number=2))) == b""
    channel.socket.close()


def test_a_task_inherits_what_its_predecessor_has_left(channel: Channel) -> None:
    before, after = replicator(), replicator()
    before.gaps.seen(NUMBER)
    before.gaps.landed(NUMBER)
    after.skip_to(20)
    after.gaps.seen(NUMBER)
    assert not after.gaps.owned
    with closing(line(channel, 1)) as ends:
        Successor(ends).leave([before])
    begins = line(channel, 2)
    heir = Successor(begins)

    def inherits() -> bool:
        heir.ask({A: after})
        return after.gaps.owned

    wait_until(inherits, timeout_s=10, why="the claim is handed on")
    begins.close()
    after.gaps.seen(NUMBER + 1)  # somebody has come between: then it is worth nothing
    assert not after.gaps.owned


def test_what_is_not_certain_is_not_left() -> None:
    unanswered, sending, lost, filling, well = (replicator() for _ in range(5))
    for one in (unanswered, sending, lost, filling, well):
        one.gaps.seen(NUMBER)
        one.gaps.landed(NUMBER)
    unanswered.gaps.sending(NUMBER)
    sending.place.sent(0.0)
    lost.lose("the connection broke")
    filling.skip_to(filling.place.position + 1)
    filling.begin_round()
    taken: list[bytes] = []

    def take(letter: Letter) -> bytes:
        taken.append(letter.body)
        return b""

    with Channel(Listening(), {Sort.CLAIMS: take}) as channel, closing(line(channel, 1)) as ends:
        Successor(ends).leave([unanswered, sending, lost, filling])
        Successor(ends).leave([well])
    assert [json.loads(body)["left"] for body in taken] == [[["orders", 0, NUMBER]]]


def test_what_is_certain_is_left_while_a_broker_that_hangs_is_waited_for() -> None:
    """Who comes next has begun already. Nothing is left twice: it may have gone from hand to hand since."""
    well, waiting = replicator(), replicator(Partition("orders", 1))
    taken = SimpleQueue[bytes]()
    for one in (well, waiting):
        one.gaps.seen(NUMBER)
        one.gaps.landed(NUMBER)
    waiting.place.sent(0.0)
    told = list[object]()

    def take(letter: Letter) -> bytes:
        taken.put(letter.body)
        return b""

    def drain(limit_s: float) -> None:
        if not told:
            told.append("nothing yet")
            raise Unreachable("a broker hangs")
        told.append(json.loads(taken.get(timeout=10))["left"])
        waiting.place.answered()

    with Channel(Listening(), {Sort.CLAIMS: take}) as channel, closing(line(channel, 1)) as ends:
        task = SimpleNamespace(sender=SimpleNamespace(drain=drain), replicators=[well, waiting], _trouble="")
        task.stop_s, task.assignment = 0.0, SimpleNamespace(looks_s=0.0)
        task.cancelled = lambda: False
        task._now_s = time.time
        task._successor = Successor(ends)
        task._filler = SimpleNamespace(drain=lambda limit_s: None, give_up=lambda limit_s: None)
        task._aligner = SimpleNamespace(finish=lambda limit_s, cancelled: 0)
        CopyTask._end(cast("CopyTask", task))
        told.append(json.loads(taken.get(timeout=10))["left"])
    assert told == ["nothing yet", [["orders", 0, NUMBER]], [["orders", 1, NUMBER]]]
    assert taken.empty()


def test_without_a_driver_nothing_is_handed_on() -> None:
    waiting = replicator()
    waiting.skip_to(20)
    waiting.gaps.seen(NUMBER)
    heir = Successor(Line(1, None))
    heir.ask({A: waiting})
    heir.leave([waiting])
    assert not waiting.gaps.owned


def line(channel: Channel, epoch: int) -> Line:
    return Line(epoch, channel.at(epoch))


def replicator(partition: Partition = A) -> PartitionReplicator:
    made = PartitionReplicator(Assigned(partition=partition, source_topic_id="", destination_topic_id=""))
    made.resume_at(Resume(offset=10, sequence=3, gap_end=10, seed_end=10, check_tail=False))
    assert made.state is State.READY
    return made
