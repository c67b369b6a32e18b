"""What is recorded of a mirror, and what both clusters show."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mirror_core.copy.log_inspection import find_foreign_writes
from mirror_core.dataplane.epoch_planner import COPIED_STATES, format_failure_reason
from mirror_core.decide import clock_skew, gaps_and_resume
from mirror_core.decide.acl_plan import find_narrowed_acls, format_narrowed_acls
from mirror_core.decide.deletion_hold import find_early_deletions, format_hold
from mirror_core.decide.fence_state import (
    describe_fence,
    find_fence_state,
    warn_pending_fence,
)
from mirror_core.decide.forecast_accuracy import add_uncopied_behind_fence
from mirror_core.decide.gaps_and_resume import format_never_copied
from mirror_core.decide.group_coverage import (
    GroupCoverageRow,
    format_all_deleted,
    format_all_refused,
    format_waiting_offsets,
    list_group_coverage,
    list_groups_by_coverage,
)
from mirror_core.decide.loss_bound import (
    LossBound,
    compute_loss,
    find_positions,
    format_listed,
    format_observed,
    format_uncopied,
)
from mirror_core.decide.mirror_change import (
    apply_current_filters,
    format_leaving_topics,
    format_topics_by_access,
    list_leaving_topics,
    list_paused_topics,
    list_topics_by_access,
)
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.decide.run_status import find_run_progress, find_stalled_run
from mirror_core.decide.topic_settings import is_compacted
from mirror_core.decide.verification import find_differences, format_differences, list_proof_figures, read_verified
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.cluster_info import measure_clock_ahead_ms
from mirror_core.kafka.connection_pool import CONNECTION_POOL
from mirror_core.kafka.heartbeat_topic import read_newest_heartbeats
from mirror_core.kafka.log_offsets import OffsetPoint, list_available_offsets
from mirror_core.kafka.topic_existence import check_presence, describe_denied_error
from mirror_core.kafka.topics import describe_configs
from mirror_core.mirrors.departures import explain_unenforced
from mirror_core.mirrors.mirror_facts import (
    DescribedFact,
    FactKey,
    MirrorFact,
    format_absent,
    format_driver,
    format_heartbeats,
    format_lag,
    format_offsets,
    make_fact,
    make_hidden_fact,
    make_waits_fact,
)
from mirror_core.mirrors.old_source_fence import describe_late_writes
from mirror_core.model.errors import ConnectionRejected, MirrorError, RemoteFault, Unreachable
from mirror_core.model.figures import Figure, FigureKey, Figures, format_figures, format_share, to_figure_documents
from mirror_core.model.json_documents import JsonDocument
from mirror_core.model.mirror import (
    DesiredState,
    GapFilling,
    Mirror,
    NeverCopied,
    PartitionState,
    PartitionStatus,
    TopicAccess,
    is_lease_age_unknown,
    is_lease_fresh,
    list_copy_ids,
)
from mirror_core.model.names import Offset, Partition, get_heartbeat_topic
from mirror_core.model.parity_verdict import MirrorVerification
from mirror_core.model.run import Run
from mirror_core.model.source_observation import Heartbeat
from mirror_core.model.sync_state import GroupCoverage, UnsyncedGroups
from mirror_core.model.text import format_bytes
from mirror_core.model.timing import TIMEOUTS, UNKNOWN_NOW_MS
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.point_of_no_return import list_run_verbs
from mirror_core.state.run_heartbeat import find_conductor_status
from mirror_core.state.state_records import State
from mirror_core.state.watcher_heartbeat import find_watcher_status
from mirror_core.sync.fence_acls import describe_stray_denials

GAP_TEXTS: Final[Mapping[GapFilling, str]] = MappingProxyType(
    {
        GapFilling.MARKERS: "filled with transaction markers",
        GapFilling.HIDDEN: "filled with hidden records, which every consumer drops",
    }
)


class ClockState(StrEnum):
    """This machine's clock, beside what brokers and data planes have written."""

    NOT_BEHIND = "not behind"
    BEHIND = "behind"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """Offsets are next offsets. `lag` is source end minus position, None when the source end is unknown."""

    partition: str
    state: PartitionState
    position: int | None
    source_start: int | None
    """First offset that the source still has."""
    source_end: int | None
    lag: int | None
    lmo: int | None
    verified_end: int | None
    """Next offset after the last one found equal to the source."""
    kind: str | None
    """Kind of failure; None when it is not FAILED."""
    reason: str | None
    never_copied: NeverCopied | None = None
    """Deleted on the source before it was copied."""
    source_topic_id: str | None = None
    """KIP-516, 32 hexadecimal digits. None: not known, as in the field below."""
    destination_topic_id: str | None = None

    @property
    def missing_offsets(self) -> int:
        """To seed or fill first: the source's log starts behind the position."""
        is_known = self.position is not None and self.source_start is not None and self.state in COPIED_STATES
        return max(0, (self.source_start or 0) - (self.position or 0)) if is_known else 0


class MirrorDescription(JsonDocument, frozen=True, kw_only=True):
    """What is recorded of a mirror, and what both clusters show."""

    facts: Mapping[FactKey, MirrorFact]
    not_normal: tuple[FactKey, ...]
    """Keys of the facts that are not as on a quiet day."""
    figures: Mapping[FigureKey, Figure]
    """How much is proved equal."""
    silent: tuple[str, ...]
    """Clusters whose offsets could not be read."""
    copying: bool | None
    """A data plane has a fresh lease. Null: unknown, since clocks contradict each other."""
    rows: tuple[PartitionDescription, ...]


def list_partitions_not_normal(description: MirrorDescription) -> tuple[PartitionDescription, ...]:
    """Normal: copied, or stopped with its mirror. A lag is a fact of the mirror."""
    is_stopped = description.facts[FactKey.DESIRED].value == DesiredState.STOPPED
    normal_states = (PartitionState.STOPPED, PartitionState.MIRRORING) if is_stopped else (PartitionState.MIRRORING,)
    return tuple(row for row in description.rows if row.state not in normal_states or row.reason or row.missing_offsets)


def describe_mirror(link: MirrorLink, state: State, now_ms: int) -> MirrorDescription:
    return _describe(link, state, now_ms)[0]


def describe_with_loss(link: MirrorLink, state: State, now_ms: int) -> tuple[MirrorDescription, LossBound]:
    return _describe(link, state, now_ms)[:2]


def describe_with_groups(
    link: MirrorLink, state: State, now_ms: int
) -> tuple[MirrorDescription, tuple[GroupCoverageRow, ...]]:
    description, _, now_ms = _describe(link, state, now_ms)
    return description, tuple(_list_recorded_coverage(link.mirror, state, now_ms))


@CONNECTION_POOL.keep_connections()
def _describe(link: MirrorLink, state: State, now_ms: int) -> tuple[MirrorDescription, LossBound, int]:
    """The last value is the time by the clock of the process that mirrors."""
    mirror, began_s = link.mirror, time.monotonic()
    statuses = state.partitions.get(mirror.name, {})
    # Ends after positions: else a copying mirror would seem to be ahead of its source.
    with ClusterClient(link.destination, timeout_s=TIMEOUTS.describe_response_s) as destination:
        at_destination = _fetch_offsets(destination, statuses, OffsetPoint.LOG_END, OffsetPoint.START)
        (log_ends, copy_starts), observation = at_destination.points, state.find_observation(mirror.name)
        foreign_starts: dict[Partition, Offset | None] = dict.fromkeys(log_ends)
        with suppress(RemoteFault):
            foreign_starts = find_foreign_writes(destination, mirror, statuses, observation, log_ends)
    positions = find_positions(log_ends, foreign_starts)
    # High watermarks before stable ends: else records that were just committed would seem to be hidden.
    source_points = (OffsetPoint.START, OffsetPoint.HIGH_WATERMARK, OffsetPoint.STABLE_END)
    with ClusterClient(link.source, timeout_s=TIMEOUTS.describe_response_s) as source:
        at_source = _fetch_offsets(source, statuses, *source_points)
    starts, high_watermarks, ends = at_source.points
    lease, run = state.leases.get(mirror.name), state.active_run(mirror.name)
    timeout_s = TIMEOUTS.monitor_response_s
    ahead_ms = None if at_destination.problem else measure_clock_ahead_ms(link.destination, timeout_s=timeout_s)
    watcher = find_watcher_status(state, mirror.name, ahead_ms, now_ms)
    run_texts = _format_run(mirror, run, state, ahead_ms) if run else ()
    broker_now_ms = clock_skew.to_broker_clock_ms(now_ms, ahead_ms)
    leader_ahead_ms = clock_skew.find_leader_ahead_ms(now_ms, ahead_ms, state.list_leader_times_ms(mirror.name))
    now_ms = clock_skew.to_owner_clock_ms(now_ms, ahead_ms, lease, state.find_append_time_ms(lease))
    now_ms = now_ms if leader_ahead_ms is None else UNKNOWN_NOW_MS
    has_driver, is_driver_unknown = is_lease_fresh(lease, now_ms), is_lease_age_unknown(lease, now_ms)
    pending_fence, proof = state.pending_fences.get(mirror.name), state.verifications.get(mirror.name)
    rows = tuple(_describe_partitions(mirror, statuses, proof, positions, starts, ends))
    fence_texts = [
        *map(str, describe_fence(pending_fence, is_answering=bool(ends))),
        *(map(str, warn_pending_fence(pending_fence, (run.id,) if run else ())) if ends else ()),
    ]
    absent = (
        *format_absent(mirror.source, at_source.absent, statuses),
        *format_absent(mirror.destination, at_destination.absent, statuses),
    )
    problems = tuple(t for t in (at_source.problem, at_destination.problem, *absent) if t)
    sides = ((link.source, at_source.problem, ends), (link.destination, at_destination.problem, log_ends))
    silent_sides = {side.name: why for side, why, description in sides if why and not description}
    last_heartbeats = _read_heartbeats(link)
    if now_ms != UNKNOWN_NOW_MS:
        now_ms += int((time.monotonic() - began_s) * 1000)  # heartbeats were read last, seconds later
    observation = apply_current_filters(mirror, statuses, observation)
    is_stopped = mirror.desired is DesiredState.STOPPED
    loss_estimate = compute_loss(
        statuses,
        observation,
        log_ends,
        last_heartbeats,
        now_ms=now_ms,
        foreign_starts=foreign_starts,
        early_deletions={} if is_stopped else find_early_deletions(statuses.values(), copy_starts, starts),
    )
    losses = add_uncopied_behind_fence(loss_estimate.application_losses, pending_fence, statuses)
    loss_estimate = replace(loss_estimate, application_losses=losses)
    behind_s = clock_skew.find_clock_behind_s(
        now_ms, lease, observation, state.groups.get(mirror.name), last_heartbeats
    )
    lag, groups_left = _sum_lag(rows), _find_groups_left(state, mirror)
    stray_denials = describe_stray_denials(link, state, silent_sides)
    late_writes = describe_late_writes(state, mirror, statuses, observation)
    compacted = (
        DescribedFact(FactKey.COMPACTED_TOPICS, None) if problems else _make_compacted_fact(link, statuses.values())
    )
    waits = make_waits_fact(lease, has_driver=has_driver, silent_source=mirror.source if at_source.is_silent else None)
    hidden = make_hidden_fact(observation, statuses.values(), high_watermarks, ends)
    open_fence = None if run is None else state.steps.get((run.id, "fence"))
    narrowed = find_narrowed_acls(state.ledger_entries(mirror.name))
    never_copied = format_never_copied(statuses)
    uncommitted = format_all_refused(groups_left.uncommitted) if groups_left else "unknown"
    waiting_offsets = format_waiting_offsets(groups_left.uncommitted) if groups_left else "unknown"
    deleted_offsets = format_all_deleted(groups_left.uncommitted) if groups_left else "unknown"
    gap_warning = gaps_and_resume.find_gap_limit(mirror.name, statuses.values())
    missing = None if loss_estimate.missing_in_all is None else max(loss_estimate.missing_in_all, lag or 0)
    proof_figures = dict(list_proof_figures(proof, positions, list_copy_ids(statuses.values()), broker_now_ms))
    is_started = mirror.desired is DesiredState.STARTED
    paused = tuple(list_paused_topics(mirror, statuses))
    departures = state.departures.get(mirror.name, {}).values()
    leaving = sorted(list_leaving_topics(mirror, statuses) | {d.topic for d in departures if not d.is_done})
    closed = list_topics_by_access(departures, TopicAccess.CLOSED)
    closed_text = format_topics_by_access(departures, TopicAccess.CLOSED)
    unenforced = _explain_unenforced(link) if closed and not at_destination.problem else ""
    if unenforced:
        closed_text += f"; but {mirror.destination} {unenforced}: applications may write them"
    differing = find_differences(proof, statuses)
    facts = (
        DescribedFact(FactKey.MIRROR, mirror.name),
        DescribedFact(FactKey.SOURCE, mirror.source, f"{mirror.source} ({mirror.source_id})"),
        DescribedFact(FactKey.DESTINATION, mirror.destination, f"{mirror.destination} ({mirror.destination_id})"),
        DescribedFact(FactKey.PROBLEMS, problems, is_normal=not problems),
        DescribedFact(FactKey.DESIRED, mirror.desired, is_normal=is_started),
        DescribedFact(
            FactKey.OPEN_RUN, (run.id,) if run else (), "; ".join(run_texts) or "none", is_normal=run is None
        ),
        DescribedFact(
            FactKey.OPEN_RUN_FENCE,
            (open_fence.state,) if open_fence else (),
            f"{mirror.source}: step fence of {open_fence.run}, {open_fence.state}" if open_fence else "none",
            is_normal=not open_fence,
        ),
        DescribedFact(
            FactKey.OLD_SOURCE_FENCE,
            find_fence_state(pending_fence),
            "; ".join(fence_texts) or "none",
            is_normal=not fence_texts,
        ),
        DescribedFact(FactKey.WATCHER, watcher.state, str(watcher), is_normal=not watcher.alarms),
        DescribedFact(FactKey.LATE_WRITES, bool(late_writes), late_writes or "none", is_normal=not late_writes),
        DescribedFact(FactKey.STRAY_DENIALS, bool(stray_denials), stray_denials or "none", is_normal=not stray_denials),
        DescribedFact(
            FactKey.DATA_PLANE,
            None if is_driver_unknown else (lease.owner,) if lease and has_driver else (),
            format_driver(lease, has_driver=has_driver, is_unknown=is_driver_unknown),
            is_normal=has_driver or not is_started,
        ),
        waits,
        _make_lag_fact(rows, has_problems=bool(problems)),
        hidden,
        DescribedFact(
            FactKey.SOURCE_SEEN,
            loss_estimate.observed_s,
            format_observed(loss_estimate),
            is_normal=not at_source.is_silent,
        ),
        DescribedFact(
            FactKey.TOPICS_LISTED,
            loss_estimate.topics_listed_s,
            format_listed(loss_estimate),
            is_normal=loss_estimate.topics_listed_s is not None,
        ),
        DescribedFact(
            FactKey.UNCOPIED,
            None if loss_estimate.topics_listed_s is None else tuple(map(str, sorted(loss_estimate.uncopied_losses))),
            format_uncopied(loss_estimate),
            is_normal=not loss_estimate.uncopied_losses,
        ),
        DescribedFact(
            FactKey.MISSING_OFFSETS,
            missing,
            format_offsets(missing),
            is_normal=missing in (0, lag) or mirror.desired is DesiredState.STOPPED,
        ),
        DescribedFact(
            FactKey.NEVER_COPIED,
            tuple(str(p) for p, s in sorted(statuses.items()) if s.never_copied),
            never_copied or "none",
            is_normal=not never_copied,
        ),
        DescribedFact(
            FactKey.HELD_DELETIONS,
            tuple(str(p) for p, s in sorted(statuses.items()) if s.held_deletion),
            format_hold(statuses, link.config.deletion_hold_ms(mirror.name)),
            is_normal=not any(status.held_deletion for status in statuses.values()),
        ),
        DescribedFact(FactKey.PROOF, proof is not None, _format_proof(proof_figures), is_normal=proof is not None),
        DescribedFact(
            FactKey.DIFFERENCES,
            tuple(str(difference.partition) for difference in differing),
            format_differences(differing, broker_now_ms) or "none",
            is_normal=not differing,
        ),
        DescribedFact(
            FactKey.UNCOMMITTED_GROUPS,
            list_groups_by_coverage(groups_left, GroupCoverage.REFUSED),
            uncommitted or "none",
            is_normal=not uncommitted,
        ),
        DescribedFact(
            FactKey.WAITING_GROUPS,
            list_groups_by_coverage(groups_left, GroupCoverage.WAITING),
            waiting_offsets or "none",
            is_normal=not waiting_offsets,
        ),
        DescribedFact(
            FactKey.DELETED_GROUP_OFFSETS,
            list_groups_by_coverage(groups_left, GroupCoverage.DELETED),
            deleted_offsets or "none",
            is_normal=not deleted_offsets,
        ),
        DescribedFact(
            FactKey.HEARTBEATS,
            tuple(str(beat.number) for beat in last_heartbeats),
            format_heartbeats(last_heartbeats, now_ms),
            is_normal=bool(last_heartbeats) and not at_source.is_silent,
        ),
        _make_clock_fact(mirror, ahead_ms, behind_s, leader_ahead_ms),
        *_list_filter_facts(mirror),
        DescribedFact(FactKey.PAUSED_TOPICS, paused, join_limited(paused) or "none", is_normal=not paused),
        DescribedFact(
            FactKey.LEAVING_TOPICS, tuple(leaving), format_leaving_topics(mirror, leaving), is_normal=not leaving
        ),
        DescribedFact(FactKey.CLOSED_TOPICS, closed, closed_text, is_normal=not unenforced),
        DescribedFact(
            FactKey.RELEASED_TOPICS,
            list_topics_by_access(departures, TopicAccess.RELEASED),
            format_topics_by_access(departures, TopicAccess.RELEASED),
        ),
        DescribedFact(
            FactKey.GAPS,
            mirror.gaps,
            "; ".join(map(str, filter(None, (GAP_TEXTS[mirror.gaps], gap_warning)))),
            is_normal=not gap_warning,
        ),
        compacted,
        DescribedFact(
            FactKey.NARROWED_RIGHTS, tuple(map(str, narrowed)), format_narrowed_acls(narrowed), is_normal=not narrowed
        ),
        DescribedFact(
            FactKey.THROTTLE,
            mirror.throttle or 0,
            "none" if mirror.throttle is None else f"{format_bytes(mirror.throttle)}/s",
            is_normal=mirror.throttle is None,
        ),
        DescribedFact(FactKey.SOURCE_SECURITY, link.source.control.get("security.protocol", "PLAINTEXT")),
        DescribedFact(FactKey.DESTINATION_SECURITY, link.destination.control.get("security.protocol", "PLAINTEXT")),
    )
    description = MirrorDescription(
        figures=to_figure_documents(proof_figures),
        facts={fact.key: make_fact(fact.value, fact.text) for fact in facts},
        not_normal=tuple(fact.key for fact in facts if not fact.is_normal),
        silent=tuple(
            cluster
            for cluster, fetched in ((mirror.source, at_source), (mirror.destination, at_destination))
            if fetched.is_silent
        ),
        copying=None if is_driver_unknown else has_driver,
        rows=rows,
    )
    return description, loss_estimate, now_ms


def _make_clock_fact(
    mirror: Mirror, ahead_ms: int | None, behind_s: float | None, leader_ahead_ms: int | None
) -> DescribedFact:
    if leader_ahead := clock_skew.find_leader_ahead(mirror.destination, leader_ahead_ms):
        return DescribedFact(FactKey.CLOCK, ClockState.DIFFERS, str(leader_ahead), is_normal=False)
    if differing := clock_skew.find_clock_difference(mirror.destination, ahead_ms or 0):
        text = f"{differing}: ages shown here go by the brokers' clock"
        return DescribedFact(FactKey.CLOCK, ClockState.DIFFERS, text, is_normal=False)
    if behind_s is None:
        return DescribedFact(FactKey.CLOCK, ClockState.NOT_BEHIND, "not seen to be behind")
    text = str(clock_skew.explain_clock_behind(mirror.name, behind_s))
    return DescribedFact(FactKey.CLOCK, ClockState.BEHIND, text, is_normal=False)


def _describe_partitions(
    mirror: Mirror,
    statuses: Mapping[Partition, PartitionStatus],
    proof: MirrorVerification | None,
    positions: Mapping[Partition, Offset],
    starts: Mapping[Partition, Offset],
    ends: Mapping[Partition, Offset],
) -> Iterator[PartitionDescription]:
    verified = read_verified(proof, list_copy_ids(statuses.values()))
    for partition, status in sorted(statuses.items()):
        end, position = ends.get(partition), positions.get(partition)
        yield PartitionDescription(
            partition=str(partition),
            state=status.state,
            position=position,
            source_start=starts.get(partition),
            source_end=end,
            lag=None if end is None or position is None else end - position,
            lmo=status.lmo,
            verified_end=verified[partition].end if partition in verified else None,
            kind=status.kind,
            reason=format_failure_reason(status, mirror),
            never_copied=status.never_copied,
            source_topic_id=status.source_topic_id or None,
            destination_topic_id=status.destination_topic_id or None,
        )


def _list_recorded_coverage(mirror: Mirror, state: State, now_ms: int) -> list[GroupCoverageRow]:
    statuses, left = state.partitions.get(mirror.name, {}), _find_groups_left(state, mirror)
    own_offsets = state.group_offsets.get(mirror.name, {}).values()
    return list_group_coverage(mirror, statuses, own_offsets, left, state.find_group_sync(mirror.name), now_ms)


def _find_groups_left(state: State, mirror: Mirror) -> UnsyncedGroups | None:
    """None if unknown: no group is recorded as left, and no sync covered all groups."""
    recorded = state.uncommitted_groups.get(mirror.name, UnsyncedGroups(mirror=mirror.name))
    return recorded if recorded.uncommitted or state.find_group_sync(mirror.name) else None


def _sum_lag(rows: Collection[PartitionDescription]) -> int | None:
    lags = [row.lag for row in rows if row.state is PartitionState.MIRRORING]
    return None if not lags or None in lags else sum(max(0, lag or 0) for lag in lags)


def _list_filter_facts(mirror: Mirror) -> Iterator[DescribedFact]:
    for key in (
        *(FactKey.TOPICS, FactKey.EXCLUDE_TOPICS, FactKey.GROUPS, FactKey.EXCLUDE_GROUPS, FactKey.PRINCIPALS),
        *(FactKey.EXCLUDE_PRINCIPALS, FactKey.EXCLUDE_RIGHTS, FactKey.EXCLUDE_SETTINGS, FactKey.REPLICATION_FACTOR),
    ):
        value: str | tuple[str, ...] = getattr(mirror, key)
        separator = ", " if key is FactKey.EXCLUDE_RIGHTS else " "
        yield DescribedFact(key, value, value if isinstance(value, str) else separator.join(value) or "none")


def _make_lag_fact(rows: Collection[PartitionDescription], *, has_problems: bool) -> DescribedFact:
    lag, states = _sum_lag(rows), [row.state for row in rows]
    if rows and PartitionState.MIRRORING not in states:
        return DescribedFact(FactKey.LAG, None, "none: nothing is copied")
    text = format_lag(lag, left_out=len(rows) - states.count(PartitionState.MIRRORING))
    return DescribedFact(FactKey.LAG, lag, text, is_normal=lag == 0 if lag is not None else has_problems)


def _format_proof(figures: Figures) -> str:
    share = format_share(figures, FigureKey.PROVED_OFFSETS, FigureKey.PROVABLE_OFFSETS)
    ages = {key: figures[key] for key in (FigureKey.NEWEST_PROOF_S, FigureKey.OLDEST_PROOF_S) if key in figures}
    return f"{share}; {format_figures(ages)}" if ages else share


def _format_run(mirror: Mirror, run: Run, state: State, clock_ahead_ms: int | None) -> tuple[str, ...]:
    conductor = find_conductor_status(state, run, clock_ahead_ms)
    stalled = find_stalled_run(
        mirror, run, find_run_progress(run, state.steps_of(run)), conductor, list_run_verbs(state, run)
    )
    return (str(stalled) if stalled else f"{run.plan.kind} {run.id}",)


def _explain_unenforced(link: MirrorLink) -> str:
    try:
        with ClusterClient(link.destination, timeout_s=TIMEOUTS.describe_response_s) as client:
            return explain_unenforced(client)
    except MirrorError as error:
        return f"may not keep them closed ({error})"


def _read_heartbeats(link: MirrorLink) -> tuple[Heartbeat, ...]:
    try:
        return read_newest_heartbeats(
            link.destination, get_heartbeat_topic(link.mirror.name), timeout_s=TIMEOUTS.describe_response_s
        )
    except RemoteFault:
        return ()  # reported as trouble already


def _make_compacted_fact(link: MirrorLink, statuses: Iterable[PartitionStatus]) -> DescribedFact:
    """ADR 0009."""
    names = sorted({s.partition.topic for s in statuses if s.state is not PartitionState.STOPPED})
    if not names:
        return DescribedFact(FactKey.COMPACTED_TOPICS, ())
    try:
        with (
            ClusterClient(link.source, timeout_s=TIMEOUTS.describe_response_s) as source,
            ClusterClient(link.destination, timeout_s=TIMEOUTS.describe_response_s) as destination,
        ):
            compacted = [
                name for name, configs in describe_configs(source, names).items() if is_compacted(configs.effective)
            ]
            destination_configs = describe_configs(destination, compacted)
    except RemoteFault as error:
        return DescribedFact(FactKey.COMPACTED_TOPICS, None, f"unknown: {error}", is_normal=False)
    growing = [
        name
        for name in compacted
        if name in destination_configs and not is_compacted(destination_configs[name].effective)
    ]
    begin_text = (
        f"{len(compacted)}, of which {len(growing)} not cleaned on {link.mirror.destination}, and growing by all"
        " that is "
    )
    if not growing:
        text = str(len(compacted)) if compacted else "none"
        return DescribedFact(FactKey.COMPACTED_TOPICS, tuple(compacted), text)
    if link.mirror.gaps is GapFilling.HIDDEN:
        text = f"{begin_text}written, until promotion: hidden records have no key"
    else:
        until_text = f"until a `mirrorbook sync {link.mirror.name}` finds the copy caught up"
        text = f"{begin_text}written, {until_text}: {join_limited(growing)}"
    return DescribedFact(FactKey.COMPACTED_TOPICS, tuple(compacted), text, is_normal=False)


@dataclass(frozen=True, slots=True)
class _FetchedOffsets:
    points: tuple[dict[Partition, Offset], ...]
    problem: str = ""
    absent: frozenset[Partition] = frozenset()
    is_silent: bool = False


def _fetch_offsets(client: ClusterClient, partitions: Iterable[Partition], *points: OffsetPoint) -> _FetchedOffsets:
    wanted = list(partitions)
    no_offsets: tuple[dict[Partition, Offset], ...] = tuple({} for _ in points)
    if not wanted:
        return _FetchedOffsets(no_offsets)
    try:
        present_partitions = check_presence(client, wanted)
        present = [p for p in wanted if p not in present_partitions.absent and p not in present_partitions.denied]
        results = [list_available_offsets(client, present, point, within_s=TIMEOUTS.new_leader_s) for point in points]
        leaderless = sorted({p for result in results for p in result.offline})
        problems = [f"cluster {client.name}: no leader for {join_limited(leaderless)}"] if leaderless else []
        problems += (
            [str(describe_denied_error(client, {p.topic for p in present_partitions.denied}))]
            if present_partitions.denied
            else []
        )
        offsets = tuple(dict(result.offsets) for result in results)
        return _FetchedOffsets(offsets, "; ".join(problems), present_partitions.absent)
    except RemoteFault as error:
        is_silent = isinstance(error, Unreachable) and not isinstance(error, ConnectionRejected)
        return _FetchedOffsets(no_offsets, str(error), is_silent=is_silent)
