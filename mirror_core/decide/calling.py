"""What a hook's result means, and when the hook is called again."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Answer(StrEnum):
    DONE = "done"
    AGAIN = "again"
    NEVER = "never"


_STATUS: Final[tuple[tuple[range, Answer], ...]] = (
    (range(200, 300), Answer.DONE),
    (range(408, 409), Answer.AGAIN),  # request timeout
    (range(425, 426), Answer.AGAIN),  # too early
    (range(429, 430), Answer.AGAIN),  # too many requests
    (range(500, 600), Answer.AGAIN),
)
"""Every other HTTP status gives up, redirects too: a redirect could leak a secret."""


def of_status(code: int) -> Answer:
    return next((answer for codes, answer in _STATUS if code in codes), Answer.NEVER)


def of_exit(code: int) -> Answer:
    return Answer.DONE if code == 0 else Answer.AGAIN


def pause_s(tries: int) -> float:
    return float(min(30, 2 ** (tries - 1)))
