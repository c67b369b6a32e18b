"""JSON messages between the driver and its copying tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mirror_core.model.mirror import FailureKind, Gaps
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    partition: Partition
    source_topic_id: str
    destination_topic_id: str
    until: Offset | None = None
    """Position (next offset to copy) to stop at. None: copy until `stop_ms`."""
    source_epoch: int | None = None
    """Source leader epoch under which the copy last agreed with the source. None: unknown."""
    answered: bool = False
    """All batches sent so far were acknowledged; else the task checks the log's end first."""
    proved_end: Offset | None = None
    """Both sides were equal below it under this destination leader epoch."""
    proved_epoch: int = -1
    counted: Offset | None = None
    """Trimmed offsets below it are recorded. None: the copy has not reached the source's log start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a driver listens for datagrams (UDP) of its tasks."""

    bind: str = "127.0.0.1"
    host: str = "127.0.0.1"
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverAt:
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
    gaps: Gaps = Gaps.MARKERS
    partitions: tuple[Assigned, ...]
    epoch: int
    task: int
    start_ms: int
    """Wall clock. Until then the task only connects."""
    stop_ms: int
    """Wall clock. The task sends nothing later."""
    max_bytes_in_flight: int = 64 << 20
    throttle: int | None = None
    """Bytes per second read from the source. None: unlimited."""
    driver: DriverAt | None = None
    """Receives progress, and passes gap claims to the next epoch's task."""
    looks_s: float = 0.0
    """Extra time for log comparisons, which the next task would restart."""


PIECE_OFFSETS: Final = 50_000
"""The next multiple ends a piece. Pieces between the same multiples are stored as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
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
    """Position (next offset to copy) at the start."""
    next: Offset
    """Position at the end. In-sync replicas acknowledged [first, next)."""
    records: int
    gaps: int
    """Offsets without a record. `records + gaps == next - first`."""
    batches: int
    bytes: int
    """Including batch headers."""
    pieces: tuple[Piece, ...]
    """Without batches that were found on the destination unacknowledged."""
    source_topic_id: str
    destination_topic_id: str
    source_end: Offset | None
    """Last stable offset. None: no fetch succeeded."""
    started_ms: int
    ended_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    partition: Partition
    reason: str
    """For a person: what, where, why and what to do."""
    offset: Offset | None
    kind: FailureKind = FailureKind.OTHER
    needs_bytes: int | None = None
    """Size of a batch above the mirror topic's limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """A partition whose copy agreed with the source's log under this leader epoch."""

    partition: Partition
    source_epoch: int
    answered: bool = False
    """Every batch that the task sent was answered."""
    source_start: Offset | None = None
    """Log start of the source, once the copy has reached it."""
    filled: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """The source deleted [first, next) before it was copied; `next` was its log start."""

    partition: Partition
    first: Offset
    next: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    receipts: tuple[Receipt, ...]
    failures: tuple[Failure, ...]
    cpu_s: float
    aligned: tuple[Aligned, ...] = ()
    deletions: tuple[Deletion, ...] = ()
    """Usually the driver has them already, by datagram."""
    retry: str = ""
    """Why the task ended early with healthy partitions."""
    looks_cut_short: int = 0
    """Partitions whose log comparison was cut off and starts again."""
    untold: bool = False
    """The task started too late or failed, so the number is unknown."""
