"""What all conductors of a process share while they are at work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mirror_core.kafka.kept import KEPT
from mirror_core.model.garbage import seldom_sought
from mirror_core.state.remembered import REMEMBERED


@contextmanager
def at_work() -> Iterator[None]:
    """Connections are kept, and what was read of state topics is remembered, from one look to the next."""
    with KEPT.keeping(), REMEMBERED.keeping(), seldom_sought():
        yield
