"""Why a part of a partition's log cannot be read, though its leader answers."""

from __future__ import annotations

from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import ClusterName, Offset, Partition


class Unreadable(RemoteFault):
    """The leader refuses to give it, or gives what nobody can read."""


class Damaged(Unreadable):
    """What stands there is no record batch, or not the one that was written: a broker's disk, as a rule."""

    def __init__(self, cluster: ClusterName, partition: Partition, offset: int, why: object) -> None:
        """`offset`: the first one that cannot be read."""
        self.cluster, self.offset = cluster, Offset(offset)
        super().__init__(f"cluster {cluster}, {partition}: {why}")


class Trimmed(RemoteFault):
    """The log no longer begins where it was read: retention or DeleteRecords moved its start meanwhile."""

    def __init__(self, where: str, log_start: Offset) -> None:
        self.log_start = log_start
        super().__init__(f"{where}: the log now starts at {log_start}")
