"""What steps leave for later ones, and for themselves after a crash: each a type of its own, kept by the journal.

They are for the runbook, not for people, and are forgotten when the run has ended; `run.json` shows them as they were.
"""

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
    """What was compared equal while applications still wrote: from 0 up to these offsets."""

    VERSION: ClassVar[int] = 1
    ends: Offsets
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """Log ends of the source when it was seen to stand still."""

    VERSION: ClassVar[int] = 2
    ends: Offsets
    authorizer: bool
    """Whether there are denials; without an authorizer stillness was all there was, or what a command has done."""
    command: bool = False
    """`fence_command` has closed the source."""

    @property
    def held(self) -> bool:
        """Whether anything kept writers out."""
        return self.authorizer or self.command


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    """A partition that is not waited for, since a person has said so: too few replicas of the destination hold it up,
    or nobody leads it on the source."""

    topic: str
    index: int
    end: Offset
    """Where its leader's log ended on the destination."""
    high: Offset | None
    """Up to here its mirroring counts as done. None: its leader did not know its high watermark."""


def _by_partition(left: Iterable[LeftBehind]) -> dict[Partition, LeftBehind]:
    return {Partition(one.topic, one.index): one for one in left}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Where the destination stands with nobody left to write on it: log ends of partitions that are well and led."""

    VERSION: ClassVar[int] = 2
    OLDEST: ClassVar[int] = 1
    positions: Offsets
    left: tuple[LeftBehind, ...] = ()

    def left_behind(self) -> dict[Partition, LeftBehind]:
        return _by_partition(self.left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreplicated:
    """What too few replicas of the destination hold up, as people were told of it: it waits for a person's word."""

    VERSION: ClassVar[int] = 1
    ends: Offsets
    """Log ends of these partitions."""
    high: Offsets = NO_OFFSETS
    """Their high watermarks, where known."""
    left_behind: bool = False
    """Somebody has said that they are not waited for."""

    @classmethod
    def of(cls, held: Mapping[Partition, HeldUp]) -> Unreplicated:
        high = {p: one.high for p, one in held.items() if one.high is not None}
        return cls(ends=Offsets.of({p: one.end for p, one in held.items()}), high=Offsets.of(high))

    def told(self) -> dict[Partition, Told]:
        high = self.high.by_partition()
        return {p: Told(end, high.get(p)) for p, end in self.ends.by_partition().items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """Positions when they had reached those log ends, which had not moved."""

    VERSION: ClassVar[int] = 2
    OLDEST: ClassVar[int] = 1
    positions: Offsets
    left: tuple[LeftBehind, ...] = ()
    """Beside these: what nobody led on the source."""

    def left_behind(self) -> dict[Partition, LeftBehind]:
        return _by_partition(self.left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Equal:
    """Up to which offsets both sides were seen to be equal behind the fence."""

    VERSION: ClassVar[int] = 1
    ends: Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedBefore:
    """Up to which offsets both sides were seen to be equal while the source that is lost still answered."""

    VERSION: ClassVar[int] = 1
    ends: Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumes:
    """Where each consumer group goes on on the destination (next offset to be read), as the last sync left it: kept
    for step promote, from which on they do."""

    VERSION: ClassVar[int] = 1
    groups: Mapping[str, Offsets]

    @classmethod
    def of(cls, groups: Mapping[str, Mapping[Partition, Offset]]) -> Resumes:
        return cls(groups={group: Offsets.of(offsets) for group, offsets in sorted(groups.items())})

    def by_group(self) -> dict[str, dict[Partition, Offset]]:
        return {group: offsets.by_partition() for group, offsets in self.groups.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvaged:
    """Log ends of the old source when its tails were saved: what grows beyond them was not, and is not deleted."""

    VERSION: ClassVar[int] = 1
    ends: Offsets
    parts: int = 1
    """Number of the newest folder: what grew in spite of the fence is saved to one of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldTopic:
    """A topic that is to be deleted and created anew, as it was."""

    name: str
    id: str
    replication_factor: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OldTopics:
    """All of them, written down before the first one is deleted."""

    VERSION: ClassVar[int] = 1
    topics: tuple[OldTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Which brokers held partitions before replicas were taken away from them, to be given back."""

    VERSION: ClassVar[int] = 1
    partitions: tuple[tuple[str, int, tuple[int, ...]], ...]
    """Topic, number, broker ids."""

    @classmethod
    def of(cls, replicas: Mapping[Partition, tuple[int, ...]]) -> Placed:
        return cls(partitions=tuple((p.topic, p.index, nodes) for p, nodes in sorted(replicas.items())))

    def by_partition(self) -> dict[Partition, tuple[int, ...]]:
        return {Partition(topic, index): nodes for topic, index, nodes in self.partitions}


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled:
    """Replicas that are slowed down, to be set free in any case."""

    VERSION: ClassVar[int] = 1
    topics: tuple[str, ...]
    broker: int
    """-1: none is."""
    rate: str | None
    """What somebody else had set on that broker before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """What this run tells applications: fixed before the first one is told."""

    VERSION: ClassVar[int] = 1
    active: Active


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCall:
    """How far a hook has come."""

    hook: str
    tries: int = 0
    seconds: float = 0.0
    ended: bool = False
    problem: str = ""
    """Why it has failed; empty: it has not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """The hooks that were called so far, also while they are."""

    VERSION: ClassVar[int] = 1
    calls: tuple[HookCall, ...] = ()


T = TypeVar("T", bound=Keepable)


def left_by(journal: Journal, step: str, kind: type[T]) -> T:
    """What an earlier step left. Indeterminate when it is not there: nothing is taken for granted in its place."""
    found = journal.kept(step, kind)
    if found is None:
        raise Indeterminate(
            f"run {journal.run_id}: what step {step} kept ({kind.__name__}) is not in the state topic any more: abort "
            "the run, or ask who wrote there"
        )
    return found


def all_left(journal: Journal) -> dict[str, dict[str, object]]:
    """Everything that steps have left so far, by step and type, as the JSON that it is stored as."""
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
"""Which step leaves what."""
