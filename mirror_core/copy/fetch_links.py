"""Links to one source broker: several where it is far, and one for idle partitions.

Each Fetch and its response name each partition: many idle ones would cost more than an active one. No partition is in
two requests in flight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.kafka.connection import Connection, wait_until_responsive
from mirror_core.kafka.fetch_link import FetchLink
from mirror_core.model.errors import MirrorError
from mirror_core.model.logs import get_logger
from mirror_core.model.names import Partition

_log = get_logger(__name__)
MAX_FETCH_LINKS: Final = 4
_FAR_ROUND_TRIP_S: Final = 0.01
_GOLDEN_RATIO: Final = (5**0.5 - 1) / 2
"""From one request's first partition to the next one's: starts spread evenly, so no partition is always late."""


class FetchLinks:
    """Makes more links when a response could not hold everything.

    In threads: a far broker needs half a second and more for a login.
    """

    def __init__(self, first_connection: Connection, make_link: Callable[[Connection, bool], FetchLink]) -> None:
        self._first_connection = first_connection
        self._make_link = make_link
        self.is_far = first_connection.round_trip_s >= _FAR_ROUND_TRIP_S
        self.links = [make_link(first_connection, self.is_far)]
        self.max_links = MAX_FETCH_LINKS if self.is_far else 1
        self.idle_link: FetchLink | None = None
        self.idle_link_tried = self.is_far
        self._finished_attempts = SimpleQueue[Connection | MirrorError]()
        self._attempts = 0
        self._unfilled_responses = 0
        self._closed = threading.Event()

    def add_links(self) -> None:
        while len(self.links) + self._attempts < self.max_links:
            self._start_connecting()

    def _start_connecting(self) -> None:
        self._attempts += 1
        threading.Thread(target=self._connect, name="fetch-link", daemon=True).start()

    def add_idle_link(self) -> None:
        if not self.idle_link_tried:
            self.idle_link_tried = True
            self._start_connecting()

    def drop_idle_link(self) -> None:
        if self.idle_link is not None:
            self.idle_link.connection.close()
        self.idle_link = None

    @property
    def all_links(self) -> list[FetchLink]:
        return self.links if self.idle_link is None else [*self.links, self.idle_link]

    def note_response(self, filled: bool) -> None:
        self._unfilled_responses = 0 if filled else self._unfilled_responses + 1
        if filled:
            self.add_links()

    @property
    def is_quiet(self) -> bool:
        return self._unfilled_responses >= len(self.links)

    def get_free_links(self) -> list[FetchLink]:
        for attempt in self._pop_finished():
            self._attempts -= 1
            if isinstance(attempt, Connection) and self.is_far:
                self.links.append(self._make_link(attempt, True))
            elif isinstance(attempt, Connection):
                self.idle_link = self._make_link(attempt, False)
            else:  # the broker refuses more connections; the first one works
                _log.info("goes on with %d connections: %s", len(self.links), attempt)
                self.max_links = len(self.links)
        return [link for link in self.links if not link.pending]

    def select_partitions(self, link: FetchLink, replicators: list[PartitionReplicator]) -> list[PartitionReplicator]:
        requested = set[Partition]().union(*(other.in_flight_partitions for other in self.links if other is not link))
        selectable = (
            [replicator for replicator in replicators if replicator.partition not in requested]
            if requested
            else replicators
        )
        start = int(link.request_count * _GOLDEN_RATIO % 1 * len(selectable))
        return selectable[start:] + selectable[:start]

    def partitions_per_link(self, replicators: int) -> int:
        return -(-replicators // len(self.links))

    def _connect(self) -> None:
        try:
            connection = wait_until_responsive(self._first_connection.open_another())
        except MirrorError as error:
            self._finished_attempts.put(error)
            return
        self._finished_attempts.put(connection)
        if self._closed.is_set():
            self._close_finished()

    def _close_finished(self) -> None:
        for attempt in self._pop_finished():
            if isinstance(attempt, Connection):
                attempt.close()

    def _pop_finished(self) -> Iterator[Connection | MirrorError]:
        with suppress(Empty):
            while True:
                yield self._finished_attempts.get_nowait()

    def close(self) -> None:
        self._closed.set()
        self._close_finished()
        for link in self.all_links:
            link.connection.close()


MIN_IDLE_PARTITIONS: Final = 64
_IDLE_AFTER_S: Final = 10.0
_IDLE_RETRY_S: Final = 1.0
_DESTINATION_WAIT_S: Final = 1.0


class BrokerPartitions:
    """Each fetchable partition is in a request in flight, or in the next one of a free link."""

    def __init__(self) -> None:
        self._all: dict[PartitionReplicator, None] = {}
        self._active: dict[PartitionReplicator, None] = {}
        self._activating: list[PartitionReplicator] = []
        self.must_hurry = False
        """A partition in neither request waits for its first batch's response, then for a link."""
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
        """For the idle link's next Fetch: idle ones, and active ones that the request in flight left out."""
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
