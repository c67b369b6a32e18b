"""`python -m benchmarks.latency`: how long a record takes from its producer to a consumer on the destination.

A steady 2,000 records of 1 KiB a second over 8 partitions, one copier after the other, round after round. Beside each
copier a consumer on the source reads the same records: what Kafka itself takes. JSON goes to stdout, a table and the
verdicts to stderr.
"""

from __future__ import annotations

import argparse
import json
import math
import secrets
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import report, verdict
from benchmarks.copiers import COPIERS, MIRRORBOOK, Copier, running, stop
from benchmarks.ground import DESTINATION, NEAR, SIDES, SOURCE, TIMEOUT_S, Ground, NotReached, ground
from benchmarks.measure import Meter
from benchmarks.traffic import PAIR
from mirror_core.kafka.client import ClusterClient
from mirrorbook_tools.sandbox.cluster import SandboxCluster

PARTITIONS: Final = 8
START_TIMEOUT_S: Final = 180.0
POLL_S: Final = 0.2
NEAR_S: Final = 0.5
"""A copier has caught up when it is at most so far behind."""
PERCENTILES: Final = {"p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "p99.9_ms": 99.9}
COLUMNS: Final = (*PERCENTILES, "records", "epoch_changes", "copier_cores", "broker_cores")


@dataclass(frozen=True, slots=True)
class Window:
    """Wall clock, in nanoseconds. Records count that were produced within."""

    begin_ns: int
    end_ns: int


def latencies_ms(pairs: bytes, window: Window) -> list[float]:
    """Sorted, of the records that were produced within the window."""
    whole = len(pairs) - len(pairs) % PAIR.size
    return sorted(
        (read - produced) / 1e6
        for produced, read in PAIR.iter_unpack(pairs[:whole])
        if window.begin_ns <= produced < window.end_ns
    )


def figures(latencies: Sequence[float]) -> dict[str, float]:
    """Nearest-rank percentiles of sorted latencies, and how many there were; only the number when there are none."""
    if not latencies:
        return {"records": 0}
    ranks = {name: max(1, math.ceil(len(latencies) * percent / 100)) for name, percent in PERCENTILES.items()}
    return {**{name: latencies[rank - 1] for name, rank in ranks.items()}, "records": len(latencies)}


class Bench:
    """Both clusters, and one topic for each run."""

    def __init__(self, at: Ground, *, rate: int, warm_s: float, seconds: float, epoch_s: float, idle: int) -> None:
        """`idle`: partitions of the topic that nobody writes to, besides the others."""
        self.at = at
        self.idle = idle
        self.rate = rate
        self.warm_s = warm_s
        self.seconds = seconds
        self.epoch_s = epoch_s

    def run(self, kind: str) -> tuple[dict[str, float], dict[str, float]]:
        """Figures of the copier, and of the source alone at the same time. NotReached when records are missing."""
        topic = f"latency-{secrets.token_hex(4)}"
        self._create(topic)
        try:
            with running(kind, self.at, topic, "none", self.epoch_s) as copier:
                return self._measure(topic, copier)
        finally:
            self.at.clear(topic)

    def _measure(self, topic: str, copier: Copier) -> tuple[dict[str, float], dict[str, float]]:
        sides = {cluster.name: cluster for cluster in (self.at.source, self.at.destination)}
        files = {name: self.at.folder / f"{topic}-{name}.pairs" for name in sides}
        with (
            ClusterClient(self.at.config.cluster(SOURCE)) as east,
            ClusterClient(self.at.config.cluster(DESTINATION)) as west,
            Meter(copier.process.pid, self.at.brokers()) as meter,
        ):
            self._wait(copier, lambda: topic in west.metadata([topic]).topics, "there is no copy of the topic")
            with (
                traffic(self.at.source, "read", topic, f"--out={files[SOURCE]}"),
                traffic(self.at.destination, "read", topic, f"--out={files[DESTINATION]}"),
            ):
                with traffic(self.at.source, "write", topic, f"--rate={self.rate}"):
                    # What was written while the copier was still starting is a backlog: no latency of a copier at work.
                    near = self.rate * NEAR_S
                    self._wait(
                        copier,
                        lambda: (here := self.at.ends(west, topic)) > 0 and self.at.ends(east, topic) - here <= near,
                        "it has not caught up",
                    )
                    time.sleep(self.warm_s)
                    begin_ns, before = time.time_ns(), meter.read()
                    time.sleep(self.seconds)
                    window, after = Window(begin_ns, time.time_ns()), meter.read()
                # Stopped and flushed: this is all there will be.
                sent = self.at.ends(east, topic)
                for name, path in files.items():
                    why = f"not all of {sent} records could be read on {name}"
                    self._wait(copier, partial(_holds, path, sent), why)
        mine, alone = (figures(latencies_ms(files[name].read_bytes(), window)) for name in (DESTINATION, SOURCE))
        used = {name: one.cpu_s - before[name].cpu_s for name, one in after.items()}
        mine["copier_cores"] = used.pop("copier") / self.seconds
        mine["broker_cores"] = sum(used.values()) / self.seconds
        if copier.kind in MIRRORBOOK:
            mine["epoch_changes"] = epoch_changes(copier.receipts, window)
        return mine, alone

    def _create(self, topic: str) -> None:
        admin = AdminClient({**self.at.source.client_config("admin")})
        admin.create_topics([NewTopic(topic, PARTITIONS + self.idle)])[topic].result(TIMEOUT_S)

    def _wait(self, copier: Copier, done: Callable[[], bool], why: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not done():
            if copier.ended() or time.monotonic() > deadline:
                raise NotReached(f"{why} after {START_TIMEOUT_S:g} s, or at its end: {copier.last_words()}")
            time.sleep(POLL_S)


def _holds(path: Path, records: int) -> bool:
    return path.stat().st_size >= records * PAIR.size


def epoch_changes(receipts: Path, window: Window) -> int:
    """How many epochs ended within the window, by what their tasks reported."""
    ended: dict[int, int] = {}
    for path in receipts.rglob("epoch-*.parquet"):
        for row in pq.read_table(path, columns=["epoch", "ended"]).to_pylist():
            ended[row["epoch"]] = max(ended.get(row["epoch"], 0), int(row["ended"].timestamp() * 1e9))
    return sum(window.begin_ns <= at < window.end_ns for at in ended.values())


@contextmanager
def traffic(cluster: SandboxCluster, what: str, topic: str, option: str) -> Iterator[None]:
    """A reader or writer at work until left."""
    command = [sys.executable, "-m", "benchmarks.traffic", what, topic, f"--partitions={PARTITIONS}", option]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        if process.stdin is not None:
            process.stdin.write(json.dumps(cluster.client_config("admin")).encode())
            process.stdin.close()
        yield
    finally:
        stop(process)
    if process.returncode:
        raise SystemExit(f"the {what}r of {topic} on {cluster.name} failed")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency", description=__doc__)
    parser.add_argument("--copiers", default="local,spark,mm2-default", help="in this order, comma-separated")
    parser.add_argument("--seconds", type=float, default=60.0, help="measured, of each run")
    parser.add_argument(
        "--warm", type=float, default=15.0, help="seconds from having caught up to the first measured record"
    )
    parser.add_argument("--epoch", type=float, default=10.0, help="seconds of Mirrorbook's epochs; its default is 30")
    parser.add_argument("--rate", type=int, default=2000, help="records a second")
    parser.add_argument("--idle", type=int, default=0, help="partitions besides, to which nobody writes")
    parser.add_argument("--runs", type=int, default=2, help="rounds that count, each of every copier")
    parser.add_argument("--far", default="", help=f"which side is far away, comma-separated, of {', '.join(SIDES)}")
    parser.add_argument("--round-trip-ms", type=float, default=80.0, help="to the side that is far away")
    chosen = parser.parse_args(arguments)
    copiers, sides = chosen.copiers.split(","), chosen.far.split(",") if chosen.far else []
    for names, known, what in ((copiers, COPIERS, "copiers"), (sides, SIDES, "sides")):
        if unknown := set(names) - set(known):
            parser.error(f"unknown {what} {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    machine = report.machine()
    samples: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    failures: list[dict[str, object]] = []
    with ground(linked=bool(sides)) as at:
        bench = Bench(
            at,
            rate=chosen.rate,
            warm_s=chosen.warm,
            seconds=chosen.seconds,
            epoch_s=chosen.epoch,
            idle=chosen.idle,
        )
        for number, kind in report.turns(copiers, chosen.runs):
            for side in (sides if number else sides[:1]) or (NEAR,):
                name = verdict.at_distance(kind, side) if sides else kind
                report.say(f"run {number} of {chosen.runs}: {name}")
                try:
                    with at.far(side, chosen.round_trip_ms):
                        mine, alone = bench.run(kind)
                except NotReached as error:
                    report.say(f"{name}: {error}")
                    failures.append({"copier": name, "run": number, "why": str(error)})
                else:
                    if number:
                        samples[name].append(mine)
                        samples[f"{name}, source"].append(alone)
    report.table(f"latency at {chosen.rate} records/s", samples, COLUMNS)
    settings = {
        name: getattr(chosen, name) for name in ("rate", "idle", "seconds", "warm", "epoch", "far", "round_trip_ms")
    }
    body = {"machine": machine, "settings": settings, **report.measured(samples, failures)}
    if sides:
        report.finish(body, verdict.of_far_latencies(copiers, sides, chosen.round_trip_ms, samples))
    else:
        report.finish(body, verdict.of_latencies(copiers, samples))


if __name__ == "__main__":
    main()
