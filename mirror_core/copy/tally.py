"""Counts for a partition's receipt, from its first position on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mirror_core.copy.outbox import SentBatch
from mirror_core.decide.position import ResumePoint
from mirror_core.model.copying import PIECE_OFFSETS, ReceiptPiece
from mirror_core.model.names import Offset
from mirror_core.wire.digest import DIGEST_MODULUS

_NO_OFFSET: Final = -1


class ReceiptCounts:
    __slots__ = (
        "_next_offset",
        "_piece_start",
        "_digest_sum",
        "_gap_end",
        "_records",
        "batches",
        "bytes",
        "certified",
        "first",
        "gaps",
    )

    def __init__(self) -> None:
        self.first: int | None = None
        self.gaps = 0
        self.batches = 0
        self.bytes = 0
        self.certified: list[ReceiptPiece] = []
        self._next_offset = _NO_OFFSET
        self._piece_start = _NO_OFFSET
        self._gap_end = _NO_OFFSET
        """End of the gap at the resume offset. The source's log usually starts there, and so will the
        destination's: a piece that began before it could never be verified."""
        self._records = 0
        self._digest_sum = 0

    @property
    def pieces(self) -> tuple[ReceiptPiece, ...]:
        return (*self.certified, *self._get_open_piece())

    def add_batch(self, sent: SentBatch) -> None:
        self.batches += 1
        self.bytes += sent.size
        if self._next_offset // PIECE_OFFSETS != self._piece_start // PIECE_OFFSETS:
            self._end_piece()
        self._next_offset = sent.base_offset + sent.records
        self._records += sent.records
        self._digest_sum += sent.digest or 0

    def add_filled(self, offsets: int) -> None:
        self.gaps += offsets
        end = self._next_offset + offsets
        if self._next_offset < self._gap_end <= end:
            self._next_offset = self._gap_end
            self._end_piece()
        self._next_offset = end

    def resume_at(
        self,
        resume: ResumePoint,
        *,
        acknowledged: int,
        records: int,
        is_seeding: bool,
        hidden_in_flight: Iterable[tuple[int, int]],
    ) -> None:
        """Resumes here after `was` was acknowledged; `records` is the distance in sequences.

        Batches in flight that turn out to be appended were never acknowledged, so no piece may certify them.
        """
        offset, self._gap_end = resume.offset, resume.gap_end
        if self.first is None:
            self.first = self._next_offset = self._piece_start = offset
            return
        if offset == acknowledged:
            return
        if offset > acknowledged and (is_seeding or records <= offset - acknowledged):
            self.gaps += offset - acknowledged - (0 if is_seeding else records)
        # Sequences count hidden records, too. Ours are known; a second copier's are not.
        self.gaps += sum(max(0, min(end, offset) - base_offset) for base_offset, end in hidden_in_flight)
        self.first = min(self.first, offset)
        self._end_piece()
        self.certified = [piece for piece in self.certified if piece.next <= offset]
        self._next_offset = self._piece_start = offset

    def _end_piece(self) -> None:
        self.certified += self._get_open_piece()
        self._piece_start, self._records, self._digest_sum = self._next_offset, 0, 0

    def _get_open_piece(self) -> tuple[ReceiptPiece, ...]:
        if self._next_offset <= self._piece_start:
            return ()
        digest = f"{self._digest_sum % DIGEST_MODULUS:032x}"
        return (
            ReceiptPiece(
                first=Offset(self._piece_start), next=Offset(self._next_offset), records=self._records, digest=digest
            ),
        )
