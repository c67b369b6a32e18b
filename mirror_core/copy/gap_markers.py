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

from mirror_core.copy.beside import BackgroundThreads
from mirror_core.copy.gap_case import GapFillState
from mirror_core.copy.gap_round import PROBE_INTERVAL_S, GapRound, GapRoundResponse, LogEndQuery, MarkerWrite
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.words import ClusterSide
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.marking import MarkerLink
from mirror_core.kafka.sockets import wait_readable
from mirror_core.model.errors import RemoteFault

_MAX_ROUND_S: Final = 30.0

GapFillStates = Mapping[PartitionReplicator, GapFillState]


class _OpeningConnection(NamedTuple):
    started_at: float
    future: Future[Connection]


class GapFiller:
    def __init__(
        self,
        destination: ClusterClient,
        producer_id: int,
        producer_epoch: int,
        epoch: int,
        connect: Callable[[int], Callable[[], Connection]],
        on_lost: Callable[[int, str], None],
        threads: BackgroundThreads,
        now_s: Callable[[], float] = lambda: time.time(),
    ) -> None:
        """`epoch`: the data plane's. `connect` returns a function that connects to a broker, for a thread.
        `lost` is told which broker did not respond, and why."""
        self._destination = ClusterSide.from_client(destination)
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._epoch = epoch
        self._connect = connect
        self._on_lost = on_lost
        self._threads, self._now_s = threads, now_s
        self._opening: dict[int, _OpeningConnection] = {}
        self._links: dict[int, MarkerLink] = {}
        self._rounds: dict[int, _ActiveRound] = {}
        self._next_probe_at: dict[int, float] = {}

    @property
    def is_connecting(self) -> bool:
        return bool(self._opening)

    @property
    def sockets(self) -> list[socket.socket]:
        return [active.link.connection.sock for active in self._rounds.values()]

    def fill(self, replicators: Iterable[PartitionReplicator], until: float) -> bool:
        """Applies responses and starts rounds; sends nothing after `until` (by `now_s`). True when a gap
        advanced.

        A broker that does not respond may still append what it was sent, at any later time.
        """
        has_progress = self._collect()
        self.abandon_slow(_MAX_ROUND_S)
        if self._now_s() >= until:
            return has_progress
        now = time.monotonic()
        by_broker: dict[int, list[PartitionReplicator]] = {}
        for replicator in replicators:
            broker = replicator.destination_broker
            if replicator.due_gap is None or broker in self._rounds or broker in self._opening:
                continue
            if replicator.gap_claim.is_owned or now >= self._next_probe_at.get(broker, 0.0):
                by_broker.setdefault(broker, []).append(replicator)
        for broker, due in by_broker.items():
            if broker not in self._links:
                self._start_connecting(broker)
                continue
            if not all(replicator.gap_claim.is_owned for replicator in due):
                self._next_probe_at[broker] = now + PROBE_INTERVAL_S
            has_progress |= self._start_round(broker, due, until)
        return has_progress

    def _start_connecting(self, broker: int) -> None:
        try:
            connect = self._connect(broker)
        except RemoteFault as error:
            self._on_lost(broker, str(error))
            return
        self._opening[broker] = _OpeningConnection(time.monotonic(), self._threads.submit(connect))

    def _start_round(self, broker: int, replicators: list[PartitionReplicator], until: float) -> bool:
        link = self._links.pop(broker)
        gap_round = GapRound(
            destination=self._destination,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            epoch=self._epoch,
            until=until,
            is_stale=link.is_stale,
            round_trip_s=link.round_trip_s,
            monotonic=time.monotonic,
            wall=self._now_s,
        )
        self._rounds[broker] = active = _ActiveRound(
            {active: active.start_gap_round() for active in replicators}, link, gap_round
        )
        return self._advance(broker, active)

    def _collect(self) -> bool:
        for broker, opening in list(self._opening.items()):
            if not opening.future.done():
                continue
            del self._opening[broker]
            try:
                self._links[broker] = MarkerLink(opening.future.result())
            except RemoteFault as error:
                self._on_lost(broker, str(error))
        return any([self._advance(broker, active) for broker, active in list(self._rounds.items())])

    def _advance(self, broker: int, active: _ActiveRound) -> bool:
        error_text = ""
        try:
            if not active.advance():
                return False
        except RemoteFault as error:
            error_text = str(error)
        del self._rounds[broker]
        for replicator, state in active.states.items():
            replicator.finish_gap_round(state)
        if error_text:
            active.link.connection.close()
            self._on_lost(broker, error_text)
        else:
            self._links[broker] = active.link
        return any(state.filled_offsets for state in active.states.values())

    def abandon_slow(self, limit_s: float) -> None:
        now = time.monotonic()
        subject = f"cluster {self._destination.name}, broker"
        for broker, active in list(self._rounds.items()):
            if now - active.started_at >= limit_s:
                self._rounds.pop(broker).abandon()
                elapsed = f"{now - active.started_at:.0f} s"
                self._on_lost(broker, f"{subject} {broker}: no answer to markers, or to where logs end, for {elapsed}")
        for broker, opening in list(self._opening.items()):
            if now - opening.started_at >= limit_s:
                _abandon_opening(self._opening.pop(broker))
                elapsed = f"{now - opening.started_at:.0f} s"
                self._on_lost(broker, f"{subject} {broker}: no answer on a new connection for {elapsed}")

    def wait_for_rounds(self, limit_s: float) -> None:
        for opening in self._opening.values():
            _abandon_opening(opening)
        self._opening = {}
        end = time.monotonic() + limit_s
        while self._rounds and wait_readable(self.sockets, max(0.0, end - time.monotonic())):
            self._collect()

    def close(self) -> None:
        for active in self._rounds.values():
            active.abandon()
        for opening in self._opening.values():
            _abandon_opening(opening)
        for link in self._links.values():
            link.connection.close()
        self._rounds, self._opening, self._links = {}, {}, {}


def _abandon_opening(opening: _OpeningConnection) -> None:
    opening.future.add_done_callback(_close_unused)


def _close_unused(unused: Future[Connection]) -> None:
    if not unused.cancelled() and unused.exception() is None:
        unused.result().close()


class _ActiveRound:
    def __init__(self, states: GapFillStates, link: MarkerLink, gap_round: GapRound) -> None:
        self.states = states
        self.link = link
        self.started_at = time.monotonic()
        self._round = gap_round.run(list(states.values()))
        self._request: LogEndQuery | MarkerWrite | None = None

    def advance(self) -> bool:
        try:
            if self._request is None:
                self._send(next(self._round))
            while (reply := self._receive()) is not None:
                self._send(self._round.send(reply))
        except StopIteration:
            return True
        return False

    def _send(self, request: LogEndQuery | MarkerWrite) -> None:
        self._request = request
        if isinstance(request, LogEndQuery):
            self.link.request_log_ends(request.partitions)
        else:
            self.link.send_markers(request.entries)

    def _receive(self) -> GapRoundResponse | None:
        if isinstance(self._request, LogEndQuery):
            ends = self.link.receive_log_ends()
            return None if ends is None else GapRoundResponse(ends=ends)
        codes = self.link.receive_codes()
        return None if codes is None else GapRoundResponse(codes=codes)

    def abandon(self) -> None:
        self._round.close()
        self.link.connection.close()
        for replicator, state in self.states.items():
            replicator.abandon_gap_round(state)
