"""`python -m benchmarks.copy`: how long a copy takes, and what it costs the copier and both brokers.

For each data set: brings up two clusters of one broker each, loads one topic, and lets each copier in turn copy it to
a fresh topic of the same name, round after round. JSON goes to stdout, a table and the verdicts to stderr.

`--far near,east,west`: every copier goes through a relay, and copies with no side far away, with the source, with the
destination.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from benchmarks import report, verdict
from benchmarks.copiers import COPIERS, MIRROR_MAKER, running
from benchmarks.datasets import SETS, DataSet, Loaded, load
from benchmarks.follower import FOLLOWER, Follower
from benchmarks.ground import DESTINATION, NEAR, SIDES, Ground, NotReached, ground
from benchmarks.measure import Meter, Reading
from mirror_core.kafka.client import ClusterClient

TOPIC: Final = "bench"
COPY_TIMEOUT_S: Final = 900.0
COLUMNS: Final = (
    "copy_s",
    "mb_per_s",
    "copier_cpu_s_per_gb",
    "east_broker_cpu_s_per_gb",
    "west_broker_cpu_s_per_gb",
    "all_cpu_s_per_gb",
    "copier_peak_rss_mb",
    "start_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What was measured between the first copied offsets that were seen and the last one."""

    start_s: float
    seconds: float
    gigabytes: float
    """Of record values, copied within the phase."""
    before: dict[str, Reading]
    after: dict[str, Reading]

    def figures(self) -> dict[str, float]:
        used = {name: self.after[name].cpu_s - self.before[name].cpu_s for name in self.after}
        return {
            "start_s": self.start_s,
            "start_cpu_s": self.before["copier"].cpu_s,
            "copy_s": self.seconds,
            "copy_s_per_gb": self.seconds / self.gigabytes,
            "mb_per_s": self.gigabytes * 1000 / self.seconds,
            **{f"{name}_cpu_s_per_gb": cpu_s / self.gigabytes for name, cpu_s in used.items()},
            "all_cpu_s_per_gb": sum(used.values()) / self.gigabytes,
            "copier_peak_rss_mb": self.after["copier"].peak_rss_bytes / 1e6,
        }


class Bench:
    """One data set on the clusters, copied again and again."""

    def __init__(self, at: Ground, data: DataSet, loaded: Loaded) -> None:
        self.at = at
        self.data = data
        self.loaded = loaded
        self.follower = Follower(at, TOPIC)

    def copy(self, kind: str) -> dict[str, float]:
        """Let one copier copy the topic once; its figures. NotReached when it doesn't."""
        if kind == FOLLOWER:
            return self._follow()
        self.at.clear(TOPIC)
        # MirrorMaker gives records new offsets, so its copy of a log with holes is shorter.
        wanted = self.loaded.records if kind in MIRROR_MAKER else self.loaded.offsets
        begun = time.monotonic()
        with (
            ClusterClient(self.at.config.cluster(DESTINATION)) as west,
            running(kind, self.at, TOPIC, self.data.codec) as copier,
            Meter(copier.process.pid, self.at.brokers()) as meter,
        ):
            begun = time.monotonic()
            seen = copier.reaches(self.at, west, TOPIC, 1, COPY_TIMEOUT_S)
            first, before = time.monotonic(), meter.read()
            copier.reaches(self.at, west, TOPIC, wanted, COPY_TIMEOUT_S)
            last, after = time.monotonic(), meter.read()
        if seen >= wanted:
            raise NotReached("all was there at the first look: too quick to be measured, take more --records")
        return Phase(
            start_s=first - begun,
            seconds=last - first,
            gigabytes=self.loaded.gigabytes * (1 - seen / wanted),
            before=before,
            after=after,
        ).figures()

    def _follow(self) -> dict[str, float]:
        self.follower.up()
        east = self.at.brokers()["east_broker"]
        with Meter(self.follower.pid, {"east_broker": east}) as meter:
            begun, before = time.monotonic(), meter.read()
            self.follower.follow()
            last, after = time.monotonic(), meter.read()
        self.follower.forget()
        figures = Phase(
            start_s=0.0, seconds=last - begun, gigabytes=self.loaded.gigabytes, before=before, after=after
        ).figures()
        # The broker was there before, and stays: it has no start of its own.
        return {name: value for name, value in figures.items() if not name.startswith("start_")}


@dataclass(frozen=True, slots=True)
class Distance:
    """Which sides are far from the copiers, in turn; none: no relay stands between."""

    sides: Sequence[str] = ()
    round_trip_ms: float = 0.0


def measure(
    data_set: str, records: int, copiers: Sequence[str], runs: int, distance: Distance
) -> tuple[dict[str, object], Figures]:
    """One data set from loading to the last run: its part of the report, and the samples."""
    samples: Figures = defaultdict(list)
    failures: list[dict[str, object]] = []
    with ground(linked=bool(distance.sides)) as at:
        report.say(f"{data_set}: loading {records} records: {SETS[data_set].says}")
        loaded = load(at.source, TOPIC, SETS[data_set], records)
        bench = Bench(at, SETS[data_set], loaded)
        for number, kind in report.turns(copiers, runs):
            # Nobody warms up for a distance of its own.
            for side in (distance.sides if number else distance.sides[:1]) or (NEAR,):
                name = verdict.at_distance(kind, side) if distance.sides else kind
                report.say(f"{data_set}: run {number} of {runs}: {name}")
                try:
                    with at.far(side, distance.round_trip_ms):
                        figures = bench.copy(kind)
                except NotReached as error:
                    report.say(f"{data_set}: {name}: {error}")
                    failures.append({"copier": name, "run": number, "why": str(error)})
                else:
                    if number:
                        samples[name].append(figures)
    shape = {**asdict(loaded), "mean_batch_bytes": round(loaded.log_bytes / max(1, loaded.batches))}
    return {"loaded": shape, **report.measured(samples, failures)}, samples


Figures = defaultdict[str, list[dict[str, float]]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    every = (*COPIERS, FOLLOWER)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.copy", description=__doc__)
    parser.add_argument("--sets", default="d1", help=f"comma-separated, of {', '.join(SETS)}")
    parser.add_argument("--records", type=int, default=200_000, help="of each data set")
    parser.add_argument("--copiers", default=",".join(every), help="in this order, comma-separated")
    parser.add_argument("--runs", type=int, default=2, help="rounds that count; in each one every copier copies once")
    parser.add_argument("--far", default="", help=f"which side is far away, comma-separated, of {', '.join(SIDES)}")
    parser.add_argument("--round-trip-ms", type=float, default=80.0, help="to the side that is far away")
    chosen = parser.parse_args(arguments)
    sets, sides = chosen.sets.split(","), chosen.far.split(",") if chosen.far else []
    # Followers are brokers: nothing goes through a relay there.
    copiers = [copier for copier in chosen.copiers.split(",") if not (sides and copier == FOLLOWER)]
    given = ((sets, SETS, "data sets"), (copiers, every, "copiers"), (sides, SIDES, "sides"))
    for names, known, what in given:
        if unknown := set(names) - set(known):
            parser.error(f"unknown {what} {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    machine = report.machine()
    bodies: dict[str, object] = {}
    verdicts = []
    for name in sets:
        bodies[name], samples = measure(
            name, chosen.records, copiers, chosen.runs, Distance(sides, chosen.round_trip_ms)
        )
        report.table(f"{name}, {SETS[name].says}", samples, COLUMNS)
        if sides:
            verdicts += verdict.of_distances(name, copiers, sides, samples)
        else:
            verdicts += verdict.of_copies(name, copiers, samples)
    settings = {"records": chosen.records, "far": sides, "round_trip_ms": chosen.round_trip_ms if sides else 0}
    report.finish({"machine": machine, **settings, "sets": bodies}, verdicts)


if __name__ == "__main__":
    main()
