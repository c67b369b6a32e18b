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

from mirror_core.cli.metrics import served
from mirror_core.copy.datagrams import Letter
from mirror_core.copy.handover import Board
from mirror_core.dataplane.counters import Counters
from mirror_core.dataplane.driver import Options, Replication
from mirror_core.dataplane.metrics import Exposition
from mirror_core.dataplane.progress import Progress
from mirror_core.kafka.config import load_config
from mirror_core.model.names import MirrorName
from mirror_core.spark.runner import SparkRunner
from mirror_core.state.link import find


def say(line: str) -> None:
    print(line, flush=True)


def count_claims() -> None:
    """Say how many claims any board has given, whenever it has."""
    take, given = Board.take, 0

    def counting(self: Board, letter: Letter) -> bytes:
        nonlocal given
        if answer := take(self, letter):
            given += len(json.loads(answer)["given"])
            say(f"given {given}")
        return answer

    setattr(Board, "take", counting)  # noqa: B010 - wherever boards are made


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    count_claims()
    link, _ = find(load_config(Path(settings["config"])), MirrorName(settings["mirror"]))
    stop, counters, progress = threading.Event(), Counters(), Progress()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    options = Options(epoch_s=settings["epoch_s"], progress=progress)
    copying = Replication(
        link,
        lambda: SparkRunner(settings["master"], settings["tasks"], settings["conf"]),
        options,
        stop=stop,
        say=say,
        counters=counters,
    )
    with served(("127.0.0.1", 0), Exposition(link.mirror, counters, progress), say):
        copying.run()


if __name__ == "__main__":
    main()
