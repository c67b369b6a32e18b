"""Forecast of a plan, and the measured outcome. None: unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanForecast:
    seconds: float | None
    steps: Mapping[str, float] = field(default_factory=dict)
    basis: str = ""
    """The earlier run that the seconds come from."""
    lost_offsets: int | None
    lost_is_minimum: bool = False
    reread_offsets: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Minimum and maximum by group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastOutcome:
    lost_offsets: int | None
    lost_basis: str
    reread_offsets: Mapping[str, int | None] = field(default_factory=dict)
    """Offsets read on the source and again on the destination."""
    reread_basis: str
