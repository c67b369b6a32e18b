"""Partitions below `min.insync.replicas`, and the remedy.

Kafka 4.0 and newer do not advance their high watermark (KIP-966): no write with acks=all succeeds, and consumers do not
see what only the leader has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mirror_core.model.names import ClusterName
from mirror_core.model.shell_command import option, shell_command


@dataclass(frozen=True, slots=True, kw_only=True)
class InSync:
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    asked: int

    @property
    def needed(self) -> int:
        """Brokers never ask for more than there are replicas."""
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
    topic: str
    least: InSync


def lowering(bootstrap: str, topic: str, to: int) -> str:
    topics = ["--alter", "--entity-type", "topics", *option("--entity-name", topic)]
    change = [*topics, "--add-config", f"min.insync.replicas={max(1, to)}"]
    where = option("--bootstrap-server", bootstrap)
    return shell_command("kafka-configs.sh", *where, "--command-config", "ADMIN.properties", *change)


def not_written(cluster: ClusterName, bootstrap: str, short: Iterable[Short]) -> str:
    """Why a cluster accepts none of our transactions, and what to do; empty: not for lack of replicas."""
    found = list(short)
    if not found:
        return ""
    told = "; ".join(f"{one.topic}: {one.least}" for one in found)
    lines = "; ".join(f"`{lowering(bootstrap, one.topic, len(one.least.in_sync))}`" for one in found)
    return (
        f"Too few brokers of {cluster} have it ({told}). Start one of these brokers. If none will come back, an "
        f"administrator lowers what Kafka asks for, and a record may then be lost with a single broker: {lines}"
    )
