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
from mirror_core.kafka.connection import Connection, answering
from mirror_core.kafka.fetching import FetchLink
from mirror_core.model.errors import MirrorError
from mirror_core.model.logs import logger
from mirror_core.model.names import Partition

_log = logger(__name__)

MOST: Final = 4
_FAR_S: Final = 0.01
_GOLDEN: Final = (5**0.5 - 1) / 2
"""Step from one request's first partition to the next one's: starts spread evenly, so no partition is
always late."""


class Lanes:
    """While one response is processed the others travel.

    More links are made when a response could not hold everything, in threads: a far broker needs half a second and more
    for a login.
    """

    def __init__(self, first: Connection, link: Callable[[Connection, bool], FetchLink]) -> None:
        self._first = first
        self._link = link
        self.far = first.round_trip_s >= _FAR_S
        self.links = [link(first, self.far)]
        self.most = MOST if self.far else 1
        self.calm: FetchLink | None = None
        self.parted = self.far
        self._made = SimpleQueue[Connection | MirrorError]()
        self._making = 0
        self._thin = 0
        self._closed = threading.Event()

    def more(self) -> None:
        while len(self.links) + self._making < self.most:
            self._begin()

    def _begin(self) -> None:
        self._making += 1
        threading.Thread(target=self._make, name="fetch-link", daemon=True).start()

    def apart(self) -> None:
        if not self.parted:
            self.parted = True
            self._begin()

    def together(self) -> None:
        if self.calm is not None:
            self.calm.connection.close()
        self.calm = None

    @property
    def every(self) -> list[FetchLink]:
        return self.links if self.calm is None else [*self.links, self.calm]

    def heard(self, filled: bool) -> None:
        self._thin = 0 if filled else self._thin + 1
        if filled:
            self.more()

    @property
    def quiet(self) -> bool:
        return self._thin >= len(self.links)

    def idle(self) -> list[FetchLink]:
        for made in self._finished():
            self._making -= 1
            if isinstance(made, Connection) and self.far:
                self.links.append(self._link(made, True))
            elif isinstance(made, Connection):
                self.calm = self._link(made, False)
            else:  # the broker refuses more connections; the first one works
                _log.info("goes on with %d connections: %s", len(self.links), made)
                self.most = len(self.links)
        return [link for link in self.links if not link.pending]

    def free(self, link: FetchLink, replicators: list[PartitionReplicator]) -> list[PartitionReplicator]:
        asked = set[Partition]().union(*(other.partitions for other in self.links if other is not link))
        free = [one for one in replicators if one.partition not in asked] if asked else replicators
        first = int(link.asked * _GOLDEN % 1 * len(free))
        return free[first:] + free[:first]

    def share(self, replicators: int) -> int:
        return -(-replicators // len(self.links))

    def _make(self) -> None:
        try:
            made = answering(self._first.another())
        except MirrorError as error:
            self._made.put(error)
            return
        self._made.put(made)
        if self._closed.is_set():
            self._drop()

    def _drop(self) -> None:
        for made in self._finished():
            if isinstance(made, Connection):
                made.close()

    def _finished(self) -> Iterator[Connection | MirrorError]:
        with suppress(Empty):
            while True:
                yield self._made.get_nowait()

    def close(self) -> None:
        self._closed.set()
        self._drop()
        for link in self.every:
            link.connection.close()
