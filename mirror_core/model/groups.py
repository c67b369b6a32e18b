"""What is remembered of consumer groups, for the next sync and for the day without a source."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from mirror_core.model.names import MirrorName, Offset
from mirror_core.model.offsets import Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """What the mirror has committed last for one group on the destination: any other offset there is not its own."""

    mirror: MirrorName
    group: str
    offsets: Offsets
    """Next offsets to be read. Among them those that the source had committed, too, when they were found there."""

    @property
    def digest(self) -> str:
        """Of the group's name, which may hold anything."""
        return hashlib.sha256(self.group.encode("utf-8", "surrogatepass")).hexdigest()[:24]


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncommitted:
    """Something that a group has on the source, and that could not be committed for it on the destination."""

    group: str
    partition: str
    """Empty: nothing of the group could be."""
    reason: str
    stands: Offset | None = None
    """What is committed on the destination instead. None: no offset, so the group starts there where its
    `auto.offset.reset` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsLeft:
    """Groups of the source that the destination has not, or not all of, as of the last look."""

    mirror: MirrorName
    others: tuple[str, ...] = ()
    """Those whose kind is not synced, each with its kind."""
    uncommitted: tuple[Uncommitted, ...] = ()
