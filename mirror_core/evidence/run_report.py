"""A run's `run.json`, and its self-contained HTML page."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from mirror_core.decide.reckoning import counted_in_words, error_in_words, foretold_in_words, rows
from mirror_core.decide.steps import STEPS, standing_still, stood_still_s
from mirror_core.evidence.shown import html
from mirror_core.evidence.summary import UNASKED, answers
from mirror_core.evidence.timeline import WIDTH, entries_of, timeline
from mirror_core.model.files import writing
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Partition, reverse_name
from mirror_core.model.run import Evidence, Run, StepRecord

SCHEMA: Final = "mirrorbook/run/2"
SHOWN: Final = 1000


def write_run_report(
    folder: Path,
    run: Run,
    steps: Sequence[StepRecord],
    statuses: Mapping[Partition, PartitionStatus],
    left: Mapping[str, Mapping[str, object]],
    *,
    sides: tuple[str, str],
    told: Sequence[str],
    proof: Evidence = UNASKED,
) -> Path:
    """Returns the page. Both files are replaced atomically.

    `step_outputs`: step outputs. `sides`: source and destination. `chronicle`: the audit log. `proof`: certificate
    coverage.
    """
    _replace(folder / "run.json", _document(run, steps, statuses, left))
    page = folder / "report.html"
    _replace(page, _pages(run, steps, statuses, sides, told, proof))
    return page


def _document(
    run: Run,
    steps: Sequence[StepRecord],
    statuses: Mapping[Partition, PartitionStatus],
    left: Mapping[str, Mapping[str, object]],
) -> Iterator[bytes]:
    head = {
        "schema": SCHEMA,
        "run": run,
        "steps": list(steps),
        "clocks": clocks(run, steps),
        "forecast": rows(run, steps),
    }
    for number, (key, value) in enumerate(head.items()):
        yield b'%s\n"%s": ' % (b"," if number else b"{", key.encode())
        yield msgspec.json.format(msgspec.json.encode(value), indent=2)
    yield b',\n"left": {'
    for number, (step, values) in enumerate(left.items()):
        yield b'%s\n"%s": ' % (b"," if number else b"", step.encode())
        yield msgspec.json.encode(values)
    yield b'},\n"partitions": ['
    for number, partition in enumerate(sorted(statuses)):
        yield b",\n" if number else b"\n"
        yield msgspec.json.encode(statuses[partition])
    yield b"]}\n"


def clocks(run: Run, steps: Sequence[StepRecord]) -> dict[str, float | None]:
    """Seconds by the conductor's clock. None if a step is missing.

    `conductor`: run begun to promoted. `write_block_upper`: fence begun to promoted, an upper bound of the write
    block. `working`, `waiting`: inside and between its steps. A failback has none: applications are stopped in the
    reverse failover.
    """
    timed = standing_still(run.plan.kind, run.plan.mode)
    inside = [s for s in steps if s.step in timed]
    last = next((s for s in inside if s.step == timed[-1]), None)
    if last is None or last.ended_ms is None:
        return dict.fromkeys(("conductor", "write_block_upper", "working", "waiting"))
    block = stood_still_s(run, steps)
    working = sum(((s.ended_ms or s.started_ms) - s.started_ms) / 1000 for s in inside)
    return {
        "conductor": (last.ended_ms - run.started_ms) / 1000,
        "write_block_upper": block,
        "working": round(working, 3),
        "waiting": None if block is None else round(max(0.0, block - working), 3),
    }


def _pages(
    run: Run,
    steps: Sequence[StepRecord],
    statuses: Mapping[Partition, PartitionStatus],
    sides: tuple[str, str],
    told: Sequence[str],
    proof: Evidence,
) -> Iterator[bytes]:
    plan = run.plan
    approved = [
        *((fact.name, fact.value) for fact in plan.bound),
        *((name, value) for part in (plan.figures, plan.partitions, plan.groups) for name, value in part.items()),
        *(("right given at promotion", right) for right in plan.rights or ()),
        *((f"topic {topic}", f"strategy {strategy}") for topic, strategy in plan.strategies.items()),
    ]
    stream = html("run.html.j2", when=_when).stream(
        run=run,
        plan=plan,
        steps=steps,
        statuses=[statuses[p] for p in sorted(statuses)[:SHOWN]],
        partitions=len(statuses),
        approved=approved[:SHOWN],
        approved_in_all=len(approved),
        clocks=clocks(run, steps),
        back=reverse_name(plan.mirror),
        answers=list(answers(run, steps, *sides, proof)),
        forecast=[
            (row.what, row.of, foretold_in_words(row), counted_in_words(row), error_in_words(row), row.by)
            for row in rows(run, steps)[:SHOWN]
        ],
        picture=timeline(run, entries_of(told)),
        width=WIDTH,
        writes={step.name: step.writes for step in STEPS[plan.kind, plan.mode]},
    )
    return (part.encode() for part in stream)


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC")


def _replace(path: Path, content: Iterable[bytes]) -> None:
    temporary = path.with_name("_" + path.name)
    with writing("report of a run", path, "make room and rights there, then resume the run"):
        with temporary.open("wb") as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
