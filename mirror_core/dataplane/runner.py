"""What the driver asks of wherever its tasks run. Implemented by threads here (`local`) and by Spark above."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from mirror_core.model.copying import Assignment, Listening, TaskReport


class Runner(Protocol):
    """Where copying tasks run: Spark executors, or threads of this process. Both run `copy.task.run`."""

    slots: int
    """Tasks of one epoch; twice as many can be alive while two epochs overlap."""

    listening: Listening
    """Where the driver has to listen, so that tasks reach it."""

    def submit(self, assignments: Sequence[Assignment]) -> Future[tuple[TaskReport, ...]]:
        """Start one epoch's tasks at once; the future ends when all have."""

    def close(self) -> None:
        """Stop whatever still runs, and wait for it."""
