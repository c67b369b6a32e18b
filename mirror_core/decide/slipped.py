"""What a cluster holds beyond what was copied, after a failover away from it: late writes."""

from __future__ import annotations

from collections.abc import Mapping

from mirror_core.decide.view import some
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.sighting import Sighting
from mirror_core.model.standing import Debt

Ranges = Mapping[Partition, tuple[Offset, Offset]]
"""By partition: [first, next) offsets."""


def slipped_in(debt: Debt, statuses: Mapping[Partition, PartitionStatus]) -> Ranges:
    """What the cluster has beyond the last mirrored offsets, up to where the fence was seen to hold.

    Written before the cluster fell silent and never copied, or after it returned and before it was fenced: offsets do
    not tell which.
    """
    ends = debt.ends.by_partition()
    return {
        p: (status.lmo, ends[p])
        for p, status in sorted(statuses.items())
        if status.lmo is not None and ends.get(p, status.lmo) > status.lmo
    }


def unknown_ends(debt: Debt, statuses: Mapping[Partition, PartitionStatus]) -> tuple[Partition, ...]:
    """Partitions whose log end behind an applied fence is not known yet.

    They are offline, their broker does not answer, or their topic is gone.
    """
    return () if debt.paid_ms is None else tuple(sorted(statuses.keys() - debt.ends.by_partition().keys()))


def newly_slipped(now: Debt, before: Debt, statuses: Mapping[Partition, PartitionStatus]) -> Ranges:
    found = slipped_in(now, statuses)
    if before.paid_ms is None:
        return found
    told = slipped_in(before, statuses)
    return {p: where for p, where in found.items() if p not in told and statuses[p].reason is None}


def listed(ranges: Ranges) -> str:
    return some(f"{p} [{start}, {end})" for p, (start, end) in sorted(ranges.items()))


def shown_slip(ranges: Ranges, sighting: Sighting | None) -> str:
    """Late ranges, and how much existed when the data plane last observed the cluster."""
    ends = {p: seen.end for p, seen in sighting.seen()} if sighting else {}
    old = sum(max(0, min(end, ends.get(p, start)) - start) for p, (start, end) in ranges.items())
    known = f"; at least {old} of them were there when it was last seen" if old else ""
    return f"{count(ranges)} offset(s): {listed(ranges)}{known}"


def slip_in_words(debt: Debt | None, statuses: Mapping[Partition, PartitionStatus], sighting: Sighting | None) -> str:
    if debt is None:
        return "none"
    found, unknown = slipped_in(debt, statuses), unknown_ends(debt, statuses)
    told = shown_slip(found, sighting) if found else "none"
    return f"{told}; not known yet of {some(unknown)}" if unknown else told


def count(ranges: Ranges) -> int:
    return sum(end - start for start, end in ranges.values())
