"""Snapshots from which plans are made. Values only."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Final, NamedTuple

from mirror_core.decide.clock_skew import find_clock_behind_s
from mirror_core.decide.deletion_hold import NO_STARTS, EarlyDeletion, find_early_deletions
from mirror_core.decide.loss_bound import LossBound, compute_loss, find_positions
from mirror_core.decide.quota_plan import NO_QUOTAS, QuotaComparison
from mirror_core.decide.steps import HoldingRun
from mirror_core.model.acl import Acl
from mirror_core.model.config_sections import KAFKA_AUTHORIZER, AuthorizerConfig, WriteBarrier
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import (
    DesiredState,
    GroupSyncTime,
    Lease,
    Mirror,
    PartitionStatus,
    is_healthy,
    is_lease_age_unknown,
    is_lease_fresh,
)
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.model.parity_verdict import MirrorVerification
from mirror_core.model.pending_fence import PendingFence
from mirror_core.model.run import RunMode
from mirror_core.model.source_observation import Heartbeat, SourceObservation
from mirror_core.model.sync_state import OwnGroupOffsets, TopicSettings, UnsyncedGroups
from mirror_core.model.text import join_limited as join_limited
from mirror_core.model.timing import UNKNOWN_NOW_MS
from mirror_core.rights.required_acls import LackingRight


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTopic:
    id: str
    partitions: int


class MinIsrShortfall(NamedTuple):
    topic: str
    in_sync: int
    needed: int


class HiddenTopics(NamedTuple):
    """`user` may not DESCRIBE them, so brokers do not say whether they exist."""

    topics: frozenset[str] = frozenset()
    user: str = ""
    grant_command: str = ""
    """For the first of them."""


NO_HIDDEN_TOPICS: Final = HiddenTopics()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSnapshot:
    cluster_id: str
    topics: Mapping[str, ClusterTopic]
    stable_ends: Mapping[Partition, Offset]
    """Last stable offsets."""
    authorizer: bool
    transactions: tuple[str, ...]
    groups: tuple[str, ...] = ()
    committed: Mapping[str, Mapping[Partition, Offset]] = field(default_factory=dict)
    """Share groups have the start offset here, plus the number of records acknowledged behind it."""
    share_groups: Mapping[str, int | None] = field(default_factory=dict)
    """Acknowledged records that a cluster delivers again if it begins at the start offset."""
    grants: tuple[Acl, ...] = ()
    groups_unread: int = 0
    groups_partly_listed: bool = False
    """Without those whose coordinator is away."""
    log_starts: Mapping[Partition, Offset] = field(default_factory=dict)
    offline_partitions: tuple[Partition, ...] = ()
    state_writers: tuple[str, ...] = ()
    hidden: HiddenTopics = NO_HIDDEN_TOPICS
    stray_denials: tuple[Finding, ...] = ()
    fence_side_effects: Finding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationSnapshot:
    cluster_id: str
    topics: Mapping[str, ClusterTopic]
    positions: Mapping[Partition, Offset]
    """Log ends: the next offset to copy."""
    authorizer: bool
    log_starts: Mapping[Partition, Offset] = field(default_factory=dict)
    foreign_starts: Mapping[Partition, Offset | None] = field(default_factory=dict)
    """Where somebody else has written the ends of mirror partitions. None: whether that is so is not known."""
    committed: Mapping[str, Mapping[Partition, Offset]] = field(default_factory=dict)
    grant_warnings: tuple[Finding, ...] = ()
    topic_names: Collection[str] = ()
    active_groups: tuple[str, ...] = ()
    """Groups in scope with members there, possibly dead ones before their session timeout."""
    groups_unknown: bool = False
    groups_unread: int = 0
    groups_partly_listed: bool = False
    heartbeats: tuple[Heartbeat, ...] = ()
    offline_partitions: tuple[Partition, ...] = ()
    min_isr_shortfalls: tuple[MinIsrShortfall, ...] = ()
    state_writers: tuple[str, ...] = ()
    hidden: HiddenTopics = NO_HIDDEN_TOPICS


@dataclass(frozen=True, slots=True)
class UnseenCluster:
    reason: str


class CopyingState(StrEnum):
    WORKS = "works"
    PAUSED = "paused"
    ABSENT = "absent"


class StandstillForecast(NamedTuple):
    """How long the earlier run `basis` took."""

    seconds: float
    basis: str
    steps: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)  # no slots: cached properties
class MirrorSnapshot:
    mirror: Mirror
    mode: RunMode
    statuses: Mapping[Partition, PartitionStatus]
    source: SourceSnapshot | UnseenCluster
    destination: DestinationSnapshot | UnseenCluster
    lease: Lease | None
    active_run: HoldingRun | None
    grants: tuple[str, ...]
    """An approval of rights is bound to them: for a planned failover what applications hold on the source and the final
    sync stages, otherwise what is staged.
    """
    forecast: StandstillForecast | None
    now_ms: int
    """By the clock of the process that mirrors, if known; else this machine's. UNKNOWN_NOW_MS: clocks contradict."""
    took_ms: int = 0
    """How long both clusters were asked, after the state was read: the lease's heartbeat may be older by as much."""
    hooks: Mapping[str, str] = field(default_factory=dict)
    unusable_hooks: tuple[Finding, ...] = ()
    continues_run: str | None = None
    conducted_by: str = ""
    pending_fence: PendingFence | None = None
    is_drained: bool = False
    source_observation: SourceObservation | None = None
    observer_ahead_ms: int = 0
    """How far the observation's times are ahead of the brokers' clock."""
    owner_ahead_ms: int = 0
    """By how much the lease owner's clock is ahead of the brokers'. 0 if unknown."""
    leader_ahead_ms: int | None = None
    """By how much, at least, the state topic's leader is ahead of its controller; None: not seen to be."""
    verification: MirrorVerification | None = None
    unknown_scram_users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By user, the mechanisms that the destination lacks."""
    quotas: QuotaComparison = NO_QUOTAS
    groups: GroupSyncTime | None = None
    groups_left: UnsyncedGroups | None = None
    own_group_offsets: tuple[OwnGroupOffsets, ...] = ()
    refused_settings: tuple[TopicSettings, ...] = ()
    promotion_grants: tuple[Acl, ...] | None = None
    unbacked_grants: tuple[Acl, ...] = ()
    excluded_principals: tuple[str, ...] = ()
    """With rights to change topics on the source that the mirror does not sync."""
    sibling_mirrors: tuple[tuple[Mirror, int], ...] = ()
    unusable_fence_commands: tuple[Finding, ...] = ()
    source_authorizer: AuthorizerConfig = KAFKA_AUTHORIZER
    destination_authorizer: AuthorizerConfig = KAFKA_AUTHORIZER
    watcher_alarms: tuple[Finding, ...] = ()
    owner: str = ""
    rto_s: float | None = None
    consistency_groups: tuple[tuple[str, ...], ...] = ()
    unmirrored: tuple[Partition, ...] = ()
    left_behind: frozenset[Partition] = frozenset()
    closed_topics: tuple[str, ...] = ()
    """They left the mirror, and nobody may write them."""
    leaving_topics: tuple[str, ...] = ()
    """Left out of `statuses` for an unplanned failover."""
    clocks_ahead_ms: Mapping[ClusterName, int] = field(default_factory=dict)
    """This machine's clock minus the cluster's; unknown ones are left out."""
    lacking_rights: tuple[LackingRight, ...] = ()
    """On the mirror's topics. Not asked during a run: it denies some itself."""

    @property
    def state_read_ms(self) -> int:
        """As `now_ms`."""
        return self.now_ms if self.now_ms == UNKNOWN_NOW_MS else self.now_ms - self.took_ms

    @property
    def has_data_plane(self) -> bool:
        return is_lease_fresh(self.lease, self.state_read_ms)

    @property
    def lacks_data_plane(self) -> bool:
        """False where clocks leave it unknown."""
        return not self.has_data_plane and not is_lease_age_unknown(self.lease, self.state_read_ms)

    @property
    def copying(self) -> CopyingState:
        if self.mirror.desired is DesiredState.PAUSED:
            return CopyingState.PAUSED
        return CopyingState.ABSENT if self.lacks_data_plane else CopyingState.WORKS

    @property
    def clock_behind_s(self) -> float | None:
        heartbeats = self.destination.heartbeats if isinstance(self.destination, DestinationSnapshot) else ()
        return find_clock_behind_s(self.now_ms, self.lease, self.source_observation, self.groups, heartbeats)

    @cached_property
    def early_deletions(self) -> Mapping[Partition, EarlyDeletion]:
        """Empty once the mirror is STOPPED: topics have their own retention then."""
        if not isinstance(self.destination, DestinationSnapshot) or self.mirror.desired is DesiredState.STOPPED:
            return {}
        source_starts = self.source.log_starts if isinstance(self.source, SourceSnapshot) else NO_STARTS
        without_copy = find_without_copy(self)
        copies = [status for p, status in self.statuses.items() if p not in without_copy]
        return find_early_deletions(copies, self.destination.log_starts, source_starts)

    @cached_property
    def loss(self) -> LossBound:
        destination = self.destination if isinstance(self.destination, DestinationSnapshot) else None
        return compute_loss(
            self.statuses,
            self.source_observation,
            destination.positions if destination else {},
            destination.heartbeats if destination else (),
            now_ms=self.now_ms,
            unmirrored=self.unmirrored,
            without_copies=find_without_copy(self),
            foreign_starts=destination.foreign_starts if destination else NO_STARTS,
            early_deletions=self.early_deletions,
        )

    @property
    def broker_now_ms(self) -> int:
        """By which runs, comparisons and drills are dated."""
        return self.now_ms - self.owner_ahead_ms


def find_write_barrier(snapshot: MirrorSnapshot) -> WriteBarrier:
    return snapshot.source_authorizer.get_write_barrier(
        denials_possible=not isinstance(snapshot.source, SourceSnapshot) or snapshot.source.authorizer
    )


def select_healthy(statuses: Mapping[Partition, PartitionStatus]) -> dict[Partition, PartitionStatus]:
    """What a failover drains and compares: all but FAILED ones, also when stopped already."""
    return {p: statuses[p] for p in sorted(statuses) if is_healthy(statuses[p])}


def list_lags(snapshot: MirrorSnapshot) -> Iterator[tuple[Partition, int | None]]:
    """Source's last stable offset minus position, negative where the destination is ahead.

    None where one is unknown, and of other topics under the names of the copied one or of its copy.
    """
    ends = snapshot.source.stable_ends if isinstance(snapshot.source, SourceSnapshot) else {}
    source_topics = snapshot.source.topics if isinstance(snapshot.source, SourceSnapshot) else {}
    positions = list_known_positions(snapshot)
    without_copy = find_without_copy(snapshot)
    for partition, status in sorted(snapshot.statuses.items()):
        end, position = ends.get(partition), positions.get(partition)
        topic = source_topics.get(partition.topic)
        is_other = partition in without_copy or (topic is not None and topic.id != status.source_topic_id)
        yield partition, None if is_other or end is None or position is None else end - position


def list_failed(snapshot: MirrorSnapshot) -> list[Partition]:
    return sorted(p for p, status in snapshot.statuses.items() if not is_healthy(status))


def find_without_copy(snapshot: MirrorSnapshot) -> frozenset[Partition]:
    destination = snapshot.destination
    if not isinstance(destination, DestinationSnapshot):
        return frozenset()
    ids = {name: topic.id for name, topic in destination.topics.items()}
    lacking = (p for p, s in snapshot.statuses.items() if ids.get(p.topic) != s.destination_topic_id)
    return frozenset(p for p in lacking if p.topic not in destination.hidden.topics)


def can_lose(snapshot: MirrorSnapshot) -> bool:
    return not snapshot.is_drained and (
        isinstance(snapshot.source, UnseenCluster) or snapshot.mode is RunMode.UNPLANNED
    )


def list_foreign_starts(snapshot: MirrorSnapshot) -> dict[Partition, Offset]:
    """Where somebody else has written the ends of mirror partitions."""
    if not isinstance(snapshot.destination, DestinationSnapshot):
        return {}
    return {p: start for p, start in snapshot.destination.foreign_starts.items() if start is not None}


def format_foreign_starts(foreign_starts: Mapping[Partition, Offset]) -> str:
    return join_limited(f"{partition} from offset {start}" for partition, start in sorted(foreign_starts.items()))


def list_known_positions(snapshot: MirrorSnapshot) -> dict[Partition, Offset]:
    if not isinstance(snapshot.destination, DestinationSnapshot):
        return {}
    return find_positions(snapshot.destination.positions, snapshot.destination.foreign_starts)
