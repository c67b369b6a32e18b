"""The state topic, read on from where a run at work has read it before: a look costs what was written since.

Read on is only what is provably the same log with nothing missing: same topic id, same leader epoch (so nothing was cut
off), same log start, and from the place on a record for every offset. Where the cleaner has taken one it may have been
a tombstone, whose key is still remembered here: this needs no clock, however long the process was asleep. Whatever
else may be wrong, the topic is read whole, and that says so. Outside of `keeping()` nothing is remembered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Final

from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.errors import MirrorError
from mirror_core.model.limits import LIMITS
from mirror_core.state import reading
from mirror_core.state.reading import Memory, NotTheSame
from mirror_core.wire.batch import MalformedBatch


class Remembered:
    """By cluster, as it is reached. Whoever takes a memory has it alone; another one reads whole meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at_work = 0
        self._known: dict[Hashable, Memory] = {}

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Until the last one leaves; then all is forgotten."""
        with self._lock:
            self._at_work += 1
        try:
            yield
        finally:
            with self._lock:
                self._at_work -= 1
                if not self._at_work:
                    self._known.clear()

    @property
    def keeps(self) -> bool:
        return self._at_work > 0

    def take(self, cluster: ClusterConfig) -> Memory | None:
        with self._lock:
            return self._known.pop(_key(cluster), None)

    def put(self, cluster: ClusterConfig, memory: Memory) -> None:
        with self._lock:
            if self._at_work:
                self._known[_key(cluster)] = memory


REMEMBERED: Final = Remembered()
"""This process's."""


def _key(cluster: ClusterConfig) -> Hashable:
    return tuple(sorted(cluster.properties().items()))


def read_on(cluster: ClusterConfig, known: Memory, heard: Callable[[], None]) -> Memory | None:
    """The committed state at this moment; None when the topic has to be read whole. `known` is used up by it."""
    try:
        return reading.read_on(cluster, known, heard, LIMITS.remembered_state_s)
    except (MirrorError, MalformedBatch, NotTheSame):
        return None
