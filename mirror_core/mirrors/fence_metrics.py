"""Prometheus metrics of the old source's fence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.registry import Collector

from mirror_core.dataplane.metric_names import MetricDescription
from mirror_core.decide.fence_state import FenceDecision, FenceState
from mirror_core.model.mirror import Mirror
from mirror_core.model.pending_fence import LateRanges
from mirror_core.model.timing import now_ms

FENCE_METRICS: Final = (
    MetricDescription(
        "mirrorbook_standing_fence",
        "gauge",
        ("cluster", "state"),
        "1 for how things stand with the old source, 0 for the others. pending: its fence is not up yet; applied; "
        "watched: Mirrorbook cannot fence it, and only looks; lifting: an abort left its fence there",
    ),
    MetricDescription(
        "mirrorbook_standing_fence_looked_timestamp_seconds",
        "gauge",
        ("cluster",),
        "wall clock of the newest look at the old source, whether it answered or not",
    ),
    MetricDescription(
        "mirrorbook_pending_fence_answers",
        "gauge",
        ("cluster",),
        "1: the old source answers and its fence is pending, since the failover has not ended, it does not take the "
        "fence, or people have to close it (`authorizer: foreign` without fence_command); 0: otherwise",
    ),
    MetricDescription(
        "mirrorbook_slipped_in_offsets",
        "gauge",
        ("cluster", "topic", "written"),
        "offsets that the old source holds beyond the last mirrored ones, up to where its fence was seen to hold. "
        "written: before the failover (lost with it), since (by applications that were not fenced), or unknown, by the "
        "records' own times. Topics without any are absent",
    ),
    MetricDescription(
        "mirrorbook_unfenced_offsets",
        "gauge",
        ("cluster", "topic"),
        "offsets that the old source took behind its fence, or without one: a super user, or no authorizer. Topics "
        "without any are absent",
    ),
)
_FENCE_STATES: Final = tuple(state for state in FenceState if state is not FenceState.NONE)


class FenceCollector(Collector):
    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._newest: tuple[FenceDecision, int] | None = None

    def update(self, decision: FenceDecision) -> None:
        self._newest = decision, now_ms()

    def collect(self) -> Iterable[Metric]:
        return collect_fence_metrics(self._mirror, *self._newest) if self._newest else ()


def collect_fence_metrics(mirror: Mirror, decision: FenceDecision, looked_ms: int) -> list[Metric]:
    metrics_by_name = {
        described.name: Metric(described.family, described.meaning, described.kind, described.unit)
        for described in FENCE_METRICS
    }
    for name, labels, value in _list_fence_samples(decision, looked_ms):
        metrics_by_name[name].add_sample(
            name, {"mirror": str(mirror.name), "cluster": str(mirror.source), **labels}, value
        )
    return list(metrics_by_name.values())


def _list_fence_samples(decision: FenceDecision, looked_ms: int) -> Iterator[tuple[str, dict[str, str], float]]:
    for state in _FENCE_STATES:
        yield "mirrorbook_standing_fence", {"state": state}, float(decision.state is state)
    yield "mirrorbook_pending_fence_answers", {}, float(decision.is_exposed)
    yield "mirrorbook_standing_fence_looked_timestamp_seconds", {}, looked_ms / 1000
    split = decision.late_split
    for written, ranges in (("before", split.before), ("since", split.since), ("unknown", split.unknown)):
        for topic, offsets in sorted(_sum_by_topic(ranges).items()):
            yield "mirrorbook_slipped_in_offsets", {"topic": topic, "written": written}, offsets
    for topic, offsets in sorted(_sum_by_topic(decision.written_ranges).items()):
        yield "mirrorbook_unfenced_offsets", {"topic": topic}, offsets


def _sum_by_topic(ranges: LateRanges) -> Counter[str]:
    offsets_by_topic = Counter[str]()
    for partition, (start, end) in ranges.items():
        offsets_by_topic[partition.topic] += end - start
    return offsets_by_topic
