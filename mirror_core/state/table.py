"""States of a mirror partition as one table; missing pairs are illegal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mirror_core.model.errors import MirrorError
from mirror_core.model.mirror import PartitionState as S


class Event(StrEnum):
    """A command, or what the engine found or finished."""

    START = "start"
    ALIGNED = "aligned"
    """Both logs agree up to the position."""
    PAUSE = "pause"
    QUIET = "quiet"
    """No task writes the partition any more."""
    RESUME = "resume"
    STOP = "stop"
    """A failover or the stop command ends mirroring."""
    LMO_RECORDED = "lmo recorded"
    ABORT = "abort"
    """Given up before promotion: no other writer, so mirroring resumes."""
    FAIL = "fail"
    RECOVER = "recover"


class IllegalTransition(MirrorError):
    """Nothing changed."""

    exit_code = 3


TABLE: Final[Mapping[tuple[S, Event], S]] = MappingProxyType(
    {
        (S.UNKNOWN, Event.START): S.LOG_ALIGNMENT,
        (S.LOG_ALIGNMENT, Event.ALIGNED): S.MIRRORING,
        (S.LOG_ALIGNMENT, Event.STOP): S.STOPPING,
        (S.LOG_ALIGNMENT, Event.FAIL): S.FAILED,
        (S.MIRRORING, Event.PAUSE): S.PAUSING,
        (S.MIRRORING, Event.STOP): S.STOPPING,
        (S.MIRRORING, Event.FAIL): S.FAILED,
        (S.PAUSING, Event.QUIET): S.PAUSED,
        (S.PAUSING, Event.RESUME): S.MIRRORING,
        (S.PAUSING, Event.STOP): S.STOPPING,
        (S.PAUSING, Event.FAIL): S.FAILED,
        (S.PAUSED, Event.RESUME): S.MIRRORING,
        (S.PAUSED, Event.STOP): S.STOPPING,
        (S.PAUSED, Event.FAIL): S.FAILED,
        # KIP-1279 stops only healthy mirrors; one FAILED partition must not forbid a failover.
        (S.FAILED, Event.STOP): S.STOPPING,
        (S.FAILED, Event.RECOVER): S.LOG_ALIGNMENT,
        (S.FAILED, Event.START): S.LOG_ALIGNMENT,
        (S.STOPPING, Event.LMO_RECORDED): S.STOPPED,
        (S.STOPPING, Event.ABORT): S.LOG_ALIGNMENT,
        (S.STOPPING, Event.FAIL): S.FAILED,
        (S.STOPPED, Event.ABORT): S.LOG_ALIGNMENT,
        (S.STOPPED, Event.START): S.LOG_ALIGNMENT,
    }
)


def after(state: S, *events: Event) -> S:
    """Names the first illegal event."""
    for event in events:
        try:
            state = TABLE[state, event]
        except KeyError:
            possible = ", ".join(e for s, e in TABLE if s is state)
            raise IllegalTransition(
                f"`{event}` is not possible for a partition in state {state}; possible are: {possible or 'none'}"
            ) from None
    return state


def as_markdown() -> Iterator[str]:
    yield "| state | event | next state |"
    yield "|---|---|---|"
    for (state, event), target in TABLE.items():
        yield f"| {state} | {event} | {target} |"
