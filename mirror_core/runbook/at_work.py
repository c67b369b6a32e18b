"""Conducts runs: what failover and failback share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mirror_core.kafka.kept import KEPT
from mirror_core.model.garbage import seldom_sought
from mirror_core.state.remembered import REMEMBERED


@contextmanager
def at_work() -> Iterator[None]:
    """Pools connections and caches state topic reads while entered."""
    with KEPT.keeping(), REMEMBERED.keeping(), seldom_sought():
        yield
