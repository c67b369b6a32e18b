"""What an answer to a hook means, and when it is called again. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Answer(StrEnum):
    DONE = "done"
    AGAIN = "again"
    """It may be otherwise in a moment."""
    NEVER = "never"
    """The same call would be answered the same."""


_STATUS: Final[tuple[tuple[range, Answer], ...]] = (
    (range(200, 300), Answer.DONE),
    (range(408, 409), Answer.AGAIN),  # request timeout
    (range(425, 426), Answer.AGAIN),  # too early
    (range(429, 430), Answer.AGAIN),  # too many requests
    (range(500, 600), Answer.AGAIN),
)
"""By status code of HTTP; any other one: never. Redirections are among those: they could lead a secret elsewhere."""


def of_status(code: int) -> Answer:
    return next((answer for codes, answer in _STATUS if code in codes), Answer.NEVER)


def of_exit(code: int) -> Answer:
    """A command's exit code; whatever has gone wrong in it, it may go well the next time."""
    return Answer.DONE if code == 0 else Answer.AGAIN


def pause_s(tries: int) -> float:
    """Seconds between this many tries and the next one."""
    return float(min(30, 2 ** (tries - 1)))
