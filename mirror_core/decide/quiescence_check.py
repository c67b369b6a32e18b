"""Whether an unplanned failover's destination is quiescent; partitions below min ISR.

Below it, Kafka 4.0 and newer do not advance their high watermark (KIP-966): no write with acks=all succeeds, and
consumers do not see what only the leader has. A log that moves is being written. One that only lacks in-sync replicas
may be promoted up to its high watermark, if a person confirms it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.text import format_option, format_shell_command


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
            f"{len(self.in_sync)} of {len(self.replicas)} replicas in sync, and"
            f" min.insync.replicas={self.min_insync_replicas}; not in sync: broker"
            f" {', '.join(map(str, self.out_of_sync))}"
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


_MAX_COMMANDS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEndSample:
    """One partition's log end, read twice. None: its leader does not tell."""

    first_end: Offset | None
    end: Offset | None
    high_watermark: Offset | None
    """A new leader does not know it while too few replicas are in sync (KIP-207)."""
    last_stable_offset: Offset | None

    @property
    def is_quiescent(self) -> bool:
        return self.first_end == self.end == self.high_watermark == self.last_stable_offset

    @property
    def is_unreplicated(self) -> bool:
        """It stands still and lacks only replicas: no transaction is open."""
        return (
            self.end is not None
            and self.first_end == self.end
            and self.last_stable_offset == self.high_watermark
            and (self.high_watermark is None or self.high_watermark < self.end)
        )

    def is_same_as(self, later: LogEndSample) -> bool:
        return (self.end, self.high_watermark, self.last_stable_offset) == (
            later.end,
            later.high_watermark,
            later.last_stable_offset,
        ) and later.first_end == later.end

    def __str__(self) -> str:
        return (
            f"log end {_format_offset(self.first_end)}, then {_format_offset(self.end)}; high watermark"
            f" {_format_offset(self.high_watermark)}, last stable {_format_offset(self.last_stable_offset)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreplicatedPartition:
    end: Offset
    high_watermark: Offset | None
    isr: IsrStatus

    def __str__(self) -> str:
        return f"log end {self.end}, high watermark {_format_offset(self.high_watermark)}; {self.isr}"


def find_unquiescent(samples: Mapping[Partition, LogEndSample]) -> dict[Partition, LogEndSample]:
    return {p: sample for p, sample in sorted(samples.items()) if not sample.is_quiescent}


def is_fully_replicated(sample: LogEndSample, isr: IsrStatus, replica_ends: Mapping[int, Offset]) -> bool:
    """Enough replicas are in sync and each reports the whole log (`replica_ends`).

    A leader updates its high watermark on appends and ISR changes, not when min.insync.replicas is lowered.
    """
    return (
        sample.is_unreplicated
        and not isr.is_under_min_isr
        and all(replica_ends.get(broker) == sample.end for broker in isr.in_sync)
    )


def find_unreplicated(
    samples: Mapping[Partition, LogEndSample], isr_by_partition: Mapping[Partition, IsrStatus]
) -> dict[Partition, UnreplicatedPartition]:
    return {
        p: UnreplicatedPartition(end=sample.end, high_watermark=sample.high_watermark, isr=isr_by_partition[p])
        for p, sample in samples.items()
        if sample.is_unreplicated
        and sample.end is not None
        and p in isr_by_partition
        and isr_by_partition[p].is_under_min_isr
    }


class ConfirmedEnd(NamedTuple):
    end: Offset
    high_watermark: Offset | None

    def is_still_valid(self, current: UnreplicatedPartition) -> bool:
        return self.end == current.end and (
            self.high_watermark is None
            or (current.high_watermark is not None and self.high_watermark <= current.high_watermark)
        )


def has_confirmed_all(
    unreplicated: Mapping[Partition, UnreplicatedPartition], confirmed: Mapping[Partition, ConfirmedEnd]
) -> bool:
    return all(p in confirmed and confirmed[p].is_still_valid(current) for p, current in unreplicated.items())


def format_unreplicated_remedies(
    cluster: ClusterName, bootstrap: str, mirror: MirrorName, unreplicated: Mapping[Partition, UnreplicatedPartition]
) -> Iterator[str]:
    fewest = dict[str, int]()
    for partition, details in unreplicated.items():
        fewest[partition.topic] = min(fewest.get(partition.topic, len(details.isr.in_sync)), len(details.isr.in_sync))
    missing_brokers = sorted({broker for details in unreplicated.values() for broker in details.isr.out_of_sync})
    resume_command = f"`mirrorbook failover resume {mirror}`"
    yield f"start a broker of {cluster} that has them ({', '.join(map(str, missing_brokers))}), then {resume_command}"
    commands = "; ".join(
        f"`{format_min_isr_command(bootstrap, topic, least)}`" for topic, least in list(fewest.items())[:_MAX_COMMANDS]
    )
    more = f"; and so for {len(fewest) - _MAX_COMMANDS} more topics" if len(fewest) > _MAX_COMMANDS else ""
    yield (
        f"or have {cluster} do with the replicas that there are, so that a record may be lost with a single broker, "
        f"then {resume_command}: {commands}{more}"
    )
    yield (
        f"or `mirrorbook failover resume {mirror} --leave-behind`: each is promoted up to its high watermark only. "
        "What its leader has beyond that may be lost with that broker, and counts as not copied"
    )


def _format_offset(offset: Offset | None) -> str:
    return "unknown" if offset is None else str(offset)
