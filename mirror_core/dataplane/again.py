"""Retries FAILED partitions whose cause may pass by itself, such as a missing right.

Both logs are checked again, as after `mirror recover`. Where the logs differ, or another topic took the place,
operators decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from mirror_core.decide.standing import when
from mirror_core.model.mirror import FailureKind, PartitionState, PartitionStatus
from mirror_core.model.names import Partition
from mirror_core.state.table import Event, after

AGAIN_S: Final = 300.0
PASSING: Final = frozenset({FailureKind.DENIED, FailureKind.REFUSED})


def again_ms(kind: FailureKind, now_ms: int) -> int | None:
    """When a partition that fails now is retried; None: operators see to it."""
    return now_ms + int(AGAIN_S * 1000) if kind in PASSING else None


def tried_again(
    known: Mapping[Partition, PartitionStatus], copied: frozenset[PartitionState], now_ms: int, *, held: bool
) -> dict[Partition, PartitionStatus | None]:
    """FAILED partitions that are due, as they restart; None: as if never seen, since nothing was copied.

    Empty while a run holds the mirror (`held`): its plan relies on which partitions were FAILED. Of a topic of which
    nothing is `copied` only one partition is tried: a missing right is missing for all.
    """
    if held:
        return {}
    open_topics = {p.topic for p, status in known.items() if status.state in copied}
    chosen, on_trial = dict[Partition, PartitionStatus | None](), set[str]()
    for partition in sorted(p for p, status in known.items() if _due(status, now_ms)):
        if partition.topic in open_topics or partition.topic not in on_trial:
            chosen[partition] = anew(known[partition])
            on_trial.add(partition.topic)
    return chosen


def told(status: PartitionStatus) -> str | None:
    if status.state is not PartitionState.FAILED or status.again_ms is None:
        return status.reason
    return f"{status.reason}. The data plane tries again: {when(status.again_ms)}"


def _due(status: PartitionStatus, now_ms: int) -> bool:
    """Without a time: due now."""
    passing = status.state is PartitionState.FAILED and status.kind in PASSING
    return passing and (status.again_ms is None or status.again_ms <= now_ms)


def anew(status: PartitionStatus) -> PartitionStatus | None:
    """A FAILED status as it restarts; None: as if never seen. Topic ids stay, so that a replaced topic is
    noticed."""
    if not status.destination_topic_id:
        return None
    state = after(status.state, Event.RECOVER)
    return replace(status, state=state, reason=None, failed_at=None, kind=None, again_ms=None)
