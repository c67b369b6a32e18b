"""Receipts of days put together vouch for the same, and are told by fewer rows."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.evidence import receipt_files
from mirror_core.evidence.certificates import Coverage, DatedPiece, compute_coverage, find_uncovered, make_blank_pieces
from mirror_core.evidence.file_store import LocalFolder
from mirror_core.evidence.receipt_files import (
    DestinationLogs,
    ReceiptRow,
    ReceiptsFile,
    compact_logs,
    parse_pieces,
    parse_receipts,
    write_receipts,
)
from mirror_core.evidence.table_schemas import RECEIPTS
from mirror_core.model.names import Offset, Partition
from mirror_core.model.receipt_heads import ReceiptFileEntry
from mirror_core.model.task_messages import PIECE_OFFSETS, Receipt, ReceiptPiece
from tests.support.sample_receipts import MIRROR, ORDERS, receipt

DAY, LATER = "2026-09-21", "2026-09-22"
OFFSETS = 100
"""Of each epoch's receipts."""
OURS, OTHER = frozenset({"d" * 32}), frozenset({"e" * 32})
LOGS = DestinationLogs({"orders": OURS}, frozenset(), {ORDERS: Offset(0)})


def rows_of(*told: tuple[int, Receipt]) -> list[ReceiptRow]:
    """Receipts, each with its generation."""
    made = list[ReceiptRow]()
    for generation, one in told:
        made += parse_receipts(receipt_files.pack_receipts(generation, one.epoch, [one]).content).to_pylist()
    return made


def put_together(
    rows: Sequence[ReceiptRow], logs: DestinationLogs = LOGS, later: Sequence[ReceiptRow] = (), *, is_new: bool = True
) -> tuple[list[ReceiptRow], int]:
    """The day's rows, and pieces left out. `later`: rows of another day."""
    dated = [*({**row, "date": DAY} for row in rows), *({**row, "date": LATER} for row in later)]
    compacted = [*compact_logs(dated, {DAY}, {DAY} if is_new else (), logs)]
    made = [{name: row[name] for name in row if name != "date"} for _, some, _ in compacted for row in some]
    assert {day for day, _, _ in compacted} <= {DAY}
    return made, sum(left_out for _, _, left_out in compacted)


def together(rows: Sequence[ReceiptRow], logs: DestinationLogs = LOGS) -> list[ReceiptRow]:
    return put_together(rows, logs)[0]


def says(rows: Sequence[ReceiptRow], start: int = 0) -> Coverage:
    told = [DatedPiece(row["generation"], row["epoch"], piece) for row in rows for piece in parse_pieces(row)]
    return compute_coverage(told, start)


def test_receipts_that_follow_each_other_are_one_and_count_the_same() -> None:
    rows = rows_of((1, receipt(0, 10, gaps=1)), (1, receipt(10, 30, epoch=1)), (1, receipt(30, 30, epoch=2)))
    (whole,) = together(rows)
    assert (whole["first"], whole["next"], whole["epoch"]) == (0, 30, 2)
    assert (whole["records"], whole["gaps"], whole["bytes"], whole["batches"]) == (29, 1, 3000, 2)
    assert (whole["started"], whole["ended"]) == (rows[0]["started"], rows[2]["ended"])
    assert len(whole["pieces"]) == 1
    assert says([whole]) == says(rows)


def test_holes_and_other_generations_stay_apart() -> None:
    rows = rows_of((1, receipt(0, 10)), (1, receipt(12, 20, epoch=1)), (2, receipt(20, 30, epoch=0)))
    assert [(row["first"], row["next"]) for row in together(rows)] == [(0, 10), (12, 20), (20, 30)]


def test_what_lies_below_the_logs_start_is_dropped_and_what_reaches_over_it_is_not() -> None:
    rows = rows_of((1, receipt(0, 10)), (2, receipt(10, 30, epoch=1)), (3, receipt(30, 50, epoch=2)))
    logs = replace(LOGS, starts={ORDERS: Offset(20)})
    assert [row["first"] for row in together(rows, logs)] == [10, 30]
    assert together(rows, replace(LOGS, starts={ORDERS: Offset(50)})) == []


def test_what_reaches_over_the_logs_start_takes_no_neighbour_with_it() -> None:
    rows = rows_of((1, receipt(0, 10)), (1, receipt(10, 30, epoch=1)), (1, receipt(30, 50, epoch=2)))
    logs = replace(LOGS, starts={ORDERS: Offset(5)})
    (whole,) = together(rows, logs)
    assert len(whole["pieces"]) == 2
    assert says([whole], 5) == says(rows, 5)
    assert says([whole], 5).pieces[0].first == 10


def test_receipts_of_topics_that_are_gone_go_with_them_unless_that_is_not_known() -> None:
    rows = rows_of((1, receipt(0, 10)), (1, receipt(0, 10, partition=Partition("gone", 0))))
    assert {row["topic"] for row in together(rows)} == {"orders"}
    assert together(rows, replace(LOGS, ids={"orders": OTHER})) == []
    assert len(together(rows, replace(LOGS, uncertain_topics=frozenset({"gone"})))) == 2


def test_nothing_is_taken_of_a_topic_that_some_broker_knows_or_may_know() -> None:
    rows = rows_of((1, receipt(0, 10)))
    for told, unseen, left in (
        (OTHER, (), 0),
        (OTHER | OURS, (), 1),
        (OTHER, ("orders",), 1),
        (frozenset[str](), ("orders",), 1),
        (frozenset[str](), (), 0),
    ):
        assert len(together(rows, replace(LOGS, ids={"orders": told}, uncertain_topics=frozenset(unseen)))) == left


def test_what_is_kept_where_the_logs_start_is_not_known_takes_no_neighbour_with_it() -> None:
    rows = rows_of((1, receipt(0, 10)), (1, receipt(10, 30, epoch=1)), (1, receipt(30, 50, epoch=2)))
    for told in (OTHER | OURS, frozenset[str]()):
        (whole,) = together(rows, DestinationLogs({"orders": told}, frozenset({"orders"}), {ORDERS: Offset(0)}))
        assert says([whole], 5) == says(rows, 5)


def test_what_was_told_anew_on_a_later_day_is_dropped() -> None:
    """A recopy into the same topic, or a source that has lost records."""
    old, new = rows_of((1, receipt(0, 10)), (1, receipt(10, 20, epoch=1))), rows_of((2, receipt(10, 15)))
    made, out = put_together(old, later=new)
    assert out == 1
    assert says([*made, *new]) == says([*old, *new])


def test_put_together_again_nothing_changes() -> None:
    rows = together(rows_of((1, receipt(0, 10)), (1, receipt(10, 30, epoch=1)), (2, receipt(40, 50))))
    assert put_together(rows, is_new=False) == (rows, 0)


LENGTHS = st.lists(st.tuples(st.integers(0, PIECE_OFFSETS), st.integers(0, 3), st.integers(0, 2)), max_size=12)


@given(lengths=LENGTHS, cut=st.integers(0, 12))
def test_before_and_after_the_same_is_vouched_for_whatever_was_put_together(
    lengths: list[tuple[int, int, int]], cut: int
) -> None:
    """Epochs with holes, overlaps and new generations; of some days all, of the others nothing is put together."""
    at, generation, told = 0, 1, list[tuple[int, Receipt]]()
    for epoch, (length, hole, what) in enumerate(lengths):
        generation += what == 1
        first = max(0, at - 7) if what == 2 else at + hole
        told.append((generation, receipt(first, first + length, epoch=epoch)))
        at = first + length
    rows = rows_of(*told)
    old, new = rows[:cut], rows[cut:]
    after = [*put_together(old, later=new)[0], *new]
    assert says(after) == says(rows)
    assert sum(row["records"] for row in after) == sum(row["records"] for row in rows)
    logs = defaultdict[int, int](int)
    for row in after:
        logs[row["generation"]] += 1
    assert len(after) <= len(rows)


@given(
    spans=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9))), start=st.integers(0, 40), size=st.integers(0, 40)
)
def test_what_is_vouched_for_and_what_is_not_are_together_all_there_is(
    spans: list[tuple[int, int]], start: int, size: int
) -> None:
    told = [
        DatedPiece(1, n, ReceiptPiece(first=Offset(first), next=Offset(first + length), records=0, digest="0"))
        for n, (first, length) in enumerate(spans)
    ]
    found = compute_coverage(told, start)
    rest = find_uncovered(found, Offset(start), Offset(start + size))
    covered = {offset for piece in found.pieces for offset in range(piece.first, piece.next)}
    assert [offset for first, end in rest for offset in range(first, end)] == [
        offset for offset in range(start, start + size) if offset not in covered
    ]


def test_pieces_to_be_read_are_cut_where_chunks_are() -> None:
    cut = make_blank_pieces((Offset(PIECE_OFFSETS - 5), Offset(2 * PIECE_OFFSETS)))
    assert [(piece.first, piece.next) for piece in cut] == [
        (PIECE_OFFSETS - 5, PIECE_OFFSETS),
        (PIECE_OFFSETS, 2 * PIECE_OFFSETS),
    ]
    assert [(piece.first, piece.next) for piece in make_blank_pieces((Offset(3), Offset(7)))] == [(3, 7)]


def write_day(folder: Path, partitions: int, epochs: int) -> None:
    """Files of `epochs` epochs with a receipt of each partition, and their heads."""
    entries, began_ms = list[ReceiptFileEntry](), int(datetime.fromisoformat(f"{DAY}T00:00Z").timestamp() * 1000)
    topics, numbers = [f"orders.{number // 10}" for number in range(partitions)], [*range(10)] * (partitions // 10)
    for epoch in range(epochs):
        first, ended = epoch * OFFSETS, began_ms + epoch * 30_000
        chosen = random.Random(epoch)
        piece = {"first": first, "next": first + OFFSETS, "records": OFFSETS}
        constant: dict[str, Any] = {
            "generation": 1,
            "epoch": epoch,
            "task": 3,
            **piece,
            "gaps": 0,
            "batches": 3,
            "bytes": 10_000,
        }
        constant |= {"source_topic_id": "5" * 32, "destination_topic_id": "d" * 32, "source_end": first + OFFSETS}
        columns = {name: [value] * partitions for name, value in constant.items()}
        columns |= {"started": [ended] * partitions, "ended": [ended] * partitions}
        pieces = [[{**piece, "digest": f"{chosen.getrandbits(128):032x}"}] for _ in range(partitions)]
        table = pa.table({**columns, "topic": topics, "partition": numbers, "pieces": pieces}, schema=RECEIPTS.schema)
        content = io.BytesIO()
        pq.write_table(table, content, compression="zstd")
        file = ReceiptsFile(DAY, f"epoch-{1:08}-{epoch:010}.parquet", content.getvalue(), partitions)
        write_receipts(LocalFolder(folder), MIRROR, file)
        entries.append(ReceiptFileEntry(file.name, file.sha256, file.pieces, stored=True))
    (folder / "heads.json").write_bytes(msgspec.json.encode(entries))


COMPACT = '''
import json, sys, tempfile, time
from pathlib import Path
import msgspec
from mirror_core.evidence.file_store import LocalFolder
from mirror_core.evidence.receipt_files import DestinationLogs, ReceiptBuckets, compact_days, scan_receipts
from mirror_core.model.names import Partition
from mirror_core.model.receipt_heads import ReceiptFileEntry, ReceiptsHead
from tests.support.sample_receipts import MIRROR
folder, day, began = Path(sys.argv[1]), sys.argv[2], time.monotonic()
entries = msgspec.json.decode((folder / "heads.json").read_bytes(), type=tuple[ReceiptFileEntry, ...])
heads = {"hour": ReceiptsHead(mirror=MIRROR, part=f"{day}T07", files=entries, location="")}
def read_peak_kib():
    """`ru_maxrss` would count what the process had before exec: the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))

before = read_peak_kib()
with tempfile.TemporaryDirectory() as spill:
    buckets = ReceiptBuckets(Path(spill))
    _, checked = scan_receipts(LocalFolder(folder), MIRROR, lambda: heads, buckets.begin)
    starts = {Partition(topic, number): 0 for topic in buckets.topics for number in range(10)}
    logs = DestinationLogs(dict.fromkeys(buckets.topics, frozenset({"d" * 32})), frozenset(), starts)
    read = read_peak_kib(), time.process_time()
    file, left_out = compact_days(buckets, {day}, {day}, logs)[day]
peak = read_peak_kib()
print("MiB and CPU-s", before // 1024, read[0] // 1024, read[1], peak // 1024, time.process_time(), file=sys.stderr)
(folder / "compacted.parquet").write_bytes(file.content)
print(json.dumps([len(checked.readable), left_out, peak // 1024, time.monotonic() - began]))
'''


@pytest.mark.slow
def test_a_day_of_many_receipts_needs_no_more_memory_than_a_day_of_few(tmp_path: Path) -> None:
    """All rows of this day as objects take 1.4 GB."""
    partitions, epochs = 200, 2_880
    write_day(tmp_path, partitions, epochs)
    ran = subprocess.run([sys.executable, "-c", COMPACT, str(tmp_path), DAY], stdout=subprocess.PIPE, check=True)
    files, left_out, peak_mib, _ = json.loads(ran.stdout)
    assert (files, left_out) == (epochs, 0)
    rows = pq.read_table(tmp_path / "compacted.parquet").to_pylist()
    assert len(rows) == partitions
    assert {(row["first"], row["next"], row["records"]) for row in rows} == {(0, epochs * OFFSETS, epochs * OFFSETS)}
    assert {len(row["pieces"]) for row in rows} == {-(-epochs * OFFSETS // PIECE_OFFSETS)}
    assert peak_mib <= 500
