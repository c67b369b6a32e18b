"""Partitions with fewer replicas in sync than `min.insync.replicas`, and what ends that. Pure.

Kafka 4.0 and newer move the high watermark of such a partition no further (KIP-966): it takes no write with acks=all,
and shows no consumer what its leader alone has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mirror_core.model.names import ClusterName
from mirror_core.model.shell_command import option, shell_command


@dataclass(frozen=True, slots=True, kw_only=True)
class InSync:
    """Replicas of one partition."""

    replicas: tuple[int, ...]
    """Ids of their brokers."""
    in_sync: tuple[int, ...]
    asked: int
    """`min.insync.replicas` of its topic."""

    @property
    def needed(self) -> int:
        """More than there are replicas, brokers do not ask for."""
        return min(self.asked, len(self.replicas))

    @property
    def short(self) -> bool:
        return len(self.in_sync) < self.needed

    @property
    def away(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.replicas) - set(self.in_sync)))

    def __str__(self) -> str:
        return (
            f"{len(self.in_sync)} of {len(self.replicas)} replicas in sync, and min.insync.replicas={self.asked}; not "
            f"in sync: broker {', '.join(map(str, self.away))}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Short:
    """A topic of which a partition is short of replicas in sync."""

    topic: str
    least: InSync
    """Of its partitions the one with the fewest."""


def lowering(bootstrap: str, topic: str, to: int) -> str:
    """The line that has a topic do with so many replicas in sync."""
    topics = ["--alter", "--entity-type", "topics", *option("--entity-name", topic)]
    change = [*topics, "--add-config", f"min.insync.replicas={max(1, to)}"]
    where = option("--bootstrap-server", bootstrap)
    return shell_command("kafka-configs.sh", *where, "--command-config", "ADMIN.properties", *change)


def not_written(cluster: ClusterName, bootstrap: str, short: Iterable[Short]) -> str:
    """Why a cluster takes none of our transactions, and what to do; empty: not for want of replicas."""
    found = list(short)
    if not found:
        return ""
    told = "; ".join(f"{one.topic}: {one.least}" for one in found)
    lines = "; ".join(f"`{lowering(bootstrap, one.topic, len(one.least.in_sync))}`" for one in found)
    return (
        f"Too few brokers of {cluster} have it ({told}). Start one of these brokers. If none will come back, an "
        f"administrator lowers what Kafka asks for, and a record may then be lost with a single broker: {lines}"
    )
