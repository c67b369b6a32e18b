"""What the source has said of a partition: where its readable part ends, and whether it keeps silent before that."""

from __future__ import annotations

import math
from typing import Final

from mirror_core.kafka.empty_answers import SURE, Proof, proof
from mirror_core.wire.fetch import Fetched

_SILENT_S: Final = 5.0
"""A broker holds a question for two seconds at most, and what it answers when there is next to nothing is short."""


class SourceProbe:
    """Of the answers to one partition's Fetches."""

    __slots__ = (
        "alone",
        "asked",
        "asked_at",
        "asked_on",
        "empty",
        "end",
        "gave_at",
        "local_start",
        "readable_end",
        "suspect",
    )

    def __init__(self) -> None:
        self.asked = -1
        """The position of the newest Fetch; its answer is of use only while the partition still stands there. -1: none
        since this place was taken up."""
        self.asked_on: object = None
        """The link of that Fetch. One to a leader from before may still be without its answer."""
        self.asked_at = math.inf
        """Wall clock of that Fetch, while nothing is answered."""
        self.gave_at = -math.inf
        """Monotonic time at which something came of it last."""
        self.suspect = False
        """It gave nothing though there should be something: it is asked for this partition alone."""
        self.alone = False
        """An answer about it and others made no sense: it is asked for alone, until it gives one that does."""
        self.empty = 0
        """Answers in a row that said so. Those that remote storage should have given prove nothing, and are not
        counted further."""
        self.local_start = 0
        """Before it the source's leader holds nothing itself (`kafka.tiered`), as far as it was asked."""
        self.end: int | None = None
        self.readable_end: int | None = None
        """The last stable offset as last seen since this place was taken up."""

    def ask(self, position: int, link: object = None, now: float = math.inf) -> None:
        self.asked, self.asked_on, self.asked_at = position, link, now

    @property
    def unasked(self) -> bool:
        """Whether nobody has been asked since this place was taken up."""
        return self.asked < 0

    def apart(self, position: int) -> bool:
        """Whether it is to be asked for alone, or may keep all that are asked for with it waiting."""
        return self.suspect or self.alone or self.remote(position)

    def senseless(self) -> None:
        """An answer that it was part of made no sense."""
        self.alone = True

    def told(self, last_stable: int) -> None:
        self.end = self.readable_end = last_stable
        self.alone = False
        self.asked_at = math.inf

    def silent(self, position: int, now: float) -> bool:
        """Whether all that it had told of is there, and it tells nothing more: nobody knows how far it is now."""
        return self.end is not None and position >= self.end and now - self.asked_at > _SILENT_S

    def remote(self, position: int) -> bool:
        """Whether what is next there is known to be in remote storage alone."""
        return position < self.local_start

    def resume(self) -> None:
        """Another place is taken up; or the same, and what is read there may be other records now."""
        self.asked, self.asked_on, self.asked_at = -1, None, math.inf
        self.suspect, self.empty, self.local_start, self.readable_end = False, 0, 0, None

    def came(self, now: float) -> None:
        """Something came of it. `now`: monotonic time."""
        self.gave_at = now
        self.gave()

    def gave(self) -> None:
        """Something came, or is known not to be there."""
        self.suspect, self.empty = False, 0

    def disconnected(self) -> None:
        self.suspect, self.asked_at = False, math.inf

    def gave_nothing(self, position: int, answer: Fetched, *, honest: bool) -> Proof:
        """What it proves that an answer brought nothing (`kafka.empty_answers`)."""
        if self.empty >= SURE and position < answer.last_stable:
            return Proof.REMOTE
        known_remote = self.local_start if self.remote(position) else None
        found = proof(
            position,
            answer.last_stable,
            len(answer.records),
            honest=honest,
            before=self.empty,
            local_start=known_remote,
        )
        if found is Proof.END:
            self.gave()
        elif found is not Proof.TORN:
            self.empty += honest
            self.suspect = self.empty < SURE
        return found

    def leader_holds(self, position: int, start: int, upto: int) -> Proof:
        """What the empty answers prove, now that the leader has told where its own part of the log begins."""
        self.local_start = start
        return proof(position, upto, 0, honest=True, before=self.empty - 1, local_start=start)
