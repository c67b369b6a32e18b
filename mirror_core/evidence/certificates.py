"""Which receipts cover a log, and what they add up to. Pure.

A piece says what [first, next) of the destination held when it was acknowledged. After a recopy, or after the source
lost records, several pieces may cover the same offsets: the newest counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from mirror_core.model.copying import PIECE_OFFSETS, Piece
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.digest import MODULUS


class Told(NamedTuple):
    generation: int
    epoch: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class Vouched:
    pieces: tuple[Piece, ...]
    below: tuple[Offset, Offset] | None
    """[first, next) of a piece that begins below the log start: provable only whole."""

    @property
    def start(self) -> Offset | None:
        return self.pieces[0].first if self.pieces else None

    @property
    def end(self) -> Offset | None:
        return self.pieces[-1].next if self.pieces else None


def vouched(told: Iterable[Told], log_start: int, end: int | None = None) -> Vouched:
    found = chosen(told)
    below = next(((p.first, p.next) for p in found if p.first < log_start < p.next), None)
    inside = [p for p in found if p.first >= log_start and (end is None or p.next <= end)]
    return Vouched(together(inside), below)


def unvouched(found: Vouched, start: Offset, end: Offset) -> tuple[tuple[Offset, Offset], ...]:
    edges = [start, *(edge for piece in found.pieces for edge in (piece.first, piece.next)), end]
    spans = ((max(first, start), min(behind, end)) for first, behind in zip(edges[::2], edges[1::2], strict=True))
    return tuple((first, behind) for first, behind in spans if first < behind)


class Gap(NamedTuple):
    """Unprovable offsets [start, end) of a log."""

    start: Offset
    end: Offset
    why: str


NO_RECEIPT: Final = (
    "no receipt vouches for it: a task that was killed had copied it, or a failover's drain, or its receipts are lost"
)


def gaps(found: Vouched, start: Offset, end: Offset, copying: Offset | None) -> tuple[tuple[Gap, ...], tuple[Gap, ...]]:
    """(uncovered ranges, ranges that the verdict ignores) of the log [start, end).

    `copying`: offsets from here on are being copied now. A piece cut by the log start is unprovable, and retention
    does that all the time.
    """
    first, last, out = start, end, list[Gap]()
    if found.below and found.pieces and (first := min(found.below[1], end)) > start:
        out.append(Gap(start, first, "in a piece that begins below the log's start"))
    if copying is not None:
        last = max(first, min(end, max(copying, found.end or start)))
        if last < end:
            out.append(Gap(last, end, "being copied now: receipts tell of it at the end of an epoch"))
    return tuple(Gap(one, two, NO_RECEIPT) for one, two in unvouched(found, first, last)), tuple(out)


def shortfall(held: Mapping[Partition, Sequence[Gap]], partitions: int) -> str:
    offsets = sum(gap.end - gap.start for mine in held.values() for gap in mine)
    return (
        f"of {len(held)} of {partitions} partitions not all is vouched for, {offsets} offsets together: this proves "
        "the rest and no more. `mirrorbook receipts rebuild` compares them with the source, while it answers"
    )


def blank(span: tuple[Offset, Offset]) -> tuple[Piece, ...]:
    first, end = span
    cuts = [first, *range((first // PIECE_OFFSETS + 1) * PIECE_OFFSETS, end, PIECE_OFFSETS), end]
    return tuple(Piece(first=Offset(one), next=Offset(two), records=0, digest="") for one, two in pairwise(cuts))


def chosen(told: Iterable[Told]) -> tuple[Piece, ...]:
    kept: list[Piece] = []
    firsts: list[int] = []
    for _, _, piece in sorted(told, key=lambda one: (-one.generation, -one.epoch, -one.piece.first)):
        at = bisect_left(firsts, piece.first)
        before = kept[at - 1].next if at else 0
        behind = kept[at].first if at < len(kept) else piece.next
        if before <= piece.first < piece.next <= behind:
            kept.insert(at, piece)
            firsts.insert(at, piece.first)
    return tuple(kept)


def together(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    found: list[Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if last and last.next == piece.first and last.first // PIECE_OFFSETS == piece.first // PIECE_OFFSETS:
            found[-1] = Piece(
                first=last.first,
                next=piece.next,
                records=last.records + piece.records,
                digest=f"{(int(last.digest, 16) + int(piece.digest, 16)) % MODULUS:032x}",
            )
        else:
            found.append(piece)
    return tuple(found)
