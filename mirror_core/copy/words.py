"""Messages for operators: always the cluster, the partition, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from mirror_core.decide.gaps import LONG_OPEN_MS
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.acl import Acl, Operation, Resource
from mirror_core.model.names import ClusterName, Partition
from mirror_core.rights.acl_command import acl_command
from mirror_core.rights.needed import CLUSTER_NAME


@dataclass(frozen=True, slots=True)
class Side:
    name: ClusterName
    user: str
    """Whose ACLs count there."""

    @classmethod
    def of(cls, client: ClusterClient) -> Side:
        return cls(client.name, client.config.user(client.principal) or "<its principal>")


def _grant(side: Side, operation: Operation, resource: Resource, name: str) -> str:
    return acl_command(Acl(resource=resource, name=name, principal=f"User:{side.user}", operation=operation))


def denied(side: Side, partition: Partition, operation: Operation) -> str:
    return (
        f"cluster {side.name}, {partition}: the data principal may not {operation}; grant it: "
        f"`{_grant(side, operation, Resource.TOPIC, partition.topic)}`"
    )


def may_not_mark(side: Side, partition: Partition) -> str:
    return (
        f"cluster {side.name}, {partition}: its log has gaps (transactions, compaction), and the data principal may "
        "not write the markers that fill them; grant it: "
        f"`{_grant(side, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)}`"
    )


def not_now(cluster: str, partition: Partition, offset: int, error: str, remedy: str = "") -> str:
    return f"cluster {cluster}, {partition}, offset {offset}: {error}" + (f": {remedy}" if remedy else "")


def foreign(cluster: str, partition: Partition, offset: int) -> str:
    return (
        f"cluster {cluster}, {partition}: offset {offset} was not written by this mirror; from there on offsets "
        "would be shifted. Find who may WRITE to the topic (mirrorbook cluster check)"
    )


def shifted(cluster: str, partition: Partition, offset: int, landed: int) -> str:
    return (
        f"cluster {cluster}, {partition}: the batch for offset {offset} landed at {landed}; from there on offsets are "
        "shifted. Its leader had forgotten this mirror's producer (producer.id.expiration.ms), or somebody else wrote "
        "there. Delete the mirror topic and let it be copied anew"
    )


def overfilled(cluster: str, partition: Partition, expected: int, log_end: int) -> str:
    return (
        f"cluster {cluster}, {partition}: the log ends at {log_end}, and should end at {expected}: a gap was filled by "
        "more markers than it has offsets (two copiers of this mirror at the same moment?); from there on offsets "
        "would be shifted. Delete the mirror topic and let it be copied anew"
    )


def retimed(cluster: str, partition: Partition, offset: int) -> str:
    return (
        f"cluster {cluster}, {partition}: from offset {offset} on records have the broker's time instead of their own: "
        "message.timestamp.type is LogAppendTime there. Set it to CreateTime, delete the mirror topic and let it be "
        "copied anew"
    )


def too_far(cluster: str, partition: Partition, offset: int, round_trip_s: float) -> str:
    return (
        f"cluster {cluster}, {partition}, offset {offset}: the gap there was another copier's, and whether that one is "
        f"gone cannot be told from so far away: an answer takes {round_trip_s * 1000:.0f} ms, and must not take "
        f"{LONG_OPEN_MS}. Run the data plane nearer to the destination"
    )


def comparing(cluster: str, source: str, partition: Partition, offset: int, took_s: float) -> str:
    return (
        f"cluster {cluster}, {partition}, offset {offset}: what was copied before it is being compared with cluster "
        f"{source}, for {took_s:.0f} s now"
    )


def waits_for_turn(cluster: str, partition: Partition, others: int) -> str:
    return (
        f"cluster {cluster}, {partition}: its log is to be looked into, and waits for its turn: {others} other look(s) "
        "are under way"
    )


def began_too_late(task: int, late_s: float, epoch_s: float) -> str:
    return (
        f"task {task} began {late_s:.0f} s late in an epoch of {epoch_s:.0f} s, and copied nothing: until then all "
        "threads or task slots were taken, or an attempt before this one was killed"
    )


def unrecorded(cluster: str, partition: Partition, source_start: int) -> str:
    return (
        f"cluster {cluster}, {partition}: offsets below {source_start} were deleted there before they were copied; "
        "copying goes on once that is recorded"
    )


def worn_out(cluster: str, partition: Partition, offset: int) -> str:
    return (
        f"cluster {cluster}, {partition}, offset {offset}: the gap there cannot be filled any more: this mirror "
        "has used up the numbers that protect its markers (2**28 filled offsets of a partition, or 7 interrupted "
        "attempts at one gap); delete the mirror topic and let it be copied anew"
    )
