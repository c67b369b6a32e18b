"""What a Prometheus remembers of a mirror, for the plots: they begin before somebody has opened the page.

A small plot as an SVG path, and the same in words. Pure.
"""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http.client import HTTPException
from itertools import groupby, pairwise
from typing import Final
from urllib.parse import urlencode, urlsplit

import msgspec

from mirror_core.model.errors import BadRequest, RemoteFault
from mirror_core.model.names import MirrorName
from mirror_core.model.timing import MAX_FRESH_AGE_S
from mirrorbook_airflow.page.mirror_state import Sample, Seen

STEP_S: Final = 60
SPAN_S: Final = 6 * 3600
ANSWER_S: Final = 5.0
MOST_BYTES: Final = 4 << 20
"""Three series of a number a minute are some 50 kB."""
_QUERIES: Final[Mapping[str, str]] = {
    # Where the lag of a partition is unknown, so is the sum; and a loss is known while the source is looked at.
    "lag": "sum(mirrorbook_lag_offsets{M}) unless sum(mirrorbook_lag_unknown_partitions{M}) > 0",
    "missing": "sum(mirrorbook_missing_known_offsets{M}) and "
    f"max(timestamp(mirrorbook_source_looked_at_timestamp_seconds{{M}}) - "
    f"mirrorbook_source_looked_at_timestamp_seconds{{M}}) <= {MAX_FRESH_AGE_S:g}",
    "copied": "sum(rate(mirrorbook_copied_records_total{M}[5m])) + "
    "(sum(rate(mirrorbook_filled_offsets_total{M}[5m])) or vector(0))",
}
"""PromQL; M stands for the mirror's label. `copied`: offsets a second."""


class _Series(msgspec.Struct):
    values: list[tuple[float, str]]


class _Data(msgspec.Struct):
    result: list[_Series]


class _Answer(msgspec.Struct):
    data: _Data


@dataclass(frozen=True, slots=True)
class Past:
    """What it answered."""

    samples: tuple[Sample, ...]
    """The newest last; none: it knows nothing of the mirror."""
    trouble: str = ""
    """Why it is not known."""

    def before(self, seen: Seen) -> Seen:
        """The same with these samples before its own."""
        last = self.samples[-1].at_ms if self.samples else 0
        return replace(seen, samples=(*self.samples, *(sample for sample in seen.samples if sample.at_ms > last)))


def check_address(address: str) -> str:
    """The address of a Prometheus without a slash at its end. BadRequest when it can be none."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise BadRequest("setting [mirrorbook] prometheus: it is no address like http://prometheus.example:9090")
    return address.rstrip("/")


def past(address: str, mirror: MirrorName, now_ms: int) -> tuple[Sample, ...]:
    """A sample a minute of the last hours, the newest last; one of which nothing is known ends them, as what is seen
    from here does not count from where they do. Empty: it knows nothing of this mirror. RemoteFault when it does not
    answer."""
    address, end = check_address(address), now_ms // 1000 // STEP_S * STEP_S
    known = {what: dict(_asked(address, query, mirror, end)) for what, query in _QUERIES.items()}
    times = sorted({at for found in known.values() for at in found})
    if not times:
        return ()
    samples, copied = list[Sample](), 0
    for at in range(times[0], times[-1] + 1, STEP_S):
        rate = known["copied"].get(at)
        copied += round((rate or 0) * STEP_S)
        lag, missing = (known[what].get(at) for what in ("lag", "missing"))
        samples.append(
            Sample(
                at * 1000,
                None if lag is None else round(lag),
                None if missing is None else round(missing),
                None if rate is None else copied,
            )
        )
    return (*samples, Sample(times[-1] * 1000 + 1, None, None, None))


def _asked(address: str, query: str, mirror: MirrorName, end: int) -> Iterator[tuple[int, float]]:
    """Value by time, in seconds since the epoch. Without those that are no number."""
    label = f"{{mirror={json.dumps(str(mirror))}}}"
    asked = {"query": query.replace("{M}", label), "start": end - SPAN_S, "end": end, "step": STEP_S}
    where = f"Prometheus at {urlsplit(address).hostname}"
    request = urllib.request.Request(f"{address}/api/v1/query_range", data=urlencode(asked).encode())
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            told = answer.read(MOST_BYTES + 1)
        found = msgspec.json.decode(told, type=_Answer).data.result
        values = [(round(at), float(value)) for at, value in (found[0].values if found else ())]
    except urllib.error.HTTPError as error:
        raise RemoteFault(f"{where} answers with HTTP status {error.code}") from None
    except (OSError, HTTPException) as error:
        raise RemoteFault(f"{where} does not answer: {type(error).__name__}") from None
    except (msgspec.MsgspecError, ValueError, OverflowError):
        raise RemoteFault(f"{where} answers something else than series: is it a Prometheus?") from None
    yield from ((at, value) for at, value in values if end - SPAN_S <= at <= end and math.isfinite(value))


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
