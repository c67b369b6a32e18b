"""Compares the destination with receipts, also when the source is dead or deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from mirror_core.decide.topics import cleans
from mirror_core.evidence.certificates import Gap, Told, Vouched, gaps, vouched
from mirror_core.evidence.folders import Folder
from mirror_core.evidence.heads import Checked, Heads
from mirror_core.evidence.kept import Found
from mirror_core.evidence.kept import found as found_receipts
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.existing import existing
from mirror_core.kafka.offsets import Point, list_points
from mirror_core.kafka.topics import describe_configs
from mirror_core.model.copying import Piece
from mirror_core.model.errors import Indeterminate, RemoteFault
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity import ParityRange
from mirror_core.parity.scope import COMPARABLE
from mirror_core.state.lease import copier
from mirror_core.state.link import Link
from mirror_core.state.records import State
from mirror_core.state.topic import read_whole

_ADVICE: Final = "`mirrorbook mirror recover` shows what can be done"
GONE: Final = f"it was copied, and the destination does not show it: {_ADVICE}"
REPLACED: Final = f"it was copied, and the destination shows another topic of its name: {_ADVICE}"
SOUND: Final = Checked(good=())
TOLD_WITHIN: Final = timedelta(minutes=5)
"""With an older newest receipt a data plane stores none."""


@dataclass(frozen=True, slots=True)
class Certified:
    """What receipts cover of a mirror."""

    receipts: str
    """Folder or URL."""
    ends: Mapping[Partition, tuple[Offset, Offset]]
    """Destination log starts and ends."""
    vouched: Mapping[Partition, Vouched]
    cleaned: frozenset[str]
    left_out: Mapping[Partition, str]
    """Not part of the result, with the reason; includes parts of partitions."""
    checked: Checked = SOUND
    newest: Mapping[Partition, tuple[int, int, Offset]] = field(default_factory=dict)
    """Generation, epoch and next offset."""
    unproved: Mapping[Partition, tuple[Gap, ...]] = field(default_factory=dict)
    """While there is any, the mirror as a whole is not certified."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """Topic ids on the destination."""


def certified(link: Link, state: State, folder: Folder) -> Certified:
    """Read what unaltered receipts in this folder cover.

    Indeterminate when the destination or the receipts cannot be read.
    """
    mirror, statuses = link.mirror.name, state.partitions.get(link.mirror.name, {})
    try:
        kept = found_receipts(folder, mirror, lambda: heads_of(link))
        with ClusterClient(link.destination) as client:
            there = existing(client, {p.topic for p in statuses})
            held = sorted(p for p in statuses if p.topic in there and p.index in there[p.topic].partitions)
            # Receipts say nothing about another topic of the same name.
            ours = {p for p in held if statuses[p].destination_topic_id in ("", there[p.topic].id)}
            points = list_points(client, held, [Point.START, Point.LOG_END])
            configs = describe_configs(client, {p.topic for p in held})
    except (RemoteFault, OSError) as error:
        raise Indeterminate(f"mirror {mirror}: what to prove is not known: {error}") from None
    told, newest, ended = _told(kept, statuses)
    starts, ends = points[Point.START], points[Point.LOG_END]
    found = {p: vouched(told[p], starts[p], statuses[p].lmo) for p in held if p in told and p in ours}
    lease, soon = copier(state, mirror), datetime.now(UTC) - TOLD_WITHIN
    unproved, left_out = dict[Partition, tuple[Gap, ...]](), dict[Partition, str]()
    for p, status in sorted(statuses.items()):
        if p not in ours:
            reached = newest[p][2] if p in newest else ends.get(p, Offset(0))
            if status.lmo is not None:
                left_out[p] = "the destination does not hold it any more; its mirroring had ended"
            elif reached:
                unproved[p] = (Gap(Offset(0), reached, REPLACED if p in ends else GONE),)
            continue
        # Records from the LMO on are the applications' own.
        end = ends[p] if status.lmo is None else min(ends[p], status.lmo)
        if p in found:
            generation, _, reached = newest.get(p, (-1, 0, Offset(0)))
            copying = lease is not None and status.lmo is None and generation == lease.generation and ended[p] > soon
            unproved[p], out = gaps(found[p], starts[p], end, reached if copying else None)
            left_out |= {p: "; ".join(f"[{gap.start}, {gap.end}): {gap.why}" for gap in out)} if out else {}
        elif starts[p] < end:
            unproved[p] = (Gap(starts[p], end, f"it is {status.state}: `mirrorbook mirror describe {mirror}`"),)
    return Certified(
        folder.where,
        {p: (starts[p], ends[p]) for p in found},
        {p: one for p, one in found.items() if one.pieces},
        frozenset(topic for topic, described in configs.items() if cleans(described.effective)),
        left_out,
        kept.checked,
        newest,
        {p: mine for p, mine in unproved.items() if mine},
        {p.topic: there[p.topic].id for p in ours},
    )


def _told(
    kept: Found, statuses: Mapping[Partition, PartitionStatus]
) -> tuple[dict[Partition, list[Told]], dict[Partition, tuple[int, int, Offset]], dict[Partition, datetime]]:
    """Pieces by partition, newest receipts, and when their work ended; for the recorded topic ids only."""
    told: dict[Partition, list[Told]] = {p: [] for p, status in statuses.items() if status.state in COMPARABLE}
    newest, ended = dict[Partition, tuple[int, int, Offset]](), dict[Partition, datetime]()
    for row in kept.rows().select([*_COLUMNS, *_IDS]).to_pylist():
        partition = Partition(row["topic"], row["partition"])
        status = statuses.get(partition)
        if status and tuple(row[i] for i in _IDS) == tuple(getattr(status, i) for i in _IDS):
            if partition in told:
                told[partition] += [Told(row["generation"], row["epoch"], _piece(one)) for one in row["pieces"] or ()]
            one = row["generation"], row["epoch"], Offset(row["next"])
            if one > newest.get(partition, (0, 0, Offset(0))):
                newest[partition], ended[partition] = one, row["ended"]
    return told, newest, ended


def heads_of(link: Link) -> Heads:
    state = read_whole(link.destination)
    state.require(link.mirror.name)
    return state.receipts.get(link.mirror.name, {})


_IDS: Final = ("source_topic_id", "destination_topic_id")
_COLUMNS: Final = ("topic", "partition", "generation", "epoch", "next", "ended", "pieces")


def _piece(row: Mapping[str, str]) -> Piece:
    first, end = Offset(int(row["first"])), Offset(int(row["next"]))
    return Piece(first=first, next=end, records=int(row["records"]), digest=row["digest"])


def ranges_of(scope: Certified) -> list[ParityRange]:
    """Certified ranges, and the gaps before them."""
    ranges = list[ParityRange]()
    for partition, found in scope.vouched.items():
        assert found.start is not None
        assert found.end is not None
        first = min([found.start, *(gap.start for gap in scope.unproved.get(partition, ()))])
        ranges.append(ParityRange(partition=partition, start=first, end=found.end, stopped_at=found.end))
    return ranges
