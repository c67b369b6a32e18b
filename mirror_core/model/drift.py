"""What differs between the two sides of a mirror, and what is done about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from mirror_core.model.names import MirrorName


class Part(StrEnum):
    """What a sync is about."""

    TOPICS = "topics"
    CONFIGS = "configs"
    ACLS = "acls"
    GROUPS = "groups"


class Action(StrEnum):
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


CHANGES = frozenset({Action.CREATE, Action.WIDEN, Action.ADOPT, Action.SET, Action.REMOVE, Action.COMMIT, Action.STAGE})
"""Actions that write something; the others only say."""


_ON_TOPIC: Final = re.compile(r"\w+ \w+ on TOPIC literal '([a-zA-Z0-9._-]+)' for ")


class DriftRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table of differences. A struct: thousands are made while applications stand still."""

    part: Part
    subject: str
    """Topic, topic and setting, access control entry, or group and partition."""
    source: str
    """The source's value; empty when it has none."""
    destination: str
    """The destination's value before anything was done; empty when it has none."""
    action: Action
    reason: str = ""
    done: bool = False
    """The action was carried out; in a dry run only what an earlier sync has staged for promotion."""
    offset: int | UnsetType = UNSET
    """Of a group: what the action commits on the destination, or what is committed there and stays. Unset, and not in
    the JSON, where there is none."""

    @property
    def topic(self) -> str:
        """The one topic that it is about; empty when it is about none, or about whichever begin with a word.

        Of a group as a whole it may be the end of the group's name.
        """
        match self.part:
            case Part.TOPICS:
                return self.subject
            case Part.CONFIGS:
                return self.subject.partition(": ")[0]
            case Part.GROUPS:
                return self.subject.rpartition(" ")[2].rpartition("-")[0]
            case Part.ACLS:
                named = _ON_TOPIC.match(self.subject)
                return named[1] if named else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The overrides of a source topic as last seen, so that promotion does not need a living source."""

    mirror: MirrorName
    topic: str
    overrides: Mapping[str, str]
