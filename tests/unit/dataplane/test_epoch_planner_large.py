"""A mirror of 50,000 partitions, led by 100 brokers on each side: what its driver does in an epoch, and what a run's
conductor does, is soon done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.unit.large_plan import BROKERS, TOPICS, WIDTH

pytestmark = pytest.mark.timed

MOST_MIB = 1024
MOST_S = 5.0
"""CPU, of a plan: both looks, log starts, and the tasks as they are handed out."""
RUN_MIB = 512
RUN_S = 20.0
"""CPU, too: how long generated brokers take to answer says nothing about a conductor."""
PLAN = ("plan", "log starts", "tasks")
PATIENCE = {"MIRRORBOOK_PATIENCE": "40"}
"""One process answers for a hundred brokers: on a busy machine it is slow, and not silent."""


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "mirrorbook.yaml"
    with ExitStack() as stack:
        servers = {name: _generated(stack, side) for name, side in (("east", "a"), ("west", "b"))}
        lines = [f'  {name}: {{bootstrap.servers: "{where}"}}' for name, where in servers.items()]
        path.write_text("\n".join(["clusters:", *lines]), encoding="utf-8")
        yield path


def _generated(stack: ExitStack, side: str) -> str:
    command = [sys.executable, "-m", "tests.support.generated_cluster", side, *map(str, (TOPICS, WIDTH, BROKERS))]
    process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    assert process.stdin is not None
    assert process.stdout is not None
    stack.callback(process.stdin.close)
    return ",".join(f"127.0.0.1:{port}" for port in json.loads(process.stdout.readline())[:3])


def measured(module: str, config: Path) -> Any:
    command = [sys.executable, "-m", module, str(config)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **PATIENCE}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    took = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(took, indent=2))
    return took


def test_a_plan_takes_little_cpu_and_a_driver_with_everything_behind_little_memory(config: Path) -> None:
    took = measured("tests.unit.large_plan", config)
    assert sum(took["worked"][action] for action in PLAN) <= MOST_S, took
    assert took["mib"] <= MOST_MIB, took


def test_both_sides_are_observed_a_failover_is_planned_and_its_journal_written(config: Path) -> None:
    took = measured("tests.unit.large_run", config)
    assert sum(took["worked"].values()) <= RUN_S, took
    assert took["mib"] <= RUN_MIB, took
