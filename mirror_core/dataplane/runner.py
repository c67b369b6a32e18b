"""Where copying tasks run: executors of Spark, or threads. Both run `copy.task.run`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import ClassVar, Protocol

from mirror_core.evidence.folders import Folder
from mirror_core.model.copying import Assignment, ListenAddress, TaskReport
from mirror_core.model.errors import MirrorError


class RunnerGone(MirrorError):
    """Only a new process can have another runner."""

    retryable: ClassVar[bool] = False


class Runner(Protocol):
    slots: int
    """Tasks of one epoch; twice as many while two overlap."""

    listening: ListenAddress

    def submit(self, assignments: Sequence[Assignment]) -> Future[tuple[TaskReport, ...]]: ...

    def folder(self, place: str) -> Folder:
        """Raises BadRequest when the runner does not reach it."""

    def close(self) -> None: ...
