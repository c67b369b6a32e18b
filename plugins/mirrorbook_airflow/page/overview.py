"""The list of all mirrors, a line for each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirror_core.decide.loss import Loss
from mirror_core.model.mirror import Desired, Lease, Mirror, PartitionState, is_fresh
from mirror_core.model.names import MirrorName
from mirrorbook_airflow.page.figures import UNKNOWN, Age, age_of, counted
from mirrorbook_airflow.page.known import Clusters, Seen, Told


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
    age: Age


def overview(clusters: Clusters, seen: Mapping[MirrorName, Seen | None], now_ms: int) -> list[Overview]:
    """All mirrors that are known, by name."""
    return [_line(mirror, told, seen.get(mirror.name), now_ms) for mirror, told in clusters.mirrors]


def _line(mirror: Mirror, told: Told, seen: Seen | None, now_ms: int) -> Overview:
    statuses = told.state.partitions.get(mirror.name, {}).values()
    lease, run = told.state.leases.get(mirror.name), told.state.active_run(mirror.name)
    at_ms = min(told.at_ms, seen.at_ms) if seen else told.at_ms
    age = age_of(at_ms, now_ms)
    description, loss = (seen.description, seen.loss) if seen and not age.stale else (None, None)
    lag = description.facts["lag"] if description else None
    return Overview(
        name=mirror.name,
        route=f"{mirror.source} → {mirror.destination}",
        desired=mirror.desired,
        states=counted(s.state for s in statuses),
        failed=sum(s.state is PartitionState.FAILED for s in statuses),
        copier=_copier(lease, now_ms),
        run=f"{run.plan.kind} under way" if run else "none",
        lag=None if lag is None else int(lag),
        behind=_behind(mirror, loss),
        lost=loss.known if loss and not loss.unknown else None,
        missing=loss.bound if loss else UNKNOWN,
        age=age,
    )


def _copier(lease: Lease | None, now_ms: int) -> str:
    """In a word; the mirror's own page says what it waits for."""
    if lease is None or not is_fresh(lease, now_ms):
        return "not running"
    return "running, some wait" if lease.waits else "running"


def _behind(mirror: Mirror, loss: Loss | None) -> str:
    if mirror.desired is Desired.STOPPED:
        return "stopped"  # since then the source is not followed, and its age says nothing
    furthest = loss.furthest if loss else None
    seconds = furthest[1].behind_s if furthest else None
    return UNKNOWN if seconds is None else f"{seconds:,.1f}"
