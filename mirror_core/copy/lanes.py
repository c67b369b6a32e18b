"""Fetch links to one source broker: one where it is near, several where it is far.

Partitions are spread over several requests in flight, none of them in two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from mirror_core.copy.partition import PartitionReplicator
from mirror_core.kafka.connection import Connection, wait_until_responsive
from mirror_core.kafka.fetching import FetchLink
from mirror_core.model.errors import MirrorError
from mirror_core.model.logs import get_logger
from mirror_core.model.names import Partition

_log = get_logger(__name__)

MAX_FETCH_LINKS: Final = 4
_FAR_ROUND_TRIP_S: Final = 0.01
_GOLDEN_RATIO: Final = (5**0.5 - 1) / 2
"""Step from one request's first partition to the next one's: starts spread evenly, so no partition is
always late."""


class FetchLinks:
    """While one response is processed the others travel.

    More links are made when a response could not hold everything, in threads: a far broker needs half a second and more
    for a login.
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
