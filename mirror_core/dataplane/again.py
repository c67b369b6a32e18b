"""Retries FAILED partitions whose cause may pass by itself, such as a missing right.

Both logs are checked again, as after `mirror recover`. Where the logs differ, or another topic took the place,
operators decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from mirror_core.decide.standing import format_time
from mirror_core.model.mirror import FailureKind, PartitionState, PartitionStatus
from mirror_core.model.names import Partition
from mirror_core.state.table import PartitionEvent, apply_events

RETRY_INTERVAL_S: Final = 300.0
RETRIED_KINDS: Final = frozenset({FailureKind.DENIED, FailureKind.REFUSED})


def compute_retry_ms(kind: FailureKind, at_ms: int) -> int | None:
    """When a partition that fails now is retried; None: operators see to it."""
    return at_ms + int(RETRY_INTERVAL_S * 1000) if kind in RETRIED_KINDS else None


def select_retries(
    statuses: Mapping[Partition, PartitionStatus],
    copied_states: frozenset[PartitionState],
    at_ms: int,
    *,
    is_held: bool,
) -> dict[Partition, PartitionStatus | None]:
    """FAILED partitions that are due, as they restart; None: as if never seen, since nothing was copied.

    Empty while a run holds the mirror (`held`): its plan relies on which partitions were FAILED. Of a topic of which
    nothing is `copied` only one partition is tried: a missing right is missing for all.
    """
    if is_held:
        return {}
    open_topics = {p.topic for p, status in statuses.items() if status.state in copied_states}
    chosen, trial_topics = dict[Partition, PartitionStatus | None](), set[str]()
    for partition in sorted(p for p, status in statuses.items() if _is_retry_due(status, at_ms)):
        if partition.topic in open_topics or partition.topic not in trial_topics:
            chosen[partition] = reset_failed(statuses[partition])
            trial_topics.add(partition.topic)
    return chosen


def format_failure_reason(status: PartitionStatus) -> str | None:
    if status.state is not PartitionState.FAILED or status.retry_at_ms is None:
        return status.reason
    return f"{status.reason}. The data plane tries again: {format_time(status.retry_at_ms)}"


def _is_retry_due(status: PartitionStatus, at_ms: int) -> bool:
    """Without a time: due now."""
    is_retried = status.state is PartitionState.FAILED and status.kind in RETRIED_KINDS
    return is_retried and (status.retry_at_ms is None or status.retry_at_ms <= at_ms)


def reset_failed(status: PartitionStatus) -> PartitionStatus | None:
    """A FAILED status as it restarts; None: as if never seen. Topic ids stay, so that a replaced topic is
    noticed."""
    if not status.destination_topic_id:
        return None
    state = apply_events(status.state, PartitionEvent.RECOVER)
    return replace(status, state=state, reason=None, failed_at=None, kind=None, retry_at_ms=None)
