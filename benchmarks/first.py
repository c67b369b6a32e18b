"""`python -m benchmarks.first`: what it takes from `mirror create` until the first record is over.

Each round is a mirror of a topic of its own: `mirror create`, `mirror start`, and `replicate` until a record can be
read on the destination. Wall and CPU seconds (all our processes with Spark's JVM and workers, no broker) of each of
the three apart. JSON goes to stdout, a table and the verdicts to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.copiers import stop
from benchmarks.ground import DESTINATION, POLL_S, SOURCE, TIMEOUT_S, Ground, ground
from benchmarks.measure import Meter
from mirror_core.kafka.client import ClusterClient
from tests.support.cli_process import MIRRORBOOK
from tests.support.kafka_clients import produce

PARTITIONS: Final = 6
RECORDS: Final = 1000
WALL_S: Final = 12.0
CPU_S: Final = 14.0
STAGES: Final = ("create", "start", "first_record")


def command(*arguments: str) -> dict[str, float]:
    """One command to its end: wall and CPU seconds."""
    began = time.monotonic()
    process = subprocess.Popen([*MIRRORBOOK, *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"mirrorbook {' '.join(arguments)}: exit code {process.returncode}")
    return {"wall_s": time.monotonic() - began, "cpu_s": used.ru_utime + used.ru_stime}


def first_record(at: Ground, topic: str, arguments: Sequence[str], log: Path) -> dict[str, float]:
    """`replicate`, until the destination's log has a record, and then ended."""
    began = time.monotonic()
    with log.open("wb") as out, ClusterClient(at.config.cluster(DESTINATION)) as west:
        process = subprocess.Popen([*MIRRORBOOK, *arguments], stdout=out, stderr=subprocess.STDOUT)
        try:
            with Meter(process.pid, {}) as meter:
                while not at.ends(west, topic):
                    if process.poll() is not None or time.monotonic() - began > TIMEOUT_S:
                        raise SystemExit(f"no record came: {log.read_text(encoding='utf-8')}")
                    time.sleep(POLL_S)
                wall_s = time.monotonic() - began
                return {"wall_s": wall_s, "cpu_s": meter.read()["copier"].cpu_s}
        finally:
            stop(process)


def once(at: Ground, runner: str) -> dict[str, dict[str, float]]:
    """A mirror from nothing to its first record; figures of each stage."""
    name = f"first-{secrets.token_hex(4)}"
    admin = AdminClient({**at.source.client_config("admin")})
    admin.create_topics([NewTopic(name, PARTITIONS)])[name].result(TIMEOUT_S)
    produce(at.source, name, RECORDS)
    config = ("--config", str(at.config_path))
    sides = ("--source", SOURCE, "--destination", DESTINATION, "--topics", name)
    copying = ("replicate", name, *config, "--runner", runner, "--receipts", str(at.folder / "receipts"))
    made = {
        "create": command("mirror", "create", name, *sides, "--yes", *config),
        "start": command("mirror", "start", name, "--yes", *config),
        "first_record": first_record(at, name, copying, at.folder / f"{name}.log"),
    }
    command("mirror", "stop", name, "--yes", *config)
    return made


def totals(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """Medians over the rounds, of all stages together."""
    return {
        what: statistics.median(sum(stage[what] for stage in stages.values()) for stages in rounds)
        for what in ("wall_s", "cpu_s")
    }


def verdicts(found: Mapping[str, float]) -> dict[str, str]:
    """Against the targets; nothing measured is `indeterminate`."""
    targets = {"wall_s": WALL_S, "cpu_s": CPU_S}
    return {
        what: "indeterminate" if what not in found else "met" if found[what] <= most else "missed"
        for what, most in targets.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first", description=__doc__)
    parser.add_argument("--runner", choices=("spark", "local"), default="spark")
    parser.add_argument("--runs", type=int, default=3, help="after one that warms up the brokers and isn't counted")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with ground() as at:
        once(at, "local")
        rounds = []
        for _ in range(options.runs):
            rounds.append(once(at, options.runner))
            shown = (f"{name} {s['wall_s']:.1f} s {s['cpu_s']:.1f} CPU-s" for name, s in rounds[-1].items())
            print(f"{', '.join(shown)}; load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    found = totals(rounds) if rounds else {}
    print(f"medians: {found}; {verdicts(found)}; load before: {load:.1f}", file=sys.stderr)
    print(json.dumps({"runner": options.runner, "load": load, "rounds": rounds, "medians": found}, indent=2))


if __name__ == "__main__":
    main()
