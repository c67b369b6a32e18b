"""Plots samples from Prometheus as SVG paths."""

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
from mirror_core.page.snapshots import MirrorSample, MirrorView

STEP_S: Final = 60
SPAN_S: Final = 6 * 3600
RESPONSE_TIMEOUT_S: Final = 5.0
MAX_RESPONSE_BYTES: Final = 4 << 20
"""Three series of a number a minute are about 50 kB."""
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


class _QuerySeries(msgspec.Struct):
    values: list[tuple[float, str]]


class _QueryData(msgspec.Struct):
    result: list[_QuerySeries]


class _QueryResponse(msgspec.Struct):
    data: _QueryData


@dataclass(frozen=True, slots=True)
class PrometheusHistory:
    samples: tuple[MirrorSample, ...]
    error: str = ""

    def prepend_to(self, view: MirrorView) -> MirrorView:
        last = self.samples[-1].at_ms if self.samples else 0
        return replace(view, samples=(*self.samples, *(sample for sample in view.samples if sample.at_ms > last)))


def check_address(address: str) -> str:
    """Without a slash at its end. BadRequest when it can be none."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise BadRequest("setting [mirrorbook] prometheus: it is no address like http://prometheus.example:9090")
    return address.rstrip("/")


def fetch_samples(address: str, mirror: MirrorName, now_ms: int) -> tuple[MirrorSample, ...]:
    """A sample a minute of the last hours, the newest last; empty: the mirror is unknown. Raises RemoteFault.

    The last sample is unknown, since later ones count from another start.
    """
    address, end = check_address(address), now_ms // 1000 // STEP_S * STEP_S
    series = {name: dict(_query_range(address, query, mirror, end)) for name, query in _QUERIES.items()}
    times = sorted({at for values in series.values() for at in values})
    if not times:
        return ()
    samples, copied = list[MirrorSample](), 0
    for at in range(times[0], times[-1] + 1, STEP_S):
        rate = series["copied"].get(at)
        copied += round((rate or 0) * STEP_S)
        lag, missing = (series[name].get(at) for name in ("lag", "missing"))
        samples.append(
            MirrorSample(
                at * 1000,
                None if lag is None else round(lag),
                None if missing is None else round(missing),
                None if rate is None else copied,
            )
        )
    return (*samples, MirrorSample(times[-1] * 1000 + 1, None, None, None))


def _query_range(address: str, query: str, mirror: MirrorName, end: int) -> Iterator[tuple[int, float]]:
    label = f"{{mirror={json.dumps(str(mirror))}}}"
    params = {"query": query.replace("{M}", label), "start": end - SPAN_S, "end": end, "step": STEP_S}
    where = f"Prometheus at {urlsplit(address).hostname}"
    request = urllib.request.Request(f"{address}/api/v1/query_range", data=urlencode(params).encode())
    try:
        with urllib.request.urlopen(request, timeout=RESPONSE_TIMEOUT_S) as response:
            content = response.read(MAX_RESPONSE_BYTES + 1)
        result = msgspec.json.decode(content, type=_QueryResponse).data.result
        values = [(round(at), float(value)) for at, value in (result[0].values if result else ())]
    except urllib.error.HTTPError as error:
        raise RemoteFault(f"{where} answers with HTTP status {error.code}") from None
    except (OSError, HTTPException) as error:
        raise RemoteFault(f"{where} does not answer: {type(error).__name__}") from None
    except (msgspec.MsgspecError, ValueError, OverflowError):
        raise RemoteFault(f"{where} answers something else than series: is it a Prometheus?") from None
    yield from ((at, value) for at, value in values if end - SPAN_S <= at <= end and math.isfinite(value))


PLOT_WIDTH: Final = 600
PLOT_HEIGHT: Final = 60
MAX_POINTS: Final = 300
"""The greatest of several samples is drawn."""
PlotPoint = tuple[int, float | None]
"""Wall clock, and the value; None: not known then."""


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    path: str
    """SVG path of PLOT_WIDTH x PLOT_HEIGHT; broken where unknown."""
    text: str
    top: str = ""
    """At the upper edge; 0 is the lower one."""
    since: str = ""
    until: str = ""


def make_plot(title: str, unit: str, points: Sequence[PlotPoint]) -> Plot:
    """From the first sample to the last; the axis begins at 0."""
    known = [value for _, value in points if value is not None]
    if not known:
        return Plot(
            title, "", f"{title}: nothing is known yet" if not points else f"{title}: unknown {_format_since(points)}"
        )
    last = points[-1][1]
    now = "unknown" if last is None else f"{last:,.0f} {unit}"
    text = f"{title}: {now} now, between {min(known):,.0f} and {max(known):,.0f} {_format_since(points)}"
    return Plot(
        title,
        _draw_path(points, max(known)),
        text,
        top=f"{max(known) or 1:,.0f}",
        since=_format_time(points[0][0]),
        until=_format_time(points[-1][0]),
    )


def _format_since(points: Sequence[PlotPoint]) -> str:
    return f"since {_format_time(points[0][0])} UTC"


def _format_time(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%H:%M:%S}"


def compute_rates(points: Sequence[PlotPoint]) -> list[PlotPoint]:
    """Growth in each second between neighbours. None where one is unknown, or it shrank: a topic was made anew."""
    rates: list[PlotPoint] = []
    for (before_ms, before), (at_ms, value) in pairwise(points):
        has_grown = value is not None and before is not None and value >= before and at_ms > before_ms
        rates.append((at_ms, ((value or 0) - (before or 0)) * 1000 / (at_ms - before_ms) if has_grown else None))
    return rates


def _draw_path(points: Sequence[PlotPoint], top: float) -> str:
    first, last = points[0][0], points[-1][0]
    parts: list[str] = []
    pen = "M"
    for at_ms, value in _thin_out(points):
        if value is None:
            pen = "M"
            continue
        x = PLOT_WIDTH * (at_ms - first) / max(1, last - first)
        y = PLOT_HEIGHT - 2 - (PLOT_HEIGHT - 4) * value / (top or 1)
        parts.append(f"{pen}{x:.1f} {y:.1f}" + ("h0.1" if pen == "M" else ""))
        pen = "L"
    return "".join(parts)


def _thin_out(points: Sequence[PlotPoint]) -> Sequence[PlotPoint]:
    """One for each span of time; None where one of its samples is unknown."""
    if len(points) <= MAX_POINTS:
        return points
    first, span = points[0][0], 1 + points[-1][0] - points[0][0]
    groups = [[*group] for _, group in groupby(points, lambda point: (point[0] - first) * MAX_POINTS // span)]
    return [(g[-1][0], None if any(v is None for _, v in g) else max(v or 0 for _, v in g)) for g in groups]
