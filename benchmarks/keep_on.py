"""`python -m benchmarks.keep_on`: `mirrorbook replicate` with epochs of another length, so that changes come often."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path

from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.task_runner import LocalRunner, Runner
from mirror_core.kafka.config import load_config
from mirror_core.state.mirror_link import find_mirror_link

TASKS = 2
"""As `mirrorbook replicate` has them."""


def main() -> None:
    """Copy until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keep_on", description=__doc__)
    parser.add_argument("mirror")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--runner", choices=("local", "spark"), required=True)
    parser.add_argument("--receipts", required=True)
    parser.add_argument("--epoch", type=float, required=True, help="seconds")
    chosen = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    link, _ = find_mirror_link(load_config(chosen.config), chosen.mirror)
    options = ReplicationOptions(receipts=chosen.receipts, epoch_s=chosen.epoch)
    Replication(link, lambda: _runner(chosen.runner), options, stop=stop, report_line=print).run()


def _runner(kind: str) -> Runner:
    if kind == "local":
        return LocalRunner()
    from mirror_core.spark.runner import SparkRunner  # the local runner is measured without it

    return SparkRunner("local[*]", TASKS)


if __name__ == "__main__":
    main()
