"""Compares the destination with receipts, also when the source is dead or deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from mirror_core.decide.topics import is_compacted
from mirror_core.evidence.certificates import Coverage, DatedPiece, UncoveredRange, compute_coverage, find_gaps
from mirror_core.evidence.folders import Folder
from mirror_core.evidence.heads import CheckedReceipts, ReceiptHeads
from mirror_core.evidence.kept import StoredReceipts
from mirror_core.evidence.kept import read_receipts as found_receipts
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.existing import find_existing_topics
from mirror_core.kafka.offsets import OffsetPoint, list_offset_points
from mirror_core.kafka.topics import describe_configs
from mirror_core.model.copying import ReceiptPiece
from mirror_core.model.errors import Indeterminate, RemoteFault
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity import ParityRange
from mirror_core.parity.scope import COMPARABLE_STATES
from mirror_core.state.lease import find_live_lease
from mirror_core.state.link import MirrorLink
from mirror_core.state.records import State
from mirror_core.state.topic import read_complete_state

_ADVICE: Final = "`mirrorbook mirror recover` shows what can be done"
GONE_REASON: Final = f"it was copied, and the destination does not show it: {_ADVICE}"
REPLACED_REASON: Final = f"it was copied, and the destination shows another topic of its name: {_ADVICE}"
ALL_SOUND: Final = CheckedReceipts(readable=())
MAX_RECEIPT_AGE: Final = timedelta(minutes=5)
"""With an older newest receipt a data plane stores none."""


@dataclass(frozen=True, slots=True)
class CertificateScope:
    """What receipts cover of a mirror."""

    receipts: str
    """Folder or URL."""
    ends: Mapping[Partition, tuple[Offset, Offset]]
    """Destination log starts and ends."""
    certified: Mapping[Partition, Coverage]
    compacted_topics: frozenset[str]
    left_out: Mapping[Partition, str]
    """Not part of the result, with the reason; includes parts of partitions."""
    checked: CheckedReceipts = ALL_SOUND
    newest_receipts: Mapping[Partition, tuple[int, int, Offset]] = field(default_factory=dict)
    """Generation, epoch and next offset."""
    uncertified: Mapping[Partition, tuple[UncoveredRange, ...]] = field(default_factory=dict)
    """While there is any, the mirror as a whole is not certified."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Topic ids on the destination."""


def read_certificate_scope(link: MirrorLink, state: State, folder: Folder) -> CertificateScope:
    """Read what unaltered receipts in this folder cover.

    Indeterminate when the destination or the receipts cannot be read.
    """
    mirror, statuses = link.mirror.name, state.partitions.get(link.mirror.name, {})
    try:
        stored = found_receipts(folder, mirror, lambda: heads_of(link))
        with ClusterClient(link.destination) as client:
            topics = find_existing_topics(client, {p.topic for p in statuses})
            present = sorted(p for p in statuses if p.topic in topics and p.index in topics[p.topic].partitions)
            # Receipts say nothing about another topic of the same name.
            own = {p for p in present if statuses[p].destination_topic_id in ("", topics[p.topic].id)}
            points = list_offset_points(client, present, [OffsetPoint.START, OffsetPoint.LOG_END])
            configs = describe_configs(client, {p.topic for p in present})
    except (RemoteFault, OSError) as error:
        raise Indeterminate(f"mirror {mirror}: what to prove is not known: {error}") from None
    receipt_pieces, newest, ended_at = _read_receipts(stored, statuses)
    starts, ends = points[OffsetPoint.START], points[OffsetPoint.LOG_END]
    coverage = {
        p: compute_coverage(receipt_pieces[p], starts[p], statuses[p].lmo)
        for p in present
        if p in receipt_pieces and p in own
    }
    lease, oldest_allowed = find_live_lease(state, mirror), datetime.now(UTC) - MAX_RECEIPT_AGE
    uncertified, left_out = dict[Partition, tuple[UncoveredRange, ...]](), dict[Partition, str]()
    for p, status in sorted(statuses.items()):
        if p not in own:
            reached = newest[p][2] if p in newest else ends.get(p, Offset(0))
            if status.lmo is not None:
                left_out[p] = "the destination does not hold it any more; its mirroring had ended"
            elif reached:
                uncertified[p] = (UncoveredRange(Offset(0), reached, REPLACED_REASON if p in ends else GONE_REASON),)
            continue
        # Records from the LMO on are the applications' own.
        end = ends[p] if status.lmo is None else min(ends[p], status.lmo)
        if p in coverage:
            generation, _, reached = newest.get(p, (-1, 0, Offset(0)))
            is_copying = (
                lease is not None
                and status.lmo is None
                and generation == lease.generation
                and ended_at[p] > oldest_allowed
            )
            uncertified[p], excluded = find_gaps(coverage[p], starts[p], end, reached if is_copying else None)
            left_out |= (
                {p: "; ".join(f"[{gap.start}, {gap.end}): {gap.reason}" for gap in excluded)} if excluded else {}
            )
        elif starts[p] < end:
            uncertified[p] = (
                UncoveredRange(starts[p], end, f"it is {status.state}: `mirrorbook mirror describe {mirror}`"),
            )
    return CertificateScope(
        folder.where,
        {p: (starts[p], ends[p]) for p in coverage},
        {p: partition_coverage for p, partition_coverage in coverage.items() if partition_coverage.pieces},
        frozenset(topic for topic, described in configs.items() if is_compacted(described.effective)),
        left_out,
        stored.checked,
        newest,
        {p: gap_list for p, gap_list in uncertified.items() if gap_list},
        {p.topic: topics[p.topic].id for p in own},
    )


def _read_receipts(
    stored: StoredReceipts, statuses: Mapping[Partition, PartitionStatus]
) -> tuple[dict[Partition, list[DatedPiece]], dict[Partition, tuple[int, int, Offset]], dict[Partition, datetime]]:
    """Pieces by partition, newest receipts, and when their work ended; for the recorded topic ids only."""
    receipt_pieces: dict[Partition, list[DatedPiece]] = {
        p: [] for p, status in statuses.items() if status.state in COMPARABLE_STATES
    }
    newest, ended_at = dict[Partition, tuple[int, int, Offset]](), dict[Partition, datetime]()
    for row in stored.rows().select([*_RECEIPT_COLUMNS, *_ID_COLUMNS]).to_pylist():
        partition = Partition(row["topic"], row["partition"])
        status = statuses.get(partition)
        if status and tuple(row[i] for i in _ID_COLUMNS) == tuple(getattr(status, i) for i in _ID_COLUMNS):
            if partition in receipt_pieces:
                receipt_pieces[partition] += [
                    DatedPiece(row["generation"], row["epoch"], _to_piece(receipt_key))
                    for receipt_key in row["pieces"] or ()
                ]
            receipt_key = row["generation"], row["epoch"], Offset(row["next"])
            if receipt_key > newest.get(partition, (0, 0, Offset(0))):
                newest[partition], ended_at[partition] = receipt_key, row["ended"]
    return receipt_pieces, newest, ended_at


def heads_of(link: MirrorLink) -> ReceiptHeads:
    state = read_complete_state(link.destination)
    state.require_readable(link.mirror.name)
    return state.receipts.get(link.mirror.name, {})


_ID_COLUMNS: Final = ("source_topic_id", "destination_topic_id")
_RECEIPT_COLUMNS: Final = ("topic", "partition", "generation", "epoch", "next", "ended", "pieces")


def _to_piece(row: Mapping[str, str]) -> ReceiptPiece:
    first, end = Offset(int(row["first"])), Offset(int(row["next"]))
    return ReceiptPiece(first=first, next=end, records=int(row["records"]), digest=row["digest"])


def to_certified_ranges(scope: CertificateScope) -> list[ParityRange]:
    """Certified ranges, and the gaps before them."""
    ranges = list[ParityRange]()
    for partition, coverage in scope.certified.items():
        assert coverage.start is not None
        assert coverage.end is not None
        range_start = min([coverage.start, *(gap.start for gap in scope.uncertified.get(partition, ()))])
        ranges.append(ParityRange(partition=partition, start=range_start, end=coverage.end, stopped_at=coverage.end))
    return ranges
