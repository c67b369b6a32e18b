"""Sets of mirrors that are moved together: how each of their mirrors stands, and their last failover. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mirror_core.decide.set_schedule import RunPhase, find_run_phase, measure_set_standstill_s, parse_set_name
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Run, RunState, StepRecord
from mirror_core.state.point_of_no_return import is_past_no_return
from mirrorbook_airflow.page.buttons import ActionButton, list_own_set_dags, list_set_buttons
from mirrorbook_airflow.page.mirror_state import ClusterSnapshots
from mirrorbook_airflow.page.number_format import format_counts
from mirrorbook_airflow.page.overview import MirrorOverview
from mirrorbook_airflow.page.runs import format_standstill, parse_dag_run


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
    """The mirror with the greatest lag, or one whose lag is unknown. None: not even all mirrors are known."""
    greatest_loss: MirrorOverview | None
    """The mirror with the greatest known loss, or an unknown one."""
    run: SetRunView | None
    actions: tuple[ActionButton, ...]


class AttemptMember(NamedTuple):
    run: Run
    steps: tuple[StepRecord, ...]
    phase: RunPhase


SetAttempt = dict[MirrorName, AttemptMember]


def list_set_views(
    clusters: ClusterSnapshots, overviews: Sequence[MirrorOverview], denied: Mapping[str, str], now_ms: int
) -> Iterator[SetView]:
    """By name. `denied`: why the user may not trigger a DAG, of all that there are."""
    known = {overview.name: overview for overview in overviews}
    for mirror_set in sorted(clusters.sets or (), key=lambda mirror_set_: mirror_set_.name):
        member_overviews = [known[name] for name in mirror_set.mirrors if name in known]
        unknown = [name for name in mirror_set.mirrors if name not in known]
        last = _find_last(_list_attempts(clusters, mirror_set.name))
        own = {dag: dag_id for dag, dag_id in list_own_set_dags(mirror_set.name).items() if dag_id in denied}
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
            actions=tuple(list_set_buttons(denied, unknown, _list_active_runs(clusters, mirror_set), own)),
        )


def _list_attempts(clusters: ClusterSnapshots, name: str) -> list[SetAttempt]:
    """Without the failovers that lead a failback home, of reverse mirrors."""
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
    """Unknown is worse than any number."""
    return value is None, value or 0
