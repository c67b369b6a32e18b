"""What a run leaves behind: its evidence as JSON, and one page for people that needs nothing but itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import jinja2
import msgspec

from mirror_core.decide.steps import STEPS, standing_still
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Partition
from mirror_core.model.run import Run, StepRecord

SCHEMA: Final = "mirrorbook/run/1"


def write_run_report(
    folder: Path,
    run: Run,
    steps: Sequence[StepRecord],
    statuses: Mapping[Partition, PartitionStatus],
) -> Path:
    """Write `run.json` and `report.html` into the folder; returns the page.

    Both are replaced as a whole, so a reader never sees half of one.
    """
    document = {
        "schema": SCHEMA,
        "run": run,
        "steps": list(steps),
        "partitions": [statuses[p] for p in sorted(statuses)],
        "clocks": clocks(run, steps),
    }
    encoded = msgspec.json.format(msgspec.json.encode(document), indent=2)
    _replace(folder / "run.json", encoded)
    page = folder / "report.html"
    _replace(page, _render(run, steps, statuses).encode())
    return page


def clocks(run: Run, steps: Sequence[StepRecord]) -> dict[str, float | None]:
    """Seconds by the conductor's clock. None where a step is missing: unknown is a value.

    `conductor`: run begun to promoted. `write_block_upper`: fence begun to promoted, the first and the last of the
    steps without writes, within which applications' own clocks lie. `working` and `waiting`: of that, inside steps and
    between them. A failback has none of its own: applications stand still in the failover that leads home.
    """
    timed = standing_still(run.plan.kind)
    inside = [s for s in steps if s.step in timed]
    last = next((s for s in inside if s.step == timed[-1]), None)
    if last is None or last.ended_ms is None:
        return dict.fromkeys(("conductor", "write_block_upper", "working", "waiting"))
    first = next((s for s in inside if s.step == timed[0]), None)
    block = (last.ended_ms - first.started_ms) / 1000 if first else None
    working = sum(((s.ended_ms or s.started_ms) - s.started_ms) / 1000 for s in inside)
    return {
        "conductor": (last.ended_ms - run.started_ms) / 1000,
        "write_block_upper": block,
        "working": round(working, 3),
        "waiting": None if block is None else round(max(0.0, block - working), 3),
    }


def _render(run: Run, steps: Sequence[StepRecord], statuses: Mapping[Partition, PartitionStatus]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mirror_core.evidence", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["when"] = _when
    environment.filters["words"] = _words
    return environment.get_template("run.html.j2").render(
        run=run,
        plan=run.plan,
        steps=steps,
        statuses=[statuses[p] for p in sorted(statuses)],
        clocks=clocks(run, steps),
        writes={step.name: step.writes for step in STEPS[run.plan.kind]},
    )


def _when(ms: int | None) -> str:
    """Wall clock in UTC, or a dash."""
    if ms is None:
        return "–"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC")


def _words(value: Any) -> str:
    """One value of a step's evidence, the first twenty of a list."""
    if isinstance(value, tuple | list):
        more = f" … and {len(value) - 20} more" if len(value) > 20 else ""
        return (", ".join(str(item) for item in value[:20]) or "none") + more
    return str(value)


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name("_" + path.name)
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
