"""FAILED partitions that the data plane tries again by itself: what was refused may be allowed by now.

Both logs are looked at again, as after a `mirror recover`. Where the failure says that they differ, or that something
else stands in a topic's place, people decide.
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
    """When a partition that fails now is tried again; None: people see to it."""
    return now_ms + int(AGAIN_S * 1000) if kind in PASSING else None


def tried_again(
    known: Mapping[Partition, PartitionStatus], copied: frozenset[PartitionState], now_ms: int, *, held: bool
) -> dict[Partition, PartitionStatus | None]:
    """Those whose time has come, as they begin again; None: as if never seen, since nothing was copied.

    None while a run holds the mirror (`held`): it goes by which partitions were FAILED when it was planned.
    Of a topic of which nothing is `copied` only one, as a trial: a right that is still missing is missing for all.
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
    """Why it is FAILED, and when it is tried again."""
    if status.state is not PartitionState.FAILED or status.again_ms is None:
        return status.reason
    return f"{status.reason}. The data plane tries again: {when(status.again_ms)}"


def _due(status: PartitionStatus, now_ms: int) -> bool:
    """Without a time: an older version recorded it."""
    passing = status.state is PartitionState.FAILED and status.kind in PASSING
    return passing and (status.again_ms is None or status.again_ms <= now_ms)


def anew(status: PartitionStatus) -> PartitionStatus | None:
    """A FAILED one as it begins again; None: as if never seen. The ids stay, so that another topic of the same name is
    noticed; where nothing was copied there are none yet."""
    if not status.destination_topic_id:
        return None
    state = after(status.state, Event.RECOVER)
    return replace(status, state=state, reason=None, failed_at=None, kind=None, again_ms=None)
