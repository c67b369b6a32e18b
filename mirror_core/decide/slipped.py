"""What a cluster holds beyond what was copied, after a failover away from it: late writes."""

from __future__ import annotations

from collections.abc import Mapping

from mirror_core.decide.view import join_limited
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.sighting import SourceObservation
from mirror_core.model.standing import PendingFence

LateRanges = Mapping[Partition, tuple[Offset, Offset]]
"""By partition: [first, next) offsets."""


def find_late_ranges(pending_fence: PendingFence, statuses: Mapping[Partition, PartitionStatus]) -> LateRanges:
    """What the cluster has beyond the last mirrored offsets, up to where the fence was seen to hold.

    Written before the cluster fell silent and never copied, or after it returned and before it was fenced: offsets do
    not tell which.
    """
    ends = pending_fence.log_ends.to_mapping()
    return {
        p: (status.lmo, ends[p])
        for p, status in sorted(statuses.items())
        if status.lmo is not None and ends.get(p, status.lmo) > status.lmo
    }


def find_unknown_ends(
    pending_fence: PendingFence, statuses: Mapping[Partition, PartitionStatus]
) -> tuple[Partition, ...]:
    """Partitions whose log end behind an applied fence is not known yet.

    They are offline, their broker does not answer, or their topic is gone.
    """
    return (
        ()
        if pending_fence.applied_at_ms is None
        else tuple(sorted(statuses.keys() - pending_fence.log_ends.to_mapping().keys()))
    )


def find_new_late_ranges(
    current: PendingFence, previous: PendingFence, statuses: Mapping[Partition, PartitionStatus]
) -> LateRanges:
    late_ranges = find_late_ranges(current, statuses)
    if previous.applied_at_ms is None:
        return late_ranges
    reported = find_late_ranges(previous, statuses)
    return {
        p: offset_range for p, offset_range in late_ranges.items() if p not in reported and statuses[p].reason is None
    }


def format_ranges(ranges: LateRanges) -> str:
    return join_limited(f"{p} [{start}, {end})" for p, (start, end) in sorted(ranges.items()))


def format_late_ranges(ranges: LateRanges, observation: SourceObservation | None) -> str:
    """Late ranges, and how much existed when the data plane last observed the cluster."""
    observed_ends = {p: observed.end for p, observed in observation.get_ends()} if observation else {}
    old_offsets = sum(max(0, min(end, observed_ends.get(p, start)) - start) for p, (start, end) in ranges.items())
    known_text = f"; at least {old_offsets} of them were there when it was last seen" if old_offsets else ""
    return f"{count_offsets(ranges)} offset(s): {format_ranges(ranges)}{known_text}"


def format_late_writes(
    pending_fence: PendingFence | None,
    statuses: Mapping[Partition, PartitionStatus],
    observation: SourceObservation | None,
) -> str:
    if pending_fence is None:
        return "none"
    late_ranges, unknown_partitions = (
        find_late_ranges(pending_fence, statuses),
        find_unknown_ends(pending_fence, statuses),
    )
    text = format_late_ranges(late_ranges, observation) if late_ranges else "none"
    return f"{text}; not known yet of {join_limited(unknown_partitions)}" if unknown_partitions else text


def count_offsets(ranges: LateRanges) -> int:
    return sum(end - start for start, end in ranges.values())
