"""The right to fill gaps, handed from one epoch's task to the next one's.

Without it a new task has to wait until a log end has stood still, though the old one ended well (`copy.gap_markers`).
The old task leaves what it owns with the driver, after everything it sent was answered; the new one asks for what it
waits for. A claim is given once: of two that ask (the first attempt of a task that Spark has given up, and the second),
one gets it. Datagrams that are lost, or a driver out of reach, cost the wait, and nothing else. Datagrams that come
twice, be it from somebody who kept them, are taken once (`copy.datagrams`).

In the same words a task tells what the source deleted before it was copied, again and again until its driver answers
that it is recorded (`copy.deletions`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from mirror_core.copy.datagrams import Letter, Line, Sort, portions
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.states import State
from mirror_core.model.copying import Deletion
from mirror_core.model.names import Offset, Partition

_ASK_S: Final = 0.05
_NUMBER_DIGITS: Final = 12
"""A claim is longer than the question for it by its number: so what is given for one datagram fits into one."""
Left = tuple[Partition, int]
"""A partition, and the coordinator epoch of the newest marker in it: its owner's."""


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A task's word to its driver: what it leaves, what it waits for, what it is to have recorded."""

    left: list[tuple[str, int, int]] = []
    wants: list[tuple[str, int]] = []
    deleted: list[tuple[str, int, int, int]] = []


class _Given(msgspec.Struct, frozen=True, kw_only=True):
    """The driver's answer."""

    given: list[tuple[str, int, int]] = []
    recorded: list[tuple[str, int, int]] = []


# Made once, by the thread that imports this: two that meet a type for the first time crash msgspec (0.22).
_ASKED: Final = msgspec.json.Decoder(_Asked)
_GIVEN: Final = msgspec.json.Decoder(_Given)


class Board:
    """The driver's side: keeps what was left until it is asked for, and deletions until they are recorded. `take` is
    for the thread that listens, the rest for the driver's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deletions: dict[Deletion, None] = {}
        """Those that are not recorded yet, in the order in which they were told."""
        self._recorded: dict[Partition, int] = {}
        """What ends there or before is."""
        self._left: dict[Partition, tuple[int, int]] = {}
        """Epoch that left it, and its number."""

    def take(self, letter: Letter) -> bytes:
        """Take in a task's word; the answer to it, empty when there is none. Raises msgspec's error for nonsense."""
        asked = _ASKED.decode(letter.body)
        for topic, index, number in asked.left:
            self._left[Partition(topic, index)] = letter.epoch, number
        wanted = dict.fromkeys(Partition(topic, index) for topic, index in asked.wants)
        # Who left something cannot take it again: since then it may have gone from hand to hand.
        given = [p for p in wanted if self._left.get(p, (letter.epoch, 0))[0] < letter.epoch]
        rows = [(partition.topic, partition.index, self._left.pop(partition)[1]) for partition in given]
        there = list(self._hear(asked.deleted))
        return msgspec.json.encode(_Given(given=rows, recorded=there)) if rows or there else b""

    def _hear(self, deleted: Iterable[tuple[str, int, int, int]]) -> Iterator[tuple[str, int, int]]:
        for topic, index, first, end in deleted:
            partition = Partition(topic, index)
            with self._lock:
                if end <= self._recorded.get(partition, -1):
                    yield topic, index, end
                else:
                    told = Deletion(partition=partition, first=Offset(first), next=Offset(end))
                    self._deletions[told] = None

    def deletions(self) -> tuple[Deletion, ...]:
        """What tasks have told and wait for."""
        with self._lock:
            return tuple(self._deletions)

    def recorded(self, deletions: Iterable[Deletion]) -> None:
        """The state topic has these."""
        with self._lock:
            for one in deletions:
                self._deletions.pop(one, None)
                self._recorded[one.partition] = max(one.next, self._recorded.get(one.partition, -1))


class Successor:
    """One task's side. Does nothing where there is no driver to talk to."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._due = 0.0
        self._left = set[Partition]()

    def ask(self, replicators: Mapping[Partition, PartitionReplicator]) -> None:
        """Ask for the claims of partitions whose gap is due and not theirs to fill, and have deletions recorded; take
        in what has come for any."""
        now = time.monotonic()
        if not self._line.open or now < self._due:
            return
        self._due = now + _ASK_S
        for body in self._line.answers():
            given = _GIVEN.decode(body)
            for topic, index, number in given.given:
                if (found := replicators.get(Partition(topic, index))) is not None:
                    found.gaps.handed(number)
            for topic, index, end in given.recorded:
                if (found := replicators.get(Partition(topic, index))) is not None:
                    found.deletions.recorded(end)
        waiting = (p for p, one in replicators.items() if one.gap is not None and not one.gaps.owned)
        for rows in portions(((p.topic, p.index) for p in waiting), spare=_NUMBER_DIGITS):
            self._line.tell(Sort.CLAIMS, b'{"wants":%b}' % rows)
        late = ((one.partition, one.deletions.unrecorded) for one in replicators.values() if one.deletions.waits)
        for rows in portions((p.topic, p.index, *offsets) for p, found in late for offsets in found):
            self._line.tell(Sort.CLAIMS, b'{"deleted":%b}' % rows)

    def leave(self, replicators: Iterable[PartitionReplicator]) -> None:
        """The last word: what is ours, with nothing on its way, may be the next one's. Each is left once: since then it
        may have gone from hand to hand."""
        mine = [
            one
            for one in replicators
            if one.partition not in self._left
            and one.gaps.owned
            and not one.place.in_flight
            and not one.beside
            and (one.working or one.state is State.DONE)
        ]
        self._left.update(one.partition for one in mine)
        for rows in portions((one.partition.topic, one.partition.index, one.gaps.newest) for one in mine):
            self._line.tell(Sort.CLAIMS, b'{"left":%b}' % rows)
