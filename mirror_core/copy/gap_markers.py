"""Runs gap rounds, one per broker at a time, inside the task's loop.

Markers have no sequence, so a task never relies on being the only writer. The owner of the newest marker goes on
filling. Any other writer (the next epoch's task, a second process, this task after an unanswered request) waits until
the log end has not moved for a while although a gap is due: then the owner is gone. Its first marker has a higher
number, so the broker refuses markers of the old owner still on the way (`decide.gaps`).

Only connecting uses a thread.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Final, NamedTuple

from mirror_core.copy.beside import Beside
from mirror_core.copy.gap_case import GapCase
from mirror_core.copy.gap_round import LOOK_AGAIN_S, GapRound, Look, Reply, Write
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.words import Side
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.marking import MarkerLink
from mirror_core.kafka.sockets import readable
from mirror_core.model.errors import RemoteFault

_MOST_S: Final = 30.0

Cases = Mapping[PartitionReplicator, GapCase]


class _Opening(NamedTuple):
    began: float
    ended: Future[Connection]


class GapFiller:
    def __init__(
        self,
        destination: ClusterClient,
        producer_id: int,
        producer_epoch: int,
        epoch: int,
        connect: Callable[[int], Callable[[], Connection]],
        lost: Callable[[int, str], None],
        beside: Beside,
        now_s: Callable[[], float] = lambda: time.time(),
    ) -> None:
        """`epoch`: the data plane's. `connect` returns a function that connects to a broker, for a thread.
        `lost` is told which broker did not respond, and why."""
        self._destination = Side.of(destination)
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._epoch = epoch
        self._connect = connect
        self._lost = lost
        self._beside, self._now_s = beside, now_s
        self._opening: dict[int, _Opening] = {}
        self._links: dict[int, MarkerLink] = {}
        self._rounds: dict[int, _UnderWay] = {}
        self._look_at: dict[int, float] = {}

    @property
    def connecting(self) -> bool:
        return bool(self._opening)

    @property
    def sockets(self) -> list[socket.socket]:
        return [one.link.connection.sock for one in self._rounds.values()]

    def fill(self, replicators: Iterable[PartitionReplicator], until: float) -> bool:
        """Applies responses and starts rounds; sends nothing after `until` (by `now_s`). True when a gap
        advanced.

        A broker that does not respond may still append what it was sent, at any later time.
        """
        moved = self._take_in()
        self.give_up(_MOST_S)
        if self._now_s() >= until:
            return moved
        now = time.monotonic()
        by_broker: dict[int, list[PartitionReplicator]] = {}
        for one in replicators:
            broker = one.destination_broker
            if one.gap is None or broker in self._rounds or broker in self._opening:
                continue
            if one.gaps.owned or now >= self._look_at.get(broker, 0.0):
                by_broker.setdefault(broker, []).append(one)
        for broker, mine in by_broker.items():
            if broker not in self._links:
                self._open(broker)
                continue
            if not all(one.gaps.owned for one in mine):
                self._look_at[broker] = now + LOOK_AGAIN_S
            moved |= self._begin(broker, mine, until)
        return moved

    def _open(self, broker: int) -> None:
        try:
            connect = self._connect(broker)
        except RemoteFault as error:
            self._lost(broker, str(error))
            return
        self._opening[broker] = _Opening(time.monotonic(), self._beside.begin(connect))

    def _begin(self, broker: int, replicators: list[PartitionReplicator], until: float) -> bool:
        link = self._links.pop(broker)
        filling = GapRound(
            destination=self._destination,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            epoch=self._epoch,
            until=until,
            stale=link.stale,
            round_trip_s=link.round_trip_s,
            monotonic=time.monotonic,
            wall=self._now_s,
        )
        self._rounds[broker] = one = _UnderWay({one: one.begin_round() for one in replicators}, link, filling)
        return self._go_on(broker, one)

    def _take_in(self) -> bool:
        for broker, opening in list(self._opening.items()):
            if not opening.ended.done():
                continue
            del self._opening[broker]
            try:
                self._links[broker] = MarkerLink(opening.ended.result())
            except RemoteFault as error:
                self._lost(broker, str(error))
        return any([self._go_on(broker, one) for broker, one in list(self._rounds.items())])

    def _go_on(self, broker: int, one: _UnderWay) -> bool:
        why = ""
        try:
            if not one.go_on():
                return False
        except RemoteFault as error:
            why = str(error)
        del self._rounds[broker]
        for replicator, case in one.cases.items():
            replicator.round_ended(case)
        if why:
            one.link.connection.close()
            self._lost(broker, why)
        else:
            self._links[broker] = one.link
        return any(case.filled for case in one.cases.values())

    def give_up(self, limit_s: float) -> None:
        now = time.monotonic()
        where = f"cluster {self._destination.name}, broker"
        for broker, one in list(self._rounds.items()):
            if now - one.began >= limit_s:
                self._rounds.pop(broker).leave()
                took = f"{now - one.began:.0f} s"
                self._lost(broker, f"{where} {broker}: no answer to markers, or to where logs end, for {took}")
        for broker, opening in list(self._opening.items()):
            if now - opening.began >= limit_s:
                _leave(self._opening.pop(broker))
                took = f"{now - opening.began:.0f} s"
                self._lost(broker, f"{where} {broker}: no answer on a new connection for {took}")

    def drain(self, limit_s: float) -> None:
        for opening in self._opening.values():
            _leave(opening)
        self._opening = {}
        end = time.monotonic() + limit_s
        while self._rounds and readable(self.sockets, max(0.0, end - time.monotonic())):
            self._take_in()

    def close(self) -> None:
        for one in self._rounds.values():
            one.leave()
        for opening in self._opening.values():
            _leave(opening)
        for link in self._links.values():
            link.connection.close()
        self._rounds, self._opening, self._links = {}, {}, {}


def _leave(opening: _Opening) -> None:
    opening.ended.add_done_callback(_close)


def _close(unused: Future[Connection]) -> None:
    if not unused.cancelled() and unused.exception() is None:
        unused.result().close()


class _UnderWay:
    def __init__(self, cases: Cases, link: MarkerLink, filling: GapRound) -> None:
        self.cases = cases
        self.link = link
        self.began = time.monotonic()
        self._round = filling.run(list(cases.values()))
        self._request: Look | Write | None = None

    def go_on(self) -> bool:
        try:
            if self._request is None:
                self._send(next(self._round))
            while (reply := self._reply()) is not None:
                self._send(self._round.send(reply))
        except StopIteration:
            return True
        return False

    def _send(self, request: Look | Write) -> None:
        self._request = request
        if isinstance(request, Look):
            self.link.ask_ends(request.partitions)
        else:
            self.link.ask_markers(request.entries)

    def _reply(self) -> Reply | None:
        if isinstance(self._request, Look):
            ends = self.link.ends()
            return None if ends is None else Reply(ends=ends)
        codes = self.link.codes()
        return None if codes is None else Reply(codes=codes)

    def leave(self) -> None:
        self._round.close()
        self.link.connection.close()
        for replicator, case in self.cases.items():
            replicator.round_left(case)
