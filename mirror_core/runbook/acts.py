"""What every step of a run is given, and how a step keeps the data plane's lease."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Partition
from mirror_core.model.run import StepEvidence
from mirror_core.runbook.services import Services
from mirror_core.state.journal import Journal
from mirror_core.state.link import MirrorLink
from mirror_core.state.writer import StateWriter


@dataclass(frozen=True, slots=True)
class StepContext:
    """One run's dependencies, in the process that holds the mirror's control transactional id."""

    link: MirrorLink
    services: Services
    writer: StateWriter
    journal: Journal
    print_line: Callable[[str], None] = lambda line: None

    def get_action(self, name: str) -> Callable[[], StepEvidence]:
        """Each step is the method of its name."""
        method: Callable[[], StepEvidence] = getattr(self, name)
        return method

    def statuses(self) -> dict[Partition, PartitionStatus]:
        return dict(sorted(self.writer.state.partitions.get(self.link.mirror.name, {}).items()))
