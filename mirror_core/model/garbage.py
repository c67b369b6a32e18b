"""Python's search for garbage in cycles, made rare.

By default it begins with every 700 new objects, and now and then looks at all that are alive: with the state of 5,000
partitions at hand that was a third of what a sync or a failover took, while applications stood still. What is no cycle
is freed at once all the same; cycles come from errors and a few answers, and wait for a moment longer.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_OBJECTS: Final = 100_000
"""New ones that begin a search: some 10 MiB."""


def seek_seldom() -> None:
    """From now on, in this process."""
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])


@contextmanager
def seldom_sought() -> Iterator[None]:
    """Meanwhile; for a process that is not ours alone."""
    before = gc.get_threshold()
    seek_seldom()
    try:
        yield
    finally:
        gc.set_threshold(*before)
