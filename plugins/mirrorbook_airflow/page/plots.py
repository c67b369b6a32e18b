"""A small plot as an SVG path, and the same in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, pairwise
from typing import Final

WIDTH: Final = 600
HEIGHT: Final = 60
POINTS: Final = 300
"""More than that nobody sees: of several samples the greatest is drawn."""

Point = tuple[int, float | None]
"""Wall clock, and the value; None: not known then."""


@dataclass(frozen=True, slots=True)
class Plot:
    """What a template needs."""

    title: str
    path: str
    """Of an SVG of WIDTH x HEIGHT; broken where nothing is known."""
    words: str


def plot(title: str, unit: str, points: Sequence[Point]) -> Plot:
    """From the first sample to the last; the axis begins at 0."""
    known = [value for _, value in points if value is not None]
    if not known:
        return Plot(title, "", f"{title}: nothing is known yet" if not points else f"{title}: unknown {_since(points)}")
    last = points[-1][1]
    now = "unknown" if last is None else f"{last:,.0f} {unit}"
    words = f"{title}: {now} now, between {min(known):,.0f} and {max(known):,.0f} {_since(points)}"
    return Plot(title, _path(points, max(known)), words)


def _since(points: Sequence[Point]) -> str:
    return f"since {datetime.fromtimestamp(points[0][0] / 1000, UTC):%H:%M:%S} UTC"


def rate(points: Sequence[Point]) -> list[Point]:
    """Growth in each second between neighbours. None where one is unknown, or it shrank: a topic was made anew."""
    found: list[Point] = []
    for (before_ms, before), (at_ms, value) in pairwise(points):
        grown = value is not None and before is not None and value >= before and at_ms > before_ms
        found.append((at_ms, ((value or 0) - (before or 0)) * 1000 / (at_ms - before_ms) if grown else None))
    return found


def _path(points: Sequence[Point], top: float) -> str:
    first, last = points[0][0], points[-1][0]
    parts: list[str] = []
    pen = "M"
    for at_ms, value in _thinned(points):
        if value is None:
            pen = "M"
            continue
        x = WIDTH * (at_ms - first) / max(1, last - first)
        y = HEIGHT - 2 - (HEIGHT - 4) * value / (top or 1)
        parts.append(f"{pen}{x:.1f} {y:.1f}" + ("h0.1" if pen == "M" else ""))
        pen = "L"
    return "".join(parts)


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Of samples in the same part of the time. An unknown among several counts: a gap is not drawn over."""
    if len(points) <= POINTS:
        return points
    first, span = points[0][0], 1 + points[-1][0] - points[0][0]
    groups = [[*group] for _, group in groupby(points, lambda point: (point[0] - first) * POINTS // span)]
    return [(g[-1][0], None if any(v is None for _, v in g) else max(v or 0 for _, v in g)) for g in groups]
