"""What steps record for later steps, and for themselves after a crash."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeVar

import msgspec

from mirror_core.decide.failover_scope import FailoverScope
from mirror_core.decide.quiescence_check import ConfirmedEnd, UnreplicatedPartition
from mirror_core.model.errors import Indeterminate
from mirror_core.model.names import NO_OFFSETS, Offset, Partition, PartitionOffsets
from mirror_core.model.run_checkpoints import StepValue
from mirror_core.state.active_cluster import ActiveCluster
from mirror_core.state.journal import Journal
from mirror_core.state.point_of_no_return import PromotionCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class ProveResult:
    """Compared equal from offset 0 to these (next offsets), while applications wrote."""

    VERSION: ClassVar[int] = 1
    ends: PartitionOffsets
    records: int
    offsets_per_s: float | None = None
    """Rate of the last comparison that was long enough to tell. None: none was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceResult:
    """Source log ends when they had stopped moving."""

    VERSION: ClassVar[int] = 1
    ends: PartitionOffsets
    authorizer: bool
    command: bool = False

    @property
    def is_fenced(self) -> bool:
        return self.authorizer or self.command


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehindPartition:
    """By a person's choice: too few in-sync destination replicas, or offline source."""

    topic: str
    index: int
    end: Offset
    high_watermark: Offset | None
    """Mirrored up to here. None: its leader did not know it."""


def _index_by_partition(left_partitions: Iterable[LeftBehindPartition]) -> dict[Partition, LeftBehindPartition]:
    return {Partition(left_partition.topic, left_partition.index): left_partition for left_partition in left_partitions}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleResult:
    """Destination log ends with no writer left, of healthy partitions with leaders."""

    VERSION: ClassVar[int] = 1
    positions: PartitionOffsets
    left_partitions: tuple[LeftBehindPartition, ...] = ()
    foreign_starts: PartitionOffsets = NO_OFFSETS
    """Where somebody else has written the ends of these logs."""
    doubtful_ends: PartitionOffsets = NO_OFFSETS
    """Log ends of which it is not known who wrote them."""
    log_starts: PartitionOffsets = NO_OFFSETS
    """Below which these logs have been deleted, and the source's were not when it was last seen."""

    def left_behind(self) -> dict[Partition, LeftBehindPartition]:
        return _index_by_partition(self.left_partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderReplicatedLogs:
    """Held up by too few in-sync replicas. Waits for confirmation."""

    VERSION: ClassVar[int] = 1
    ends: PartitionOffsets
    high_watermarks: PartitionOffsets = NO_OFFSETS
    left_behind: bool = False

    @classmethod
    def from_held_up(cls, held_up: Mapping[Partition, UnreplicatedPartition]) -> UnderReplicatedLogs:
        high_watermarks = {p: log.high_watermark for p, log in held_up.items() if log.high_watermark is not None}
        return cls(
            ends=PartitionOffsets.from_mapping({p: log.end for p, log in held_up.items()}),
            high_watermarks=PartitionOffsets.from_mapping(high_watermarks),
        )

    def to_reported(self) -> dict[Partition, ConfirmedEnd]:
        high_watermarks = self.high_watermarks.to_mapping()
        return {p: ConfirmedEnd(end, high_watermarks.get(p)) for p, end in self.ends.to_mapping().items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainResult:
    """Positions when they reached the source's log ends, which had not moved."""

    VERSION: ClassVar[int] = 1
    positions: PartitionOffsets
    left_partitions: tuple[LeftBehindPartition, ...] = ()

    def left_behind(self) -> dict[Partition, LeftBehindPartition]:
        return _index_by_partition(self.left_partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """Both sides compared equal up to these offsets, behind the fence."""

    VERSION: ClassVar[int] = 1
    ends: PartitionOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedBeforeLoss:
    """Compared equal up to these offsets while the lost source still answered."""

    VERSION: ClassVar[int] = 1
    ends: PartitionOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResumeOffsets:
    """Next offset to read per group on the destination, by the last sync."""

    VERSION: ClassVar[int] = 1
    groups: Mapping[str, PartitionOffsets]

    @classmethod
    def from_groups(cls, groups: Mapping[str, Mapping[Partition, Offset]]) -> GroupResumeOffsets:
        return cls(groups={group: PartitionOffsets.from_mapping(offsets) for group, offsets in sorted(groups.items())})

    def by_group(self) -> dict[str, dict[Partition, Offset]]:
        return {group: offsets.to_mapping() for group, offsets in self.groups.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvageResult:
    """Old source log ends when tails were saved. Later records must not be deleted."""

    VERSION: ClassVar[int] = 1
    ends: PartitionOffsets
    parts: int = 1
    later_folders: tuple[str, ...] = ()
    """What step align has saved."""
    grown_records: int = 0
    """Records in them that the first salvage had not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecreatedTopic:
    name: str
    id: str
    replication_factor: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecreatedTopics:
    """Recorded before the first is deleted."""

    VERSION: ClassVar[int] = 1
    topics: tuple[RecreatedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginalReplicas:
    """Recorded before any replica is removed."""

    VERSION: ClassVar[int] = 1
    partitions: tuple[tuple[str, int, tuple[int, ...]], ...]

    @classmethod
    def from_replicas(cls, replicas: Mapping[Partition, tuple[int, ...]]) -> OriginalReplicas:
        return cls(partitions=tuple((p.topic, p.index, nodes) for p, nodes in sorted(replicas.items())))

    def by_partition(self) -> dict[Partition, tuple[int, ...]]:
        return {Partition(topic, index): nodes for topic, index, nodes in self.partitions}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaThrottle:
    """This run's. They must be removed in any case."""

    VERSION: ClassVar[int] = 1
    topics: tuple[str, ...]
    broker: int
    rate: str | None
    """The broker's earlier rate, which is restored."""
    away_rates: Mapping[int, str | None] = field(default_factory=dict)
    """Earlier rates of brokers that were away when theirs was to be restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """Fixed before the first application is told."""

    VERSION: ClassVar[int] = 1
    active: ActiveCluster


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCall:
    hook: str
    tries: int = 0
    seconds: float = 0.0
    ended: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCalls:
    VERSION: ClassVar[int] = 1
    calls: tuple[HookCall, ...] = ()


StepOutput = TypeVar("StepOutput", bound=StepValue)


def read_output(journal: Journal, step: str, output_type: type[StepOutput]) -> StepOutput:
    """Raises Indeterminate if it is gone: nothing is assumed."""
    output = journal.load_checkpoint(step, output_type)
    if output is None:
        raise Indeterminate(
            f"run {journal.run_id}: what step {step} kept ({output_type.__name__}) is not in the state topic any more:"
            " abort the run, or ask who wrote there"
        )
    return output


def read_all_outputs(journal: Journal) -> dict[str, dict[str, object]]:
    outputs: dict[str, dict[str, object]] = {}
    for step, output_type in STEP_OUTPUTS:
        value = journal.load_checkpoint_json(step, output_type)
        if value is not None:
            outputs.setdefault(step, {})[output_type.__name__] = msgspec.Raw(value)
    return outputs


STEP_OUTPUTS: Final[tuple[tuple[str, type[StepValue]], ...]] = (
    ("begin", FailoverScope),
    ("settle", SettleResult),
    ("settle", UnderReplicatedLogs),
    ("prove", ProveResult),
    ("fence", FenceResult),
    ("drain", DrainResult),
    ("parity", GateResult),
    ("promote", GroupResumeOffsets),
    ("promote", PromotionCheck),
    ("record_lmo", ComparedBeforeLoss),
    ("switch", Announcement),
    ("switch", HookCalls),
    ("salvage", SalvageResult),
    ("align", RecreatedTopics),
    ("align", OriginalReplicas),
    ("align", ReplicaThrottle),
)
