"""What a hook's result means, and when the hook is called again."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class HookOutcome(StrEnum):
    DONE = "done"
    RETRY = "retry"
    GIVE_UP = "give up"


_HTTP_OUTCOMES: Final[tuple[tuple[range, HookOutcome], ...]] = (
    (range(200, 300), HookOutcome.DONE),
    (range(408, 409), HookOutcome.RETRY),  # request timeout
    (range(425, 426), HookOutcome.RETRY),  # too early
    (range(429, 430), HookOutcome.RETRY),  # too many requests
    (range(500, 600), HookOutcome.RETRY),
)
"""Every other HTTP status gives up, redirects too: a redirect could leak a secret."""


def from_http_status(code: int) -> HookOutcome:
    return next((outcome for codes, outcome in _HTTP_OUTCOMES if code in codes), HookOutcome.GIVE_UP)


def from_exit_code(code: int) -> HookOutcome:
    return HookOutcome.DONE if code == 0 else HookOutcome.RETRY


def compute_retry_pause_s(tries: int) -> float:
    return float(min(30, 2 ** (tries - 1)))
