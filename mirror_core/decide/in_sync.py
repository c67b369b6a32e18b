"""Partitions below `min.insync.replicas`, and the remedy.

Kafka 4.0 and newer do not advance their high watermark (KIP-966): no write with acks=all succeeds, and consumers do not
see what only the leader has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mirror_core.model.names import ClusterName
from mirror_core.model.shell_command import format_option, format_shell_command


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrStatus:
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    min_insync_replicas: int

    @property
    def required(self) -> int:
        """Brokers never ask for more than there are replicas."""
        return min(self.min_insync_replicas, len(self.replicas))

    @property
    def is_under_min_isr(self) -> bool:
        return len(self.in_sync) < self.required

    @property
    def out_of_sync(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.replicas) - set(self.in_sync)))

    def __str__(self) -> str:
        return (
            f"{len(self.in_sync)} of {len(self.replicas)} replicas in sync, and min.insync.replicas={self.min_insync_replicas}; not "
            f"in sync: broker {', '.join(map(str, self.out_of_sync))}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MinIsrTopic:
    topic: str
    worst: IsrStatus


def format_min_isr_command(bootstrap: str, topic: str, min_isr: int) -> str:
    topic_options = ["--alter", "--entity-type", "topics", *format_option("--entity-name", topic)]
    change = [*topic_options, "--add-config", f"min.insync.replicas={max(1, min_isr)}"]
    bootstrap_options = format_option("--bootstrap-server", bootstrap)
    return format_shell_command("kafka-configs.sh", *bootstrap_options, "--command-config", "ADMIN.properties", *change)


def explain_under_min_isr(cluster: ClusterName, bootstrap: str, topics: Iterable[MinIsrTopic]) -> str:
    """Why a cluster accepts none of our transactions, and what to do; empty: not for lack of replicas."""
    affected = list(topics)
    if not affected:
        return ""
    details = "; ".join(f"{affected_topic.topic}: {affected_topic.worst}" for affected_topic in affected)
    commands = "; ".join(
        f"`{format_min_isr_command(bootstrap, affected_topic.topic, len(affected_topic.worst.in_sync))}`"
        for affected_topic in affected
    )
    return (
        f"Too few brokers of {cluster} have it ({details}). Start one of these brokers. If none will come back, an "
        f"administrator lowers what Kafka asks for, and a record may then be lost with a single broker: {commands}"
    )
