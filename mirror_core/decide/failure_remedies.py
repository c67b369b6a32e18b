"""What can be done about a FAILED partition.

A retry keeps the recorded topic ids, so it notices a replaced topic. Only a recopy, requested by name, gives up the
copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState, FailureKind, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import PartitionFailure


class RecoveryAction(StrEnum):
    RETRY = "retry"
    RECOPY = "recopy"
    ACCEPT = "accept"


ACTION_EFFECTS: Final[Mapping[RecoveryAction, str]] = MappingProxyType(
    {
        RecoveryAction.RETRY: "looks at both logs again and copies on from the position; nothing is lost",
        RecoveryAction.RECOPY: (
            "deletes the mirror topic on the destination, and the next epoch copies all its partitions anew"
        ),
        RecoveryAction.ACCEPT: "lets go of the copy: it stays, is no longer the mirror's, and no failover promotes it",
    }
)


@dataclass(frozen=True, slots=True)
class FailureRemedy:
    happened: str
    first_step: str
    actions: tuple[RecoveryAction, ...]
    is_copy_bad: bool = False
    """It voids an approval to promote, even for a left-behind partition."""


DIVERGENT_KINDS: Final = frozenset({FailureKind.FOREIGN, FailureKind.DIVERGED})
"""From the failed offset on, the destination holds records that the source lacks; below, both agree."""
DIFFERING_KINDS: Final = DIVERGENT_KINDS | {FailureKind.ALTERED}
"""From the failed offset on, the two sides differ: in their records, or in the times of these."""
REMEDIES: Final[Mapping[FailureKind, FailureRemedy]] = MappingProxyType(
    {
        FailureKind.DENIED: FailureRemedy(
            "a principal lacks a right",
            "grant it, or lift the denial: the reason says how. The data plane tries again every five minutes",
            (RecoveryAction.RETRY,),
        ),
        FailureKind.GONE: FailureRemedy(
            "the topic is not on the source any more",
            "deleted on purpose: accept; its brokers were behind, and it is there: retry",
            (RecoveryAction.RETRY, RecoveryAction.ACCEPT),
        ),
        FailureKind.RECREATED: FailureRemedy(
            "the source has another topic of the same name",
            "be sure that the new topic is meant to be: the copy is all that is left of the old one; recopy with "
            "`--salvage FOLDER` saves it first",
            (RecoveryAction.RECOPY,),
            is_copy_bad=True,
        ),
        FailureKind.REPLACED: FailureRemedy(
            "the mirror topic was deleted on the destination, or another one took its place",
            "find who did it; what the present topic holds goes",
            (RecoveryAction.RECOPY,),
            is_copy_bad=True,
        ),
        FailureKind.OCCUPIED: FailureRemedy(
            "a topic that is not this mirror's stands in the way",
            "its owner deletes or renames it: Mirrorbook never does. If nothing was copied yet, the data plane then "
            "copies it from its next epoch on",
            (RecoveryAction.RETRY,),
            is_copy_bad=True,
        ),
        FailureKind.CIRCLE: FailureRemedy(
            "another mirror would bring the topic back to the cluster that it is read from",
            "leave it out of one of the two (`mirrorbook mirror change`), or stop the other one",
            (RecoveryAction.RETRY,),
            is_copy_bad=True,
        ),
        FailureKind.FOREIGN: FailureRemedy(
            "somebody else wrote into the mirror topic",
            "take their right away, and ask whether they need those records: recopy with `--salvage FOLDER` saves them",
            (RecoveryAction.RECOPY,),
            is_copy_bad=True,
        ),
        FailureKind.DIVERGED: FailureRemedy(
            "the source lost records that had been copied, by an unclean leader election or a restored backup",
            "decide which side is right: from the offset on only the destination holds the lost records; recopy with "
            "`--salvage FOLDER` saves them first. The old leader is back with its records: retry",
            (RecoveryAction.RECOPY, RecoveryAction.RETRY),
        ),
        FailureKind.ALTERED: FailureRemedy(
            "the destination gave records times of its own (message.timestamp.type=LogAppendTime)",
            "see that the mirror topic has message.timestamp.type=CreateTime, which a sync sets; if somebody changed "
            "it, find who",
            (RecoveryAction.RECOPY,),
            is_copy_bad=True,
        ),
        FailureKind.DELETED: FailureRemedy(
            "records were deleted on the destination that the source still has: by a retention of its own, or by hand",
            "find who did it, and who may (DELETE, ALTER_CONFIGS). Once the source has deleted them, too: retry",
            (RecoveryAction.RECOPY, RecoveryAction.RETRY),
            is_copy_bad=True,
        ),
        FailureKind.CORRUPT: FailureRemedy(
            "the source's bytes fail their checksum; they were not copied",
            "repair the source's replica: a disk, or a move of leadership to a replica that is well",
            (RecoveryAction.RETRY,),
        ),
        FailureKind.GAP_LIMIT: FailureRemedy(
            "the gaps of the log cannot be filled any more: 2^28 offsets were filled, seven attempts at one gap broke "
            "off, or two copiers at the same moment filled one too far",
            "look for what keeps ending the copier, or for a second one",
            (RecoveryAction.RECOPY,),
        ),
        FailureKind.REFUSED: FailureRemedy(
            "a broker does not take the topic or a batch, or does not give what it is asked for",
            "change the setting or policy that the reason names. The data plane tries again every five minutes",
            (RecoveryAction.RETRY,),
        ),
        FailureKind.UNKEYED: FailureRemedy(
            "a record without a key, and a mirror topic that is compacted: the source's was not always, or is not any "
            "more",
            "set cleanup.policy=delete on the mirror topic, as the reason says: the data plane could not",
            (RecoveryAction.RETRY,),
        ),
        FailureKind.RECOPYING: FailureRemedy(
            "a recopy was begun and not finished",
            "recopy finishes it. While the mirror topic is still there, retry gives it up",
            (RecoveryAction.RECOPY, RecoveryAction.RETRY),
            is_copy_bad=True,
        ),
        FailureKind.OTHER: FailureRemedy(
            "it has no name",
            "read the reason; a retry finds it again by name",
            (RecoveryAction.RETRY,),
        ),
    }
)
BAD_COPY_KINDS: Final = frozenset(kind for kind, remedy in REMEDIES.items() if remedy.is_copy_bad)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCondition:
    name: str
    source_id: str | None
    is_hidden: bool
    destination_id: str | None
    states: frozenset[PartitionState]
    other_mirror: str | None


def find_current_kind(status: PartitionStatus, topic: TopicCondition) -> FailureKind:
    recorded = status.kind or FailureKind.OTHER
    if topic.is_hidden:
        return FailureKind.DENIED
    if topic.source_id is None:
        return FailureKind.GONE
    if not status.destination_topic_id:
        return recorded  # nothing was ever copied, and what stands on the destination is not ours
    if topic.source_id != status.source_topic_id:
        return FailureKind.RECREATED
    if topic.destination_id != status.destination_topic_id:
        return FailureKind.REPLACED
    return recorded


def explain_blockers(
    action: RecoveryAction, topic: TopicCondition, mirror: Mirror, copier: str | None
) -> Iterator[str]:
    if mirror.desired is DesiredState.STOPPED or PartitionState.STOPPED in topic.states:
        yield f"mirror {mirror.name} is stopped: its topics may be the applications' by now"
    if action is not RecoveryAction.RECOPY:
        return
    if topic.other_mirror:
        yield f"topic {topic.name} on cluster {mirror.destination} is kept by mirror {topic.other_mirror}"
    if copier:
        # Brokers let a producer go on in a topic that was created anew (no producer state, any sequence).
        yield str(Finding("recopy_while_copying", mirror.name, owner=copier))


def format_remedies_markdown() -> Iterator[str]:
    yield "| kind | what happened | first | then `--action` |"
    yield "|---|---|---|---|"
    for kind, remedy in REMEDIES.items():
        yield f"| {kind} | {remedy.happened} | {remedy.first_step} | {' or '.join(remedy.actions)} |"


def make_deletion_failure(
    cluster: str, partition: Partition, source_start: Offset, destination_start: Offset
) -> PartitionFailure:
    reason = (
        f"cluster {cluster}, {partition}: records below {destination_start} were deleted there, and the source still"
        f" has those from {source_start} on: by a retention on the mirror topic (retention.ms, retention.bytes), or by"
        " hand (DeleteRecords)"
    )
    return PartitionFailure(partition=partition, reason=reason, offset=source_start, kind=FailureKind.DELETED)


def make_written_failure(cluster: str, partition: Partition, end: Offset) -> PartitionFailure:
    """`end`: where the log ended before anything was copied to it."""
    reason = (
        f"cluster {cluster}, {partition}: its log ended at offset {end} before this mirror copied anything to"
        " it: somebody else made this partition and wrote to it. Find who may ALTER and WRITE the topic"
        " (mirrorbook cluster check)"
    )
    return PartitionFailure(partition=partition, reason=reason, offset=Offset(0), kind=FailureKind.FOREIGN)
