"""What differs between the two sides of a mirror, and what is done about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from mirror_core.model.names import MirrorName


class Part(StrEnum):
    """What a sync is about."""

    TOPICS = "topics"
    CONFIGS = "configs"
    ACLS = "acls"
    GROUPS = "groups"


class Deed(StrEnum):
    """What is done about a difference, or why nothing is."""

    CREATE = "create"
    WIDEN = "widen"
    """Add partitions."""
    ADOPT = "adopt"
    """Take an empty topic that was there already."""
    SET = "set"
    REMOVE = "remove"
    COMMIT = "commit"
    """Commit a consumer group's offset on the destination."""
    STAGE = "stage"
    """Remember it, and do it at promotion."""
    KEEP = "keep"
    """Somebody else's: never touched."""
    EQUAL = "equal"
    """Nothing to do; listed because everything in scope is accounted for."""
    SKIP = "skip"
    """Nothing can or may be done now: see the reason."""
    REFUSE = "refuse"
    """Dangerous: a person must decide."""


CHANGES = frozenset({Deed.CREATE, Deed.WIDEN, Deed.ADOPT, Deed.SET, Deed.REMOVE, Deed.COMMIT, Deed.STAGE})
"""Deeds that write something; the others only say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftRow:
    """One line of the table of differences."""

    part: Part
    subject: str
    """Topic, topic and setting, access control entry, or group and partition."""
    source: str
    """The source's value; empty when it has none."""
    destination: str
    """The destination's value before anything was done; empty when it has none."""
    deed: Deed
    reason: str = ""
    done: bool = False
    """The deed was carried out (never so in a dry run)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The overrides of a source topic as last seen, so that promotion does not need a living source."""

    mirror: MirrorName
    topic: str
    overrides: Mapping[str, str]
