"""A mirror's page: facts with their age, plots, tables with the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from mirror_core.decide.failover_readiness import GroupReadAgain, format_group_read_again
from mirror_core.decide.loss_bound import find_oldest
from mirror_core.decide.run_status import find_run_progress, find_stalled_run
from mirror_core.mirrors.describe import ClockState, PartitionDescription
from mirror_core.mirrors.mirror_facts import FACT_LABELS, FactKey
from mirror_core.model.figures import Figures, format_figures
from mirror_core.model.findings import format_remedy
from mirror_core.model.mirror import DesiredState, Mirror, PartitionState, is_lease_fresh
from mirror_core.model.sync_state import DriftRow, SyncAction
from mirror_core.page.cards import (
    AnswerCard,
    compute_assessment_age,
    explain_incomplete_snapshot,
    explain_outdated,
    format_last_drills,
    make_comparison_card,
    make_idle_cards,
    make_loss_card,
    make_readiness_card,
    make_time_card,
    select_current,
)
from mirror_core.page.plots import Plot, compute_rates, make_plot
from mirror_core.page.runs import ForecastView, RunView, list_forecast_views, list_run_views
from mirror_core.page.snapshots import (
    UNKNOWN,
    Age,
    ClusterSnapshot,
    IdleReverseMirror,
    MirrorAssessment,
    MirrorView,
    compute_age,
    format_counts,
)
from mirror_core.state.point_of_no_return import list_run_verbs
from mirror_core.state.watcher_heartbeat import find_watcher_status

ROWS_PER_PAGE: Final = 100

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TablePage(Generic[T]):
    rows: Sequence[T]
    total: int
    page: int
    pages: int

    @property
    def more(self) -> int:
        return self.total - len(self.rows)


@dataclass(frozen=True, slots=True)
class PartitionTableRow:
    row: PartitionDescription
    behind: str
    """Seconds since the copy held all that the source then had."""
    verified_end: str
    """Next offset after the last one that was compared and found equal."""


@dataclass(frozen=True, slots=True)
class TopicTableRow:
    topic: str
    partitions: int
    states: str
    lag: str
    behind: str
    """Seconds, of the partition that is furthest behind."""
    verified: str
    """How many of its offsets were compared and found equal."""


@dataclass(frozen=True, slots=True)
class GroupTableRow:
    name: str
    progress: str
    """As the plan of a planned failover has them."""
    read_again: str
    """What it would read again if the source died now."""


@dataclass(frozen=True, slots=True)
class CopyLateness:
    """Seconds by partition."""

    seconds: Mapping[str, float | None]
    stopped: bool
    """The mirror does not follow its source any more, and an age would say nothing."""

    def format_greatest(self, partitions: Iterable[str]) -> str:
        if self.stopped:
            return "stopped"
        greatest = find_oldest([self.seconds.get(partition) for partition in partitions])
        return UNKNOWN if greatest is None else f"{greatest:,.1f}"


def compute_lateness(view: MirrorView | None, *, stopped: bool) -> CopyLateness:
    """`view` None: too old."""
    partitions = view.loss.partitions if view and view.loss else {}
    return CopyLateness(
        {str(partition): partition_loss.behind_s for partition, partition_loss in partitions.items()}, stopped
    )


def make_partition_table(
    rows: Iterable[PartitionDescription], lateness: CopyLateness, page: int, *, has_offsets: bool
) -> TablePage[PartitionTableRow]:
    """FAILED first, then unknown lag, then the greatest. `has_offsets`: the rows are current."""
    table_page = _select_page(sorted(rows, key=_rank_partition), page)
    lines = [
        PartitionTableRow(
            row, lateness.format_greatest([row.partition]), _format_verified_end(row, has_offsets=has_offsets)
        )
        for row in table_page.rows
    ]
    return TablePage(lines, table_page.total, table_page.page, table_page.pages)


def make_topic_table(
    rows: Iterable[PartitionDescription], lateness: CopyLateness, page: int
) -> TablePage[TopicTableRow]:
    """Most FAILED partitions first, then unknown lag, then the greatest."""
    by_topic: dict[str, list[PartitionDescription]] = {}
    for row in rows:
        by_topic.setdefault(row.partition.rpartition("-")[0], []).append(row)
    table_page = _select_page(sorted(by_topic, key=lambda topic: (*_rank_topic(by_topic[topic]), topic)), page)
    return TablePage(
        [_make_topic_row(topic, by_topic[topic], lateness) for topic in table_page.rows],
        table_page.total,
        table_page.page,
        table_page.pages,
    )


def make_group_table(
    progress: Mapping[str, Figures], read_again: Mapping[str, GroupReadAgain]
) -> TablePage[GroupTableRow]:
    def worst(group: str) -> tuple[bool, int, str]:
        most = read_again[group].most if group in read_again else None
        return most is not None, -(most or 0), group

    table_page = _select_page(sorted(progress, key=worst), 1)
    rows = [
        GroupTableRow(name, format_figures(progress[name]), format_group_read_again(read_again.get(name)))
        for name in table_page.rows
    ]
    return TablePage(rows, table_page.total, table_page.page, table_page.pages)


def make_drift_table(rows: Iterable[DriftRow]) -> TablePage[DriftRow]:
    return _select_page([row for row in rows if row.action is not SyncAction.EQUAL], 1)


def _select_page(ranked: Sequence[T], page: int) -> TablePage[T]:
    pages = max(1, -(-len(ranked) // ROWS_PER_PAGE))
    page = min(max(1, page), pages)
    return TablePage(ranked[(page - 1) * ROWS_PER_PAGE : page * ROWS_PER_PAGE], len(ranked), page, pages)


def _rank_partition(row: PartitionDescription) -> tuple[bool, bool, int, str]:
    copied = row.state is PartitionState.MIRRORING
    return row.state is not PartitionState.FAILED, row.lag is not None or not copied, -(row.lag or 0), row.partition


def _rank_topic(rows: Sequence[PartitionDescription]) -> tuple[int, bool, int]:
    lag = _sum_lag(rows)
    return -sum(row.state is PartitionState.FAILED for row in rows), lag is not None, -(lag or 0)


def _make_topic_row(topic: str, rows: Sequence[PartitionDescription], lateness: CopyLateness) -> TopicTableRow:
    lag = _sum_lag(rows)
    return TopicTableRow(
        topic=topic,
        partitions=len(rows),
        states=format_counts(row.state for row in rows),
        lag=UNKNOWN if lag is None else f"{lag:,}",
        behind=lateness.format_greatest(row.partition for row in rows if row.state is not PartitionState.FAILED),
        verified=_format_verified(rows),
    )


def _sum_lag(rows: Iterable[PartitionDescription]) -> int | None:
    lags = [row.lag for row in rows if row.state is not PartitionState.FAILED]
    return None if not lags or None in lags else sum(lag or 0 for lag in lags)


def _format_verified_end(row: PartitionDescription, *, has_offsets: bool) -> str:
    if not has_offsets:
        return UNKNOWN
    return "none" if row.verified_end is None else f"{row.verified_end:,}"


def _format_verified(rows: Sequence[PartitionDescription]) -> str:
    known = [(row.verified_end or 0, row.position) for row in rows if row.position is not None]
    if len(known) < len(rows):
        return UNKNOWN
    return f"{sum(map(min, known)):,} of {sum(position for _, position in known):,}"


@dataclass(frozen=True, slots=True)
class MirrorPageContent:
    name: str
    route: str
    owner: str
    """Empty: none."""
    age: Age
    assessment_age: Age
    alarms: tuple[str, ...]
    cards: tuple[AnswerCard, ...]
    facts: Mapping[str, str]
    topics: TablePage[TopicTableRow]
    partitions: TablePage[PartitionTableRow]
    groups: TablePage[GroupTableRow]
    drift: TablePage[DriftRow]
    drift_text: str
    plots: tuple[Plot, ...]
    runs: tuple[RunView, ...]
    forecasts: tuple[ForecastView, ...]


def make_mirror_page(
    mirror: Mirror,
    cluster: ClusterSnapshot,
    view: MirrorView | None,
    assessment: MirrorAssessment | None,
    now_ms: int,
    page: int = 1,
    topics_page: int = 1,
    idle: IdleReverseMirror | None = None,
) -> MirrorPageContent:
    """Figures that are too old are unknown, and an alarm says so.

    `page`: of the partitions; `topics_page`: of the topics.
    """
    age = compute_age(view.at_ms if view else None, now_ms)
    fresh = view if view and not age.stale else None
    current_assessment = select_current(assessment, now_ms)
    description = fresh.description if fresh else None
    rows = description.rows if description else _list_recorded_partitions(mirror, cluster)
    lateness_of_rows = compute_lateness(fresh, stopped=mirror.desired is DesiredState.STOPPED)
    runs = tuple(list_run_views(cluster, mirror.name, now_ms))
    link = cluster.links.get(mirror.name)
    return MirrorPageContent(
        name=mirror.name,
        route=f"{mirror.source} → {mirror.destination}",
        owner=link.config.owner(mirror.name) if link else "",
        age=age,
        assessment_age=compute_assessment_age(assessment, now_ms),
        alarms=(*_list_alarms(cluster, view, age, now_ms), *_list_unattended_alarms(cluster, mirror, now_ms)),
        cards=(
            *(
                make_idle_cards(idle)
                if idle
                else (
                    make_readiness_card(
                        assessment, cluster, view, mirror, format_counts(row.state for row in rows), now_ms
                    ),
                    make_loss_card(fresh, mirror),
                )
            ),
            make_time_card(current_assessment, runs, format_last_drills(cluster, mirror, now_ms)),
            make_comparison_card(fresh, cluster, mirror, now_ms),
        ),
        facts=_list_facts(fresh, cluster, mirror, now_ms),
        topics=make_topic_table(rows, lateness_of_rows, topics_page),
        partitions=make_partition_table(rows, lateness_of_rows, page, has_offsets=description is not None),
        groups=_make_group_table(current_assessment),
        drift=make_drift_table(current_assessment.drift or () if current_assessment else ()),
        drift_text=_format_drift(current_assessment),
        plots=_make_plots(view),
        runs=runs,
        forecasts=tuple(list_forecast_views(cluster.state, mirror.name)),
    )


def select_valid(
    assessment: MirrorAssessment | None, cluster: ClusterSnapshot, mirror: Mirror, now_ms: int
) -> MirrorAssessment | None:
    current_assessment = select_current(assessment, now_ms)
    return (
        None
        if current_assessment is None or explain_outdated(current_assessment, cluster, mirror)
        else current_assessment
    )


_UNKNOWN_OFFSETS: Final = dict.fromkeys(("position", "source_start", "source_end", "lag", "verified_end"))


def _list_recorded_partitions(mirror: Mirror, cluster: ClusterSnapshot) -> tuple[PartitionDescription, ...]:
    return tuple(
        PartitionDescription(
            partition=str(partition),
            state=status.state,
            lmo=status.lmo,
            kind=status.kind,
            reason=status.reason,
            never_copied=status.never_copied,
            **_UNKNOWN_OFFSETS,
        )
        for partition, status in sorted(cluster.state.partitions.get(mirror.name, {}).items())
    )


def _list_alarms(cluster: ClusterSnapshot, view: MirrorView | None, age: Age, now_ms: int) -> list[str]:
    alarms = []
    if cluster.unreachable_reason or compute_age(cluster.at_ms, now_ms).stale:
        alarms.append(f"The state was last read {compute_age(cluster.at_ms, now_ms)}: what is below may not be so now")
    if view is None:
        alarms.append("Both clusters are being looked at for the first time")
    elif age.stale:
        alarms.append(f"Both clusters were last looked at {age}: offsets and lag are unknown now")
    elif view.returned is not None:
        alarms.insert(0, f"{view.returned}: {format_remedy(view.returned)}")
    clock = view.description.facts[FactKey.CLOCK] if view and view.description else None
    if clock is not None and clock.value != ClockState.NOT_BEHIND:
        alarms.append(f"On the machine that serves this page {clock.text}")
    return [*alarms, *filter(None, [explain_incomplete_snapshot(cluster, view)])]


def _list_unattended_alarms(cluster: ClusterSnapshot, mirror: Mirror, now_ms: int) -> Iterator[str]:
    """Runs without a conductor, and old sources without a watcher, unless the state is old."""
    run = cluster.state.active_run(mirror.name)
    if run is not None:
        progress = find_run_progress(run, cluster.state.steps_of(run))
        stalled = find_stalled_run(
            mirror,
            run,
            progress,
            cluster.find_conductor_status(run, now_ms),
            list_run_verbs(cluster.state, run),
        )
        if stalled is not None:
            yield str(stalled)
    if not (cluster.unreachable_reason or compute_age(cluster.at_ms, now_ms).stale):
        yield from map(str, find_watcher_status(cluster.state, mirror.name, cluster.clock_ahead_ms, now_ms).alarms)


def _make_group_table(assessment: MirrorAssessment | None) -> TablePage[GroupTableRow]:
    progress = assessment.decision.plan.groups if assessment and assessment.decision else {}
    return make_group_table(
        progress, (assessment.unplanned.groups if assessment and assessment.unplanned else None) or {}
    )


def _list_facts(view: MirrorView | None, cluster: ClusterSnapshot, mirror: Mirror, now_ms: int) -> dict[str, str]:
    if view and view.description:
        return {FACT_LABELS[key]: fact.text for key, fact in view.description.facts.items()}
    lease = cluster.state.leases.get(mirror.name)
    return {
        FACT_LABELS[FactKey.DESIRED]: mirror.desired,
        FACT_LABELS[FactKey.DATA_PLANE]: f"{lease.owner}, generation {lease.generation}"
        if lease and is_lease_fresh(lease, now_ms)
        else UNKNOWN,
        FACT_LABELS[FactKey.LAG]: UNKNOWN,
        FACT_LABELS[FactKey.TOPICS]: " ".join(mirror.topics),
        FACT_LABELS[FactKey.EXCLUDE_TOPICS]: " ".join(mirror.exclude_topics) or "none",
        FACT_LABELS[FactKey.GROUPS]: " ".join(mirror.groups) or "none",
        FACT_LABELS[FactKey.EXCLUDE_GROUPS]: " ".join(mirror.exclude_groups) or "none",
        FACT_LABELS[FactKey.PRINCIPALS]: " ".join(mirror.principals) or "none",
        FACT_LABELS[FactKey.EXCLUDE_PRINCIPALS]: " ".join(mirror.exclude_principals) or "none",
        FACT_LABELS[FactKey.EXCLUDE_RIGHTS]: ", ".join(mirror.exclude_rights) or "none",
        FACT_LABELS[FactKey.EXCLUDE_SETTINGS]: " ".join(mirror.exclude_settings) or "none",
        FACT_LABELS[FactKey.REPLICATION_FACTOR]: mirror.replication_factor,
    }


def _format_drift(assessment: MirrorAssessment | None) -> str:
    if assessment is None:
        return "unknown: not looked at yet"
    if assessment.drift is None:
        return f"unknown: {assessment.drift_error}"
    return format_counts(row.action for row in assessment.drift) or "nothing in scope"


def _make_plots(view: MirrorView | None) -> tuple[Plot, ...]:
    samples = view.samples if view else ()
    copied = [(s.at_ms, s.copied) for s in samples]
    return (
        make_plot("Lag", "offsets", [(s.at_ms, s.lag) for s in samples]),
        make_plot("Loss known", "offsets", [(s.at_ms, s.missing) for s in samples]),
        make_plot("Throughput", "offsets/s", compute_rates(copied)),
    )
