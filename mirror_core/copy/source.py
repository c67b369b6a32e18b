"""What the source reported of a partition: its readable end, and whether it stays silent before that."""

from __future__ import annotations

import math
from typing import Final

from mirror_core.kafka.empty_answers import REQUIRED_EMPTY_FETCHES, EmptyFetch, classify_empty_fetch
from mirror_core.wire.fetch import FetchedPartition

_SILENT_AFTER_S: Final = 5.0
"""A broker holds a Fetch for two seconds at most, and near-empty responses are short."""


class SourceLogState:
    __slots__ = (
        "must_fetch_alone",
        "fetch_position",
        "fetch_sent_at",
        "fetch_link",
        "empty_fetches",
        "end",
        "last_data_at",
        "local_start",
        "readable_end",
        "is_suspect",
    )

    def __init__(self) -> None:
        self.fetch_position = -1
        """Position of the newest Fetch; its response counts only at this position. -1: none since resuming."""
        self.fetch_link: object = None
        self.fetch_sent_at = math.inf
        self.last_data_at = -math.inf
        self.is_suspect = False
        self.must_fetch_alone = False
        """It was part of a malformed response: it is fetched alone until a valid one arrives."""
        self.empty_fetches = 0
        """Consecutive conclusive empty responses. Those from remote storage prove nothing, and do not count."""
        self.local_start = 0
        """Below it the source's leader holds nothing locally (`kafka.tiered`), as far as was requested."""
        self.end: int | None = None
        self.readable_end: int | None = None

    def note_fetch(self, position: int, link: object = None, now: float = math.inf) -> None:
        self.fetch_position, self.fetch_link, self.fetch_sent_at = position, link, now

    @property
    def is_unfetched(self) -> bool:
        return self.fetch_position < 0

    def needs_own_fetch(self, position: int) -> bool:
        return self.is_suspect or self.must_fetch_alone or self.is_remote(position)

    def mark_malformed(self) -> None:
        self.must_fetch_alone = True

    def note_end(self, last_stable: int) -> None:
        self.end = self.readable_end = last_stable
        self.must_fetch_alone = False
        self.fetch_sent_at = math.inf

    def is_silent(self, position: int, now: float) -> bool:
        """Everything reported is copied, and no report follows: the source's end is unknown."""
        return self.end is not None and position >= self.end and now - self.fetch_sent_at > _SILENT_AFTER_S

    def is_remote(self, position: int) -> bool:
        return position < self.local_start

    def reset(self) -> None:
        self.fetch_position, self.fetch_link, self.fetch_sent_at = -1, None, math.inf
        self.is_suspect, self.empty_fetches, self.local_start, self.readable_end = False, 0, 0, None

    def note_data(self, now: float) -> None:
        self.last_data_at = now
        self.clear_suspicion()

    def clear_suspicion(self) -> None:
        self.is_suspect, self.empty_fetches = False, 0

    def handle_disconnect(self) -> None:
        self.is_suspect, self.fetch_sent_at = False, math.inf

    def judge_empty_fetch(self, position: int, fetched: FetchedPartition, *, is_conclusive: bool) -> EmptyFetch:
        if self.empty_fetches >= REQUIRED_EMPTY_FETCHES and position < fetched.last_stable_offset:
            return EmptyFetch.REMOTE_STORAGE
        known_remote = self.local_start if self.is_remote(position) else None
        outcome = classify_empty_fetch(
            position,
            fetched.last_stable_offset,
            len(fetched.records),
            conclusive=is_conclusive,
            previous_empty=self.empty_fetches,
            local_start=known_remote,
        )
        if outcome is EmptyFetch.END:
            self.clear_suspicion()
        elif outcome is not EmptyFetch.MALFORMED:
            self.empty_fetches += is_conclusive
            self.is_suspect = self.empty_fetches < REQUIRED_EMPTY_FETCHES
        return outcome

    def judge_with_local_start(self, position: int, local_start: int, end: int) -> EmptyFetch:
        self.local_start = local_start
        return classify_empty_fetch(
            position, end, 0, conclusive=True, previous_empty=self.empty_fetches - 1, local_start=local_start
        )
