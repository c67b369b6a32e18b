"""Outcomes of Produce and WriteTxnMarkers error codes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from mirror_core.kafka.faults import ErrorCode as E


class Meaning(Enum):
    APPENDED = "appended"
    LOOK_AGAIN = "look again"
    """Unknown, or not now: continue at the log end once nothing is in flight."""
    DENIED = "denied"
    """No WRITE, or for markers no CLUSTER_ACTION."""
    UNKEYED = "unkeyed"
    """By a compacted topic. Nothing was appended."""
    FAILED = "failed"


_FEW: Final = "fewer replicas are in sync than min.insync.replicas of the mirror topic asks for: bring brokers back"
_SLOW: Final = "replicas that count as in sync did not take it in time: look at the partition's brokers"

MEANING: Final[Mapping[E, tuple[Meaning, str]]] = MappingProxyType(
    {
        E.none: (Meaning.APPENDED, ""),
        # Appended, but not on all in-sync replicas: not acknowledged; the log end tells later.
        E.request_timed_out: (Meaning.LOOK_AGAIN, _SLOW),
        E.not_enough_replicas_after_append: (Meaning.LOOK_AGAIN, _FEW),
        E.not_enough_replicas: (Meaning.LOOK_AGAIN, _FEW),
        # The sequence is taken by our earlier request, or by a twin copier.
        E.out_of_order_sequence_number: (Meaning.LOOK_AGAIN, ""),
        E.duplicate_sequence_number: (Meaning.LOOK_AGAIN, ""),
        E.not_leader_or_follower: (Meaning.LOOK_AGAIN, ""),
        E.leader_not_available: (Meaning.LOOK_AGAIN, ""),
        E.unknown_topic_or_partition: (Meaning.LOOK_AGAIN, ""),
        E.kafka_storage_error: (Meaning.LOOK_AGAIN, ""),
        E.network_exception: (Meaning.LOOK_AGAIN, ""),
        # Another filler wrote markers of a higher epoch.
        E.transaction_coordinator_fenced: (Meaning.LOOK_AGAIN, ""),
        E.topic_authorization_failed: (Meaning.DENIED, ""),
        E.cluster_authorization_failed: (Meaning.DENIED, ""),
        E.message_too_large: (Meaning.FAILED, "raise max.message.bytes of the mirror topic above the source's"),
        E.record_list_too_large: (Meaning.FAILED, "raise segment.bytes of the mirror topic above the batch's size"),
        E.corrupt_message: (Meaning.FAILED, "the broker found the batch corrupt although its CRC was verified here"),
        E.invalid_producer_epoch: (Meaning.FAILED, "a newer owner of this mirror's producer id has fenced this one"),
        E.invalid_record: (
            Meaning.UNKEYED,
            "a record without a key there, and the mirror topic is compacted (the source's was not always, or is not "
            "any more)? Set cleanup.policy=delete on the mirror topic, then recover the partition",
        ),
        E.invalid_timestamp: (Meaning.FAILED, "set message.timestamp.before.max.ms and after.max.ms to their maximum"),
        E.unsupported_compression_type: (Meaning.FAILED, "the destination does not support the batch's codec"),
    }
)


def meaning(code: int) -> tuple[Meaning, str, str]:
    """With remedy and Kafka's name. Unknown codes stop the partition."""
    try:
        error = E(code)
    except ValueError:
        return Meaning.FAILED, "", f"error {code}"
    known = MEANING.get(error, (Meaning.FAILED, ""))
    return known[0], known[1], error.name.upper()
