"""What is kept of a long comparison: memory for what agrees has a bound, and what differs is told as it is. Pure.

A chunk is 50,000 offsets, and a log may have 10^11. So neighbouring chunks that agree become one row, once there are
many rows. Each row that differs, or that could not be compared, stays; of its findings those that are told, and the
first one, which says up to where the row is equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from mirror_core.decide.parity import ENDS, FINDINGS_KEPT, Row
from mirror_core.model.names import Partition
from mirror_core.model.parity import Finding

MANY: Final = 100_000
"""Rows and findings that come before they are made fewer: some 70 MB."""
_DIGESTS: Final = 1 << 128


class Rows:
    """Of one comparison so far."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.all = list(rows)
        self._new = 0

    def add(self, rows: Iterable[Row]) -> None:
        """What a round has found."""
        for row in rows:
            self.all.append(row)
            self._new += 1 + len(row.findings)
        if self._new > MANY:
            self.all, self._new = fewer(self.all), 0


def fewer(rows: Sequence[Row]) -> list[Row]:
    """The same comparison: `judge` says the same of it."""
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
    """Sums: they are the same in whatever order chunks were compared and rows joined."""
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
    """The rows with findings that may be among the first of all, and each one's first."""
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
