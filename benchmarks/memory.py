"""`python -m benchmarks.memory`: whether Mirrorbook keeps to its memory budget with 1,000 partitions.

Copies set d4 in one process (`--runner local`) and takes the most memory that it ever had resident, as the kernel
remembers it; less that of the same process at work on one empty partition, which is the interpreter with all its
libraries. Both go through several epochs, so that receipts have been written. JSON goes to stdout, the verdict to
stderr.
"""

from __future__ import annotations

import argparse
import inspect
import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import report, verdict
from benchmarks.copiers import Copier, running
from benchmarks.datasets import SETS, load
from benchmarks.ground import DESTINATION, TIMEOUT_S, Ground, NotReached, ground
from benchmarks.measure import Meter
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.task_messages import Assignment

DATA_SET: Final = "d4"
EMPTY: Final = "empty"
EPOCH_S: Final = 5.0
EPOCHS: Final = 3
COPY_TIMEOUT_S: Final = 600.0
BUDGET_BYTES: Final[int] = inspect.signature(Assignment).parameters["max_bytes_in_flight"].default


def peak_bytes(at: Ground, topic: str, offsets: int) -> int:
    """The most that one copier had resident until it had copied everything and ended a few epochs."""
    with (
        ClusterClient(at.config.cluster(DESTINATION)) as west,
        running("local", at, topic, "none", EPOCH_S) as copier,
        Meter(copier.process.pid, {}) as meter,
    ):
        copier.reaches(at, west, topic, offsets, COPY_TIMEOUT_S)
        _epochs(copier)
        return meter.read()["copier"].peak_rss_bytes


def _epochs(copier: Copier) -> None:
    """Wait until so many have ended from now on."""
    deadline = time.monotonic() + COPY_TIMEOUT_S
    wanted = len(list(copier.receipts.rglob("epoch-*.parquet"))) + EPOCHS
    while len(list(copier.receipts.rglob("epoch-*.parquet"))) < wanted:
        if copier.ended() or time.monotonic() > deadline:
            raise NotReached(f"no {EPOCHS} epochs: {copier.last_words()}")
        time.sleep(0.2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--records", type=int, default=200_000, help="over 1,000 partitions")
    parser.add_argument("--runs", type=int, default=2, help="each one measures the idle process and the busy one")
    chosen = parser.parse_args(arguments)
    machine = report.machine()
    idle: list[int] = []
    busy: list[int] = []
    with ground() as at:
        admin = AdminClient({**at.source.client_config("admin")})
        admin.create_topics([NewTopic(EMPTY, 1)])[EMPTY].result(TIMEOUT_S)
        loaded = load(at.source, DATA_SET, SETS[DATA_SET], chosen.records)
        for number in range(1, chosen.runs + 1):
            for topic, offsets, found in ((EMPTY, 0, idle), (DATA_SET, loaded.offsets, busy)):
                report.say(f"run {number} of {chosen.runs}: {topic}")
                try:
                    found.append(peak_bytes(at, topic, offsets))
                except NotReached as error:
                    report.say(f"{topic}: {error}")
                at.clear(topic)
    body = {
        "machine": machine,
        "partitions": SETS[DATA_SET].partitions,
        "records": chosen.records,
        "budget_bytes": BUDGET_BYTES,
        "idle_peak_bytes": idle,
        "busy_peak_bytes": busy,
    }
    report.finish(body, [verdict.of_memory(idle, busy, BUDGET_BYTES)])


if __name__ == "__main__":
    main()
