"""Prometheus metrics of readiness, also served without a data plane."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.registry import Collector

from mirror_core.dataplane.metric_names import MetricDescription
from mirror_core.decide.failover_readiness import PointWeight, Readiness, UnplannedForecast
from mirror_core.decide.process_liveness import WatcherState
from mirror_core.model.mirror import DesiredState

READINESS_METRICS: Final = (
    MetricDescription(
        "mirrorbook_ready",
        "gauge",
        (),
        "1: a planned failover would not be refused now, and no partition is FAILED; 0: not so. Absent while a run "
        "holds the mirror",
    ),
    MetricDescription(
        "mirrorbook_readiness_points",
        "gauge",
        ("weight",),
        "what speaks against a failover now. refusal: it would be refused; loss: it would lose records; warning: it "
        "would cost something; unknown: the cost is not known. `mirrorbook readiness NAME` shows each point and its "
        "remedy",
    ),
    MetricDescription(
        "mirrorbook_without_writes_predicted_seconds",
        "gauge",
        (),
        "seconds without writes that a planned failover would take, as its plan predicts them by an earlier failover "
        "or drill of the mirror. Absent: there is neither, the copy is behind, or a run holds the mirror",
    ),
    MetricDescription(
        "mirrorbook_readiness_known_timestamp_seconds",
        "gauge",
        ("what",),
        "the same as mirrorbook_known_timestamp_seconds without a data plane, by the state topic as it was read last. "
        "0: it never was. Absent while a run holds the mirror; of verification, too, where there is no partition to "
        "compare",
    ),
    MetricDescription(
        "mirrorbook_unplanned_ready",
        "gauge",
        (),
        "1: an unplanned failover would not be refused if the source died now; 0: it would. Absent while a run holds "
        "the mirror, as are all mirrorbook_unplanned_*",
    ),
    MetricDescription(
        "mirrorbook_unplanned_loss_offsets",
        "gauge",
        (),
        "offsets that an unplanned failover is known to lose, by the data plane's last observation of the source: at "
        "least so many. Absent where that is unknown of a partition",
    ),
    MetricDescription(
        "mirrorbook_unplanned_loss_looked_timestamp_seconds",
        "gauge",
        (),
        "wall clock of that observation, of the partition where it is oldest: what the source has acknowledged since "
        "may be lost, too. Absent: there is none, or clocks differ",
    ),
    MetricDescription(
        "mirrorbook_unplanned_behind_seconds",
        "gauge",
        (),
        "since the destination had all that the source then had, of the partition where that is longest ago. Absent: "
        "unknown",
    ),
    MetricDescription(
        "mirrorbook_unplanned_read_again_offsets",
        "gauge",
        (),
        "offsets that consumer groups would read again after an unplanned failover, of all together, at most. Absent "
        "where that is unknown of a group",
    ),
    MetricDescription(
        "mirrorbook_readiness_looked_timestamp_seconds", "gauge", (), "wall clock of the newest look; every 30 s"
    ),
    MetricDescription(
        "mirrorbook_known_differences",
        "gauge",
        (),
        "partitions that the newest comparison of each, by whomever it was made, found to differ from the source, or "
        "not to be readable on either side",
    ),
    MetricDescription("mirrorbook_created_timestamp_seconds", "gauge", (), "wall clock when the mirror was created"),
    MetricDescription(
        "mirrorbook_desired",
        "gauge",
        ("desired",),
        "1 for what the operator asked of the mirror last: STARTED, PAUSED, STOPPED; 0 for the others",
    ),
    MetricDescription(
        "mirrorbook_run_word_timestamp_seconds",
        "gauge",
        ("step", "writes"),
        "wall clock of the newest word in the journal of the run that holds the mirror: the step begun last, and where "
        "applications may write until another word comes (source, nowhere, destination). Absent without a run",
    ),
    MetricDescription(
        "mirrorbook_run_conducted",
        "gauge",
        ("step", "writes"),
        "1: a process conducts the run that holds the mirror; 0: none does, by its signs of life and the clock of the "
        "host that serves this. Absent without a run, and where it is not known",
    ),
    MetricDescription(
        "mirrorbook_old_source_watched",
        "gauge",
        ("cluster", "fence", "watching"),
        "1 for what is known of the watchers of the old source, 0 for the others. alive; awaited: none has come yet "
        "within three minutes of the failover; missing: the last one has been silent for three minutes; unknown: none "
        "was ever seen, or clocks differ. fence: how it stands there, as in mirrorbook_standing_fence. Absent where "
        "nothing has to be watched",
    ),
)
_WATCHER_STATES: Final = tuple(one for one in WatcherState if one is not WatcherState.NOT_NEEDED)


class ReadinessCollector(Collector):
    def __init__(self) -> None:
        self._newest: tuple[Readiness, ...] = ()

    def update(self, readiness: Iterable[Readiness]) -> None:
        self._newest = tuple(readiness)

    def collect(self) -> Iterable[Metric]:
        return collect_readiness(self._newest)


def collect_readiness(readiness_by_mirror: Iterable[Readiness]) -> list[Metric]:
    metrics_by_name = {
        described.name: Metric(described.family, described.meaning, described.kind, described.unit)
        for described in READINESS_METRICS
    }
    for readiness in readiness_by_mirror:
        for name, labels, value in _list_samples(readiness):
            metrics_by_name[name].add_sample(name, {"mirror": str(readiness.mirror.name), **labels}, value)
    return list(metrics_by_name.values())


def _list_samples(readiness: Readiness) -> Iterator[tuple[str, dict[str, str], float]]:
    yield "mirrorbook_readiness_looked_timestamp_seconds", {}, readiness.at_ms / 1000
    yield "mirrorbook_known_differences", {}, readiness.differing_partitions
    yield "mirrorbook_created_timestamp_seconds", {}, readiness.mirror.created_ms / 1000
    for desired in DesiredState:
        yield "mirrorbook_desired", {"desired": desired}, float(readiness.mirror.desired is desired)
    if (watcher := readiness.watcher) is not None and watcher.state is not WatcherState.NOT_NEEDED:
        for watching in _WATCHER_STATES:
            watcher_labels = {"cluster": watcher.cluster, "fence": watcher.fence_state, "watching": watching}
            yield "mirrorbook_old_source_watched", watcher_labels, float(watcher.state is watching)
    if readiness.run_progress is not None:
        labels = {"step": readiness.run_progress.step, "writes": readiness.run_progress.writes}
        yield "mirrorbook_run_word_timestamp_seconds", labels, readiness.run_progress.since_ms / 1000
        if readiness.is_conducted is not None:
            yield "mirrorbook_run_conducted", labels, float(readiness.is_conducted)
        return
    yield "mirrorbook_ready", {}, float(readiness.is_ready)
    for weight in PointWeight:
        yield "mirrorbook_readiness_points", {"weight": weight}, readiness.count_points(weight)
    if readiness.predicted_s is not None:
        yield "mirrorbook_without_writes_predicted_seconds", {}, readiness.predicted_s
    for what, at_ms in readiness.newest_ms.items():
        yield "mirrorbook_readiness_known_timestamp_seconds", {"what": what}, (at_ms or 0) / 1000
    yield from (
        (name, {}, value) for name, value in _list_unplanned_samples(readiness.unplanned, readiness.at_ms / 1000)
    )


def _list_unplanned_samples(forecast: UnplannedForecast, at_s: float) -> Iterator[tuple[str, float]]:
    yield "mirrorbook_unplanned_ready", float(not forecast.refused)
    if forecast.missing is not None and not forecast.unknown_partitions:
        yield "mirrorbook_unplanned_loss_offsets", forecast.missing
    if forecast.observed_s is not None:
        yield "mirrorbook_unplanned_loss_looked_timestamp_seconds", at_s - forecast.observed_s
    if forecast.behind_s is not None:
        yield "mirrorbook_unplanned_behind_seconds", forecast.behind_s
    if forecast.read_again_most is not None:
        yield "mirrorbook_unplanned_read_again_offsets", forecast.read_again_most
