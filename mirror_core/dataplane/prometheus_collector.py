"""Exports the metrics of `metric_names`. An unknown value has no sample."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.registry import Collector

from mirror_core.dataplane.counters import EPOCH_BUCKETS_S, CopiedCounts, Counters, CounterSnapshot
from mirror_core.dataplane.metric_names import METRICS
from mirror_core.dataplane.progress import PartitionFigures, ProgressTracker
from mirror_core.decide.loss_bound import count_missing
from mirror_core.model.mirror import Mirror, PartitionState, PartitionStatus, is_healthy
from mirror_core.model.names import Partition, select_application_partitions
from mirror_core.model.source_observation import SourceObservation
from mirror_core.model.timing import now_ms


class MetricsCollector(Collector):
    def __init__(self, mirror: Mirror, counters: Counters, progress: ProgressTracker) -> None:
        self._mirror = mirror
        self._counters = counters
        self._progress = progress

    def collect(self) -> Iterable[Metric]:
        return build_families(self._mirror, self._counters.snapshot(), self._progress.partitions())


class _MetricSample(NamedTuple):
    metric: str
    labels: tuple[str, ...]
    value: float
    suffix: str = ""
    bucket: str | None = None


def build_families(
    mirror: Mirror, counts: CounterSnapshot, figures: Mapping[Partition, PartitionFigures]
) -> list[Metric]:
    descriptions = {description_of_sample.name: description_of_sample for description_of_sample in METRICS}
    metrics = {
        description.name: Metric(description.family, description.meaning, description.kind, description.unit)
        for description in METRICS
    }
    for sample in _build_samples(mirror, counts, figures):
        description_of_sample = descriptions[sample.metric]
        labels = {"mirror": str(mirror.name), **dict(zip(description_of_sample.labels, sample.labels, strict=True))}
        if sample.bucket is not None:
            labels["le"] = sample.bucket
        metrics[sample.metric].add_sample(sample.metric + sample.suffix, labels, sample.value)
    return list(metrics.values())


def _build_samples(
    mirror: Mirror, counts: CounterSnapshot, figures: Mapping[Partition, PartitionFigures]
) -> Iterator[_MetricSample]:
    yield _MetricSample("mirrorbook_data_plane_info", (mirror.source, mirror.destination), 1)
    if counts.lease is not None:
        yield _MetricSample("mirrorbook_heartbeat_timestamp_seconds", (), counts.lease.heartbeat_ms / 1000)
        yield _MetricSample("mirrorbook_lease_generation", (), counts.lease.generation)
    topics = {topic for topic, _ in counts.states}
    for topic, state in sorted(counts.states.keys() | {(topic, PartitionState.FAILED) for topic in topics}):
        yield _MetricSample("mirrorbook_partitions", (topic, state), counts.states.get((topic, state), 0))
    yield from _build_lag_samples(counts, figures)
    yield from _build_source_samples(counts, figures)
    for topic, copied in counts.copied.items():
        yield _MetricSample("mirrorbook_copied_records_total", (topic,), copied.records)
        yield _MetricSample("mirrorbook_copied_bytes_total", (topic,), copied.bytes)
        yield _MetricSample("mirrorbook_copied_batches_total", (topic,), copied.batches)
        yield _MetricSample("mirrorbook_filled_offsets_total", (topic,), copied.gaps)
    for topic, missed in counts.never_copied.items():
        yield _MetricSample("mirrorbook_never_copied_offsets_total", (topic,), missed.offsets)
        yield _MetricSample("mirrorbook_never_copied_timestamp_seconds", (topic,), missed.newest_ms / 1000)
    for topic, filled in counts.filled.items():
        yield _MetricSample("mirrorbook_filled_offsets_of_a_partition", (topic,), filled)
    for kind, at_ms in counts.known_ms.items():
        yield _MetricSample("mirrorbook_known_timestamp_seconds", (kind,), at_ms / 1000)
    if counts.throttle is not None:
        yield _MetricSample("mirrorbook_throttle_bytes_per_second", (), counts.throttle)
    if counts.findings is not None:
        yield _MetricSample("mirrorbook_findings", (), counts.findings)
    for work, count in counts.retries.items():
        yield _MetricSample("mirrorbook_retries_total", (work,), count)
    limits = [*map(str, EPOCH_BUCKETS_S), "+Inf"]
    for limit, count in zip(limits, counts.epochs, strict=True):
        yield _MetricSample("mirrorbook_epoch_duration_seconds", (), count, "_bucket", limit)
    yield _MetricSample("mirrorbook_epoch_duration_seconds", (), counts.epochs[-1], "_count")
    yield _MetricSample("mirrorbook_epoch_duration_seconds", (), counts.epochs_s, "_sum")
    yield _MetricSample("mirrorbook_task_cpu_seconds_total", (), counts.cpu_s)


def _build_source_samples(
    counts: CounterSnapshot, figures: Mapping[Partition, PartitionFigures]
) -> Iterator[_MetricSample]:
    if counts.observation is not None:
        if (at_ms := _find_oldest_end_ms(counts.recorded, counts.observation)) is not None:
            yield _MetricSample("mirrorbook_source_looked_at_timestamp_seconds", (), at_ms / 1000)
        for topic, count in Counter(p.topic for p in counts.observation.get_offline_partitions()).items():
            yield _MetricSample("mirrorbook_source_leaderless_partitions", (topic,), count)
        positions = {p: figures[p].position for p in counts.copying & figures.keys()}
        missing = count_missing(counts.recorded, counts.observation, positions, counts.early_deletions)
        if missing is not None:
            yield _MetricSample("mirrorbook_missing_known_offsets", (), missing)
    incomplete_since = defaultdict[str, list[int]](list)
    for partition, at_ms in counts.incomplete_since_ms.items():
        if partition in counts.copying:
            incomplete_since[partition.topic].append(at_ms)
    for topic, times in incomplete_since.items():
        yield _MetricSample("mirrorbook_not_whole_since_timestamp_seconds", (topic,), min(times) / 1000)
    if counts.heartbeat_ms is not None:
        yield _MetricSample("mirrorbook_source_heartbeat_timestamp_seconds", (), counts.heartbeat_ms / 1000)
    for outcome, count in counts.heartbeats.items():
        yield _MetricSample("mirrorbook_heartbeats_total", (outcome,), count)


def _find_oldest_end_ms(recorded: Mapping[Partition, PartitionStatus], observation: SourceObservation) -> int | None:
    """As `LossBound.observed_s`."""
    outside = {p for p, status in recorded.items() if not is_healthy(status)}.union(
        observation.get_offline_partitions()
    )
    ends = dict(observation.get_ends())
    return min((ends[p].at_ms for p in select_application_partitions(ends) if p not in outside), default=None)


def _build_lag_samples(
    counts: CounterSnapshot, figures: Mapping[Partition, PartitionFigures]
) -> Iterator[_MetricSample]:
    by_topic: dict[str, list[PartitionFigures | None]] = defaultdict(list)
    for partition in counts.copying:
        if partition.topic in counts.paused_topics:
            continue
        by_topic[partition.topic].append(figures.get(partition))
    for topic, of_topic in sorted(by_topic.items()):
        # One unknown partition makes the topic's sum unknown.
        lags = [
            partition_figures.lag
            for partition_figures in of_topic
            if partition_figures is not None and partition_figures.lag is not None
        ]
        yield _MetricSample("mirrorbook_lag_unknown_partitions", (topic,), len(of_topic) - len(lags))
        if len(lags) == len(of_topic):
            lag = sum(lags)
            copied = counts.copied.get(topic, CopiedCounts())
            yield _MetricSample("mirrorbook_lag_offsets", (topic,), lag)
            if copied.offsets or not lag:
                per_offset = 1 / copied.offsets if copied.offsets else 0
                yield _MetricSample("mirrorbook_lag_estimated_records", (topic,), lag * copied.records * per_offset)
                yield _MetricSample("mirrorbook_lag_estimated_bytes", (topic,), lag * copied.bytes * per_offset)
        unseeded = [
            partition_figures.to_seed
            for partition_figures in of_topic
            if partition_figures is not None and partition_figures.to_seed is not None
        ]
        if len(unseeded) == len(of_topic):
            yield _MetricSample("mirrorbook_unseeded_offsets", (topic,), sum(unseeded))
        time_lags = [
            partition_figures.time_lag_s
            for partition_figures in of_topic
            if partition_figures is not None and partition_figures.time_lag_s is not None
        ]
        if len(time_lags) == len(of_topic):
            yield _MetricSample("mirrorbook_lag_seconds", (topic,), max(time_lags))
        source_ages = [
            partition_figures.source_age_s
            for partition_figures in of_topic
            if partition_figures is not None and partition_figures.source_age_s is not None
        ]
        if len(source_ages) == len(of_topic):
            seen_s = now_ms() / 1000 - max(source_ages)
            yield _MetricSample("mirrorbook_source_seen_timestamp_seconds", (topic,), seen_s)
