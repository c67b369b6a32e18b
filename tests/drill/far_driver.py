"""A data plane in a process of its own, on a Spark cluster, with short epochs; it counts the claims that it hands on.

    python -m tests.drill.far_driver SETTINGS     (a JSON file)

Until SIGTERM. On standard output, a line each: where its metrics are, and how many claims it has given whenever it has.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path

from mirror_core.cli.http_server import serve_metrics
from mirror_core.copy.driver_messages import ClaimBoard
from mirror_core.copy.task_datagrams import Datagram
from mirror_core.dataplane.counters import Counters
from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.progress import ProgressTracker
from mirror_core.dataplane.prometheus_collector import MetricsCollector
from mirror_core.kafka.config import load_config
from mirror_core.model.names import MirrorName
from mirror_core.spark.runner import SparkRunner
from mirror_core.state.mirror_link import find_mirror_link


def say(line: str) -> None:
    print(line, flush=True)


def count_claims() -> None:
    """Say how many claims any board has given, whenever it has."""
    take, given = ClaimBoard.handle, 0

    def counting(self: ClaimBoard, letter: Datagram) -> bytes:
        nonlocal given
        if answer := take(self, letter):
            given += len(json.loads(answer)["given"])
            say(f"given {given}")
        return answer

    setattr(ClaimBoard, "handle", counting)  # noqa: B010 - wherever boards are made


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    count_claims()
    link, _ = find_mirror_link(load_config(Path(settings["config"])), MirrorName(settings["mirror"]))
    stop, counters, progress = threading.Event(), Counters(), ProgressTracker()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    options = ReplicationOptions(epoch_s=settings["epoch_s"], progress=progress)
    copying = Replication(
        link,
        lambda: SparkRunner(settings["master"], settings["tasks"], settings["conf"]),
        options,
        stop=stop,
        report_line=say,
        counters=counters,
    )
    with serve_metrics(("127.0.0.1", 0), MetricsCollector(link.mirror, counters, progress), say):
        copying.run()


if __name__ == "__main__":
    main()
