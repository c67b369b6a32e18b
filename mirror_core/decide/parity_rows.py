"""Bounds the memory of a long comparison: equal neighbouring chunks are joined, differing ones stay.

A log may have 10^11 offsets and a chunk has 50,000. Each row that differs or could not be compared stays, with the
findings that are reported and its first one, which says how far the row is equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from mirror_core.decide.parity import LEVEL_ENDS, MAX_FINDINGS, ParityRow
from mirror_core.model.names import Partition
from mirror_core.model.parity import ParityFinding

MAX_BUFFERED_ROWS: Final = 100_000
_DIGEST_MODULUS: Final = 1 << 128


class ParityRowBuffer:
    def __init__(self, rows: Iterable[ParityRow] = ()) -> None:
        self.rows = list(rows)
        self._added = 0

    def add(self, rows: Iterable[ParityRow]) -> None:
        for row in rows:
            self.rows.append(row)
            self._added += 1 + len(row.findings)
        if self._added > MAX_BUFFERED_ROWS:
            self.rows, self._added = merge_equal_rows(self.rows), 0


def merge_equal_rows(rows: Sequence[ParityRow]) -> list[ParityRow]:
    merged = list[ParityRow]()
    for row in sorted(_limit_findings(rows), key=lambda row: (row.partition, row.chunk >= 0, row.start, row.end)):
        if merged and _can_join(merged[-1], row):
            merged[-1] = _join_rows(merged[-1], row)
        else:
            merged.append(row)
    return merged


def _can_join(left: ParityRow, right: ParityRow) -> bool:
    is_adjacent = (left.partition, left.level, left.end) == (right.partition, right.level, right.start)
    return is_adjacent and left.level > LEVEL_ENDS and all(row.equal and row.src_digest for row in (left, right))


def _join_rows(left: ParityRow, right: ParityRow) -> ParityRow:
    """Digests are sums, so the order of comparing and joining does not matter."""
    records = (left.src_count or 0) + (right.src_count or 0)
    digest = f"{(int(left.src_digest, 16) + int(right.src_digest, 16)) % _DIGEST_MODULUS:032x}"
    return replace(
        left,
        end=right.end,
        src_count=records,
        dst_count=records,
        src_digest=digest,
        dst_digest=digest,
        chunks=left.chunks + right.chunks,
    )


def _limit_findings(rows: Sequence[ParityRow]) -> Iterable[ParityRow]:
    """Keeps findings that may be among the first ones reported, and each row's first."""
    sort_keys = sorted(_to_sort_key(finding) for row in rows for finding in row.findings)
    if len(sort_keys) <= MAX_FINDINGS:
        return rows
    last_key = sort_keys[MAX_FINDINGS - 1]
    return [_drop_late_findings(row, last_key) if row.level > LEVEL_ENDS and row.findings else row for row in rows]


def _drop_late_findings(row: ParityRow, last_key: tuple[Partition, int, str]) -> ParityRow:
    first = min(row.findings, key=_to_sort_key)
    return replace(row, findings=tuple(f for f in row.findings if f is first or _to_sort_key(f) <= last_key))


def _to_sort_key(finding: ParityFinding) -> tuple[Partition, int, str]:
    return finding.partition, finding.offset or 0, finding.kind
