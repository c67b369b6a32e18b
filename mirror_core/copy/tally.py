"""What a task says of a partition at its end: counted from the first place that it took up."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import xxhash

from mirror_core.copy.outbox import Sent

_MARK: Final = struct.Struct(">qi")


class Tally:
    """Counts of what was acknowledged; see `model.copying.Receipt`."""

    __slots__ = ("_digest", "batches", "bytes", "first", "gaps")

    def __init__(self) -> None:
        self.first: int | None = None
        self.gaps = 0
        """Offsets from `first` on that were filled or seeded."""
        self.batches = 0
        self.bytes = 0
        self._digest: xxhash.xxh3_128 | None = xxhash.xxh3_128()

    @property
    def digest(self) -> str:
        return "" if self._digest is None else self._digest.hexdigest()

    def sent(self, sent: Sent) -> None:
        """A batch is acknowledged."""
        self.batches += 1
        self.bytes += sent.size
        if self._digest is not None:
            self._digest.update(_MARK.pack(sent.base, sent.records) + sent.payload)

    def filled(self, offsets: int) -> None:
        self.gaps += offsets

    def resume_at(
        self, offset: int, *, was: int, records: int, seeding: bool, hiding: Iterable[tuple[int, int]]
    ) -> None:
        """The log ends at `offset`, where `was` was acknowledged to us; the sequences say `records` between them.

        What was in flight and turns out to be appended was never acknowledged, so no digest can vouch for it.
        """
        if self.first is None:
            self.first = offset
            return
        if offset == was:
            return
        if offset > was and (seeding or records <= offset - was):
            self.gaps += offset - was - (0 if seeding else records)
        # Hidden records count as records there. Those of ours are known; of a twin's nobody can tell.
        self.gaps += sum(max(0, min(end, offset) - base) for base, end in hiding)
        self.first = min(self.first, offset)
        self._digest = None
