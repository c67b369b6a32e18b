"""Exports the metrics of `metric_names` to Prometheus. An unknown value has no sample."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.registry import Collector

from mirror_core.dataplane.counters import EPOCH_BUCKETS_S, Copied, Counters, Snapshot
from mirror_core.dataplane.metric_names import METRICS
from mirror_core.dataplane.progress import Figures, Progress
from mirror_core.model.mirror import Mirror, PartitionState
from mirror_core.model.names import Partition


class Exposition(Collector):
    def __init__(self, mirror: Mirror, counters: Counters, progress: Progress) -> None:
        self._mirror = mirror
        self._counters = counters
        self._progress = progress

    def collect(self) -> Iterable[Metric]:
        return families(self._mirror, self._counters.snapshot(), self._progress.partitions())


class _Sample(NamedTuple):
    metric: str
    labels: tuple[str, ...]
    value: float
    suffix: str = ""
    bucket: str | None = None


def families(mirror: Mirror, told: Snapshot, figures: Mapping[Partition, Figures]) -> list[Metric]:
    known = {described.name: described for described in METRICS}
    found = {d.name: Metric(d.family, d.meaning, d.kind, d.unit) for d in METRICS}
    for sample in _samples(mirror, told, figures):
        described = known[sample.metric]
        labels = {"mirror": str(mirror.name), **dict(zip(described.labels, sample.labels, strict=True))}
        if sample.bucket is not None:
            labels["le"] = sample.bucket
        found[sample.metric].add_sample(sample.metric + sample.suffix, labels, sample.value)
    return list(found.values())


def _samples(mirror: Mirror, told: Snapshot, figures: Mapping[Partition, Figures]) -> Iterator[_Sample]:
    yield _Sample("mirrorbook_data_plane_info", (mirror.source, mirror.destination), 1)
    if told.lease is not None:
        yield _Sample("mirrorbook_heartbeat_timestamp_seconds", (), told.lease.beat_ms / 1000)
        yield _Sample("mirrorbook_lease_generation", (), told.lease.generation)
    topics = {topic for topic, _ in told.states}
    for topic, state in sorted(told.states.keys() | {(topic, PartitionState.FAILED) for topic in topics}):
        yield _Sample("mirrorbook_partitions", (topic, state), told.states.get((topic, state), 0))
    yield from _lags(told, figures)
    yield from _seen(told, figures)
    for topic, copied in told.copied.items():
        yield _Sample("mirrorbook_copied_records_total", (topic,), copied.records)
        yield _Sample("mirrorbook_copied_bytes_total", (topic,), copied.bytes)
        yield _Sample("mirrorbook_copied_batches_total", (topic,), copied.batches)
        yield _Sample("mirrorbook_filled_offsets_total", (topic,), copied.gaps)
    for topic, missed in told.never_copied.items():
        yield _Sample("mirrorbook_never_copied_offsets_total", (topic,), missed.offsets)
        yield _Sample("mirrorbook_never_copied_timestamp_seconds", (topic,), missed.newest_ms / 1000)
    for topic, filled in told.filled.items():
        yield _Sample("mirrorbook_filled_offsets_of_a_partition", (topic,), filled)
    for known, at_ms in told.known_ms.items():
        yield _Sample("mirrorbook_known_timestamp_seconds", (known,), at_ms / 1000)
    if told.throttle is not None:
        yield _Sample("mirrorbook_throttle_bytes_per_second", (), told.throttle)
    if told.findings is not None:
        yield _Sample("mirrorbook_findings", (), told.findings)
    for what, count in told.retries.items():
        yield _Sample("mirrorbook_retries_total", (what,), count)
    limits = [*map(str, EPOCH_BUCKETS_S), "+Inf"]
    for limit, count in zip(limits, told.epochs, strict=True):
        yield _Sample("mirrorbook_epoch_duration_seconds", (), count, "_bucket", limit)
    yield _Sample("mirrorbook_epoch_duration_seconds", (), told.epochs[-1], "_count")
    yield _Sample("mirrorbook_epoch_duration_seconds", (), told.epochs_s, "_sum")
    yield _Sample("mirrorbook_task_cpu_seconds_total", (), told.cpu_s)


def _seen(told: Snapshot, figures: Mapping[Partition, Figures]) -> Iterator[_Sample]:
    if told.sighting is not None:
        yield _Sample("mirrorbook_source_looked_at_timestamp_seconds", (), told.sighting.at_ms / 1000)
        for topic, count in Counter(p.topic for p in told.sighting.leaderless()).items():
            yield _Sample("mirrorbook_source_leaderless_partitions", (topic,), count)
        seen = {p: one.end for p, one in told.sighting.seen() if p in told.copying}
        if seen.keys() <= figures.keys():
            missing = sum(max(0, end - figures[p].position) for p, end in seen.items())
            yield _Sample("mirrorbook_missing_known_offsets", (), missing)
    since = defaultdict[str, list[int]](list)
    for partition, at_ms in told.unreached_ms.items():
        if partition in told.copying:
            since[partition.topic].append(at_ms)
    for topic, times in since.items():
        yield _Sample("mirrorbook_not_whole_since_timestamp_seconds", (topic,), min(times) / 1000)
    if told.heartbeat_ms is not None:
        yield _Sample("mirrorbook_source_heartbeat_timestamp_seconds", (), told.heartbeat_ms / 1000)
    for outcome, count in told.heartbeats.items():
        yield _Sample("mirrorbook_heartbeats_total", (outcome,), count)


def _lags(told: Snapshot, figures: Mapping[Partition, Figures]) -> Iterator[_Sample]:
    by_topic: dict[str, list[Figures | None]] = defaultdict(list)
    for partition in told.copying:
        by_topic[partition.topic].append(figures.get(partition))
    for topic, of_topic in sorted(by_topic.items()):
        # One unknown partition makes the topic's sum unknown.
        lags = [f.lag for f in of_topic if f is not None and f.lag is not None]
        yield _Sample("mirrorbook_lag_unknown_partitions", (topic,), len(of_topic) - len(lags))
        if len(lags) == len(of_topic):
            lag = sum(lags)
            copied = told.copied.get(topic, Copied())
            yield _Sample("mirrorbook_lag_offsets", (topic,), lag)
            if copied.offsets or not lag:
                density = 1 / copied.offsets if copied.offsets else 0
                yield _Sample("mirrorbook_lag_estimated_records", (topic,), lag * copied.records * density)
                yield _Sample("mirrorbook_lag_estimated_bytes", (topic,), lag * copied.bytes * density)
        unseeded = [f.to_seed for f in of_topic if f is not None and f.to_seed is not None]
        if len(unseeded) == len(of_topic):
            yield _Sample("mirrorbook_unseeded_offsets", (topic,), sum(unseeded))
        behind = [f.time_lag_s for f in of_topic if f is not None and f.time_lag_s is not None]
        if len(behind) == len(of_topic):
            yield _Sample("mirrorbook_lag_seconds", (topic,), max(behind))
        seen = [f.source_seen_s for f in of_topic if f is not None and f.source_seen_s is not None]
        if len(seen) == len(of_topic):
            yield _Sample("mirrorbook_source_seen_timestamp_seconds", (topic,), min(seen))
