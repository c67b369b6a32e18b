"""Receipts as Parquet files:

<directory>/mirror=<name>/date=<UTC day>/epoch-<generation>-<epoch>.parquet

A killed task attempt takes its receipt with it: such holes are found when receipts are read (`certificates`).
"""

from __future__ import annotations

import hashlib
import io
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa
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
    return _to_receipts_file(day.isoformat(), name, _to_rows(generation, receipts))


def _to_receipts_file(day: str, name: str, rows: list[dict[str, Any]]) -> ReceiptsFile:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=RECEIPTS_SCHEMA), buffer, compression="zstd")
    return ReceiptsFile(day, name, buffer.getvalue(), sum(len(row["pieces"]) for row in rows))


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


@dataclass(frozen=True, slots=True)
class StoredReceipts:
    heads: ReceiptHeads
    checked: CheckedReceipts
    tables: dict[str, pa.Table]

    def rows(self) -> pa.Table:
        return pa.concat_tables([RECEIPTS_SCHEMA.empty_table(), *self.tables.values()])


def read_receipts(folder: Folder, mirror: MirrorName, read_heads: Callable[[], ReceiptHeads]) -> StoredReceipts:
    """Indeterminate if an existing file is unreadable. Reads again after a compaction."""
    for reads_left in reversed(range(_MAX_READS)):
        # List before reading heads: an existing file has a head already. Files of later heads are read by name.
        paths = set(_list_paths(folder, mirror))
        heads = read_heads()
        expected_hashes = (
            {path: receipt_file.sha256 for path, receipt_file in list_receipt_files(heads).items()}
            if heads
            else dict.fromkeys(paths)
        )
        tables, found_hashes = dict[str, pa.Table](), dict.fromkeys(paths, "")
        for path in sorted(expected_hashes):
            content = _read_content(folder, mirror, path)
            if content is None:
                found_hashes.pop(path, None)
                continue
            found_hashes[path] = hashlib.sha256(content).hexdigest()
            if expected_hashes[path] in (found_hashes[path], None):
                tables[path] = _read_table(folder, path, content)
        result = StoredReceipts(heads, check_receipts(heads, found_hashes), tables)
        if result.checked.is_sound or not reads_left or read_heads() == heads:
            return result
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


def find_newest_pieces(rows: Iterable[ReceiptRow]) -> set[tuple[LogKey, ReceiptPiece]]:
    pieces_by_log = defaultdict[LogKey, list[DatedPiece]](list)
    for row in rows:
        pieces_by_log[_log_key(row)] += (
            DatedPiece(row["generation"], row["epoch"], piece) for piece in parse_pieces(row)
        )
    return {(log, piece) for log, dated_pieces in pieces_by_log.items() for piece in choose_newest_pieces(dated_pieces)}


def compact_day(
    day: str,
    rows: Iterable[ReceiptRow],
    logs: DestinationLogs,
    newest_pieces: Container[tuple[LogKey, ReceiptPiece]] | None = None,
) -> tuple[ReceiptsFile | None, int]:
    """(the day's file or None, pieces left out). `newest_pieces` None: keep all pieces of this day."""
    merged_rows: list[ReceiptRow] = []
    left_out = 0
    for row in sorted(rows, key=lambda row: (*map(str, _log_key(row)), row["generation"], row["first"], row["next"])):
        is_gone, row_pieces = logs.is_gone(row, row["next"]), list(parse_pieces(row))
        pieces = [
            piece
            for piece in ([] if is_gone else row_pieces)
            if not logs.is_gone(row, piece.next) and (newest_pieces is None or (_log_key(row), piece) in newest_pieces)
        ]
        left_out += len(row_pieces) - len(pieces)
        last_row = merged_rows[-1] if merged_rows else None
        if not is_gone and last_row and _is_consecutive(last_row, row):
            merged_rows[-1] = _join_rows(last_row, row, pieces)
        elif not is_gone:
            merged_rows.append({**row, "pieces": pieces})
    if not merged_rows:
        return None, left_out
    plain_rows = [
        {**row, "pieces": [_to_plain(piece) for piece in _merge_pieces(row["pieces"], logs.find_start(row))]}
        for row in merged_rows
    ]
    receipts_file = _to_receipts_file(day, "", plain_rows)
    return replace(receipts_file, name=format_day_file(receipts_file.sha256)), left_out


def _merge_pieces(pieces: list[ReceiptPiece], start: int | None) -> tuple[ReceiptPiece, ...]:
    """A piece below the log start is unprovable and must not absorb its neighbours."""
    if start is None:
        return tuple(pieces)
    below, provable = [p for p in pieces if p.first < start], [p for p in pieces if p.first >= start]
    return (*below, *merge_pieces(provable))


def _is_consecutive(earlier: ReceiptRow, later: ReceiptRow) -> bool:
    return (
        _log_key(earlier) == _log_key(later)
        and earlier["generation"] == later["generation"]
        and earlier["next"] == later["first"]
    )


def _log_key(row: ReceiptRow) -> LogKey:
    return tuple(row[name] for name in _LOG_KEY_COLUMNS)


def _join_rows(earlier: ReceiptRow, later: ReceiptRow, pieces: list[ReceiptPiece]) -> ReceiptRow:
    return {
        **later,
        "first": earlier["first"],
        **{name: (earlier[name] or 0) + (later[name] or 0) for name in _SUMMED_COLUMNS},
        "pieces": [*earlier["pieces"], *pieces],
        "epoch": max(earlier["epoch"], later["epoch"]),
        "source_end": later["source_end"] if later["source_end"] is not None else earlier["source_end"],
        "started": min(earlier["started"], later["started"]),
        "ended": max(earlier["ended"], later["ended"]),
    }


def _to_plain(piece: ReceiptPiece) -> ReceiptRow:
    return {"first": piece.first, "next": piece.next, "records": piece.records, "digest": piece.digest}
