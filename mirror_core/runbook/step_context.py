"""What every step of a run is given, and how a step keeps the data plane's lease.

Retries a step that lost the data plane's lease.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mirror_core.model.errors import LostOwnership
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Partition
from mirror_core.model.run import StepEvidence
from mirror_core.runbook.run_services import Services
from mirror_core.state.journal import Journal
from mirror_core.state.mirror_link import MirrorLink
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


_LEASE_ATTEMPTS: Final = 3


def retry_on_lease_loss(context: StepContext, step: str, action: Callable[[], StepEvidence]) -> StepEvidence:
    """Run `action`, which takes the data plane's lease, and may be repeated.

    A data plane that read the state before this step began may take the lease after us. It then reads that the step
    has begun, and ends.
    """
    for _ in range(_LEASE_ATTEMPTS):
        try:
            return action()
        except LostOwnership:
            step_record = context.journal.record(step)
            if step_record is None:
                raise
            context.writer.put(step_record)  # fails here if the run itself was lost
            context.print_line(
                "a data plane that was just starting has taken the lease; it ends by itself, and this begins anew"
            )
    return action()
