"""JSON between the driver and its copying tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mirror_core.model.mirror import FailureKind, GapFilling
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAssignment:
    partition: Partition
    source_topic_id: str
    destination_topic_id: str
    stop_offset: Offset | None = None
    """Next offset to copy at which to stop. None: copy until `stop_ms`."""
    source_epoch: int | None = None
    """Under which the copy last agreed with the source."""
    all_answered: bool = False
    """All batches sent so far, and the source was not away since. Else the task checks both logs' ends first."""
    verified_end: Offset | None = None
    """Both sides were equal below it under this destination leader epoch."""
    verified_epoch: int = -1
    compare_from: Offset | None = None
    """From here on the destination may hold batches that no task has reported: they are compared. None: no doubt."""
    trim_recorded_until: Offset | None = None
    """Trimmed offsets below it are recorded. None: the copy has not reached the source's log start."""
    holds_deletions: bool = False
    """The destination keeps for a while what the source deletes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """Where a driver listens for datagrams (UDP) of its tasks."""

    bind: str = "127.0.0.1"
    host: str = "127.0.0.1"
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverAddress:
    """Where a task sends its datagrams (UDP)."""

    host: str
    port: int
    token: str
    """Random, for one epoch of one process. Seals the datagrams; never sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    mirror: MirrorName
    source: ClusterName
    destination: ClusterName
    config_path: str
    producer_id: int
    gaps: GapFilling = GapFilling.MARKERS
    partitions: tuple[PartitionAssignment, ...]
    epoch: int
    task: int
    start_ms: int
    """Wall clock. Until then the task only connects."""
    stop_ms: int
    """Wall clock. The task sends nothing later."""
    submitted_ms: int = 0
    """Wall clock of the driver. A task begins no earlier, whatever its machine's clock says."""
    max_bytes_in_flight: int = 64 << 20
    throttle: int | None = None
    """Bytes per second from the source. None: unlimited."""
    driver_address: DriverAddress | None = None
    """Receives progress, and passes gap claims to the next epoch's task."""
    comparison_grace_s: float = 0.0
    """For log comparisons, which the next task would restart."""
    cluster_ids: tuple[str, str] | None = None
    """Source's and destination's: a task reads its configuration anew, and addresses may have changed. None: any."""


PIECE_OFFSETS: Final = 50_000
"""The next multiple ends a piece. Pieces between the same multiples are stored as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptPiece:
    """Certificate: content of [first, next) as sent and acknowledged."""

    first: Offset
    next: Offset
    records: int
    """Other offsets hold none."""
    digest: str
    """Sum of `wire.batch.compute_batch_digest`, 32 hexadecimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    mirror: MirrorName
    partition: Partition
    epoch: int
    task: int
    first: Offset
    """Next offset to copy at the start."""
    next: Offset
    """Position at the end. In-sync replicas acknowledged [first, next)."""
    records: int
    gaps: int
    """Offsets without a record. `records + gaps == next - first`."""
    batches: int
    bytes: int
    """Including batch headers."""
    pieces: tuple[ReceiptPiece, ...]
    """Without batches that were found on the destination unacknowledged."""
    source_topic_id: str
    destination_topic_id: str
    source_end: Offset | None
    """Last stable offset. None: no fetch succeeded."""
    started_ms: int
    ended_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFailure:
    partition: Partition
    reason: str
    """For a person: what, where, why and what to do."""
    offset: Offset | None
    kind: FailureKind = FailureKind.OTHER
    needs_bytes: int | None = None
    """Size of a batch above the mirror topic's limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedPartition:
    """Under this leader epoch the copy agreed with the source's log."""

    partition: Partition
    source_epoch: int
    known_from: Offset | None = None
    """From here to its receipt's end the task appended everything itself, or compared it. None: it did nothing."""
    all_answered: bool = False
    """Every batch sent was answered."""
    source_start: Offset | None = None
    """Source's log start, once the copy has reached it."""
    filled_gap_offsets: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimmedRange:
    """[first, next), deleted by the source before it was copied; `next` was its log start."""

    partition: Partition
    first: Offset
    next: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    receipts: tuple[Receipt, ...]
    failures: tuple[PartitionFailure, ...]
    cpu_s: float
    aligned: tuple[AlignedPartition, ...] = ()
    trimmed_ranges: tuple[TrimmedRange, ...] = ()
    """Usually the driver has them already, by datagram."""
    retry_reason: str = ""
    """Why the task ended early with healthy partitions."""
    interrupted_comparisons: int = 0
    """Cut off, to start again."""
    comparisons_unknown: bool = False
    """The task started too late or failed."""
