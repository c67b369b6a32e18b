"""Differences that a sync finds, and what it remembers of consumer groups."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from mirror_core.model.errors import RemoteFault
from mirror_core.model.mirror import NameFilters
from mirror_core.model.names import NO_OFFSETS, MirrorName, Offset, PartitionOffsets


class SyncCategory(StrEnum):
    TOPICS = "topics"
    CONFIGS = "configs"
    ACLS = "acls"
    GROUPS = "groups"
    QUOTAS = "quotas"


class SyncAction(StrEnum):
    CREATE = "create"
    WIDEN = "widen"
    ADOPT = "adopt"
    """Use an existing, empty topic."""
    SET = "set"
    REMOVE = "remove"
    COMMIT = "commit"
    STAGE = "stage"
    """Apply it at promotion."""
    KEEP = "keep"
    """Made by others: never changed."""
    EQUAL = "equal"
    """Listed so that everything in scope is accounted for."""
    SKIP = "skip"
    REFUSE = "refuse"
    """Dangerous: a person must decide."""


WRITING_ACTIONS = frozenset(
    {
        SyncAction.CREATE,
        SyncAction.WIDEN,
        SyncAction.ADOPT,
        SyncAction.SET,
        SyncAction.REMOVE,
        SyncAction.COMMIT,
        SyncAction.STAGE,
    }
)


class DriftRow(msgspec.Struct, frozen=True, kw_only=True):
    """A struct: thousands are made while applications wait."""

    part: SyncCategory
    subject: str
    source: str = ""
    destination: str = ""
    action: SyncAction
    reason: str = ""
    done: bool = False
    """In a dry run: staged by an earlier sync."""
    offset: int | UnsetType = UNSET
    """Committed by the action, or left in place."""
    acl_topic: str | UnsetType = UNSET
    """The topic, of an ACL on one."""
    code: str | UnsetType = UNSET
    """Cause of a refusal, a word that stays. `reason` says it to people."""

    @property
    def topic(self) -> str:
        """Empty for none or a prefix. For a whole group it may be the end of its name."""
        match self.part:
            case SyncCategory.TOPICS:
                return self.subject
            case SyncCategory.CONFIGS:
                return self.subject.partition(": ")[0]
            case SyncCategory.GROUPS:
                return self.subject.rpartition(" ")[2].rpartition("-")[0]
            case SyncCategory.ACLS:
                return self.acl_topic or ""
            case SyncCategory.QUOTAS:
                return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    mirror: MirrorName
    topic: str
    overrides: Mapping[str, str]
    """The source's, and its defaults where they differ from the destination's."""
    compacted_since_ms: int | None = None
    """When the source was first seen to clean it by key. None: it does not."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Setting -> why a promotion cannot set it."""


DEFAULT_ENTITY: Final = "<default>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuota:
    """A limit of clients, without its value. A name that is None tells no clients apart; an empty one is the
    default, for those without a quota of their own.
    """

    user: str | None = None
    client_id: str | None = None
    key: str
    """As Kafka names it, such as `producer_byte_rate`."""

    def __str__(self) -> str:
        names = (("user", self.user), ("client-id", self.client_id))
        entity = ", ".join(f"{kind} {name or DEFAULT_ENTITY}" for kind, name in names if name is not None)
        return f"{entity}: {self.key}"

    @property
    def has_named_user(self) -> bool:
        """Else it also limits clients foreign to the mirror."""
        return bool(self.user)


class QuotaPurpose(StrEnum):
    STAGED = "STAGED"
    """Set at promotion."""
    PROMOTED = "PROMOTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntry:
    """On the destination. Mirrorbook sets and removes only client quotas of this ledger."""

    mirror: MirrorName
    quota: ClientQuota
    value: float
    purpose: QuotaPurpose

    @property
    def digest(self) -> str:
        return hashlib.sha256(str(self.quota).encode("utf-8", "surrogatepass")).hexdigest()[:24]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnGroupOffsets:
    """Committed by the mirror. Any other offset is the group's own progress."""

    mirror: MirrorName
    group: str
    offsets: PartitionOffsets
    """Next to read. Includes source offsets that were already there."""
    clamped_from: PartitionOffsets = NO_OFFSETS
    """The source's offsets that the destination's log does not reach."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.group.encode("utf-8", "surrogatepass")).hexdigest()[:24]


class GroupCoverage(StrEnum):
    """What a sync has done for a group's partition."""

    SYNCED = "synced"
    CLAMPED = "clamped"
    """The destination's log does not contain the source's offset: the nearest one in it was committed."""
    REFUSED = "refused"
    """Nothing could be committed."""
    SKIPPED = "skipped"
    """Left alone, as the rules say."""
    WAITING = "waiting"
    """The destination has not answered yet: it is tried again."""
    DELETED = "deleted"
    """The source has no such offset any more; the destination's stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncommittedGroupOffset:
    group: str
    partition: str
    """Empty: the whole group."""
    reason: str
    destination_offset: Offset | None = None
    """Without one `auto.offset.reset` applies."""
    coverage: GroupCoverage = GroupCoverage.REFUSED
    since_ms: int | None = None
    """When it was first seen so."""

    @property
    def has_reset_start(self) -> bool:
        return self.destination_offset is None and self.coverage is GroupCoverage.REFUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsyncedGroups:
    """Missing or incomplete on the destination."""

    mirror: MirrorName
    uncommitted: tuple[UncommittedGroupOffset, ...] = ()
    share_groups: tuple[str, ...] = ()
    """In scope: nobody follows them between two syncs."""
    share_groups_synced_ms: int | None = None
    """Start of the last sync, by the clock of the mirroring process. None: there are none."""
    share_groups_listed_by: NameFilters | None = None
    """Filters of their listing. None: not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSync:
    rows: tuple[DriftRow, ...]
    new_settings: tuple[TopicSettings, ...]
    """To record for promotion."""
    refused: Mapping[str, Mapping[str, RemoteFault]]
    """Topic -> setting that the mirror needs -> the destination's refusal."""
