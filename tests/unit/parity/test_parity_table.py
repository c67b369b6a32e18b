"""The table of a planned comparison: what is read of it, and in how much memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirror_core.decide.parity_result import ParityRow
from mirror_core.decide.parity_spans import SPAN_BYTES, ParitySpan, cut_spans
from mirror_core.decide.verification import VerificationBasis
from mirror_core.evidence.file_store import LocalFolder
from mirror_core.evidence.parity_report import to_columns
from mirror_core.evidence.table_schemas import PARITY_ROWS
from mirror_core.model.names import ClusterIdentity, ClusterName, MirrorName
from mirror_core.parity import parity_table
from mirror_core.parity.parity_plan import PLAN_FORMAT, ParityPlan, StoredBasis, encode_plan
from mirror_core.parity.parity_table import SpanTask, format_table_folder, read_parity_rows, write_rows_locally
from tests.support.parity_rows import SIZE, chunk, ends, wanted

PARTITIONS: Final = 10
CHUNKS_PER_SPAN: Final = 50
"""Of records of about 100 bytes, 50,000 in a chunk."""
SPANS_PER_FILE: Final = 40
UNREAD_EACH: Final = 100
"""One chunk of so many was not read."""
MAX_GROWTH: Final = 1.25
"""Rows that are kept would make it 3."""


def plan_of(chunks: int, partitions: int = PARTITIONS) -> ParityPlan:
    each = chunks // partitions
    ranges = tuple(wanted(number, each * SIZE) for number in range(partitions))
    means = {one.partition: 1.0 for one in ranges}
    return ParityPlan(
        format=PLAN_FORMAT,
        mirror=MirrorName("m"),
        producer_id=1,
        source=ClusterIdentity(ClusterName("east"), "e"),
        destination=ClusterIdentity(ClusterName("west"), "w"),
        level=2,
        chunk=SIZE,
        throttle=None,
        config_path="/etc/mirrorbook.yaml",
        planned_ms=1,
        ranges=ranges,
        ends=tuple(row for number in range(partitions) for row in ends(number, each)),
        spans=cut_spans(ranges, means, SIZE, CHUNKS_PER_SPAN * SIZE),
        left_out=(),
        basis=StoredBasis.from_basis(VerificationBasis({}, {}, {}), None),
    )


def rows_of_span(span: ParitySpan) -> Iterator[ParityRow]:
    number = span.range.partition.index
    for at in range(span.range.start // SIZE, span.range.end // SIZE):
        if at % UNREAD_EACH == UNREAD_EACH - 1:
            yield chunk(number, at, error="cluster east: no leader", src_digest="", src_count=None, dst_count=None)
        else:
            yield chunk(number, at)


def write_file(folder: Path, plan: ParityPlan, name: str, rows: list[tuple[str, str, ParityRow]]) -> None:
    """`rows`: span, reading and row."""
    values = [
        {"span": span, "reading": reading, **to_columns(row), "findings": [], "damaged": [], "compared_at": 1}
        for span, reading, row in rows
    ]
    path = folder / format_table_folder(plan) / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(values, schema=PARITY_ROWS.schema), path)


def write_table(folder: Path, plan: ParityPlan) -> None:
    for at in range(0, len(plan.spans), SPANS_PER_FILE):
        spans = plan.spans[at : at + SPANS_PER_FILE]
        write_file(folder, plan, f"part-{at:08}", [(s.id, f"r{at}", row) for s in spans for row in rows_of_span(s)])


def test_of_a_chunk_that_was_read_twice_the_difference_counts(tmp_path: Path) -> None:
    plan = plan_of(PARTITIONS * CHUNKS_PER_SPAN)
    span, other = plan.spans[:2]
    rows = [*rows_of_span(span)]
    differs, unread = chunk(0, 0, dst_digest="other"), [chunk(0, at, error="no leader") for at in range(3)]
    write_file(tmp_path, plan, "one", [(span.id, "r1", row) for row in (differs, *rows[1:])])
    write_file(tmp_path, plan, "two", [(span.id, "r2", row) for row in (*unread, *rows[3:])])
    write_file(tmp_path, plan, "three", [(other.id, "r3", row) for row in rows_of_span(other)])
    read = read_parity_rows(plan, LocalFolder(tmp_path))
    of_span = sorted((row for row in read if row.partition.index == 0), key=lambda row: row.start)
    assert [bool(row.error) for row in of_span[:3]] == [False, True, True]
    assert of_span[0].undecided
    assert sum(row.end - row.start for row in of_span) == CHUNKS_PER_SPAN * SIZE, "no offset twice"
    assert sum(row.end - row.start for row in read) == 2 * CHUNKS_PER_SPAN * SIZE


@pytest.mark.parametrize(("spans", "shared_by"), [(1, 1), (3, 3), (9, 4)])
def test_spans_that_are_compared_at_once_share_the_throttle(
    spans: int, shared_by: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = plan_of(spans * CHUNKS_PER_SPAN, partitions=1)
    large = tuple(replace(span, size_bytes=SPAN_BYTES) for span in plan.spans)
    plan = msgspec.structs.replace(plan, spans=large, throttle=36_000)
    throttles = list[int | None]()

    def compare(task: SpanTask) -> pa.RecordBatch:
        throttles.append(task.comparison.throttle)
        return pa.RecordBatch.from_pylist([], schema=PARITY_ROWS.schema)

    monkeypatch.setattr(parity_table, "compare_spans", compare)
    assert write_rows_locally(plan, LocalFolder(tmp_path), threads=4) == list(large)
    assert throttles == [36_000 // shared_by] * spans


READ = """
import json, resource, sys
from pathlib import Path
from typing import Final
from mirror_core.decide.parity_result import fill_missing_rows, judge_rows
from mirror_core.evidence.file_store import LocalFolder
from mirror_core.parity.check import judge_comparison
from mirror_core.parity.parity_plan import parse_plan
from mirror_core.parity.parity_table import read_parity_rows
folder = Path(sys.argv[1])
plan = parse_plan((folder / "plan.json").read_bytes(), "plan")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = read_parity_rows(plan, LocalFolder(folder))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
result = judge_comparison(
    plan.ranges, [*plan.ends, *rows], folder / "report", source="east", destination="west", level=2, started=0.0,
    seconds=1.0, demands=None,
)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
mib = [kib // 1024 for kib in (before, after, peak)]
unread = sum(bool(row.error) for row in rows)
print(json.dumps([result.verdict, result.chunks, unread, mib]))
"""


@pytest.mark.slow
def test_a_judge_needs_little_more_memory_for_ten_times_as_many_chunks(tmp_path: Path) -> None:
    peaks = []
    for chunks in (100_000, 1_000_000):
        folder, plan = tmp_path / str(chunks), plan_of(chunks)
        write_table(folder, plan)
        (folder / "plan.json").write_bytes(encode_plan(plan))
        del plan
        ran = subprocess.run([sys.executable, "-c", READ, str(folder)], capture_output=True, text=True, check=True)
        verdict, compared, unread, mib = json.loads(ran.stdout)
        print(chunks, mib)
        assert (verdict, compared, unread) == ("indeterminate", chunks * 99 // 100, chunks // 100)
        peaks.append(mib[-1])
    assert peaks[1] <= MAX_GROWTH * peaks[0]
