"""What the source reported of a partition: its readable end, and whether it stays silent before that."""

from __future__ import annotations

import math
from typing import Final

from mirror_core.kafka.empty_answers import SURE, Proof, proof
from mirror_core.wire.fetch import Fetched

_SILENT_S: Final = 5.0
"""A broker holds a Fetch for two seconds at most, and near-empty responses are short."""


class SourceProbe:
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
        """Position of the newest Fetch; its response counts only at this position. -1: none since resuming."""
        self.asked_on: object = None
        self.asked_at = math.inf
        self.gave_at = -math.inf
        self.suspect = False
        self.alone = False
        """It was part of a malformed response: it is fetched alone until a valid one arrives."""
        self.empty = 0
        """Consecutive conclusive empty responses. Those from remote storage prove nothing, and do not count."""
        self.local_start = 0
        """Below it the source's leader holds nothing locally (`kafka.tiered`), as far as was requested."""
        self.end: int | None = None
        self.readable_end: int | None = None

    def ask(self, position: int, link: object = None, now: float = math.inf) -> None:
        self.asked, self.asked_on, self.asked_at = position, link, now

    @property
    def unasked(self) -> bool:
        return self.asked < 0

    def apart(self, position: int) -> bool:
        return self.suspect or self.alone or self.remote(position)

    def senseless(self) -> None:
        self.alone = True

    def told(self, last_stable: int) -> None:
        self.end = self.readable_end = last_stable
        self.alone = False
        self.asked_at = math.inf

    def silent(self, position: int, now: float) -> bool:
        """Everything reported is copied, and no report follows: the source's end is unknown."""
        return self.end is not None and position >= self.end and now - self.asked_at > _SILENT_S

    def remote(self, position: int) -> bool:
        return position < self.local_start

    def resume(self) -> None:
        self.asked, self.asked_on, self.asked_at = -1, None, math.inf
        self.suspect, self.empty, self.local_start, self.readable_end = False, 0, 0, None

    def came(self, now: float) -> None:
        self.gave_at = now
        self.gave()

    def gave(self) -> None:
        self.suspect, self.empty = False, 0

    def disconnected(self) -> None:
        self.suspect, self.asked_at = False, math.inf

    def gave_nothing(self, position: int, answer: Fetched, *, honest: bool) -> Proof:
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
        self.local_start = start
        return proof(position, upto, 0, honest=True, before=self.empty - 1, local_start=start)
