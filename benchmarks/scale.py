"""`python -m benchmarks.scale`: many topics and groups: looks, plans, syncs, and a planned failover beside its floor.

1,000 topics of 5 partitions with a little in each, 500 groups that have committed on ten topics each, and rights by
name on all of them. JSON goes to stdout; what took how long, and the verdicts, to stderr.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from benchmarks import floor, report
from benchmarks.copiers import COMMAND, stop
from benchmarks.crowd import RECORDS, Crowd, commit, create, gather, write
from benchmarks.ground import DESTINATION, SOURCE, Ground, NotReached, ground
from benchmarks.measure import Meter
from benchmarks.verdict import of_scale
from mirror_core.dataplane.epoch_planner import Planner
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets, list_offsets
from mirror_core.kafka.topics import describe_configs
from mirror_core.model.names import MirrorName
from mirror_core.state.mirror_link import find_mirror_link

NAME: Final = "crowd"
PLANS: Final = 5
BEHIND: Final = 2
"""Records that each partition is behind when a data plane comes back."""
BUSY_BEHIND: Final = 5000
BUSY_VALUE: Final = b"x" * 1024
BUSY_EACH: Final = 100
"""Every so many partitions one is that much behind."""
SYNCS: Final = 3
STANDS_BY_S: Final = 45.0
LONGEST_S: Final = 900.0
STILL: Final = ("fence", "promote")
"""From the beginning of the one step to the end of the other applications stand still, with what lies between steps."""


@dataclass(slots=True)
class Bench:
    """One crowd, and what was found."""

    at: Ground
    crowd: Crowd
    found: dict[str, Any]

    def ours(self, *arguments: str, json_too: bool = True) -> tuple[float, Any]:
        """Seconds that a command took, from its start to its end, and what it said."""
        command = [*COMMAND, *arguments, f"--config={self.at.config_path}", *(["--json"] if json_too else [])]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
        took = time.monotonic() - began
        if done.returncode:
            raise NotReached(f"{' '.join(arguments)}: {done.returncode}: {done.stderr[-2000:]}")
        return took, json.loads(done.stdout) if json_too else done.stdout

    def note(self, **found: Any) -> None:
        self.found |= found
        for name, value in found.items():
            report.say(f"{name}: {value}")


def gathered(bench: Bench) -> None:
    """The source's own creation of the topics is the floor of ours: both brokers have just been started."""
    config = bench.at.config.cluster(SOURCE)
    bench.note(create_floor_s=round(create(bench.at.source, config, bench.crowd), 1))
    began = time.monotonic()
    gather(bench.at.source, config, bench.crowd)
    bench.note(gather_s=round(time.monotonic() - began, 1))


def created(bench: Bench) -> None:
    """From `mirror create` until a data plane has made all topics, and until it has copied all."""
    asked_at = time.monotonic()
    ends = (f"--source={SOURCE}", f"--destination={DESTINATION}")
    took, _ = bench.ours(
        "mirror", "create", NAME, *ends, "--topics=crowd.*", "--groups=crowd.*", "--yes", json_too=False
    )
    bench.ours("mirror", "start", NAME, "--yes", json_too=False)
    bench.note(create_s=round(took, 1))
    began = time.monotonic()
    with copying(bench) as (process, url):
        with ClusterClient(bench.at.config.cluster(DESTINATION), timeout_s=60) as west:
            _until(lambda: set(bench.crowd.names()) <= west.metadata().topics.keys(), process)
            bench.note(all_topics_s=round(time.monotonic() - began, 1))
            _until(lambda: _all_there(bench, west), process)
            now = time.monotonic()
            bench.note(all_copied_s=round(now - began, 1), create_to_caught_up_s=round(now - asked_at, 1))
            with Meter(process.pid, bench.at.brokers()) as meter:
                before = meter.read()
                time.sleep(STANDS_BY_S)  # an epoch and a half: what a process that stands by takes
                read = meter.read()
        scrapes = [_scrape(url) for _ in range(3)]
        bench.note(
            scrape_s=round(min(took for took, _ in scrapes), 3),
            scrape_bytes=len(scrapes[-1][1]),
            scrape_samples=sum(not line.startswith("#") for line in scrapes[-1][1].splitlines()),
            idle_cpu_share={
                name: round((one.cpu_s - before[name].cpu_s) / STANDS_BY_S, 3) for name, one in read.items()
            },
            driver_peak_mib=read["copier"].peak_rss_bytes >> 20,
            broker_rss_mib={n: r.peak_rss_bytes >> 20 for n, r in read.items() if n != "copier"},
        )


def planned(bench: Bench) -> None:
    """An epoch's plan, as the driver makes it: alone, on the state that it has left."""
    link, state = find_mirror_link(bench.at.config, MirrorName(NAME))
    took = []
    with ClusterClient(link.source) as source, ClusterClient(link.destination) as destination:
        planner = Planner(link, source, destination)
        for _ in range(PLANS + 1):
            began = time.monotonic()
            work = planner.plan(state, all_ends=False)
            planner.follow_log_start(work.partitions)
            took.append(round(time.monotonic() - began, 3))
            if len(work.partitions) < len(bench.crowd.partitions()):
                raise NotReached(f"a plan of {len(work.partitions)} partitions: {list(work.failed.items())[:3]}")
    bench.note(plan_first_s=took[0], plan_s=took[1:])


def synced(bench: Bench) -> None:
    """The first one has everything to do; then nothing; then every group has gone on."""
    first, said = bench.ours("sync", NAME, "--yes")
    bench.note(sync_first_s=round(first, 1), rows=len(said["rows"]))
    bench.note(sync_s=[round(bench.ours("sync", NAME, "--yes")[0], 1) for _ in range(SYNCS)])
    commit(bench.at.config.cluster(SOURCE), bench.crowd, RECORDS - 1)
    bench.note(sync_groups_moved_s=round(bench.ours("sync", NAME, "--yes")[0], 1))


def came_back(bench: Bench) -> None:
    """A data plane that was away: a little is left everywhere, and much in some. All are to go on from the beginning.

    `quiet_s`: until all that have little are there; `back_s`: until all is.
    """
    write(bench.at.source, bench.crowd, BEHIND)
    write(bench.at.source, bench.crowd, BUSY_BEHIND, every=BUSY_EACH, value=BUSY_VALUE)
    partitions = bench.crowd.partitions()
    busy = set(partitions[::BUSY_EACH])
    with ClusterClient(bench.at.config.cluster(SOURCE), timeout_s=60) as east:
        ends = list_offsets(east, partitions, OffsetPoint.LOG_END)
    began, quiet_s = time.monotonic(), 0.0
    with (
        copying(bench) as (process, _),
        ClusterClient(bench.at.config.cluster(DESTINATION), timeout_s=60) as west,
        Meter(process.pid, {}) as meter,
    ):

        def there() -> bool:
            nonlocal quiet_s
            now = list_known_offsets(west, partitions, OffsetPoint.LOG_END)
            left = {p for p in partitions if now.get(p, 0) < ends[p]}
            if not quiet_s and left <= busy:
                quiet_s = time.monotonic() - began
            return not left

        _until(there, process)
        peak = meter.read()["copier"].peak_rss_bytes >> 20
    bench.note(quiet_s=round(quiet_s, 1), back_s=round(time.monotonic() - began, 1), back_peak_mib=peak)


def failed_over(bench: Bench) -> None:
    """With every group's newest offsets still to be brought over; then the floor."""
    commit(bench.at.config.cluster(SOURCE), bench.crowd, RECORDS)
    names = bench.crowd.names()
    with ClusterClient(bench.at.config.cluster(DESTINATION), timeout_s=60) as west:
        before = describe_configs(west, names)
        plan_s, _ = bench.ours("failover", "plan", NAME)
        took, said = bench.ours("failover", "run", NAME, "--runner=local", "--yes")
        after = describe_configs(west, names)
    steps = {s["step"]: round((s["ended_ms"] - s["started_ms"]) / 1000, 2) for s in said["steps"]}
    bench.note(failover_plan_s=round(plan_s, 1), failover_s=round(took, 1), steps_s=steps)
    times = {s["step"]: s for s in said["steps"]}
    bench.note(still_s=round((times[STILL[-1]]["ended_ms"] - times[STILL[0]]["started_ms"]) / 1000, 2))
    changes = {
        name: {
            key: before[name].overrides.get(key)
            for key in before[name].overrides.keys() | after[name].overrides.keys()
            if before[name].overrides.get(key) != after[name].overrides.get(key)
        }
        for name in names
    }
    took_by = floor.measure(bench.at.config, SOURCE, DESTINATION, bench.crowd, changes)
    bench.note(
        settings_changed=sum(map(len, changes.values())),
        floor_steps_s={step: round(seconds, 2) for step, seconds in took_by.items()},
        floor_s=round(sum(took_by.values()), 2),
    )


@contextmanager
def copying(bench: Bench) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The data plane, and where it serves its metrics."""
    log = bench.at.folder / "replicate.log"
    receipts = bench.at.folder / "receipts"
    command = [*COMMAND, "replicate", NAME, f"--config={bench.at.config_path}", "--runner=local", "--metrics=0"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, f"--receipts={receipts}"], stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        _until(lambda: "/metrics" in log.read_text(), process)
        yield process, next(word for word in log.read_text().split() if word.endswith("/metrics"))
    except NotReached as error:
        raise NotReached(f"{error}: {log.read_text()[-2000:]}") from None
    finally:
        stop(process)


def _until(there: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LONGEST_S
    while not there():
        if process.poll() is not None or time.monotonic() > deadline:
            raise NotReached("the data plane ended, or took too long")
        time.sleep(0.25)


def _all_there(bench: Bench, west: ClusterClient) -> bool:
    ends = list_known_offsets(west, bench.crowd.partitions(), OffsetPoint.LOG_END)
    return sum(ends.values()) >= RECORDS * len(bench.crowd.partitions())


def _scrape(url: str) -> tuple[float, str]:
    began = time.monotonic()
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    return time.monotonic() - began, text


STAGES: Final[tuple[Callable[[Bench], None], ...]] = (gathered, created, planned, synced, came_back, failed_over)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=5, help="of each topic")
    parser.add_argument("--groups", type=int, default=500)
    chosen = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    machine = report.machine()
    with ground() as at:
        bench = Bench(at, Crowd(chosen.topics, chosen.partitions, chosen.groups), found)
        try:
            for stage in STAGES:
                stage(bench)
        except NotReached as error:
            report.say(f"FAILED {error}")
            found["failed"] = str(error)
    report.finish({"machine": machine, **vars(chosen), **found}, of_scale(found))


if __name__ == "__main__":
    main()
