"""A partition's progress: the next offset to enqueue, and the next one to be acknowledged."""

from __future__ import annotations

import math
from typing import Final

from mirror_core.decide.position import ResumePoint
from mirror_core.wire.batch import SEQUENCE_MASK

SEQUENCE_VALID_S: Final = 1.0
"""After this time without a batch or marker the leader's producer state is unknown. Its expiry
(producer.id.expiration.ms) goes by the records' times: for old ones it may come at any moment."""


class PartitionProgress:
    """Offsets are next offsets; each has the sequence of the next batch to start there."""

    __slots__ = (
        "acknowledged",
        "acknowledged_sequence",
        "in_flight",
        "producer_known_at",
        "end_confirmed_at",
        "position",
        "is_sequence_known",
        "seed_end",
        "seeded",
        "sequence",
        "is_producer_unknown",
    )

    def __init__(self) -> None:
        self.position = 0
        self.sequence = 0
        self.acknowledged = 0
        self.acknowledged_sequence = 0
        self.in_flight = 0
        self.end_confirmed_at = -math.inf
        """Monotonic time of a request whose response showed the log end at `acknowledged`; valid while nothing
        is in flight."""
        self.producer_known_at = -math.inf
        """Monotonic time of a request whose response showed that the leader has our producer state."""
        self.is_producer_unknown = False
        """The leader has no producer state of ours: it accepts any sequence from a batch, and after a marker
        only 0."""
        self.is_sequence_known = False
        """The leader knows the sequence before the next one. Until then the first batch goes alone: a batch
        after a refused one would be accepted in its place."""
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
