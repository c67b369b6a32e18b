"""Retriable error codes."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

RETRIABLE_CODES: Final = frozenset(
    {
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_controller,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.replica_not_available,
        ErrorCode.offset_not_available,  # new leader's high watermark lags (KIP-207)
        ErrorCode.kafka_storage_error,
    }
)
"""Refresh metadata and retry."""

STALE_METADATA_CODES: Final = frozenset(
    {ErrorCode.leader_not_available, ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch}
)
"""The broker that named this leader has stale metadata."""
