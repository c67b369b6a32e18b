"""What an unplanned failover would be if the source died now: whether it could run, and its cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from mirror_core.decide.clocks import compute_age_s, find_snapshot_clock_behind_s
from mirror_core.decide.failover import PlanDecision
from mirror_core.decide.loss import compute_snapshot_loss, find_oldest
from mirror_core.decide.reckoning import count_read_again
from mirror_core.decide.view import (
    DestinationSnapshot,
    MirrorSnapshot,
    SourceSnapshot,
    list_failed,
    list_lags,
    list_uncommitted,
    select_healthy,
)
from mirror_core.model.mirror import DesiredState
from mirror_core.model.names import Offset, Partition
from mirror_core.model.reckoning import PlanForecast

UNKNOWN_TEXT: Final = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReadAgain:
    """Offsets that a consumer group would read again. None: unknown."""

    most: int | None
    """From its offset on the destination to the position: what a plan says. None, too, of a group with members there,
    whose own offsets count, and of one that has no offset there for a partition that it reads on the source, or read
    there at the last look."""
    now: int | None
    """The same to what it had committed on the source at this look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnplannedForecast:
    """An unplanned failover as it would be now. No figure is known of a stopped mirror, or of an unseen destination."""

    refused: tuple[str, ...]
    """Why it could not be run; empty: it could."""
    warnings: tuple[str, ...] = ()
    """As its plan has them."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """The same, in words: among them the loss bound and the ages that it is based on."""
    missing: int | None = None
    """Offsets known to be missing, by the data plane's last observation of the source: what a plan has once the source
    is dead. The source may have acknowledged more since then. None: unknown of every partition."""
    unknown_partitions: int | None = None
    """Partitions of which it is unknown; `missing` leaves them out."""
    observed_s: float | None = None
    """Age of that observation, of the partition where it is oldest."""
    behind_s: float | None = None
    """Seconds since the destination had all that the source then had, of the partition where that is longest ago."""
    heartbeat_s: float | None = None
    """Age of the newest heartbeat on the destination, of the source's broker where it is oldest."""
    missing_now: int | None = None
    """Offsets below the source's readable ends at this look, and not on the destination just before: without
    FAILED partitions. None, too, when the source did not tell all of its ends."""
    groups: Mapping[str, GroupReadAgain] | None = None
    """By consumer group with offsets on either side. None: not all of the destination's groups were told of."""
    groups_of_source: bool = True
    """Whether the source told of its groups, too. If not: some may have offsets there only, or of more partitions."""
    synced_s: float | None = None
    """Age of the groups' offsets on the destination."""

    @property
    def read_again_most(self) -> int | None:
        """Of all groups together. None: unknown of one of them, or of which there are."""
        if self.groups is None or not self.groups_of_source:
            return None
        counts = [group.most for group in self.groups.values()]
        return None if None in counts else sum(count or 0 for count in counts)


def list_forecast_facts(forecast: UnplannedForecast) -> dict[str, str]:
    missing_text = (
        UNKNOWN_TEXT
        if forecast.missing_now is None
        else f"{forecast.missing_now:,} offset(s) by what the source shows now"
    )
    behind_text = UNKNOWN_TEXT if forecast.behind_s is None else f"{forecast.behind_s:.1f}"
    return {
        "without the source": "would be refused" if forecast.refused else "could be failed over",
        "loss, if the source died now": forecast.figures.get("loss", UNKNOWN_TEXT),
        "not on the destination yet": missing_text,
        "seconds behind": behind_text,
        "read again": format_read_again(forecast),
    }


def format_read_again(forecast: UnplannedForecast) -> str:
    if forecast.groups is None:
        return UNKNOWN_TEXT
    known_counts = [group.most for group in forecast.groups.values() if group.most is not None]
    unknown_count = len(forecast.groups) - len(known_counts)
    most_text = f"at most {sum(known_counts):,} offset(s), by {len(known_counts)} group(s)" if known_counts else ""
    unknown_text = f"unknown of {unknown_count} group(s)" if unknown_count else ""
    unseen_text = "" if forecast.groups_of_source else "unknown of what groups had on the source only"
    return "; ".join(filter(None, (most_text, unknown_text, unseen_text))) or "no group has offsets"


def format_group_read_again(read_again: GroupReadAgain | None) -> str:
    if read_again is None or read_again.most is None:
        return UNKNOWN_TEXT
    now_text = UNKNOWN_TEXT if read_again.now is None else f"{read_again.now:,}"
    return f"at most {read_again.most:,} offset(s); by what it has committed on the source: {now_text}"


def forecast_unplanned(
    decision: PlanDecision, snapshot: MirrorSnapshot, full_snapshot: MirrorSnapshot
) -> UnplannedForecast:
    """`decision`: for `view`, which has no source. `seen`: the same snapshot with the source."""
    destination, mirror = snapshot.destination, snapshot.mirror
    if (
        not isinstance(destination, DestinationSnapshot)
        or destination.cluster_id != mirror.destination_id
        or mirror.desired is DesiredState.STOPPED
    ):
        return UnplannedForecast(refused=decision.reasons, warnings=decision.plan.warnings)
    bound = compute_snapshot_loss(snapshot)
    # Behind a fence all was drained, but for what is not copied any more.
    lacking = {*list_failed(snapshot), *bound.uncopied} if snapshot.is_drained else bound.partitions.keys()
    counted = [bound.partitions[p] for p in lacking]
    known_missing = [partition_loss.missing for partition_loss in counted if partition_loss.missing is not None]
    furthest_behind = bound.furthest_behind
    has_known_ages = find_snapshot_clock_behind_s(snapshot) is None  # or else an age of 0 s may be any
    return UnplannedForecast(
        refused=decision.reasons,
        warnings=decision.plan.warnings,
        figures=decision.plan.figures,
        missing=sum(known_missing) if known_missing or snapshot.is_drained else None,
        unknown_partitions=len(counted) - len(known_missing),
        observed_s=find_oldest(
            [bound.topics_listed_s, *(partition_loss.age_s for partition_loss in bound.partitions.values())]
        )
        if has_known_ages
        else None,
        behind_s=find_oldest([bound.topics_listed_s, furthest_behind[1].behind_s])
        if furthest_behind and has_known_ages
        else None,
        heartbeat_s=bound.heartbeat_age_s if has_known_ages else None,
        missing_now=_count_missing_now(full_snapshot),
        groups_of_source=(source := _get_matching_source(full_snapshot)) is not None and not source.groups_unread,
        groups=None
        if destination.groups_unknown or destination.groups_unread
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
    without_offset = {
        uncommitted.group for uncommitted in list_uncommitted(snapshot) if uncommitted.destination_offset is None
    }
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
