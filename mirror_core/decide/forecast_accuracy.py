"""What a plan forecast, what its run counted, and the difference."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from types import MappingProxyType
from typing import Final, NamedTuple

from mirror_core.decide import failover_scope
from mirror_core.decide.audit_log_check import BOTH_EMPTY_VERDICT
from mirror_core.decide.clock_skew import compute_age_s
from mirror_core.decide.deletion_hold import find_early_deletions
from mirror_core.decide.drills import to_drill_name
from mirror_core.decide.fence_state import (
    count_offsets,
    find_late_ranges,
    find_unknown_ends,
    format_late_ranges,
)
from mirror_core.decide.group_coverage import find_uncounted_groups
from mirror_core.decide.loss_bound import compute_loss, count_unknown, format_losses, sum_missing
from mirror_core.decide.mirror_change import apply_current_filters
from mirror_core.decide.mirror_snapshot import (
    DestinationSnapshot,
    MirrorSnapshot,
    SourceSnapshot,
    UnseenCluster,
    can_lose,
    join_limited,
    list_failed,
    list_lags,
    select_healthy,
)
from mirror_core.decide.steps import measure_standstill_s, measure_step_s
from mirror_core.model.figures import FIRST_STEP_TEXT, MAX_RECORDED_NAMES, FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.forecast import PartitionLoss, PlanForecast, UncopiedReason
from mirror_core.model.mirror import Mirror, PartitionStatus
from mirror_core.model.names import Offset, Partition, select_application_partitions
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.model.pending_fence import LateRanges, LateSplit, PendingFence
from mirror_core.model.run import Run, RunKind, RunMode, RunState, StepEvidence, StepRecord, list_newest_first
from mirror_core.model.source_observation import SourceObservation

MAX_FORECAST_GROUPS: Final = 1000
_USUAL_LAG_S: Final = 2.0
"""What the source takes in this time may be under way in a copy that keeps up: it had to be copied in earlier runs,
too."""
_USUAL_LAG_OFFSETS: Final = 1_000
_UNSEEN_TEXT: Final = "the old source was not seen until the run ended"

NO_LOSSES: Final[Mapping[Partition, PartitionLoss]] = MappingProxyType({})
GroupPositions = Mapping[str, Mapping[Partition, Offset]]
"""By group, next offsets to read."""


class ForecastKey(StrEnum):
    WITHOUT_WRITES_S = "without_writes_s"
    FIRST_STEP_TO_PROMOTION_S = "first_step_to_promotion_s"
    STEP_S = "step_s"
    """By step."""
    LOST_OFFSETS = "lost_offsets"
    READ_AGAIN_OFFSETS = "read_again_offsets"
    """By group."""


_LABELS: Final[Mapping[ForecastKey, str]] = MappingProxyType(
    {
        ForecastKey.WITHOUT_WRITES_S: "seconds without writes",
        ForecastKey.FIRST_STEP_TO_PROMOTION_S: f"seconds from {FIRST_STEP_TEXT}",
        ForecastKey.STEP_S: "seconds of step",
        ForecastKey.LOST_OFFSETS: "offsets lost",
        ForecastKey.READ_AGAIN_OFFSETS: "offsets read again",
    }
)
STANDSTILL_KEYS: Final[Mapping[RunMode, ForecastKey]] = MappingProxyType(
    {
        RunMode.PLANNED: ForecastKey.WITHOUT_WRITES_S,
        RunMode.UNPLANNED: ForecastKey.FIRST_STEP_TO_PROMOTION_S,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastComparison:
    key: ForecastKey
    item: str = ""
    """Step or group; empty where the key has no such."""
    at_least: float | None
    at_most: float | None
    counted: float | None
    unit: str
    """s, or empty: a count."""
    error: float | None
    """Counted minus the nearest forecast value. None: one of them is unknown."""
    basis: str = ""

    @property
    def label(self) -> str:
        return _LABELS[self.key]


def compute_backlog(snapshot: MirrorSnapshot) -> int | None:
    """Offsets that a planned failover copies while nobody may write.

    0 if they are no more than of a copy that keeps up.
    """
    if snapshot.mode is not RunMode.PLANNED or snapshot.is_drained:
        return 0
    drained = select_application_partitions(
        select_healthy(snapshot.statuses).keys() - set(failover_scope.list_left_behind(snapshot))
    )
    lags = [lag for partition, lag in list_lags(snapshot) if partition in drained]
    if None in lags:
        return None
    observation = snapshot.source_observation
    usual = max(_USUAL_LAG_OFFSETS, (observation.offsets_per_s or 0) * _USUAL_LAG_S if observation else 0)
    total = sum(max(0, lag or 0) for lag in lags)
    return total if total > usual else 0


def predict_standstill_s(snapshot: MirrorSnapshot) -> float | None:
    """By the earlier run. Unknown while the copy is behind: nothing is known of how fast it catches up."""
    return snapshot.forecast.seconds if snapshot.forecast and compute_backlog(snapshot) == 0 else None


# -- before -----------------------------------------------------------------------------------------------------------


def build_forecast(snapshot: MirrorSnapshot) -> PlanForecast:
    lost, at_least = _forecast_loss(snapshot)
    forecast, observation, seconds = snapshot.forecast, snapshot.source_observation, predict_standstill_s(snapshot)
    gives_up_source = snapshot.mode is RunMode.UNPLANNED and can_lose(snapshot)
    uncounted_groups = find_uncounted_groups(snapshot)
    return PlanForecast(
        seconds=seconds,
        steps={step: s for step, s in forecast.steps.items() if seconds is not None or step != "drain"}
        if forecast
        else {},
        basis=forecast.basis if forecast else "",
        lost_offsets=lost,
        lost_is_minimum=at_least,
        reread_offsets=dict(islice(_forecast_read_again(snapshot, uncounted_groups), MAX_FORECAST_GROUPS)),
        uncounted_groups=dict(islice(sorted(uncounted_groups.items()), MAX_FORECAST_GROUPS)),
        gives_up_source=gives_up_source,
        unseen_s=snapshot.loss.observed_s if gives_up_source else None,
        offsets_per_s=observation.offsets_per_s if gives_up_source and observation else None,
        refused_s=find_refused_s(snapshot) if gives_up_source else None,
        copied_unseen_offsets=_count_copied_unseen(snapshot) if gives_up_source else 0,
    )


def find_refused_s(snapshot: MirrorSnapshot) -> float | None:
    """Since the source first refused connections. None: not seen, or not by the data plane that runs."""
    observation, lease = snapshot.source_observation, snapshot.lease
    if observation is None or observation.refused_ms is None or not isinstance(snapshot.source, UnseenCluster):
        return None
    is_watched = lease is not None and lease.generation == observation.refused_generation
    is_known = is_watched and snapshot.has_data_plane
    return compute_age_s(snapshot.now_ms, observation.refused_ms) if is_known else None


def select_given_up(snapshot: MirrorSnapshot) -> Mapping[Partition, PartitionLoss]:
    """What the destination may lack when it is promoted.

    Where the source is drained: what FAILED partitions lack, and what has no copy, or none of its beginning.
    """
    losses = snapshot.loss.application_losses
    if can_lose(snapshot):
        return losses
    # A plan to drain is refused for what has no copy at all.
    lacking = snapshot.loss.uncopied_losses if snapshot.is_drained else snapshot.early_deletions
    return {p: losses[p] for p in losses.keys() & {*list_failed(snapshot), *lacking}}


def _count_copied_unseen(snapshot: MirrorSnapshot) -> int:
    """Only of partitions that were copied until the end, and of the copy that the mirror made."""
    return sum(
        max(0, loss.position - loss.observed_end)
        for loss in snapshot.loss.application_losses.values()
        if loss.position is not None and loss.observed_end is not None and not loss.is_outside_bound
    )


def _forecast_loss(snapshot: MirrorSnapshot) -> tuple[int | None, bool]:
    left_partitions = failover_scope.list_left_behind(snapshot)
    lacking = left_partitions or list_failed(snapshot) or snapshot.early_deletions
    if not (can_lose(snapshot) or snapshot.is_drained or lacking):
        return 0, False
    bound = snapshot.loss
    given_up = {*select_given_up(snapshot), *left_partitions}
    losses = [partition_loss for p, partition_loss in bound.application_losses.items() if p in given_up]
    return (sum_missing(losses), True) if losses or can_lose(snapshot) else (0, False)


def _forecast_read_again(
    snapshot: MirrorSnapshot, uncounted_groups: Collection[str]
) -> Iterator[tuple[str, tuple[int, int]]]:
    destination = snapshot.destination
    if not isinstance(destination, DestinationSnapshot) or destination.groups_unknown:
        return
    if isinstance(snapshot.source, SourceSnapshot) and snapshot.mode is RunMode.PLANNED:
        yield from (
            (group, (0, 0))
            for group in sorted(snapshot.source.committed.keys() - snapshot.source.share_groups.keys())
            if group not in uncounted_groups
        )
        return
    for group, offsets in sorted(destination.committed.items()):
        if group not in uncounted_groups and offsets.keys() <= destination.positions.keys():
            yield group, (0, sum(max(0, destination.positions[p] - o) for p, o in offsets.items()))


# -- afterwards -------------------------------------------------------------------------------------------------------


class LossCount(NamedTuple):
    """As in `ForecastOutcome`."""

    offsets: int | None
    basis: str
    least: int | None = None
    uncopied_texts: tuple[str, ...] | None = None

    def add_uncounted(self, what: str) -> LossCount:
        known = self.basis if self.offsets is None else f"at least {self.offsets:,}, {self.basis}"
        least = self.least if self.offsets is None else self.offsets
        return self._replace(offsets=None, basis=f"{known}; {what}", least=least)

    def add_least(self, losses: Collection[PartitionLoss]) -> LossCount:
        return self._replace(least=(self.least or 0) + (sum_missing(losses) or 0))


def count_lost_planned(
    gate: StepEvidence, failed: Collection[Partition], left_behind: Collection[Partition] = ()
) -> LossCount:
    if gate.get(FigureKey.PARITY_VERDICT) == BOTH_EMPTY_VERDICT and not failed and not left_behind:
        basis = "neither side held a record behind the fence, and their logs begin and end at the same offsets"
        return LossCount(0, basis)
    if gate.get(FigureKey.PARITY_VERDICT) != ParityVerdict.PASSED:
        return LossCount(None, "nothing was compared")
    unknowns = [f"of what had FAILED: {join_limited(sorted(failed))}"] if failed else []
    unknowns += (
        [f"of what was left behind without a leader: {join_limited(sorted(left_behind))}"] if left_behind else []
    )
    if unknowns:
        return LossCount(None, f"not known {', '.join(unknowns)}; of the others nothing, compared equal", 0)
    return LossCount(0, "all was compared equal, up to the source's ends behind the fence")


def add_left_behind(lost: LossCount, left_behind: Collection[Partition]) -> LossCount:
    if not left_behind:
        return lost
    return lost.add_uncounted(
        f"not known of what was left behind without a leader: {join_limited(sorted(left_behind))}"
    )


def add_uncopied(
    lost: LossCount, losses: Mapping[Partition, PartitionLoss], pending_fence: PendingFence | None
) -> LossCount:
    uncopied_losses = {p: loss for p, loss in losses.items() if loss.uncopied_reason}
    is_fenced = pending_fence is not None and pending_fence.applied_at_ms is not None
    has_fence_listing = pending_fence is not None and pending_fence.uncopied is not None
    counted_ends = pending_fence.uncopied_offsets if pending_fence else {}
    uncounted = sorted(p for p in uncopied_losses if counted_ends.get(p) is None)
    if is_fenced and not has_fence_listing:
        lost = lost.add_uncounted("not counted: topics and partitions that were created after the last listing")
    if uncounted:
        lost = lost.add_uncounted(f"counted in part only, of partitions that had no copy: {join_limited(uncounted)}")
    if lost.offsets is None and lost.least is None:
        return lost
    if has_fence_listing:
        lost = lost._replace(uncopied_texts=tuple(format_losses(uncopied_losses, dated=False)[:MAX_RECORDED_NAMES]))
    if lost.offsets is None:
        return lost.add_least(uncopied_losses.values())
    return lost._replace(offsets=lost.offsets + (sum_missing(uncopied_losses.values()) or 0))


def make_unseen_count(source: str, reason: str) -> LossCount:
    return LossCount(
        None, f"nothing up to the fence; whether {source} has taken anything since is unknown: {reason}", 0
    )


def find_not_copied(
    pending_fence: PendingFence, statuses: Mapping[Partition, PartitionStatus]
) -> tuple[LateRanges, tuple[Partition, ...]]:
    application_statuses = {p: statuses[p] for p in select_application_partitions(statuses)}
    unknown_partitions = {
        *find_unknown_ends(pending_fence, application_statuses),
        *(p for p, status in application_statuses.items() if status.lmo is None),
    }
    return find_late_ranges(pending_fence, application_statuses), tuple(sorted(unknown_partitions))


def compute_last_losses(
    mirror: Mirror,
    statuses: Mapping[Partition, PartitionStatus],
    observation: SourceObservation | None,
    pending_fence: PendingFence | None = None,
) -> Mapping[Partition, PartitionLoss]:
    """A stopped mirror's, by the source when last observed, and by what the fence found."""
    current = apply_current_filters(mirror, statuses, observation)
    lmos = {p: status.lmo for p, status in statuses.items() if status.lmo is not None}
    cuts = {p: status.deleted_until for p, status in statuses.items() if status.deleted_until is not None}
    deletions = find_early_deletions(statuses.values(), cuts)
    losses = compute_loss(statuses, current, lmos, (), now_ms=0, early_deletions=deletions).application_losses
    return add_uncopied_behind_fence(losses, pending_fence, statuses)


def add_uncopied_behind_fence(
    losses: Mapping[Partition, PartitionLoss], pending_fence: PendingFence | None, recorded: Collection[Partition]
) -> dict[Partition, PartitionLoss]:
    all_losses, found = dict(losses), pending_fence.uncopied_offsets if pending_fence else {}
    for partition in select_application_partitions({*recorded, *found}) & (found.keys() - set(recorded)):
        if (offsets := found[partition]) is not None or partition not in all_losses:
            all_losses[partition] = PartitionLoss(
                position=None,
                observed_end=None,
                age_s=None,
                missing=offsets,
                is_offline=False,
                is_failed=False,
                uncopied_reason=UncopiedReason.NOT_MIRRORED,
            )
    return {p: loss for p, loss in all_losses.items() if found.get(p) != 0 or p in recorded}


def count_taken_since(pending_fence: PendingFence, late_ranges: LateRanges) -> int:
    """Also by partitions without a copy."""
    uncopied = pending_fence.uncopied_since_offsets
    partitions = select_application_partitions(uncopied.keys() - late_ranges.keys())
    return count_offsets(pending_fence.split_late_ranges(late_ranges).since) + sum(uncopied[p] for p in partitions)


class UncopiedTexts(NamedTuple):
    """What only the old source has, or may have, in sentences."""

    known: tuple[str, ...]
    unknown: tuple[str, ...]


def explain_uncopied_records(
    mirror: Mirror,
    pending_fence: PendingFence,
    statuses: Mapping[Partition, PartitionStatus],
    observation: SourceObservation | None,
) -> UncopiedTexts:
    losses = compute_last_losses(mirror, statuses, observation, pending_fence)
    lacking = {p: loss for p, loss in losses.items() if loss.has_no_copy and loss.missing != 0}
    late_ranges, unknown = find_not_copied(pending_fence, _select_copied(statuses, lacking))
    known = [format_late_ranges(late_ranges, observation)] if late_ranges else []
    if lacking:
        finding = Finding(
            "uncopied_left_behind",
            mirror.destination,
            source=mirror.source,
            count=len(lacking),
            offsets=sum_missing(lacking.values()),
            unknown=count_unknown(lacking.values()),
            partitions=format_losses(lacking, dated=False),
        )
        known.append(str(finding))
    return UncopiedTexts(
        tuple(known), (str(Finding("left_behind_unknown", mirror.source, partitions=unknown)),) if unknown else ()
    )


def _select_copied(
    statuses: Mapping[Partition, PartitionStatus], uncopied_partitions: Container[Partition]
) -> dict[Partition, PartitionStatus]:
    return {p: statuses[p] for p in select_application_partitions(statuses) if p not in uncopied_partitions}


def count_lost_unplanned(
    pending_fence: PendingFence | None,
    statuses: Mapping[Partition, PartitionStatus],
    losses: Mapping[Partition, PartitionLoss] = NO_LOSSES,
) -> LossCount:
    """`losses`: as last observed, where no end behind the fence counts."""
    copied = _select_copied(statuses, {p for p, loss in losses.items() if loss.uncopied_reason})
    return add_uncopied(_count_behind_fence(pending_fence, copied, losses), losses, pending_fence)


def _count_behind_fence(
    pending_fence: PendingFence | None,
    statuses: Mapping[Partition, PartitionStatus],
    losses: Mapping[Partition, PartitionLoss],
) -> LossCount:
    if pending_fence is None or not pending_fence.log_ends.topics:
        return LossCount(None, _UNSEEN_TEXT)
    late_ranges, unknown_partitions = find_not_copied(pending_fence, statuses)
    if pending_fence.applied_at_ms is None:
        return LossCount(None, "it is not fenced")
    split = pending_fence.split_late_ranges(late_ranges)
    count = count_offsets(late_ranges) - count_offsets(split.since)
    if unknown_partitions:
        basis = f"the old source's log end is not known of {join_limited(unknown_partitions)}"
        return LossCount(None, basis, count).add_least([losses[p] for p in unknown_partitions if p in losses])
    return LossCount(count, format_loss_basis("by the old source's ends behind its fence", split))


def format_loss_basis(reason: str, split: LateSplit) -> str:
    """For a loss without what the source took since."""
    if split.unknown:
        return f"{reason}: of {join_limited(sorted(split.unknown))} what it took after it was given up is in this, too"
    return f"{reason}, without what it took after it was given up: by the records' own times" if split.since else reason


def count_read_again(
    start_offsets: GroupPositions, source_positions: GroupPositions | None, ends: Mapping[Partition, Offset | None]
) -> dict[str, int | None]:
    """By group. `start_offsets`: on the destination; `ends`: next after the last mirrored offset. What was lost cannot
    be read again.
    """
    return {
        group: _count_group_read_again(
            group_starts, None if source_positions is None else source_positions.get(group), ends
        )
        for group, group_starts in islice(sorted(start_offsets.items()), MAX_FORECAST_GROUPS)
    }


def _count_group_read_again(
    group_starts: Mapping[Partition, Offset],
    source_positions: Mapping[Partition, Offset] | None,
    ends: Mapping[Partition, Offset | None],
) -> int | None:
    source_positions = (
        None if source_positions is None else {p: offset for p, offset in source_positions.items() if p in ends}
    )
    if not source_positions or not source_positions.keys() <= group_starts.keys():
        return None  # of a partition without an offset the consumer's own setting decides where it begins
    total = 0
    for partition, offset in source_positions.items():
        end = ends.get(partition)
        if end is None:
            return None
        total += max(0, min(offset, end) - group_starts[partition])
    return total


def list_forecast_rows(run: Run, steps: Iterable[StepRecord]) -> tuple[ForecastComparison, ...]:
    forecast = run.plan.forecast if isinstance(run.plan.forecast, PlanForecast) else None
    if run.plan.kind is not RunKind.FAILOVER or (forecast is None and run.forecast_outcome is None):
        return ()
    records = list(steps)
    seconds = forecast.seconds if forecast else None
    forecast_rows = [
        _build_row(
            STANDSTILL_KEYS[run.plan.mode],
            "",
            seconds,
            seconds,
            measure_standstill_s(run, records),
            f"foretold by the {forecast.basis}" if forecast and forecast.basis else "",
            unit="s",
        )
    ]
    for step in records:
        forecast_s = forecast.steps.get(step.step) if forecast else None
        step_s = measure_step_s(step)
        forecast_rows.append(_build_row(ForecastKey.STEP_S, step.step, forecast_s, forecast_s, step_s, unit="s"))
    counted = run.forecast_outcome
    least_lost = forecast.lost_offsets if forecast else None
    most_lost = None if forecast is None or forecast.lost_is_minimum else forecast.lost_offsets
    forecast_rows.append(
        _build_row(
            ForecastKey.LOST_OFFSETS,
            "",
            least_lost,
            most_lost,
            counted.lost_offsets if counted else None,
            counted.lost_basis if counted else "",
        )
    )
    forecast_groups, counted_groups = (
        forecast.reread_offsets if forecast else {},
        counted.reread_offsets if counted else {},
    )
    for group in sorted(forecast_groups.keys() | counted_groups.keys()):
        low, high = forecast_groups.get(group, (None, None))
        forecast_rows.append(
            _build_row(
                ForecastKey.READ_AGAIN_OFFSETS,
                group,
                low,
                high,
                counted_groups.get(group),
                counted.reread_basis if counted else "",
            )
        )
    return tuple(forecast_rows)


def _build_row(
    key: ForecastKey,
    item: str,
    at_least: float | None,
    at_most: float | None,
    counted: float | None,
    basis: str = "",
    unit: str = "",
) -> ForecastComparison:
    error = None
    if at_least is not None and counted is not None:
        nearest = counted if at_most is None else min(counted, at_most)
        error = counted - (at_least if at_most is None else max(at_least, nearest))
    return ForecastComparison(
        key=key,
        item=item,
        at_least=at_least,
        at_most=at_most,
        counted=counted,
        unit=unit,
        error=error,
        basis=basis,
    )


def list_past_failovers(runs: Iterable[Run], mirror: str) -> list[Run]:
    return list_newest_first(
        run
        for run in runs
        if run.plan.mirror in (mirror, to_drill_name(mirror))
        and run.plan.kind is RunKind.FAILOVER
        and run.state is RunState.DONE
    )


# -- in words ---------------------------------------------------------------------------------------------------------


def format_forecast(row: ForecastComparison) -> str:
    if row.at_least is None:
        return "unknown"
    if row.at_most is None:
        return f"at least {_format_number(row, row.at_least)}"
    if row.at_least == row.at_most:
        return _format_number(row, row.at_least)
    return f"{_format_number(row, row.at_least)} to {_format_number(row, row.at_most)}"


def format_counted(row: ForecastComparison) -> str:
    return "unknown" if row.counted is None else _format_number(row, row.counted)


def format_error(row: ForecastComparison) -> str:
    if row.error is None:
        return "unknown"
    return "none" if not row.error else f"{'+' if row.error > 0 else '-'}{_format_number(row, abs(row.error))}"


def _format_number(row: ForecastComparison, value: float) -> str:
    return f"{value:.2f} s" if row.unit else f"{value:,.0f}"
