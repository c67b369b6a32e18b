"""`mirrorbook mirror list`: one line per mirror."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

from mirror_core.cli.command_options import (
    ConfigOption,
    JsonOption,
    load_configuration,
    print_json,
    refuse_incomplete_list,
)
from mirror_core.cli.mirror_headline import list_attention
from mirror_core.cli.output import print_line
from mirror_core.cli.tables import fits_terminal, print_table
from mirror_core.copy.log_inspection import find_foreign_writes
from mirror_core.decide.clock_skew import (
    compute_age_s,
    find_leader_ahead,
    find_leader_ahead_ms,
    to_broker_clock_ms,
    to_owner_clock_ms,
)
from mirror_core.decide.deletion_hold import find_early_deletions
from mirror_core.decide.fence_state import FenceState, explain_restored, find_fence_state
from mirror_core.decide.loss_bound import compute_loss, find_oldest
from mirror_core.decide.mirror_change import apply_current_filters, list_paused_topics
from mirror_core.decide.steps import WriteLocation
from mirror_core.decide.verification import find_differences, read_verified
from mirror_core.decide.write_access import OperatorAction, WriteAccess, drop_past_location
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.cluster_info import measure_clock_ahead_ms
from mirror_core.kafka.config import ClusterConfig, Config
from mirror_core.kafka.connection_pool import CONNECTION_POOL
from mirror_core.kafka.log_offsets import OffsetPoint, list_available_offsets
from mirror_core.mirrors.old_source_fence import find_returned_source
from mirror_core.model.errors import MirrorError, RemoteFault, Unreachable
from mirror_core.model.figures import UNKNOWN_TEXT
from mirror_core.model.findings import Finding
from mirror_core.model.json_documents import FindingDocument, JsonDocument, prints_json, to_finding_documents
from mirror_core.model.mirror import (
    DesiredState,
    Mirror,
    PartitionState,
    PartitionStatus,
    is_lease_age_unknown,
    is_lease_fresh,
    list_copy_ids,
)
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition, get_base_name
from mirror_core.model.run import RunKind
from mirror_core.model.text import format_elapsed
from mirror_core.model.timing import TIMEOUTS, UNKNOWN_NOW_MS, now_ms
from mirror_core.runbook.run_outcome import explain_unseen_home, find_recorded_access, read_write_access
from mirror_core.state.active_cluster import ActiveCluster, read_newest_announcements
from mirror_core.state.mirror_link import list_both_directions, make_mirror_link, read_states
from mirror_core.state.state_records import STATE_TOPIC, State


class MirrorActivity(StrEnum):
    """What a mirror does now. Capitals mark a problem."""

    COPIED = "copied"
    NOT_COPIED = "NOT COPIED"
    """It is started, but no data plane runs."""
    UNKNOWN = "unknown"
    """It is started, and clocks contradict each other: whether a data plane runs is not known."""
    PAUSED = "paused"
    STOPPED = "stopped"
    FAILING_OVER = "failing over"
    FAILING_BACK = "failing back"
    FAILED_OVER = "failed over"
    IDLE = "idle"
    """A reverse mirror while applications write on their home cluster."""


class MirrorListRow(msgspec.Struct, frozen=True, kw_only=True):
    """A mirror, as its destination's state topic and log ends show it."""

    name: str
    source: str
    destination: str
    source_cluster_id: str
    """Recorded when it was created, as in the field below."""
    destination_cluster_id: str
    desired: DesiredState
    """As the operator wants it."""
    activity: MirrorActivity
    writes: WriteLocation | None
    """Where applications may write, as the state topic records it. Null: not recorded."""
    writes_on: ClusterName | None
    """Null: nowhere, or not known."""
    open_run: str | None
    """The run that holds the mirror."""
    behind_s: float | None
    """Seconds behind the source, of the partition furthest behind. Null: unknown, or the mirror is STOPPED."""
    oldest_proof_s: float | None
    """Seconds since the least recently compared partition was compared. Null: unknown, or none was compared."""
    unproved: int
    """Number of partitions with records that were never compared."""
    troubles: tuple[FindingDocument, ...]
    """The worst one first."""
    partitions: int
    failed: int
    """FAILED partitions."""
    topics: tuple[str, ...]
    """Regular expressions, as in the fields below."""
    exclude_topics: tuple[str, ...]
    groups: tuple[str, ...]
    exclude_groups: tuple[str, ...]
    principals: tuple[str, ...]
    exclude_principals: tuple[str, ...]
    exclude_rights: tuple[str, ...]
    exclude_settings: tuple[str, ...]
    replication_factor: str
    """Replicas of topics that are created: `source`, `default` (the destination's brokers'), or a number."""
    paused_topics: tuple[str, ...]


class SilentCluster(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that did not answer."""

    cluster: str
    error: str
    is_down: bool
    """No broker answers; else it refuses us."""


class UnreadableKey(msgspec.Struct, frozen=True, kw_only=True):
    """An unreadable record of a state topic."""

    cluster: str
    key: str
    error: str


class MirrorsDocument(JsonDocument, frozen=True, kw_only=True):
    """All known mirrors. Incomplete if `silent` or `unreadable` is not empty."""

    mirrors: tuple[MirrorListRow, ...]
    returned: tuple[FindingDocument, ...]
    """What old sources have taken that answer and are not fenced."""
    unseen: tuple[FindingDocument, ...]
    """What is known of mirrors whose state is on a silent cluster."""
    silent: tuple[SilentCluster, ...]
    unreadable: tuple[UnreadableKey, ...]


@dataclass(frozen=True, slots=True)
class DestinationView:
    """Outside its state topic."""

    now_ms: int
    """This machine's clock."""
    clock_ahead_ms: int | None = None
    log_ends: Mapping[Partition, Offset] = field(default_factory=dict)
    foreign_starts: Mapping[Partition, Offset | None] = field(default_factory=dict)
    """Where somebody else has written them. None: not known."""
    log_starts: Mapping[Partition, Offset] = field(default_factory=dict)


@prints_json(MirrorsDocument)
@CONNECTION_POOL.keep_connections()
def list_command(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """All mirrors that the configured clusters know. Exit code 4 if a cluster did not answer."""
    configuration = load_configuration(config)
    silent, unreadable, states = list[SilentCluster](), list[UnreadableKey](), dict[ClusterName, State]()
    views = dict[ClusterName, DestinationView]()
    for cluster, state_or_error in read_states(configuration):
        if isinstance(state_or_error, MirrorError):
            is_down = isinstance(state_or_error, Unreachable)
            silent.append(SilentCluster(cluster=cluster, error=str(state_or_error), is_down=is_down))
            continue
        states[cluster] = state_or_error
        views[cluster] = _view_destination(configuration.clusters[cluster], state_or_error)
        unreadable += [
            UnreadableKey(cluster=cluster, key=key, error=error) for key, error in state_or_error.unreadable.items()
        ]
    down = [row.cluster for row in silent if row.is_down]
    rows = [
        make_mirror_row(
            mirror, cluster, states, views[cluster], _find_access(configuration, mirror, states, down), down=down
        )
        for cluster, state in states.items()
        for mirror in state.mirrors.values()
    ]
    rows.sort(key=lambda row: row.name)
    answering = [configuration.clusters[name] for name in states]
    announced = read_newest_announcements(answering, TIMEOUTS.plan_state_s) if silent else {}
    unseen = [
        explain_unseen_home(mirror, announced.get(get_base_name(mirror.name)))
        for row in rows
        if row.activity is MirrorActivity.IDLE and row.source not in states
        for mirror in [states[ClusterName(row.destination)].mirrors[MirrorName(row.name)]]
    ]
    if silent:
        known = {row.name for row in rows} | {finding.subject for finding in unseen}
        unseen += _list_announced(announced, known)
    returned = _list_returned(configuration, states, down)
    if as_json:
        print_json(
            MirrorsDocument(
                mirrors=tuple(rows),
                returned=to_finding_documents(returned),
                unseen=to_finding_documents(unseen),
                silent=tuple(silent),
                unreadable=tuple(unreadable),
            )
        )
    else:
        for line in (line for finding in returned for line in list_attention(finding)):
            print_line(line)
        print_mirrors(rows, unseen, [row.cluster for row in silent])
    unknown = [*map(str, unseen), *(row.error for row in silent)]
    unknown += [f"cluster {r.cluster}, state topic {STATE_TOPIC}, key {r.key}: {r.error}" for r in unreadable]
    refuse_incomplete_list("mirrors", unknown)


def _list_returned(
    configuration: Config, states: Mapping[ClusterName, State], down: Collection[str]
) -> tuple[Finding, ...]:
    pairs = {
        (get_base_name(mirror.name), *sorted((mirror.source, mirror.destination))): mirror
        for cluster, state in states.items()
        for mirror in state.mirrors.values()
        if mirror.destination == cluster and mirror.source in configuration.clusters
    }
    found = (find_returned_source(make_mirror_link(configuration, pairs[pair]), states, down) for pair in sorted(pairs))
    return tuple(finding for finding in found if finding is not None)


def _list_announced(newest: Mapping[MirrorName, ActiveCluster], known: Collection[str]) -> list[Finding]:
    return [
        Finding("active_was_announced", entry.active, run=entry.run, since_ms=entry.since_ms, mirror=name)
        for name, entry in sorted(newest.items())
        if name not in known
    ]


_ARROW: Final = " → "
_COLUMNS: Final = ("name", "from → to", "writes on", "state", "behind", "proof age", "trouble")
_SHORT_COLUMNS: Final = ("name", "from → to (* writes)", *_COLUMNS[3:])
"""For long names on a narrow terminal."""


def print_mirrors(rows: Sequence[MirrorListRow], unseen: Iterable[Finding] = (), silent: Collection[str] = ()) -> None:
    """`unseen`: of mirrors whose state is on a silent cluster."""
    cells = [*map(_to_cells, rows), *map(_to_unseen_cells, unseen)]
    if fits_terminal(_COLUMNS, cells):
        print_table("Mirrors", _COLUMNS, cells, silent)
    else:
        short_cells = [(name, _mark_writes(route, writes), *others) for name, route, writes, *others in cells]
        print_table("Mirrors", _SHORT_COLUMNS, short_cells)
        if any("(?)" in route for _, route, *_ in short_cells):
            print_line("(?): it is not known where applications write.")
    if any(len(row.troubles) > 1 for row in rows):
        print_line("+1: one more trouble. `mirrorbook mirror describe NAME` shows all.")


def _mark_writes(route: str, writes_on: str) -> str:
    if writes_on == UNKNOWN_TEXT != route:
        return f"{route} (?)"
    return _ARROW.join(f"{cluster}*" if cluster == writes_on else cluster for cluster in route.split(_ARROW))


def _to_unseen_cells(finding: Finding) -> tuple[str, ...]:
    values, unread = finding.values, (UNKNOWN_TEXT,) * 4
    if "destination" not in values:
        return str(values["mirror"]), UNKNOWN_TEXT, *unread, str(Finding("state_unread"))
    route = f"{values['source']}{_ARROW}{values['destination']}"
    return str(finding.subject), route, *unread, str(Finding("cluster_down", values["destination"]))


def _to_cells(row: MirrorListRow) -> tuple[str, ...]:
    return (
        row.name,
        f"{row.source}{_ARROW}{row.destination}",
        _format_writes(row),
        row.activity,
        _format_behind(row),
        _format_proof(row),
        _format_troubles(row),
    )


def _format_writes(row: MirrorListRow) -> str:
    """Empty for an idle reverse mirror: the mirror that it led home tells."""
    if row.activity is MirrorActivity.IDLE:
        return ""
    return row.writes_on or ("NOWHERE" if row.writes is WriteLocation.NOWHERE else UNKNOWN_TEXT)


def _format_behind(row: MirrorListRow) -> str:
    if row.behind_s is not None:
        return format_elapsed(row.behind_s)
    return "" if row.desired is DesiredState.STOPPED else UNKNOWN_TEXT


def _format_proof(row: MirrorListRow) -> str:
    if row.activity is MirrorActivity.IDLE:
        return ""
    if row.oldest_proof_s is None:
        return "never" if row.unproved else ""
    return "in part" if row.unproved else format_elapsed(row.oldest_proof_s)


def _format_troubles(row: MirrorListRow) -> str:
    if not row.troubles:
        return ""
    others = len(row.troubles) - 1
    return row.troubles[0].text + (f" +{others}" if others else "")


def _view_destination(cluster: ClusterConfig, state: State) -> DestinationView:
    mirrors = [mirror for mirror in state.mirrors.values() if mirror.destination == cluster.name]
    wanted = [partition for mirror in mirrors for partition in state.partitions.get(mirror.name, {})]
    log_ends, log_starts = dict[Partition, Offset](), dict[Partition, Offset]()
    foreign_starts = dict[Partition, Offset | None]()
    try:
        with ClusterClient(cluster, timeout_s=TIMEOUTS.describe_response_s) as client:
            log_ends = dict(list_available_offsets(client, wanted, OffsetPoint.LOG_END).offsets) if wanted else {}
            log_starts = dict(list_available_offsets(client, log_ends, OffsetPoint.START).offsets) if log_ends else {}
            for mirror in mirrors:
                statuses = state.partitions.get(mirror.name, {})
                observation = state.find_observation(mirror.name)
                foreign_starts |= find_foreign_writes(client, mirror, statuses, observation, log_ends)
    except RemoteFault:
        log_ends = {}  # shown as unknown
    ahead_ms = measure_clock_ahead_ms(cluster, timeout_s=TIMEOUTS.monitor_response_s)
    return DestinationView(now_ms(), ahead_ms, log_ends, foreign_starts, log_starts)


def _find_access(
    configuration: Config, mirror: Mirror, states: Mapping[ClusterName, State], down: Collection[str]
) -> WriteAccess | None:
    """Asks for fences that may have been lifted."""
    recorded = find_recorded_access(mirror, states)
    if recorded is None or recorded.cluster is not None or mirror.source not in configuration.clusters:
        return recorded
    if recorded.run is None and recorded.writes is None:
        return recorded
    link = make_mirror_link(configuration, mirror)
    try:
        state, is_silent = states[mirror.destination], mirror.source in down
        return read_write_access(link, state, is_source_silent=is_silent, is_copying=True)
    except MirrorError:
        return recorded


def make_mirror_row(
    mirror: Mirror,
    cluster: ClusterName,
    states: Mapping[ClusterName, State],
    view: DestinationView,
    found_access: WriteAccess | None,
    *,
    down: Collection[str] = (),
) -> MirrorListRow:
    """`cluster`: the one whose state topic records the mirror. `down`: clusters of which no broker answers."""
    state = states[cluster]
    statuses = state.partitions.get(mirror.name, {})
    open_run = state.active_run(mirror.name)
    access = drop_past_location(found_access) if found_access else None
    lease = state.leases.get(mirror.name)
    leader_ahead_ms = find_leader_ahead_ms(view.now_ms, view.clock_ahead_ms, state.list_leader_times_ms(mirror.name))
    owner_now_ms = to_owner_clock_ms(view.now_ms, view.clock_ahead_ms, lease, state.find_append_time_ms(lease))
    owner_now_ms = owner_now_ms if leader_ahead_ms is None else UNKNOWN_NOW_MS
    activity = _find_activity(mirror, access, is_copying=is_lease_fresh(lease, owner_now_ms))
    if activity is MirrorActivity.NOT_COPIED and is_lease_age_unknown(lease, owner_now_ms):
        activity = MirrorActivity.UNKNOWN
    log_ends = {p: end for p, end in view.log_ends.items() if p in statuses}
    verified = read_verified(state.verifications.get(mirror.name), list_copy_ids(statuses.values()))
    proof_times_ms = [verified[p].at_ms for p in statuses if p in verified]
    broker_now_ms = to_broker_clock_ms(view.now_ms, view.clock_ahead_ms)
    troubles = _list_troubles(mirror, states, state, access, is_source_down=mirror.source in down)
    return MirrorListRow(
        name=mirror.name,
        source=mirror.source,
        destination=mirror.destination,
        source_cluster_id=mirror.source_id,
        destination_cluster_id=mirror.destination_id,
        desired=mirror.desired,
        activity=activity,
        writes=access.writes if access else None,
        writes_on=access.cluster if access else None,
        open_run=open_run.id if open_run else None,
        behind_s=(
            None if mirror.desired is DesiredState.STOPPED else _find_behind_s(mirror, state, view, owner_now_ms)
        ),
        oldest_proof_s=compute_age_s(broker_now_ms, min(proof_times_ms)) if proof_times_ms else None,
        unproved=sum(end > 0 and p not in verified for p, end in log_ends.items()),
        troubles=to_finding_documents([*troubles, *filter(None, [find_leader_ahead(cluster, leader_ahead_ms)])]),
        partitions=len(statuses),
        failed=sum(s.state is PartitionState.FAILED for s in statuses.values()),
        topics=mirror.topics,
        exclude_topics=mirror.exclude_topics,
        groups=mirror.groups,
        exclude_groups=mirror.exclude_groups,
        principals=mirror.principals,
        exclude_principals=mirror.exclude_principals,
        exclude_rights=mirror.exclude_rights,
        exclude_settings=mirror.exclude_settings,
        replication_factor=mirror.replication_factor,
        paused_topics=mirror.paused_topics,
    )


def _find_activity(mirror: Mirror, access: WriteAccess | None, *, is_copying: bool) -> MirrorActivity:
    if access is not None and access.run is not None:
        is_failover = access.run.kind is RunKind.FAILOVER
        return MirrorActivity.FAILING_OVER if is_failover else MirrorActivity.FAILING_BACK
    if access is not None and access.action is OperatorAction.SHOW_HOME_MIRROR:
        return MirrorActivity.IDLE
    if access is not None and access.writes is WriteLocation.DESTINATION:
        return MirrorActivity.FAILED_OVER
    match mirror.desired:
        case DesiredState.STARTED:
            return MirrorActivity.COPIED if is_copying else MirrorActivity.NOT_COPIED
        case DesiredState.PAUSED:
            return MirrorActivity.PAUSED
        case DesiredState.STOPPED:
            return MirrorActivity.STOPPED


def _find_behind_s(mirror: Mirror, state: State, view: DestinationView, owner_now_ms: int) -> float | None:
    statuses = state.partitions.get(mirror.name, {})
    observation = apply_current_filters(mirror, statuses, state.find_observation(mirror.name))
    bound = compute_loss(
        statuses,
        observation,
        {p: end for p, end in view.log_ends.items() if p in statuses},
        (),
        now_ms=owner_now_ms,
        foreign_starts=view.foreign_starts,
        early_deletions=find_early_deletions(statuses.values(), view.log_starts),
    )
    # Topics that the filters have just taken in are unknown until all were listed.
    return find_oldest([bound.topics_listed_s, bound.furthest_behind[1].behind_s]) if bound.furthest_behind else None


def is_failed(status: PartitionStatus) -> bool:
    """Also if it was promoted as it was."""
    is_promoted = status.state is PartitionState.STOPPED and status.kind is not None
    return status.state is PartitionState.FAILED or is_promoted


def _list_troubles(
    mirror: Mirror,
    states: Mapping[ClusterName, State],
    state: State,
    access: WriteAccess | None,
    *,
    is_source_down: bool,
) -> Iterator[Finding]:
    """Most urgent first: a cluster that is down may need no action."""
    statuses = state.partitions.get(mirror.name, {})
    if access is not None and access.writes is WriteLocation.NOWHERE:
        yield Finding("writes_nowhere", mirror.name)
    if access is not None and access.run is not None:
        yield Finding("run_at_step", access.run.id, step=access.run.step, step_state=access.run.step_state)
    for recorded, recorded_state in list_both_directions(mirror, states):
        pending_fence = recorded_state.pending_fences.get(recorded.name)
        if find_fence_state(pending_fence) is FenceState.PENDING:
            yield Finding("source_not_fenced", recorded.source)
        if pending_fence is not None and pending_fence.restored is not None:
            yield explain_restored(recorded.source, pending_fence.restored)
    if is_source_down:
        yield Finding("cluster_down", mirror.source)
    is_idle = access is not None and access.action is OperatorAction.SHOW_HOME_MIRROR
    if failed := [p for p, status in statuses.items() if is_failed(status) and not is_idle]:
        yield Finding("failed_partitions", mirror.name, partitions=sorted(failed), count=len(failed))
    if paused := list_paused_topics(mirror, statuses):
        yield Finding("paused_topics", mirror.name, topics=paused)
    if differing := find_differences(state.verifications.get(mirror.name), statuses):
        partitions = sorted({difference.partition for difference in differing})
        yield Finding("differing_partitions", mirror.name, partitions=partitions, count=len(partitions))
    if incomplete := [p for p, status in statuses.items() if status.never_copied]:
        yield Finding("incomplete_partitions", mirror.name, partitions=sorted(incomplete), count=len(incomplete))
