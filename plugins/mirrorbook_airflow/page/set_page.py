"""Sets of mirrors that are moved together: how each of their mirrors stands, and their last failover. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mirror_core.decide.set_schedule import RunPhase, find_run_phase, measure_set_standstill_s, parse_set_name
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Run, StepRecord
from mirror_core.state.no_return import is_past_no_return
from mirrorbook_airflow.page.buttons import Action, set_actions
from mirrorbook_airflow.page.mirror_state import Clusters
from mirrorbook_airflow.page.number_format import counted
from mirrorbook_airflow.page.overview import Overview
from mirrorbook_airflow.page.runs import dag_run_of, standstill


@dataclass(frozen=True, slots=True)
class MemberView:
    """One mirror of a set."""

    name: str
    line: Overview | None
    """As the list of mirrors has it. None: no cluster that answered knows it."""
    place: str
    """How far the set's last failover has come with it; empty: it was no part of that."""
    standstill: str


@dataclass(frozen=True, slots=True)
class SetRunView:
    """A failover of a set."""

    id: str
    mode: str
    begun_ms: int
    ended: bool
    places: str
    approved_by: str
    standstill: str
    dag: str
    """Of Airflow, when Airflow began it; empty: the command line did."""
    dag_link: str


@dataclass(frozen=True, slots=True)
class SetView:
    """One set."""

    name: str
    order: str
    members: tuple[MemberView, ...]
    furthest: Overview | None
    """The mirror with the greatest lag, or one whose lag is unknown. None: not even all mirrors are known."""
    worst: Overview | None
    """The same for what would be lost."""
    run: SetRunView | None
    actions: tuple[Action, ...]


class Part(NamedTuple):
    """One mirror's run, with its steps so far."""

    run: Run
    steps: tuple[StepRecord, ...]
    place: RunPhase


Attempt = dict[MirrorName, Part]
"""One failover of a set."""


def sets_of(
    clusters: Clusters, lines: Sequence[Overview], why_not: Mapping[str, str], now_ms: int
) -> Iterator[SetView]:
    """By name. `lines`: of all mirrors that are known; `why_not`: why the user may not trigger a DAG."""
    known = {line.name: line for line in lines}
    for chosen in sorted(clusters.sets or (), key=lambda one: one.name):
        found = [known[name] for name in chosen.mirrors if name in known]
        unknown = [name for name in chosen.mirrors if name not in known]
        last = _last(_attempts(clusters, chosen.name))
        yield SetView(
            name=chosen.name,
            order=chosen.order.replace("_", " "),
            members=tuple(_member(name, known.get(name), last, now_ms) for name in chosen.mirrors),
            furthest=None if unknown else max(found, key=lambda line: _rank(line.lag)),
            worst=None if unknown else max(found, key=lambda line: _rank(line.lost)),
            run=_run(last) if last else None,
            actions=tuple(set_actions(why_not, unknown, _held(clusters, chosen))),
        )


def _attempts(clusters: Clusters, name: str) -> list[Attempt]:
    found = dict[str, Attempt]()
    for told in clusters.told.values():
        for run in told.state.runs.values():
            if run.set_run and parse_set_name(run.set_run) == name:
                steps = told.state.steps_of(run)
                place = find_run_phase(run, steps, is_past_no_return=is_past_no_return(told.state, run))
                found.setdefault(run.set_run, {})[run.plan.mirror] = Part(run, steps, place)
    return list(found.values())


def _last(attempts: Iterable[Attempt]) -> Attempt | None:
    """The one under way, or the newest."""
    return max(attempts, key=lambda one: (not _ended(one), _begun_ms(one)), default=None)


def _ended(attempt: Attempt) -> bool:
    return all(part.run.ended_ms is not None for part in attempt.values())


def _begun_ms(attempt: Attempt) -> int:
    return min(part.run.started_ms for part in attempt.values())


def _run(attempt: Attempt) -> SetRunView:
    run = next(iter(attempt.values())).run
    whole = measure_set_standstill_s((part.run, part.steps) for part in attempt.values())
    dag, link = dag_run_of(run.started_by)
    return SetRunView(
        id=run.set_run,
        mode=run.plan.mode,
        begun_ms=_begun_ms(attempt),
        ended=_ended(attempt),
        places=counted(part.place for part in attempt.values()),
        approved_by=run.approved_by or "nobody",
        standstill="not known in all" if whole is None else f"{whole:.1f} s in all",
        dag=dag,
        dag_link=link,
    )


def _member(name: MirrorName, line: Overview | None, last: Attempt | None, now_ms: int) -> MemberView:
    if last is None or name not in last:
        return MemberView(name, line, "", "")
    part = last[name]
    return MemberView(name, line, part.place, standstill(part.run, part.steps, now_ms))


def _held(clusters: Clusters, chosen: MirrorSet) -> list[Run]:
    """Runs that hold mirrors of the set now."""
    told = [(name, clusters.find(name)) for name in chosen.mirrors]
    return [run for name, one in told if one and (run := one.state.active_run(name))]


def _rank(value: int | None) -> tuple[bool, int]:
    """Unknown is worse than any number."""
    return value is None, value or 0
