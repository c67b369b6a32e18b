"""States of a partition in a copying task, as one table. Anything else is a bug; the docs print it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class State(StrEnum):
    LOST = "LOST"
    """Position unknown: read from the destination once nothing is in flight."""
    READY = "READY"
    ENDING = "ENDING"
    """The source has a batch that may not be copied; everything before it is still being copied."""
    DONE = "DONE"
    FAILED = "FAILED"


WORKING: Final = frozenset({State.READY, State.ENDING})
ENDED: Final = frozenset({State.DONE, State.FAILED})


class Event(StrEnum):
    ALIGNED = "aligned"
    """Both logs agree up to the destination's log end."""
    LOST = "lost"
    BAD = "bad"
    ACKNOWLEDGED = "all acknowledged"
    REACHED = "end reached"
    FAIL = "fail"
    SHIFTED = "shifted"
    """A batch was appended at a wrong offset: this outweighs every other failure."""


class IllegalTransition(RuntimeError):
    """A bug: this event cannot happen in this state."""


TABLE: Final[Mapping[tuple[State, Event], State]] = MappingProxyType(
    {
        (State.LOST, Event.ALIGNED): State.READY,
        (State.LOST, Event.LOST): State.LOST,
        (State.LOST, Event.FAIL): State.FAILED,
        (State.LOST, Event.SHIFTED): State.FAILED,
        (State.READY, Event.LOST): State.LOST,
        (State.READY, Event.BAD): State.ENDING,
        (State.READY, Event.REACHED): State.DONE,
        (State.READY, Event.FAIL): State.FAILED,
        (State.READY, Event.SHIFTED): State.FAILED,
        (State.ENDING, Event.LOST): State.LOST,
        (State.ENDING, Event.ACKNOWLEDGED): State.FAILED,
        (State.ENDING, Event.REACHED): State.DONE,
        (State.ENDING, Event.FAIL): State.FAILED,
        (State.ENDING, Event.SHIFTED): State.FAILED,
        (State.FAILED, Event.SHIFTED): State.FAILED,
    }
)


def after(state: State, event: Event) -> State:
    try:
        return TABLE[state, event]
    except KeyError:
        raise IllegalTransition(f"`{event}` in state {state}") from None


def as_markdown() -> Iterator[str]:
    yield "| state | event | next state |"
    yield "|---|---|---|"
    for (state, event), target in TABLE.items():
        yield f"| {state} | {event} | {target} |"
