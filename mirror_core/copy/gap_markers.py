"""Filling gaps with markers: who may, how many at a time, and what the log end says of it.

Markers know no sequence, so a copier never relies on being alone. The one whose marker is the newest in the partition
goes on filling. Any other one (a new epoch's task, a second process, ourselves after an unanswered request) waits until
the log end has stood still for a while, though a gap is due: then the owner is gone. Its first marker then carries a
higher number, which makes the broker refuse whatever the old owner has still on its way (`decide.gaps`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from mirror_core.copy.partition import Lane, LaneState, denied, may_not_mark, not_now
from mirror_core.decide.gaps import at_once, filled, is_turn, marker_epoch
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.faults import ErrorCode
from mirror_core.kafka.marking import MarkerLink
from mirror_core.kafka.produced import Meaning, meaning
from mirror_core.model.clock import now_ms
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Partition
from mirror_core.wire.markers import Entry

QUIET_S: Final = 1.0
"""How long a log end must stand still before somebody else's gap is filled, when it is the waiting one's turn."""
MARKERS_AT_ONCE: Final = 5_000
"""Of one request, which holds one of the broker's threads until all of them are written."""
_POLL_S: Final = 0.05


class _Wrote(NamedTuple):
    """Markers sent to one lane's gap, and not known to be in the log yet."""

    number: int
    epoch: int
    """Their coordinator epoch."""
    owned: bool
    """Whether the partition's claim was ours before."""


class Filler:
    """Fills the gaps of one task's lanes, one request at a time per broker."""

    def __init__(
        self,
        destination: ClusterClient,
        producer_id: int,
        producer_epoch: int,
        epoch: int,
        connect: Callable[[int], Connection],
    ) -> None:
        """`epoch`: the task's, of the data plane."""
        self.destination = destination
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.epoch = epoch
        self._connect = connect
        self._links: dict[int, MarkerLink] = {}
        self._poll_at = 0.0

    def fill(self, lanes: Iterable[Lane], until: float) -> bool:
        """Fill what may be filled now; nothing is sent after `until` (wall clock). True when a lane came further.

        Unreachable when a broker gave no answer: what it was sent may be appended at any time from now on.
        """
        now = time.monotonic()
        watch = now >= self._poll_at
        by_broker: dict[int, list[Lane]] = {}
        for lane in lanes:
            if lane.gap is not None and (lane.claim.owned or watch):
                by_broker.setdefault(lane.destination_broker, []).append(lane)
        if watch:
            self._poll_at = now + _POLL_S
        moved = False
        for broker, mine in by_broker.items():
            moved |= self._fill_at(self._link(broker), mine, until)
        return moved

    def _fill_at(self, link: MarkerLink, lanes: list[Lane], until: float) -> bool:
        moved = False
        wrote: dict[Lane, _Wrote] = {}
        while lanes:
            asked, in_turn = time.monotonic(), self._in_turn()
            unsure = [lane for lane in lanes if lane in wrote or not _sure(link, lane, asked)]
            ends = link.log_ends(lane.partition for lane in unsure) if unsure else {}
            for lane in unsure:
                mine = wrote.get(lane)
                if self._stands(lane, ends.get(lane.partition), lane.acknowledged + (mine.number if mine else 0)):
                    lane.known_at = asked
                    if mine:
                        _landed(lane, mine)
                        moved = True
            due = [lane for lane in lanes if lane.gap is not None and self._may(lane, asked)]
            if not (in_turn and self._in_turn()):  # the look, and what is done about it
                due = [lane for lane in due if lane.claim.owned]
            now = time.monotonic()
            if time.time() >= until:
                break
            if any(link.stale(now - lane.known_at) for lane in due):
                wrote, lanes = {}, due  # we slept: somebody may have taken over meanwhile
                continue
            wrote, answered = self._write(link, due)
            for lane in answered:
                lane.known_at = now
                _landed(lane, wrote.pop(lane))
                moved = True
            lanes = [lane for lane in due if lane.state is LaneState.READY and (lane in wrote or lane.gap is not None)]
        return moved

    def _stands(self, lane: Lane, end: tuple[ErrorCode, int] | None, expected: int) -> bool:
        """Whether the log ends where it should; if not, the lane has to find its place again."""
        code, offset = end or (ErrorCode.unknown_topic_or_partition, -1)
        if code is ErrorCode.none and offset == expected:
            return True
        if code is ErrorCode.topic_authorization_failed:
            words = denied(self.destination, lane.partition, "DESCRIBE")
            lane.fail(words, lane.acknowledged, FailureKind.DENIED)
        else:  # a leader that has moved, or another copier that was quicker
            found = f"the log ends at {offset}" if code is ErrorCode.none else code.name.upper()
            lane.lose(not_now(self.destination.name, lane.partition, expected, found))
        return False

    def _in_turn(self) -> bool:
        return is_turn(self.epoch, now_ms())

    def _may(self, lane: Lane, asked: float) -> bool:
        """Whether the lane's gap is ours to fill, by what the log was at `asked` or later."""
        claim = lane.claim
        if claim.owned:
            return True
        if claim.quiet_at != lane.acknowledged:
            claim.quiet_at, claim.quiet_until = lane.acknowledged, time.monotonic() + QUIET_S
            return False
        return asked >= claim.quiet_until and lane.gap_known

    def _write(self, link: MarkerLink, lanes: list[Lane]) -> tuple[dict[Lane, _Wrote], list[Lane]]:
        """One request for all these lanes: what was sent to each, and where its answer alone says all.

        A single marker that the broker took is in the log, once, and behind it only what an owner's data will meet at
        a wrong offset. Of several the answer may hide that some were refused; and a newcomer does not know what else
        was on its way: there the log end has to tell.
        """
        share = max(1, MARKERS_AT_ONCE // max(1, len(lanes)))
        wrote: dict[Lane, _Wrote] = {}
        for lane in lanes:
            gap = lane.gap
            assert gap is not None
            count, owned = filled(gap.end, lane.acknowledged_sequence), lane.claim.owned
            epoch = marker_epoch(count, lane.claim.newest, owned=owned)
            if epoch is None:
                words = _worn_out(self.destination, lane.partition, lane.acknowledged)
                lane.fail(words, lane.acknowledged, FailureKind.WORN_OUT)
                continue
            # A newcomer sends one, and looks: it shuts out whoever was here before.
            number = min(share, at_once(gap.end - lane.acknowledged)) if owned else 1
            wrote[lane] = _Wrote(number, epoch, owned)
            lane.claim.seen(epoch)
            lane.claim.unanswered()
        answered: list[Lane] = []
        if wrote:
            answer = link.write(self._entries(wrote))
            for lane, mine in wrote.items():
                code = answer.get((lane.partition.topic, lane.partition.index), ErrorCode.unknown_server_error.value)
                if code == ErrorCode.none.value and mine.number == 1 and mine.owned:
                    answered.append(lane)
                else:
                    self._take(lane, code)
        return wrote, answered

    def _entries(self, wrote: dict[Lane, _Wrote]) -> Iterable[Entry]:
        """Entries in which no partition is named twice: a broker never answers to those."""
        by_epoch: dict[int, list[tuple[int, Partition]]] = {}
        for lane, (number, epoch, _) in wrote.items():
            by_epoch.setdefault(epoch, []).append((number, lane.partition))
        for epoch, wanted in by_epoch.items():
            done = 0
            for number in sorted({number for number, _ in wanted}):
                partitions = tuple(partition for n, partition in wanted if n >= number)
                entry = Entry(self.producer_id, self.producer_epoch, epoch, partitions)
                for _ in range(number - done):
                    yield entry
                done = number

    def _take(self, lane: Lane, code: int) -> None:
        kind, remedy, name = meaning(code)
        if kind is Meaning.LOOK_AGAIN:
            lane.lose(not_now(self.destination.name, lane.partition, lane.acknowledged, name, remedy))
        elif kind is Meaning.DENIED:
            lane.fail(may_not_mark(self.destination, lane.partition), lane.acknowledged, FailureKind.DENIED)
        elif kind is Meaning.FAILED:
            lane.fail(
                f"cluster {self.destination.name}, {lane.partition}, offset {lane.acknowledged}: the gap there cannot "
                f"be filled: {name}; {remedy}",
                lane.acknowledged,
                FailureKind.REFUSED,
            )

    def _link(self, broker: int) -> MarkerLink:
        if broker not in self._links:
            self._links[broker] = MarkerLink(self._connect(broker))
        return self._links[broker]

    def close(self) -> None:
        for link in self._links.values():
            link.connection.close()
        self._links = {}


def _sure(link: MarkerLink, lane: Lane, now: float) -> bool:
    """Whether nobody needs to be asked where the log ends: an answer to the owner has just said so."""
    return lane.claim.owned and not link.stale(now - lane.known_at)


def _landed(lane: Lane, wrote: _Wrote) -> None:
    lane.claim.mine = wrote.epoch
    lane.filled(wrote.number)


def _worn_out(client: ClusterClient, partition: Partition, offset: int) -> str:
    return (
        f"cluster {client.name}, {partition}, offset {offset}: the gap there cannot be filled any more: this mirror "
        "has used up the numbers that protect its markers (2**28 filled offsets of a partition, or 7 interrupted "
        "attempts at one gap); delete the mirror topic and let it be copied anew"
    )
