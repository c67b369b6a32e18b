"""What the engine is given from above, where Spark lives."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from mirror_core.model.copying import Assignment, TaskReport
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.model.parity import ParityRange, ParityResult


class Runner(Protocol):
    """Where copying tasks run: Spark executors, or threads of this process. Both run `copy.task.run`."""

    slots: int
    """Tasks of one epoch; twice as many can be alive while two epochs overlap."""

    def submit(self, assignments: Sequence[Assignment]) -> Future[tuple[TaskReport, ...]]:
        """Start one epoch's tasks at once; the future ends when all have."""

    def close(self) -> None:
        """Stop whatever still runs, and wait for it."""


class ParityCheck(Protocol):
    """Compares both clusters over ranges of offsets."""

    def __call__(
        self, source: ClusterName, destination: ClusterName, ranges: Sequence[ParityRange], output: Path | None
    ) -> ParityResult: ...


class Salvage(Protocol):
    """Saves [start, end) of partitions of one cluster to Parquet; returns records saved per partition."""

    def __call__(self, cluster: ClusterName, ranges: Sequence[ParityRange], output: Path) -> dict[Partition, int]: ...


class Copy(Protocol):
    """Copies a mirror's partitions up to the given ends, without a data plane of its own running."""

    def __call__(self, ends: dict[Partition, Offset], timeout_s: float) -> None: ...
