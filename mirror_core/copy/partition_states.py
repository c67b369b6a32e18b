"""A partition's states in a copying task, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class CopyState(StrEnum):
    LOST = "LOST"
    """Position unknown: read from the destination once nothing is in flight."""
    READY = "READY"
    ENDING = "ENDING"
    """The source has a batch that may not be copied; everything before it is still being copied."""
    DONE = "DONE"
    FAILED = "FAILED"


SENDING_STATES: Final = frozenset({CopyState.READY, CopyState.ENDING})
ENDED_STATES: Final = frozenset({CopyState.DONE, CopyState.FAILED})


class CopyEvent(StrEnum):
    ALIGNED = "aligned"
    """Both logs agree up to the destination's log end."""
    LOST = "lost"
    BAD = "bad"
    ACKNOWLEDGED = "all acknowledged"
    REACHED = "end reached"
    FAIL = "fail"
    SHIFTED = "shifted"
    """A batch was appended at a wrong offset: this outweighs every other failure."""


class IllegalCopyTransition(RuntimeError):
    """This event cannot happen in this state."""


COPY_TRANSITIONS: Final[Mapping[tuple[CopyState, CopyEvent], CopyState]] = MappingProxyType(
    {
        (CopyState.LOST, CopyEvent.ALIGNED): CopyState.READY,
        (CopyState.LOST, CopyEvent.LOST): CopyState.LOST,
        (CopyState.LOST, CopyEvent.FAIL): CopyState.FAILED,
        (CopyState.LOST, CopyEvent.SHIFTED): CopyState.FAILED,
        (CopyState.READY, CopyEvent.LOST): CopyState.LOST,
        (CopyState.READY, CopyEvent.BAD): CopyState.ENDING,
        (CopyState.READY, CopyEvent.REACHED): CopyState.DONE,
        (CopyState.READY, CopyEvent.FAIL): CopyState.FAILED,
        (CopyState.READY, CopyEvent.SHIFTED): CopyState.FAILED,
        (CopyState.ENDING, CopyEvent.LOST): CopyState.LOST,
        (CopyState.ENDING, CopyEvent.ACKNOWLEDGED): CopyState.FAILED,
        (CopyState.ENDING, CopyEvent.REACHED): CopyState.DONE,
        (CopyState.ENDING, CopyEvent.FAIL): CopyState.FAILED,
        (CopyState.ENDING, CopyEvent.SHIFTED): CopyState.FAILED,
        (CopyState.FAILED, CopyEvent.SHIFTED): CopyState.FAILED,
    }
)


def next_state(state: CopyState, event: CopyEvent) -> CopyState:
    try:
        return COPY_TRANSITIONS[state, event]
    except KeyError:
        raise IllegalCopyTransition(f"`{event}` in state {state}") from None


def format_transitions() -> Iterator[str]:
    yield "| state | event | next state |"
    yield "|---|---|---|"
    for (state, event), target in COPY_TRANSITIONS.items():
        yield f"| {state} | {event} | {target} |"
