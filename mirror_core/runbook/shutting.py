"""Closes a run's source by `fence_command`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mirror_core.runbook.acts import StepContext
from mirror_core.runbook.unfencing import LiftFile
from mirror_core.sync.closing_commands import build_command_target
from mirror_core.sync.closings import ClusterClosed
from mirror_core.sync.shutting import close_cluster


@dataclass(frozen=True, slots=True)
class CommandFence:
    """Returns False if the source has no command.

    Recorded before the call, so that an abort opens the source again.
    """

    context: StepContext
    step: str
    lift_file: LiftFile
    once: bool = False

    def __call__(self, topics: Collection[str]) -> bool:
        link = self.context.link
        if link.source.ruling.fence_command is None:
            return False
        closable_cluster = build_command_target(link, link.source.name, self.context.journal.run_id, topics)
        self.lift_file.write_for_command(topics)
        return close_cluster(link, closable_cluster, self._record_closing, once=self.once)

    def _record_closing(self) -> None:
        self.context.journal.save_checkpoint(self.step, ClusterClosed(cluster=self.context.link.source.name))
