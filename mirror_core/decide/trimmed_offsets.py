"""Counts offsets that the source deleted (retention, DeleteRecords) before they were copied, each
once.

A copy whose position fell behind the source's log start continues from that start. Both sides are then equal and no
comparison finds the loss, so it is counted when it happens and stored with the partition's status. It cannot be found
later: on the destination such offsets look like any other gap. The driver records them before a task goes on, so after
a crash the same offsets are found again. Each counts once because log starts only grow: offsets below the end of the
last recorded deletion are already counted.

Heartbeats do not count: their topic is kept small on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.model.mirror import NeverCopied, PartitionStatus
from mirror_core.model.names import HEARTBEAT_TOPIC_PREFIX, Offset, Partition
from mirror_core.model.task_messages import TrimmedRange
from mirror_core.model.text import format_time


def find_counted_end(status: PartitionStatus) -> Offset | None:
    """All deletions below this offset are recorded or not the mirror's. None: heartbeats."""
    if status.partition.topic.startswith(HEARTBEAT_TOPIC_PREFIX):
        return None
    return status.never_copied.next if status.never_copied else status.source_start


def count_deletion(status: PartitionStatus, deletion: TrimmedRange, now_ms: int) -> PartitionStatus:
    counted_end, earlier = find_counted_end(status), status.never_copied
    first = deletion.first if counted_end is None else max(deletion.first, counted_end)
    if first >= deletion.next:
        return status
    never_copied = NeverCopied(
        offsets=deletion.next - first + (earlier.offsets if earlier else 0),
        since_ms=earlier.since_ms if earlier else now_ms,
        newest_ms=now_ms,
        # Nothing was copied between this one and the last one: they are one.
        first=earlier.first if earlier and earlier.next == first else Offset(first),
        next=deletion.next,
    )
    return replace(status, never_copied=never_copied)


def count_deletions(
    statuses: Mapping[Partition, PartitionStatus], deletions: Iterable[TrimmedRange], now_ms: int
) -> dict[Partition, PartitionStatus]:
    changed: dict[Partition, PartitionStatus] = {}
    for deletion in sorted(deletions, key=lambda d: (d.partition, d.first)):
        status = changed.get(deletion.partition, statuses.get(deletion.partition))
        if status is not None and not deletion.partition.topic.startswith(HEARTBEAT_TOPIC_PREFIX):
            changed[deletion.partition] = count_deletion(status, deletion, now_ms)
    return {partition: status for partition, status in changed.items() if status != statuses[partition]}


def sum_never_copied(statuses: Iterable[PartitionStatus]) -> int:
    return sum(s.never_copied.offsets for s in statuses if s.never_copied)


def format_never_copied(statuses: Mapping[Partition, PartitionStatus]) -> str:
    never_copied = {p: s.never_copied for p, s in sorted(statuses.items()) if s.never_copied}
    if not never_copied:
        return ""
    fullest_first = sorted(never_copied, key=lambda p: (-never_copied[p].offsets, p))
    since = min(record.since_ms for record in never_copied.values())
    listed = join_limited(
        [
            f"{p} ({never_copied[p].offsets:,}, the last of them [{never_copied[p].first}, {never_copied[p].next}))"
            for p in fullest_first
        ]
    )
    return (
        f"{sum_never_copied(statuses.values()):,} offset(s) of {len(never_copied)} partition(s), first found"
        f" {format_time(since)}: {listed}"
    )
