"""What a failover without the source would lose, of one partition and of one transaction."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mirror_core.model.names import Offset, Partition


class Fate(StrEnum):
    """What has arrived of a transaction that was committed, were promotion now."""

    CUT = "cut in half"
    """Some of its partitions have it, or its beginning; others have nothing of it."""
    BEGUN = "begun, perhaps not whole"
    """All of its partitions have its beginning; whether also its end is not known of each."""
    THERE = "there"
    ABSENT = "not there"
    """None has any of it."""
    UNKNOWN = "unknown"
    """Its first offsets, or the positions, are not known."""


class Uncopied(StrEnum):
    """Why the destination has nothing of what a partition's log holds on the source."""

    NOT_MIRRORED = "not mirrored yet"
    """No plan of the data plane has recorded it."""
    RECREATED = "created anew on the source"
    NO_COPY = "no copy"
    """It is recorded, and the destination does not have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLoss:
    """What is known of one partition's end. None: unknown."""

    position: Offset | None
    seen_end: Offset | None
    """The source's end when it was last seen."""
    age_s: float | None
    """Seconds since then; None, too, if clocks differ."""
    missing: int | None
    """Offsets known to be missing: the end last seen, less the position, or less the log's start where nothing is
    copied. None unless both are known."""
    whole_s: float | None = None
    """Of one that lacks some: seconds since the data plane saw it lack nothing. None: never, or clocks differ."""
    leaderless: bool
    """Nobody led it at the last look: its end is older than the others'."""
    failed: bool
    """It is FAILED: not copied any more."""
    uncopied: Uncopied | None = None
    """Its whole log is missing, and why. None: its copy is the position's."""

    @property
    def apart(self) -> bool:
        """Not in the bound's seconds, which are those of partitions that could be copied until the end."""
        return self.leaderless or self.failed

    @property
    def behind_s(self) -> float | None:
        """Seconds since the copy held all that the source then had. None: unknown."""
        if self.missing is None:
            return None
        return self.whole_s if self.missing else self.age_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLoss:
    """A transaction that was seen, by what has arrived of it."""

    id: str
    state: str
    fate: Fate
    copied: tuple[Partition, ...]
    """Partitions that have it, or its beginning."""
    not_copied: tuple[Partition, ...]
