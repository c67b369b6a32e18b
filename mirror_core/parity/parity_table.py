"""A planned comparison's rows as a table."""

from __future__ import annotations

import io
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mirror_core.decide.parity_result import ParityRow, ParityRowBuffer, choose_worst_rows
from mirror_core.decide.parity_spans import ParitySpan, pack_spans
from mirror_core.evidence.file_store import Folder
from mirror_core.evidence.parity_report import to_columns
from mirror_core.evidence.table_schemas import PARITY_ROWS
from mirror_core.kafka.connection_pool import CONNECTION_POOL
from mirror_core.model.errors import BadRequest, Indeterminate
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityFinding
from mirror_core.model.timing import now_ms
from mirror_core.parity.check import DEFAULT_THREADS, divide_throttle
from mirror_core.parity.compare import CompareTask, compare_task, to_unread_rows
from mirror_core.parity.parity_plan import ParityPlan

TABLE_NAME: Final = "rows of a comparison"
_ROWS_PER_BATCH: Final = 5_000
_TABLE_NAME: Final = re.compile(r"\w+(\.\w+){1,3}")
_ROW_COLUMNS: Final = [column.name for column in PARITY_ROWS.columns if column.name != "compared_at"]
ReadRows = Callable[[Sequence[str]], Iterator[Mapping[str, Any]]]
"""These columns of each row. Called more than once."""
TABLE_ADVICE: Final = "make room and rights there, or give another folder (--table)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanTask:
    """Holds no secret."""

    comparison: CompareTask
    """Covers the ranges of these spans."""
    spans: tuple[ParitySpan, ...]


def make_span_tasks(plan: ParityPlan, packed: Sequence[tuple[ParitySpan, ...]], at_once: int) -> list[SpanTask]:
    """`at_once`: tasks that share the throttle."""
    return [
        SpanTask(
            comparison=CompareTask(
                config_path=plan.config_path,
                source=plan.source,
                destination=plan.destination,
                level=plan.level,
                chunk=plan.chunk,
                pieces=tuple(span.range for span in spans),
                throttle=divide_throttle(plan.throttle, at_once),
            ),
            spans=spans,
        )
        for spans in packed
    ]


def compare_spans(task: SpanTask) -> pa.RecordBatch:
    """Both sides of each span, in one task."""
    return _to_batch(task.spans, compare_task(task.comparison))


def build_lost_rows(task: SpanTask, error: str) -> pa.RecordBatch:
    return _to_batch(task.spans, to_unread_rows(task.comparison, error))


def _to_batch(spans: Sequence[ParitySpan], rows: Iterable[ParityRow]) -> pa.RecordBatch:
    find_span, reading, time_ms = _SpanFinder(spans), secrets.token_hex(8), now_ms()
    return pa.RecordBatch.from_pylist(
        [
            {
                "span": find_span.find(row).id,
                "reading": reading,
                **to_columns(row),
                "findings": _list_findings(row.findings),
                "damaged": _list_findings(row.damaged),
                "compared_at": time_ms * 1000,
            }
            for row in rows
        ],
        schema=PARITY_ROWS.schema,
    )


class _SpanFinder:
    def __init__(self, spans: Iterable[ParitySpan]) -> None:
        self._spans: dict[Partition, list[ParitySpan]] = {}
        for span in spans:
            self._spans.setdefault(span.range.partition, []).append(span)

    def find(self, row: ParityRow) -> ParitySpan:
        return next(
            span for span in self._spans[row.partition] if span.range.start <= row.start and row.end <= span.range.end
        )


def _list_findings(findings: Iterable[ParityFinding]) -> list[dict[str, object]]:
    return [{"offset": one.offset, "kind": one.kind, "detail": one.detail} for one in findings]


def format_table_folder(plan: ParityPlan) -> str:
    return f"mirror={quote(plan.mirror, safe='')}/plan={plan.digest}"


def make_wave_name(number: int) -> str:
    """Unique: Spark jobs that append to one folder at a time delete each other's files."""
    return f"{number}-{secrets.token_hex(8)}"


def format_wave_folder(plan: ParityPlan, wave: str) -> str:
    return f"{format_table_folder(plan)}/wave={wave}"


def is_table_name(table: str) -> bool:
    """`catalog.database.table`, or without the catalog; else a folder."""
    return _TABLE_NAME.fullmatch(table) is not None


def open_table_folder(table: str, open_folder: Callable[[str], Folder]) -> Folder:
    """BadRequest for the name of a table."""
    if is_table_name(table):
        raise BadRequest(
            f"{table} is the name of a table, which only a Spark session with its catalog reaches: use --runner spark;"
            f" or give a folder (./{table})"
        )
    return open_folder(table)


def list_missing_spans(plan: ParityPlan, folder: Folder) -> list[ParitySpan]:
    present = {row["span"] for row in _read_files(folder, _list_files(plan, folder), ["span"])}
    return [span for span in plan.spans if span.id not in present]


def write_rows_locally(plan: ParityPlan, folder: Folder, threads: int = DEFAULT_THREADS) -> list[ParitySpan]:
    """In threads of this process, a file for each task. Returns the spans that were compared."""
    missing = list_missing_spans(plan, folder)
    packed = pack_spans(missing)
    tasks = make_span_tasks(plan, packed, min(threads, len(packed)))
    wave_folder = format_wave_folder(plan, make_wave_name(1))

    def write(task: SpanTask) -> None:
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_batches([compare_spans(task)]), buffer, compression="zstd")
        name = f"{wave_folder}/part-{secrets.token_hex(8)}.parquet"
        folder.write(TABLE_NAME, name, buffer.getvalue(), TABLE_ADVICE)

    with CONNECTION_POOL.keep_connections(), ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(write, task) for task in tasks]:
            done.result()
    return missing


def read_parity_rows(plan: ParityPlan, folder: Folder) -> list[ParityRow]:
    """Indeterminate for a file that cannot be read. Reads one file at a time."""
    return collect_parity_rows(plan, partial(_read_files, folder, _list_files(plan, folder)))


def collect_parity_rows(plan: ParityPlan, read: ReadRows) -> list[ParityRow]:
    """Neighbours that agree become one row. Reads twice: first to find spans that were read more than once."""
    readings, repeated_spans = dict[str, str](), set[str]()
    for values in read(["span", "reading"]):
        if readings.setdefault(values["span"], values["reading"]) != values["reading"]:
            repeated_spans.add(values["span"])
    spans = {span.id: span for span in plan.spans}
    rows, repeated = ParityRowBuffer(), dict[str, list[ParityRow]]()
    for values in read(_ROW_COLUMNS):
        row, span = _parse_row(values), spans.get(values["span"])
        if span is None or not _is_inside(row, span):
            continue
        if span.id in repeated_spans:
            repeated.setdefault(span.id, []).append(row)
        else:
            rows.add([row])
    for readings_of_span in repeated.values():
        rows.add(choose_worst_rows(readings_of_span))
    return rows.rows


def _is_inside(row: ParityRow, span: ParitySpan) -> bool:
    is_chunk = row.chunk >= 0 and row.start < row.end
    return is_chunk and (
        row.partition == span.range.partition and span.range.start <= row.start and row.end <= span.range.end
    )


def _parse_row(values: Mapping[str, Any]) -> ParityRow:
    partition = Partition(values["topic"], values["partition"])
    return ParityRow(
        partition=partition,
        chunk=values["chunk"],
        start=Offset(values["start"]),
        end=Offset(values["end"]),
        level=values["level"],
        src_count=values["src_count"],
        dst_count=values["dst_count"],
        src_digest=values["src_digest"],
        dst_digest=values["dst_digest"],
        differing=values["differing"],
        findings=_parse_findings(partition, values["findings"]),
        damaged=_parse_findings(partition, values["damaged"]),
        error=values["error"],
    )


def _parse_findings(partition: Partition, values: Iterable[Mapping[str, Any]]) -> tuple[ParityFinding, ...]:
    return tuple(
        ParityFinding(partition=partition, offset=row["offset"], kind=row["kind"], detail=row["detail"])
        for row in values
    )


def _list_files(plan: ParityPlan, folder: Folder) -> list[str]:
    """Without what a killed job has left in `_temporary`."""
    names = folder.names(format_table_folder(plan))
    return sorted(
        name
        for name in names
        if name.endswith(".parquet") and not any(part.startswith("_") for part in name.split("/"))
    )


def _read_files(folder: Folder, paths: Sequence[str], columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    for path in paths:
        try:
            file = pq.ParquetFile(io.BytesIO(folder.read(path)))
            for batch in file.iter_batches(_ROWS_PER_BATCH, columns=[*columns]):
                yield from batch.to_pylist()
        except (OSError, pa.ArrowInvalid) as error:
            raise Indeterminate(
                f"{folder.where}/{path}: rows of a comparison cannot be read: {error}. Compare into another folder"
            ) from error


def encode_span_task(task: SpanTask) -> bytes:
    return msgspec.json.encode(task)


def parse_span_task(payload: bytes) -> SpanTask:
    return msgspec.json.decode(payload, type=SpanTask)
