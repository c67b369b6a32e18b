"""What the acts of a failover and of a failback have in hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Partition
from mirror_core.model.run import Evidence
from mirror_core.runbook.services import Services
from mirror_core.state.journal import Journal
from mirror_core.state.link import Link
from mirror_core.state.writer import StateWriter


@dataclass(frozen=True, slots=True)
class Acts:
    """The acts of one run, in the hands of the process that holds the mirror's control id."""

    link: Link
    services: Services
    writer: StateWriter
    journal: Journal
    say: Callable[[str], None] = lambda line: None
    """For people who wait: what they have to do meanwhile."""

    def act(self, name: str) -> Callable[[], Evidence]:
        """The act of a step: the method of its name."""
        method: Callable[[], Evidence] = getattr(self, name)
        return method

    def statuses(self) -> dict[Partition, PartitionStatus]:
        """The mirror's partitions as they are recorded now, in order."""
        return dict(sorted(self.writer.state.partitions.get(self.link.mirror.name, {}).items()))
