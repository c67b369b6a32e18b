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

from mirror_core.decide.standing import when
from mirror_core.decide.view import some
from mirror_core.model.copying import Deletion
from mirror_core.model.mirror import NeverCopied, PartitionStatus
from mirror_core.model.names import HEARTBEATS, Offset, Partition


def counted(status: PartitionStatus) -> Offset | None:
    """All deletions below this offset are recorded or not the mirror's. None: heartbeats."""
    if status.partition.topic.startswith(HEARTBEATS):
        return None
    return status.never_copied.next if status.never_copied else status.source_start


def counting(status: PartitionStatus, deletion: Deletion, now_ms: int) -> PartitionStatus:
    known, old = counted(status), status.never_copied
    first = deletion.first if known is None else max(deletion.first, known)
    if first >= deletion.next:
        return status
    total = NeverCopied(
        offsets=deletion.next - first + (old.offsets if old else 0),
        since_ms=old.since_ms if old else now_ms,
        newest_ms=now_ms,
        # Nothing was copied between this one and the last one: they are one.
        first=old.first if old and old.next == first else Offset(first),
        next=deletion.next,
    )
    return replace(status, never_copied=total)


def recorded(
    known: Mapping[Partition, PartitionStatus], deletions: Iterable[Deletion], now_ms: int
) -> dict[Partition, PartitionStatus]:
    fresh: dict[Partition, PartitionStatus] = {}
    for deletion in sorted(deletions, key=lambda d: (d.partition, d.first)):
        status = fresh.get(deletion.partition, known.get(deletion.partition))
        if status is not None and not deletion.partition.topic.startswith(HEARTBEATS):
            fresh[deletion.partition] = counting(status, deletion, now_ms)
    return {partition: status for partition, status in fresh.items() if status != known[partition]}


def total(statuses: Iterable[PartitionStatus]) -> int:
    return sum(s.never_copied.offsets for s in statuses if s.never_copied)


def in_words(statuses: Mapping[Partition, PartitionStatus]) -> str:
    found = {p: s.never_copied for p, s in sorted(statuses.items()) if s.never_copied}
    if not found:
        return ""
    most = sorted(found, key=lambda p: (-found[p].offsets, p))
    since = min(one.since_ms for one in found.values())
    listed = some([f"{p} ({found[p].offsets:,}, the last of them [{found[p].first}, {found[p].next}))" for p in most])
    return f"{total(statuses.values()):,} offset(s) of {len(found)} partition(s), first found {when(since)}: {listed}"
