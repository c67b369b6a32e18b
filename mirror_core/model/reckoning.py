"""What a plan foretold in numbers, and what its run counted. None is a value: unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """Stored with the plan: shown, not approved."""

    seconds: float | None
    """Without writes."""
    steps: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each step."""
    basis: str = ""
    """Which earlier run the seconds are taken from."""
    lost: int | None
    """Offsets that the source has acknowledged and the destination will not have."""
    at_least: bool = False
    """That many are known, and there may be more."""
    again: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By consumer group: offsets that it will read again, at the least and at the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What is known of it afterwards. Seconds are in the journal."""

    lost: int | None
    lost_by: str
    """How that is known, or why it is not."""
    again: Mapping[str, int | None] = field(default_factory=dict)
    """By consumer group: offsets that it had read on the source, and begins before on the destination."""
    again_by: str
