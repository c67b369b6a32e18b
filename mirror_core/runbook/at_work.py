"""Conducts runs: what failover and failback share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mirror_core.kafka.kept import CONNECTION_POOL
from mirror_core.model.garbage import reduced_gc_frequency
from mirror_core.state.remembered import STATE_CACHE


@contextmanager
def process_caches() -> Iterator[None]:
    """Pools connections and caches state topic reads while entered."""
    with CONNECTION_POOL.keep_connections(), STATE_CACHE.enable(), reduced_gc_frequency():
        yield
