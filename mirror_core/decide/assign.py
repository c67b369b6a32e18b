"""Which task copies which partitions. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from mirror_core.model.names import Partition


def assign(lags: Mapping[Partition, int], tasks: int) -> tuple[tuple[Partition, ...], ...]:
    """Partitions for at most `tasks` tasks, none of them empty: the longest lag first, to whoever has least so far.

    Lags are in offsets. A partition without lag still costs its place in every request, so it weighs a little.
    """
    heap: list[tuple[int, int]] = [(0, number) for number in range(min(tasks, len(lags)))]
    chosen: list[list[Partition]] = [[] for _ in heap]
    for partition, lag in sorted(lags.items(), key=lambda item: (-item[1], item[0])):
        load, number = heapq.heappop(heap)
        chosen[number].append(partition)
        heapq.heappush(heap, (load + max(lag, 0) + 100, number))
    return tuple(tuple(sorted(partitions)) for partitions in chosen)
