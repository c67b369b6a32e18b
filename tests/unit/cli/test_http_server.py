"""The address for Prometheus: strangers who connect and say nothing cost a bounded number of threads."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from urllib.request import urlopen

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mirror_core.cli.http_server import IDLE_LIMIT_S, MAX_CONNECTIONS, serve_metrics
from tests.support.waiting import wait_until


class One(Collector):
    def collect(self) -> list[Metric]:
        return [GaugeMetricFamily("one", "1", 1)]


def test_silent_connections_hold_few_threads_and_keep_nobody_out() -> None:
    said = list[str]()
    before = threading.active_count()
    with serve_metrics(("127.0.0.1", 0), One(), said.append), ExitStack() as silent:
        address = said[0].removeprefix("metrics: ")
        port = int(address.rpartition(":")[2].partition("/")[0])
        for _ in range(4 * MAX_CONNECTIONS):
            silent.enter_context(socket.create_connection(("127.0.0.1", port)))
        with urlopen(address) as found:
            assert b"one 1.0" in found.read()
        bound = before + MAX_CONNECTIONS + 2
        wait_until(lambda: threading.active_count() <= bound, timeout_s=30, why="threads of silent connections end")
    wait_until(lambda: threading.active_count() <= before, timeout_s=30, why="all of them end")


def test_a_silent_connection_is_closed() -> None:
    said = list[str]()
    with serve_metrics(("127.0.0.1", 0), One(), said.append):
        port = int(said[0].rpartition(":")[2].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port), timeout=6 * IDLE_LIMIT_S) as silent:
            assert silent.recv(1) == b""
