"""Formats numbers and ages; unknown is a value. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mirror_core.decide.clock_skew import compute_age_s, format_since
from mirror_core.model.timing import MAX_FRESH_AGE_S

UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Age:
    seconds: float | None
    """Unknown or never: None."""
    text: str
    limit_s: float = MAX_FRESH_AGE_S

    @property
    def stale(self) -> bool:
        return self.seconds is None or self.seconds > self.limit_s

    def __str__(self) -> str:
        return self.text


def compute_age(at_ms: int | None, now_ms: int, limit_s: float = MAX_FRESH_AGE_S) -> Age:
    return Age(None if at_ms is None else compute_age_s(now_ms, at_ms), format_since(now_ms, at_ms), limit_s)


def format_counts(values: Iterable[str]) -> str:
    return ", ".join(f"{n:,} {value}" for value, n in sorted(Counter(map(str, values)).items()))


def format_number(value: str | int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}" if isinstance(value, int) else value
