"""What was seen of clusters, and how old it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mirror_core.decide.clock_skew import (
    compute_age_s,
    format_since,
    from_owner_clock_ms,
    to_broker_clock_ms,
    to_local_clock_ms,
)
from mirror_core.decide.failover_plan import PlanDecision
from mirror_core.decide.failover_readiness import ReadinessPoint, UnplannedForecast
from mirror_core.decide.loss_bound import LossBound
from mirror_core.decide.process_liveness import ConductorState, ConductorStatus
from mirror_core.mirrors.describe import MirrorDescription
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName, MirrorName, format_reverse_name
from mirror_core.model.run import Run
from mirror_core.model.sync_state import DriftRow
from mirror_core.model.timing import MAX_FRESH_AGE_S
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.run_heartbeat import find_conductor_status
from mirror_core.state.state_records import State

UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Age:
    seconds: float | None
    """Unknown or never: None."""
    text: str
    limit_s: float = MAX_FRESH_AGE_S

    @property
    def stale(self) -> bool:
        return self.seconds is None or self.seconds > self.limit_s

    def __str__(self) -> str:
        return self.text


def compute_age(at_ms: int | None, now_ms: int, limit_s: float = MAX_FRESH_AGE_S) -> Age:
    return Age(None if at_ms is None else compute_age_s(now_ms, at_ms), format_since(now_ms, at_ms), limit_s)


def format_counts(values: Iterable[str]) -> str:
    return ", ".join(f"{n:,} {value}" for value, n in sorted(Counter(map(str, values)).items()))


def format_number(value: str | int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}" if isinstance(value, int) else value


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """As last read, and why it could not be read since."""

    state: State
    links: Mapping[MirrorName, MirrorLink]
    at_ms: int
    """Wall clock before it was read; what is shown of it is as old as that."""
    unreachable_reason: str = ""
    clock_ahead_ms: int | None = None
    """This machine's clock, relative to the cluster's."""

    def to_broker_time_ms(self, now_ms: int) -> int:
        """As the times of runs, comparisons and drills are."""
        return to_broker_clock_ms(now_ms, self.clock_ahead_ms)

    def find_group_sync_ms(self, mirror: MirrorName) -> int | None:
        """By this machine's clock."""
        groups, lease = self.state.find_group_sync(mirror), self.state.leases.get(mirror)
        if groups is None:
            return None
        synced_ms = from_owner_clock_ms(groups.synced_ms, lease, self.state.find_append_time_ms(lease))
        return to_local_clock_ms(synced_ms, self.clock_ahead_ms, None)

    def find_conductor_status(self, run: Run, now_ms: int) -> ConductorStatus:
        if self.unreachable_reason or now_ms - self.at_ms > MAX_FRESH_AGE_S * 1000:
            return ConductorStatus(state=ConductorState.UNKNOWN, unknown_because="the state could not be read just now")
        return find_conductor_status(self.state, run, self.clock_ahead_ms, now_ms)


@dataclass(frozen=True, slots=True)
class IdleReverseMirror:
    """Left by a failback that is done. The next failback begins it again."""

    forward: MirrorName
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class ClusterSnapshots:
    at_ms: int
    clusters: Mapping[ClusterName, ClusterSnapshot]
    unreachable: Mapping[ClusterName, str]
    """Reason by cluster."""
    error: str = ""
    sets: tuple[MirrorSet, ...] | None = None
    """As the configuration names them; None: that could not be read."""
    copy_to: str | None = None
    """Where bundles are copied to; None: nowhere, or not known."""

    def find_cluster(self, mirror: str) -> ClusterSnapshot | None:
        return next((cluster for known_mirror, cluster in self.mirrors if known_mirror.name == mirror), None)

    def find_run_mirrors(self, run: str) -> set[MirrorName]:
        """For a run, or for an attempt of a set. Empty: no cluster that answers knows it."""
        runs = (recorded for cluster in self.clusters.values() for recorded in cluster.state.runs.values())
        return {recorded.plan.mirror for recorded in runs if run in (recorded.id, recorded.set_run)}

    @property
    def mirrors(self) -> list[tuple[Mirror, ClusterSnapshot]]:
        """Only by the state of its destination: other clusters' records of it are not trusted."""
        rows = (
            (mirror, snapshot)
            for cluster, snapshot in self.clusters.items()
            for mirror in snapshot.state.mirrors.values()
            if mirror.destination == cluster
        )
        return sorted(rows, key=lambda row: row[0].name)

    def find_idle_reverse(self, mirror: Mirror) -> IdleReverseMirror | None:
        """None unless its forward mirror is known to be in use, and no run holds either."""
        forward = next(
            (
                m
                for m, _ in self.mirrors
                if format_reverse_name(m.name) == mirror.name
                and (m.source, m.destination) == (mirror.destination, mirror.source)
                and m.desired is not DesiredState.STOPPED
            ),
            None,
        )
        if forward is None or mirror.desired is not DesiredState.STOPPED:
            return None
        names = (mirror.name, forward.name)
        runs = [run for c in self.clusters.values() for run in c.state.runs.values() if run.plan.mirror in names]
        if any(run.ended_ms is None for run in runs):
            return None
        return IdleReverseMirror(forward.name, max((run.ended_ms or 0 for run in runs), default=None))


@dataclass(frozen=True, slots=True)
class MirrorSample:
    """For the plots. None: unknown then."""

    at_ms: int
    lag: int | None
    """Offsets."""
    missing: int | None
    """Offsets that a failover without the source would be known to lose."""
    copied: int | None
    """Sum of all positions."""


@dataclass(frozen=True, slots=True)
class MirrorView:
    at_ms: int
    description: MirrorDescription | None
    loss: LossBound | None
    samples: tuple[MirrorSample, ...]
    error: str = ""
    returned: Finding | None = None
    """What an old source of the mirror or of its way home has taken that answers and is not fenced."""


@dataclass(frozen=True, slots=True)
class MirrorAssessment:
    at_ms: int
    decision: PlanDecision | None
    drift: tuple[DriftRow, ...] | None
    error: str = ""
    """Why the decision is not known."""
    drift_error: str = ""
    failback_refusals: tuple[str, ...] = ()
    """Why no failback may be run; also when that is not known."""
    desired: DesiredState | None = None
    """What the mirror was to do then."""
    unplanned: UnplannedForecast | None = None
    """If the source died now. None: unknown, as the decision is."""
    points: tuple[ReadinessPoint, ...] = ()
    """What speaks against it beside its plan; of the list's judgements, what the state alone says."""

    @property
    def is_only_unplanned(self) -> bool:
        is_source_silent = self.decision is not None and not self.decision.source_seen
        return is_source_silent and self.unplanned is not None and not self.unplanned.refused


def is_loss_current(loss: LossBound) -> bool:
    """An old bound says little, however small it is."""
    return loss.missing_in_all is not None and loss.observed_s is not None and loss.observed_s <= MAX_FRESH_AGE_S


@dataclass(frozen=True, slots=True)
class ActionButton:
    """A link to a DAG's page, whose form asks."""

    dag: str
    label: str
    disabled_reason: str
    """Empty: enabled."""
    dag_id: str
    """That of all mirrors, or the mirror's own."""


@dataclass(frozen=True, slots=True)
class PendingApproval:
    dag: str
    subject: str
    asked_ms: int
    path: str
    """Within Airflow's UI."""
