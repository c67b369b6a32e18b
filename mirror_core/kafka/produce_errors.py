"""Outcomes of Produce and WriteTxnMarkers error codes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from mirror_core.kafka.error_mapping import ErrorCode as E


class ProduceOutcome(Enum):
    APPENDED = "appended"
    RECHECK_LOG_END = "look again"
    """Unknown, or not now: continue at the log end once nothing is in flight."""
    DENIED = "denied"
    """No WRITE, or for markers no CLUSTER_ACTION."""
    MISSING_KEY = "unkeyed"
    """By a compacted topic. Nothing was appended."""
    FAILED = "failed"


_TOO_FEW_REPLICAS: Final = (
    "fewer replicas are in sync than min.insync.replicas of the mirror topic asks for: bring brokers back"
)
_SLOW_REPLICAS: Final = "replicas that count as in sync did not take it in time: look at the partition's brokers"

PRODUCE_OUTCOMES: Final[Mapping[E, tuple[ProduceOutcome, str]]] = MappingProxyType(
    {
        E.none: (ProduceOutcome.APPENDED, ""),
        # Appended, but not on all in-sync replicas: not acknowledged; the log end tells later.
        E.request_timed_out: (ProduceOutcome.RECHECK_LOG_END, _SLOW_REPLICAS),
        E.not_enough_replicas_after_append: (ProduceOutcome.RECHECK_LOG_END, _TOO_FEW_REPLICAS),
        E.not_enough_replicas: (ProduceOutcome.RECHECK_LOG_END, _TOO_FEW_REPLICAS),
        # The sequence is taken by our earlier request, or by a twin copier.
        E.out_of_order_sequence_number: (ProduceOutcome.RECHECK_LOG_END, ""),
        E.duplicate_sequence_number: (ProduceOutcome.RECHECK_LOG_END, ""),
        E.not_leader_or_follower: (ProduceOutcome.RECHECK_LOG_END, ""),
        E.leader_not_available: (ProduceOutcome.RECHECK_LOG_END, ""),
        E.unknown_topic_or_partition: (ProduceOutcome.RECHECK_LOG_END, ""),
        E.kafka_storage_error: (ProduceOutcome.RECHECK_LOG_END, ""),
        E.network_exception: (ProduceOutcome.RECHECK_LOG_END, ""),
        # Another filler wrote markers of a higher epoch.
        E.transaction_coordinator_fenced: (ProduceOutcome.RECHECK_LOG_END, ""),
        E.topic_authorization_failed: (ProduceOutcome.DENIED, ""),
        E.cluster_authorization_failed: (ProduceOutcome.DENIED, ""),
        E.message_too_large: (ProduceOutcome.FAILED, "raise max.message.bytes of the mirror topic above the source's"),
        E.record_list_too_large: (
            ProduceOutcome.FAILED,
            "raise segment.bytes of the mirror topic above the batch's size",
        ),
        E.corrupt_message: (
            ProduceOutcome.FAILED,
            "the broker found the batch corrupt although its CRC was verified here",
        ),
        E.invalid_producer_epoch: (
            ProduceOutcome.FAILED,
            "a newer owner of this mirror's producer id has fenced this one",
        ),
        E.invalid_record: (
            ProduceOutcome.MISSING_KEY,
            "a record without a key there, and the mirror topic is compacted (the source's was not always, or is not "
            "any more)? Set cleanup.policy=delete on the mirror topic, then recover the partition",
        ),
        E.invalid_timestamp: (
            ProduceOutcome.FAILED,
            "set message.timestamp.before.max.ms and after.max.ms to their maximum",
        ),
        E.unknown_server_error: (
            ProduceOutcome.FAILED,
            "the log of the partition's broker says why. A setting of the mirror topic may be the reason",
        ),
        E.unsupported_compression_type: (ProduceOutcome.FAILED, "the destination does not support the batch's codec"),
    }
)


def classify_produce_error(code: int) -> tuple[ProduceOutcome, str, str]:
    """With remedy and Kafka's name. Unknown codes stop the partition."""
    try:
        error = E(code)
    except ValueError:
        return ProduceOutcome.FAILED, "", f"error {code}"
    outcome = PRODUCE_OUTCOMES.get(error, (ProduceOutcome.FAILED, ""))
    return outcome[0], outcome[1], error.name.upper()
