"""What the source reported of a partition, with ranges that it trimmed uncopied.

A gap does not show lost records, so such ranges are recorded before copying passes them: a task waits until the driver
confirms. Without datagrams it goes on after a while, and its report names the range. If another leader still has it, it
is copied. Without a driver (a run's drain) the partition waits: the run records the report, and starts another task.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from mirror_core.kafka.fetch_link import REQUIRED_EMPTY_FETCHES, EmptyFetch, classify_empty_fetch
from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import TrimmedRange
from mirror_core.wire.fetch import FetchedPartition

_SILENT_AFTER_S: Final = 5.0
"""A broker holds a Fetch for two seconds at most, and near-empty responses are short."""


class SourceLogState:
    __slots__ = (
        "empty_fetches",
        "end",
        "fetch_link",
        "fetch_position",
        "fetch_sent_at",
        "is_interrupted",
        "is_suspect",
        "last_data_at",
        "local_start",
        "must_fetch_alone",
        "readable_end",
    )

    def __init__(self, *, is_interrupted: bool) -> None:
        self.fetch_position = -1
        """Newest Fetch; its response counts only at this position. -1: none since resuming."""
        self.fetch_link: object = None
        self.fetch_sent_at = math.inf
        self.last_data_at = -math.inf
        self.is_interrupted = is_interrupted
        """Since both sides were last seen to agree, the connection to its leader was lost, or no task was there: a
        leader may be back with an older copy of its log, under the same epoch.
        """
        self.is_suspect = False
        self.must_fetch_alone = False
        """It was part of a malformed response: it is fetched alone until a valid one arrives."""
        self.empty_fetches = 0
        """Consecutive and conclusive. Those from remote storage prove nothing, and do not count."""
        self.local_start = 0
        """Below it the source's leader holds nothing locally (`kafka.fetch_link`), as far as was requested."""
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

    def mark_interrupted(self) -> None:
        self.is_interrupted = True

    def mark_agreed(self) -> None:
        self.is_interrupted = False

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


MAX_RECORD_WAIT_S: Final = 5.0


class TrimTracker:
    __slots__ = (
        "_clock",
        "_counted_up_to",
        "_has_driver",
        "_passed_count",
        "_recorded_up_to",
        "_waiting_since",
        "ranges",
        "source_start",
    )

    def __init__(self, counted_up_to: int | None, clock: Callable[[], float], *, has_driver: bool) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.source_start: int | None = None
        self._clock = clock
        self._has_driver = has_driver
        self._counted_up_to = counted_up_to
        self._recorded_up_to = -1
        self._passed_count = 0
        self._waiting_since: float | None = None

    def can_pass(self, trimmed_from: int | None, source_start: int, acknowledged: int) -> bool:
        """Whether copying may go on at the source's log start.

        `trimmed_from`: the source trimmed uncopied offsets from here to its start; None: nothing. `acknowledged`: how
        far this task knows the copy to be.
        """
        now = self._clock()
        if self._counted_up_to is None:
            self._counted_up_to = self.get_reached_start(acknowledged)
        while len(self.ranges) > self._passed_count and source_start < self.ranges[-1][1] > self._recorded_up_to:
            self._counted_up_to, _ = self.ranges.pop()  # another leader still has some of it
        if trimmed_from is not None and self._counted_up_to is not None and source_start > self._counted_up_to:
            self.ranges.append((max(trimmed_from, self._counted_up_to), source_start))
            self._counted_up_to = source_start
            self._waiting_since = now if self._waiting_since is None else self._waiting_since
        self.source_start = source_start
        if self._waiting_since is not None and (
            not self.unrecorded or (self._has_driver and now - self._waiting_since >= MAX_RECORD_WAIT_S)
        ):
            self._waiting_since = None
        if self._waiting_since is None:
            self._passed_count = len(self.ranges)
        return self._waiting_since is None

    def get_reached_start(self, acknowledged: int) -> int | None:
        return self.source_start if self.source_start is not None and acknowledged >= self.source_start else None

    @property
    def is_waiting(self) -> bool:
        return self._waiting_since is not None

    @property
    def is_blocked(self) -> bool:
        """It waits for a confirmation that this task cannot receive."""
        return self.is_waiting and not self._has_driver

    @property
    def unrecorded(self) -> list[tuple[int, int]]:
        return [trimmed for trimmed in self.ranges if trimmed[1] > self._recorded_up_to]

    def mark_recorded(self, upto: int) -> None:
        self._recorded_up_to = max(self._recorded_up_to, upto)

    def to_trimmed_ranges(self, partition: Partition) -> list[TrimmedRange]:
        return [TrimmedRange(partition=partition, first=Offset(first), next=Offset(end)) for first, end in self.ranges]
