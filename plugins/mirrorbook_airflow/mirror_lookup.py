"""From a mirror's name to the core's Link: which connections are clusters, and the private file that names them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mirror_core.decide.drills import is_drill_mirror
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError, Unreachable
from mirror_core.model.mirror import DesiredState
from mirror_core.model.text import format_items
from mirrorbook_airflow.airflow_variables import CLUSTERS_VARIABLE, list_clusters, update_form_names
from mirrorbook_airflow.hooks import list_unusable_connections, provide_config

if TYPE_CHECKING:
    from mirror_core.model.config_sections import MirrorSet
    from mirror_core.model.mirror import Mirror
    from mirror_core.model.names import ClusterName
    from mirror_core.model.run import RunKind
    from mirror_core.state.mirror_link import MirrorLink
    from mirror_core.state.state_records import State

_log = logging.getLogger(__name__)


def require_clusters() -> tuple[str, ...]:
    """As the Variable lists them; BadRequest when it does not exist."""
    names = list_clusters()
    if not names:
        raise BadRequest(
            f"Airflow Variable {CLUSTERS_VARIABLE} is not set: DAG mirror_create sets it; or list there the ids of "
            "your kafka_cluster connections, separated by commas"
        )
    return names


def provide_mirror_config(mirror: str, new_clusters: Collection[str] = ()) -> Path:
    """A current mirrorbook.yaml for this mirror, with all known clusters, and those that are to become known."""
    if not new_clusters:
        return provide_config(mirror, require_clusters())
    path = provide_config(mirror, {*list_clusters(), *new_clusters})
    if reasons := [why for name, why in list_unusable_connections(path).items() if name in new_clusters]:
        raise BadRequest("; ".join(reasons))
    return path


def list_started_mirrors() -> list[str]:
    """Names of the mirrors that are meant to run, from every known cluster that answers. What drills have made, or have
    left behind, is none of them."""
    known = (mirror for _, mirror in _list_recorded_mirrors() if not is_drill_mirror(mirror))
    return sorted({mirror.name for mirror in known if mirror.desired is DesiredState.STARTED})


def list_own_started_mirrors(names: Collection[str]) -> list[str]:
    """Those of a DAG's own mirrors that are meant to run. Raises the reason unless the first one can be looked up; the
    others exist after a failover only."""
    started = []
    for number, name in enumerate(names):
        try:
            link, _ = find_mirror(name)
        except (BadRequest, Indeterminate, Unreachable) as error:
            if not number:
                raise
            _log.info("mirror %s is left out: %s", name, error)
        else:
            started += [name] if link.mirror.desired is DesiredState.STARTED else []
    return started


def list_silent_clusters() -> dict[str, str]:
    """Known clusters whose state could not be read now, each with why: mirrors towards these are not known."""
    from mirror_core.state.mirror_link import load_clusters, read_states

    clusters = list_clusters()
    if not clusters:
        return {}
    path = provide_config("all-clusters", clusters)
    silent = {
        str(cluster): str(state)
        for cluster, state in read_states(load_clusters(path))
        if isinstance(state, MirrorError)
    }
    return {**silent, **list_unusable_connections(path)}


def list_watched_links(names: Collection[str]) -> list[MirrorLink]:
    """These mirrors, with the other direction of each if that has a fence; or all that owe a cluster something, or have
    to look after what they paid, or that a run holds, which may be one that nobody conducts."""
    from mirror_core.state.mirror_link import (
        find_mirror_link,
        list_both_directions,
        load_clusters,
        make_mirror_link,
        read_both_states,
    )

    config = load_clusters(provide_config("all-clusters", require_clusters() if names else list_clusters()))
    if names:
        named = [find_mirror_link(config, name) for name in names]
        owing = {
            mirror.name: make_mirror_link(config, mirror)
            for link, state in named
            for mirror, recorded in list_both_directions(link.mirror, read_both_states(link, state))
            if mirror.name in recorded.pending_fences
        }
        return [*(owing | {link.mirror.name: link for link, _ in named}).values()]
    watched = {
        mirror.name: mirror
        for state, mirror in _list_recorded_mirrors()
        if mirror.name in state.pending_fences or state.active_run(mirror.name) is not None
    }
    links = []
    for _, mirror in sorted(watched.items()):
        try:
            links.append(make_mirror_link(config, mirror))
        except BadRequest as error:  # its source may be known to the command line only: no reason to look at none
            _log.warning("mirror %s is not looked after here: %s", mirror.name, error)
    return links


def list_unwatched_alarms(names: Collection[str]) -> list[str]:
    """What people are told of old sources that nobody watches: of these mirrors, or of all that clusters which answer
    know."""
    from mirror_core.state.watcher_heartbeat import find_watcher_status

    known = [(state, mirror) for state, mirror in _list_recorded_mirrors() if not names or mirror.name in names]
    clocks = _measure_clocks({mirror.destination for state, mirror in known if mirror.name in state.pending_fences})
    statuses = {
        mirror.name: find_watcher_status(state, mirror.name, clocks.get(mirror.destination)) for state, mirror in known
    }
    return [f"mirror {name}: {alarm}" for name in sorted(statuses) for alarm in statuses[name].alarms]


def _measure_clocks(clusters: Collection[ClusterName]) -> Mapping[ClusterName, int | None]:
    from mirror_core.state.mirror_link import load_clusters, measure_clocks_ahead_ms

    if not clusters:
        return {}
    return measure_clocks_ahead_ms(load_clusters(provide_config("all-clusters", list_clusters())), clusters)


def _list_recorded_mirrors() -> Iterator[tuple[State, Mirror]]:
    """The mirrors that every known cluster which answers knows towards itself: of others it is not believed."""
    from mirror_core.state.mirror_link import load_clusters, read_states

    clusters = list_clusters()
    if not clusters:
        return
    config = load_clusters(provide_config("all-clusters", clusters))
    names: dict[str, list[str] | None] = {}
    for cluster, state in read_states(config):
        if isinstance(state, MirrorError):
            _log.warning("mirrors towards %s are left out: %s", cluster, state)
            names[cluster] = None
            continue
        own = [mirror for mirror in state.mirrors.values() if mirror.destination == cluster]
        names[cluster] = [mirror.name for mirror in own if not is_drill_mirror(mirror)]
        yield from ((state, mirror) for mirror in own)
    update_form_names(names, config.sets)


def find_set(name: str, kind: RunKind) -> MirrorSet:
    """The mirrors that `mirrors.yaml` names so, or all from a cluster."""
    from mirror_core.runbook.set_failover import find_set
    from mirror_core.state.mirror_link import load_clusters

    return find_set(load_clusters(provide_config("all-clusters", require_clusters())), name, kind)


def find_planned_set(name: str, kind: RunKind, question: str, plan_hash: str) -> MirrorSet:
    """As it was planned for this question: which mirrors are from a cluster, or in `mirrors.yaml`, may have changed."""
    from mirror_core.model.config_sections import MirrorSet
    from mirror_core.state.approvals import find_shown_plan, iter_set_plans
    from mirror_core.state.mirror_link import load_clusters, read_states

    config = load_clusters(provide_config("all-clusters", require_clusters()))
    states = (state for _, state in read_states(config) if not isinstance(state, MirrorError))
    for plan in iter_set_plans(states, question, plan_hash):
        try:
            members = [(mirror, find_mirror(mirror)[1]) for mirror in plan.set_mirrors]
        except BadRequest:  # no such mirror: forged, or deleted since
            continue
        if all(find_shown_plan(state, mirror, question) == plan for mirror, state in members):
            return MirrorSet(name, plan.set_mirrors, plan.set_order)
    return find_set(name, kind)


def find_mirror(mirror: str) -> tuple[MirrorLink, State]:
    """The mirror and the state of its destination. Where it is not found, also which connections could not be used."""
    from mirror_core.state.mirror_link import find_mirror_link, load_clusters

    path = provide_mirror_config(mirror)
    try:
        return find_mirror_link(load_clusters(path), mirror)
    except (BadRequest, Indeterminate) as error:
        if not (unusable := list_unusable_connections(path)):
            raise
        raise type(error)(f"{error}{format_items(unusable.values())}") from None
