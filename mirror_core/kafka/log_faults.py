"""Errors of unreadable logs."""

from __future__ import annotations

from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import ClusterName, Offset, Partition


class LogUnreadable(RemoteFault):
    """Refused, or unreadable."""


class LogDamaged(LogUnreadable):
    """Not the batch that was written; usually a broker's disk."""

    def __init__(self, cluster: ClusterName, partition: Partition, offset: int, reason: object) -> None:
        """`offset`: the first unreadable one."""
        self.cluster, self.offset = cluster, Offset(offset)
        super().__init__(f"cluster {cluster}, {partition}: {reason}")


class LogTrimmed(RemoteFault):
    """Retention or DeleteRecords passed the position."""

    def __init__(self, where: str, log_start: Offset) -> None:
        self.log_start = log_start
        super().__init__(f"{where}: the log now starts at {log_start}")
