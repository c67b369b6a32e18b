"""`python -m demo`: the whole story on this machine, and a verdict.

Exit code: 0 nothing lost, doubled or moved; 1 something was, or the demo failed; 4 nothing was there to judge.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from confluent_kafka import KafkaException

from demo.airflow import Airflow
from demo.scenario import Scenario
from demo.stage import MIRROR, Stage
from mirror_core.demo.interrupts import Interrupts
from mirror_core.model.errors import MirrorError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description="Mirrorbook's demonstration")
    parser.add_argument("--dir", type=Path, default=Path(".demo"), help="folder for clusters, Airflow and logs")
    folder: Path = parser.parse_args().dir
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

    try:
        with Interrupts() as interrupts, Stage(folder, say, interrupts) as stage:
            return _play(stage, say)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1
    except (MirrorError, KafkaException, httpx.HTTPError) as error:
        print(f"error: {error}\nlogs: {folder.absolute()}", file=sys.stderr)
        return 1


def _play(stage: Stage, say: Callable[[str], None]) -> int:
    stage.set_up()
    say(f"Airflow: {stage.airflow.url}")
    verdict = Scenario(stage, say).play()
    print("\nverdict", *verdict.lines(), sep="\n", end="\n\n")
    print(f"evidence of the runs, with reports and Data Docs: {stage.evidence}")
    print(f"logs: {stage.airflow.folder / 'logs'}, {stage.applications.folder}", flush=True)
    if sys.stdout.isatty() and sys.stdin.isatty():
        _stay(stage.airflow)
    return verdict.exit_code


def _stay(airflow: Airflow) -> None:
    """Until Ctrl-C."""
    print(f"\nthe page on call opens: {airflow.url}/mirrorbook/mirrors/{MIRROR}")
    print(f"user admin  password {airflow.password()}")
    print("Ctrl-C ends it all", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    sys.exit(main())
