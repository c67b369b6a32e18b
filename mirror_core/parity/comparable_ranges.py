"""What of a mirror can be compared now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, explain_missing_offset, list_points_with_retry
from mirror_core.kafka.topic_existence import PartitionPresence, check_presence
from mirror_core.model.errors import Indeterminate, RemoteFault
from mirror_core.model.mirror import PartitionState
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.model.parity_verdict import ParityRange
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State

COMPARABLE_STATES: Final = frozenset(
    {
        PartitionState.MIRRORING,
        PartitionState.PAUSING,
        PartitionState.PAUSED,
        PartitionState.STOPPING,
        PartitionState.STOPPED,
    }
)


@dataclass(frozen=True, slots=True)
class ParityScope:
    ranges: tuple[ParityRange, ...]
    left_out: Mapping[Partition, PartitionState]
    """In a state without a claim of equality."""


def read_parity_scope(link: MirrorLink, state: State) -> ParityScope:
    """From the source's log start to the smaller of its last stable offset and the position; to the LMO if stopped.

    A partition without an answering leader is an empty range. One that the destination lacks is compared, and found
    missing. Indeterminate when a cluster does not answer at all.
    """
    statuses = state.partitions.get(link.mirror.name, {})
    chosen = sorted(p for p, status in statuses.items() if status.state in COMPARABLE_STATES)
    left_out = {p: status.state for p, status in sorted(statuses.items()) if status.state not in COMPARABLE_STATES}
    if not chosen:
        return ParityScope((), left_out)
    try:
        with ClusterClient(link.destination) as client:
            destination_presence = check_presence(client, chosen)
            (destination_ends,) = list_points_with_retry(
                client, _list_present(chosen, destination_presence), [OffsetPoint.LOG_END]
            )
        with ClusterClient(link.source) as client:
            source_presence = check_presence(client, chosen)
            starts, stable_ends = list_points_with_retry(
                client, _list_present(chosen, source_presence), [OffsetPoint.START, OffsetPoint.STABLE_END]
            )
    except RemoteFault as error:
        raise Indeterminate(f"mirror {link.mirror.name}: what to compare is not known: {error}") from None
    ranges, sides = (
        list[ParityRange](),
        ((link.destination, destination_ends), (link.source, starts), (link.source, stable_ends)),
    )
    denied = {**source_presence.denied, **destination_presence.denied}
    for partition in chosen:
        missing = partition in destination_presence.absent
        unknown = [denied[partition]] if partition in denied else []
        if partition in source_presence.absent:
            unknown.append(format_missing_partition(link.source.name))
        unknown += [
            explain_missing_offset(side.name, partition, offsets_result)
            for side, offsets_result in sides
            if partition not in offsets_result.offsets and not (missing and offsets_result is destination_ends)
        ]
        if unknown:
            ranges.append(
                ParityRange(partition=partition, start=Offset(0), end=Offset(0), unreadable_reason=unknown[0])
            )
            continue
        lmo = statuses[partition].lmo
        stable_end = stable_ends.offsets[partition]
        end = (
            lmo if lmo is not None else stable_end if missing else min(stable_end, destination_ends.offsets[partition])
        )
        start = Offset(min(starts.offsets[partition], end))
        ranges.append(ParityRange(partition=partition, start=start, end=end, stopped_at=lmo))
    return ParityScope(tuple(ranges), left_out)


def format_missing_partition(source: ClusterName) -> str:
    return f"cluster {source} has no such partition (any more?): nothing to compare with"


def _list_present(partitions: Iterable[Partition], presence_by_partition: PartitionPresence) -> list[Partition]:
    return [p for p in partitions if p not in presence_by_partition.absent and p not in presence_by_partition.denied]
