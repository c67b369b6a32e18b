"""`python -m benchmarks.parity`: what comparing two copies costs, beside reading them at all and a join in Spark.

A topic is copied once. Then each in turn reads both copies: `mirrorbook parity --level 2` in its own process and on
Spark; a loop that fetches the same bytes and looks at batch headers; a full outer join over Spark's Kafka connector.
JSON goes to stdout, a table and the verdicts to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from benchmarks import report
from benchmarks.copiers import COMMAND
from benchmarks.datasets import SETS, load
from benchmarks.ground import DESTINATION, SOURCE, Ground, ground
from benchmarks.measure import Meter
from benchmarks.verdict import Outcome, Verdict
from mirror_core.spark.session import find_spark_java_home
from mirrorbook_tools.sandbox.jars import ensure_jars

LOCK: Final = Path(__file__).parents[1] / "tests" / "kafka-spark.lock"
TOPIC: Final = "bench"
FETCH, JOIN = "fetch", "join"
WAYS: Final = ("local", "spark", FETCH, JOIN)
OF_JOIN: Final = Fraction(1, 10)
OF_FETCH: Final = Fraction(3, 2)
LONGEST_S: Final = 900.0


def command(way: str, at: Ground, name: str, settings: Path) -> Sequence[str]:
    if way in (FETCH, JOIN):
        return [sys.executable, "-m", "benchmarks.rivals", way, str(settings)]
    whole = ("--level=2", "--whole", "--json", f"--runner={way}", f"--output={at.folder / secrets.token_hex(4)}")
    return [*COMMAND, "parity", name, f"--config={at.config_path}", *whole]


def java(at: Ground, side: str) -> dict[str, str]:
    """How Kafka's own client in Spark signs in."""
    config = at.sandbox.cluster(side).client_config("admin")
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    jaas = f'{login} username="{config["sasl.username"]}" password="{config["sasl.password"]}";'
    kept = ("bootstrap.servers", "security.protocol", "sasl.mechanism")
    return {f"kafka.{key}": config[key] for key in kept} | {"kafka.sasl.jaas.config": jaas}


def once(way: str, at: Ground, name: str, settings: Path, gigabytes: float) -> dict[str, float]:
    environment = {**os.environ, "JAVA_HOME": str(find_spark_java_home()), "PYSPARK_PYTHON": sys.executable}
    began = time.monotonic()
    asked = command(way, at, name, settings)
    with (
        subprocess.Popen(asked, stdout=subprocess.PIPE, env=environment, text=True) as process,
        Meter(process.pid, at.brokers()) as meter,
    ):
        said, _ = process.communicate(timeout=LONGEST_S)
        took, used = time.monotonic() - began, meter.read()
    if process.returncode:
        raise SystemExit(f"{way}: exit code {process.returncode}")
    document = json.loads(said if way in ("local", "spark") else said.splitlines()[-1])
    report.say(f"{way}: { ({k: v for k, v in document.items() if isinstance(v, int | str)}) }")
    return {"seconds": took, "cpu_s": used["copier"].cpu_s, "cpu_s_per_gb": used["copier"].cpu_s / gigabytes}


def verdicts(samples: dict[str, list[dict[str, float]]]) -> list[Verdict]:
    best = {way: min(run["cpu_s"] for run in runs) for way, runs in samples.items() if runs}
    made = []
    for other, part in ((JOIN, OF_JOIN), (FETCH, OF_FETCH)):
        target = f"parity: level 2, CPU: at most {float(part):g} of {other}"
        if not {"local", other} <= best.keys():
            made.append(Verdict(target, Outcome.INDETERMINATE, "not measured"))
            continue
        met = best["local"] <= part * best[other]
        says = f"{best['local']:.2f} of {float(part) * best[other]:.2f} s"
        made.append(Verdict(target, Outcome.MET if met else Outcome.MISSED, says))
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parity", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="of 1 KiB each, on each side")
    parser.add_argument("--ways", default=",".join(WAYS), help="comma-separated")
    parser.add_argument("--runs", type=int, default=2)
    chosen = parser.parse_args(arguments)
    machine = report.machine()
    samples: dict[str, list[dict[str, float]]] = defaultdict(list)
    with ground() as at:
        loaded = load(at.source, TOPIC, SETS["d1"], chosen.records)
        name = f"bench-{secrets.token_hex(3)}"
        where = f"--config={at.config_path}"
        create = ("mirror", "create", name, f"--source={SOURCE}", f"--destination={DESTINATION}", f"--topics={TOPIC}")
        for words in ((*create, "--yes"), ("mirror", "start", name)):
            subprocess.run([*COMMAND, *words, where], check=True, stdout=subprocess.DEVNULL)
        copy = ("replicate", name, where, "--runner=local", "--until-caught-up")
        subprocess.run([*COMMAND, *copy], check=True, stdout=subprocess.DEVNULL)
        settings = at.folder / "rivals.json"
        settings.touch(mode=0o600)
        given: dict[str, Any] = {"config": str(at.config_path), "topic": TOPIC, "partitions": SETS["d1"].partitions}
        given |= {"sides": [SOURCE, DESTINATION], "java": [java(at, SOURCE), java(at, DESTINATION)]}
        given["jars"] = ",".join(str(jar) for jar in ensure_jars(LOCK).glob("*.jar"))
        settings.write_text(json.dumps(given), encoding="utf-8")
        for number, way in report.turns(chosen.ways.split(","), chosen.runs):
            report.say(f"run {number} of {chosen.runs}: {way}")
            figures = once(way, at, name, settings, 2 * loaded.gigabytes)
            if number:
                samples[way].append(figures)
    report.table("level 2 of both copies", samples, ("seconds", "cpu_s", "cpu_s_per_gb"))
    body = {"machine": machine, "records": chosen.records, "gigabytes_read": 2 * loaded.gigabytes}
    report.finish({**body, **report.measured(samples, ())}, verdicts(samples))


if __name__ == "__main__":
    main()
