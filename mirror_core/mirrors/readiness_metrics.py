"""Prometheus metrics of readiness, also served without a data plane."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.registry import Collector

from mirror_core.dataplane.metric_names import Described
from mirror_core.decide.readiness import Readiness, Weight
from mirror_core.decide.watchers import Watching
from mirror_core.decide.without_source import WithoutSource
from mirror_core.model.mirror import Desired

METRICS: Final = (
    Described(
        "mirrorbook_ready",
        "gauge",
        (),
        "1: a planned failover would not be refused now; 0: it would. Absent while a run holds the mirror",
    ),
    Described(
        "mirrorbook_readiness_points",
        "gauge",
        ("weight",),
        "what speaks against a failover now. refusal: it is refused by it; warning: it would cost something, or nobody "
        "knows. `mirrorbook readiness NAME` has their words and remedies",
    ),
    Described(
        "mirrorbook_without_writes_predicted_seconds",
        "gauge",
        (),
        "seconds without writes that a planned failover would take, as its plan predicts them by an earlier failover "
        "or drill of the mirror. Absent: there is neither, or a run holds the mirror",
    ),
    Described(
        "mirrorbook_readiness_known_timestamp_seconds",
        "gauge",
        ("what",),
        "the same as mirrorbook_known_timestamp_seconds without a data plane, by the state topic as it was read last. "
        "0: it never was. Absent while a run holds the mirror; of proof, too, where there is no partition to compare",
    ),
    Described(
        "mirrorbook_unplanned_ready",
        "gauge",
        (),
        "1: an unplanned failover would not be refused if the source died now; 0: it would. Absent while a run holds "
        "the mirror, as are all mirrorbook_unplanned_*",
    ),
    Described(
        "mirrorbook_unplanned_loss_offsets",
        "gauge",
        (),
        "offsets that an unplanned failover is known to lose, by the data plane's last observation of the source: at "
        "least so many. Absent where that is unknown of a partition",
    ),
    Described(
        "mirrorbook_unplanned_loss_looked_timestamp_seconds",
        "gauge",
        (),
        "wall clock of that observation, of the partition where it is oldest: what the source has acknowledged since "
        "may be lost, too. Absent: there is none, or clocks differ",
    ),
    Described(
        "mirrorbook_unplanned_behind_seconds",
        "gauge",
        (),
        "since the destination had all that the source then had, of the partition where that is longest ago. Absent: "
        "unknown",
    ),
    Described(
        "mirrorbook_unplanned_read_again_offsets",
        "gauge",
        (),
        "offsets that consumer groups would read again after an unplanned failover, of all together, at most. Absent "
        "where that is unknown of a group",
    ),
    Described(
        "mirrorbook_readiness_looked_timestamp_seconds", "gauge", (), "wall clock of the newest look; every 30 s"
    ),
    Described(
        "mirrorbook_known_differences",
        "gauge",
        (),
        "partitions that the newest comparison of each, by whomever it was made, found to differ from the source, or "
        "not to be readable on either side",
    ),
    Described("mirrorbook_created_timestamp_seconds", "gauge", (), "wall clock when the mirror was created"),
    Described(
        "mirrorbook_desired",
        "gauge",
        ("desired",),
        "1 for what the operator asked of the mirror last: STARTED, PAUSED, STOPPED; 0 for the others",
    ),
    Described(
        "mirrorbook_run_word_timestamp_seconds",
        "gauge",
        ("step", "writes"),
        "wall clock of the newest word in the journal of the run that holds the mirror: the step begun last, and where "
        "applications may write until another word comes (source, nowhere, destination). Absent without a run",
    ),
    Described(
        "mirrorbook_run_conducted",
        "gauge",
        ("step", "writes"),
        "1: a process conducts the run that holds the mirror; 0: none does, by its signs of life and the clock of the "
        "host that serves this. Absent without a run, and where it is not known",
    ),
    Described(
        "mirrorbook_old_source_watched",
        "gauge",
        ("cluster", "fence", "watching"),
        "1 for what is known of the watchers of the old source, 0 for the others. somebody; awaited: none has come yet "
        "within three minutes of the failover; nobody: the last one has been silent for three minutes; unknown: none "
        "was ever seen, or clocks differ. fence: how it stands there, as in mirrorbook_standing_fence. Absent where "
        "nothing has to be watched",
    ),
)
_SHOWN: Final = tuple(one for one in Watching if one is not Watching.NOT_NEEDED)


class Exposition(Collector):
    def __init__(self) -> None:
        self._newest: tuple[Readiness, ...] = ()

    def tell(self, found: Iterable[Readiness]) -> None:
        self._newest = tuple(found)

    def collect(self) -> Iterable[Metric]:
        return families(self._newest)


def families(looks: Iterable[Readiness]) -> list[Metric]:
    made = {d.name: Metric(d.family, d.meaning, d.kind, d.unit) for d in METRICS}
    for found in looks:
        for name, labels, value in _samples(found):
            made[name].add_sample(name, {"mirror": str(found.mirror.name), **labels}, value)
    return list(made.values())


def _samples(found: Readiness) -> Iterator[tuple[str, dict[str, str], float]]:
    yield "mirrorbook_readiness_looked_timestamp_seconds", {}, found.at_ms / 1000
    yield "mirrorbook_known_differences", {}, found.differs
    yield "mirrorbook_created_timestamp_seconds", {}, found.mirror.created_ms / 1000
    for desired in Desired:
        yield "mirrorbook_desired", {"desired": desired}, float(found.mirror.desired is desired)
    if (seen := found.watched) is not None and seen.watching is not Watching.NOT_NEEDED:
        for one in _SHOWN:
            about = {"cluster": seen.cluster, "fence": seen.fence, "watching": one}
            yield "mirrorbook_old_source_watched", about, float(seen.watching is one)
    if found.run is not None:
        labels = {"step": found.run.step, "writes": found.run.writes}
        yield "mirrorbook_run_word_timestamp_seconds", labels, found.run.since_ms / 1000
        if found.conducted is not None:
            yield "mirrorbook_run_conducted", labels, float(found.conducted)
        return
    yield "mirrorbook_ready", {}, float(found.ready)
    for weight in Weight:
        yield "mirrorbook_readiness_points", {"weight": weight}, found.count(weight)
    if found.predicted_s is not None:
        yield "mirrorbook_without_writes_predicted_seconds", {}, found.predicted_s
    for what, at_ms in found.known_ms.items():
        yield "mirrorbook_readiness_known_timestamp_seconds", {"what": what}, (at_ms or 0) / 1000
    yield from ((name, {}, value) for name, value in _unplanned(found.unplanned, found.at_ms / 1000))


def _unplanned(found: WithoutSource, at_s: float) -> Iterator[tuple[str, float]]:
    yield "mirrorbook_unplanned_ready", float(not found.refused)
    if found.missing is not None and not found.unknown_partitions:
        yield "mirrorbook_unplanned_loss_offsets", found.missing
    if found.looked_s is not None:
        yield "mirrorbook_unplanned_loss_looked_timestamp_seconds", at_s - found.looked_s
    if found.behind_s is not None:
        yield "mirrorbook_unplanned_behind_seconds", found.behind_s
    if found.again_most is not None:
        yield "mirrorbook_unplanned_read_again_offsets", found.again_most
