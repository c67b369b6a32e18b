"""Sends progress and trimmed ranges to the driver; hands gap claims to the next epoch's task.

Of two attempts of a task only one gets a claim. Lost datagrams cost a wait (`copy.gap_ownership`) and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.task_datagrams import Datagram, DatagramKind, DriverChannel, encode_bodies
from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import TrimmedRange

_MAX_DATAGRAMS_PER_TURN: Final = 50


class ProgressSender:
    """Reports every partition each second, and itself while it has none. A lost datagram does no harm."""

    def __init__(self, task: int, channel: DriverChannel, now_s: Callable[[], float]) -> None:
        self._task = task
        self._channel = channel
        self._now_s = now_s
        self._next_send_at = 0.0
        self._waiting = deque[bytes]()

    def send(self, replicators: Iterable[PartitionReplicator], last: bool = False) -> None:
        if not self._channel.is_open:
            return
        now = self._now_s()
        if last or (now >= self._next_send_at and not self._waiting):
            self._next_send_at = now + 1.0
            self._waiting = deque(self._bodies(replicators, now))
        for _ in range(len(self._waiting) if last else min(_MAX_DATAGRAMS_PER_TURN, len(self._waiting))):
            self._channel.send(DatagramKind.PROGRESS, self._waiting.popleft())

    def _bodies(self, replicators: Iterable[PartitionReplicator], now: float) -> Iterable[bytes]:
        rows = (
            (
                replicator.partition.topic,
                replicator.partition.index,
                replicator.progress.acknowledged,
                # A LOST partition may have lost its source: the known end may be outdated.
                None
                if replicator.state is CopyState.LOST or replicator.source.is_silent(replicator.progress.position, now)
                else replicator.source.end,
                replicator.records,
                replicator.counts.bytes,
                max(0, replicator.progress.seed_end - replicator.progress.acknowledged),
                replicator.known_from,
            )
            for replicator in replicators
            if replicator.counts.first is not None
        )
        portions = list(encode_bodies(rows)) or [b"[]"]
        return (b'{"task":%d,"t":%.6f,"rows":%b}' % (self._task, now, portion) for portion in portions)


_REQUEST_INTERVAL_S: Final = 0.05
_NUMBER_DIGITS: Final = 12
"""A granted claim is its request plus the number: so the response to one datagram fits into one."""
ReleasedClaim = tuple[Partition, int]


class _ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    left: list[tuple[str, int, int]] = []
    wants: list[tuple[str, int]] = []
    deleted: list[tuple[str, int, int, int]] = []


class _ClaimResponse(msgspec.Struct, frozen=True, kw_only=True):
    given: list[tuple[str, int, int]] = []
    recorded: list[tuple[str, int, int]] = []


# Made once, by the thread that imports this: two that meet a type for the first time crash msgspec (0.22).
_REQUEST_DECODER: Final = msgspec.json.Decoder(_ClaimRequest)
_RESPONSE_DECODER: Final = msgspec.json.Decoder(_ClaimResponse)


class CurrentCopies:
    """Reports of older epochs are about earlier topics of that name."""

    def __init__(self) -> None:
        self._first_epochs: dict[Partition, int] = {}

    def begin(self, partitions: Iterable[Partition], newest_epoch: int) -> None:
        # Before old reports are forgotten: late ones come at any moment.
        self._first_epochs.update(dict.fromkeys(partitions, newest_epoch + 1))

    def includes(self, partition: Partition, epoch: int) -> bool:
        return epoch >= self._first_epochs.get(partition, 0)


class ClaimBoard:
    """The driver's side: `handle` in the receiving thread, the rest in the driver's."""

    def __init__(self, copies: CurrentCopies | None = None) -> None:
        self._copies = copies or CurrentCopies()
        self._lock = threading.Lock()
        self._trimmed_ranges: dict[TrimmedRange, None] = {}
        self._recorded_up_to: dict[Partition, int] = {}
        self._released: dict[Partition, tuple[int, int]] = {}

    def handle(self, datagram: Datagram) -> bytes:
        """Returns the response, or b""."""
        request = _REQUEST_DECODER.decode(datagram.body)
        with self._lock:
            for topic, index, number in request.left:
                if self._copies.includes(partition := Partition(topic, index), datagram.epoch):
                    self._released[partition] = datagram.epoch, number
            wanted_partitions = dict.fromkeys(Partition(topic, index) for topic, index in request.wants)
            # A released claim may have changed hands: its last owner cannot have it back.
            granted = [p for p in wanted_partitions if self._released.get(p, (datagram.epoch, 0))[0] < datagram.epoch]
            rows = [(partition.topic, partition.index, self._released.pop(partition)[1]) for partition in granted]
            recorded = list(self._receive_trims(request.deleted, datagram.epoch))
        return msgspec.json.encode(_ClaimResponse(given=rows, recorded=recorded)) if rows or recorded else b""

    def _receive_trims(self, rows: Iterable[tuple[str, int, int, int]], epoch: int) -> Iterator[tuple[str, int, int]]:
        for topic, index, start, end in rows:
            partition = Partition(topic, index)
            if not self._copies.includes(partition, epoch):
                continue
            if end <= self._recorded_up_to.get(partition, -1):
                yield topic, index, end
            else:
                trimmed = TrimmedRange(partition=partition, first=Offset(start), next=Offset(end))
                self._trimmed_ranges[trimmed] = None

    def forget(self, partitions: Collection[Partition]) -> None:
        with self._lock:
            self._trimmed_ranges = {t: None for t in self._trimmed_ranges if t.partition not in partitions}
            for partition in partitions:
                self._recorded_up_to.pop(partition, None)
                self._released.pop(partition, None)

    def get_unrecorded_trims(self) -> tuple[TrimmedRange, ...]:
        with self._lock:
            return tuple(self._trimmed_ranges)

    def mark_recorded(self, trimmed_ranges: Iterable[TrimmedRange]) -> None:
        with self._lock:
            for trimmed in trimmed_ranges:
                self._trimmed_ranges.pop(trimmed, None)
                self._recorded_up_to[trimmed.partition] = max(
                    trimmed.next, self._recorded_up_to.get(trimmed.partition, -1)
                )


class ClaimClient:
    def __init__(self, channel: DriverChannel) -> None:
        self._channel = channel
        self._next_request_at = 0.0
        self._released = set[Partition]()

    def exchange(self, replicators: Mapping[Partition, PartitionReplicator]) -> None:
        now = time.monotonic()
        if not self._channel.is_open or now < self._next_request_at:
            return
        self._next_request_at = now + _REQUEST_INTERVAL_S
        for body in self._channel.receive_responses():
            response = _RESPONSE_DECODER.decode(body)
            for topic, index, number in response.given:
                if (replicator := replicators.get(Partition(topic, index))) is not None:
                    replicator.gap_claim.receive(number)
            for topic, index, end in response.recorded:
                if (replicator := replicators.get(Partition(topic, index))) is not None:
                    replicator.trims.mark_recorded(end)
        waiting = (
            p
            for p, waiting_replicator in replicators.items()
            if waiting_replicator.due_gap is not None and not waiting_replicator.gap_claim.is_owned
        )
        for rows in encode_bodies(((p.topic, p.index) for p in waiting), spare=_NUMBER_DIGITS):
            self._channel.send(DatagramKind.CLAIMS, b'{"wants":%b}' % rows)
        unrecorded = (
            (waiting_replicator.partition, waiting_replicator.trims.unrecorded)
            for waiting_replicator in replicators.values()
            if waiting_replicator.trims.is_waiting
        )
        for rows in encode_bodies(
            (p.topic, p.index, *offsets) for p, replicator in unrecorded for offsets in replicator
        ):
            self._channel.send(DatagramKind.CLAIMS, b'{"deleted":%b}' % rows)

    def release(self, replicators: Iterable[PartitionReplicator]) -> None:
        """To the next task, with nothing in flight. Each once: later it may have changed hands."""
        released = [
            replicator
            for replicator in replicators
            if replicator.partition not in self._released
            and replicator.gap_claim.is_owned
            and not replicator.progress.in_flight
            and not replicator.in_background
            and (replicator.can_send or replicator.state is CopyState.DONE)
        ]
        self._released.update(replicator.partition for replicator in released)
        for rows in encode_bodies(
            (replicator.partition.topic, replicator.partition.index, replicator.gap_claim.newest_epoch)
            for replicator in released
        ):
            self._channel.send(DatagramKind.CLAIMS, b'{"left":%b}' % rows)
