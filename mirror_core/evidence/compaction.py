"""Merges a day's receipts into one file, without pieces that no longer cover a log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from mirror_core.evidence.certificates import DatedPiece, choose_newest_pieces, merge_pieces
from mirror_core.evidence.heads import format_day_file
from mirror_core.evidence.receipts import RECEIPTS_SCHEMA, ReceiptsFile, to_receipts_file
from mirror_core.model.copying import ReceiptPiece
from mirror_core.model.names import Offset, Partition

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
    receipts_file = to_receipts_file(day, "", pa.Table.from_pylist(plain_rows, schema=RECEIPTS_SCHEMA))
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
