"""A round of commits: what groups committed on the source, brought to the destination as far as the copy has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from mirror_core.decide.offsets import Commit, decide
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.group_batches import DONE, JOINED, GroupBatches
from mirror_core.kafka.groups import Committed
from mirror_core.kafka.offsets import Point, known_offsets
from mirror_core.model.logs import logger
from mirror_core.model.names import Offset, Partition
from mirror_core.sync.group_commits import GroupCommits

_log = logger(__name__)

AHEAD_S: Final = 1.0
"""A group whose commit the copy has not reached yet gets the copy's end this often."""
BUSY_S: Final = 5.0
"""A group with members on the destination is not tried for so long."""

_Range = tuple[Offset, Offset]
"""Of a destination's log: its start and its high watermark, the next offset after what a group can read there."""


@dataclass(slots=True)
class Waiting:
    """What groups committed on the source and do not have on the destination yet; the newest word on each partition."""

    said: dict[str, dict[Partition, Committed]] = field(default_factory=dict)
    _not_before: dict[tuple[str, Partition], float] = field(default_factory=dict)
    _busy: dict[str, float] = field(default_factory=dict)

    def take(self, group: str, partition: Partition, committed: Committed | None) -> None:
        """None: the group has none any more, and keeps on the destination what it has there."""
        if committed is None:
            self.over(group, partition)
        else:
            self.said.setdefault(group, {})[partition] = committed
            self._not_before.pop((group, partition), None)

    def over(self, group: str, partition: Partition) -> None:
        """Nothing is left to do."""
        mine = self.said.get(group, {})
        mine.pop(partition, None)
        self._not_before.pop((group, partition), None)
        if not mine:
            self.said.pop(group, None)

    def busy(self, group: str, until: float) -> None:
        """It has members on the destination."""
        self._busy[group] = until

    def postpone(self, group: str, partition: Partition, until: float) -> None:
        """The copy is not there yet: as soon as it is, or else then."""
        self._not_before[group, partition] = until

    def due(self, ranges: Mapping[Partition, _Range], now: float) -> dict[str, dict[Partition, Committed]]:
        """What can be committed now, of partitions whose log on the destination is known."""
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
    """Rounds of commits on one destination. Not for use by several threads at once."""

    def __init__(self, destination: ClusterConfig, still_ours: Callable[[], None]) -> None:
        self._opened = ExitStack()
        self._client = self._opened.enter_context(ClusterClient(destination))
        self._commits = self._opened.enter_context(GroupCommits(self._client, still_ours))
        self._batches = GroupBatches(self._client)
        self._pause_s = AHEAD_S

    def commit(self, waiting: Waiting) -> None:
        """Commit what can be committed now. What the source says is decided about as by a sync (`decide.offsets`)."""
        if not waiting.said:
            return
        began = time.monotonic()
        ranges = self._ranges(waiting.partitions)
        due = waiting.due(ranges, began)
        todo = dict[str, dict[Partition, tuple[Offset, str]]]()
        for group, offsets in self._batches.fetch({group: sorted(mine) for group, mine in due.items()}).items():
            for partition, committed in due[group].items():
                before = offsets.committed.get(partition)
                decision = decide(
                    source=committed.offset,
                    start=ranges[partition][0],
                    end=ranges[partition][1],
                    destination=before.offset if before else None,
                    destination_epoch=before.leader_epoch if before else -1,
                )
                if isinstance(decision, Commit):
                    todo.setdefault(group, {})[partition] = (decision.offset, committed.metadata)
                else:
                    self._settle(waiting, group, partition, ranges)
        for group, words in (self._commits.put(todo) if todo else {}).items():
            # What is not among the words is left for the next round: its coordinator moves, or loads.
            for partition, word in words.items():
                if word == DONE:
                    self._settle(waiting, group, partition, ranges)
                    continue
                waiting.over(group, partition)
                if word in JOINED:
                    waiting.busy(group, began + BUSY_S)
                else:
                    _log.info("not committed: %s", word, group=group, partition=str(partition))
        # Where many groups are far ahead of a copy that has just begun, they must not keep the brokers busy.
        self._pause_s = max(AHEAD_S, 5 * (time.monotonic() - began))

    def _settle(self, waiting: Waiting, group: str, partition: Partition, ranges: Mapping[Partition, _Range]) -> None:
        """The destination has what it can have of it now."""
        if waiting.said[group][partition].offset > ranges[partition][1]:
            waiting.postpone(group, partition, time.monotonic() + self._pause_s)
        else:
            waiting.over(group, partition)

    def _ranges(self, partitions: Collection[Partition]) -> dict[Partition, _Range]:
        """Of those partitions that are there and have a leader now."""
        ends = known_offsets(self._client, partitions, Point.HIGH_WATERMARK)
        starts = known_offsets(self._client, ends, Point.START)
        return {p: (starts[p], ends[p]) for p in starts.keys() & ends.keys()}

    def __enter__(self) -> Rounds:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()
