"""One round of filling gaps at one broker, without I/O: a generator that yields requests and receives
responses.

Others may write between any two requests. A round sends markers once, and ends when their outcome is known; the next
round fills what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mirror_core.copy.gap_case import GapFillState
from mirror_core.copy.words import (
    ClusterSide,
    format_denied,
    format_markers_denied,
    format_markers_exhausted,
    format_retriable,
    format_too_far,
)
from mirror_core.decide.gaps import LONG_TURN_OPEN_MS, find_turn
from mirror_core.kafka.faults import ErrorCode
from mirror_core.kafka.produced import ProduceOutcome, classify_produce_error
from mirror_core.model.acl import Operation
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Partition
from mirror_core.wire.markers import MarkerEntry

PROBE_INTERVAL_S: Final = 0.05
MAX_MARKERS_PER_REQUEST: Final = 5_000
"""A request blocks one of the broker's threads until all its markers are written."""


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
        """True when the log end need not be requested: a response to the owner has just shown it."""
        return state.gap_claim.is_certain(now) and not self.is_stale(now - state.end_confirmed_at)

    def _get_turn(self, ahead_s: float = 0.0) -> int | None:
        return find_turn(self.epoch, int((self.wall() + ahead_s) * 1000))

    def _is_turn_near(self) -> bool:
        """Whether a turn begins while a probe from now is on its way: only a newcomer's probe after that
        counts."""
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
        """No entry names a partition twice: a broker never responds to those."""
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
        """Whether the response alone confirms the markers.

        A single marker that the broker accepted is in the log once; anything after it the owner's data will meet as a
        wrong offset. With several markers the response may hide that some were refused, and a newcomer does not know
        what else was on the way: there the log end decides.
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
