"""The drain: what is behind the fence is on the destination, by the brokers' word, not the copier's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mirror_core.decide.deletions import recorded
from mirror_core.decide.headway import compared, headway
from mirror_core.decide.view import some
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, list_offsets, list_points
from mirror_core.kafka.topics import delete_records
from mirror_core.model.clock import now_ms
from mirror_core.model.copying import Deletion
from mirror_core.model.errors import MirrorError, RemoteFault
from mirror_core.model.mirror import Lease
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity import ParityRange
from mirror_core.state.link import Link
from mirror_core.state.records import PartitionRecord
from mirror_core.state.writer import StateWriter


def keep_deletions(link: Link, writer: StateWriter, deletions: Sequence[Deletion]) -> None:
    known = writer.state.partitions.get(link.mirror.name, {})
    fresh = recorded(known, deletions, now_ms())
    if fresh:
        writer.put(*(PartitionRecord(link.mirror.name, status) for status in fresh.values()))


def telling_rounds(
    link: Link, ends: Mapping[Partition, Offset], say: Callable[[str], None], until: Callable[[int], None]
) -> Callable[[int], None]:
    """Wrap `record_deadline` to report progress from the second copy round on."""
    first: dict[Partition, Offset] | None = None
    rounds, began = 0, 0.0

    def both(until_ms: int) -> None:
        nonlocal first, rounds, began
        until(until_ms)
        rounds += 1
        if rounds == 1:
            return
        try:
            with ClusterClient(link.destination) as destination:
                now = list_offsets(destination, ends, Point.LOG_END)
        except RemoteFault as error:  # the copy meets it, too, and has its own retries
            say(f"drain: how far it is, is not known: {error}")
            return
        if first is None:
            first, began = now, time.monotonic()
        left = [ParityRange(partition=p, start=min(first[p], end), end=end) for p, end in sorted(ends.items())]
        say(f"drain: {headway(*compared(left, now), time.monotonic() - began)}")

    return both


def verify_drained(link: Link, ends: Mapping[Partition, Offset]) -> dict[Partition, Offset]:
    """Destination log ends, equal to the source's. Raises MirrorError otherwise.

    Also applies source deletions. Nobody else would, and a promoted topic would have the records back.
    """
    with ClusterClient(link.source) as source, ClusterClient(link.destination) as destination:
        now, first = list_points(source, ends, [Point.LOG_END, Point.START]).values()
        points = list_points(destination, ends, [Point.LOG_END, Point.HIGH_WATERMARK, Point.START])
        positions, replicated, starts = points.values()
        problems = [f"{p}: log end on {source.name} went from {ends[p]} to {now[p]}" for p in ends if now[p] != ends[p]]
        problems += [f"{p}: position {positions[p]}, log end {ends[p]}" for p in ends if positions[p] != ends[p]]
        problems += [f"{p}: replicated up to {replicated[p]} of {ends[p]}" for p in ends if replicated[p] < ends[p]]
        if problems:
            raise MirrorError(
                f"mirror {link.mirror.name}: not drained: {some(problems)}. "
                "Resume the run to go on copying, or abort it"
            )
        behind = {p: first[p] for p in ends if starts[p] < first[p]}
        if behind:
            delete_records(destination, behind)
    return positions


def say_until(data: StateWriter, lease: Lease, until_ms: int) -> None:
    """Raises LostOwnership if the lease was taken."""
    data.put(replace(lease, beat_ms=now_ms(), writers_until_ms=max(lease.writers_until_ms, until_ms)))
