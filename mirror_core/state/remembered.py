"""Cached state, read further while a run is active.

Only for provably the same log without gaps: same topic id, leader epoch (no truncation) and log start, and a record at
every offset from the position on. A record that compaction removed may have been a tombstone of a cached key; this
needs no clocks. Otherwise the topic is read from the start.
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
    """A taken entry is exclusive."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at_work = 0
        self._known: dict[Hashable, Memory] = {}

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """The last user clears it."""
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


def _key(cluster: ClusterConfig) -> Hashable:
    return tuple(sorted(cluster.properties().items()))


def read_on(cluster: ClusterConfig, known: Memory, heard: Callable[[], None]) -> Memory | None:
    """None: read from the start. Consumes `cached`."""
    try:
        return reading.read_on(cluster, known, heard, LIMITS.remembered_state_s)
    except (MirrorError, MalformedBatch, NotTheSame):
        return None
