"""The drain: what is behind the fence is on the destination, by the brokers' word, not the copier's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mirror_core.decide.deletions import count_deletions
from mirror_core.decide.headway import count_compared, format_progress
from mirror_core.decide.view import join_limited
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import OffsetPoint, list_offset_points, list_offsets
from mirror_core.kafka.topics import delete_records
from mirror_core.model.clock import now_ms
from mirror_core.model.copying import TrimmedRange
from mirror_core.model.errors import MirrorError, RemoteFault
from mirror_core.model.mirror import Lease
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity import ParityRange
from mirror_core.state.link import MirrorLink
from mirror_core.state.records import PartitionRecord
from mirror_core.state.writer import StateWriter


def record_deletions(link: MirrorLink, writer: StateWriter, deletions: Sequence[TrimmedRange]) -> None:
    statuses = writer.state.partitions.get(link.mirror.name, {})
    changed_statuses = count_deletions(statuses, deletions, now_ms())
    if changed_statuses:
        writer.put(*(PartitionRecord(link.mirror.name, status) for status in changed_statuses.values()))


def report_drain_progress(
    link: MirrorLink,
    ends: Mapping[Partition, Offset],
    print_line: Callable[[str], None],
    record_deadline: Callable[[int], None],
) -> Callable[[int], None]:
    """Wrap `record_deadline` to report progress from the second copy round on."""
    first_ends: dict[Partition, Offset] | None = None
    rounds, began = 0, 0.0

    def before_round(until_ms: int) -> None:
        nonlocal first_ends, rounds, began
        record_deadline(until_ms)
        rounds += 1
        if rounds == 1:
            return
        try:
            with ClusterClient(link.destination) as destination:
                current_ends = list_offsets(destination, ends, OffsetPoint.LOG_END)
        except RemoteFault as error:  # the copy meets it, too, and has its own retries
            print_line(f"drain: how far it is, is not known: {error}")
            return
        if first_ends is None:
            first_ends, began = current_ends, time.monotonic()
        ranges_left = [
            ParityRange(partition=p, start=min(first_ends[p], end), end=end) for p, end in sorted(ends.items())
        ]
        print_line(f"drain: {format_progress(*count_compared(ranges_left, current_ends), time.monotonic() - began)}")

    return before_round


def verify_drained(link: MirrorLink, ends: Mapping[Partition, Offset]) -> dict[Partition, Offset]:
    """Destination log ends, equal to the source's. Raises MirrorError otherwise.

    Also applies source deletions. Nobody else would, and a promoted topic would have the records back.
    """
    with ClusterClient(link.source) as source, ClusterClient(link.destination) as destination:
        source_ends, source_starts = list_offset_points(source, ends, [OffsetPoint.LOG_END, OffsetPoint.START]).values()
        points = list_offset_points(
            destination, ends, [OffsetPoint.LOG_END, OffsetPoint.HIGH_WATERMARK, OffsetPoint.START]
        )
        positions, replicated, starts = points.values()
        problems = [
            f"{p}: log end on {source.name} went from {ends[p]} to {source_ends[p]}"
            for p in ends
            if source_ends[p] != ends[p]
        ]
        problems += [f"{p}: position {positions[p]}, log end {ends[p]}" for p in ends if positions[p] != ends[p]]
        problems += [f"{p}: replicated up to {replicated[p]} of {ends[p]}" for p in ends if replicated[p] < ends[p]]
        if problems:
            raise MirrorError(
                f"mirror {link.mirror.name}: not drained: {join_limited(problems)}. "
                "Resume the run to go on copying, or abort it"
            )
        trim_offsets = {p: source_starts[p] for p in ends if starts[p] < source_starts[p]}
        if trim_offsets:
            delete_records(destination, trim_offsets)
    return positions


def record_write_deadline(data: StateWriter, lease: Lease, until_ms: int) -> None:
    """Raises LostOwnership if the lease was taken."""
    data.put(replace(lease, heartbeat_ms=now_ms(), writers_until_ms=max(lease.writers_until_ms, until_ms)))
