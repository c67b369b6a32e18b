"""Whether this machine's clock can be compared with those by which others have written down what they saw. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mirror_core.decide.view import DestinationView, View

TOLERATED_MS: Final = 1_000
"""Clocks that are kept by NTP differ by less."""


def behind_s(view: View) -> float | None:
    """How far this clock is behind the others at least, in seconds; None: nothing was written down in its future. That
    it is ahead cannot be seen: everything is older then."""
    ahead = max(_written_ms(view), default=0) - view.now_ms
    return ahead / 1000 if ahead > TOLERATED_MS else None


def warning(view: View) -> Iterator[str]:
    """What an approver should know of the ages that a plan shows."""
    behind = behind_s(view)
    if behind is not None:
        yield (
            f"the clock here is at least {behind:.0f} s behind that of whoever mirrors {view.mirror.name}: ages of "
            "0 s may be as much. Set the clock, look at a new plan"
        )


def _written_ms(view: View) -> Iterator[int]:
    if view.lease is not None:
        yield view.lease.beat_ms
    if view.sighting is not None:
        yield view.sighting.at_ms
    if view.groups is not None:
        yield view.groups.synced_ms
    if isinstance(view.destination, DestinationView):
        yield from (beat.at_ms for beat in view.destination.heartbeats)
