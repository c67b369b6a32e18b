"""The list of all mirrors, a line for each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirror_core.decide.loss_bound import LossBound
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.model.mirror import DesiredState, Lease, Mirror, PartitionState, is_lease_fresh
from mirror_core.model.names import MirrorName
from mirrorbook_airflow.page.cards import (
    AnswerCard,
    compute_assessment_age,
    compute_group_sync_age,
    format_last_drills,
    make_comparison_card,
    make_idle_cards,
    make_readiness_card,
)
from mirrorbook_airflow.page.mirror_state import (
    ClusterSnapshot,
    ClusterSnapshots,
    IdleReverseMirror,
    MirrorAssessment,
    MirrorView,
)
from mirrorbook_airflow.page.number_format import UNKNOWN, Age, compute_age, format_counts


@dataclass(frozen=True, slots=True)
class MirrorOverview:
    """One line. None: not known now."""

    name: MirrorName
    route: str
    desired: str
    states: str
    failed: int
    copier: str
    run: str
    lag: int | None
    """Offsets."""
    behind: str
    """Seconds, of the partition that is furthest behind; or that they are unknown."""
    known_loss: int | None
    """Offsets that a failover without the source would be known to lose."""
    loss_bound: str
    """The bound of these, in words."""
    readiness: AnswerCard
    """Whether it could fail over now, and the first thing that speaks against it."""
    assessment_age: Age
    """When that was looked at."""
    comparison: AnswerCard
    synced: str
    """When groups were."""
    last_drills: str
    """How the last drills went, of each mode."""
    age: Age


def list_overviews(
    clusters: ClusterSnapshots,
    views: Mapping[MirrorName, MirrorView | None],
    assessments: Mapping[MirrorName, MirrorAssessment | None],
    now_ms: int,
) -> list[MirrorOverview]:
    """All mirrors that are known, by name, idle ones last."""
    rows = [
        _make_overview(mirror, cluster, views.get(mirror.name), assessments.get(mirror.name), now_ms)
        for mirror, cluster in clusters.mirrors
    ]
    idle = {mirror.name: found for mirror, _ in clusters.mirrors if (found := clusters.find_idle_reverse(mirror))}
    in_use = [row for row in rows if row.name not in idle]
    return in_use + [_mark_idle(row, idle[row.name]) for row in rows if row.name in idle]


def _mark_idle(row: MirrorOverview, idle: IdleReverseMirror) -> MirrorOverview:
    readiness, loss = make_idle_cards(idle)
    return replace(row, readiness=readiness, loss_bound=loss.value, known_loss=None, behind="idle", lag=None)


def _make_overview(
    mirror: Mirror, cluster: ClusterSnapshot, view: MirrorView | None, assessment: MirrorAssessment | None, now_ms: int
) -> MirrorOverview:
    statuses = cluster.state.partitions.get(mirror.name, {}).values()
    lease, run = cluster.state.leases.get(mirror.name), cluster.state.active_run(mirror.name)
    at_ms = min(cluster.at_ms, view.at_ms) if view else cluster.at_ms
    age = compute_age(at_ms, now_ms)
    fresh = view if view and not age.stale else None
    description, loss = (fresh.description, fresh.loss) if fresh else (None, None)
    states = format_counts(s.state for s in statuses)
    lag = description.facts[FactKey.LAG].value if description else None
    return MirrorOverview(
        name=mirror.name,
        route=f"{mirror.source} → {mirror.destination}",
        desired=mirror.desired,
        states=states,
        failed=sum(s.state is PartitionState.FAILED for s in statuses),
        copier=_format_data_plane(lease, now_ms),
        run=f"{run.plan.kind} under way" if run else "none",
        lag=lag if isinstance(lag, int) else None,
        behind=_format_behind(mirror, loss),
        known_loss=loss.missing_in_all if loss else None,
        loss_bound=loss.text if loss else UNKNOWN,
        assessment_age=compute_assessment_age(assessment, now_ms),
        readiness=make_readiness_card(assessment, cluster, view, mirror, states, now_ms),
        comparison=make_comparison_card(fresh, cluster, mirror, now_ms),
        synced=str(compute_group_sync_age(cluster, mirror, now_ms)),
        last_drills="; ".join(format_last_drills(cluster, mirror, now_ms)) or "never",
        age=age,
    )


def _format_data_plane(lease: Lease | None, now_ms: int) -> str:
    """In a word; the mirror's own page says what it waits for."""
    if lease is None or not is_lease_fresh(lease, now_ms):
        return "not running"
    return "running, some wait" if lease.wait_reasons else "running"


def _format_behind(mirror: Mirror, loss: LossBound | None) -> str:
    if mirror.desired is DesiredState.STOPPED:
        return "stopped"  # since then the source is not followed, and its age says nothing
    furthest = loss.furthest_behind if loss else None
    seconds = furthest[1].behind_s if furthest else None
    return UNKNOWN if seconds is None else f"{seconds:,.1f}"
