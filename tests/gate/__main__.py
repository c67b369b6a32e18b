"""`python -m tests.gate` runs what must pass before a change is taken; `python -m tests.gate nightly` all the rest, and
with names of stages behind that only those.

Everything that a person needs to understand a red run is printed at its end, and kept in `.gate/`.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.gate.events import Failure
from tests.gate.explain import explain, flaky_lines
from tests.gate.running import run_lanes
from tests.gate.shards import lanes
from tests.gate.stages import GATE, NIGHTLY, Stage
from tests.gate.verdict import Run, flaky_after, is_green, runs_again
from tests.support.waiting import how_busy

ROOT: Final = Path(__file__).resolve().parents[2]
BESIDE: Final = 2
"""Processes that have what the others leave: one alone, on a busy machine, would go on long after all others."""
KEPT: Final = ROOT / ".gate"
DURATIONS: Final = ROOT / "tests" / "durations.json"
"""Seconds by file, by stage. A run writes what it measured to `.gate/durations.json`, in the same shape."""


def tell(line: str) -> None:
    print(line, flush=True)


def files_in(folders: Sequence[str]) -> list[str]:
    return sorted(
        path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("test_*.py")
    )


def run_stage(stage: Stage, durations: dict[str, float]) -> Run:
    shares = lanes([files_in(stage.folders), files_in(stage.together)], durations, stage.lanes)
    patient = lanes([files_in(stage.beside)], durations, BESIDE)
    also = f", and {len(patient)} beside them" if patient else ""
    tell(f"{stage.name}: {stage.lanes} process(es) at a time{also} ({how_busy()})")
    run = run_lanes(
        shares,
        patient,
        name=stage.name,
        folder=KEPT,
        marks=stage.marks,
        env=stage.env,
        most_failures=stage.most_failures,
        tell=tell,
    )
    tell(f"{stage.name}: {_counted(run.counts)} in {run.took_s:.0f} s ({how_busy()})")
    return run


def run_once_more(stage: Stage, tests: Sequence[str]) -> Run:
    tell(f"{stage.name}: once more, alone, on fresh clusters: {' '.join(tests)}")
    name = f"{stage.name}-again"
    alone, most = [(tuple(tests),)], stage.most_failures
    return run_lanes(alone, name=name, folder=KEPT, marks="", env=stage.env, most_failures=most, tell=tell)


def judge(stage: Stage, durations: dict[str, float]) -> tuple[Run, Run | None, tuple[Failure, ...]]:
    """The run, the second run of what failed in it where that is allowed, and what is flaky by these two."""
    run = run_stage(stage, durations)
    beside = any(failure.test.startswith(stage.beside) for failure in run.failures)
    tests = runs_again(run, allowed=stage.again and not beside)
    if not tests:
        return run, None, ()
    second = run_once_more(stage, tests)
    return run, second, flaky_after(run, second)


def main(which: Sequence[str]) -> int:
    nightly, wanted = list(which[:1]) == ["nightly"], which[1:]
    unknown = set(wanted) - {stage.name for stage in NIGHTLY}
    if (which and not nightly) or unknown:
        names = ", ".join(stage.name for stage in NIGHTLY)
        tell(f"error: {' '.join(which)} is not a set of tests; give nothing, or nightly, and which of {names}")
        return 2
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir()
    table: dict[str, dict[str, float]] = json.loads(DURATIONS.read_text(encoding="utf-8"))
    measured: dict[str, dict[str, float]] = {}
    totals: dict[str, int] = {}
    flaky: list[Failure] = []
    red: list[str] = []
    green = True
    for stage in [s for s in NIGHTLY if s.name in wanted or not wanted] if nightly else GATE:
        for _ in range(stage.times):
            run, second, lucky = judge(stage, table.get(stage.name, {}))
            measured[stage.name] = {file: round(took, 1) for file, took in sorted(run.seconds.items())}
            for outcome, count in run.counts.items():
                totals[outcome] = totals.get(outcome, 0) + count
            flaky += lucky
            of_nothing = nightly and not wanted and not (run.counts or run.broken)
            if not lucky and not is_green(run) and not of_nothing:
                green = False
                found = explain((*run.failures, *(second.failures if second else ())), run.broken)
                red += found or [f"RED: {stage.name}: no test has passed"]
        if not green and not nightly:
            break
    (KEPT / "durations.json").write_text(json.dumps({**table, **measured}, indent=1) + "\n", encoding="utf-8")
    for line in (*red, *flaky_lines(flaky)):
        tell(line)
    tell(_closing(totals, len({failure.test for failure in flaky})))
    return 0 if green else 1


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{counts.get(outcome, 0)} {outcome}" for outcome in ("passed", "failed", "skipped"))


def _closing(totals: dict[str, int], lucky: int) -> str:
    """What passed in its second run counts as passed: it was said above."""
    moved = {"passed": totals.get("passed", 0) + lucky, "failed": totals.get("failed", 0) - lucky}
    return _counted({**totals, **moved})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
