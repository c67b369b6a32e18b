"""The list of all mirrors, a line for each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirror_core.decide.loss_bound import LossBound
from mirror_core.model.mirror import DesiredState, Lease, Mirror, PartitionState, is_lease_fresh
from mirror_core.model.names import MirrorName
from mirrorbook_airflow.page.cards import (
    Card,
    groups_synced,
    judged_age,
    last_drills,
    proof_card,
    readiness_card,
)
from mirrorbook_airflow.page.mirror_state import Clusters, Judged, Seen, Told
from mirrorbook_airflow.page.number_format import UNKNOWN, Age, age_of, counted


@dataclass(frozen=True, slots=True)
class Overview:
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
    lost: int | None
    """Offsets that a failover without the source would be known to lose."""
    missing: str
    """The bound of these, in words."""
    ready: Card
    """Whether it could fail over now, and the first thing that speaks against it."""
    judged: Age
    """When that was looked at."""
    proved: Card
    synced: str
    """When groups were."""
    drilled: str
    """How the last drills went, of each mode."""
    age: Age


def overview(
    clusters: Clusters,
    seen: Mapping[MirrorName, Seen | None],
    judged: Mapping[MirrorName, Judged | None],
    now_ms: int,
) -> list[Overview]:
    """All mirrors that are known, by name."""
    return [
        _line(mirror, told, seen.get(mirror.name), judged.get(mirror.name), now_ms) for mirror, told in clusters.mirrors
    ]


def _line(mirror: Mirror, told: Told, seen: Seen | None, judged: Judged | None, now_ms: int) -> Overview:
    statuses = told.state.partitions.get(mirror.name, {}).values()
    lease, run = told.state.leases.get(mirror.name), told.state.active_run(mirror.name)
    at_ms = min(told.at_ms, seen.at_ms) if seen else told.at_ms
    age = age_of(at_ms, now_ms)
    fresh = seen if seen and not age.stale else None
    description, loss = (fresh.description, fresh.loss) if fresh else (None, None)
    states = counted(s.state for s in statuses)
    lag = description.facts["lag"] if description else None
    return Overview(
        name=mirror.name,
        route=f"{mirror.source} → {mirror.destination}",
        desired=mirror.desired,
        states=states,
        failed=sum(s.state is PartitionState.FAILED for s in statuses),
        copier=_copier(lease, now_ms),
        run=f"{run.plan.kind} under way" if run else "none",
        lag=None if lag is None else int(lag),
        behind=_behind(mirror, loss),
        lost=loss.known_missing if loss and not loss.unknown_partitions else None,
        missing=loss.text if loss else UNKNOWN,
        judged=judged_age(judged, now_ms),
        ready=readiness_card(judged, told, seen, mirror, states, now_ms),
        proved=proof_card(fresh, told, mirror, now_ms),
        synced=str(groups_synced(told, mirror, now_ms)),
        drilled="; ".join(last_drills(told, mirror, now_ms)) or "never",
        age=age,
    )


def _copier(lease: Lease | None, now_ms: int) -> str:
    """In a word; the mirror's own page says what it waits for."""
    if lease is None or not is_lease_fresh(lease, now_ms):
        return "not running"
    return "running, some wait" if lease.wait_reasons else "running"


def _behind(mirror: Mirror, loss: LossBound | None) -> str:
    if mirror.desired is DesiredState.STOPPED:
        return "stopped"  # since then the source is not followed, and its age says nothing
    furthest = loss.furthest_behind if loss else None
    seconds = furthest[1].behind_s if furthest else None
    return UNKNOWN if seconds is None else f"{seconds:,.1f}"
