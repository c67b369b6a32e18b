"""The right to fill gaps goes from one epoch to the next one, once, and to nobody who does not know the token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mirror_core.copy.handover import Board, Successor
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.states import State
from mirror_core.decide.position import Resume
from mirror_core.model.copying import Assigned, Assignment
from mirror_core.model.names import ClusterName, MirrorName, Partition
from tests.waiting import wait_until

A, B = Partition("orders", 0), Partition("orders", 1)
NUMBER = 7 << 3


@pytest.fixture
def board() -> Iterator[Board]:
    with Board() as board:
        yield board


def message(board: Board, *, epoch: int, left: object = (), wants: object = (), **other: object) -> bytes:
    return json.dumps({"token": board.at.token, "epoch": epoch, "left": left, "wants": wants, **other}).encode()


def leave(board: Board, epoch: int) -> None:
    assert board.take(message(board, epoch=epoch, left=[["orders", 0, NUMBER]])) == []


def ask(board: Board, epoch: int) -> list[tuple[Partition, int]] | None:
    return board.take(message(board, epoch=epoch, wants=[["orders", 0], ["orders", 1]]))


def test_what_one_epoch_leaves_the_next_one_gets_once(board: Board) -> None:
    assert ask(board, 2) == []
    leave(board, 1)
    assert ask(board, 2) == [(A, NUMBER)]
    assert ask(board, 2) == []  # another attempt of the same task waits


def test_nobody_gets_back_what_was_left_by_its_own_epoch_or_a_later_one(board: Board) -> None:
    leave(board, 2)
    assert ask(board, 1) == ask(board, 2) == []
    assert ask(board, 3) == [(A, NUMBER)]


@pytest.mark.parametrize(
    "damage",
    [
        {"token": "guessed"},
        {"token": "é"},
        {"token": None},
        {"left": [["orders", 0]]},
        {"left": 5},
        {"epoch": "soon"},
        {"wants": [["orders"]]},
    ],
)
def test_what_is_not_ours_or_makes_no_sense_is_ignored(board: Board, damage: dict[str, object]) -> None:
    whole = {"token": board.at.token, "epoch": 1, "left": [["orders", 0, NUMBER]], "wants": []}
    assert board.take(json.dumps({**whole, **damage}).encode()) is None
    assert ask(board, 2) == []


def test_a_task_inherits_what_its_predecessor_has_left(board: Board) -> None:
    before, after = replicator(), replicator()
    before.gaps.seen(NUMBER)
    before.gaps.landed(NUMBER)
    after.skip_to(20)
    after.gaps.seen(NUMBER)
    assert not after.gaps.owned
    Successor(assignment(board, 1)).leave([before])
    heir = Successor(assignment(board, 2))

    def inherits() -> bool:
        heir.ask({A: after})
        return after.gaps.owned

    wait_until(inherits, timeout_s=10, why="the claim is handed on")
    heir.close()
    after.gaps.seen(NUMBER + 1)  # somebody has come between: then it is worth nothing
    assert not after.gaps.owned


def test_what_is_not_certain_is_not_left(board: Board) -> None:
    unanswered, sending, lost = replicator(), replicator(), replicator()
    for one in (unanswered, sending, lost):
        one.gaps.seen(NUMBER)
        one.gaps.landed(NUMBER)
    unanswered.gaps.sending(NUMBER)
    sending.place.sent(0.0)
    lost.lose("the connection broke")
    taken: list[bytes] = []

    def take(datagram: bytes) -> list[tuple[Partition, int]]:
        taken.append(datagram)
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(board, "take", take)
        Successor(assignment(board, 1)).leave([unanswered, sending, lost])
        other = replicator()
        other.gaps.seen(NUMBER)
        other.gaps.landed(NUMBER)
        Successor(assignment(board, 1)).leave([other])
        wait_until(lambda: taken, timeout_s=10, why="a word to the driver")
    assert [json.loads(datagram)["left"] for datagram in taken] == [[["orders", 0, NUMBER]]]


def test_without_a_driver_nothing_is_handed_on(board: Board) -> None:
    alone = replace(assignment(board, 1), claims=None)
    waiting = replicator()
    waiting.skip_to(20)
    waiting.gaps.seen(NUMBER)
    heir = Successor(alone)
    heir.ask({A: waiting})
    heir.leave([waiting])
    assert not waiting.gaps.owned


def replicator() -> PartitionReplicator:
    made = PartitionReplicator(Assigned(partition=A, source_topic_id="", destination_topic_id=""))
    made.resume_at(Resume(offset=10, sequence=3, gap_end=10, seed_end=10, check_tail=False))
    assert made.state is State.READY
    return made


def assignment(board: Board, epoch: int) -> Assignment:
    return Assignment(
        mirror=MirrorName("orders"),
        source=ClusterName("east"),
        destination=ClusterName("west"),
        config_path="",
        producer_id=1,
        partitions=(),
        epoch=epoch,
        task=0,
        start_ms=0,
        stop_ms=0,
        claims=board.at,
    )
