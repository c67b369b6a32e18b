"""Receipts of a day put together: one file instead of 2,880, and nothing in it that vouches for no log any more."""

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
    """What the destination has now."""

    ids: Mapping[str, frozenset[str]]
    """Of its topics, by name: one, but where a broker lags behind."""
    unseen: frozenset[str]
    """Topics that may have other ids than these, or exist all the same."""
    starts: Mapping[Partition, Offset]

    def gone(self, row: Row, end: int) -> bool:
        """Whether nothing is left there of what it says about offsets below `end`."""
        if row["destination_topic_id"] not in self.ids.get(row["topic"], ()):
            return row["topic"] not in self.unseen
        return end <= (self.start(row) or 0)

    def start(self, row: Row) -> int | None:
        """Of the log that it speaks of. None: not known."""
        if self.ids.get(row["topic"]) != frozenset({row["destination_topic_id"]}):
            return None
        return self.starts.get(Partition(row["topic"], row["partition"]))


def pieces_of(row: Row) -> Iterator[Piece]:
    for one in row["pieces"] or ():
        yield Piece(first=Offset(one["first"]), next=Offset(one["next"]), records=one["records"], digest=one["digest"])


def holding(rows: Iterable[Row]) -> set[tuple[Log, Piece]]:
    """Pieces that hold, of each log: of what overlaps, the newest."""
    told = defaultdict[Log, list[Told]](list)
    for row in rows:
        told[_log(row)] += (Told(row["generation"], row["epoch"], piece) for piece in pieces_of(row))
    return {(log, piece) for log, of_log in told.items() for piece in chosen(of_log)}


def compacted(
    day: str, rows: Iterable[Row], logs: Logs, hold: Container[tuple[Log, Piece]] | None = None
) -> tuple[File | None, int]:
    """A day's rows in one file, or none where nothing is left; and how many pieces could be left out.

    Neighbours are one: pieces of a chunk, and receipts of a generation that follow each other. `hold`: pieces of this
    day and all later ones that hold; None: all of this day's do.
    """
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
    """One that begins below the log's start can't be proved any more, and would take its neighbours with it."""
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
