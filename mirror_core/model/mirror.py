"""A mirror, the states of its partitions, and who may write it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mirror_core.model.clock import FRESH_S
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


class FailureKind(StrEnum):
    """What went wrong with a FAILED partition; `decide.recovery` says what can be done about each."""

    DENIED = "denied"
    """The data principal lacks a right."""
    GONE = "gone"
    """The topic is not on the source any more, or not to be seen there."""
    RECREATED = "recreated"
    """The source has another topic of the same name (KIP-516 topic id)."""
    REPLACED = "replaced"
    """The mirror topic is gone from the destination, or another one stands in its place."""
    OCCUPIED = "occupied"
    """A topic that is not this mirror's stands in the way on the destination."""
    FOREIGN = "foreign"
    """Somebody else wrote into the mirror topic."""
    DIVERGED = "diverged"
    """Both sides hold different records at the same offsets: the source lost what had been copied."""
    ALTERED = "altered"
    """The destination does not hold records as they were sent: it gives them times of its own."""
    DELETED = "deleted"
    """The destination has deleted records that the source still has."""
    CORRUPT = "corrupt"
    """The source's bytes fail their checksum."""
    GAP_LIMIT = "gap-limit"
    """The gaps of the log cannot be filled any more."""
    REFUSED = "refused"
    """A broker does not take what it is sent, or does not give what it is asked for."""
    UNKEYED = "unkeyed"
    """It takes no record without a key, since the mirror topic is cleaned by key."""
    RECOPYING = "recopying"
    """A recopy was begun: the mirror topic is about to be deleted, or is deleted already."""
    OTHER = "other"
    """None of these, or recorded by a version that did not tell them apart."""


class Gaps(StrEnum):
    """How a mirror uses up offsets that hold no record on its source."""

    MARKERS = "markers"
    """By transaction markers: takes CLUSTER_ACTION or ALTER on the destination cluster."""
    HIDDEN = "hidden"
    """By hidden records: where the data principal has neither, or by choice, for a destination that is far. They have
    no key, and compacted topics take no record without one: a mirror topic has to be `delete` until promotion, then."""


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
    gaps: Gaps = Gaps.MARKERS
    """Decided once, when the mirror is created. Mirrors that were recorded without it know markers only."""
    homecoming: str = ""
    """Of a reverse mirror: id of the failback run that made it, or made it anew."""
    begins: bool = False
    """Of a reverse mirror: that run has not brought in all that it must know before applications go home by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverCopied:
    """What the source deleted of a partition before it was copied. Which offsets held a record is not known."""

    offsets: int
    """All together."""
    since_ms: int
    """Wall clock when the first of them were found."""
    newest_ms: int
    """Wall clock when the last of them were found."""
    first: Offset
    """[first, next) are the last of them: `next` was the source's log start."""
    next: Offset


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
    kind: FailureKind | None = None
    """What sort of failure the reason speaks of; None when it is not FAILED, or an older version recorded it."""
    again_ms: int | None = None
    """Wall clock from which on the data plane tries a FAILED one again by itself; None: it does not."""
    lmo: Offset | None = None
    """The destination's log end (next offset to be written) when mirroring stopped; None while it goes on."""
    differs_at: Offset | None = None
    """First offset below the LMO at which a failback found the old source to hold something else; None: none known."""
    source_epoch: int | None = None
    """Leader epoch of the source (KIP-101) under which what is copied was last known to be what the source holds."""
    began: Offset | None = None
    """The destination's log start before anything was copied, in this or any other direction: a cluster that
    applications come home to may have deleted by its own clock. Whatever else is missing there later, and not on the
    source, somebody has deleted. None: not looked at yet, as in what older versions recorded."""
    source_start: Offset | None = None
    """The source's log start when the copy had first come so far. What the source deletes behind it before it is copied
    was never copied; what it had deleted before it, the mirror was not to copy. None: no task and no
    plan has seen that yet."""
    never_copied: NeverCopied | None = None
    """None: nothing is known to be."""
    filled: int = 0
    """Offsets without a record that markers were written for, in steps (`decide.crowded`); 0: fewer than a step."""


ZOMBIE_MS: Final = 2_000
"""Added to the time until which tasks of a data plane of the past may write, by the clock of another host."""


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
    waits: tuple[str, ...] | None = None
    """What kept tasks of the newest epoch that has ended from copying, each in words; partitions that have FAILED are
    not among it. None: none has ended yet, or its owner does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsSeen:
    """How old the groups' offsets on the destination are."""

    mirror: MirrorName
    synced_ms: int
    """Wall clock: whatever groups without members on the destination had committed on the source until then, and as far
    as the copy had come, is committed on the destination."""
    followed: bool
    """What they commit is followed all the time; or else a sync looked at that moment."""


def is_fresh(lease: Lease | None, now_ms: int) -> bool:
    """Somebody beats it."""
    return lease is not None and not lease.released and now_ms - lease.beat_ms < FRESH_S * 1000
