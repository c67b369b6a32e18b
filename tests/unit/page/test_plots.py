"""Plots, and what they take from a Prometheus: a real one, which was given the figures of the last hour."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Final

import pytest

from mirror_core.model.errors import BadRequest, RemoteFault
from mirror_core.model.names import MirrorName
from mirror_core.page.plots import (
    MAX_POINTS,
    RESPONSE_TIMEOUT_S,
    STEP_S,
    PrometheusHistory,
    check_address,
    compute_rates,
    fetch_samples,
    make_plot,
)
from mirror_core.page.snapshots import MirrorSample, MirrorView
from mirrorbook_tools.sandbox.ports import choose_ports
from tests.support.waiting import wait_until

NAME: Final = MirrorName("orders")
SCRAPED_S: Final = 15
BEGAN, NOW = -3600, 0
"""Seconds from the end of what was scraped."""


def _figures(end: int) -> Iterator[str]:
    """As a data plane served them. Half an hour ago the lag of a topic was unknown for ten minutes; the source has been
    silent for the last ten."""
    times = range(end + BEGAN, end + NOW + 1, SCRAPED_S)
    gauges: dict[str, Callable[[int], int]] = {
        'mirrorbook_lag_offsets{mirror="orders",topic="a"}': lambda at: 100,
        'mirrorbook_lag_offsets{mirror="orders",topic="b"}': lambda at: 20,
        'mirrorbook_lag_offsets{mirror="other",topic="a"}': lambda at: 7_000,
        'mirrorbook_lag_unknown_partitions{mirror="orders",topic="b"}': lambda at: int(-1800 <= at - end < -1200),
        'mirrorbook_missing_known_offsets{mirror="orders"}': lambda at: 3,
        'mirrorbook_source_looked_at_timestamp_seconds{mirror="orders"}': lambda at: min(at, end - 600) - 1,
    }
    for family in dict.fromkeys(series.partition("{")[0] for series in gauges):
        yield f"# TYPE {family} gauge"
        for series, value in gauges.items():
            if series.startswith(family + "{"):
                yield from (f"{series} {value(at)} {at}" for at in times)
    yield "# TYPE mirrorbook_copied_records counter"
    for topic in ("a", "b"):
        series = f'mirrorbook_copied_records_total{{mirror="orders",topic="{topic}"}}'
        yield from (f"{series} {(at - end - BEGAN) * 25} {at}" for at in times)
    yield "# EOF"


@pytest.fixture(scope="module")
def end() -> int:
    return int(time.time()) // STEP_S * STEP_S


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, end: int) -> Iterator[str]:
    promtool, prometheus = shutil.which("promtool"), shutil.which("prometheus")
    if promtool is None or prometheus is None:
        assert not os.environ.get("CI"), "prometheus is missing: .ci/run brings it"
        pytest.skip("prometheus is not here; Debian's package prometheus holds it")
    folder = tmp_path_factory.mktemp("prometheus")
    scraped, settings, store = folder / "scraped", folder / "prometheus.yml", folder / "store"
    scraped.write_text("\n".join(_figures(end)) + "\n", encoding="utf-8")
    settings.write_text("{}", encoding="utf-8")
    made = [promtool, "tsdb", "create-blocks-from", "openmetrics", str(scraped), str(store)]
    subprocess.run(made, check=True, capture_output=True)
    found = f"http://127.0.0.1:{choose_ports(1)[0]}"
    options = [f"--config.file={settings}", f"--storage.tsdb.path={store}", f"--web.listen-address={found[7:]}"]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen([prometheus, *options], stdout=log, stderr=subprocess.STDOUT) as server,
    ):
        try:
            wait_until(lambda: _ready(found), timeout_s=60, why=f"Prometheus serves: {folder / 'log'}")
            yield found
        finally:
            server.kill()


def _ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_the_plots_begin_with_what_prometheus_remembers(address: str, end: int) -> None:
    samples = fetch_samples(f"{address}/", NAME, end * 1000 + 59_999)

    assert [samples[0].at_ms, samples[-2].at_ms] == [(end + BEGAN) * 1000, end * 1000]
    by_minute = {(sample.at_ms // 1000 - end) // 60: sample for sample in samples[:-1]}
    assert by_minute[-50].lag == 120, "of both topics, and of no other mirror"
    assert {by_minute[minute].lag for minute in range(-30, -20)} == {None}, "unknown of one topic"
    assert by_minute[-19].lag == 120
    assert {by_minute[minute].missing for minute in range(-59, -10)} == {3}
    assert {by_minute[minute].missing for minute in range(-9, 1)} == {None}, "nobody sees the source"
    speeds = {
        round(speed) for _, speed in compute_rates([(s.at_ms, s.copied) for s in samples[6:-1]]) if speed is not None
    }
    assert speeds == {50}, "offsets a second, of both topics"
    assert samples[-1] == MirrorSample(samples[-2].at_ms + 1, None, None, None), "own samples count from somewhere else"


def test_what_was_seen_from_here_follows_what_is_remembered() -> None:
    remembered = PrometheusHistory((MirrorSample(1_000, 5, None, 100), MirrorSample(1_001, None, None, None)))
    seen = MirrorView(2_000, None, None, (MirrorSample(900, 1, 1, 7_000), MirrorSample(2_000, 2, 2, 7_300)))
    assert [sample.at_ms for sample in remembered.prepend_to(seen).samples] == [1_000, 1_001, 2_000]
    assert PrometheusHistory((), "it hangs").prepend_to(seen) == seen
    speeds = compute_rates([(s.at_ms, s.copied) for s in remembered.prepend_to(seen).samples])
    assert [speed for _, speed in speeds] == [None, None], "no leap where one count ends and another begins"


def test_a_mirror_that_prometheus_does_not_know_has_no_past(address: str, end: int) -> None:
    assert fetch_samples(address, MirrorName("never"), end * 1000) == ()


def test_who_does_not_answer_as_prometheus_does_is_said(address: str, end: int) -> None:
    with pytest.raises(RemoteFault, match=r"^Prometheus at 127\.0\.0\.1 answers with HTTP status 404$"):
        fetch_samples(f"{address}/nowhere", NAME, end * 1000)
    began = time.monotonic()
    with pytest.raises(RemoteFault, match=r"^Prometheus at 127\.0\.0\.1 does not answer: URLError$"):
        fetch_samples(f"http://127.0.0.1:{choose_ports(1)[0]}", NAME, end * 1000)
    assert time.monotonic() - began < 3 * RESPONSE_TIMEOUT_S


@pytest.mark.parametrize(
    ("answered", "samples"),
    [
        ('[[1, "5"], [1800000000, "7"], [9999999999, "9"]]', 2),
        ('[[1800000000, "abc"]]', None),
        ('[[1800000000, "NaN"]]', 0),
    ],
)
def test_what_a_stranger_answers_makes_no_endless_past(answered: str, samples: int | None) -> None:
    body = f'{{"data": {{"result": [{{"values": {answered}}}]}}}}'.encode()

    class Stranger(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            where = f"http://127.0.0.1:{server.server_port}"
            if samples is None:
                with pytest.raises(RemoteFault, match="answers something else than series"):
                    fetch_samples(where, NAME, 1_800_000_000_000)
            else:
                assert len(fetch_samples(where, NAME, 1_800_000_000_000)) == samples
        finally:
            server.shutdown()


@pytest.mark.parametrize("given", ["prometheus:9090", "file:///etc/passwd", "https:///x", "http://p/?q=1", "ftp://p"])
def test_what_can_be_no_address_is_refused_without_being_told(given: str) -> None:
    with pytest.raises(BadRequest) as refused:
        check_address(given)
    assert given not in str(refused.value)


def test_a_plot_has_a_gap_where_nothing_was_known() -> None:
    found = make_plot("Lag", "offsets", [(0, 1), (1_000, None), (2_000, 3)])

    assert found.path.count("M") == 2
    assert "L" not in found.path
    assert found.text == "Lag: 3 offsets now, between 1 and 3 since 00:00:00 UTC"
    assert (found.top, found.since, found.until) == ("3", "00:00:00", "00:00:02")


def test_a_plot_of_nothing_says_so() -> None:
    assert make_plot("Lag", "offsets", [(0, 0)]).top == "1"
    assert make_plot("Lag", "offsets", []).path == ""
    assert make_plot("Lag", "offsets", [(0, None)]).text == "Lag: unknown since 00:00:00 UTC"
    assert make_plot("Lag", "offsets", [(0, 2), (1_000, None)]).text.startswith("Lag: unknown now")


def test_many_samples_of_now_leave_the_few_of_the_past_as_they_are() -> None:
    past: list[tuple[int, float | None]] = [(n * 60_000, None if n % 8 == 0 else 1.0) for n in range(360)]
    now: list[tuple[int, float | None]] = [(360 * 60_000 + n * 2_000, 1.0) for n in range(1_800)]

    found = make_plot("Lag", "offsets", past + now).path

    assert 30 < found.count("M") < 60, "a gap each eight minutes"
    assert found.count("L") > 200


def test_many_samples_keep_their_peak_and_their_gap() -> None:
    samples: list[tuple[int, float | None]] = [(n, 0.0) for n in range(10 * MAX_POINTS)]
    samples[777], samples[1_555] = (777, 9.0), (1_555, None)

    found = make_plot("Lag", "offsets", samples)

    assert found.path.count("L") + found.path.count("M") < MAX_POINTS
    assert " 2.0" in found.path
    assert found.path.count("M") == 2


def test_a_rate_is_unknown_where_something_shrank() -> None:
    assert compute_rates([(0, 0), (2_000, 10), (3_000, 5), (4_000, None)]) == [
        (2_000, 5.0),
        (3_000, None),
        (4_000, None),
    ]
