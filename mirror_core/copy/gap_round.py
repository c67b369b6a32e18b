"""One round of filling gaps at one broker, without I/O: a generator that yields requests and receives
responses.

Others may write between any two requests. A round sends markers once, and ends when their outcome is known; the next
round fills what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mirror_core.copy.gap_case import GapCase
from mirror_core.copy.words import Side, denied, may_not_mark, not_now, too_far, worn_out
from mirror_core.decide.gaps import LONG_OPEN_MS, turn
from mirror_core.kafka.faults import ErrorCode
from mirror_core.kafka.produced import Meaning, meaning
from mirror_core.model.acl import Operation
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Partition
from mirror_core.wire.markers import Entry

LOOK_AGAIN_S: Final = 0.05
MARKERS_AT_ONCE: Final = 5_000
"""A request blocks one of the broker's threads until all its markers are written."""


class Look(NamedTuple):
    partitions: tuple[Partition, ...]


class Write(NamedTuple):
    entries: Iterator[Entry]


class Reply(NamedTuple):
    ends: Mapping[Partition, tuple[ErrorCode, int]] = {}
    codes: Mapping[tuple[str, int], int] = {}


class _Wrote(NamedTuple):
    number: int
    epoch: int
    owned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRound:
    destination: Side
    producer_id: int
    producer_epoch: int
    epoch: int
    until: float
    stale: Callable[[float], bool]
    round_trip_s: Callable[[], float]
    """0 before the first request."""
    monotonic: Callable[[], float] = field(repr=False)
    wall: Callable[[], float] = field(repr=False)

    def run(self, cases: list[GapCase]) -> Generator[Look | Write, Reply, None]:
        wrote: dict[GapCase, _Wrote] = {}
        if self._turn_is_near():
            cases = [case for case in cases if case.gaps.owned]
        while cases:
            asked, in_turn = self.monotonic(), self._turn()
            unsure = [case for case in cases if case in wrote or not self._sure(case, asked)]
            ends = (yield Look(tuple(case.partition for case in unsure))).ends if unsure else {}
            for one in unsure:
                mine = wrote.get(one)
                if self._stands(one, ends.get(one.partition), one.acknowledged + (mine.number if mine else 0)):
                    one.ends_there(asked)
                    if mine:
                        one.fill(mine.number, mine.epoch)
            if wrote:
                return
            due = [case for case in cases if case.open and case.may_fill(asked, self.round_trip_s())]
            if in_turn is None or in_turn != self._turn():  # probe and write must share a turn
                self._too_far(case for case in due if not case.gaps.owned)
                due = [case for case in due if case.gaps.owned]
            now = self.monotonic()
            if self.wall() >= self.until:
                return
            if any(self.stale(now - case.known_at) for case in due):
                cases = due  # we slept: another owner is possible
                continue
            wrote = self._next(due)
            codes = (yield Write(self._entries(wrote))).codes if wrote else {}
            for one in [case for case, mine in wrote.items() if self._says_all(case, mine, codes)]:
                one.ends_there(now)
                landed = wrote.pop(one)
                one.fill(landed.number, landed.epoch)
            cases = [case for case in wrote if case.open]

    def _sure(self, case: GapCase, now: float) -> bool:
        """True when the log end need not be requested: a response to the owner has just shown it."""
        return case.gaps.sure(now) and not self.stale(now - case.known_at)

    def _turn(self, ahead_s: float = 0.0) -> int | None:
        return turn(self.epoch, int((self.wall() + ahead_s) * 1000))

    def _turn_is_near(self) -> bool:
        """Whether a turn begins while a probe from now is on its way: only a newcomer's probe after that
        counts."""
        if self._beyond():
            return False
        near = self._turn(self.round_trip_s() + LOOK_AGAIN_S)
        return near is not None and near != self._turn()

    def _beyond(self) -> bool:
        return self.round_trip_s() * 1000 >= LONG_OPEN_MS

    def _too_far(self, waiting: Iterable[GapCase]) -> None:
        if not self._beyond():
            return
        for one in waiting:
            one.lose(too_far(self.destination.name, one.partition, one.acknowledged, self.round_trip_s()))

    def _stands(self, case: GapCase, end: tuple[ErrorCode, int] | None, expected: int) -> bool:
        code, offset = end or (ErrorCode.unknown_topic_or_partition, -1)
        if code is ErrorCode.none and offset == expected:
            return True
        partition = case.partition
        if code is ErrorCode.topic_authorization_failed:
            case.refuse(denied(self.destination, partition, Operation.DESCRIBE), FailureKind.DENIED)
        else:  # the leader moved, or another copier was faster
            found = f"the log ends at {offset}" if code is ErrorCode.none else code.name.upper()
            case.lose(not_now(self.destination.name, partition, expected, found))
        return False

    def _next(self, due: Iterable[GapCase]) -> dict[GapCase, _Wrote]:
        due = list(due)
        share = max(1, MARKERS_AT_ONCE // max(1, len(due)))
        wrote: dict[GapCase, _Wrote] = {}
        for one in due:
            markers, owned = one.next_markers(share), one.gaps.owned
            if markers is None:
                words = worn_out(self.destination.name, one.partition, one.acknowledged)
                one.refuse(words, FailureKind.GAP_LIMIT)
                continue
            number, epoch = markers
            wrote[one] = _Wrote(number, epoch, owned)
            one.sending(epoch)
        return wrote

    def _entries(self, wrote: Mapping[GapCase, _Wrote]) -> Iterator[Entry]:
        """No entry names a partition twice: a broker never responds to those."""
        by_epoch: dict[int, list[tuple[int, Partition]]] = {}
        for case, (number, epoch, _) in wrote.items():
            by_epoch.setdefault(epoch, []).append((number, case.partition))
        for epoch, wanted in by_epoch.items():
            done = 0
            for number in sorted({number for number, _ in wanted}):
                partitions = tuple(partition for n, partition in wanted if n >= number)
                entry = Entry(self.producer_id, self.producer_epoch, epoch, partitions)
                for _ in range(number - done):
                    yield entry
                done = number

    def _says_all(self, case: GapCase, mine: _Wrote, codes: Mapping[tuple[str, int], int]) -> bool:
        """Whether the response alone confirms the markers.

        A single marker that the broker accepted is in the log once; anything after it the owner's data will meet as a
        wrong offset. With several markers the response may hide that some were refused, and a newcomer does not know
        what else was on the way: there the log end decides.
        """
        partition, at = case.partition, case.acknowledged
        code = codes.get((partition.topic, partition.index), ErrorCode.unknown_server_error.value)
        if code == ErrorCode.none.value and mine.number == 1 and mine.owned:
            return True
        kind, remedy, name = meaning(code)
        if kind is Meaning.LOOK_AGAIN:
            case.lose(not_now(self.destination.name, partition, at, name, remedy))
        elif kind is Meaning.DENIED:
            case.refuse(may_not_mark(self.destination, partition), FailureKind.DENIED)
        elif kind is Meaning.FAILED:
            where = f"cluster {self.destination.name}, {partition}, offset {at}"
            case.refuse(f"{where}: the gap there cannot be filled: {name}; {remedy}", FailureKind.REFUSED)
        return False
