"""Which receipts cover a log, and what they add up to.

A piece says what [first, next) of the destination held when it was acknowledged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import PIECE_OFFSETS, ReceiptPiece
from mirror_core.wire.batch import DIGEST_MODULUS


class DatedPiece(NamedTuple):
    generation: int
    epoch: int
    piece: ReceiptPiece


@dataclass(frozen=True, slots=True)
class Coverage:
    pieces: tuple[ReceiptPiece, ...]
    cut_piece: tuple[Offset, Offset] | None
    """[first, next) of a piece that begins below the log start: provable only whole."""

    @property
    def start(self) -> Offset | None:
        return self.pieces[0].first if self.pieces else None

    @property
    def end(self) -> Offset | None:
        return self.pieces[-1].next if self.pieces else None


def compute_coverage(dated_pieces: Iterable[DatedPiece], log_start: int, end: int | None = None) -> Coverage:
    pieces = choose_newest_pieces(dated_pieces)
    cut_piece = next(((p.first, p.next) for p in pieces if p.first < log_start < p.next), None)
    inside = [p for p in pieces if p.first >= log_start and (end is None or p.next <= end)]
    return Coverage(merge_pieces(inside), cut_piece)


def find_uncovered(coverage: Coverage, start: Offset, end: Offset) -> tuple[tuple[Offset, Offset], ...]:
    edges = [start, *(edge for piece in coverage.pieces for edge in (piece.first, piece.next)), end]
    spans = ((max(first, start), min(next_, end)) for first, next_ in zip(edges[::2], edges[1::2], strict=True))
    return tuple((first, next_) for first, next_ in spans if first < next_)


class UncoveredRange(NamedTuple):
    """[start, end) of a log that nothing proves."""

    start: Offset
    end: Offset
    reason: str


NO_RECEIPT: Final = (
    "no receipt vouches for it: a task that was killed had copied it, or a failover's drain, or its receipts are lost"
)


def find_gaps(
    coverage: Coverage, start: Offset, end: Offset, copying: Offset | None
) -> tuple[tuple[UncoveredRange, ...], tuple[UncoveredRange, ...]]:
    """(uncovered ranges, ranges that the verdict ignores) of the log [start, end).

    `copying`: from here on offsets are being copied now. A piece cut by the log start is unprovable, and retention does
    that all the time.
    """
    provable_start, provable_end, ignored = start, end, list[UncoveredRange]()
    if coverage.cut_piece and coverage.pieces and (provable_start := min(coverage.cut_piece[1], end)) > start:
        ignored.append(UncoveredRange(start, provable_start, "in a piece that begins below the log's start"))
    if copying is not None:
        provable_end = max(provable_start, min(end, max(copying, coverage.end or start)))
        if provable_end < end:
            ignored.append(
                UncoveredRange(provable_end, end, "being copied now: receipts tell of it at the end of an epoch")
            )
    return tuple(
        UncoveredRange(gap_start, gap_end, NO_RECEIPT)
        for gap_start, gap_end in find_uncovered(coverage, provable_start, provable_end)
    ), tuple(ignored)


def format_shortfall(gaps_by_partition: Mapping[Partition, Sequence[UncoveredRange]], partitions: int) -> str:
    offsets = sum(gap.end - gap.start for partition_gaps in gaps_by_partition.values() for gap in partition_gaps)
    return (
        f"of {len(gaps_by_partition)} of {partitions} partitions not all is vouched for, {offsets} offsets together:"
        " this proves the rest and no more. `mirrorbook receipts rebuild` compares them with the source, while it"
        " answers"
    )


def make_blank_pieces(span: tuple[Offset, Offset]) -> tuple[ReceiptPiece, ...]:
    start, end = span
    cuts = [start, *range((start // PIECE_OFFSETS + 1) * PIECE_OFFSETS, end, PIECE_OFFSETS), end]
    return tuple(
        ReceiptPiece(first=Offset(piece_start), next=Offset(piece_end), records=0, digest="")
        for piece_start, piece_end in pairwise(cuts)
    )


def choose_newest_pieces(dated_pieces: Iterable[DatedPiece]) -> tuple[ReceiptPiece, ...]:
    chosen_pieces: list[ReceiptPiece] = []
    firsts: list[int] = []
    for _, _, piece in sorted(dated_pieces, key=lambda dated: (-dated.generation, -dated.epoch, -dated.piece.first)):
        index = bisect_left(firsts, piece.first)
        previous_next = chosen_pieces[index - 1].next if index else 0
        following_first = chosen_pieces[index].first if index < len(chosen_pieces) else piece.next
        if previous_next <= piece.first < piece.next <= following_first:
            chosen_pieces.insert(index, piece)
            firsts.insert(index, piece.first)
    return tuple(chosen_pieces)


def merge_pieces(pieces: Sequence[ReceiptPiece]) -> tuple[ReceiptPiece, ...]:
    merged: list[ReceiptPiece] = []
    for piece in pieces:
        previous = merged[-1] if merged else None
        if (
            previous
            and previous.next == piece.first
            and previous.first // PIECE_OFFSETS == piece.first // PIECE_OFFSETS
        ):
            merged[-1] = ReceiptPiece(
                first=previous.first,
                next=piece.next,
                records=previous.records + piece.records,
                digest=f"{(int(previous.digest, 16) + int(piece.digest, 16)) % DIGEST_MODULUS:032x}",
            )
        else:
            merged.append(piece)
    return tuple(merged)
