"""What the page knows of mirrors, and since when. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirror_core.decide.failover_plan import PlanDecision
from mirror_core.decide.failover_readiness import ReadinessPoint, UnplannedForecast
from mirror_core.decide.loss_bound import LossBound
from mirror_core.decide.process_liveness import ConductorState, ConductorStatus
from mirror_core.mirrors.describe import MirrorDescription
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.run import Run
from mirror_core.model.sync_state import DriftRow
from mirror_core.model.timing import MAX_FRESH_AGE_S
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.run_heartbeat import find_conductor_status
from mirror_core.state.state_records import State


@dataclass(frozen=True, slots=True)
class Told:
    """A cluster's state topic as it was last read, and why it could not be read since."""

    state: State
    links: Mapping[MirrorName, MirrorLink]
    at_ms: int
    """Wall clock before it was read; what is shown of it is as old as that."""
    silent: str = ""

    def conducted(self, run: Run, now_ms: int) -> ConductorStatus:
        """Whether anybody conducts a run that has not ended."""
        if self.silent or now_ms - self.at_ms > MAX_FRESH_AGE_S * 1000:
            return ConductorStatus(state=ConductorState.UNKNOWN, unknown_because="the state could not be read just now")
        return find_conductor_status(self.state, run, now_ms)


@dataclass(frozen=True, slots=True)
class Clusters:
    """All clusters that this Airflow looks after."""

    at_ms: int
    told: Mapping[ClusterName, Told]
    silent: Mapping[ClusterName, str]
    """Why those are not known that did not answer the last look."""
    trouble: str = ""
    """Why nothing could be looked at."""
    sets: tuple[MirrorSet, ...] | None = None
    """As the configuration names them; None: that could not be read."""
    copy_to: str | None = None
    """Where bundles are copied to; None: nowhere, or not known."""

    def find(self, mirror: str) -> Told | None:
        """The newest word of the cluster that knows this mirror."""
        return next((told for known, told in self.mirrors if known.name == mirror), None)

    def knows_run(self, run: str) -> bool:
        return any(run in told.state.runs for told in self.told.values())

    def knows_attempt(self, attempt: str) -> bool:
        """At the failover of a set that has this id."""
        return any(run.set_run == attempt for told in self.told.values() for run in told.state.runs.values())

    @property
    def mirrors(self) -> list[tuple[Mirror, Told]]:
        """Each with the word of its destination: a record that another cluster has of it is somebody else's."""
        all_ = ((c, m, told) for c, told in self.told.items() for m in told.state.mirrors.values())
        return sorted(((m, told) for c, m, told in all_ if m.destination == c), key=lambda row: row[0].name)


@dataclass(frozen=True, slots=True)
class Sample:
    """Of one look, for the plots. None: not known then."""

    at_ms: int
    lag: int | None
    """Offsets."""
    missing: int | None
    """Offsets that a failover without the source would be known to lose."""
    copied: int | None
    """Sum of all positions."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One mirror, as both its clusters told of it."""

    at_ms: int
    description: MirrorDescription | None
    loss: LossBound | None
    samples: tuple[Sample, ...]
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """Whether a planned failover might be run, and what differs between the two sides."""

    at_ms: int
    decision: PlanDecision | None
    drift: tuple[DriftRow, ...] | None
    trouble: str = ""
    """Why the decision is not known."""
    drift_trouble: str = ""
    failback: tuple[str, ...] = ()
    """Why no failback may be run; also when that is not known."""
    desired: DesiredState | None = None
    """What the mirror was to do then."""
    unplanned: UnplannedForecast | None = None
    """What an unplanned failover would be if the source died now. None: unknown, as the decision is."""
    points: tuple[ReadinessPoint, ...] = ()
    """What speaks against it beside its plan; of the list's judgements, what the state alone says."""

    @property
    def only_without_source(self) -> bool:
        """Whether the source did not answer, and nothing speaks against a failover without it."""
        silent = self.decision is not None and not self.decision.source_seen
        return silent and self.unplanned is not None and not self.unplanned.refused


def is_current(loss: LossBound) -> bool:
    """Whether the bound comes from what the source said just now: an old one says little, however small it is."""
    return not loss.unknown_partitions and loss.observed_s is not None and loss.observed_s <= MAX_FRESH_AGE_S
