"""Bounds the memory of a long comparison: equal neighbouring chunks are joined, differing ones stay.

A log may have 10^11 offsets and a chunk has 50,000. Each row that differs or could not be compared stays, with the
findings that are reported and its first one, which says how far the row is equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from mirror_core.decide.parity import ENDS, FINDINGS_KEPT, Row
from mirror_core.model.names import Partition
from mirror_core.model.parity import Finding

MANY: Final = 100_000
_DIGESTS: Final = 1 << 128


class Rows:
    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.all = list(rows)
        self._new = 0

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.all.append(row)
            self._new += 1 + len(row.findings)
        if self._new > MANY:
            self.all, self._new = fewer(self.all), 0


def fewer(rows: Sequence[Row]) -> list[Row]:
    found = list[Row]()
    for row in sorted(_told(rows), key=lambda row: (row.partition, row.chunk >= 0, row.start, row.end)):
        if found and _joinable(found[-1], row):
            found[-1] = _joined(found[-1], row)
        else:
            found.append(row)
    return found


def _joinable(one: Row, two: Row) -> bool:
    same = (one.partition, one.level, one.end) == (two.partition, two.level, two.start)
    return same and one.level > ENDS and all(row.equal and row.src_digest for row in (one, two))


def _joined(one: Row, two: Row) -> Row:
    """Digests are sums, so the order of comparing and joining does not matter."""
    records = (one.src_count or 0) + (two.src_count or 0)
    digest = f"{(int(one.src_digest, 16) + int(two.src_digest, 16)) % _DIGESTS:032x}"
    return replace(
        one,
        end=two.end,
        src_count=records,
        dst_count=records,
        src_digest=digest,
        dst_digest=digest,
        chunks=one.chunks + two.chunks,
    )


def _told(rows: Sequence[Row]) -> Iterable[Row]:
    """Keeps findings that may be among the first ones reported, and each row's first."""
    order = sorted(_place(finding) for row in rows for finding in row.findings)
    if len(order) <= FINDINGS_KEPT:
        return rows
    last = order[FINDINGS_KEPT - 1]
    return [_without_late(row, last) if row.level > ENDS and row.findings else row for row in rows]


def _without_late(row: Row, last: tuple[Partition, int, str]) -> Row:
    first = min(row.findings, key=_place)
    return replace(row, findings=tuple(f for f in row.findings if f is first or _place(f) <= last))


def _place(finding: Finding) -> tuple[Partition, int, str]:
    return finding.partition, finding.offset or 0, finding.kind
