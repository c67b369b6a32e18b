"""A run's `run.json`, and its self-contained HTML page."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from mirror_core.decide.reckoning import format_counted, format_error, format_forecast, list_forecast_rows
from mirror_core.decide.steps import RUN_STEPS, list_standstill_steps, measure_standstill_s
from mirror_core.evidence.shown import load_template
from mirror_core.evidence.summary import NO_PROOF, answer_questions
from mirror_core.evidence.timeline import TIMELINE_WIDTH, build_timeline, parse_entries
from mirror_core.model.files import report_write_errors
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Partition, format_reverse_name
from mirror_core.model.run import Run, StepEvidence, StepRecord

RUN_SCHEMA: Final = "mirrorbook/run/2"
MAX_TABLE_ROWS: Final = 1000


def write_run_report(
    folder: Path,
    run: Run,
    steps: Sequence[StepRecord],
    statuses: Mapping[Partition, PartitionStatus],
    step_outputs: Mapping[str, Mapping[str, object]],
    *,
    sides: tuple[str, str],
    chronicle: Sequence[str],
    proof: StepEvidence = NO_PROOF,
) -> Path:
    """Returns the page. Both files are replaced atomically.

    `step_outputs`: step outputs. `sides`: source and destination. `chronicle`: the audit log. `proof`: certificate
    coverage.
    """
    _replace_report(folder / "run.json", _write_document(run, steps, statuses, step_outputs))
    page = folder / "report.html"
    _replace_report(page, _render_page(run, steps, statuses, sides, chronicle, proof))
    return page


def _write_document(
    run: Run,
    steps: Sequence[StepRecord],
    statuses: Mapping[Partition, PartitionStatus],
    step_outputs: Mapping[str, Mapping[str, object]],
) -> Iterator[bytes]:
    head = {
        "schema": RUN_SCHEMA,
        "run": run,
        "steps": list(steps),
        "clocks": compute_clocks(run, steps),
        "forecast": list_forecast_rows(run, steps),
    }
    for number, (key, value) in enumerate(head.items()):
        yield b'%s\n"%s": ' % (b"," if number else b"{", key.encode())
        yield msgspec.json.format(msgspec.json.encode(value), indent=2)
    yield b',\n"left": {'
    for number, (step, values) in enumerate(step_outputs.items()):
        yield b'%s\n"%s": ' % (b"," if number else b"", step.encode())
        yield msgspec.json.encode(values)
    yield b'},\n"partitions": ['
    for number, partition in enumerate(sorted(statuses)):
        yield b",\n" if number else b"\n"
        yield msgspec.json.encode(statuses[partition])
    yield b"]}\n"


def compute_clocks(run: Run, steps: Sequence[StepRecord]) -> dict[str, float | None]:
    """Seconds by the conductor's clock. None if a step is missing.

    `conductor`: run begun to promoted. `write_block_upper`: fence begun to promoted, an upper bound of the write
    block. `working`, `waiting`: inside and between its steps. A failback has none: applications are stopped in the
    reverse failover.
    """
    timed_steps = list_standstill_steps(run.plan.kind, run.plan.mode)
    inside = [s for s in steps if s.step in timed_steps]
    last_step = next((s for s in inside if s.step == timed_steps[-1]), None)
    if last_step is None or last_step.ended_ms is None:
        return dict.fromkeys(("conductor", "write_block_upper", "working", "waiting"))
    block = measure_standstill_s(run, steps)
    working = sum(((s.ended_ms or s.started_ms) - s.started_ms) / 1000 for s in inside)
    return {
        "conductor": (last_step.ended_ms - run.started_ms) / 1000,
        "write_block_upper": block,
        "working": round(working, 3),
        "waiting": None if block is None else round(max(0.0, block - working), 3),
    }


def _render_page(
    run: Run,
    steps: Sequence[StepRecord],
    statuses: Mapping[Partition, PartitionStatus],
    sides: tuple[str, str],
    chronicle: Sequence[str],
    proof: StepEvidence,
) -> Iterator[bytes]:
    plan = run.plan
    approved = [
        *((fact.name, fact.value) for fact in plan.bound_facts),
        *((name, value) for part in (plan.figures, plan.partitions, plan.groups) for name, value in part.items()),
        *(("right given at promotion", right) for right in plan.rights or ()),
        *((f"topic {topic}", f"strategy {strategy}") for topic, strategy in plan.strategies.items()),
    ]
    stream = load_template("run.html.j2", when=_format_time_ms).stream(
        run=run,
        plan=plan,
        steps=steps,
        statuses=[statuses[p] for p in sorted(statuses)[:MAX_TABLE_ROWS]],
        partitions=len(statuses),
        approved=approved[:MAX_TABLE_ROWS],
        approved_in_all=len(approved),
        clocks=compute_clocks(run, steps),
        back=format_reverse_name(plan.mirror),
        answers=list(answer_questions(run, steps, *sides, proof)),
        forecast=[
            (row.subject, row.item, format_forecast(row), format_counted(row), format_error(row), row.basis)
            for row in list_forecast_rows(run, steps)[:MAX_TABLE_ROWS]
        ],
        picture=build_timeline(run, parse_entries(chronicle)),
        width=TIMELINE_WIDTH,
        writes={step.name: step.writes for step in RUN_STEPS[plan.kind, plan.mode]},
    )
    return (part.encode() for part in stream)


def _format_time_ms(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC")


def _replace_report(path: Path, content: Iterable[bytes]) -> None:
    temporary = path.with_name("_" + path.name)
    with report_write_errors("report of a run", path, "make room and rights there, then resume the run"):
        with temporary.open("wb") as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
