"""The data plane's figures under names for Prometheus: one table, which the documentation is compared with.

Labels end at the topic: a mirror may have 50,000 partitions, and a dozen series for each would burden Prometheus for
figures that `mirrorbook mirror describe` has when somebody wants them. What is not known has no sample: neither 0 nor
the last value would be true.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from prometheus_client import Metric
from prometheus_client.registry import Collector

from mirror_core.dataplane.counters import EPOCH_BUCKETS_S, Copied, Counters, Snapshot
from mirror_core.dataplane.progress import Figures, Progress
from mirror_core.model.mirror import Mirror, PartitionState
from mirror_core.model.names import Partition


@dataclass(frozen=True, slots=True)
class Described:
    """One metric. The name is as Prometheus stores it; OpenMetrics' family lacks `_total` and `_info`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    """Besides `mirror`, which all have."""
    meaning: str

    @property
    def family(self) -> str:
        return self.name.removesuffix("_total").removesuffix("_info")

    @property
    def unit(self) -> str:
        last = self.family.rpartition("_")[2]
        return last if last in ("seconds", "bytes") else ""


_TOPIC: Final = ("topic",)
METRICS: Final = (
    Described(
        "mirrorbook_data_plane_info",
        "info",
        ("source", "destination"),
        "always 1: this process is to copy the mirror; names of both clusters",
    ),
    Described(
        "mirrorbook_heartbeat_timestamp_seconds",
        "gauge",
        (),
        "wall clock of the newest heartbeat of this process's lease, in the state topic; every 2 s",
    ),
    Described("mirrorbook_lease_generation", "gauge", (), "number of this owner; grows by one with every start"),
    Described(
        "mirrorbook_partitions",
        "gauge",
        ("topic", "state"),
        "partitions by recorded state. States without a partition are absent, except FAILED. A failure is seen when "
        "the epoch ends (30 s)",
    ),
    Described(
        "mirrorbook_lag_offsets",
        "gauge",
        _TOPIC,
        "readable ends of the source (last stable offsets) minus positions (next offsets to copy), partitions added up",
    ),
    Described(
        "mirrorbook_lag_estimated_records",
        "gauge",
        _TOPIC,
        "lag in offsets, times the records an offset held in what this process has copied of the topic",
    ),
    Described(
        "mirrorbook_lag_estimated_bytes",
        "gauge",
        _TOPIC,
        "lag in offsets, times the bytes an offset took in what this process has copied of the topic; compressed, as "
        "they travel",
    ),
    Described(
        "mirrorbook_lag_seconds",
        "gauge",
        _TOPIC,
        "seconds since the destination last held all that the source then had; of the partition furthest behind, at "
        "most a second too long. Absent too while a backlog is copied that was there before this process",
    ),
    Described(
        "mirrorbook_lag_unknown_partitions",
        "gauge",
        _TOPIC,
        "partitions to be copied whose source end or position is not known now. Above 0 the topic has no lag",
    ),
    Described(
        "mirrorbook_source_seen_timestamp_seconds",
        "gauge",
        _TOPIC,
        "wall clock when the source's end was last seen; of the partition where that is longest ago. Absent until all "
        "have been seen",
    ),
    Described(
        "mirrorbook_source_looked_at_timestamp_seconds",
        "gauge",
        (),
        "wall clock of this process's newest look at the source: the loss bound of an unplanned failover widens from "
        "then on",
    ),
    Described(
        "mirrorbook_source_leaderless_partitions",
        "gauge",
        _TOPIC,
        "partitions that nobody led on the source at that look, so that they can be neither written nor copied. Topics "
        "without any are absent",
    ),
    Described(
        "mirrorbook_missing_known_offsets",
        "gauge",
        (),
        "the source's ends (high watermarks) as last seen, however long ago, minus positions, partitions added up: "
        "what an unplanned failover is known to lose. Absent while a position is not known",
    ),
    Described(
        "mirrorbook_not_whole_since_timestamp_seconds",
        "gauge",
        _TOPIC,
        "wall clock since when the destination has lacked something of what was seen on the source (high watermarks), "
        "of the partition where that is longest ago. An open transaction hides from the lag what is written behind it, "
        "and not from this. Topics that lack nothing are absent",
    ),
    Described(
        "mirrorbook_source_heartbeat_timestamp_seconds",
        "gauge",
        (),
        "wall clock of the newest heartbeat that all brokers of the source acknowledged; every second. Absent where "
        "none are made",
    ),
    Described(
        "mirrorbook_heartbeats_total",
        "counter",
        ("outcome",),
        "seconds in which heartbeats were due. acknowledged; failed: not by all brokers of the source; held: a run "
        "fences the source",
    ),
    Described(
        "mirrorbook_unseeded_offsets",
        "gauge",
        _TOPIC,
        "offsets that are still to be seeded where the source's log begins late, partitions added up. Meanwhile the "
        "lag of such a partition is unknown",
    ),
    Described(
        "mirrorbook_copied_records_total",
        "counter",
        _TOPIC,
        "records acknowledged by all in-sync replicas of the destination",
    ),
    Described(
        "mirrorbook_copied_bytes_total", "counter", _TOPIC, "bytes of their batches, headers included, compressed"
    ),
    Described("mirrorbook_copied_batches_total", "counter", _TOPIC, "their batches"),
    Described(
        "mirrorbook_filled_offsets_total",
        "counter",
        _TOPIC,
        "offsets without a record (transaction markers, aborted or compacted records, a late beginning) that were "
        "filled on the destination",
    ),
    Described(
        "mirrorbook_never_copied_offsets_total",
        "counter",
        _TOPIC,
        "offsets that the source deleted before they were copied, since the mirror began, as the state topic has them: "
        "a restart does not reset it, a recopy does, for the partitions that it copies anew. How many held a record is "
        "not known. Topics without any are absent",
    ),
    Described(
        "mirrorbook_never_copied_timestamp_seconds",
        "gauge",
        _TOPIC,
        "wall clock when the last of these were found. Topics without any are absent",
    ),
    Described(
        "mirrorbook_known_timestamp_seconds",
        "gauge",
        ("what",),
        "wall clock of what a failover would rely on, the newest of each, as of this epoch. groups: their offsets were "
        "synced; proof: the partition that waits the longest was compared equal; drill: one came through. Absent: it "
        "never was",
    ),
    Described(
        "mirrorbook_findings",
        "gauge",
        (),
        "differences from the source that the newest comparison beside the copying found. Absent: none was made",
    ),
    Described(
        "mirrorbook_retries_total",
        "counter",
        ("what",),
        "work done again. task: it ended early since a broker went away; epoch: it failed as a whole; plan: a cluster "
        "could not be looked at; groups: what they commit could not be followed; receipts: an epoch's could not be "
        "stored; state: the state topic took nothing; proof: what is new could not be compared",
    ),
    Described(
        "mirrorbook_epoch_duration_seconds",
        "histogram",
        (),
        "from an epoch's planned start until all its tasks have reported; failed epochs are not in it",
    ),
    Described(
        "mirrorbook_throttle_bytes_per_second",
        "gauge",
        (),
        "what may be read from the source, as the newest epoch applies it. Absent: no limit",
    ),
    Described("mirrorbook_task_cpu_seconds_total", "counter", (), "CPU time of copying tasks"),
)


def as_markdown(metrics: Iterable[Described] = METRICS) -> Iterator[str]:
    """The table for the documentation, a line at a time."""
    yield "| name | type | labels | meaning |"
    yield "|---|---|---|---|"
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning} |"


class Exposition(Collector):
    """Reads counters and progress whenever a scrape asks."""

    def __init__(self, mirror: Mirror, counters: Counters, progress: Progress) -> None:
        self._mirror = mirror
        self._counters = counters
        self._progress = progress

    def collect(self) -> Iterable[Metric]:
        return families(self._mirror, self._counters.snapshot(), self._progress.partitions())


class _Sample(NamedTuple):
    """A value of the metric of that name; `suffix` for the parts of a histogram."""

    metric: str
    labels: tuple[str, ...]
    value: float
    suffix: str = ""
    bucket: str | None = None


def families(mirror: Mirror, told: Snapshot, figures: Mapping[Partition, Figures]) -> list[Metric]:
    """Every metric of the table with the samples that are known. Pure."""
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
        # One unknown partition makes the topic unknown: the sum of the others would pass for all of them.
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
