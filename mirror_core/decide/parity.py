"""Compared chunks in, parity result out. Lack of evidence never passes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity import Finding, ParityRange, ParityResult, Verdict

CHUNK_OFFSETS: Final = 50_000
"""Chunk k of every partition is [k * size, (k + 1) * size)."""
FINDINGS_KEPT: Final = 1000
NOTHING_COMPARED: Final = "no record was compared: there was nothing to compare in the whole scope"
NOTHING_HELD: Final = "no record was compared: neither side holds one, and their logs begin and end at the same offsets"
NOTHING: Final = frozenset({NOTHING_COMPARED, NOTHING_HELD})

GONE: Final = 0
ENDS: Final = 1
DIGEST: Final = 2
RECORDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the result table: the bounds of two logs (level 1), or one chunk of both."""

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
    findings: tuple[Finding, ...] = ()
    differing: int = 0
    error: str = ""
    damaged: tuple[Finding, ...] = ()
    shared: tuple[Offset, Offset] | None = None
    """At level 1: [start, end) that both logs hold; chunk rows must cover it."""
    held_from: Offset | None = None
    """At level 1: neither log holds an offset below this."""
    bare: bool = False
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """[start, end) of one log. `end` is the next offset to be written."""

    start: Offset
    end: Offset
    missing_on: str = ""


def compare_ends(wanted: ParityRange, source: Ends, destination: Ends) -> tuple[tuple[Row, ...], ParityRange]:
    """What is known of a range without reading records, and the part that both logs hold.

    The destination must be read before the source: the source only grows at its end and loses at its start, so a
    correct mirror seen earlier never reaches beyond it.
    """
    partition = wanted.partition
    start = Offset(min(max(wanted.start, source.start), wanted.end))
    if destination.missing_on:
        return (_missing(wanted, start, source, destination),), replace(wanted, start=start, end=start)
    findings = []
    if destination.start > start and start < wanted.end:
        text = f"the destination's log starts at {destination.start}; the source still has records from {start} on"
        findings.append(Finding(partition=partition, offset=start, kind="log start", detail=text))
    if destination.end < wanted.end:
        text = f"the destination's log ends at {destination.end}; [{destination.end}, {wanted.end}) is missing there"
        findings.append(Finding(partition=partition, offset=destination.end, kind="log end", detail=text))
    if source.end < wanted.end:
        text = f"the source's log ends at {source.end}, before the end {wanted.end} that was to be compared"
        findings.append(Finding(partition=partition, offset=source.end, kind="log end", detail=text))
    if destination.end > source.end and wanted.stopped_at is None:
        text = f"the destination's log goes on to {destination.end}; the source's log ends at {source.end}"
        findings.append(Finding(partition=partition, offset=source.end, kind="log end", detail=text))
    low = max(start, destination.start)
    high = max(low, min(wanted.end, source.end, destination.end))
    row = Row(
        partition=partition,
        chunk=-1,
        start=wanted.start,
        end=wanted.end,
        level=ENDS,
        src_count=_held(start, wanted.end, source),
        dst_count=_held(start, wanted.end, destination),
        findings=tuple(findings),
        differing=len(findings),
        shared=(low, high),
        held_from=min(source.start, destination.start),
        bare=source == destination == Ends(start=wanted.end, end=wanted.end),
    )
    shared = ParityRange(partition=partition, start=low, end=high, stopped_at=wanted.stopped_at)
    return (row, trimmed(wanted, start)) if start > wanted.start else (row,), shared


def _missing(wanted: ParityRange, start: Offset, source: Ends, destination: Ends) -> Row:
    text = f"missing on {destination.missing_on}: it has no such topic or partition"
    return Row(
        partition=wanted.partition,
        chunk=-1,
        start=wanted.start,
        end=wanted.end,
        level=ENDS,
        src_count=_held(start, wanted.end, source),
        dst_count=0,
        findings=(Finding(partition=wanted.partition, offset=start, kind="missing", detail=text),),
        differing=1,
        shared=(start, start),
    )


def trimmed(wanted: ParityRange, log_start: Offset) -> Row:
    """Stands for [range start, log_start), which the source has deleted."""
    return Row(
        partition=wanted.partition, chunk=0, start=wanted.start, end=log_start, level=GONE, src_count=0, dst_count=0
    )


def _held(start: int, end: int, log: Ends) -> int:
    return max(0, min(end, log.end) - max(start, log.start))


def chunks(wanted: ParityRange, size: int) -> Iterator[ParityRange]:
    if wanted.start < wanted.end:
        for cut in range(wanted.start // size * size, wanted.end, size):
            yield replace(wanted, start=Offset(max(cut, wanted.start)), end=Offset(min(cut + size, wanted.end)))


def share(ranges: Iterable[ParityRange], tasks: int, size: int) -> list[tuple[ParityRange, ...]]:
    rest = [wanted for wanted in ranges if wanted.start < wanted.end]
    total = sum(wanted.end - wanted.start for wanted in rest)
    fair = max(size, -(-total // max(1, tasks)))
    pieces = list[ParityRange]()
    for wanted in rest:
        step = max(size, fair // size * size)
        pieces += chunks(wanted, step)
    loads = [0] * max(1, tasks)
    shares: list[list[ParityRange]] = [[] for _ in loads]
    for piece in sorted(pieces, key=lambda p: (p.start - p.end, p.partition, p.start)):
        lightest = loads.index(min(loads))
        shares[lightest].append(piece)
        loads[lightest] += piece.end - piece.start
    return [tuple(sorted(mine, key=lambda p: (p.partition, p.start))) for mine in shares if mine]


def rounds(ranges: Sequence[ParityRange], tasks: int, size: int) -> Iterator[list[tuple[ParityRange, ...]]]:
    """Like `share_ranges`, in rounds of shares of at most one chunk: a killed process loses one round.

    Each partition's chunks come in order, so a finished round proves a beginning. Compacted partitions come last and at
    once: for each piece that differs the log is read to its end, so fewer pieces are better.
    """
    # One after the other: of a long past there are millions.
    pieces = heapq.merge(
        *(chunks(wanted, size) for wanted in ranges if not wanted.compacted),
        key=lambda piece: (piece.start // size, piece.partition, piece.start),
    )
    shares, mine, load = list[tuple[ParityRange, ...]](), list[ParityRange](), 0
    for piece in pieces:
        if mine and load + piece.end - piece.start > size:
            shares.append(tuple(mine))
            mine, load = [], 0
            if len(shares) >= tasks:
                yield shares
                shares = []
        mine.append(piece)
        load += piece.end - piece.start
    if mine:
        yield [*shares, tuple(mine)]
    if cleaned := share([wanted for wanted in ranges if wanted.compacted], tasks, size):
        yield cleaned


def fill_gaps(ranges: Sequence[ParityRange], rows: Sequence[Row], level: int) -> tuple[Row, ...]:
    """Adds an error row wherever the rows say nothing: a lost task is no equality."""
    by_partition: dict[Partition, list[Row]] = {}
    for row in rows:
        by_partition.setdefault(row.partition, []).append(row)
    whole: list[Row] = []
    for wanted in sorted(ranges, key=lambda w: w.partition):
        mine = sorted(by_partition.get(wanted.partition, []), key=lambda row: (row.chunk >= 0, row.start, row.end))
        whole += mine
        ends = next((row for row in mine if row.chunk < 0), None)
        if ends is None:
            whole.append(_not_compared(wanted, -1, wanted.start, wanted.end))
        elif level > ENDS and ends.shared is not None:
            reached, end = ends.shared
            for start, stop in [*((row.start, row.end) for row in mine if row.chunk >= 0), (end, end)]:
                if start > reached:
                    whole.append(_not_compared(wanted, 0, reached, start))
                reached = max(reached, stop)
    return tuple(whole)


def judge(ranges: Sequence[ParityRange], rows: Sequence[Row], level: int) -> ParityResult:
    """The result of rows without gaps: failed beats indeterminate beats passed.

    Level 1 knows only bounds: nothing is proven, and the sample counts offsets.
    """
    reasons = [f"{row.partition} [{row.start}, {row.end}): {row.error}" for row in rows if row.error]
    vague = [row for row in rows if not row.equal and not row.error and not row.differing]
    reasons += [
        f"{row.partition} [{row.start}, {row.end}): digests differ: batch boundaries, or content; level 3 would tell"
        for row in vague
    ]
    in_doubt = frozenset(row.partition for row in rows if row.error).union(row.partition for row in vague)
    records = sum(sample(row, level) for row in rows)
    if not records:
        looked = [row for row in rows if row.chunk < 0]
        reasons.append(NOTHING_HELD if looked and all(row.bare for row in looked) else NOTHING_COMPARED)
    by_partition: dict[Partition, list[Row]] = {}
    for row in rows:
        by_partition.setdefault(row.partition, []).append(row)
    proven = {w.partition: _proven(w, by_partition.get(w.partition, []), level) for w in ranges}
    findings = sorted((f for row in rows for f in row.findings), key=lambda f: (f.partition, f.offset or 0, f.kind))
    first = {f.partition: f for f in reversed(findings)}
    kept = [f for n, f in enumerate(findings) if n < FINDINGS_KEPT or f is first[f.partition]]
    failed = any(row.differing for row in rows)
    return ParityResult(
        verdict=Verdict.FAILED if failed else Verdict.INDETERMINATE if reasons else Verdict.PASSED,
        records=records,
        chunks=sum(row.chunks for row in rows if row.chunk >= 0 and row.level > GONE and not row.error),
        proven=proven,
        sampled={w.partition: sum(sample(row, level) for row in by_partition.get(w.partition, ())) for w in ranges},
        held_from={row.partition: row.held_from for row in rows if row.held_from is not None},
        findings=tuple(kept),
        damaged=tuple(f for row in rows for f in row.damaged),
        reasons=tuple(dict.fromkeys(reasons)),
        in_doubt=in_doubt,
        unlike=frozenset(row.partition for row in rows if row.damaged or not (row.equal or row.error)),
    )


def sample(row: Row, level: int) -> int:
    counts = (row.chunk >= 0) == (level > ENDS) and not row.error
    return min(row.src_count or 0, row.dst_count or 0) if counts else 0


def _proven(wanted: ParityRange, rows: Sequence[Row], level: int) -> Offset:
    """Next offset after the last one compared equal without interruption from the range's start."""
    limits = [f.offset for row in rows if row.chunk < 0 for f in row.findings if f.offset is not None]
    if level == ENDS or any(row.chunk < 0 and row.error for row in rows):
        return wanted.start
    reached = wanted.start
    for row in sorted((row for row in rows if row.chunk >= 0), key=lambda row: (row.start, row.end)):
        if row.start > reached:
            break
        if not row.equal:
            reached = max(reached, _last_equal(row))
            break
        reached = max(reached, row.end)
    return min([reached, *limits])


def _not_compared(wanted: ParityRange, chunk: int, start: Offset, end: Offset) -> Row:
    level = ENDS if chunk < 0 else DIGEST
    text = "was not compared: no task reported it"
    return Row(partition=wanted.partition, chunk=chunk, start=start, end=end, level=level, error=text)


def _last_equal(row: Row) -> Offset:
    """How far an unequal row is equal: up to its first difference, if records were compared."""
    offsets = [f.offset for f in row.findings if f.offset is not None]
    return min(offsets) if row.level == RECORDS and offsets and not row.error else row.start
