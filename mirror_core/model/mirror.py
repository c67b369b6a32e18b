"""Recorded state of a mirror, its partitions, and its owner."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mirror_core.model.names import ClusterIdentity, ClusterName, MirrorName, Offset, Partition
from mirror_core.model.timing import MAX_FRESH_AGE_S, UNKNOWN_NOW_MS


class PartitionState(StrEnum):
    UNKNOWN = "UNKNOWN"
    LOG_ALIGNMENT = "LOG_ALIGNMENT"
    MIRRORING = "MIRRORING"
    PAUSING = "PAUSING"
    PAUSED = "PAUSED"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    FAILED = "FAILED"


class FailureKind(StrEnum):
    """Remedies: `decide.failure_remedies`."""

    DENIED = "denied"
    GONE = "gone"
    RECREATED = "recreated"
    REPLACED = "replaced"
    """The mirror topic is missing or replaced on the destination."""
    OCCUPIED = "occupied"
    """A foreign topic has this name on the destination."""
    CIRCLE = "circle"
    """Another mirror would bring the topic back."""
    FOREIGN = "foreign"
    """Another writer wrote to the mirror topic."""
    DIVERGED = "diverged"
    """The records differ at equal offsets: the source lost copied data."""
    ALTERED = "altered"
    """The destination changes records' timestamps."""
    DELETED = "deleted"
    """The destination deleted records that the source still has."""
    CORRUPT = "corrupt"
    GAP_LIMIT = "gap-limit"
    REFUSED = "refused"
    UNKEYED = "unkeyed"
    """A compacted mirror topic rejects records without keys."""
    RECOPYING = "recopying"
    """A recopy started: the mirror topic is being deleted, or is gone."""
    OTHER = "other"
    """Another kind, or not recorded."""


class GapFilling(StrEnum):
    """How offsets without a record are used up."""

    MARKERS = "markers"
    """Transaction markers. Needs CLUSTER_ACTION or ALTER on the destination."""
    HIDDEN = "hidden"
    """Hidden records have no key, so the mirror topic cannot be compacted before promotion."""


class DesiredState(StrEnum):
    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


NameFilters = tuple[tuple[str, ...], tuple[str, ...]]
"""Regular expressions: included, excluded."""


def has_listed_all(wanted: NameFilters, listed_by: NameFilters | None) -> bool:
    """A listing by other filters contains all that these want. True where none were recorded."""
    if listed_by is None:
        return True
    (patterns, excluded), (listed, unlisted) = wanted, listed_by
    return set(patterns) <= set(listed) and set(unlisted) <= set(excluded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """One-way. Never holds a secret."""

    name: MirrorName
    source: ClusterName
    destination: ClusterName
    source_id: str
    """At creation. Another id later is another cluster."""
    destination_id: str
    topics: tuple[str, ...]
    """Regular expressions for whole names."""
    exclude_topics: tuple[str, ...] = ()
    """These win. Names with two leading underscores are never mirrored."""
    groups: tuple[str, ...] = (".*",)
    exclude_groups: tuple[str, ...] = ()
    principals: tuple[str, ...] = (".*",)
    """Regular expressions such as `User:app-.*` of those whose rights are synced. Denials are, of everybody."""
    exclude_principals: tuple[str, ...] = ()
    exclude_rights: tuple[str, ...] = ()
    """Such as `READ TOPIC orders.*`: three regular expressions."""
    exclude_settings: tuple[str, ...] = ()
    """Regular expressions of topic settings that are each cluster's own."""
    replication_factor: str = "source"
    """Replicas of topics that are created: `source`, `default` (the destination's brokers'), or a number."""
    producer_id: int
    """At least 2**62, so no broker assigns it."""
    desired: DesiredState
    created_ms: int
    paused_topics: tuple[str, ...] = ()
    """Names. No task copies them; their partitions stay MIRRORING."""
    throttle: int | None = None
    """Bytes per second for all tasks. A drain ignores it."""
    gaps: GapFilling = GapFilling.MARKERS
    """Fixed at creation."""
    failback_run: str = ""
    """The failback run that made this reverse mirror."""
    is_preparing: bool = False
    """The failback has yet to set its topics' settings, and to read all that it needs: nothing may be copied."""
    state_topic_id: str = ""
    """Where it was recorded. A topic with another id was restored, and may lack records. Empty: unknown."""

    def is_recorded_in(self, topic_id: str) -> bool:
        """`topic_id`: of the state topic that holds it now. True where one of both is unknown."""
        return not (topic_id and self.state_topic_id) or topic_id == self.state_topic_id

    @property
    def topic_filters(self) -> NameFilters:
        return self.topics, self.exclude_topics

    @property
    def group_filters(self) -> NameFilters:
        return self.groups, self.exclude_groups

    @property
    def right_filters(self) -> tuple[tuple[str, ...], ...]:
        return self.principals, self.exclude_principals, self.exclude_rights

    @property
    def source_identity(self) -> ClusterIdentity:
        return ClusterIdentity(self.source, self.source_id)

    @property
    def destination_identity(self) -> ClusterIdentity:
        return ClusterIdentity(self.destination, self.destination_id)


FILTER_NAMES: Final = (
    *("topics", "exclude_topics", "groups", "exclude_groups"),
    *("principals", "exclude_principals", "exclude_rights"),
    *("exclude_settings", "replication_factor"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverCopied:
    """Offsets deleted on the source before they were copied. How many records is unknown."""

    offsets: int
    since_ms: int
    newest_ms: int
    first: Offset
    """The last range is [first, next); `next` was the source's log start."""
    next: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDeletion:
    """Offsets [first, next) that the source has deleted, and that the destination still holds."""

    first: Offset
    next: Offset
    since_ms: int
    """First noticed, by the clock of the destination's brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    partition: Partition
    state: PartitionState
    source_topic_id: str
    """KIP-516, 32 hexadecimal digits."""
    destination_topic_id: str
    reason: str | None = None
    """Includes the remedy."""
    failed_at: Offset | None = None
    kind: FailureKind | None = None
    """Only of FAILED ones."""
    retry_at_ms: int | None = None
    """Wall clock of the next automatic attempt. None: no retry."""
    lmo: Offset | None = None
    """Destination's log end (next offset) when mirroring stopped."""
    differs_at: Offset | None = None
    """First difference below the LMO on the old source, found by a failback."""
    source_epoch: int | None = None
    """KIP-101. The copy last agreed with the source under it."""
    initial_log_start: Offset | None = None
    """Destination's log start before any copying, in either direction. An earlier primary may have expired records
    itself; others missing later were deleted.
    """
    source_start: Offset | None = None
    """Source's log start when the copy first reached it. What is deleted later, before it is copied, counts as never
    copied.
    """
    followed_start: Offset | None = None
    """Up to here the source is known to have deleted, or never to have copied: recorded before the destination's log
    start moves there. None: not recorded.
    """
    deleted_until: Offset | None = None
    """Here the destination's log began at an unplanned promotion; the source, when last seen, had earlier records."""
    never_copied: NeverCopied | None = None
    held_deletion: HeldDeletion | None = None
    filled_gap_offsets: int = 0
    """In steps of `decide.gaps_and_resume`."""


def list_copy_ids(statuses: Iterable[PartitionStatus]) -> dict[str, str]:
    """Partitions that the destination has not added have none."""
    return {s.partition.topic: s.destination_topic_id for s in statuses if s.destination_topic_id}


class TopicAccess(StrEnum):
    """What becomes of a topic's copy once the mirror no longer carries it."""

    CLOSED = "closed"
    """Keeps a mirror topic's settings; applications get no right to write."""
    RELEASED = "released"
    """As after a failover: the source's settings, and applications may write from the LMO on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeparture:
    """A topic that has left the mirror, or is leaving. Afterwards its partitions have no record of their own."""

    mirror: MirrorName
    topic: str
    access: TopicAccess
    with_rights: bool = True
    """A release grants the rights staged for a promotion."""
    since_ms: int
    is_done: bool = False
    statuses: tuple[PartitionStatus, ...] = ()
    """STOPPED, with LMOs. Empty before it is done."""


ZOMBIE_WRITER_MARGIN_MS: Final = 2_000
"""Clock difference allowed for old tasks that may still write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """For readers. The state topic's transactional id does the fencing."""

    mirror: MirrorName
    owner: str
    generation: int
    heartbeat_ms: int
    writers_until_ms: int
    """By the clock of the heartbeat: the difference counts. No task of this owner, or of an earlier one, writes
    later, even without its driver.
    """
    released: bool = False
    wait_reasons: tuple[str, ...] | None = None
    """In the last ended epoch, without FAILED partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSyncTime:
    mirror: MirrorName
    synced_ms: int
    """Wall clock. Copied offsets that idle groups had committed on the source are committed here."""
    followed: bool
    """Continuously, not only at a sync."""
    listed_by: NameFilters | None = None
    """Filters of the listing of the source's groups. None: not recorded."""


def is_healthy(status: PartitionStatus) -> bool:
    return status.state is not PartitionState.FAILED and status.reason is None


def is_lease_fresh(lease: Lease | None, now_ms: int) -> bool:
    if lease is None or lease.released or now_ms == UNKNOWN_NOW_MS:
        return False
    return now_ms - lease.heartbeat_ms < MAX_FRESH_AGE_S * 1000


def is_lease_age_unknown(lease: Lease | None, now_ms: int) -> bool:
    """Not released, while clocks contradict each other."""
    return lease is not None and not lease.released and now_ms == UNKNOWN_NOW_MS
