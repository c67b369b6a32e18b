"""Where a partition's copying stands: the next offset to be put into line, and the next to be acknowledged."""

from __future__ import annotations

import math
from typing import Final

from mirror_core.decide.position import Resume
from mirror_core.wire.batch import SEQUENCE_MASK

IDLE_S: Final = 1.0
"""After so long without a batch or a marker nothing is known of the leader's memory. What it remembers for how long is
its own affair (producer.id.expiration.ms), and goes by the records' times: of old ones it may forget at any moment."""


class Place:
    """Offsets are next offsets, and each has its sequence: that of the next batch to begin there."""

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
        """Batches without an answer."""
        self.known_at = -math.inf
        """Monotonic time at which something was asked whose answer told that the log ends at `acknowledged`; of use
        while nothing is in flight."""
        self.in_mind_at = -math.inf
        """Monotonic time at which something was asked, or sent, whose answer told that the leader remembers us."""
        self.unremembered = False
        """The leader remembers nothing of us: it takes any sequence from a batch, and after a marker only 0."""
        self.proven = False
        """The leader knows the sequence before the next one. Before that a batch that follows a refused one would be
        taken in its place: so the first one goes alone."""
        self.seed_end = 0
        """Below it nothing is fetched: the log is seeded up to there, since the source starts there."""
        self.seeded = 0
        """Next offset to be seeded."""

    @property
    def seeding(self) -> bool:
        return self.acknowledged < self.seed_end

    @property
    def first_is_next(self) -> bool:
        """Whether nothing has been put into line that is not acknowledged."""
        return self.position == self.acknowledged

    @property
    def first_waits(self) -> bool:
        """Whether the first batch is in line or in flight, and its answer will tell that others may follow it."""
        return not self.proven and self.sequence != self.acknowledged_sequence

    def resume(self, resume: Resume, now: float, *, unremembered: bool) -> None:
        """Take up the place where the destination's log ends, with nothing in flight."""
        self.position = self.acknowledged = self.seeded = resume.offset
        self.sequence = self.acknowledged_sequence = resume.sequence
        self.known_at, self.in_mind_at = -math.inf, now
        self.unremembered, self.proven = unremembered, not unremembered
        self.seed_end = resume.offset
        if resume.gap_end <= resume.offset < resume.seed_end:
            self.seed_end = self.position = resume.seed_end

    def idle(self, now: float) -> None:
        """Take in that nothing is in line or in flight: after a while the leader may have forgotten us."""
        if now - self.in_mind_at > IDLE_S:
            self.proven = False

    def took(self, records: int) -> None:
        """So many records are put into line."""
        self.unremembered = False
        self.sequence = (self.sequence + records) & SEQUENCE_MASK
        self.position += records

    def skip_to(self, end: int) -> None:
        """Markers are put into line: they count in no sequence."""
        if self.unremembered:
            self.sequence = self.acknowledged_sequence = 0
            self.unremembered = False
        self.position = end

    def take_seeds(self, most: int) -> tuple[int, int, int]:
        """The next offsets to be seeded, at most so many: the first one, its sequence, and how many; 0: no more."""
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
        """By markers."""
        self.acknowledged += offsets
        self.proven, self.in_mind_at = True, now

    def ends_there(self, asked: float) -> None:
        """The log was seen to end at `acknowledged`, at this monotonic time or later."""
        self.known_at = asked

    def disconnected(self) -> None:
        """No answer will come any more."""
        self.in_flight = 0
