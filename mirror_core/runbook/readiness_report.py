"""What would happen if a mirror were failed over now. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from msgspec import UNSET

from mirror_core.decide.clock_skew import from_owner_clock_ms, to_broker_clock_ms
from mirror_core.decide.failover_readiness import (
    FreshnessKind,
    PointWeight,
    Readiness,
    ReadinessPoint,
    UnplannedForecast,
    count_never_compared,
    list_drift_points,
    list_newest_times,
    list_plan_points,
    list_staleness_points,
    list_uncompared_points,
    to_newest_times,
)
from mirror_core.decide.gaps_and_resume import find_gap_limit
from mirror_core.decide.run_status import find_newest_run, find_run_progress, is_conducted
from mirror_core.decide.verification import find_differences
from mirror_core.decide.write_access import has_moved_applications
from mirror_core.kafka.cluster_info import measure_clock_ahead_ms
from mirror_core.kafka.config import ClusterConfig
from mirror_core.mirrors.preflight import RightStatus, check_cluster
from mirror_core.model.errors import MirrorError
from mirror_core.model.findings import Finding
from mirror_core.model.forecast import PlanForecast
from mirror_core.model.json_documents import to_finding_documents
from mirror_core.model.names import MirrorName
from mirror_core.model.timing import CLOCK_TIMEOUT_S, now_ms
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.run_services import Services
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.run_heartbeat import find_conductor_status
from mirror_core.state.state_records import STATE_TOPIC, State
from mirror_core.state.watcher_heartbeat import find_watcher_status
from mirror_core.sync.mirror_sync import preview_sync


def assess_readiness(
    link: MirrorLink,
    state: State,
    services: Services,
    *,
    with_drift: bool,
    read_ms: int | None = None,
    current: bool = True,
) -> Readiness:
    begun, name = now_ms(), link.mirror.name
    run = state.active_run(name)
    try:
        decision, unplanned = Failover(link, services, started_by="readiness").decide_both_modes()
        points, figures, foretold = [*list_plan_points(decision)], decision.plan.figures, decision.plan.forecast
        source_seen = decision.source_seen
    except MirrorError as error:
        reason = Finding("plan_impossible", name, reason=error)
        points, figures, foretold = [ReadinessPoint(PointWeight.REFUSAL, reason)], {}, UNSET
        unplanned, source_seen = UnplannedForecast(refused=to_finding_documents([reason])), True
    statuses = state.partitions.get(name, {})
    ahead_ms = measure_clock_ahead_ms(link.destination, timeout_s=CLOCK_TIMEOUT_S) if current else None
    points += find_recorded_points(name, state, to_broker_clock_ms(begun, ahead_ms))
    # After a failover neither drift nor the data plane's rights matter: nothing is copied until a failback.
    if with_drift and not has_moved_applications(
        link.mirror, state.pending_fences.get(name), find_newest_run(name, state.runs.values())
    ):
        points += _list_cluster_points(link, state, source_seen=source_seen)
    return Readiness(
        mirror=link.mirror,
        run_progress=find_run_progress(run, state.steps_of(run)) if run else None,
        is_conducted=is_conducted(find_conductor_status(state, run, ahead_ms)) if run and current else None,
        watcher=find_watcher_status(state, name, ahead_ms, begun if read_ms is None else read_ms) if current else None,
        points=tuple(points),
        figures=figures,
        predicted_s=foretold.seconds if isinstance(foretold, PlanForecast) else None,
        newest_ms=to_newest_times(_read_known_times(name, state), statuses),
        differing_partitions=len(find_differences(state.verifications.get(name), statuses)),
        unplanned=unplanned,
        at_ms=begun,
    )


def find_recorded_points(name: MirrorName, state: State, now_ms: int) -> Iterator[ReadinessPoint]:
    """`now_ms`: by the brokers' clock."""
    yield from list_staleness_points(name, _read_known_times(name, state), now_ms)
    statuses = state.partitions.get(name, {})
    yield from list_uncompared_points(name, count_never_compared(state.verifications.get(name), statuses))
    if state.log_start_offset:
        deleted = Finding("state_records_deleted", name, topic=STATE_TOPIC, before=state.log_start_offset)
        yield ReadinessPoint(PointWeight.WARNING, deleted)
    if (mirror := state.mirrors.get(name)) is not None and not mirror.is_recorded_in(state.topic_id):
        yield ReadinessPoint(PointWeight.WARNING, Finding("state_topic_replaced", name, topic=STATE_TOPIC))
    if gap_limit := find_gap_limit(name, statuses.values()):
        yield ReadinessPoint(PointWeight.WARNING, gap_limit)


def _read_known_times(name: MirrorName, state: State) -> dict[FreshnessKind, int]:
    groups, proof = state.find_group_sync(name), state.verifications.get(name)
    if groups is not None:
        lease = state.leases.get(name)  # the sync began long before its record was appended
        synced_ms = from_owner_clock_ms(groups.synced_ms, lease, state.find_append_time_ms(lease))
        groups = replace(groups, synced_ms=synced_ms)
    return dict(list_newest_times(name, groups, proof, iter(state.runs.values()), state.partitions.get(name, {})))


def _list_cluster_points(link: MirrorLink, state: State, *, source_seen: bool) -> Iterator[ReadinessPoint]:
    if source_seen:
        yield from _find_drift(link, state)
        yield from find_missing_rights(link)
    else:
        yield ReadinessPoint(PointWeight.UNKNOWN, Finding("silent_source_unseen", link.source.name))
        yield from _find_missing_rights(link.destination, "destination")


def _find_drift(link: MirrorLink, state: State) -> Iterator[ReadinessPoint]:
    try:
        yield from list_drift_points(link.mirror.name, preview_sync(link, state).rows)
    except MirrorError as error:
        yield ReadinessPoint(PointWeight.UNKNOWN, Finding("drift_unknown", link.mirror.name, reason=error))


def find_missing_rights(link: MirrorLink) -> Iterator[ReadinessPoint]:
    for side, role in ((link.source, "source"), (link.destination, "destination")):
        yield from _find_missing_rights(side, role)


def _find_missing_rights(side: ClusterConfig, role: str) -> Iterator[ReadinessPoint]:
    try:
        cluster_check = check_cluster(side)
    except MirrorError as error:
        yield ReadinessPoint(PointWeight.UNKNOWN, Finding("rights_unknown", side.name, reason=error))
        return
    lacking = [
        f"{right.user} lacks {right.operation} on {right.resource}"
        for right in cluster_check.rights
        if right.role == role and right.verdict is RightStatus.MISSING
    ]
    if lacking:
        yield ReadinessPoint(PointWeight.WARNING, Finding("rights_lacking", side.name, lacking=lacking))
    if cluster_check.expiring_producers and role == "destination":
        brokers = [finding.subject for finding in cluster_check.expiring_producers]
        finding = Finding("destination_forgets_producers", side.name, brokers=brokers)
        yield ReadinessPoint(PointWeight.WARNING, finding)
