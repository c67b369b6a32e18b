"""The list of all mirrors, a line for each, and of sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mirror_core.decide.loss_bound import LossBound
from mirror_core.decide.set_schedule import RunPhase, find_run_phase, measure_set_standstill_s, parse_set_name
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.mirror import DesiredState, Lease, Mirror, PartitionState, is_lease_fresh
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Run, RunState, StepRecord
from mirror_core.page.cards import (
    AnswerCard,
    compute_assessment_age,
    compute_group_sync_age,
    format_last_drills,
    make_comparison_card,
    make_idle_cards,
    make_readiness_card,
)
from mirror_core.page.runs import format_standstill, parse_dag_run
from mirror_core.page.snapshots import (
    UNKNOWN,
    ActionButton,
    Age,
    ClusterSnapshot,
    ClusterSnapshots,
    IdleReverseMirror,
    MirrorAssessment,
    MirrorView,
    compute_age,
    format_counts,
)
from mirror_core.state.point_of_no_return import is_past_no_return


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
    """As `MirrorSample.missing`."""
    loss_bound: str
    """The bound of these, as text."""
    readiness: AnswerCard
    """Whether it could fail over now, and the first thing that speaks against it."""
    assessment_age: Age
    """When that was looked at."""
    comparison: AnswerCard
    synced: str
    """When groups were."""
    last_drills: str
    """The last of each mode."""
    age: Age


def list_overviews(
    clusters: ClusterSnapshots,
    views: Mapping[MirrorName, MirrorView | None],
    assessments: Mapping[MirrorName, MirrorAssessment | None],
    now_ms: int,
) -> list[MirrorOverview]:
    """By name, idle ones last."""
    rows = [
        _make_overview(mirror, cluster, views.get(mirror.name), assessments.get(mirror.name), now_ms)
        for mirror, cluster in clusters.mirrors
    ]
    idle = {mirror.name: reverse for mirror, _ in clusters.mirrors if (reverse := clusters.find_idle_reverse(mirror))}
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
    if lease is None or not is_lease_fresh(lease, now_ms):
        return "not running"
    return "running, some wait" if lease.wait_reasons else "running"


def _format_behind(mirror: Mirror, loss: LossBound | None) -> str:
    if mirror.desired is DesiredState.STOPPED:
        return "stopped"  # since then the source is not followed, and its age says nothing
    furthest = loss.furthest_behind if loss else None
    seconds = furthest[1].behind_s if furthest else None
    return UNKNOWN if seconds is None else f"{seconds:,.1f}"


@dataclass(frozen=True, slots=True)
class MemberView:
    name: str
    overview: MirrorOverview | None
    """Missing where no reachable cluster knows the mirror."""
    phase: str
    """In the set's last failover; empty: not part of it."""
    standstill: str


@dataclass(frozen=True, slots=True)
class SetRunView:
    id: str
    mode: str
    begun_ms: int
    ended: bool
    phases: str
    approved_by: str
    standstill: str
    dag: str
    """Empty: begun by the command line."""
    dag_link: str


@dataclass(frozen=True, slots=True)
class SetView:
    name: str
    order: str
    members: tuple[MemberView, ...]
    furthest: MirrorOverview | None
    """The greatest lag, or an unknown one. None: not even all mirrors are known."""
    greatest_loss: MirrorOverview | None
    """The greatest known loss, or an unknown one."""
    run: SetRunView | None
    actions: tuple[ActionButton, ...]


class AttemptMember(NamedTuple):
    run: Run
    steps: tuple[StepRecord, ...]
    phase: RunPhase


SetAttempt = dict[MirrorName, AttemptMember]
ListSetButtons = Callable[[str, Sequence[MirrorName], Sequence[Run]], Iterable[ActionButton]]


def list_set_views(
    clusters: ClusterSnapshots, overviews: Sequence[MirrorOverview], list_buttons: ListSetButtons, now_ms: int
) -> Iterator[SetView]:
    """By name. `list_buttons`: of a set, its mirrors that no cluster knows, and the runs of the others."""
    known = {overview.name: overview for overview in overviews}
    for mirror_set in sorted(clusters.sets or (), key=lambda mirror_set_: mirror_set_.name):
        member_overviews = [known[name] for name in mirror_set.mirrors if name in known]
        unknown = [name for name in mirror_set.mirrors if name not in known]
        last = _find_last(_list_attempts(clusters, mirror_set.name))
        yield SetView(
            name=mirror_set.name,
            order=mirror_set.order.replace("_", " "),
            members=tuple(
                _make_member_view(name, known.get(name), last, clusters, now_ms) for name in mirror_set.mirrors
            ),
            furthest=None if unknown else max(member_overviews, key=lambda overview: _rank_unknown_last(overview.lag)),
            greatest_loss=None
            if unknown
            else max(member_overviews, key=lambda overview: _rank_unknown_last(overview.known_loss)),
            run=_make_run_view(last) if last else None,
            actions=tuple(list_buttons(mirror_set.name, unknown, _list_active_runs(clusters, mirror_set))),
        )


def _list_attempts(clusters: ClusterSnapshots, name: str) -> list[SetAttempt]:
    """Without the reverse mirrors' failovers that lead a failback home."""
    attempts = dict[str, SetAttempt]()
    states = [cluster.state for cluster in clusters.clusters.values()]
    led_home = {run.failback_run for state in states for run in state.runs.values() if run.state is RunState.DONE}
    for state in states:
        for run in state.runs.values():
            if run.set_run and not run.failback_run and parse_set_name(run.set_run) == name:
                steps = state.steps_of(run)
                is_past = is_past_no_return(state, run)
                phase = find_run_phase(run, steps, is_past_no_return=is_past, is_home=run.id in led_home)
                attempts.setdefault(run.set_run, {})[run.plan.mirror] = AttemptMember(run, steps, phase)
    return list(attempts.values())


def _find_last(attempts: Iterable[SetAttempt]) -> SetAttempt | None:
    return max(
        attempts,
        key=lambda attempt: (not _has_ended(attempt), max(part.run.number for part in attempt.values())),
        default=None,
    )


def _has_ended(attempt: SetAttempt) -> bool:
    return all(part.run.ended_ms is not None for part in attempt.values())


def _find_begin_ms(attempt: SetAttempt) -> int:
    return min(part.run.started_ms for part in attempt.values())


def _make_run_view(attempt: SetAttempt) -> SetRunView:
    run = next(iter(attempt.values())).run
    total_s = measure_set_standstill_s((part.run, part.steps) for part in attempt.values())
    dag, link = parse_dag_run(run.started_by)
    return SetRunView(
        id=run.set_run,
        mode=run.plan.mode,
        begun_ms=_find_begin_ms(attempt),
        ended=_has_ended(attempt),
        phases=format_counts(part.phase for part in attempt.values()),
        approved_by=run.approved_by or "nobody",
        standstill="not known in all" if total_s is None else f"{total_s:.1f} s in all",
        dag=dag,
        dag_link=link,
    )


def _make_member_view(
    name: MirrorName,
    overview: MirrorOverview | None,
    last: SetAttempt | None,
    clusters: ClusterSnapshots,
    now_ms: int,
) -> MemberView:
    if last is None or name not in last:
        return MemberView(name, overview, "", "")
    part, cluster = last[name], clusters.find_cluster(name)
    at_ms = cluster.to_broker_time_ms(now_ms) if cluster else now_ms
    return MemberView(name, overview, part.phase, format_standstill(part.run, part.steps, at_ms))


def _list_active_runs(clusters: ClusterSnapshots, mirror_set: MirrorSet) -> list[Run]:
    clusters_by_mirror = [(name, clusters.find_cluster(name)) for name in mirror_set.mirrors]
    return [run for name, cluster in clusters_by_mirror if cluster and (run := cluster.state.active_run(name))]


def _rank_unknown_last(value: int | None) -> tuple[bool, int]:
    return value is None, value or 0
