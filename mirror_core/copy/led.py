"""Active and idle partitions of one source broker.

A Fetch and its response name each partition. Beside one partition that delivers a hundred times a second, a thousand
idle ones would cost more than it, on both sides. So idle ones have a link of their own, where the request waits at the
broker for data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from mirror_core.copy.partition import PartitionReplicator
from mirror_core.model.names import Partition

MIN_IDLE_PARTITIONS: Final = 64
_IDLE_AFTER_S: Final = 10.0
_IDLE_RETRY_S: Final = 1.0
_DESTINATION_WAIT_S: Final = 1.0


class BrokerPartitions:
    """Each partition that may be fetched is in a request in flight, or in the next one of a free link."""

    def __init__(self) -> None:
        self._all: dict[PartitionReplicator, None] = {}
        self._active: dict[PartitionReplicator, None] = {}
        self._activating: list[PartitionReplicator] = []
        self.must_hurry = False
        """A partition in neither request waits for its first batch's response, which comes soon, and then for
        a link."""
        self._next_idle_fetch_at = 0.0

    def add(self, replicator: PartitionReplicator) -> None:
        self._all[replicator] = self._active[replicator] = None

    def remove(self, replicator: PartitionReplicator) -> None:
        for replicators in (self._all, self._active):
            replicators.pop(replicator, None)

    @property
    def is_ended(self) -> bool:
        return all(replicator.is_ended for replicator in self._all)

    def select_active(self) -> Collection[PartitionReplicator]:
        for replicator in self._activating:
            if replicator in self._all:
                self._active[replicator] = None
        self._activating = []
        return self._active

    def split_by_activity(self, now: float) -> tuple[list[PartitionReplicator], list[PartitionReplicator]]:
        active, idle = list[PartitionReplicator](), list[PartitionReplicator]()
        for replicator in self._all:
            (idle if _is_idle(replicator, now) else active).append(replicator)
        return active, idle

    def is_idle_fetch_due(self, now: float) -> bool:
        return now >= self._next_idle_fetch_at

    def select_idle(
        self,
        active: Collection[PartitionReplicator],
        idle: Collection[PartitionReplicator],
        requested: Collection[Partition],
        now: float,
        can_fetch: Callable[[PartitionReplicator], bool],
    ) -> list[PartitionReplicator]:
        """Partitions for the idle link's next Fetch: idle ones, and active ones that the request in flight
        (`asked`) left out. The active links fetch the others from now on."""
        selected = [replicator for replicator in idle if can_fetch(replicator)]
        self._active = {replicator: None for replicator in idle if not can_fetch(replicator)}
        self._activating = []
        self.must_hurry = False
        for replicator in active:
            if (
                replicator.partition in requested
                or replicator.source.needs_own_fetch(replicator.progress.position)
                or not can_fetch(replicator)
            ):
                self._active[replicator] = None
                waits = (
                    replicator.progress.is_first_unanswered
                    and now - replicator.source.last_data_at < _DESTINATION_WAIT_S
                )
                self.must_hurry |= waits and bool(requested) and replicator.partition not in requested
            else:
                selected.append(replicator)
                self._activating.append(replicator)
        self._next_idle_fetch_at = 0.0 if selected else now + _IDLE_RETRY_S
        return selected

    def merge_idle(self) -> None:
        self._active, self._activating = dict(self._all), []


def has_many_idle(replicators: Collection[PartitionReplicator], now: float) -> bool:
    return (
        len(replicators) >= MIN_IDLE_PARTITIONS
        and sum(_is_idle(replicator, now) for replicator in replicators) >= MIN_IDLE_PARTITIONS
    )


def _is_idle(replicator: PartitionReplicator, now: float) -> bool:
    source = replicator.source
    is_read = source.readable_end is not None and replicator.progress.position >= source.readable_end
    return (
        is_read
        and now - source.last_data_at > _IDLE_AFTER_S
        and not source.needs_own_fetch(replicator.progress.position)
    )
