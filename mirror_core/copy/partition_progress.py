"""The next offsets to enqueue and to be acknowledged."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from mirror_core.copy.send_queue import SentBatch
from mirror_core.decide.gaps_and_resume import ResumePoint
from mirror_core.model.names import Offset
from mirror_core.model.task_messages import PIECE_OFFSETS, ReceiptPiece
from mirror_core.wire.batch import DIGEST_MODULUS, SEQUENCE_MASK

SEQUENCE_VALID_S: Final = 1.0
"""Without a batch or marker for so long, the leader's producer state is unknown. Its expiry
(producer.id.expiration.ms) goes by the records' times: for old ones it may come at any moment.
"""


class PartitionProgress:
    """Next offsets; each has the sequence of the next batch to start there."""

    __slots__ = (
        "acknowledged",
        "acknowledged_sequence",
        "end_confirmed_at",
        "in_flight",
        "is_producer_unknown",
        "is_sequence_known",
        "position",
        "producer_known_at",
        "seed_end",
        "seeded",
        "sequence",
    )

    def __init__(self) -> None:
        self.position = 0
        self.sequence = 0
        self.acknowledged = 0
        self.acknowledged_sequence = 0
        self.in_flight = 0
        self.end_confirmed_at = -math.inf
        """Monotonic time of a request whose response showed the log end at `acknowledged`; valid while nothing is in
        flight.
        """
        self.producer_known_at = -math.inf
        """Monotonic time of a request whose response showed that the leader has our producer state."""
        self.is_producer_unknown = False
        """The leader has none of ours: it accepts any sequence from a batch, and after a marker only 0."""
        self.is_sequence_known = False
        """The leader knows the sequence before the next one. Until then the first batch goes alone: a batch after a
        refused one would be accepted in its place.
        """
        self.seed_end = 0
        """Nothing below is fetched: the source's log starts here, and the destination is seeded up to it."""
        self.seeded = 0

    @property
    def is_seeding(self) -> bool:
        return self.acknowledged < self.seed_end

    @property
    def is_all_acknowledged(self) -> bool:
        return self.position == self.acknowledged

    @property
    def is_first_unanswered(self) -> bool:
        return not self.is_sequence_known and self.sequence != self.acknowledged_sequence

    def resume(self, resume: ResumePoint, now: float, *, is_producer_unknown: bool) -> None:
        self.position = self.acknowledged = self.seeded = resume.offset
        self.sequence = self.acknowledged_sequence = resume.sequence
        self.end_confirmed_at, self.producer_known_at = -math.inf, now
        self.is_producer_unknown, self.is_sequence_known = is_producer_unknown, not is_producer_unknown
        self.seed_end = resume.offset
        if resume.gap_end <= resume.offset < resume.seed_end:
            self.seed_end = self.position = resume.seed_end

    def expire_sequence(self, now: float) -> None:
        if now - self.producer_known_at > SEQUENCE_VALID_S:
            self.is_sequence_known = False

    def add_queued(self, records: int) -> None:
        self.is_producer_unknown = False
        self.sequence = (self.sequence + records) & SEQUENCE_MASK
        self.position += records

    def skip_to(self, end: int) -> None:
        if self.is_producer_unknown:
            self.sequence = self.acknowledged_sequence = 0
            self.is_producer_unknown = False
        self.position = end

    def next_seeds(self, max_records: int) -> tuple[int, int, int]:
        base_offset, sequence = self.seeded, self.sequence
        records = min(max_records, self.seed_end - base_offset)
        self.seeded += records
        self.sequence = (sequence + records) & SEQUENCE_MASK
        return base_offset, sequence, records

    def add_in_flight(self, now: float) -> None:
        self.in_flight += 1
        self.end_confirmed_at = self.producer_known_at = now

    def remove_in_flight(self) -> None:
        self.in_flight -= 1

    def acknowledge(self, records: int) -> None:
        self.acknowledged += records
        self.acknowledged_sequence = (self.acknowledged_sequence + records) & SEQUENCE_MASK
        self.is_sequence_known = True

    def add_filled(self, offsets: int, now: float) -> None:
        self.acknowledged += offsets
        self.is_sequence_known, self.producer_known_at = True, now

    def confirm_end(self, requested_at: float) -> None:
        self.end_confirmed_at = requested_at

    def clear_in_flight(self) -> None:
        self.in_flight = 0


_NO_OFFSET: Final = -1


class ReceiptCounts:
    __slots__ = (
        "_digest_sum",
        "_gap_end",
        "_next_offset",
        "_piece_start",
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
        """At the resume offset. The source's log usually starts at the gap's end, and so will the destination's: a
        piece that began before it could never be verified.
        """
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
        """`records`: the distance from `acknowledged` in sequences.

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
