"""Messages for operators: always the cluster, the partition, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mirror_core.decide.gaps_and_resume import LONG_TURN_OPEN_MS, MAX_GAP_OFFSETS
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.acl import Acl, Operation, Resource
from mirror_core.model.names import ClusterName, Partition
from mirror_core.model.text import format_count
from mirror_core.rights.acl_rules import format_acl_command
from mirror_core.rights.required_acls import CLUSTER_NAME

DENIAL_TEXT: Final = (
    "No grant helps beside a denial, as a fence of another mirror sets it: `kafka-acls.sh --list` shows those"
)


@dataclass(frozen=True, slots=True)
class ClusterSide:
    name: ClusterName
    user: str

    @classmethod
    def from_client(cls, client: ClusterClient) -> ClusterSide:
        return cls(client.name, client.config.user(client.principal) or "<its principal>")


def _format_grant(side: ClusterSide, operation: Operation, resource: Resource, name: str) -> str:
    return format_acl_command(Acl(resource=resource, name=name, principal=f"User:{side.user}", operation=operation))


def format_denied(side: ClusterSide, partition: Partition, operation: Operation) -> str:
    return (
        f"cluster {side.name}, {partition}: the data principal may not {operation}; grant it: "
        f"`{_format_grant(side, operation, Resource.TOPIC, partition.topic)}`. {DENIAL_TEXT}"
    )


def format_markers_denied(side: ClusterSide, partition: Partition) -> str:
    return (
        f"cluster {side.name}, {partition}: its log has gaps (transactions, compaction), and the data principal may "
        "not write the markers that fill them; grant it: "
        f"`{_format_grant(side, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)}`. {DENIAL_TEXT}"
    )


def format_retriable(cluster: str, partition: Partition, offset: int, error: str, remedy: str = "") -> str:
    return f"cluster {cluster}, {partition}, offset {offset}: {error}" + (f": {remedy}" if remedy else "")


def format_foreign(cluster: str, partition: Partition, offset: int) -> str:
    return (
        f"cluster {cluster}, {partition}: offset {offset} was not written by this mirror; from there on offsets "
        "would be shifted. Find who may WRITE to the topic (mirrorbook cluster check)"
    )


def format_shifted(cluster: str, partition: Partition, offset: int, appended_at: int) -> str:
    return (
        f"cluster {cluster}, {partition}: the batch for offset {offset} landed at {appended_at}; from there on offsets"
        " are shifted. Its leader had forgotten this mirror's producer (producer.id.expiration.ms), or somebody else"
        " wrote there. Delete the mirror topic and let it be copied anew"
    )


def format_overfilled(cluster: str, partition: Partition, expected: int, log_end: int) -> str:
    return (
        f"cluster {cluster}, {partition}: the log ends at {log_end}, and should end at {expected}: a gap was filled by "
        "more markers than it has offsets (two copiers of this mirror at the same moment?); from there on offsets "
        "would be shifted. Delete the mirror topic and let it be copied anew"
    )


def format_retimed(cluster: str, partition: Partition, offset: int) -> str:
    return (
        f"cluster {cluster}, {partition}: from offset {offset} on records have the broker's time instead of their own: "
        "message.timestamp.type is LogAppendTime there. Set it to CreateTime, delete the mirror topic and let it be "
        "copied anew"
    )


def format_too_far(cluster: str, partition: Partition, offset: int, round_trip_s: float) -> str:
    return (
        f"cluster {cluster}, {partition}, offset {offset}: the gap there was another copier's, and whether that one is "
        f"gone cannot be told from so far away: an answer takes {round_trip_s * 1000:.0f} ms, and must not take "
        f"{LONG_TURN_OPEN_MS}. Run the data plane nearer to the destination"
    )


def format_comparing(cluster: str, source: str, partition: Partition, offset: int, elapsed_s: float) -> str:
    return (
        f"cluster {cluster}, {partition}, offset {offset}: what was copied before it is being compared with cluster "
        f"{source}, for {elapsed_s:.0f} s now"
    )


def format_comparison_queued(cluster: str, partition: Partition, active_count: int) -> str:
    return (
        f"cluster {cluster}, {partition}: its log is to be compared, and waits for its turn:"
        f" {format_count(active_count, 'other comparison')} under way"
    )


def format_late_start(task: int, late_s: float, epoch_s: float) -> str:
    return (
        f"task {task} began {late_s:.0f} s late in an epoch of {epoch_s:.0f} s, and copied nothing: until then all "
        "threads or task slots were taken, or an attempt before this one was killed"
    )


def format_unrecorded_trim(cluster: str, partition: Partition, source_start: int) -> str:
    return (
        f"cluster {cluster}, {partition}: offsets below {source_start} were deleted there before they were copied; "
        "copying goes on once that is recorded"
    )


def format_too_wide(cluster: str, partition: Partition, offset: int, gap_end: int) -> str:
    return (
        f"cluster {cluster}, {partition}, offset {offset}: the source deleted {gap_end - offset:,} offsets before they "
        f"were copied, and markers can fill {MAX_GAP_OFFSETS:,} at once. The copy stays as it is, with what "
        "`hold_deletions` keeps: read there what you need, then recopy the partition, which deletes it"
    )


def format_markers_exhausted(cluster: str, partition: Partition, offset: int) -> str:
    return (
        f"cluster {cluster}, {partition}, offset {offset}: the gap there cannot be filled any more: this mirror "
        "has used up the numbers that protect its markers (2**28 filled offsets of a partition, or 7 interrupted "
        "attempts at one gap); delete the mirror topic and let it be copied anew"
    )
