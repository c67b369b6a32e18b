"""A partition's progress: the next offset to enqueue, and the next one to be acknowledged."""

from __future__ import annotations

import math
from typing import Final

from mirror_core.decide.position import Resume
from mirror_core.wire.batch import SEQUENCE_MASK

IDLE_S: Final = 1.0
"""After this time without a batch or marker the leader's producer state is unknown. Its expiry
(producer.id.expiration.ms) goes by the records' times: for old ones it may come at any moment."""


class Place:
    """Offsets are next offsets; each has the sequence of the next batch to start there."""

    __slots__ = (
        "acknowledged",
        "acknowledged_sequence",
        "in_flight",
        "in_mind_at",
        "known_at",
        "position",
        "proven",
        "seed_end",
        "seeded",
        "sequence",
        "unremembered",
    )

    def __init__(self) -> None:
        self.position = 0
        self.sequence = 0
        self.acknowledged = 0
        self.acknowledged_sequence = 0
        self.in_flight = 0
        self.known_at = -math.inf
        """Monotonic time of a request whose response showed the log end at `acknowledged`; valid while nothing
        is in flight."""
        self.in_mind_at = -math.inf
        """Monotonic time of a request whose response showed that the leader has our producer state."""
        self.unremembered = False
        """The leader has no producer state of ours: it accepts any sequence from a batch, and after a marker
        only 0."""
        self.proven = False
        """The leader knows the sequence before the next one. Until then the first batch goes alone: a batch
        after a refused one would be accepted in its place."""
        self.seed_end = 0
        """Nothing below is fetched: the source's log starts here, and the destination is seeded up to it."""
        self.seeded = 0

    @property
    def seeding(self) -> bool:
        return self.acknowledged < self.seed_end

    @property
    def first_is_next(self) -> bool:
        return self.position == self.acknowledged

    @property
    def first_waits(self) -> bool:
        return not self.proven and self.sequence != self.acknowledged_sequence

    def resume(self, resume: Resume, now: float, *, unremembered: bool) -> None:
        self.position = self.acknowledged = self.seeded = resume.offset
        self.sequence = self.acknowledged_sequence = resume.sequence
        self.known_at, self.in_mind_at = -math.inf, now
        self.unremembered, self.proven = unremembered, not unremembered
        self.seed_end = resume.offset
        if resume.gap_end <= resume.offset < resume.seed_end:
            self.seed_end = self.position = resume.seed_end

    def idle(self, now: float) -> None:
        if now - self.in_mind_at > IDLE_S:
            self.proven = False

    def took(self, records: int) -> None:
        self.unremembered = False
        self.sequence = (self.sequence + records) & SEQUENCE_MASK
        self.position += records

    def skip_to(self, end: int) -> None:
        if self.unremembered:
            self.sequence = self.acknowledged_sequence = 0
            self.unremembered = False
        self.position = end

    def take_seeds(self, most: int) -> tuple[int, int, int]:
        base, sequence = self.seeded, self.sequence
        records = min(most, self.seed_end - base)
        self.seeded += records
        self.sequence = (sequence + records) & SEQUENCE_MASK
        return base, sequence, records

    def sent(self, now: float) -> None:
        self.in_flight += 1
        self.known_at = self.in_mind_at = now

    def answered(self) -> None:
        self.in_flight -= 1

    def acknowledge(self, records: int) -> None:
        self.acknowledged += records
        self.acknowledged_sequence = (self.acknowledged_sequence + records) & SEQUENCE_MASK
        self.proven = True

    def filled(self, offsets: int, now: float) -> None:
        self.acknowledged += offsets
        self.proven, self.in_mind_at = True, now

    def ends_there(self, asked: float) -> None:
        self.known_at = asked

    def disconnected(self) -> None:
        self.in_flight = 0
