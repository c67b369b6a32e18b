"""What of a mirror can be compared now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.existing import Presence, presence
from mirror_core.kafka.offsets import Point, points_of, untold
from mirror_core.model.errors import Indeterminate, RemoteFault
from mirror_core.model.mirror import PartitionState
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.model.parity import ParityRange
from mirror_core.state.link import Link
from mirror_core.state.records import State

COMPARABLE: Final = frozenset(
    {
        PartitionState.MIRRORING,
        PartitionState.PAUSING,
        PartitionState.PAUSED,
        PartitionState.STOPPING,
        PartitionState.STOPPED,
    }
)


@dataclass(frozen=True, slots=True)
class Scope:
    ranges: tuple[ParityRange, ...]
    left_out: Mapping[Partition, PartitionState]
    """Partitions in a state without a claim of equality."""


def scope(link: Link, state: State) -> Scope:
    """Ranges from the source's log start to its last stable offset or the position; to the LMO if stopped.

    A partition without an answering leader is an empty range. One that the destination lacks is compared, and found
    missing. Indeterminate when a cluster does not answer at all.
    """
    statuses = state.partitions.get(link.mirror.name, {})
    chosen = sorted(p for p, status in statuses.items() if status.state in COMPARABLE)
    left_out = {p: status.state for p, status in sorted(statuses.items()) if status.state not in COMPARABLE}
    if not chosen:
        return Scope((), left_out)
    try:
        with ClusterClient(link.destination) as client:
            known_here = presence(client, chosen)
            (here,) = points_of(client, _present(chosen, known_here), [Point.LOG_END])
        with ClusterClient(link.source) as client:
            known_there = presence(client, chosen)
            starts, stable = points_of(client, _present(chosen, known_there), [Point.START, Point.STABLE_END])
    except RemoteFault as error:
        raise Indeterminate(f"mirror {link.mirror.name}: what to compare is not known: {error}") from None
    ranges, asked = list[ParityRange](), ((link.destination, here), (link.source, starts), (link.source, stable))
    denied = {**known_there.denied, **known_here.denied}
    for partition in chosen:
        missing = partition in known_here.absent
        unseen = [denied[partition]] if partition in denied else []
        if partition in known_there.absent:
            unseen.append(nothing_to_compare_with(link.source.name))
        unseen += [
            untold(side.name, partition, led)
            for side, led in asked
            if partition not in led.offsets and not (missing and led is here)
        ]
        if unseen:
            ranges.append(ParityRange(partition=partition, start=Offset(0), end=Offset(0), unseen=unseen[0]))
            continue
        lmo = statuses[partition].lmo
        readable = stable.offsets[partition]
        end = lmo if lmo is not None else readable if missing else min(readable, here.offsets[partition])
        start = Offset(min(starts.offsets[partition], end))
        ranges.append(ParityRange(partition=partition, start=start, end=end, stopped_at=lmo))
    return Scope(tuple(ranges), left_out)


def nothing_to_compare_with(source: ClusterName) -> str:
    return f"cluster {source} has no such partition (any more?): nothing to compare with"


def _present(partitions: Iterable[Partition], known: Presence) -> list[Partition]:
    return [p for p in partitions if p not in known.absent and p not in known.denied]
