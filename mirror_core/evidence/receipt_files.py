"""Receipts as Parquet files:

<directory>/mirror=<name>/date=<UTC day>/epoch-<generation>-<epoch>.parquet

A killed task attempt takes its receipt with it: such holes are found when receipts are read (`certificates`).
"""

from __future__ import annotations

import hashlib
import io
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirror_core.evidence.certificates import DatedPiece, choose_newest_pieces, merge_pieces
from mirror_core.evidence.file_store import Folder
from mirror_core.evidence.receipt_index import (
    CheckedReceipts,
    ReceiptHeads,
    check_receipts,
    format_day_file,
    list_receipt_files,
)
from mirror_core.evidence.table_schemas import RECEIPTS
from mirror_core.model.errors import Indeterminate
from mirror_core.model.files import report_write_errors
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.task_messages import Receipt, ReceiptPiece

RECEIPTS_SCHEMA: Final = RECEIPTS.schema
"""As in `Receipt`. The mirror and the day are in the path."""
RECEIPTS_ADVICE: Final = "make room and rights there, or give another folder (--receipts)"


@dataclass(frozen=True, slots=True)
class ReceiptsFile:
    day: str
    name: str
    content: bytes
    pieces: int

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def path(self) -> str:
        return f"date={self.day}/{self.name}"


def pack_receipts(generation: int, epoch: int, receipts: Sequence[Receipt], name: str | None = None) -> ReceiptsFile:
    name = name or f"epoch-{generation:08d}-{epoch:010d}.parquet"
    day = datetime.fromtimestamp(min(receipt.started_ms for receipt in receipts) / 1000, UTC).date()
    rows = pa.Table.from_pylist(_to_rows(generation, receipts), schema=RECEIPTS_SCHEMA)
    return _to_receipts_file(day.isoformat(), name, rows)


def _to_receipts_file(day: str, name: str, rows: pa.Table) -> ReceiptsFile:
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression="zstd")
    return ReceiptsFile(day, name, buffer.getvalue(), pc.sum(pc.list_value_length(rows.column("pieces"))).as_py() or 0)


def write_receipts(folder: Folder, mirror: MirrorName, file: ReceiptsFile) -> str:
    name = f"{format_mirror_folder(mirror)}/{file.path}"
    folder.write(f"receipts of mirror {mirror}", name, file.content, RECEIPTS_ADVICE)
    return name


def parse_receipts(content: bytes) -> pa.Table:
    return pq.read_table(io.BytesIO(content), schema=RECEIPTS_SCHEMA)


def _to_rows(generation: int, receipts: Sequence[Receipt]) -> list[dict[str, Any]]:
    return [
        {
            "generation": generation,
            "epoch": receipt.epoch,
            "task": receipt.task,
            "topic": receipt.partition.topic,
            "partition": receipt.partition.index,
            "first": receipt.first,
            "next": receipt.next,
            "records": receipt.records,
            "gaps": receipt.gaps,
            "batches": receipt.batches,
            "bytes": receipt.bytes,
            "pieces": [msgspec.to_builtins(piece) for piece in receipt.pieces],
            "source_topic_id": receipt.source_topic_id,
            "destination_topic_id": receipt.destination_topic_id,
            "source_end": receipt.source_end,
            "started": receipt.started_ms,
            "ended": receipt.ended_ms,
        }
        for receipt in receipts
    ]


def format_mirror_folder(mirror: MirrorName) -> str:
    return f"mirror={quote(mirror, safe='')}"


_MAX_READS: Final = 3
TakeReceipts = Callable[[str, pa.Table], None]


def scan_receipts(
    folder: Folder,
    mirror: MirrorName,
    read_heads: Callable[[], ReceiptHeads],
    begin: Callable[[ReceiptHeads], TakeReceipts],
) -> tuple[ReceiptHeads, CheckedReceipts]:
    """Indeterminate if an existing file is unreadable. Begins again after a compaction."""
    for reads_left in reversed(range(_MAX_READS)):
        # List before reading heads: an existing file has a head already. Files of later heads are read by name.
        paths = set(_list_paths(folder, mirror))
        heads = read_heads()
        expected_hashes = (
            {path: receipt_file.sha256 for path, receipt_file in list_receipt_files(heads).items()}
            if heads
            else dict.fromkeys(paths)
        )
        take, found_hashes = begin(heads), dict.fromkeys(paths, "")
        for path in sorted(expected_hashes):
            content = _read_content(folder, mirror, path)
            if content is None:
                found_hashes.pop(path, None)
                continue
            found_hashes[path] = hashlib.sha256(content).hexdigest()
            if expected_hashes[path] in (found_hashes[path], None):
                take(path, _read_table(folder, path, content))
        checked = check_receipts(heads, found_hashes)
        if checked.is_sound or not reads_left or read_heads() == heads:
            return heads, checked
    raise AssertionError


def check_by_names(folder: Folder, mirror: MirrorName, heads: ReceiptHeads) -> CheckedReceipts:
    """Reads no files, so alterations stay undetected."""
    expected_files = list_receipt_files(heads)
    return check_receipts(
        heads,
        {path: expected_files[path].sha256 if path in expected_files else "" for path in _list_paths(folder, mirror)},
    )


def _list_paths(folder: Folder, mirror: MirrorName) -> Iterator[str]:
    for name in folder.names(format_mirror_folder(mirror)):
        if name.endswith(".parquet"):
            yield name.removeprefix(f"{format_mirror_folder(mirror)}/")


def _read_content(folder: Folder, mirror: MirrorName, path: str) -> bytes | None:
    try:
        return folder.read(f"{format_mirror_folder(mirror)}/{path}")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _make_unreadable_error(folder, path, error) from error


def _read_table(folder: Folder, path: str, content: bytes) -> pa.Table:
    try:
        return parse_receipts(content)
    except (OSError, pa.ArrowInvalid) as error:
        raise _make_unreadable_error(folder, path, error) from error


def _make_unreadable_error(folder: Folder, path: str, error: Exception) -> Indeterminate:
    return Indeterminate(f"{folder.where}: receipts cannot be read: {path}: {type(error).__name__}: {error}")


ReceiptRow = dict[str, Any]
LogKey = tuple[Any, ...]
_LOG_KEY_COLUMNS: Final = ("topic", "partition", "source_topic_id", "destination_topic_id")
_SUMMED_COLUMNS: Final = ("records", "gaps", "batches", "bytes")
_BUCKET_ROWS: Final = 50_000  # some 100 MiB as Python objects
_SPILL_ADVICE: Final = "make room there, or set TMPDIR to another folder"


@dataclass(frozen=True, slots=True)
class DestinationLogs:
    ids: Mapping[str, frozenset[str]]
    """By topic. Several only while a broker lags behind."""
    uncertain_topics: frozenset[str]
    """Topics that may exist, or have other ids."""
    starts: Mapping[Partition, Offset]

    def is_gone(self, row: ReceiptRow, end: int) -> bool:
        if row["destination_topic_id"] not in self.ids.get(row["topic"], ()):
            return row["topic"] not in self.uncertain_topics
        return end <= (self.find_start(row) or 0)

    def find_start(self, row: ReceiptRow) -> int | None:
        if self.ids.get(row["topic"]) != frozenset({row["destination_topic_id"]}):
            return None
        return self.starts.get(Partition(row["topic"], row["partition"]))


def parse_pieces(row: ReceiptRow) -> Iterator[ReceiptPiece]:
    for piece in row["pieces"] or ():
        yield ReceiptPiece(
            first=Offset(piece["first"]), next=Offset(piece["next"]), records=piece["records"], digest=piece["digest"]
        )


class ReceiptBuckets:
    """Rows with column `date`, on disk. A bucket has whole logs, and fits into memory."""

    def __init__(self, folder: Path) -> None:
        self.topics = set[str]()
        self._folder = folder
        self._count = 1
        self._waiting = list[pa.Table]()
        self._runs = list[Path]()

    def begin(self, heads: ReceiptHeads) -> TakeReceipts:
        self.topics.clear()
        self._waiting.clear()
        self._runs.clear()
        self._count = sum(file.pieces for file in list_receipt_files(heads).values()) // _BUCKET_ROWS + 1
        return self._add

    def _add(self, path: str, table: pa.Table) -> None:
        self.topics.update(map(str, table.column("topic").unique().to_pylist()))
        date = path.partition("/")[0].removeprefix("date=")
        self._waiting.append(table.append_column("date", pa.repeat(date, table.num_rows)))
        if sum(waiting.num_rows for waiting in self._waiting) >= _BUCKET_ROWS:
            self._write_run()

    def __iter__(self) -> Iterator[list[ReceiptRow]]:
        if self._waiting:
            self._write_run()
        for bucket in range(self._count):
            rows = list[ReceiptRow]()
            for run in self._runs:
                with pa.OSFile(str(run), "rb") as file:
                    rows += pa.ipc.open_file(file).get_batch(bucket).to_pylist()
            yield rows

    def _write_run(self) -> None:
        table = pa.concat_tables(self._waiting).combine_chunks()
        self._waiting.clear()
        topics: Any = table.column("topic").combine_chunks().dictionary_encode()
        hashes = pa.array([zlib.crc32(name.encode()) for name in topics.dictionary.to_pylist()], type=pa.int64())
        keys = pc.add(hashes.take(topics.indices), table.column("partition").cast(pa.int64()))
        buckets = pc.subtract(keys, pc.multiply(pc.divide(keys, self._count), self._count))
        counts: Any = pc.value_counts(buckets)
        sizes = {count["values"]: count["counts"] for count in counts.to_pylist()}
        ordered = table.take(pc.sort_indices(buckets)).combine_chunks()
        self._runs.append(self._folder / str(len(self._runs)))
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with (
            report_write_errors("receipts being read", self._runs[-1], _SPILL_ADVICE),
            pa.OSFile(str(self._runs[-1]), "wb") as file,
            pa.ipc.new_file(file, ordered.schema, options=options) as writer,
        ):
            first = 0  # a record batch for each bucket
            for bucket in range(self._count):
                size = sizes.get(bucket, 0)
                (batch,) = ordered.slice(first, size).to_batches() or [pa.RecordBatch.from_pylist([], ordered.schema)]
                writer.write_batch(batch)
                first += size


@contextmanager
def spill_receipts(
    folder: Folder, mirror: MirrorName, read_heads: Callable[[], ReceiptHeads]
) -> Iterator[tuple[ReceiptHeads, CheckedReceipts, ReceiptBuckets]]:
    with tempfile.TemporaryDirectory(prefix="mirrorbook-receipts-") as spill:
        buckets = ReceiptBuckets(Path(spill))
        yield *scan_receipts(folder, mirror, read_heads, buckets.begin), buckets


def compact_days(
    buckets: Iterable[Iterable[ReceiptRow]], days: Container[str], new_days: Collection[str], logs: DestinationLogs
) -> dict[str, tuple[ReceiptsFile | None, int]]:
    """By day: its file or None, and pieces left out. Other days than new ones keep all pieces of existing logs."""
    tables, left_out = defaultdict[str, list[pa.Table]](list), defaultdict[str, int](int)
    for rows in buckets:
        rows_by_day = defaultdict[str, list[ReceiptRow]](list)
        for day, compacted, dropped in compact_logs(rows, days, new_days, logs):
            rows_by_day[day] += compacted
            left_out[day] += dropped
        for day, compacted in rows_by_day.items():
            tables[day].append(pa.Table.from_pylist(compacted, schema=RECEIPTS_SCHEMA))
    return {day: (_pack_day(day, tables[day]), left_out[day]) for day in left_out}


def compact_logs(
    rows: Iterable[ReceiptRow], days: Container[str], new_days: Collection[str], logs: DestinationLogs
) -> Iterator[tuple[str, list[ReceiptRow], int]]:
    """(day, its rows of a log, pieces left out). `rows`: all of each log, with `date`."""
    by_log = defaultdict[LogKey, dict[str, list[ReceiptRow]]](lambda: defaultdict(list))
    for row in rows:
        by_log[_get_log_key(row)][row["date"]].append(row)
    first_new = min(new_days, default=None)
    for by_day in by_log.values():
        newest_pieces = choose_newest_pieces(
            DatedPiece(row["generation"], row["epoch"], piece)
            for day, day_rows in by_day.items()
            if first_new is not None and day >= first_new
            for row in day_rows
            for piece in parse_pieces(row)
        )
        newest = frozenset(newest_pieces)
        for day, day_rows in by_day.items():
            if day in days:
                yield day, *_compact_log(day_rows, logs, newest if day in new_days else None)


def _compact_log(
    rows: list[ReceiptRow], logs: DestinationLogs, newest_pieces: Container[ReceiptPiece] | None
) -> tuple[list[ReceiptRow], int]:
    """`newest_pieces` None: keep all."""
    merged, pieces_of_merged, left_out = list[ReceiptRow](), list[list[ReceiptPiece]](), 0
    for row in sorted(rows, key=itemgetter("generation", "first", "next")):
        row_pieces = [*parse_pieces(row)]
        if logs.is_gone(row, row["next"]):
            left_out += len(row_pieces)
            continue
        pieces = [
            piece
            for piece in row_pieces
            if not logs.is_gone(row, piece.next) and (newest_pieces is None or piece in newest_pieces)
        ]
        left_out += len(row_pieces) - len(pieces)
        last = merged[-1] if merged else None
        if last and last["generation"] == row["generation"] and last["next"] == row["first"]:
            merged[-1] = _join_rows(last, row)
            pieces_of_merged[-1] += pieces
        else:
            merged.append(row)
            pieces_of_merged.append(pieces)
    start = logs.find_start(rows[0])
    return [
        {**row, "pieces": [*map(msgspec.to_builtins, _merge_pieces(pieces, start))]}
        for row, pieces in zip(merged, pieces_of_merged, strict=True)
    ], left_out


def _pack_day(day: str, tables: Sequence[pa.Table]) -> ReceiptsFile | None:
    table = pa.concat_tables([RECEIPTS_SCHEMA.empty_table(), *tables])
    if not table.num_rows:
        return None
    # Equal rows make an equal file, whatever the buckets were.
    order: Any = [(name, "ascending") for name in (*_LOG_KEY_COLUMNS, "generation", "first", "next")]
    file = _to_receipts_file(day, "", table.sort_by(order))
    return replace(file, name=format_day_file(file.sha256))


def _merge_pieces(pieces: list[ReceiptPiece], start: int | None) -> tuple[ReceiptPiece, ...]:
    """A piece below the log start is unprovable and must not absorb its neighbours."""
    if start is None:
        return tuple(pieces)
    below, provable = [p for p in pieces if p.first < start], [p for p in pieces if p.first >= start]
    return (*below, *merge_pieces(provable))


def _get_log_key(row: ReceiptRow) -> LogKey:
    return tuple(row[name] for name in _LOG_KEY_COLUMNS)


def _join_rows(earlier: ReceiptRow, later: ReceiptRow) -> ReceiptRow:
    return {
        **later,
        "first": earlier["first"],
        **{name: (earlier[name] or 0) + (later[name] or 0) for name in _SUMMED_COLUMNS},
        "epoch": max(earlier["epoch"], later["epoch"]),
        "source_end": later["source_end"] if later["source_end"] is not None else earlier["source_end"],
        "started": min(earlier["started"], later["started"]),
        "ended": max(earlier["ended"], later["ended"]),
    }
