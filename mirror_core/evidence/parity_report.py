"""The evidence of a parity check: sizes and digests, never record contents."""

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

from mirror_core.decide.parity_result import ParityRow, count_sample
from mirror_core.evidence.expectation_suites import PARITY, TableExpectations
from mirror_core.evidence.expectations import TableJudgement, combine_verdicts, judge_table
from mirror_core.evidence.html_templates import load_template
from mirror_core.model.errors import MirrorError
from mirror_core.model.files import report_write_errors
from mirror_core.model.json_documents import JsonDocument
from mirror_core.model.names import ClusterName
from mirror_core.model.parity_verdict import ParityResult, ParityVerdict


class ProvenOffset(msgspec.Struct, frozen=True, kw_only=True):
    """Compared equal up to here."""

    topic: str
    partition: int
    offset: int
    """Next offset after the last compared equal."""


class ParityFindingDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One difference."""

    topic: str
    partition: int
    offset: int | None
    kind: str
    """missing, extra, reordered, key, value, headers, timestamp, log start, log end, altered, unreadable on CLUSTER."""
    detail: str


class ParityResultDocument(JsonDocument, frozen=True, kw_only=True):
    """Samples included. User expectations do not change `proven`."""

    verdict: ParityVerdict
    records: int
    """Compared."""
    chunks: int
    seconds: float
    proven: tuple[ProvenOffset, ...]
    findings: tuple[ParityFindingDocument, ...]
    reasons: tuple[str, ...]
    """Why it is indeterminate."""
    unmet: tuple[str, ...]
    """User expectations that failed or are unknown."""
    report: str
    """Empty: none requested."""


def to_parity_document(result: ParityResult) -> ParityResultDocument:
    return ParityResultDocument(
        verdict=result.verdict,
        records=result.records,
        chunks=result.chunks,
        seconds=result.seconds,
        proven=tuple(
            ProvenOffset(topic=partition.topic, partition=partition.index, offset=offset)
            for partition, offset in sorted(result.verified_ends.items())
        ),
        findings=tuple(
            ParityFindingDocument(
                topic=finding.partition.topic,
                partition=finding.partition.index,
                offset=finding.offset,
                kind=finding.kind,
                detail=finding.detail,
            )
            for finding in result.findings
        ),
        reasons=result.reasons,
        unmet=result.unmet_expectations,
        report=result.report,
    )


REPORT_FORMAT: Final = 1
MAX_LISTED_ROWS: Final = 500
REPORT_NAME: Final = "parity report"
PAGE_TEMPLATE: Final = "parity.html.j2"
REPORT_ADVICE: Final = "make room and rights there, or give another folder"
PARITY_SCHEMA: Final = PARITY.schema


class JudgesDisagree(MirrorError):
    """Our rule and Great Expectations disagree on one table."""


@dataclass(frozen=True, slots=True)
class ParityPartitionLine:
    name: str
    start: int
    end: int
    proven: int
    records: int
    differing: int
    unread: int
    undecided: int = 0
    held_from: int = 0
    """Lower offsets were removed by retention on both sides."""


def warm_up() -> None:
    """Pyarrow imports pandas with its first array: up to a second. A template imports Jinja2."""
    pa.array([], pa.int64())
    load_template(PAGE_TEMPLATE)


def to_columns(row: ParityRow) -> dict[str, Any]:
    return {
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
        "differing": row.differing,
        "error": row.error,
    }


def to_table(rows: Sequence[ParityRow], level: int) -> pa.Table:
    return pa.Table.from_pylist(
        [{**to_columns(row), "compared": count_sample(row, level)} for row in rows], schema=PARITY_SCHEMA
    )


def write_parity_report(
    folder: Path,
    result: ParityResult,
    rows: Sequence[ParityRow],
    *,
    source: ClusterName,
    destination: ClusterName,
    level: int,
    started: float,
    demands: TableExpectations | None,
    table_verdict: ParityVerdict | None = None,
) -> ParityResult:
    """Raises JudgesDisagree after writing the evidence.

    `started`: seconds since the epoch. `table_verdict`: ours on the table alone. Failed user expectations (`demands`)
    end a pass.
    """
    with report_write_errors(REPORT_NAME, folder, REPORT_ADVICE):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # may hold record contents
    page = folder / "index.html"
    table = to_table(rows, level)
    judged = judge_table(table, folder / "data-docs", demands) if demands else None
    own_verdict = table_verdict or result.verdict
    agree = judged is None or judged.success == (own_verdict is ParityVerdict.PASSED)
    result = _apply_user_expectations(replace(result, report=str(page)), judged)
    _write_file(folder / "table.parquet", lambda path: pq.write_table(table, path, compression="zstd"))
    document = _to_document(result, source, destination, level, started, judged)
    _write_file(
        folder / "result.json", lambda path: path.write_bytes(msgspec.json.format(msgspec.json.encode(document)))
    )
    name = f"{folder.parent.name}/{folder.name}"  # as orders/parity-20260131T120000Z, or run-orders-failover-…/parity
    text = _render(document, _to_partition_lines(result, rows, level), judged, agree, name)
    _write_file(page, lambda path: path.write_text(text, encoding="utf-8"))
    if judged is not None and not agree:
        raise JudgesDisagree(
            f"parity {source} -> {destination}: our verdict is {own_verdict}, Great Expectations says "
            f"{'success' if judged.success else 'failure'}; see {page}. Do not cut over on this; please report it"
        )
    return result


def _apply_user_expectations(result: ParityResult, judged: TableJudgement | None) -> ParityResult:
    unmet = judged.unmet if judged else ()
    verdict = combine_verdicts(unmet) if result.verdict is ParityVerdict.PASSED else result.verdict
    return replace(result, verdict=verdict, unmet_expectations=tuple(map(str, unmet)))


def _to_document(
    result: ParityResult,
    source: ClusterName,
    destination: ClusterName,
    level: int,
    started: float,
    judged: TableJudgement | None,
) -> dict[str, Any]:
    return {
        "format": REPORT_FORMAT,
        "source": source,
        "destination": destination,
        "level": level,
        "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="milliseconds"),
        **msgspec.to_builtins(to_parity_document(result)),
        "great_expectations": None
        if judged is None
        else {
            "success": judged.success,
            "expectations": [
                {
                    "type": expectation.what,
                    "by": expectation.by,
                    "success": expectation.held,
                    "where": expectation.where,
                }
                for expectation in judged.held
            ],
        },
    }


def _to_partition_lines(result: ParityResult, rows: Sequence[ParityRow], level: int) -> list[ParityPartitionLine]:
    lines = []
    by_partition: dict[Any, list[ParityRow]] = {}
    for row in rows:
        by_partition.setdefault(row.partition, []).append(row)
    for partition, partition_rows in by_partition.items():
        lines.append(
            ParityPartitionLine(
                str(partition),
                min(row.start for row in partition_rows),
                max(row.end for row in partition_rows),
                result.verified_ends.get(partition, 0),
                sum(count_sample(row, level) for row in partition_rows),
                sum(row.differing for row in partition_rows),
                sum(1 for row in partition_rows if row.error),
                sum(row.undecided for row in partition_rows),
                result.first_held_offsets.get(partition, 0),
            )
        )
    return sorted(lines, key=lambda line: (not line.differing, not line.undecided, not line.unread, line.name))


def _render(
    document: dict[str, Any], lines: list[ParityPartitionLine], judged: TableJudgement | None, agree: bool, name: str
) -> str:
    return load_template(PAGE_TEMPLATE).render(
        **document,
        name=name,
        lines=lines[:MAX_LISTED_ROWS],
        more_lines=max(0, len(lines) - MAX_LISTED_ROWS),
        proved_offsets=sum(max(0, line.proven - line.held_from) for line in lines),
        held_offsets=sum(max(0, max(line.end, line.proven) - line.held_from) for line in lines),
        differing=sum(line.differing for line in lines),
        unread=sum(line.unread for line in lines),
        shown=MAX_LISTED_ROWS,
        judged=judged,
        agree=agree,
    )


def _write_file(path: Path, write: Callable[[Path], object]) -> None:
    temporary = path.with_name(f"_{path.name}.tmp")
    with report_write_errors(REPORT_NAME, path, REPORT_ADVICE):
        temporary.touch(mode=0o600)
        write(temporary)
        os.replace(temporary, path)
