"""Merges a day's receipts into one file, without pieces that no longer cover a log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from mirror_core.evidence.certificates import Told, chosen, together
from mirror_core.evidence.heads import day_file
from mirror_core.evidence.receipts import SCHEMA, File, as_file
from mirror_core.model.copying import Piece
from mirror_core.model.names import Offset, Partition

Row = dict[str, Any]
Log = tuple[Any, ...]
_LOG: Final = ("topic", "partition", "source_topic_id", "destination_topic_id")
_SUMS: Final = ("records", "gaps", "batches", "bytes")


@dataclass(frozen=True, slots=True)
class Logs:
    ids: Mapping[str, frozenset[str]]
    """By topic. Several only while a broker lags behind."""
    unseen: frozenset[str]
    """Topics that may exist, or have other ids."""
    starts: Mapping[Partition, Offset]

    def gone(self, row: Row, end: int) -> bool:
        if row["destination_topic_id"] not in self.ids.get(row["topic"], ()):
            return row["topic"] not in self.unseen
        return end <= (self.start(row) or 0)

    def start(self, row: Row) -> int | None:
        if self.ids.get(row["topic"]) != frozenset({row["destination_topic_id"]}):
            return None
        return self.starts.get(Partition(row["topic"], row["partition"]))


def pieces_of(row: Row) -> Iterator[Piece]:
    for one in row["pieces"] or ():
        yield Piece(first=Offset(one["first"]), next=Offset(one["next"]), records=one["records"], digest=one["digest"])


def holding(rows: Iterable[Row]) -> set[tuple[Log, Piece]]:
    told = defaultdict[Log, list[Told]](list)
    for row in rows:
        told[_log(row)] += (Told(row["generation"], row["epoch"], piece) for piece in pieces_of(row))
    return {(log, piece) for log, of_log in told.items() for piece in chosen(of_log)}


def compacted(
    day: str, rows: Iterable[Row], logs: Logs, hold: Container[tuple[Log, Piece]] | None = None
) -> tuple[File | None, int]:
    """(the day's file or None, pieces left out). `newest_pieces` None: keep all pieces of this day."""
    whole: list[Row] = []
    left_out = 0
    for row in sorted(rows, key=lambda row: (*map(str, _log(row)), row["generation"], row["first"], row["next"])):
        gone, told = logs.gone(row, row["next"]), list(pieces_of(row))
        pieces = [
            piece
            for piece in ([] if gone else told)
            if not logs.gone(row, piece.next) and (hold is None or (_log(row), piece) in hold)
        ]
        left_out += len(told) - len(pieces)
        last = whole[-1] if whole else None
        if not gone and last and _follows(last, row):
            whole[-1] = _joined(last, row, pieces)
        elif not gone:
            whole.append({**row, "pieces": pieces})
    if not whole:
        return None, left_out
    plain = [{**row, "pieces": [_plain(piece) for piece in _together(row["pieces"], logs.start(row))]} for row in whole]
    made = as_file(day, "", pa.Table.from_pylist(plain, schema=SCHEMA))
    return replace(made, name=day_file(made.sha256)), left_out


def _together(pieces: list[Piece], start: int | None) -> tuple[Piece, ...]:
    """A piece below the log start is unprovable and must not absorb its neighbours."""
    if start is None:
        return tuple(pieces)
    below, rest = [p for p in pieces if p.first < start], [p for p in pieces if p.first >= start]
    return (*below, *together(rest))


def _follows(one: Row, two: Row) -> bool:
    return _log(one) == _log(two) and one["generation"] == two["generation"] and one["next"] == two["first"]


def _log(row: Row) -> Log:
    return tuple(row[name] for name in _LOG)


def _joined(one: Row, two: Row, pieces: list[Piece]) -> Row:
    return {
        **two,
        "first": one["first"],
        **{name: (one[name] or 0) + (two[name] or 0) for name in _SUMS},
        "pieces": [*one["pieces"], *pieces],
        "epoch": max(one["epoch"], two["epoch"]),
        "source_end": two["source_end"] if two["source_end"] is not None else one["source_end"],
        "started": min(one["started"], two["started"]),
        "ended": max(one["ended"], two["ended"]),
    }


def _plain(piece: Piece) -> Row:
    return {"first": piece.first, "next": piece.next, "records": piece.records, "digest": piece.digest}
