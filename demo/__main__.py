"""`python -m demo`: the whole story on this machine, and a verdict.

Exit code: 0 nothing lost, doubled or moved; 1 something was, or the demo failed; 4 nothing was there to judge.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path
from typing import Final

import httpx
from confluent_kafka import KafkaException

from demo.scenario import Scenario
from demo.stage import AirflowStage
from mirror_core.model.errors import MirrorError
from mirrorbook_tools.demo.environment import MIRROR
from mirrorbook_tools.demo.interrupts import Interrupts
from mirrorbook_tools.demo.terminal_screen import Screen
from mirrorbook_tools.sandbox.broker import JVM_OPTIONS

ABOUT: Final = (
    "Two Kafka clusters on this machine, east and west, and an Airflow. One application writes numbered orders, 200 a "
    "second; another one reads them. We kill east under load, go on on west, bring everything home, and count every "
    "order on both sides. It takes five minutes. Behind each $ is the command that does the same without Airflow. "
    "Ctrl-C stops everything."
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description="Mirrorbook's demonstration")
    parser.add_argument("--dir", type=Path, default=Path(".demo"), help="folder for clusters, Airflow and logs")
    folder: Path = parser.parse_args().dir
    # Brokers and Spark sessions that live for minutes don't earn back what Java's second compiler costs.
    os.environ.setdefault(JVM_OPTIONS, "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
    try:
        with Interrupts() as interrupts, Screen(sys.stdout) as screen:
            screen.paragraph(ABOUT)
            with AirflowStage(folder, screen, interrupts) as stage:
                return _play(stage)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1
    except (MirrorError, KafkaException, httpx.HTTPError) as error:
        print(f"error: {error}\nlogs: {folder.absolute()}", file=sys.stderr)
        return 1


def _play(stage: AirflowStage) -> int:
    screen = stage.screen
    screen.act("Two clusters, two applications, and Airflow")
    stage.set_up()
    page = f"{stage.airflow.url}/mirrorbook/mirrors/{MIRROR}"
    screen.say(f"watch it: {page}")
    screen.say(f"user admin  password {stage.airflow.password()}")
    scenario = Scenario(stage)
    verdict = scenario.play()
    screen.act("verdict")
    for line in verdict.lines():
        screen.line(line)
    screen.line("")
    screen.line(f"evidence of the runs, with reports and Data Docs: {stage.evidence}")
    screen.line(f"logs: {stage.airflow.folder / 'logs'}, {stage.applications.folder}")
    if sys.stdout.isatty() and sys.stdin.isatty():
        scenario.watch_over()
        _stay(stage, page)
    return verdict.exit_code


def _stay(stage: AirflowStage, page: str) -> None:
    """Until Ctrl-C."""
    stage.screen.act("Airflow and both clusters go on until you press Ctrl-C")
    stage.screen.line(f"the page on call opens: {page}")
    stage.screen.line(f"user admin  password {stage.airflow.password()}")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        stage.screen.line("")


if __name__ == "__main__":
    sys.exit(main())
