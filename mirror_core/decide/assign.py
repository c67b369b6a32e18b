"""Assigns partitions to tasks."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Final

from mirror_core.model.names import Partition

_by_name: Final = attrgetter("topic", "index")
"""Comparing fifty thousand partitions directly costs half a second."""


def assign_partitions(lags: Mapping[Partition, int], tasks: int) -> tuple[tuple[Partition, ...], ...]:
    """At most `tasks` nonempty assignments: the longest lag (offsets) goes to the least loaded task.

    A partition without lag still costs space in each request, so it counts a little.
    """
    heap: list[tuple[int, int]] = [(0, number) for number in range(min(tasks, len(lags)))]
    chosen: list[list[Partition]] = [[] for _ in heap]
    for partition, lag in sorted(lags.items(), key=lambda item: (-item[1], *_by_name(item[0]))):
        load, number = heapq.heappop(heap)
        chosen[number].append(partition)
        heapq.heappush(heap, (load + max(lag, 0) + 100, number))
    return tuple(tuple(sorted(partitions, key=_by_name)) for partitions in chosen)


def rotate_partitions(ordered: Sequence[Partition], shift: int) -> tuple[Partition, ...]:
    start = shift % len(ordered) if ordered else 0
    return tuple(dict.fromkeys(chain.from_iterable(zip(ordered, [*ordered[start:], *ordered[:start]], strict=True))))
