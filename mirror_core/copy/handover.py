"""Hands the right to fill gaps from one epoch's task to the next one's, through the driver.

Otherwise a new task must wait until a log end has not moved for a while (`copy.gap_filler`). The old task releases its
claims after all its requests were answered. A claim is granted once: of two attempts of a task only one gets it. Lost
datagrams cost that wait and nothing else; replayed ones are ignored.

Tasks report trimmed ranges the same way, until the driver confirms that they are recorded.
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
"""A granted claim is longer than its request by the number: so the response to one datagram fits into
one."""
Left = tuple[Partition, int]


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    left: list[tuple[str, int, int]] = []
    wants: list[tuple[str, int]] = []
    deleted: list[tuple[str, int, int, int]] = []


class _Given(msgspec.Struct, frozen=True, kw_only=True):
    given: list[tuple[str, int, int]] = []
    recorded: list[tuple[str, int, int]] = []


# Made once, by the thread that imports this: two that meet a type for the first time crash msgspec (0.22).
_ASKED: Final = msgspec.json.Decoder(_Asked)
_GIVEN: Final = msgspec.json.Decoder(_Given)


class Board:
    """The driver's side. `handle` is for the receiving thread, the rest for the driver's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deletions: dict[Deletion, None] = {}
        self._recorded: dict[Partition, int] = {}
        self._left: dict[Partition, tuple[int, int]] = {}

    def take(self, letter: Letter) -> bytes:
        """Returns the response, or b"". Raises msgspec's errors for malformed bodies."""
        asked = _ASKED.decode(letter.body)
        for topic, index, number in asked.left:
            self._left[Partition(topic, index)] = letter.epoch, number
        wanted = dict.fromkeys(Partition(topic, index) for topic, index in asked.wants)
        # A released claim may have changed hands: its last owner cannot have it back.
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
        with self._lock:
            return tuple(self._deletions)

    def recorded(self, deletions: Iterable[Deletion]) -> None:
        with self._lock:
            for one in deletions:
                self._deletions.pop(one, None)
                self._recorded[one.partition] = max(one.next, self._recorded.get(one.partition, -1))


class Successor:
    def __init__(self, line: Line) -> None:
        self._line = line
        self._due = 0.0
        self._left = set[Partition]()

    def ask(self, replicators: Mapping[Partition, PartitionReplicator]) -> None:
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
        """Releases claims with nothing in flight to the next task. Each once: later it may have changed hands."""
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
