"""Links to one source broker: one where it is near by, several where it is far away."""

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
"""Of the way round from one turn to the next: after any number of turns they lie evenly, and none comes to be late."""


class Lanes:
    """Partitions of one broker are asked for in several questions at a time, none of them in two.

    While one answer is taken in the others travel. Near by one link costs least, and a partition's batches share
    requests with all others; beside it there may be a calm one (`copy.led`). Links after the first are made when there
    is more to fetch than comes in one answer, in threads: a far broker lets one wait for half a second and more until
    it has authenticated whoever connects.
    """

    def __init__(self, first: Connection, link: Callable[[Connection, bool], FetchLink]) -> None:
        """`link` makes one of a connection; whether it is far away."""
        self._first = first
        self._link = link
        self.far = first.round_trip_s >= _FAR_S
        self.links = [link(first, self.far)]
        self.most = MOST if self.far else 1
        """Links that there may be."""
        self.calm: FetchLink | None = None
        """Near by: for partitions of which nothing has come for a while."""
        self.parted = self.far
        """No calm link is to be made: there is one, or it did not work; far away there is none."""
        self._made = SimpleQueue[Connection | MirrorError]()
        self._making = 0
        self._thin = 0
        """Answers in a row that had room for more."""
        self._closed = threading.Event()

    def more(self) -> None:
        """There is more to fetch than came in one answer."""
        while len(self.links) + self._making < self.most:
            self._begin()

    def _begin(self) -> None:
        self._making += 1
        threading.Thread(target=self._make, name="fetch-link", daemon=True).start()

    def apart(self) -> None:
        """There are many partitions of which nothing has come for a while."""
        if not self.parted:
            self.parted = True
            self._begin()

    def together(self) -> None:
        """The calm link does not work; no other one is made."""
        if self.calm is not None:
            self.calm.connection.close()
        self.calm = None

    @property
    def every(self) -> list[FetchLink]:
        return self.links if self.calm is None else [*self.links, self.calm]

    def heard(self, filled: bool) -> None:
        """Take in that an answer has come; whether there must be more than came in it."""
        self._thin = 0 if filled else self._thin + 1
        if filled:
            self.more()

    @property
    def quiet(self) -> bool:
        """Whether the broker's newest answers, as many as there are links, had room for more."""
        return self._thin >= len(self.links)

    def idle(self) -> list[FetchLink]:
        """Those that may be asked something."""
        for made in self._finished():
            self._making -= 1
            if isinstance(made, Connection) and self.far:
                self.links.append(self._link(made, True))
            elif isinstance(made, Connection):
                self.calm = self._link(made, False)
            else:  # the first one works: a broker that takes no more of us is no reason to stop
                _log.info("goes on with %d connections: %s", len(self.links), made)
                self.most = len(self.links)
        return [link for link in self.links if not link.pending]

    def free(self, link: FetchLink, replicators: list[PartitionReplicator]) -> list[PartitionReplicator]:
        """Those of these that this link may ask for now; another one first each time, since an answer's size may be
        used up before all have had their turn. One far from the last: its neighbours have just had theirs."""
        asked = set[Partition]().union(*(other.partitions for other in self.links if other is not link))
        free = [one for one in replicators if one.partition not in asked] if asked else replicators
        first = int(link.asked * _GOLDEN % 1 * len(free))
        return free[first:] + free[:first]

    def share(self, replicators: int) -> int:
        """How many of so many partitions are to be in one question."""
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
