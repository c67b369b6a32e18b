"""A mirror, the states of its partitions, and who may write it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition


class PartitionState(StrEnum):
    """KIP-1279's names."""

    UNKNOWN = "UNKNOWN"
    LOG_ALIGNMENT = "LOG_ALIGNMENT"
    MIRRORING = "MIRRORING"
    PAUSING = "PAUSING"
    PAUSED = "PAUSED"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    FAILED = "FAILED"


class Desired(StrEnum):
    """What the operator last asked of a mirror."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """A named, one-way link. Holds names and ids only, never a secret."""

    name: MirrorName
    source: ClusterName
    destination: ClusterName
    source_id: str
    """Cluster id of the source when the mirror was created; another id later means another cluster."""
    destination_id: str
    topics: tuple[str, ...]
    """Regular expressions, matched against whole topic names."""
    exclude_topics: tuple[str, ...] = ()
    """Regular expressions; exclusion wins. Internal topics (names starting with two underscores) are never mirrored."""
    groups: tuple[str, ...] = (".*",)
    """Regular expressions of the consumer groups whose offsets are synced."""
    producer_id: int
    """The one producer id that writes this mirror's partitions; 2**62 or more, so that no broker ever hands it out."""
    desired: Desired
    created_ms: int
    """Wall clock, milliseconds since the epoch."""
    throttle: int | None = None
    """Bytes per second that may be read from the source, all tasks together; None: no limit. A drain heeds none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """The recorded state of one mirror partition."""

    partition: Partition
    state: PartitionState
    source_topic_id: str
    """Topic id (KIP-516) as 32 hexadecimal digits; a different one means that the topic was recreated."""
    destination_topic_id: str
    reason: str | None = None
    """Why it is FAILED, with the remedy."""
    failed_at: Offset | None = None
    """The offset the reason speaks of."""
    lmo: Offset | None = None
    """The destination's log end (next offset to be written) when mirroring stopped; None while it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who runs the data plane of a mirror, for others to see. The fence is the state topic's transactional id."""

    mirror: MirrorName
    owner: str
    generation: int
    """Grows by one with every owner."""
    beat_ms: int
    """Wall clock of the newest heartbeat."""
    writers_until_ms: int
    """No task of this owner sends anything after this wall-clock time, not even one that lost its driver."""
    released: bool = False
