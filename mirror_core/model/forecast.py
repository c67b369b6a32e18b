"""What a plan predicts and a run measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from mirror_core.model.names import Offset, Partition


class UncountedReread(StrEnum):
    """Why it is not known how much a group would read again."""

    ACTIVE = "active"
    """It has members on the destination, so the final sync commits nothing for it."""
    UNCOMMITTED = "uncommitted"
    """The destination has not taken all of its offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanForecast:
    seconds: float | None
    steps: Mapping[str, float] = field(default_factory=dict)
    basis: str = ""
    """The earlier run that the seconds come from."""
    lost_offsets: int | None
    lost_is_minimum: bool = False
    reread_offsets: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Minimum and maximum by group."""
    uncounted_groups: Mapping[str, UncountedReread] = field(default_factory=dict)
    """Those of which it is not known."""
    gives_up_source: bool = False
    """What the source took after it was last observed is lost, too."""
    unseen_s: float | None = None
    """Seconds since then. None: unknown, or nothing is given up."""
    offsets_per_s: float | None = None
    """What the source took in the minute before that. None: unknown."""
    refused_s: float | None = None
    """Seconds since the source refused its first connection. None: it was not seen to."""
    copied_unseen_offsets: int = 0
    """What the destination has beyond the last observed ends: it was copied, though nobody observed it."""

    @property
    def taking_s(self) -> float | None:
        """How long the source probably took records that nobody observed: until it refused connections from here."""
        return None if self.unseen_s is None else max(0.0, round(self.unseen_s - (self.refused_s or 0), 3))

    @property
    def taken_unseen_offsets(self) -> int | None:
        """What it probably took in `taking_s`."""
        has_rate = self.taking_s is not None and self.offsets_per_s is not None
        return round((self.taking_s or 0) * (self.offsets_per_s or 0)) if has_rate else None

    @property
    def unseen_offsets(self) -> int | None:
        """What of that was probably not copied. None: unknown, also where more was copied: the rate was too low."""
        taken = self.taken_unseen_offsets
        return None if taken is None or taken < self.copied_unseen_offsets else taken - self.copied_unseen_offsets

    @property
    def max_reread_offsets(self) -> int:
        """All groups together, without those of which it is not known."""
        return sum(most for _, most in self.reread_offsets.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastOutcome:
    lost_offsets: int | None
    """Without `taken_since_offsets`."""
    least_lost_offsets: int | None = None
    """The counted part, where `lost_offsets` is None."""
    uncopied: tuple[str, ...] | None = None
    """Partitions without a copy, and offsets of each. None: topics were not listed behind the fence."""
    lost_basis: str
    reread_offsets: Mapping[str, int | None] = field(default_factory=dict)
    """Read on the source and again on the destination."""
    reread_basis: str
    taken_since_offsets: int = 0
    """Taken by the source after it was given up, by the records' own times."""


class TransactionArrival(StrEnum):
    PARTIAL = "cut in half"
    """Some partitions have at least its beginning, others nothing."""
    MAYBE_PARTIAL = "begun, perhaps not whole"
    """All have its beginning; its end is unknown."""
    COMPLETE = "there"
    ABSENT = "not there"
    UNKNOWN = "unknown"
    """First offsets or positions are unknown."""


class UncopiedReason(StrEnum):
    """Why the destination has nothing of a partition, or lacks its end or its beginning."""

    NOT_MIRRORED = "not mirrored yet"
    RECREATED = "created anew on the source"
    NO_COPY = "no copy"
    """Recorded, but missing on the destination."""
    DIVERGED = "other records at the same offsets"
    """From an offset on; below it both sides are equal."""
    DELETED = "deleted on the destination only"
    """Up to an offset: the source had these records when it was last seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLoss:
    position: Offset | None
    observed_end: Offset | None
    """When last observed."""
    age_s: float | None
    """Unknown also if clocks differ."""
    missing: int | None
    """Observed end minus position, or minus where uncopied records begin, and early deletions."""
    recovery_point_age_s: float | None = None
    """Since nothing was missing. None: never, or clocks differ."""
    is_offline: bool
    is_failed: bool
    is_never_complete: bool = False
    """The copy lacks records, and is not known to have ever held all that the source then had."""
    uncopied_reason: UncopiedReason | None = None

    @property
    def is_outside_bound(self) -> bool:
        """The bound covers only partitions that could be copied until the end."""
        return self.is_offline or self.is_failed

    @property
    def is_observed(self) -> bool:
        return self.observed_end is not None and not self.is_outside_bound

    @property
    def has_no_copy(self) -> bool:
        return self.uncopied_reason not in (None, UncopiedReason.DIVERGED, UncopiedReason.DELETED)

    @property
    def behind_s(self) -> float | None:
        """Since the copy was complete."""
        if self.missing is None:
            return None
        return self.recovery_point_age_s if self.missing else self.age_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLoss:
    id: str
    state: str
    arrival: TransactionArrival
    copied: tuple[Partition, ...]
    """With at least its beginning."""
    not_copied: tuple[Partition, ...]
