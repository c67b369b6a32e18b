"""Prometheus metrics of the old source's fence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.registry import Collector

from mirror_core.dataplane.metric_names import Described
from mirror_core.decide.slipped import Ranges
from mirror_core.decide.standing import Judgement, Standing
from mirror_core.model.clock import now_ms
from mirror_core.model.mirror import Mirror

METRICS: Final = (
    Described(
        "mirrorbook_standing_fence",
        "gauge",
        ("cluster", "state"),
        "1 for how things stand with the old source, 0 for the others. pending: its fence is not up yet; stands; "
        "watched: Mirrorbook cannot fence it, and only looks; lifting: an abort left its fence there",
    ),
    Described(
        "mirrorbook_standing_fence_looked_timestamp_seconds",
        "gauge",
        ("cluster",),
        "wall clock of the newest look at the old source, whether it answered or not",
    ),
    Described(
        "mirrorbook_pending_fence_answers",
        "gauge",
        ("cluster",),
        "1: the old source answers and its fence is pending, since the failover has not ended, it does not take the "
        "fence, or people have to close it (`authorizer: foreign` without fence_command); 0: otherwise",
    ),
    Described(
        "mirrorbook_slipped_in_offsets",
        "gauge",
        ("cluster", "topic"),
        "offsets that the old source holds beyond the last mirrored ones, up to where its fence was seen to hold. "
        "Topics without any are absent",
    ),
    Described(
        "mirrorbook_unfenced_offsets",
        "gauge",
        ("cluster", "topic"),
        "offsets that the old source took behind its fence, or without one: a super user, or no authorizer. Topics "
        "without any are absent",
    ),
)
_SHOWN: Final = tuple(state for state in Standing if state is not Standing.NOTHING)


class Exposition(Collector):
    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._newest: tuple[Judgement, int] | None = None

    def tell(self, found: Judgement) -> None:
        self._newest = found, now_ms()

    def collect(self) -> Iterable[Metric]:
        return families(self._mirror, *self._newest) if self._newest else ()


def families(mirror: Mirror, found: Judgement, looked_ms: int) -> list[Metric]:
    made = {d.name: Metric(d.family, d.meaning, d.kind, d.unit) for d in METRICS}
    for name, labels, value in _samples(found, looked_ms):
        made[name].add_sample(name, {"mirror": str(mirror.name), "cluster": str(mirror.source), **labels}, value)
    return list(made.values())


def _samples(found: Judgement, looked_ms: int) -> Iterator[tuple[str, dict[str, str], float]]:
    for state in _SHOWN:
        yield "mirrorbook_standing_fence", {"state": state}, float(found.standing is state)
    yield "mirrorbook_pending_fence_answers", {}, float(found.exposed)
    yield "mirrorbook_standing_fence_looked_timestamp_seconds", {}, looked_ms / 1000
    for name, ranges in (
        ("mirrorbook_slipped_in_offsets", found.slipped),
        ("mirrorbook_unfenced_offsets", found.written),
    ):
        for topic, offsets in sorted(_by_topic(ranges).items()):
            yield name, {"topic": topic}, offsets


def _by_topic(ranges: Ranges) -> Counter[str]:
    found = Counter[str]()
    for partition, (start, end) in ranges.items():
        found[partition.topic] += end - start
    return found
