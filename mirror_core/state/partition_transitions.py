"""States of a mirror partition as one table; missing pairs are illegal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mirror_core.model.errors import MirrorError
from mirror_core.model.mirror import PartitionState as S


class PartitionEvent(StrEnum):
    START = "start"
    ALIGNED = "aligned"
    """Both logs agree up to the position."""
    PAUSE = "pause"
    NO_WRITERS = "quiet"
    """No task writes the partition any more."""
    RESUME = "resume"
    STOP = "stop"
    """A failover or the stop command ends mirroring."""
    LMO_RECORDED = "lmo recorded"
    ABORT = "abort"
    """Given up before promotion: no other writer, so mirroring resumes."""
    FAIL = "fail"
    RECOVER = "recover"


class IllegalPartitionTransition(MirrorError):
    """Nothing changed."""

    exit_code = 3


PARTITION_TRANSITIONS: Final[Mapping[tuple[S, PartitionEvent], S]] = MappingProxyType(
    {
        (S.UNKNOWN, PartitionEvent.START): S.LOG_ALIGNMENT,
        (S.LOG_ALIGNMENT, PartitionEvent.ALIGNED): S.MIRRORING,
        (S.LOG_ALIGNMENT, PartitionEvent.STOP): S.STOPPING,
        (S.LOG_ALIGNMENT, PartitionEvent.FAIL): S.FAILED,
        (S.MIRRORING, PartitionEvent.PAUSE): S.PAUSING,
        (S.MIRRORING, PartitionEvent.STOP): S.STOPPING,
        (S.MIRRORING, PartitionEvent.FAIL): S.FAILED,
        (S.PAUSING, PartitionEvent.NO_WRITERS): S.PAUSED,
        (S.PAUSING, PartitionEvent.RESUME): S.MIRRORING,
        (S.PAUSING, PartitionEvent.STOP): S.STOPPING,
        (S.PAUSING, PartitionEvent.FAIL): S.FAILED,
        (S.PAUSED, PartitionEvent.RESUME): S.MIRRORING,
        (S.PAUSED, PartitionEvent.STOP): S.STOPPING,
        (S.PAUSED, PartitionEvent.FAIL): S.FAILED,
        # KIP-1279 stops only healthy mirrors; one FAILED partition must not forbid a failover.
        (S.FAILED, PartitionEvent.STOP): S.STOPPING,
        (S.FAILED, PartitionEvent.RECOVER): S.LOG_ALIGNMENT,
        (S.FAILED, PartitionEvent.START): S.LOG_ALIGNMENT,
        (S.STOPPING, PartitionEvent.LMO_RECORDED): S.STOPPED,
        (S.STOPPING, PartitionEvent.ABORT): S.LOG_ALIGNMENT,
        (S.STOPPING, PartitionEvent.FAIL): S.FAILED,
        (S.STOPPED, PartitionEvent.ABORT): S.LOG_ALIGNMENT,
        (S.STOPPED, PartitionEvent.START): S.LOG_ALIGNMENT,
    }
)


def apply_events(state: S, *events: PartitionEvent) -> S:
    """Names the first illegal event."""
    for event in events:
        try:
            state = PARTITION_TRANSITIONS[state, event]
        except KeyError:
            possible = ", ".join(candidate for from_state, candidate in PARTITION_TRANSITIONS if from_state is state)
            raise IllegalPartitionTransition(
                f"`{event}` is not possible for a partition in state {state}; possible are: {possible or 'none'}"
            ) from None
    return state


def format_markdown() -> Iterator[str]:
    yield "| state | event | next state |"
    yield "|---|---|---|"
    for (state, event), target in PARTITION_TRANSITIONS.items():
        yield f"| {state} | {event} | {target} |"
