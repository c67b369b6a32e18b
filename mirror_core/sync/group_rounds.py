from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from mirror_core.decide.offsets import Commit, decide
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.group_batches import JOINED, TAKEN, GroupBatches
from mirror_core.kafka.groups import Committed, Offsets
from mirror_core.kafka.offsets import Point, known_offsets
from mirror_core.model.errors import Unreachable
from mirror_core.model.groups import Uncommitted
from mirror_core.model.logs import logger
from mirror_core.model.names import Offset, Partition
from mirror_core.sync.group_commits import GroupCommits, OwnOffsets, refused

_log = logger(__name__)

AHEAD_S: Final = 1.0
BUSY_S: Final = 5.0

_Range = tuple[Offset, Offset]
"""Start, high watermark."""


@dataclass(slots=True)
class Waiting:
    """Commits of the source that the destination lacks; the newest of each partition."""

    said: dict[str, dict[Partition, Committed]] = field(default_factory=dict)
    refused: Mapping[tuple[str, str], Uncommitted] = field(default_factory=dict)
    """Replaced, never changed: another thread reads it."""
    destination_ids: Mapping[str, str] = field(default_factory=dict)
    """Other topics of the same name are left alone."""
    _not_before: dict[tuple[str, Partition], float] = field(default_factory=dict)
    _busy: dict[str, float] = field(default_factory=dict)

    def take(self, group: str, partition: Partition, committed: Committed | None) -> None:
        """Without an offset on the source the group keeps the one on the destination."""
        if committed is None:
            self.over(group, partition)
        else:
            self.said.setdefault(group, {})[partition] = committed
            self._not_before.pop((group, partition), None)

    def over(self, group: str, partition: Partition) -> None:
        mine = self.said.get(group, {})
        mine.pop(partition, None)
        self._not_before.pop((group, partition), None)
        if not mine:
            self.said.pop(group, None)

    def refuse(self, group: str, partition: Partition, reason: str, stands: Offset | None) -> None:
        """Not tried again before the group commits again, or a sync looks at it."""
        self.over(group, partition)
        name = str(partition)
        left = Uncommitted(group=group, partition=name, reason=reason, stands=stands)
        if self.refused.get((group, name)) != left:
            _log.info("not committed: %s", reason, group=group, partition=partition)
            self.refused = {**self.refused, (group, name): left}

    def taken(self, group: str, partition: Partition) -> None:
        if (key := (group, str(partition))) in self.refused:
            self.refused = {one: left for one, left in self.refused.items() if one != key}

    def busy(self, group: str, until: float) -> None:
        self._busy[group] = until

    def postpone(self, group: str, partition: Partition, until: float) -> None:
        self._not_before[group, partition] = until

    def due(self, ranges: Mapping[Partition, _Range], now: float) -> dict[str, dict[Partition, Committed]]:
        self._busy = {group: until for group, until in self._busy.items() if until > now}
        found = dict[str, dict[Partition, Committed]]()
        for group, mine in self.said.items():
            ready = {
                partition: committed
                for partition, committed in mine.items()
                if partition in ranges
                and (committed.offset <= ranges[partition][1] or now >= self._not_before.get((group, partition), 0.0))
            }
            if ready and group not in self._busy:
                found[group] = ready
        return found

    @property
    def partitions(self) -> frozenset[Partition]:
        return frozenset(partition for mine in self.said.values() for partition in mine)


class Rounds:
    """Not thread-safe."""

    def __init__(self, destination: ClusterConfig, still_ours: Callable[[], None], own: OwnOffsets) -> None:
        self._opened = ExitStack()
        self._client = self._opened.enter_context(ClusterClient(destination))
        self._commits = self._opened.enter_context(GroupCommits(self._client, still_ours))
        self._batches = GroupBatches(self._client)
        self._own = own
        self._pause_s = AHEAD_S

    def commit(self, waiting: Waiting) -> None:
        """Commit what is due, by the same rules as a sync."""
        if not waiting.said:
            return
        began = time.monotonic()
        ranges = self._ranges(waiting)
        due = waiting.due(ranges, began)
        fetched = self._batches.fetch_now({group: sorted(mine) for group, mine in due.items()})
        for group, fault in fetched.faults.items():
            if isinstance(fault, Unreachable):
                raise fault
            for partition in due[group]:
                waiting.refuse(group, partition, str(fault), None)
        todo = self._decide(waiting, due, fetched.offsets, ranges)
        for group, words in (self._commits.put(todo) if todo else {}).items():
            # Partitions without a code wait for the next round: the coordinator moves, or loads.
            for partition, word in words.items():
                if word in TAKEN:
                    self._own.note(group, partition, todo[group][partition][0])
                    self._settle(waiting, group, partition, ranges)
                elif word in JOINED:
                    waiting.over(group, partition)
                    waiting.busy(group, began + BUSY_S)
                else:
                    there = fetched.offsets[group].committed.get(partition)
                    waiting.refuse(group, partition, refused(word), there.offset if there else None)
        # Many groups far ahead of a new copy must not keep the brokers busy.
        self._pause_s = max(AHEAD_S, 5 * (time.monotonic() - began))

    def _decide(
        self,
        waiting: Waiting,
        due: Mapping[str, Mapping[Partition, Committed]],
        there: Mapping[str, Offsets],
        ranges: Mapping[Partition, _Range],
    ) -> dict[str, dict[Partition, tuple[Offset, str]]]:
        todo = dict[str, dict[Partition, tuple[Offset, str]]]()
        for group, offsets in there.items():
            for partition, committed in due[group].items():
                if partition in offsets.unsettled:  # an open transaction there commits it: next round
                    continue
                before = offsets.committed.get(partition)
                decision = decide(
                    source=committed.offset,
                    start=ranges[partition][0],
                    end=ranges[partition][1],
                    destination=before.offset if before else None,
                    own=self._own.of(group, partition),
                )
                if isinstance(decision, Commit):
                    todo.setdefault(group, {})[partition] = (decision.offset, committed.metadata)
                elif before is not None and not decision.equal:
                    waiting.refuse(group, partition, decision.reason, before.offset)
                elif before is not None:
                    self._own.note(group, partition, before.offset)
                    self._settle(waiting, group, partition, ranges)
        return todo

    def _settle(self, waiting: Waiting, group: str, partition: Partition, ranges: Mapping[Partition, _Range]) -> None:
        waiting.taken(group, partition)
        if waiting.said[group][partition].offset > ranges[partition][1]:
            waiting.postpone(group, partition, time.monotonic() + self._pause_s)
        else:
            waiting.over(group, partition)

    def _ranges(self, waiting: Waiting) -> dict[Partition, _Range]:
        wanted = waiting.partitions
        topics = self._client.metadata({partition.topic for partition in wanted}).topics
        ours = {t: view for t, view in topics.items() if view.id == waiting.destination_ids.get(t, view.id)}
        mine = [p for p in wanted if p.topic in ours and p.index in ours[p.topic].partitions]
        ends = known_offsets(self._client, mine, Point.HIGH_WATERMARK, led=ours)
        starts = known_offsets(self._client, ends, Point.START, led=ours)
        return {p: (starts[p], ends[p]) for p in starts.keys() & ends.keys()}

    def __enter__(self) -> Rounds:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()
