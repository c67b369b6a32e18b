from __future__ import annotations

import hashlib
from dataclasses import dataclass

from mirror_core.model.names import MirrorName, Offset
from mirror_core.model.offsets import PartitionOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnGroupOffsets:
    """Committed by the mirror. Any other offset is the group's own progress."""

    mirror: MirrorName
    group: str
    offsets: PartitionOffsets
    """Next offsets to read. Includes source offsets that were already there."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.group.encode("utf-8", "surrogatepass")).hexdigest()[:24]


@dataclass(frozen=True, slots=True, kw_only=True)
class UncommittedGroupOffset:
    group: str
    partition: str
    """Empty: the whole group."""
    reason: str
    destination_offset: Offset | None = None
    """Without one `auto.offset.reset` applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsyncedGroups:
    """Missing or incomplete on the destination."""

    mirror: MirrorName
    unsupported_groups: tuple[str, ...] = ()
    uncommitted: tuple[UncommittedGroupOffset, ...] = ()
