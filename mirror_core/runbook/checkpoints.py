"""What steps record for later steps, and for themselves after a crash, until the run ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, TypeVar

import msgspec

from mirror_core.decide.scope import Scope
from mirror_core.decide.settling import HeldUp, Told
from mirror_core.model.checkpoint import Keepable
from mirror_core.model.errors import Indeterminate
from mirror_core.model.names import Offset, Partition
from mirror_core.model.offsets import NO_OFFSETS, Offsets
from mirror_core.state.active import Active
from mirror_core.state.journal import Journal
from mirror_core.state.turning import LastLook


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """Compared equal from offset 0 to these (next offsets), while applications wrote."""

    VERSION: ClassVar[int] = 1
    ends: Offsets
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """Source log ends when they had stopped moving."""

    VERSION: ClassVar[int] = 2
    ends: Offsets
    authorizer: bool
    command: bool = False

    @property
    def held(self) -> bool:
        return self.authorizer or self.command


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    """Left behind by a person's choice: too few in-sync destination replicas, or offline source."""

    topic: str
    index: int
    end: Offset
    high: Offset | None
    """Mirrored up to here. None: its leader did not know it."""


def _by_partition(left: Iterable[LeftBehind]) -> dict[Partition, LeftBehind]:
    return {Partition(one.topic, one.index): one for one in left}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Destination log ends with no writer left, of healthy partitions with leaders."""

    VERSION: ClassVar[int] = 2
    OLDEST: ClassVar[int] = 1
    positions: Offsets
    left: tuple[LeftBehind, ...] = ()

    def left_behind(self) -> dict[Partition, LeftBehind]:
        return _by_partition(self.left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreplicated:
    """Held up by too few in-sync replicas. Waits for confirmation."""

    VERSION: ClassVar[int] = 1
    ends: Offsets
    high: Offsets = NO_OFFSETS
    left_behind: bool = False
    """Confirmed."""

    @classmethod
    def of(cls, held: Mapping[Partition, HeldUp]) -> Unreplicated:
        high = {p: one.high for p, one in held.items() if one.high is not None}
        return cls(ends=Offsets.of({p: one.end for p, one in held.items()}), high=Offsets.of(high))

    def told(self) -> dict[Partition, Told]:
        high = self.high.by_partition()
        return {p: Told(end, high.get(p)) for p, end in self.ends.by_partition().items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """Positions when they reached the source's log ends, which had not moved."""

    VERSION: ClassVar[int] = 2
    OLDEST: ClassVar[int] = 1
    positions: Offsets
    left: tuple[LeftBehind, ...] = ()

    def left_behind(self) -> dict[Partition, LeftBehind]:
        return _by_partition(self.left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Equal:
    """Both sides compared equal up to these offsets, behind the fence."""

    VERSION: ClassVar[int] = 1
    ends: Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedBefore:
    """Compared equal up to these offsets while the lost source still answered."""

    VERSION: ClassVar[int] = 1
    ends: Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumes:
    """Next offset to read per group on the destination, by the last sync."""

    VERSION: ClassVar[int] = 1
    groups: Mapping[str, Offsets]

    @classmethod
    def of(cls, groups: Mapping[str, Mapping[Partition, Offset]]) -> Resumes:
        return cls(groups={group: Offsets.of(offsets) for group, offsets in sorted(groups.items())})

    def by_group(self) -> dict[str, dict[Partition, Offset]]:
        return {group: offsets.by_partition() for group, offsets in self.groups.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvaged:
    """Old source log ends when tails were saved. Later records must not be deleted."""

    VERSION: ClassVar[int] = 1
    ends: Offsets
    parts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OldTopic:
    name: str
    id: str
    replication_factor: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OldTopics:
    """Recorded before the first one is deleted."""

    VERSION: ClassVar[int] = 1
    topics: tuple[OldTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Recorded before any replica is removed."""

    VERSION: ClassVar[int] = 1
    partitions: tuple[tuple[str, int, tuple[int, ...]], ...]

    @classmethod
    def of(cls, replicas: Mapping[Partition, tuple[int, ...]]) -> Placed:
        return cls(partitions=tuple((p.topic, p.index, nodes) for p, nodes in sorted(replicas.items())))

    def by_partition(self) -> dict[Partition, tuple[int, ...]]:
        return {Partition(topic, index): nodes for topic, index, nodes in self.partitions}


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled:
    """Replication throttles of this run. They must be removed in any case."""

    VERSION: ClassVar[int] = 1
    topics: tuple[str, ...]
    broker: int
    rate: str | None
    """The broker's earlier rate, which is restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """Fixed before the first application is told."""

    VERSION: ClassVar[int] = 1
    active: Active


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCall:
    hook: str
    tries: int = 0
    seconds: float = 0.0
    ended: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    VERSION: ClassVar[int] = 1
    calls: tuple[HookCall, ...] = ()


T = TypeVar("T", bound=Keepable)


def left_by(journal: Journal, step: str, kind: type[T]) -> T:
    """Output of an earlier step. Raises Indeterminate if it is gone: nothing is assumed."""
    found = journal.kept(step, kind)
    if found is None:
        raise Indeterminate(
            f"run {journal.run_id}: what step {step} kept ({kind.__name__}) is not in the state topic any more: abort "
            "the run, or ask who wrote there"
        )
    return found


def all_left(journal: Journal) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for step, kind in LEFT:
        value = journal.kept_json(step, kind)
        if value is not None:
            found.setdefault(step, {})[kind.__name__] = msgspec.Raw(value)
    return found


LEFT: Final[tuple[tuple[str, type[Keepable]], ...]] = (
    ("begin", Scope),
    ("settle", Settled),
    ("settle", Unreplicated),
    ("prove", Proven),
    ("fence", Fenced),
    ("drain", Drained),
    ("parity", Equal),
    ("promote", Resumes),
    ("promote", LastLook),
    ("record_lmo", ComparedBefore),
    ("switch", Announced),
    ("switch", Called),
    ("salvage", Salvaged),
    ("align", OldTopics),
    ("align", Placed),
    ("align", Throttled),
)
