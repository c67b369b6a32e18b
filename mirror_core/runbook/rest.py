"""Estimates what the gate would still have to read, before anybody is stopped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, list_points
from mirror_core.kafka.sizes import log_sizes
from mirror_core.model.errors import Refused, RemoteFault
from mirror_core.model.limits import LIMITS
from mirror_core.model.names import Offset, Partition
from mirror_core.state.link import Link

ENOUGH: Final = 20_000
ENOUGH_BYTES: Final = 64_000_000
"""Another round would gain nothing."""
MANY: Final = 10_000_000
ROUNDS: Final = 20
SHRINKS: Final = 0.7
"""A round that leaves more than this part is the last."""
SLOWLY: Final = 1_000.0


@dataclass(frozen=True, slots=True)
class Rest:
    """Source offsets not yet compared equal. Estimates err high."""

    offsets: int
    size: int | None
    """Bytes, by each log's mean. None: unknown."""
    seconds: float

    @property
    def is_little(self) -> bool:
        return self.offsets <= ENOUGH and (self.size or 0) <= ENOUGH_BYTES

    def __str__(self) -> str:
        size = "" if self.size is None else f", about {self.size / 1e6:,.1f} MB"
        return f"{self.offsets:,} offsets{size}, about {self.seconds:.1f} s"


def rest_of(
    link: Link, partitions: Iterable[Partition], proven: Mapping[Partition, Offset], per_second: float | None
) -> Rest:
    """`proven`: next offset after the last one compared."""
    wanted = list(partitions)
    with ClusterClient(link.source, timeout_s=LIMITS.planned_answer_s) as source:
        points = list_points(source, wanted, [Point.START, Point.LOG_END])
        starts, ends = points.values()
        left = {p: ends[p] - max(starts[p], proven.get(p, Offset(0))) for p in wanted}
        left = {p: offsets for p, offsets in left.items() if offsets > 0}
        try:
            sizes = log_sizes(source, left)
        except RemoteFault:  # a hanging broker may lead nothing of ours
            sizes = {}
    offsets = sum(left.values())
    size = None
    if sizes.keys() >= left.keys():
        size = round(sum(sizes[p] * count / (ends[p] - starts[p]) for p, count in left.items()))
    return Rest(offsets, size, offsets / (per_second or SLOWLY))


def refuse_above(rest: Rest, limit_s: float | None, run_id: str, mirror: str) -> None:
    if limit_s is None or rest.seconds <= limit_s:
        return
    raise Refused(
        f"run {run_id}: fence",
        [
            f"the gate would still have to read {rest}: more than the {limit_s:g} s that were allowed (--gate-limit, "
            "gate_limit_s). Nothing is fenced, and applications go on",
            f"`mirrorbook failover resume {mirror} --gate-limit {limit_s:g}` compares what came since, and looks again "
            "(without the option there is no limit); a data plane that lags has to catch up first; or allow more, or "
            "abort the run",
        ],
    )
