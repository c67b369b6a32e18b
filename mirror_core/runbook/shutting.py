"""Closes a run's source by `fence_command`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mirror_core.runbook.acts import Acts
from mirror_core.runbook.unfencing import LiftFile
from mirror_core.sync.closing_commands import closable
from mirror_core.sync.closings import Shut
from mirror_core.sync.shutting import closed_through


@dataclass(frozen=True, slots=True)
class ByCommand:
    """Returns False if the source has no command.

    Recorded before the call, so that an abort opens the source again.
    """

    acts: Acts
    step: str
    lift: LiftFile
    once: bool = False

    def __call__(self, topics: Collection[str]) -> bool:
        link = self.acts.link
        if link.source.ruling.fence is None:
            return False
        where = closable(link, link.source.name, self.acts.journal.run_id, topics)
        self.lift.by_command(topics)
        return closed_through(link, where, self._note, once=self.once)

    def _note(self) -> None:
        self.acts.journal.keep(self.step, Shut(cluster=self.acts.link.source.name))
