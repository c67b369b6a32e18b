"""Names, labels and meanings of metrics.

Labels end at the topic: a dozen series for each of 50,000 partitions would burden Prometheus.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class MetricDescription:
    """Named as Prometheus stores it; OpenMetrics' family lacks `_total` and `_info`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    """Besides `mirror`."""
    meaning: str

    @property
    def family(self) -> str:
        return self.name.removesuffix("_total").removesuffix("_info")

    @property
    def unit(self) -> str:
        last_word = self.family.rpartition("_")[2]
        return last_word if last_word in ("seconds", "bytes") else ""


_TOPIC: Final = ("topic",)
METRICS: Final = (
    MetricDescription(
        "mirrorbook_data_plane_info",
        "info",
        ("source", "destination"),
        "always 1: this process is to copy the mirror; names of both clusters",
    ),
    MetricDescription(
        "mirrorbook_heartbeat_timestamp_seconds",
        "gauge",
        (),
        "wall clock of the newest heartbeat of this process's lease, in the state topic; every 2 s",
    ),
    MetricDescription(
        "mirrorbook_lease_generation", "gauge", (), "number of this owner; grows by one with every start"
    ),
    MetricDescription(
        "mirrorbook_partitions",
        "gauge",
        ("topic", "state"),
        "partitions by recorded state. States without a partition are absent, except FAILED. A failure is seen when "
        "the epoch ends (30 s)",
    ),
    MetricDescription(
        "mirrorbook_lag_offsets",
        "gauge",
        _TOPIC,
        "readable ends of the source (last stable offsets) minus positions (next offsets to copy), partitions added up",
    ),
    MetricDescription(
        "mirrorbook_lag_estimated_records",
        "gauge",
        _TOPIC,
        "lag in offsets, times the records an offset held in what this process has copied of the topic",
    ),
    MetricDescription(
        "mirrorbook_lag_estimated_bytes",
        "gauge",
        _TOPIC,
        "lag in offsets, times the bytes an offset took in what this process has copied of the topic; compressed, as "
        "they travel",
    ),
    MetricDescription(
        "mirrorbook_lag_seconds",
        "gauge",
        _TOPIC,
        "seconds since the destination last held all that the source then had; of the partition furthest behind, at "
        "most a second too long. Absent too while a backlog is copied that was there before this process",
    ),
    MetricDescription(
        "mirrorbook_lag_unknown_partitions",
        "gauge",
        _TOPIC,
        "partitions to be copied whose source end or position is not known now. Above 0 the topic has no lag",
    ),
    MetricDescription(
        "mirrorbook_source_seen_timestamp_seconds",
        "gauge",
        _TOPIC,
        "wall clock when the source's end was last seen; of the partition where that is longest ago. Absent until all "
        "have been seen",
    ),
    MetricDescription(
        "mirrorbook_source_looked_at_timestamp_seconds",
        "gauge",
        (),
        "wall clock when the source's ends were last seen, of the partition where that is longest ago, without FAILED "
        "and leaderless ones: the loss bound of an unplanned failover widens from then on",
    ),
    MetricDescription(
        "mirrorbook_source_leaderless_partitions",
        "gauge",
        _TOPIC,
        "partitions that nobody led on the source at that look, so that they can be neither written nor copied. Topics "
        "without any are absent",
    ),
    MetricDescription(
        "mirrorbook_missing_known_offsets",
        "gauge",
        (),
        "the source's ends (high watermarks) as last seen, however long ago, minus positions, partitions added up, "
        "all of those that have no copy, and beginnings that were deleted on the destination only: what an unplanned "
        "failover is known to lose. Absent while a position is not known, as of a FAILED partition",
    ),
    MetricDescription(
        "mirrorbook_not_whole_since_timestamp_seconds",
        "gauge",
        _TOPIC,
        "wall clock since when the destination has lacked something of what was seen on the source (high watermarks), "
        "of the partition where that is longest ago. An open transaction hides from the lag what is written behind it, "
        "and not from this. Topics that lack nothing are absent",
    ),
    MetricDescription(
        "mirrorbook_source_heartbeat_timestamp_seconds",
        "gauge",
        (),
        "wall clock of the newest heartbeat that all brokers of the source acknowledged; every second. Absent where "
        "none are made",
    ),
    MetricDescription(
        "mirrorbook_heartbeats_total",
        "counter",
        ("outcome",),
        "seconds in which heartbeats were due. acknowledged; failed: not by all brokers of the source; held: a run "
        "fences the source",
    ),
    MetricDescription(
        "mirrorbook_unseeded_offsets",
        "gauge",
        _TOPIC,
        "offsets that are still to be seeded where the source's log begins late, partitions added up. Meanwhile the "
        "lag of such a partition is unknown",
    ),
    MetricDescription(
        "mirrorbook_copied_records_total",
        "counter",
        _TOPIC,
        "records acknowledged by all in-sync replicas of the destination",
    ),
    MetricDescription(
        "mirrorbook_copied_bytes_total", "counter", _TOPIC, "bytes of their batches, headers included, compressed"
    ),
    MetricDescription("mirrorbook_copied_batches_total", "counter", _TOPIC, "their batches"),
    MetricDescription(
        "mirrorbook_filled_offsets_total",
        "counter",
        _TOPIC,
        "offsets without a record (transaction markers, aborted or compacted records, a late beginning) that were "
        "filled on the destination",
    ),
    MetricDescription(
        "mirrorbook_never_copied_offsets_total",
        "counter",
        _TOPIC,
        "offsets that the source deleted before they were copied, since the mirror began, as the state topic has them: "
        "a restart does not reset it, a recopy does, for the partitions that it copies anew. How many held a record is "
        "not known. Topics without any are absent",
    ),
    MetricDescription(
        "mirrorbook_never_copied_timestamp_seconds",
        "gauge",
        _TOPIC,
        "wall clock when the last of these were found. Topics without any are absent",
    ),
    MetricDescription(
        "mirrorbook_filled_offsets_of_a_partition",
        "gauge",
        _TOPIC,
        "offsets without a record that markers were written for, of the partition of this topic that has the most, in "
        "steps of 16,777,216, as the state topic has them. At 268,435,456 it is FAILED. Absent: fewer than a step",
    ),
    MetricDescription(
        "mirrorbook_known_timestamp_seconds",
        "gauge",
        ("what",),
        "when the newest of each that a failover would rely on was, by the destination's clock, as of this epoch. "
        "groups: their offsets were synced; verification: the partition that waits the longest was compared equal; "
        "drill: one came through. Absent: it never was",
    ),
    MetricDescription(
        "mirrorbook_findings",
        "gauge",
        (),
        "places where the newest comparison beside the copying found the copy to differ, or a side not to be readable. "
        "Absent: none was made",
    ),
    MetricDescription(
        "mirrorbook_retries_total",
        "counter",
        ("what",),
        "work done again. task: it ended early since a broker went away, or its worker died; epoch: it failed as a "
        "whole; plan: a cluster could not be looked at; groups: what they commit could not "
        "be followed; receipts: an epoch's could not be stored; state: the state topic took nothing; verification: "
        "what is new could not be compared; sync: topics, settings, access rights and groups could not be synced",
    ),
    MetricDescription(
        "mirrorbook_epoch_duration_seconds",
        "histogram",
        (),
        "from an epoch's planned start until all its tasks have reported; failed epochs are not in it",
    ),
    MetricDescription(
        "mirrorbook_throttle_bytes_per_second",
        "gauge",
        (),
        "what may be read from the source, as the newest epoch applies it. Absent: no limit",
    ),
    MetricDescription("mirrorbook_task_cpu_seconds_total", "counter", (), "CPU time of copying tasks"),
)


def format_metrics_table(metrics: Iterable[MetricDescription] = METRICS) -> Iterator[str]:
    yield "| name | type | labels | meaning |"
    yield "|---|---|---|---|"
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning} |"
