"""Cached state, read further while a run is active, else from the start.

Only for provably the same log without gaps: same topic id, leader epoch and log start, and a record at every offset
from the position on. One that compaction removed may have been a tombstone of a cached key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Final

from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.errors import MirrorError
from mirror_core.model.timing import TIMEOUTS
from mirror_core.state import topic_reader
from mirror_core.state.topic_reader import CachedState, LogChanged
from mirror_core.wire.batch import MalformedBatch


class StateCache:
    """A taken entry is exclusive."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._cached: dict[Hashable, CachedState] = {}

    @contextmanager
    def enable(self) -> Iterator[None]:
        """The last user clears it."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._cached.clear()

    @property
    def is_enabled(self) -> bool:
        return self._users > 0

    def pop(self, cluster: ClusterConfig) -> CachedState | None:
        with self._lock:
            return self._cached.pop(_make_cache_key(cluster), None)

    def put(self, cluster: ClusterConfig, cached: CachedState) -> None:
        with self._lock:
            if self._users:
                self._cached[_make_cache_key(cluster)] = cached


STATE_CACHE: Final = StateCache()


def _make_cache_key(cluster: ClusterConfig) -> Hashable:
    return tuple(sorted(cluster.properties().items()))


def read_from_cache(cluster: ClusterConfig, cached: CachedState, on_progress: Callable[[], None]) -> CachedState | None:
    """None if it must be read from the start. Consumes `cached`."""
    try:
        return topic_reader.read_newer(cluster, cached, on_progress, TIMEOUTS.cached_state_s)
    except (MirrorError, MalformedBatch, LogChanged):
        return None
