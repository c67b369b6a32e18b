"""The right to fill gaps, handed from one epoch's task to the next one's.

Without it a new task has to wait until a log end has stood still, though the old one ended well (`copy.gap_markers`).
The old task leaves what it owns with the driver, after everything it sent was answered; the new one asks for what it
waits for. A claim is given once: of two that ask (the first attempt of a task that Spark has given up, and the second),
one gets it. Datagrams that are lost, or a driver out of reach, cost the wait, and nothing else.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from mirror_core.copy.datagrams import LARGEST, Address, Datagrams, Message, read
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.states import State
from mirror_core.model.copying import Assignment
from mirror_core.model.names import Partition

_ROWS: Final = 200
"""Of one datagram; a topic name has up to 249 characters."""
_ASK_S: Final = 0.05
Left = tuple[Partition, int]
"""A partition, and the coordinator epoch of the newest marker in it: its owner's."""


class _Asked(Message, frozen=True, kw_only=True):
    """A task's word to its driver: what it leaves, what it waits for."""

    epoch: int
    left: list[tuple[str, int, int]]
    wants: list[tuple[str, int]]


class _Given(Message, frozen=True, kw_only=True):
    """The driver's answer."""

    given: list[tuple[str, int, int]]


# Made once, by the thread that imports this: two that meet a type for the first time crash msgspec (0.22).
_ASKED: Final = msgspec.json.Decoder(_Asked)
_GIVEN: Final = msgspec.json.Decoder(_Given)


class Board(Datagrams):
    """The driver's side: keeps what was left until it is asked for, while entered."""

    def __init__(self) -> None:
        super().__init__("claims")
        self._left: dict[Partition, tuple[int, int]] = {}
        """Epoch that left it, and its number."""

    def take(self, datagram: bytes) -> list[Left] | None:
        """Take in one datagram; what its sender is given for it. None for one that is nobody's we know."""
        message = read(_ASKED, datagram, self.at.token)
        if message is None:
            return None
        for topic, index, number in message.left:
            self._left[Partition(topic, index)] = message.epoch, number
        wanted = dict.fromkeys(Partition(topic, index) for topic, index in message.wants)
        # Who left something cannot take it again: since then it may have gone from hand to hand.
        given = [p for p in wanted if self._left.get(p, (message.epoch, 0))[0] < message.epoch]
        return [(partition, self._left.pop(partition)[1]) for partition in given]

    def received(self, datagram: bytes, sender: Address) -> bool:
        given = self.take(datagram)
        if given:
            self.socket.sendto(_written(self.at.token, given=[_row(left) for left in given]), sender)
        return given is not None


class Successor:
    """One task's side. Does nothing where the assignment names no driver."""

    def __init__(self, assignment: Assignment) -> None:
        self._epoch = assignment.epoch
        self._at = assignment.claims
        self._socket: socket.socket | None = None
        self._due = 0.0
        if self._at is not None:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._socket.connect((self._at.host, self._at.port))

    def ask(self, replicators: Mapping[Partition, PartitionReplicator]) -> None:
        """Ask for the claims of partitions whose gap is due and not theirs to fill; take in what has come for any."""
        now = time.monotonic()
        if self._socket is None or now < self._due:
            return
        self._due = now + _ASK_S
        for partition, number in self._given():
            if partition in replicators:
                replicators[partition].gaps.handed(number)
        waiting = [p for p, one in replicators.items() if one.gap is not None and not one.gaps.owned]
        self._send("wants", [[partition.topic, partition.index] for partition in waiting])

    def leave(self, replicators: Iterable[PartitionReplicator]) -> None:
        """The last word: what is ours, with nothing on its way, may be the next one's."""
        mine = [
            (one.partition, one.gaps.newest)
            for one in replicators
            if one.gaps.owned and not one.place.in_flight and (one.working or one.state is State.DONE)
        ]
        self._send("left", [_row(left) for left in mine])
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _given(self) -> Iterator[Left]:
        assert self._at is not None
        assert self._socket is not None
        while True:
            try:
                datagram = self._socket.recv(LARGEST)
            except OSError:  # nothing there (yet); or nobody listens any more
                return
            message = read(_GIVEN, datagram, self._at.token)
            for topic, index, number in message.given if message else ():
                yield Partition(topic, index), number

    def _send(self, what: str, rows: list[list[Any]]) -> None:
        if self._at is None or self._socket is None:
            return
        for start in range(0, len(rows), _ROWS):
            part = {"epoch": self._epoch, "left": [], "wants": [], what: rows[start : start + _ROWS]}
            try:
                self._socket.send(_written(self._at.token, **part))
            except OSError:
                return  # then the next one waits until the log end has stood still


def _row(left: Left) -> list[Any]:
    return [left[0].topic, left[0].index, left[1]]


def _written(token: str, **message: Any) -> bytes:
    return json.dumps({"token": token, **message}).encode()
