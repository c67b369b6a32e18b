"""Which code may read the wall clock: people and NTP set it, and each machine has its own.

A new use is a decision. For a time that others read, take `StateWriter.now_ms` or `read_broker_time_ms`; for an
interval, `time.monotonic` or `read_steady_s`. What is left is counted here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
PACKAGES: Final = ("mirror_core", "plugins", "dags")
READERS: Final = frozenset(
    f"{owner}.{name}"
    for owner, names in {
        "time": ("time", "time_ns", "localtime", "gmtime"),
        "datetime": ("now", "utcnow", "today"),
        "datetime.datetime": ("now", "utcnow", "today"),
        "date": ("today",),
        "datetime.date": ("today",),
    }.items()
    for name in names
)

WITH_A_MEASURED_DIFFERENCE: Final = {
    "mirror_core/cli/mirror.py": 2,
    "mirror_core/cli/mirror_list.py": 1,
    "mirror_core/cli/readiness.py": 1,
    "mirror_core/dataplane/epoch_results.py": 1,
    "mirror_core/kafka/cluster_info.py": 2,
    "mirror_core/runbook/snapshot_reader.py": 1,
    "mirror_core/runbook/unplanned_steps.py": 1,
    "mirror_core/state/approvals.py": 1,
    "mirror_core/state/lease.py": 6,
    "mirror_core/state/mirror_link.py": 1,
    "mirror_core/state/run_heartbeat.py": 5,
    "mirror_core/state/watcher_heartbeat.py": 2,
    "mirror_core/sync/mirror_sync.py": 2,
    "mirror_core/sync/offset_follower.py": 3,
    "mirror_core/page/poller.py": 5,
    "mirror_core/page/routes.py": 5,
}
"""Readers know by how much the clock differs from the brokers'."""
BESIDE_A_STEADY_CLOCK: Final = {
    "mirror_core/copy/task.py": 1,
    "mirror_core/dataplane/driver.py": 1,
    "mirror_core/dataplane/epoch_planner.py": 2,
    "mirror_core/dataplane/source_monitor.py": 1,
    "mirror_core/dataplane/task_runner.py": 1,
    "mirror_core/model/timing.py": 4,
    "plugins/mirrorbook_airflow/fence_watch.py": 1,
}
"""Tasks on other machines get times by it; the process itself goes by another one."""
FOR_PEOPLE: Final = {
    "mirror_core/cli/parity.py": 1,
    "mirror_core/cli/salvage.py": 2,
    "mirror_core/dataplane/heartbeat_writer.py": 1,
    "mirror_core/dataplane/prometheus_collector.py": 1,
    "mirror_core/mirrors/mirror_creation.py": 1,
    "mirror_core/mirrors/fence_manual_commands.py": 1,
    "mirror_core/mirrors/fence_metrics.py": 1,
    "mirror_core/mirrors/incremental_verification.py": 1,
    "mirror_core/mirrors/receipt_maintenance.py": 5,
    "mirror_core/parity/certificate_check.py": 1,
    "mirror_core/parity/check.py": 1,
    "mirror_core/parity/parity_table.py": 1,
    "mirror_core/runbook/drill.py": 1,
    "mirror_core/runbook/failback_steps.py": 1,
    "mirror_core/runbook/fence_actions.py": 1,
    "mirror_core/runbook/readiness_report.py": 1,
    "mirror_core/runbook/set_conductor.py": 1,
    "mirror_core/supervisor/supervisor.py": 4,
    "plugins/mirrorbook_airflow/approvals.py": 2,
    "plugins/mirrorbook_airflow/drill_tasks.py": 1,
    "plugins/mirrorbook_airflow/operators.py": 3,
    "plugins/mirrorbook_airflow/replicate_tasks.py": 1,
}
"""Names of files, reports, metrics and events. Nothing is copied, promoted or fenced by them."""
ALLOWED: Final = {**WITH_A_MEASURED_DIFFERENCE, **BESIDE_A_STEADY_CLOCK, **FOR_PEOPLE}


def list_reads(source: str) -> list[int]:
    """Lines that read the wall clock, or hand its reader on. A parameter `now_ms` is the caller's business."""
    return sorted(_find_reads(ast.parse(source), frozenset()))


def _find_reads(node: ast.AST, hidden: frozenset[str]) -> Iterator[int]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        parameters = node.args
        names = {one.arg for one in (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs)}
        assigned = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        hidden |= names | assigned
    if isinstance(node, ast.Attribute) and ast.unparse(node) in READERS:
        yield node.lineno
    if isinstance(node, ast.Name) and node.id == "now_ms" and "now_ms" not in hidden and isinstance(node.ctx, ast.Load):
        yield node.lineno
    if isinstance(node, ast.ImportFrom) and node.module == "time":
        yield from (node.lineno for one in node.names if f"time.{one.name}" in READERS)
    for child in ast.iter_child_nodes(node):
        yield from _find_reads(child, hidden)


def test_each_read_of_the_wall_clock_was_decided() -> None:
    found = {
        str(path.relative_to(ROOT)): len(lines)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if (lines := list_reads(path.read_text(encoding="utf-8")))
    }
    assert found == ALLOWED


@pytest.mark.parametrize(
    "source",
    [
        "age_s = time.time() - began_at",
        "def __init__(self, clock=time.time): pass",
        "at_ms = now_ms()",
        "make_status(clock=now_ms)",
        "field(default_factory=lambda: now_ms())",
        "day = datetime.now(UTC).date()",
        "from time import monotonic, time_ns",
    ],
)
def test_a_read_of_the_wall_clock_is_found(source: str) -> None:
    assert list_reads(source) == [1]


@pytest.mark.parametrize(
    "source",
    [
        "def judge(now_ms): return now_ms - 1",
        "at_ms = writer.now_ms()",
        "began_at = time.monotonic()",
        "moment = datetime.fromtimestamp(at_ms / 1000, UTC)",
    ],
)
def test_another_clock_is_not_the_wall_clock(source: str) -> None:
    assert list_reads(source) == []
