"""What the driver asks of wherever its tasks run. Implemented by threads here (`local`) and by Spark above."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import ClassVar, Protocol

from mirror_core.evidence.folders import Folder
from mirror_core.model.copying import Assignment, Listening, TaskReport
from mirror_core.model.errors import MirrorError


class RunnerGone(MirrorError):
    """What runs tasks is dead, and this process can't have another one: only a new process can."""

    retryable: ClassVar[bool] = False


class Runner(Protocol):
    """Where copying tasks run: Spark executors, or threads of this process. Both run `copy.task.run`."""

    slots: int
    """Tasks of one epoch; twice as many can be alive while two epochs overlap."""

    listening: Listening
    """Where the driver has to listen, so that tasks reach it."""

    def submit(self, assignments: Sequence[Assignment]) -> Future[tuple[TaskReport, ...]]:
        """Start one epoch's tasks at once; the future ends when all have."""

    def folder(self, place: str) -> Folder:
        """Of this machine, or of what else the runner reaches. BadRequest when it does not reach it."""

    def close(self) -> None:
        """Stop whatever still runs, and wait for it."""
