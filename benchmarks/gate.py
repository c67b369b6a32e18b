"""`python -m benchmarks.gate`: what a planned failover reads behind its approval, after little was mirrored and much.

For each size a topic is filled, mirrored, proved beside the copying (as by `--prove-at`), and failed over with the data
plane still at work. What the run then compared is its own word, and beside it all that went over loopback meanwhile, by
the kernel's count: copying, comparing, looks, everything on the machine. JSON goes to stdout, the verdicts to stderr.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks import report
from benchmarks.copiers import COMMAND, stop
from benchmarks.datasets import SETS, load
from benchmarks.ground import DESTINATION, SOURCE, Ground, NotReached, ground
from benchmarks.verdict import of_gate
from mirror_core.dataplane.counters import Counters
from mirror_core.kafka.client import ClusterClient
from mirror_core.mirrors.background_work import BackgroundVerification
from mirror_core.mirrors.describe import describe_mirror
from mirror_core.model.timing import now_ms
from mirror_core.state.mirror_link import find_mirror_link

TOPIC: Final = "bench"
NAME: Final = "gate"
LONGEST_S: Final = 3600.0
EVERY_S: Final = 5.0
"""Between two comparisons beside the copying; `replicate --prove-at` takes five minutes."""
RATE: Final = 200_000_000
LOOPBACK: Final = Path("/sys/class/net/lo/statistics/rx_bytes")


def measure(records: int) -> dict[str, Any]:
    """One failover after so many records of 1 KiB."""
    with ground() as at:
        loaded = load(at.source, TOPIC, SETS["d1"], records)
        report.say(f"{loaded.gigabytes:.1f} GB are on the source")
        ends = (f"--source={SOURCE}", f"--destination={DESTINATION}", f"--topics={TOPIC}")
        _ours(at, "mirror", "create", NAME, *ends, "--yes")
        _ours(at, "mirror", "start", NAME, "--yes")
        with copying(at):
            began = time.monotonic()
            with ClusterClient(at.config.cluster(DESTINATION), timeout_s=60) as west:
                at.reached(west, TOPIC, loaded.offsets, LONGEST_S, lambda: False)
            copied_s = time.monotonic() - began
            proved_s = _proved(at, loaded.offsets)
            before = int(LOOPBACK.read_text())
            began = time.monotonic()
            said = json.loads(_ours(at, "failover", "run", NAME, "--runner=local", "--yes", "--json"))
            took, moved = time.monotonic() - began, int(LOOPBACK.read_text()) - before
    return {
        "gigabytes": loaded.gigabytes,
        "copied_s": round(copied_s, 1),
        "proved_s": round(proved_s, 1),
        "failover_s": round(took, 1),
        "loopback_bytes": moved,
        **figures(said["steps"], SETS["d1"].value_bytes),
    }


def figures(steps: Sequence[Mapping[str, Any]], value_bytes: int) -> dict[str, Any]:
    """By the run's own words: bytes of record values that it compared, of each side, and for how long nobody wrote."""
    by_name = {step["step"]: step for step in steps}
    compared = int(by_name["prove"]["evidence"]["records"]) + int(by_name["parity"]["evidence"]["records_since_proof"])
    still_ms = by_name["promote"]["ended_ms"] - by_name["fence"]["started_ms"]
    return {"compared_bytes": compared * value_bytes, "still_s": round(still_ms / 1000, 2)}


@contextmanager
def copying(at: Ground) -> Iterator[None]:
    log = at.folder / "replicate.log"
    command = [*COMMAND, "replicate", NAME, f"--config={at.config_path}", "--runner=local"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, f"--receipts={at.folder / 'receipts'}"], stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        yield
    finally:
        stop(process)


def _proved(at: Ground, offsets: int) -> float:
    """Seconds until all that was mirrored was seen to be equal, beside the copying."""
    link, _ = find_mirror_link(at.config, NAME)
    began = time.monotonic()
    with BackgroundVerification(link, RATE, Counters(), report.say, interval_s=EVERY_S):
        while time.monotonic() < began + LONGEST_S:
            rows = describe_mirror(*find_mirror_link(at.config, NAME), now_ms()).rows
            if sum(row.verified_end or 0 for row in rows if row.partition.startswith(TOPIC)) >= offsets:
                return time.monotonic() - began
            time.sleep(1.0)
    raise NotReached(f"not all of {offsets} offsets were proved within {LONGEST_S:g} s")


def _ours(at: Ground, *arguments: str) -> str:
    done = subprocess.run(
        [*COMMAND, *arguments, f"--config={at.config_path}"],
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    if done.returncode:
        raise NotReached(f"{' '.join(arguments)}: {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=__doc__)
    parser.add_argument("--records", default="200000,20000000", help="of 1 KiB each; comma-separated, the least first")
    chosen = parser.parse_args(arguments)
    machine = report.machine()
    runs: list[dict[str, Any]] = []
    for count in map(int, chosen.records.split(",")):
        runs.append(measure(count))
        report.say(str(runs[-1]))
    report.finish({"machine": machine, "runs": runs}, of_gate(runs))


if __name__ == "__main__":
    main()
