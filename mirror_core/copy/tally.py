"""Counts for a partition's receipt, from its first position on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mirror_core.copy.outbox import Sent
from mirror_core.decide.position import Resume
from mirror_core.model.copying import PIECE_OFFSETS, Piece
from mirror_core.model.names import Offset
from mirror_core.wire.digest import MODULUS

_NOWHERE: Final = -1


class Tally:
    __slots__ = ("_at", "_begun", "_content", "_gap_end", "_records", "batches", "bytes", "certified", "first", "gaps")

    def __init__(self) -> None:
        self.first: int | None = None
        self.gaps = 0
        self.batches = 0
        self.bytes = 0
        self.certified: list[Piece] = []
        self._at = _NOWHERE
        self._begun = _NOWHERE
        self._gap_end = _NOWHERE
        """End of the gap at the resume offset. The source's log usually starts there, and so will the
        destination's: a piece that began before it could never be verified."""
        self._records = 0
        self._content = 0

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return (*self.certified, *self._last())

    def sent(self, sent: Sent) -> None:
        self.batches += 1
        self.bytes += sent.size
        if self._at // PIECE_OFFSETS != self._begun // PIECE_OFFSETS:
            self._cut()
        self._at = sent.base + sent.records
        self._records += sent.records
        self._content += sent.content or 0

    def filled(self, offsets: int) -> None:
        self.gaps += offsets
        end = self._at + offsets
        if self._at < self._gap_end <= end:
            self._at = self._gap_end
            self._cut()
        self._at = end

    def resume_at(
        self, resume: Resume, *, was: int, records: int, seeding: bool, hiding: Iterable[tuple[int, int]]
    ) -> None:
        """Resumes here after `was` was acknowledged; `records` is the distance in sequences.

        Batches in flight that turn out to be appended were never acknowledged, so no piece may certify them.
        """
        offset, self._gap_end = resume.offset, resume.gap_end
        if self.first is None:
            self.first = self._at = self._begun = offset
            return
        if offset == was:
            return
        if offset > was and (seeding or records <= offset - was):
            self.gaps += offset - was - (0 if seeding else records)
        # Sequences count hidden records, too. Ours are known; a second copier's are not.
        self.gaps += sum(max(0, min(end, offset) - base) for base, end in hiding)
        self.first = min(self.first, offset)
        self._cut()
        self.certified = [piece for piece in self.certified if piece.next <= offset]
        self._at = self._begun = offset

    def _cut(self) -> None:
        self.certified += self._last()
        self._begun, self._records, self._content = self._at, 0, 0

    def _last(self) -> tuple[Piece, ...]:
        if self._at <= self._begun:
            return ()
        digest = f"{self._content % MODULUS:032x}"
        return (Piece(first=Offset(self._begun), next=Offset(self._at), records=self._records, digest=digest),)
