"""Fills gaps in rounds: generators without I/O that yield requests and receive responses.

Others may write between two requests. So a round sends markers once, and ends when their outcome is known. A new owner
begins with a higher number: brokers refuse markers of the old one still on the way (`decide.gaps_and_resume`).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mirror_core.copy.background import BackgroundThreads
from mirror_core.copy.gap_ownership import GapFillState
from mirror_core.copy.messages import (
    ClusterSide,
    format_denied,
    format_markers_denied,
    format_markers_exhausted,
    format_retriable,
    format_too_far,
)
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.decide.gaps_and_resume import LONG_TURN_OPEN_MS, find_turn
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.error_mapping import ErrorCode
from mirror_core.kafka.marker_link import MarkerLink
from mirror_core.kafka.produce_link import ProduceOutcome, classify_produce_error
from mirror_core.kafka.sockets import wait_readable
from mirror_core.model.acl import Operation
from mirror_core.model.errors import RemoteFault
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Partition
from mirror_core.wire.txn_markers import MarkerEntry

PROBE_INTERVAL_S: Final = 0.05
MAX_MARKERS_PER_REQUEST: Final = 5_000
"""A request blocks one of the broker's threads until all are written."""


class LogEndQuery(NamedTuple):
    partitions: tuple[Partition, ...]


class MarkerWrite(NamedTuple):
    entries: Iterator[MarkerEntry]


class GapRoundResponse(NamedTuple):
    ends: Mapping[Partition, tuple[ErrorCode, int]] = {}
    codes: Mapping[tuple[str, int], int] = {}


class _SentMarkers(NamedTuple):
    marker_count: int
    epoch: int
    owned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRound:
    destination: ClusterSide
    producer_id: int
    producer_epoch: int
    epoch: int
    until: float
    is_stale: Callable[[float], bool]
    round_trip_s: Callable[[], float]
    """0 before the first request."""
    monotonic: Callable[[], float] = field(repr=False)
    wall: Callable[[], float] = field(repr=False)

    def run(self, states: list[GapFillState]) -> Generator[LogEndQuery | MarkerWrite, GapRoundResponse, None]:
        sent: dict[GapFillState, _SentMarkers] = {}
        if self._is_turn_near():
            states = [candidate for candidate in states if candidate.gap_claim.is_owned]
        while states:
            requested_at, in_turn = self.monotonic(), self._get_turn()
            uncertain = [
                candidate
                for candidate in states
                if candidate in sent or not self._is_end_certain(candidate, requested_at)
            ]
            ends = (yield LogEndQuery(tuple(candidate.partition for candidate in uncertain))).ends if uncertain else {}
            for state in uncertain:
                markers = sent.get(state)
                if self._check_end(
                    state, ends.get(state.partition), state.acknowledged + (markers.marker_count if markers else 0)
                ):
                    state.confirm_end(requested_at)
                    if markers:
                        state.add_filled(markers.marker_count, markers.epoch)
            if sent:
                return
            due = [
                candidate
                for candidate in states
                if candidate.is_open and candidate.can_fill(requested_at, self.round_trip_s())
            ]
            if in_turn is None or in_turn != self._get_turn():  # probe and write must share a turn
                self._report_too_far(candidate for candidate in due if not candidate.gap_claim.is_owned)
                due = [candidate for candidate in due if candidate.gap_claim.is_owned]
            now = self.monotonic()
            if self.wall() >= self.until:
                return
            if any(self.is_stale(now - candidate.end_confirmed_at) for candidate in due):
                states = due  # we slept: another owner is possible
                continue
            sent = self._prepare_markers(due)
            codes = (yield MarkerWrite(self._entries(sent))).codes if sent else {}
            for state in [
                candidate
                for candidate, markers in sent.items()
                if self._is_confirmed_by_response(candidate, markers, codes)
            ]:
                state.confirm_end(now)
                markers_sent = sent.pop(state)
                state.add_filled(markers_sent.marker_count, markers_sent.epoch)
            states = [candidate for candidate in sent if candidate.is_open]

    def _is_end_certain(self, state: GapFillState, now: float) -> bool:
        return state.gap_claim.is_certain(now) and not self.is_stale(now - state.end_confirmed_at)

    def _get_turn(self, ahead_s: float = 0.0) -> int | None:
        return find_turn(self.epoch, int((self.wall() + ahead_s) * 1000))

    def _is_turn_near(self) -> bool:
        """A turn begins while a probe from now is on its way: only a newcomer's probe after that counts."""
        if self._is_too_far():
            return False
        near = self._get_turn(self.round_trip_s() + PROBE_INTERVAL_S)
        return near is not None and near != self._get_turn()

    def _is_too_far(self) -> bool:
        return self.round_trip_s() * 1000 >= LONG_TURN_OPEN_MS

    def _report_too_far(self, states: Iterable[GapFillState]) -> None:
        if not self._is_too_far():
            return
        for state in states:
            state.mark_lost(
                format_too_far(self.destination.name, state.partition, state.acknowledged, self.round_trip_s())
            )

    def _check_end(self, state: GapFillState, end: tuple[ErrorCode, int] | None, expected: int) -> bool:
        code, offset = end or (ErrorCode.unknown_topic_or_partition, -1)
        if code is ErrorCode.none and offset == expected:
            return True
        partition = state.partition
        if code is ErrorCode.topic_authorization_failed:
            state.refuse(format_denied(self.destination, partition, Operation.DESCRIBE), FailureKind.DENIED)
        else:  # the leader moved, or another copier was faster
            text = f"the log ends at {offset}" if code is ErrorCode.none else code.name.upper()
            state.mark_lost(format_retriable(self.destination.name, partition, expected, text))
        return False

    def _prepare_markers(self, due: Iterable[GapFillState]) -> dict[GapFillState, _SentMarkers]:
        due = list(due)
        share = max(1, MAX_MARKERS_PER_REQUEST // max(1, len(due)))
        sent: dict[GapFillState, _SentMarkers] = {}
        for state in due:
            markers, owned = state.next_markers(share), state.gap_claim.is_owned
            if markers is None:
                text = format_markers_exhausted(self.destination.name, state.partition, state.acknowledged)
                state.refuse(text, FailureKind.GAP_LIMIT)
                continue
            count, epoch = markers
            sent[state] = _SentMarkers(count, epoch, owned)
            state.mark_sending(epoch)
        return sent

    def _entries(self, sent: Mapping[GapFillState, _SentMarkers]) -> Iterator[MarkerEntry]:
        """Brokers never respond to requests in which an entry names a partition twice."""
        by_epoch: dict[int, list[tuple[int, Partition]]] = {}
        for state, (count, epoch, _) in sent.items():
            by_epoch.setdefault(epoch, []).append((count, state.partition))
        for epoch, partitions_of_epoch in by_epoch.items():
            written = 0
            for count in sorted({count for count, _ in partitions_of_epoch}):
                partitions = tuple(partition for n, partition in partitions_of_epoch if n >= count)
                entry = MarkerEntry(self.producer_id, self.producer_epoch, epoch, partitions)
                for _ in range(count - written):
                    yield entry
                written = count

    def _is_confirmed_by_response(
        self, state: GapFillState, markers: _SentMarkers, codes: Mapping[tuple[str, int], int]
    ) -> bool:
        """A single accepted marker is in the log once. With several, the response may hide refused ones, and a newcomer
        does not know what else was on the way: there the log end decides.
        """
        partition, offset = state.partition, state.acknowledged
        code = codes.get((partition.topic, partition.index), ErrorCode.unknown_server_error.value)
        if code == ErrorCode.none.value and markers.marker_count == 1 and markers.owned:
            return True
        kind, remedy, name = classify_produce_error(code)
        if kind is ProduceOutcome.RECHECK_LOG_END:
            state.mark_lost(format_retriable(self.destination.name, partition, offset, name, remedy))
        elif kind is ProduceOutcome.DENIED:
            state.refuse(format_markers_denied(self.destination, partition), FailureKind.DENIED)
        elif kind is ProduceOutcome.FAILED:
            subject = f"cluster {self.destination.name}, {partition}, offset {offset}"
            state.refuse(f"{subject}: the gap there cannot be filled: {name}; {remedy}", FailureKind.REFUSED)
        return False


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
        now_s: Callable[[], float],
    ) -> None:
        """`epoch`: the data plane's. `connect` returns a function that connects to a broker, for a thread. `on_lost`
        is told which broker did not respond, and why.
        """
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
        """Sends nothing after `until` (by `now_s`). True when a gap advanced.

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
