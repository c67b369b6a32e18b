"""Compared chunks in, parity result out.

A log may have 10^11 offsets, so equal neighbouring chunks are joined.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityFinding, ParityRange, ParityResult, ParityVerdict
from mirror_core.model.text import join_limited

CHUNK_OFFSETS: Final = 50_000
"""Chunk k of every partition is [k * size, (k + 1) * size)."""
MAX_FINDINGS: Final = 1000
MAX_RANGES_PER_CAUSE: Final = 3
UNDECIDED_REASON: Final = "digests differ: batch boundaries, or content; level 3 would tell"
NOTHING_COMPARED: Final = "no record was compared: there was nothing to compare in the whole scope"
NOTHING_HELD: Final = "no record was compared: neither side holds one, and their logs begin and end at the same offsets"
NOTHING_REASONS: Final = frozenset({NOTHING_COMPARED, NOTHING_HELD})
LEVEL_GONE: Final = 0
LEVEL_ENDS: Final = 1
LEVEL_DIGEST: Final = 2
LEVEL_RECORDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityRow:
    """The bounds of two logs (level 1), or one chunk of both."""

    partition: Partition
    chunk: int
    """-1 for a row about log bounds."""
    start: Offset
    end: Offset
    level: int
    """1 log bounds; 2 digests of batches; 3 records; 0 deleted before comparison."""
    src_count: int | None = None
    """Records; at level 1, offsets of the range that the log holds. None: could not be read."""
    dst_count: int | None = None
    src_digest: str = ""
    dst_digest: str = ""
    findings: tuple[ParityFinding, ...] = ()
    differing: int = 0
    error: str = ""
    damaged: tuple[ParityFinding, ...] = ()
    shared: tuple[Offset, Offset] | None = None
    """At level 1: [start, end) that both logs hold; chunk rows must cover it."""
    held_from: Offset | None = None
    """At level 1: neither log holds an offset below this."""
    both_empty: bool = False
    """At level 1: both logs start and end at the range's end, so neither holds a record."""
    chunks: int = 1

    @property
    def equal(self) -> bool:
        return (
            not self.error
            and not self.differing
            and self.src_count == self.dst_count
            and self.src_digest == self.dst_digest
        )

    @property
    def undecided(self) -> bool:
        """Digests differ, and records were not compared."""
        return not self.equal and not self.error and not self.differing


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityLogBounds:
    """[start, end) of one log. `end` is the next offset to be written."""

    start: Offset
    end: Offset
    missing_on: str = ""


def compare_log_bounds(
    parity_range: ParityRange, source: ParityLogBounds, destination: ParityLogBounds
) -> tuple[tuple[ParityRow, ...], ParityRange]:
    """What is known of a range without reading records, and the part that both logs hold.

    Read the destination before the source: a correct mirror seen earlier never reaches beyond it.
    """
    partition = parity_range.partition
    start = Offset(min(max(parity_range.start, source.start), parity_range.end))
    if destination.missing_on:
        return (_build_missing_row(parity_range, start, source, destination),), replace(
            parity_range, start=start, end=start
        )
    findings = []
    if destination.start > start and start < parity_range.end:
        text = f"the destination's log starts at {destination.start}; the source still has records from {start} on"
        findings.append(ParityFinding(partition=partition, offset=start, kind="log start", detail=text))
    if destination.end < parity_range.end:
        text = (
            f"the destination's log ends at {destination.end}; [{destination.end}, {parity_range.end}) is missing there"
        )
        findings.append(ParityFinding(partition=partition, offset=destination.end, kind="log end", detail=text))
    if source.end < parity_range.end:
        text = f"the source's log ends at {source.end}, before the end {parity_range.end} that was to be compared"
        findings.append(ParityFinding(partition=partition, offset=source.end, kind="log end", detail=text))
    if destination.end > source.end and parity_range.stopped_at is None:
        text = f"the destination's log goes on to {destination.end}; the source's log ends at {source.end}"
        findings.append(ParityFinding(partition=partition, offset=source.end, kind="log end", detail=text))
    low = max(start, destination.start)
    high = max(low, min(parity_range.end, source.end, destination.end))
    row = ParityRow(
        partition=partition,
        chunk=-1,
        start=parity_range.start,
        end=parity_range.end,
        level=LEVEL_ENDS,
        src_count=_count_held(start, parity_range.end, source),
        dst_count=_count_held(start, parity_range.end, destination),
        findings=tuple(findings),
        differing=len(findings),
        shared=(low, high),
        held_from=min(source.start, destination.start),
        both_empty=source == destination == ParityLogBounds(start=parity_range.end, end=parity_range.end),
    )
    shared = ParityRange(partition=partition, start=low, end=high, stopped_at=parity_range.stopped_at)
    return (row, build_trimmed_row(parity_range, start)) if start > parity_range.start else (row,), shared


def _build_missing_row(
    parity_range: ParityRange, start: Offset, source: ParityLogBounds, destination: ParityLogBounds
) -> ParityRow:
    text = f"missing on {destination.missing_on}: it has no such topic or partition"
    return ParityRow(
        partition=parity_range.partition,
        chunk=-1,
        start=parity_range.start,
        end=parity_range.end,
        level=LEVEL_ENDS,
        src_count=_count_held(start, parity_range.end, source),
        dst_count=0,
        findings=(ParityFinding(partition=parity_range.partition, offset=start, kind="missing", detail=text),),
        differing=1,
        shared=(start, start),
    )


def build_trimmed_row(parity_range: ParityRange, log_start: Offset) -> ParityRow:
    return ParityRow(
        partition=parity_range.partition,
        chunk=0,
        start=parity_range.start,
        end=log_start,
        level=LEVEL_GONE,
        src_count=0,
        dst_count=0,
    )


def _count_held(start: int, end: int, log: ParityLogBounds) -> int:
    return max(0, min(end, log.end) - max(start, log.start))


def split_chunks(parity_range: ParityRange, size: int) -> Iterator[ParityRange]:
    if parity_range.start < parity_range.end:
        for chunk_start in range(parity_range.start // size * size, parity_range.end, size):
            yield replace(
                parity_range,
                start=Offset(max(chunk_start, parity_range.start)),
                end=Offset(min(chunk_start + size, parity_range.end)),
            )


def share_ranges(ranges: Iterable[ParityRange], tasks: int, size: int) -> list[tuple[ParityRange, ...]]:
    nonempty = [parity_range for parity_range in ranges if parity_range.start < parity_range.end]
    total = sum(parity_range.end - parity_range.start for parity_range in nonempty)
    fair_size = max(size, -(-total // max(1, tasks)))
    pieces = list[ParityRange]()
    for parity_range in nonempty:
        step = max(size, fair_size // size * size)
        pieces += split_chunks(parity_range, step)
    loads = [0] * max(1, tasks)
    shares: list[list[ParityRange]] = [[] for _ in loads]
    for piece in sorted(pieces, key=lambda p: (p.start - p.end, p.partition, p.start)):
        lightest = loads.index(min(loads))
        shares[lightest].append(piece)
        loads[lightest] += piece.end - piece.start
    return [tuple(sorted(task_ranges, key=lambda p: (p.partition, p.start))) for task_ranges in shares if task_ranges]


def plan_rounds(ranges: Sequence[ParityRange], tasks: int, size: int) -> Iterator[list[tuple[ParityRange, ...]]]:
    """Like `share_ranges`, in rounds of shares of at most one chunk: a killed process loses one round.

    Chunks come in order, so a finished round proves a beginning. Compacted partitions come last and whole: each piece
    that differs is read to the log's end.
    """
    # One after the other: of a long past there are millions.
    pieces = heapq.merge(
        *(split_chunks(parity_range, size) for parity_range in ranges if not parity_range.compacted),
        key=lambda piece: (piece.start // size, piece.partition, piece.start),
    )
    shares, task_ranges, load = list[tuple[ParityRange, ...]](), list[ParityRange](), 0
    for piece in pieces:
        if task_ranges and load + piece.end - piece.start > size:
            shares.append(tuple(task_ranges))
            task_ranges, load = [], 0
            if len(shares) >= tasks:
                yield shares
                shares = []
        task_ranges.append(piece)
        load += piece.end - piece.start
    if task_ranges:
        yield [*shares, tuple(task_ranges)]
    if compacted_shares := share_ranges(
        [parity_range for parity_range in ranges if parity_range.compacted], tasks, size
    ):
        yield compacted_shares


def fill_missing_rows(ranges: Sequence[ParityRange], rows: Sequence[ParityRow], level: int) -> tuple[ParityRow, ...]:
    """A lost task is no equality."""
    by_partition: dict[Partition, list[ParityRow]] = {}
    for row in rows:
        by_partition.setdefault(row.partition, []).append(row)
    filled: list[ParityRow] = []
    for parity_range in sorted(ranges, key=lambda w: w.partition):
        partition_rows = sorted(
            by_partition.get(parity_range.partition, []), key=lambda row: (row.chunk >= 0, row.start, row.end)
        )
        filled += partition_rows
        bounds_row = next((row for row in partition_rows if row.chunk < 0), None)
        if bounds_row is None:
            filled.append(_build_uncompared_row(parity_range, -1, parity_range.start, parity_range.end))
        elif level > LEVEL_ENDS and bounds_row.shared is not None:
            reached, end = bounds_row.shared
            for start, stop in [*((row.start, row.end) for row in partition_rows if row.chunk >= 0), (end, end)]:
                if start > reached:
                    filled.append(_build_uncompared_row(parity_range, 0, reached, start))
                reached = max(reached, stop)
    return tuple(filled)


def choose_worst_rows(rows: Iterable[ParityRow]) -> list[ParityRow]:
    """For rows that overlap because a span was read twice. A difference is worse than what was not read."""
    chosen: list[ParityRow] = []
    for row in sorted(rows, key=_rank_row, reverse=True):
        if all(row.end <= other.start or other.end <= row.start for other in chosen):
            chosen.append(row)
    return chosen


def _rank_row(row: ParityRow) -> tuple[int, bool, bool, bool]:
    return row.differing, row.undecided, bool(row.damaged), bool(row.error)


def judge_rows(ranges: Sequence[ParityRange], rows: Sequence[ParityRow], level: int) -> ParityResult:
    """Failed beats indeterminate beats passed. Expects rows without gaps.

    Level 1 knows only bounds: nothing is proven, and the sample counts offsets.
    """
    undecided = [row for row in rows if row.undecided]
    causes = [(row, UNDECIDED_REASON) for row in undecided]  # first: few are printed
    reasons = _list_causes([*causes, *((row, row.error) for row in rows if row.error)])
    in_doubt = frozenset(row.partition for row in rows if row.error).union(row.partition for row in undecided)
    records = sum(count_sample(row, level) for row in rows)
    if not records:
        bounds_rows = [row for row in rows if row.chunk < 0]
        reasons.append(NOTHING_HELD if bounds_rows and all(row.both_empty for row in bounds_rows) else NOTHING_COMPARED)
    by_partition: dict[Partition, list[ParityRow]] = {}
    for row in rows:
        by_partition.setdefault(row.partition, []).append(row)
    proven = {
        parity_range.partition: _find_proven_end(parity_range, by_partition.get(parity_range.partition, []), level)
        for parity_range in ranges
    }
    findings = sorted((f for row in rows for f in row.findings), key=lambda f: (f.partition, f.offset or 0, f.kind))
    first_findings = {f.partition: f for f in reversed(findings)}
    listed_findings = [f for n, f in enumerate(findings) if n < MAX_FINDINGS or f is first_findings[f.partition]]
    failed = any(row.differing for row in rows)
    return ParityResult(
        verdict=ParityVerdict.FAILED if failed else ParityVerdict.INDETERMINATE if reasons else ParityVerdict.PASSED,
        records=records,
        chunks=sum(row.chunks for row in rows if row.chunk >= 0 and row.level > LEVEL_GONE and not row.error),
        verified_ends=proven,
        compared_records={
            parity_range.partition: sum(
                count_sample(row, level) for row in by_partition.get(parity_range.partition, ())
            )
            for parity_range in ranges
        },
        first_held_offsets={row.partition: row.held_from for row in rows if row.held_from is not None},
        findings=tuple(listed_findings),
        damage_findings=tuple(f for row in rows for f in row.damaged),
        reasons=tuple(dict.fromkeys(reasons)),
        undecided_partitions=in_doubt,
        differing_partitions=frozenset(row.partition for row in rows if row.damaged or not (row.equal or row.error)),
    )


def _list_causes(causes: Iterable[tuple[ParityRow, str]]) -> list[str]:
    """One silent broker is the cause of each range that it leads."""
    ranges_by_cause = dict[str, list[str]]()
    for row, cause in causes:
        ranges_by_cause.setdefault(cause, []).append(f"{row.partition} [{row.start}, {row.end})")
    return [f"{join_limited(ranges, MAX_RANGES_PER_CAUSE)}: {cause}" for cause, ranges in ranges_by_cause.items()]


def count_sample(row: ParityRow, level: int) -> int:
    counts = (row.chunk >= 0) == (level > LEVEL_ENDS) and not row.error
    return min(row.src_count or 0, row.dst_count or 0) if counts else 0


def _find_proven_end(parity_range: ParityRange, rows: Sequence[ParityRow], level: int) -> Offset:
    """Next offset after the last one compared equal without interruption from the range's start."""
    limits = [f.offset for row in rows if row.chunk < 0 for f in row.findings if f.offset is not None]
    if level == LEVEL_ENDS or any(row.chunk < 0 and row.error for row in rows):
        return parity_range.start
    reached = parity_range.start
    for row in sorted((row for row in rows if row.chunk >= 0), key=lambda row: (row.start, row.end)):
        if row.start > reached:
            break
        if not row.equal:
            reached = max(reached, _find_last_equal(row))
            break
        reached = max(reached, row.end)
    return min([reached, *limits])


def _build_uncompared_row(parity_range: ParityRange, chunk: int, start: Offset, end: Offset) -> ParityRow:
    level = LEVEL_ENDS if chunk < 0 else LEVEL_DIGEST
    text = "was not compared: no task reported it"
    return ParityRow(partition=parity_range.partition, chunk=chunk, start=start, end=end, level=level, error=text)


def _find_last_equal(row: ParityRow) -> Offset:
    offsets = [f.offset for f in row.findings if f.offset is not None]
    return min(offsets) if row.level == LEVEL_RECORDS and offsets and not row.error else row.start


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
