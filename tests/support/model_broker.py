"""A broker that leads one partition, as far as copying depends on it: sequences, duplicates, markers, forgetting.

Not Kafka: a model of the rules in `docs/adr/0001` and `0008`, for the interleavings that no real broker can be made to
go through. What real brokers do is tested on real brokers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from mirror_core.copy.send_queue import SentBatch
from mirror_core.decide.gaps_and_resume import NO_MARKER, OwnProducerState
from mirror_core.kafka.error_mapping import ErrorCode
from mirror_core.wire.batch import SEQUENCE_MASK, split_batches
from mirror_core.wire.records import decode_records

MARKER = None
_REMEMBERED = 5
"""Batches of a producer that a broker can tell a repetition of."""


@dataclass
class Produce:
    """One batch on its way, or its answer."""

    sent: SentBatch
    batch: bytes
    code: ErrorCode = ErrorCode.none
    base: int = -1
    refusal: ErrorCode | None = None
    """What the broker will answer, without appending."""
    unheard: bool = False
    """Appended, and answered with a time-out."""
    again: bool = False
    """Taken for a repetition."""


@dataclass
class Markers:
    """One request of markers for one gap, or its answer. They are appended one after the other."""

    epoch: int
    number: int
    owned: bool
    code: ErrorCode = ErrorCode.none
    written: int = 0
    unheard: bool = False
    """Appended, and answered with a time-out."""


@dataclass
class LogEnd:
    """The question where the log ends, or its answer."""

    offset: int = -1


Request = Produce | Markers | LogEnd


@dataclass
class Connection:
    """Requests are carried out one after the other. Broken, its last ones may still be carried out, or never."""

    requests: deque[Request] = field(default_factory=deque)
    answers: deque[Request] = field(default_factory=deque)


class Known(NamedTuple):
    """A batch that the broker remembers."""

    first: int
    records: int
    base: int


class Broker:
    def __init__(self) -> None:
        self.log: list[int | None] = []
        """The offset on the source that each record came from; None: a marker."""
        self._known: deque[Known] = deque(maxlen=_REMEMBERED)
        self._newest_marker = NO_MARKER
        self._remembers = False
        self.checks_sequences = True
        self.fences_markers = True

    def ours(self) -> OwnProducerState | None:
        """What DescribeProducers tells."""
        if not self._remembers:
            return None
        last = self._known[-1] if self._known else None
        return OwnProducerState((last.first + last.records) & SEQUENCE_MASK if last else 0, self._newest_marker)

    def forget(self) -> None:
        """The producer's state expires: sequences and markers at once."""
        self._known.clear()
        self._newest_marker, self._remembers = NO_MARKER, False

    def handle(self, connection: Connection) -> None:
        """Carry out the oldest request of a connection, or the next marker of it."""
        request = connection.requests[0]
        match request:
            case Produce():
                self._append(request)
            case Markers():
                self._mark(request)
                if request.written < request.number and request.code is ErrorCode.none:
                    return
                if request.unheard and request.code is ErrorCode.none:
                    request.code = ErrorCode.request_timed_out
            case LogEnd():
                request.offset = len(self.log)
        connection.answers.append(connection.requests.popleft())

    def _append(self, request: Produce) -> None:
        ((header, view),) = split_batches(memoryview(request.batch))
        first, records = header.base_sequence, header.record_count
        if request.refusal is not None:
            request.code = request.refusal
            return
        again = next((k for k in self._known if (k.first, k.records) == (first, records)), None)
        if again is not None:
            request.base, request.again = again.base, True
            return
        ours = self.ours()
        if ours is not None and first != ours.next_sequence and self.checks_sequences:
            request.code = ErrorCode.out_of_order_sequence_number
            return
        request.base = len(self.log)
        self._remembers = True
        self._known.append(Known(first, records, request.base))
        self.log += [int(record.key or b"-1") for record in decode_records(header, view)]
        if request.unheard:
            request.code = ErrorCode.request_timed_out

    def _mark(self, request: Markers) -> None:
        if request.epoch < self._newest_marker and self.fences_markers:
            request.code = ErrorCode.transaction_coordinator_fenced
            return
        self._remembers = True
        self._newest_marker = max(self._newest_marker, request.epoch)
        self.log.append(MARKER)
        request.written += 1


def fully(broker: Broker, connections: Iterable[Connection]) -> None:
    """Carry out all that these connections hold."""
    for connection in connections:
        while connection.requests:
            broker.handle(connection)
