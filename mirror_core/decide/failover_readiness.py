"""Could a mirror be failed over now? What would it cost if its source died now?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mirror_core.decide.approval_rules import is_losing
from mirror_core.decide.clock_skew import compute_age_s
from mirror_core.decide.drills import has_passed, list_drill_runs
from mirror_core.decide.failover_plan import PlanDecision, decide_failover
from mirror_core.decide.forecast_accuracy import count_read_again, predict_standstill_s
from mirror_core.decide.group_coverage import list_uncommitted
from mirror_core.decide.loss_bound import find_oldest
from mirror_core.decide.mirror_snapshot import (
    DestinationSnapshot,
    MirrorSnapshot,
    SourceSnapshot,
    list_failed,
    list_lags,
    select_healthy,
)
from mirror_core.decide.process_liveness import WatcherStatus
from mirror_core.decide.run_status import RunProgress
from mirror_core.decide.verification import read_verified
from mirror_core.model.figures import (
    UNKNOWN_TEXT,
    Figure,
    FigureKey,
    Figures,
    format_figure_documents,
    to_figure_documents,
)
from mirror_core.model.findings import Finding, format_remedy
from mirror_core.model.forecast import PlanForecast
from mirror_core.model.json_documents import FindingDocument, to_finding_documents
from mirror_core.model.mirror import (
    DesiredState,
    GroupSyncTime,
    Mirror,
    PartitionState,
    PartitionStatus,
)
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.parity_verdict import MirrorVerification, VerifiedEnd
from mirror_core.model.run import Run
from mirror_core.model.sync_state import WRITING_ACTIONS, DriftRow, SyncAction, SyncCategory
from mirror_core.model.text import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReadAgain:
    """Offsets that a consumer group would read again. None: unknown."""

    most: int | None
    """From its offset on the destination to the position: what a plan says. None, too, of a group with members there,
    or without an offset there for a partition that it reads, or read, on the source."""
    now: int | None
    """Compared with what it had committed on the source at this snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnplannedForecast:
    """As it would be now. No figure is known of a stopped mirror, or of an unseen destination."""

    refused: tuple[FindingDocument, ...]
    """Why it could not be run; empty: it could."""
    warnings: tuple[FindingDocument, ...] = ()
    """As its plan has them."""
    figures: Mapping[FigureKey, Figure] = field(default_factory=dict)
    """Among them the loss bound and the ages that it is based on."""
    missing: int | None = None
    """Offsets known to be missing, by the data plane's last observation of the source, which may have acknowledged more
    since. None: unknown of every partition."""
    unknown_partitions: int | None = None
    """`missing` leaves them out."""
    observed_s: float | None = None
    """Age of that observation, of the partition where it is oldest."""
    behind_s: float | None = None
    """Since the destination had all that the source then had, of the partition where that is longest ago."""
    heartbeat_s: float | None = None
    """Age of the newest heartbeat on the destination, of the source's broker where it is oldest."""
    missing_now: int | None = None
    """Offsets below the source's readable ends, and not on the destination just before; without FAILED partitions.
    None, too, when the source did not tell all of its ends."""
    groups: Mapping[str, GroupReadAgain] | None = None
    """By consumer group with offsets on either side. None: not all of the destination's groups were told of."""
    groups_of_source: bool = True
    """Whether the source told of its groups, too. If not, some may have offsets there only."""
    synced_s: float | None = None
    """Age of the groups' offsets on the destination."""

    @property
    def has_all(self) -> bool:
        """The source is fenced, and all of it was copied, also by what it shows now."""
        drained = self.figures.get(FigureKey.SOURCE_DRAINED)
        is_drained = drained is not None and drained.value is True
        return is_drained and (self.missing, self.unknown_partitions) == (0, 0) and not self.missing_now

    @property
    def read_again_most(self) -> int | None:
        """For all groups together. None: unknown of one of them, or of which there are."""
        if self.groups is None or not self.groups_of_source:
            return None
        counts = [group.most for group in self.groups.values()]
        return None if None in counts else sum(count or 0 for count in counts)


_DRAINED_TEXT: Final = "nothing: the source is fenced, and was drained"


def list_forecast_facts(forecast: UnplannedForecast) -> dict[str, str]:
    missing_text = (
        f"{format_count(forecast.missing_now, 'offset')} by what the source shows now"
        if forecast.missing_now is not None
        else _DRAINED_TEXT
        if forecast.has_all
        else UNKNOWN_TEXT
    )
    behind_text = UNKNOWN_TEXT if forecast.behind_s is None else f"{forecast.behind_s:.1f}"
    return {
        "without the source": "would be refused" if forecast.refused else "could be failed over",
        "loss, if the source died now": _DRAINED_TEXT if forecast.has_all else _format_loss(forecast),
        "not on the destination yet": missing_text,
        "seconds behind": behind_text,
        "read again": format_read_again(forecast),
    }


def _format_loss(forecast: UnplannedForecast) -> str:
    shown_keys = (
        FigureKey.LOST_OFFSETS,
        FigureKey.LOST_UNKNOWN_PARTITIONS,
        FigureKey.SOURCE_SEEN_S,
        FigureKey.TOPICS_LISTED_S,
    )
    return format_figure_documents({key: forecast.figures[key] for key in shown_keys if key in forecast.figures})


def format_read_again(forecast: UnplannedForecast) -> str:
    if forecast.groups is None:
        return UNKNOWN_TEXT
    known_counts = [group.most for group in forecast.groups.values() if group.most is not None]
    unknown_count = len(forecast.groups) - len(known_counts)
    most_text = (
        f"at most {format_count(sum(known_counts), 'offset')}, by {format_count(len(known_counts), 'group')}"
        if known_counts
        else ""
    )
    unknown_text = f"unknown of {format_count(unknown_count, 'group')}" if unknown_count else ""
    unseen_text = "" if forecast.groups_of_source else "unknown of what groups had on the source only"
    return "; ".join(filter(None, (most_text, unknown_text, unseen_text))) or "no group has offsets"


def format_group_read_again(read_again: GroupReadAgain | None) -> str:
    if read_again is None or read_again.most is None:
        return UNKNOWN_TEXT
    now_text = UNKNOWN_TEXT if read_again.now is None else f"{read_again.now:,}"
    return f"at most {format_count(read_again.most, 'offset')}; by what it has committed on the source: {now_text}"


def forecast_unplanned(
    decision: PlanDecision, snapshot: MirrorSnapshot, full_snapshot: MirrorSnapshot
) -> UnplannedForecast:
    """`decision`: for `snapshot`, which has no source. `full_snapshot`: the same one with the source."""
    destination, mirror = snapshot.destination, snapshot.mirror
    if (
        not isinstance(destination, DestinationSnapshot)
        or destination.cluster_id != mirror.destination_id
        or mirror.desired is DesiredState.STOPPED
    ):
        return UnplannedForecast(
            refused=to_finding_documents(decision.reasons), warnings=to_finding_documents(decision.plan.warnings)
        )
    bound = snapshot.loss
    # Behind a fence all was drained, but for what is not copied any more.
    losses = bound.application_losses
    lacking = losses.keys() & {*list_failed(snapshot), *bound.uncopied_losses} if snapshot.is_drained else losses.keys()
    counted = [losses[p] for p in lacking]
    known_missing = [partition_loss.missing for partition_loss in counted if partition_loss.missing is not None]
    missing_now = _count_missing_now(full_snapshot)
    has_all = snapshot.is_drained and not lacking and not missing_now
    furthest_behind = bound.furthest_behind
    has_known_ages = snapshot.clock_behind_s is None  # or else an age of 0 s may be any
    return UnplannedForecast(
        refused=to_finding_documents(decision.reasons),
        warnings=to_finding_documents(decision.plan.warnings),
        figures=to_figure_documents(decision.plan.figures),
        missing=sum(known_missing) if known_missing or snapshot.is_drained else None,
        unknown_partitions=len(counted) - len(known_missing),
        observed_s=find_oldest(
            [bound.topics_listed_s, *(loss.age_s for loss in losses.values() if loss.observed_end is not None)]
        )
        if has_known_ages
        else None,
        behind_s=0.0
        if has_all
        else find_oldest([bound.topics_listed_s, furthest_behind[1].behind_s])
        if furthest_behind and has_known_ages
        else None,
        heartbeat_s=bound.heartbeat_age_s if has_known_ages else None,
        missing_now=missing_now,
        groups_of_source=(source := _get_matching_source(full_snapshot)) is not None
        and not source.groups_unread
        and not source.groups_partly_listed,
        groups=None
        if destination.groups_unknown or destination.groups_unread or destination.groups_partly_listed
        else dict(_list_groups(decision, snapshot, destination, _get_committed(full_snapshot))),
        synced_s=compute_age_s(snapshot.now_ms, snapshot.groups.synced_ms)
        if snapshot.groups is not None and has_known_ages
        else None,
    )


def _get_matching_source(full_snapshot: MirrorSnapshot) -> SourceSnapshot | None:
    source = full_snapshot.source
    return (
        source if isinstance(source, SourceSnapshot) and source.cluster_id == full_snapshot.mirror.source_id else None
    )


def _count_missing_now(full_snapshot: MirrorSnapshot) -> int | None:
    """Positions were read before the ends, so offsets copied in between count as missing."""
    source, copied = _get_matching_source(full_snapshot), select_healthy(full_snapshot.statuses)
    if source is None or not copied:
        return None
    if any(
        Partition(t, i) not in full_snapshot.statuses
        for t, description in source.topics.items()
        for i in range(description.partitions)
    ):
        return None  # it is not mirrored yet, and nobody asked for its end
    total = 0
    for partition, lag in list_lags(full_snapshot):
        if partition not in copied:
            continue
        topic = source.topics.get(partition.topic)
        if topic is None or topic.id != copied[partition].source_topic_id or lag is None or lag < 0:
            return None
        total += lag
    return total


def _get_committed(full_snapshot: MirrorSnapshot) -> Mapping[str, Mapping[Partition, Offset]] | None:
    source = _get_matching_source(full_snapshot)
    return None if source is None else source.committed


def _list_groups(
    decision: PlanDecision,
    snapshot: MirrorSnapshot,
    destination: DestinationSnapshot,
    source_committed: Mapping[str, Mapping[Partition, Offset]] | None,
) -> Iterator[tuple[str, GroupReadAgain]]:
    forecast = decision.plan.forecast
    forecast_groups = forecast.reread_offsets if isinstance(forecast, PlanForecast) else {}
    start_offsets = {group: offsets for group, offsets in destination.committed.items() if group in forecast_groups}
    read_now = (
        {} if source_committed is None else count_read_again(start_offsets, source_committed, destination.positions)
    )
    without_offset = {uncommitted.group for uncommitted in list_uncommitted(snapshot) if uncommitted.has_reset_start}
    for group in sorted(destination.committed.keys() | (source_committed or {}).keys() | without_offset):
        read_partitions = {
            partition for partition in (source_committed or {}).get(group, ()) if partition in destination.positions
        }
        is_known = (
            group in forecast_groups
            and group not in without_offset
            and read_partitions <= destination.committed[group].keys()
        )
        yield group, GroupReadAgain(most=forecast_groups[group][1] if is_known else None, now=read_now.get(group))


class FreshnessKind(StrEnum):
    GROUPS = "groups"
    VERIFICATION = "verification"
    DRILL = "drill"


MAX_AGES_S: Final[Mapping[FreshnessKind, float]] = MappingProxyType(
    {FreshnessKind.GROUPS: 600.0, FreshnessKind.VERIFICATION: 86_400.0, FreshnessKind.DRILL: 35 * 86_400.0}
)
"""Warn above this age. The alert rules use the same values; a test compares them."""
_RENEWED_BY: Final[Mapping[FreshnessKind, tuple[str, tuple[str, ...]]]] = MappingProxyType(
    {
        FreshnessKind.GROUPS: ("mirror_sync", ("sync",)),
        FreshnessKind.VERIFICATION: ("mirror_parity", ("parity",)),
        FreshnessKind.DRILL: ("mirror_drill", ("drill", "run")),
    }
)
"""DAG and command."""


def list_newest_times(
    mirror: MirrorName,
    groups: GroupSyncTime | None,
    verification: MirrorVerification | None,
    runs: Iterator[Run],
    statuses: Mapping[Partition, PartitionStatus],
) -> Iterator[tuple[FreshnessKind, int]]:
    """Wall clock of the newest of each kind, in ms; kinds that never happened are left out.

    A comparison is as old as its partition compared longest ago; FAILED partitions are not compared.
    """
    if groups is not None:
        yield FreshnessKind.GROUPS, groups.synced_ms
    compared = [verified.at_ms for verified in _map_compared(verification, statuses).values() if verified is not None]
    if compared:
        yield FreshnessKind.VERIFICATION, min(compared)
    drill_run = next((run for run in list_drill_runs(runs, mirror) if has_passed(run)), None)
    if drill_run is not None:
        yield FreshnessKind.DRILL, drill_run.started_ms


def to_newest_times(
    newest_ms: Mapping[FreshnessKind, int], statuses: Mapping[Partition, PartitionStatus]
) -> dict[FreshnessKind, int | None]:
    comparable = any(status.state is not PartitionState.FAILED for status in statuses.values())
    return {kind: newest_ms.get(kind) for kind in FreshnessKind if kind is not FreshnessKind.VERIFICATION or comparable}


def count_never_compared(verification: MirrorVerification | None, statuses: Mapping[Partition, PartitionStatus]) -> int:
    compared = _map_compared(verification, statuses)
    missing = sum(verified is None for verified in compared.values())
    return missing if missing < len(compared) else 0


def _map_compared(
    verification: MirrorVerification | None, statuses: Mapping[Partition, PartitionStatus]
) -> dict[Partition, VerifiedEnd | None]:
    healthy_statuses = {p: status for p, status in statuses.items() if status.state is not PartitionState.FAILED}
    verified = read_verified(
        verification, {p.topic: status.destination_topic_id for p, status in healthy_statuses.items()}
    )
    return {p: verified.get(p) for p in healthy_statuses}


class PointWeight(StrEnum):
    """How much a point counts."""

    REFUSAL = "refusal"
    """A planned failover is refused by it."""
    LOSS = "loss"
    """A planned failover would lose records by it."""
    WARNING = "warning"
    """It would cost something."""
    UNKNOWN = "unknown"
    """What it would cost is not known."""


@dataclass(frozen=True, slots=True)
class ReadinessPoint:
    weight: PointWeight
    finding: Finding

    def __str__(self) -> str:
        return str(self.finding)

    @property
    def remedy(self) -> str:
        """Empty: the sentence says it."""
        return format_remedy(self.finding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    mirror: Mirror
    run_progress: RunProgress | None
    is_conducted: bool | None = None
    watcher: WatcherStatus | None = None
    points: tuple[ReadinessPoint, ...]
    figures: Figures
    predicted_s: float | None = None
    """Seconds without writes in a planned failover, from an earlier run or drill."""
    newest_ms: Mapping[FreshnessKind, int | None] = field(default_factory=dict)
    differing_partitions: int = 0
    unplanned: UnplannedForecast
    at_ms: int

    @property
    def is_ready(self) -> bool:
        return not self.obstacles

    @property
    def obstacles(self) -> tuple[Finding, ...]:
        return tuple(p.finding for p in self.points if p.weight in (PointWeight.REFUSAL, PointWeight.LOSS))

    def count_points(self, weight: PointWeight) -> int:
        return sum(point.weight is weight for point in self.points)


def list_plan_points(decision: PlanDecision) -> Iterator[ReadinessPoint]:
    yield from (ReadinessPoint(PointWeight.REFUSAL, reason) for reason in decision.reasons)
    for warning in decision.plan.warnings:
        weight = PointWeight.LOSS if is_losing(warning) else PointWeight.WARNING
        yield ReadinessPoint(weight, warning)
    yield from (ReadinessPoint(PointWeight.UNKNOWN, unknown) for unknown in decision.plan.unknown)


def list_staleness_points(mirror: str, newest_ms: Mapping[FreshnessKind, int], now_ms: int) -> Iterator[ReadinessPoint]:
    for kind in FreshnessKind:
        at_ms = newest_ms.get(kind)
        age_s = None if at_ms is None else compute_age_s(now_ms, at_ms)
        if age_s is not None and age_s <= MAX_AGES_S[kind]:
            continue
        dag, command = _RENEWED_BY[kind]
        if at_ms is None:
            finding = Finding("never_done", mirror, kind=kind, dag=dag, command=command)
        elif age_s is None:
            finding = Finding("done_at_unknown_time", mirror, kind=kind)
        else:
            finding = Finding("done_long_ago", mirror, kind=kind, age_s=age_s, dag=dag, command=command)
        yield ReadinessPoint(PointWeight.WARNING, finding)


def list_uncompared_points(mirror: str, partitions: int) -> Iterator[ReadinessPoint]:
    if partitions:
        yield ReadinessPoint(PointWeight.WARNING, Finding("partitions_never_compared", mirror, count=partitions))


_REPORTED_ACTIONS: Final = WRITING_ACTIONS - {SyncAction.STAGE, SyncAction.COMMIT}
"""Staged entries wait for promotion and group offsets always move: their age is a point of its own."""


def list_drift_points(mirror: str, rows: Iterable[DriftRow]) -> Iterator[ReadinessPoint]:
    drift_rows = list(rows)
    pending = Counter(row.part for row in drift_rows if row.action in _REPORTED_ACTIONS and not row.done)
    if pending:
        finding = Finding(
            "sides_differ",
            mirror,
            differing_topics=pending[SyncCategory.TOPICS],
            differing_configs=pending[SyncCategory.CONFIGS],
            differing_acls=pending[SyncCategory.ACLS],
            differing_groups=pending[SyncCategory.GROUPS],
            differing_quotas=pending[SyncCategory.QUOTAS],
        )
        yield ReadinessPoint(PointWeight.WARNING, finding)
    for row in drift_rows:
        if row.action is SyncAction.REFUSE:
            finding = Finding(
                "sync_refuses", row.subject, part=row.part, refusal_code=row.code or "", reason=row.reason
            )
            yield ReadinessPoint(PointWeight.WARNING, finding)


NEVER_AGE_S: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessRow:
    """None if unknown now. Values of the whole mirror repeat in each row."""

    topic: str
    partition: int
    state: PartitionState
    reason: str
    position: int | None
    source_end: int | None
    lag: int | None
    behind_s: float | None
    missing: int | None
    standstill_s: float | None
    proved: int | None
    proof_age_s: float | None
    sync_age_s: float | None
    drill_age_s: float | None
    heartbeat_age_s: float | None
    data_plane: bool
    refused: str


def list_readiness_rows(snapshot: MirrorSnapshot, runs: Iterable[Run]) -> Iterator[ReadinessRow]:
    destination = snapshot.destination if isinstance(snapshot.destination, DestinationSnapshot) else None
    ends = snapshot.source.stable_ends if isinstance(snapshot.source, SourceSnapshot) else {}
    verified = read_verified(
        snapshot.verification, {name: topic.id for name, topic in destination.topics.items()} if destination else {}
    )
    newest_ms = dict(
        list_newest_times(snapshot.mirror.name, snapshot.groups, snapshot.verification, iter(runs), snapshot.statuses)
    )
    ages = {
        kind: compute_age_s(now_ms, newest_ms[kind]) if kind in newest_ms else NEVER_AGE_S
        for kind, now_ms in (
            (FreshnessKind.GROUPS, snapshot.now_ms),
            (FreshnessKind.VERIFICATION, snapshot.broker_now_ms),
            (FreshnessKind.DRILL, snapshot.broker_now_ms),
        )
    }
    has_known_ages = snapshot.clock_behind_s is None  # or else an age of 0 s may be any
    refused = "; ".join(map(str, decide_failover(snapshot).reasons))
    bound = snapshot.loss
    for partition, lag in list_lags(snapshot):
        position = destination.positions.get(partition) if destination else None
        verified_end = verified[partition].end if partition in verified else 0
        status = snapshot.statuses[partition]
        yield ReadinessRow(
            topic=partition.topic,
            partition=partition.index,
            state=status.state,
            reason=status.reason or "",
            position=position,
            source_end=ends.get(partition),
            lag=lag,
            behind_s=bound.partitions[partition].behind_s if has_known_ages else None,
            missing=bound.partitions[partition].missing,
            standstill_s=predict_standstill_s(snapshot),
            proved=None if position is None else min(verified_end, position),
            proof_age_s=ages[FreshnessKind.VERIFICATION] if partition in verified else NEVER_AGE_S,
            sync_age_s=ages[FreshnessKind.GROUPS],
            drill_age_s=ages[FreshnessKind.DRILL],
            heartbeat_age_s=bound.heartbeat_age_s if has_known_ages else None,
            data_plane=snapshot.has_data_plane,
            refused=refused,
        )
