"""What a task says of a partition at its end: counted from the first place that it took up."""

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
    """Counts of what was acknowledged; see `model.copying.Receipt`."""

    __slots__ = ("_at", "_begun", "_content", "_gap_end", "_records", "batches", "bytes", "certified", "first", "gaps")

    def __init__(self) -> None:
        self.first: int | None = None
        self.gaps = 0
        """Offsets from `first` on that were filled or seeded."""
        self.batches = 0
        self.bytes = 0
        self.certified: list[Piece] = []
        """Those that are ended."""
        self._at = _NOWHERE
        """Next offset to be acknowledged."""
        self._begun = _NOWHERE
        """Where the piece that is not ended begins."""
        self._gap_end = _NOWHERE
        """Where the gap ends that the place was taken up with. As a rule the source's log begins there, and so will the
        destination's: a piece that reached in from before could never be proved."""
        self._records = 0
        self._content = 0

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """All, the last one as far as it goes now."""
        return (*self.certified, *self._last())

    def sent(self, sent: Sent) -> None:
        """A batch is acknowledged."""
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
        """Copying goes on here, and `was` was acknowledged to us; the sequences say `records` between the two.

        What was in flight and turns out to be appended was never acknowledged, so no piece can vouch for it.
        """
        offset, self._gap_end = resume.offset, resume.gap_end
        if self.first is None:
            self.first = self._at = self._begun = offset
            return
        if offset == was:
            return
        if offset > was and (seeding or records <= offset - was):
            self.gaps += offset - was - (0 if seeding else records)
        # Hidden records count as records there. Those of ours are known; of a twin's nobody can tell.
        self.gaps += sum(max(0, min(end, offset) - base) for base, end in hiding)
        self.first = min(self.first, offset)
        self._cut()
        self.certified = [piece for piece in self.certified if piece.next <= offset]
        self._at = self._begun = offset

    def _cut(self) -> None:
        """End a piece; the next one begins where it ends."""
        self.certified += self._last()
        self._begun, self._records, self._content = self._at, 0, 0

    def _last(self) -> tuple[Piece, ...]:
        if self._at <= self._begun:
            return ()
        digest = f"{self._content % MODULUS:032x}"
        return (Piece(first=Offset(self._begun), next=Offset(self._at), records=self._records, digest=digest),)
