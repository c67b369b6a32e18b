"""Writes a parity check's evidence."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mirror_core.decide.parity import Row, sample
from mirror_core.evidence.expectations import Judged, judge_table, verdict_of
from mirror_core.evidence.parity_document import result_document
from mirror_core.evidence.shown import html
from mirror_core.evidence.suites import PARITY, Demands
from mirror_core.model.errors import MirrorError
from mirror_core.model.files import writing
from mirror_core.model.names import ClusterName
from mirror_core.model.parity import ParityResult, Verdict

FORMAT: Final = 1
SHOWN: Final = 500
WHAT: Final = "parity report"
ADVICE: Final = "make room and rights there, or give another folder"

SCHEMA: Final = PARITY.schema


class JudgesDisagree(MirrorError):
    """Our rule and Great Expectations disagree on the same table: one of them is wrong."""


@dataclass(frozen=True, slots=True)
class PartitionLine:
    name: str
    start: int
    end: int
    proven: int
    records: int
    differing: int
    unread: int


def warm_up() -> None:
    """Pyarrow imports pandas with its first array: up to a second."""
    pa.array([], pa.int64())


def to_table(rows: Sequence[Row], level: int) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "topic": row.partition.topic,
                "partition": row.partition.index,
                "chunk": row.chunk,
                "start": row.start,
                "end": row.end,
                "level": row.level,
                "src_count": row.src_count,
                "dst_count": row.dst_count,
                "src_digest": row.src_digest,
                "dst_digest": row.dst_digest,
                "compared": sample(row, level),
                "differing": row.differing,
                "error": row.error,
            }
            for row in rows
        ],
        schema=SCHEMA,
    )


def write_report(
    folder: Path,
    result: ParityResult,
    rows: Sequence[Row],
    *,
    source: ClusterName,
    destination: ClusterName,
    level: int,
    started: float,
    demands: Demands | None,
    of_table: Verdict | None = None,
) -> ParityResult:
    """Raises JudgesDisagree after writing the evidence.

    `started`: seconds since the epoch. `table_verdict`: our verdict on the table alone. Failed user expectations
    (`demands`) end a pass.
    """
    with writing(WHAT, folder, ADVICE):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # may hold record contents
    page = folder / "index.html"
    table = to_table(rows, level)
    judged = judge_table(table, folder / "data-docs", demands) if demands else None
    ours = of_table or result.verdict
    agree = judged is None or judged.success == (ours is Verdict.PASSED)
    result = _with_more(replace(result, report=str(page)), judged)
    _write(folder / "table.parquet", lambda path: pq.write_table(table, path, compression="zstd"))
    document = _document(result, source, destination, level, started, judged)
    _write(folder / "result.json", lambda path: path.write_bytes(msgspec.json.format(msgspec.json.encode(document))))
    text = _render(document, _lines(result, rows, level), judged, agree)
    _write(page, lambda path: path.write_text(text, encoding="utf-8"))
    if judged is not None and not agree:
        raise JudgesDisagree(
            f"parity {source} -> {destination}: our verdict is {ours}, Great Expectations says "
            f"{'success' if judged.success else 'failure'}; see {page}. Do not cut over on this; please report it"
        )
    return result


def _with_more(result: ParityResult, judged: Judged | None) -> ParityResult:
    unmet = judged.unmet if judged else ()
    verdict = verdict_of(unmet) if result.verdict is Verdict.PASSED else result.verdict
    return replace(result, verdict=verdict, unmet=tuple(map(str, unmet)))


def _document(
    result: ParityResult,
    source: ClusterName,
    destination: ClusterName,
    level: int,
    started: float,
    judged: Judged | None,
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "source": source,
        "destination": destination,
        "level": level,
        "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="milliseconds"),
        **msgspec.to_builtins(result_document(result)),
        "great_expectations": None
        if judged is None
        else {
            "success": judged.success,
            "expectations": [
                {"type": one.what, "by": one.by, "success": one.held, "where": one.where} for one in judged.held
            ],
        },
    }


def _lines(result: ParityResult, rows: Sequence[Row], level: int) -> list[PartitionLine]:
    lines = []
    by_partition: dict[Any, list[Row]] = {}
    for row in rows:
        by_partition.setdefault(row.partition, []).append(row)
    for partition, mine in by_partition.items():
        lines.append(
            PartitionLine(
                str(partition),
                min(row.start for row in mine),
                max(row.end for row in mine),
                result.proven.get(partition, 0),
                sum(sample(row, level) for row in mine),
                sum(row.differing for row in mine),
                sum(1 for row in mine if row.error),
            )
        )
    return sorted(lines, key=lambda line: (not line.differing, not line.unread, line.name))


def _render(document: dict[str, Any], lines: list[PartitionLine], judged: Judged | None, agree: bool) -> str:
    return html("parity.html.j2").render(
        **document,
        lines=lines[:SHOWN],
        more_lines=max(0, len(lines) - SHOWN),
        shown=SHOWN,
        judged=judged,
        agree=agree,
    )


def _write(path: Path, write: Callable[[Path], object]) -> None:
    temporary = path.with_name(f"_{path.name}.tmp")
    with writing(WHAT, path, ADVICE):
        temporary.touch(mode=0o600)
        write(temporary)
        os.replace(temporary, path)
