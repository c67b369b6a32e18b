"""States of one partition in a copying task as one table. What is not in it does not happen; docs print it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class State(StrEnum):
    LOST = "LOST"
    """Position not known: to be read from the destination when nothing is in flight any more."""
    READY = "READY"
    """Copying."""
    ENDING = "ENDING"
    """The source gives something that may not cross: what comes before it is still being copied."""
    DONE = "DONE"
    """Copied up to the end that was asked for."""
    FAILED = "FAILED"


WORKING: Final = frozenset({State.READY, State.ENDING})
"""Something may be sent."""
ENDED: Final = frozenset({State.DONE, State.FAILED})
"""Nothing more will be."""


class Event(StrEnum):
    ALIGNED = "aligned"
    """Both logs agree up to the destination's log end."""
    LOST = "lost"
    """An answer, or its absence, leaves open where the log ends; or it cannot be told yet."""
    BAD = "bad"
    """The source's next batch may not cross, or cannot be read."""
    ACKNOWLEDGED = "all acknowledged"
    """All before the bad batch is on the destination."""
    REACHED = "end reached"
    """All up to the end that was asked for is on the destination."""
    FAIL = "fail"
    SHIFTED = "shifted"
    """A batch landed at another offset than its own: louder than any other word."""


class IllegalTransition(RuntimeError):
    """A fault of this program: this event cannot happen in this state."""


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
    """The state after this event."""
    try:
        return TABLE[state, event]
    except KeyError:
        raise IllegalTransition(f"`{event}` in state {state}") from None


def as_markdown() -> Iterator[str]:
    """The table for the documentation, a line at a time."""
    yield "| state | event | next state |"
    yield "|---|---|---|"
    for (state, event), target in TABLE.items():
        yield f"| {state} | {event} | {target} |"
