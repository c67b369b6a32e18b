"""What a copying task is told, and what it tells back. Both travel as JSON, through Spark or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mirror_core.model.mirror import FailureKind, Gaps
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """One partition of an assignment."""

    partition: Partition
    source_topic_id: str
    destination_topic_id: str
    until: Offset | None = None
    """Stop when the position (next offset to copy) has reached this one; None: go on until `stop_ms`."""
    source_epoch: int | None = None
    """Leader epoch of the source under which the copy was last known to agree with it; None: not known."""
    answered: bool = False
    """Whether all that tasks have sent so far was answered, as far as the driver knows; or else the end of the log is
    looked at first."""
    proved_end: Offset | None = None
    """Up to there (next offset) both sides were compared and equal, while the destination's leader had this epoch."""
    proved_epoch: int = -1
    counted: Offset | None = None
    """What the source deleted below this offset before it was copied is recorded, or is none of the mirror's. None: the
    copy has not come to the source's log start yet, as far as is recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a driver listens for its tasks' datagrams (UDP), wherever they run."""

    bind: str = "127.0.0.1"
    host: str = "127.0.0.1"
    """How tasks reach it."""
    port: int = 0
    """0: any that is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverAt:
    """Where a task's driver listens for its datagrams (UDP)."""

    host: str
    port: int
    token: str
    """Random, for one epoch of one process; protects nothing but these datagrams, and is in none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The work of one task for one epoch. Holds no secret: the task opens `config_path` itself."""

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
    """Wall clock before which nothing is copied: the task connects and waits."""
    stop_ms: int
    """Wall clock after which the task sends nothing more."""
    max_bytes_in_flight: int = 64 << 20
    throttle: int | None = None
    """Bytes per second that this task may read from the source; None: no limit."""
    driver: DriverAt | None = None
    """Who is told the progress, once a second, and hands the right to fill gaps on to the next epoch's task; None:
    nobody, and it is not."""
    looks_s: float = 0.0
    """For so long after `stop_ms` it may go on comparing logs: cut short, that would begin anew with the next task."""


PIECE_OFFSETS: Final = 50_000
"""A batch or gap that reaches the next multiple of it ends a piece. Pieces that begin between two multiples are one
when they are stored together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What the destination's log holds of [first, next), as it was sent and acknowledged: a certificate."""

    first: Offset
    next: Offset
    records: int
    """The other offsets hold none."""
    digest: str
    """The sum of its batches' numbers (`wire.digest`), 32 hexadecimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What one task did to one partition in one epoch."""

    mirror: MirrorName
    partition: Partition
    epoch: int
    task: int
    first: Offset
    """Position when the task took over: next offset to copy."""
    next: Offset
    """Position when it ended; [first, next) was acknowledged by all in-sync replicas."""
    records: int
    gaps: int
    """Offsets that hold no record: filled, or seeded and deleted. `records + gaps == next - first`."""
    batches: int
    bytes: int
    """Bytes of batches, headers included, as sent to the destination."""
    pieces: tuple[Piece, ...]
    """In order, without what was never acknowledged to this task but found on the destination afterwards."""
    source_topic_id: str
    destination_topic_id: str
    source_end: Offset | None
    """Source's last stable offset as last seen; None when no fetch was answered."""
    started_ms: int
    ended_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A partition that cannot go on."""

    partition: Partition
    reason: str
    """What, where, why and what to do, for a person."""
    offset: Offset | None
    kind: FailureKind = FailureKind.OTHER
    needs_bytes: int | None = None
    """Size of the batch that is larger than the mirror topic's limit; None: that is not why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """A partition whose copy agreed with the source's log when this leader epoch's leader was asked."""

    partition: Partition
    source_epoch: int
    answered: bool = False
    """Nothing that the task has sent is without an answer."""
    source_start: Offset | None = None
    """The source's log start when it was asked, if the copy has come so far; None: not yet."""
    filled: int = 0
    """As in `PartitionStatus`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """Offsets [first, next) that the source deleted before they were copied; `next` was its log start."""

    partition: Partition
    first: Offset
    next: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """All that a task has to say at its end."""

    receipts: tuple[Receipt, ...]
    failures: tuple[Failure, ...]
    cpu_s: float
    """CPU seconds of the worker during the task."""
    aligned: tuple[Aligned, ...] = ()
    deletions: tuple[Deletion, ...] = ()
    """What the task has passed over; the driver knows of it already, unless datagrams were lost."""
    retry: str = ""
    """Why the task ended early though its partitions are well (a broker went away...); empty when it did not."""
    looks_cut_short: int = 0
    """Partitions whose logs were still being compared when the task had to end: that begins anew."""
    untold: bool = False
    """It does not tell whether any would have been: it began after its end, or broke."""
