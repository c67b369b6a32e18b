"""Filling gaps with markers: who may, how many at a time, and what the log end says of it.

Markers know no sequence, so a copier never relies on being alone. The one whose marker is the newest in the partition
goes on filling. Any other one (a new epoch's task, a second process, ourselves after an unanswered request) waits until
the log end has stood still for a while, though a gap is due: then the owner is gone. Its first marker then carries a
higher number, which makes the broker refuse whatever the old owner has still on its way (`decide.gaps`).

A round at a broker goes on in a thread, on copies (`gap_case`): what other brokers lead does not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Final

from mirror_core.copy.beside import Beside
from mirror_core.copy.gap_case import GapCase
from mirror_core.copy.gap_round import LOOK_AGAIN_S, GapRound, Look, Reply
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.words import Side
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.marking import MarkerLink
from mirror_core.model.errors import RemoteFault, Unreachable

_MOST_S: Final = 30.0
"""Of one round: three answers, each of which has its own limit; a broker may give one drop by drop."""

Cases = Mapping[PartitionReplicator, GapCase]


class GapFiller:
    """Fills the gaps of one task's partitions, one round at a time per broker."""

    def __init__(
        self,
        destination: ClusterClient,
        producer_id: int,
        producer_epoch: int,
        epoch: int,
        connect: Callable[[int], Callable[[], Connection]],
        lost: Callable[[int, str], None],
        beside: Beside,
    ) -> None:
        """`epoch`: the task's, of the data plane. `connect`: how to connect to a broker, in a thread. `lost`: told
        which broker gave no answer, and why."""
        self._destination = Side.of(destination)
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._epoch = epoch
        self._connect = connect
        self._lost = lost
        self._beside = beside
        self._links: dict[int, MarkerLink] = {}
        """Those that no round is using."""
        self._rounds: dict[int, _UnderWay] = {}
        self._look_at: dict[int, float] = {}
        """Monotonic time before which nobody else's gaps are looked at, at this broker."""

    @property
    def at_work(self) -> bool:
        return bool(self._rounds)

    def fill(self, replicators: Iterable[PartitionReplicator], until: float) -> bool:
        """Take in what has ended, and begin to fill what may be filled now; nothing is sent after `until` (wall clock).
        True when any came further.

        A broker that gives no answer may append what it was sent at any time from then on.
        """
        moved = self._take_in()
        self.give_up(_MOST_S)
        if time.time() >= until:
            return moved
        now = time.monotonic()
        by_broker: dict[int, list[PartitionReplicator]] = {}
        for one in replicators:
            broker = one.destination_broker
            if one.gap is None or broker in self._rounds:
                continue
            if one.gaps.owned or now >= self._look_at.get(broker, 0.0):
                by_broker.setdefault(broker, []).append(one)
        for broker, mine in by_broker.items():
            if not all(one.gaps.owned for one in mine):
                self._look_at[broker] = now + LOOK_AGAIN_S
            try:
                self._begin(broker, mine, until)
            except RemoteFault as error:
                self._lost(broker, str(error))
        return moved

    def _begin(self, broker: int, replicators: list[PartitionReplicator], until: float) -> None:
        link = self._links.pop(broker, None)
        connect = None if link else self._connect(broker)
        cases = {one: one.begin_round() for one in replicators}
        one = _UnderWay(cases, link, connect, partial(self._round, until=until))
        self._rounds[broker] = one
        one.begin(self._beside)

    def _round(self, link: MarkerLink, until: float) -> GapRound:
        return GapRound(
            destination=self._destination,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            epoch=self._epoch,
            until=until,
            stale=link.stale,
            round_trip_s=link.round_trip_s,
            monotonic=time.monotonic,
            wall=time.time,
        )

    def _take_in(self) -> bool:
        moved = False
        for broker, one in list(self._rounds.items()):
            if not one.ended.done():
                continue
            del self._rounds[broker]
            for replicator, case in one.cases.items():
                replicator.round_ended(case)
                moved |= case.filled > 0
            error = one.ended.exception()
            if error is None:
                self._links[broker] = one.ended.result()
                continue
            one.hang_up()
            if not isinstance(error, RemoteFault):
                raise error
            self._lost(broker, str(error))
        return moved

    def give_up(self, limit_s: float) -> None:
        """Wait no more for rounds that have taken so long."""
        for broker, one in list(self._rounds.items()):
            took_s = time.monotonic() - one.began
            if took_s < limit_s or one.ended.done():
                continue
            del self._rounds[broker]
            one.leave()
            where = f"cluster {self._destination.name}, broker {broker}"
            self._lost(broker, f"{where}: no answer to markers, or to where logs end, for {took_s:.0f} s")

    def drain(self, limit_s: float) -> None:
        """Wait for rounds under way, so long at most, and take in what has come of them."""
        end = time.monotonic() + limit_s
        while self._rounds:
            under_way, rest_s = [one.ended for one in self._rounds.values()], end - time.monotonic()
            ended, _ = wait(under_way, max(0.0, rest_s), FIRST_COMPLETED)
            if not ended:
                break
            self._take_in()

    def close(self) -> None:
        """What rounds under way have sent may be in the log, now or later."""
        for one in self._rounds.values():
            one.leave()
        for link in self._links.values():
            link.connection.close()
        self._rounds, self._links = {}, {}


class _UnderWay:
    """One round, and the thread that it goes on in."""

    def __init__(
        self,
        cases: Cases,
        link: MarkerLink | None,
        connect: Callable[[], Connection] | None,
        filling: Callable[[MarkerLink], GapRound],
    ) -> None:
        self.cases = cases
        self.began = time.monotonic()
        self.ended: Future[MarkerLink]
        self._link = link
        self._connect = connect
        self._filling = filling
        self._left = False

    def begin(self, beside: Beside) -> None:
        self.ended = beside.begin(self._go)

    def _go(self) -> MarkerLink:
        """In its thread."""
        if self._link is None:
            assert self._connect is not None
            self._wanted()
            self._link = MarkerLink(self._connect())
        self._wanted()  # not before the link is there to be seen: who leaves says so first, and then looks for it
        link = self._link
        going = self._filling(link).run(list(self.cases.values()))
        try:
            request = next(going)
            while True:
                if isinstance(request, Look):
                    reply = Reply(ends=link.log_ends(request.partitions))
                else:
                    reply = Reply(codes=link.write(request.entries))
                request = going.send(reply)
        except StopIteration:
            return link

    def _wanted(self) -> None:
        if self._left:
            raise Unreachable("nobody waits for this round any more")

    def leave(self) -> None:
        """Its end is not waited for. From now on it sends nothing more."""
        self._left = True
        if self._link is not None:
            self._link.connection.cut()
        for replicator, case in self.cases.items():
            replicator.round_left(case)
        self.ended.add_done_callback(lambda _: self.hang_up())

    def hang_up(self) -> None:
        if self._link is not None:
            self._link.connection.close()
