"""What can be done about FAILED partitions, and its cost. Changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mirror_core.decide.command_rules import explain_held_by
from mirror_core.decide.failure_remedies import (
    ACTION_EFFECTS,
    DIVERGENT_KINDS,
    REMEDIES,
    RecoveryAction,
    TopicCondition,
    explain_blockers,
    find_current_kind,
)
from mirror_core.decide.filters import parse_topic_filter
from mirror_core.kafka.client import ClusterClient, ClusterMetadata
from mirror_core.kafka.consumer_groups import fetch_group_offsets, list_groups
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets, list_offsets
from mirror_core.kafka.log_snapshot import fetch_log_sizes
from mirror_core.model.errors import HeldByRun, MirrorError, RemoteFault
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import FailureKind, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.model.parity_verdict import ParityRange
from mirror_core.model.run import Run
from mirror_core.model.text import format_count
from mirror_core.model.timing import TIMEOUTS
from mirror_core.state.lease import observe_live_lease
from mirror_core.state.mirror_link import MirrorLink, check_cluster_ids, list_both_directions, make_mirror_link
from mirror_core.state.point_of_no_return import list_run_verbs
from mirror_core.state.run_heartbeat import observe_conductor
from mirror_core.state.state_records import State


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryProposal:
    status: PartitionStatus
    kind: FailureKind
    position: Offset | None
    """Destination's log end."""
    action: RecoveryAction
    blockers: tuple[str, ...]

    @property
    def partition(self) -> Partition:
        return self.status.partition

    @property
    def lost(self) -> ParityRange | None:
        """From where both sides differ, or all."""
        start = self.status.failed_at if self.kind in DIVERGENT_KINDS else Offset(0)
        if self.action is not RecoveryAction.RECOPY or self.kind is FailureKind.GAP_LIMIT or self.position is None:
            return None
        return ParityRange(partition=self.partition, start=min(start or Offset(0), self.position), end=self.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecopyCost:
    """In offsets: records at most."""

    topic: str
    destination_id: str | None
    partitions: int
    deleted: int
    deleted_bytes: int | None
    """Bytes of one replica."""
    copied: int
    copied_bytes: int | None
    groups: tuple[str, ...] | None
    """They lose committed offsets."""
    active_groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    proposals: tuple[RecoveryProposal, ...]
    costs: tuple[RecopyCost, ...]
    destination_only: tuple[ParityRange, ...] = ()
    """In other partitions of recopied topics."""

    @property
    def lost(self) -> tuple[ParityRange, ...]:
        recopied_topics = {p.partition.topic for p in self.actionable if p.action is RecoveryAction.RECOPY}
        own_ranges = tuple(r for r in self.destination_only if r.partition.topic in recopied_topics)
        return (*(p.lost for p in self.actionable if p.lost is not None), *own_ranges)

    @property
    def hash(self) -> str:
        """SHA-256 (hex) of actions, positions and topic ids."""
        lines = [
            f"{p.partition} {p.kind} {p.action} {p.position} {p.status.failed_at} {p.status.reason}"
            for p in self.actionable
        ]
        lines += [f"{cost.topic} {cost.destination_id}" for cost in self.costs]
        lines += [f"{r.partition} {r.start} {r.end}" for r in self.destination_only]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @property
    def actionable(self) -> tuple[RecoveryProposal, ...]:
        return tuple(p for p in self.proposals if not p.blockers)


def plan_recovery(
    link: MirrorLink, state: State, expressions: Iterable[str] | None, action: RecoveryAction | None
) -> RecoveryPlan:
    """Without an action only retries are planned: deleting must be named.

    HeldByRun, or Unreachable when a cluster does not answer.
    """
    run = state.active_run(link.mirror.name)
    if run is not None:
        holder = explain_held_by(run, observe_conductor(link.destination, state, run), list_run_verbs(state, run))
        raise HeldByRun(f"mirror {link.mirror.name}: recover", [holder])
    wanted = None if expressions is None else parse_topic_filter(expressions)
    statuses = state.partitions.get(link.mirror.name, {})
    failed = [
        s
        for p, s in sorted(statuses.items())
        if s.state is PartitionState.FAILED and (wanted is None or p.topic in wanted)
    ]
    if not failed:
        return RecoveryPlan((), ())
    names = sorted({s.partition.topic for s in failed})
    with (
        ClusterClient(link.source, timeout_s=TIMEOUTS.recovery_response_s) as source,
        ClusterClient(link.destination, timeout_s=TIMEOUTS.recovery_response_s) as destination,
    ):
        check_cluster_ids(link, source, destination)
        source_view, destination_view = source.metadata(names), destination.metadata(names)
        starts, ends = (
            _fetch_offsets(source, source_view, OffsetPoint.START),
            _fetch_offsets(destination, destination_view, OffsetPoint.LOG_END),
        )
        topics_by_name = {name: _read_topic(link, state, name, source_view, destination_view) for name in names}
        live_copier = observe_live_lease(link.destination, state, link.mirror.name)
        owner = live_copier.owner if live_copier else None
        proposals = tuple(
            _propose_action(link, s, topics_by_name[s.partition.topic], ends.get(s.partition), action, owner)
            for s in failed
        )
        recopied_topics = sorted({p.partition.topic for p in proposals if p.action is RecoveryAction.RECOPY})
        source_ends = _fetch_offsets(source, source_view, OffsetPoint.STABLE_END) if recopied_topics else {}
        costs = tuple(
            _estimate_costs(source, destination, destination_view, recopied_topics, starts, ends, source_ends)
        )
    proposed = {p.partition for p in proposals if p.action is RecoveryAction.RECOPY}
    other_ends = {p: end for p, end in ends.items() if p.topic in recopied_topics and p not in proposed}
    copies = {p for p, s in statuses.items() if p.topic in topics_by_name and _is_copy(s, topics_by_name[p.topic])}
    return RecoveryPlan(proposals, costs, tuple(list_destination_only(other_ends, copies, source_ends)))


def find_unsaved(link: MirrorLink, states: Mapping[ClusterName, State]) -> Finding | None:
    """What only a mirror's destination has, of FAILED partitions: until a recopy, which can save it first.

    Asked once for a mirror and its way home. `states`: of their destinations, as far as they were read.
    """
    for mirror, state in list_both_directions(link.mirror, states):
        failed = {
            p: s.failed_at
            for p, s in sorted(state.partitions.get(mirror.name, {}).items())
            if s.state is PartitionState.FAILED and s.kind in DIVERGENT_KINDS
        }
        if failed:
            return _count_unsaved(make_mirror_link(link.config, mirror), failed, state.active_run(mirror.name))
    return None


def _count_unsaved(link: MirrorLink, failed: Mapping[Partition, Offset | None], run: Run | None) -> Finding:
    """`failed`: offsets from which only the destination has records; None: unknown. `run`: holds the mirror."""
    try:
        with ClusterClient(link.destination, timeout_s=TIMEOUTS.describe_response_s) as client:
            ends = list_known_offsets(client, failed, OffsetPoint.LOG_END)
    except MirrorError:
        ends = {}
    counts = {p: max(0, ends[p] - start) for p, start in failed.items() if start is not None and p in ends}
    return Finding(
        "records_only_on_destination",
        link.mirror.destination,
        mirror=link.mirror.name,
        source=link.mirror.source,
        partitions=failed,
        offsets=sum(counts.values()),
        is_minimum=counts.keys() != failed.keys(),
        run_kind=run.plan.kind if run else "",
    )


def list_destination_only(
    ends: Mapping[Partition, Offset],
    copies: Collection[Partition],
    source_ends: Mapping[Partition, Offset],
) -> Iterator[ParityRange]:
    """Read `ends` before `source_ends`."""
    for partition, end in sorted(ends.items()):
        start = source_ends.get(partition, Offset(0)) if partition in copies else Offset(0)
        if end > start:
            yield ParityRange(partition=partition, start=start, end=end)


def _is_copy(status: PartitionStatus, topic: TopicCondition) -> bool:
    ids = (status.source_topic_id, status.destination_topic_id)
    return ids == (topic.source_id, topic.destination_id)


def _fetch_offsets(client: ClusterClient, view: ClusterMetadata, point: OffsetPoint) -> dict[Partition, Offset]:
    wanted = [Partition(name, index) for name, topic in view.topics.items() for index in topic.partitions]
    return list_offsets(client, wanted, point) if wanted else {}


def _read_topic(
    link: MirrorLink, state: State, name: str, source_view: ClusterMetadata, destination_view: ClusterMetadata
) -> TopicCondition:
    source, destination = source_view.topics.get(name), destination_view.topics.get(name)
    owners = [
        mirror
        for mirror, statuses in state.partitions.items()
        for p, s in statuses.items()
        if mirror != link.mirror.name and destination and p.topic == name and s.destination_topic_id == destination.id
    ]
    own_statuses = state.partitions.get(link.mirror.name, {})
    return TopicCondition(
        name=name,
        source_id=source.id if source else None,
        is_hidden=name in source_view.denied | destination_view.denied,
        destination_id=destination.id if destination else None,
        states=frozenset(s.state for p, s in own_statuses.items() if p.topic == name),
        other_mirror=owners[0] if owners else None,
    )


def _propose_action(
    link: MirrorLink,
    status: PartitionStatus,
    topic: TopicCondition,
    position: Offset | None,
    requested: RecoveryAction | None,
    owner: str | None,
) -> RecoveryProposal:
    kind = find_current_kind(status, topic)
    remedy = REMEDIES[kind]
    action = requested or remedy.actions[0]
    reasons = list(explain_blockers(action, topic, link.mirror, owner))
    if action not in remedy.actions:
        reasons = [f"{action} does not help: {remedy.happened}; --action {' or '.join(remedy.actions)}"]
    elif requested is None and action is not RecoveryAction.RETRY:
        reasons.append(f"ask for it by name: --action {' or '.join(remedy.actions)}")
    return RecoveryProposal(status=status, kind=kind, position=position, action=action, blockers=tuple(reasons))


def _estimate_costs(
    source: ClusterClient,
    destination: ClusterClient,
    destination_view: ClusterMetadata,
    topics: list[str],
    starts: Mapping[Partition, Offset],
    ends: Mapping[Partition, Offset],
    source_ends: Mapping[Partition, Offset],
) -> Iterator[RecopyCost]:
    if not topics:
        return
    destination_starts = _fetch_offsets(destination, destination_view, OffsetPoint.START)
    sizes, source_sizes = fetch_log_sizes(destination, ends), fetch_log_sizes(source, source_ends)
    groups = _list_groups(destination, topics)
    for topic in topics:
        destination_partitions = [p for p in ends if p.topic == topic]
        source_partitions = [p for p in source_ends if p.topic == topic]
        topic_groups = None if groups is None else groups.get(topic, {})
        yield RecopyCost(
            topic=topic,
            destination_id=destination_view.topics[topic].id if topic in destination_view.topics else None,
            partitions=len(source_partitions),
            deleted=sum(ends[p] - destination_starts[p] for p in destination_partitions),
            deleted_bytes=_sum_sizes(sizes, destination_partitions),
            copied=sum(source_ends[p] - starts[p] for p in source_partitions),
            copied_bytes=_sum_sizes(source_sizes, source_partitions),
            groups=None if topic_groups is None else tuple(sorted(topic_groups)),
            active_groups=tuple(sorted(name for name, idle in (topic_groups or {}).items() if not idle)),
        )


def _sum_sizes(sizes: Mapping[Partition, int], partitions: list[Partition]) -> int | None:
    return sum(sizes[p] for p in partitions) if all(p in sizes for p in partitions) else None


def _list_groups(client: ClusterClient, topics: list[str]) -> dict[str, dict[str, bool]] | None:
    groups_by_topic: dict[str, dict[str, bool]] = {}
    try:
        groups = list_groups(client)
        fetched = fetch_group_offsets(client, groups.values())
    except RemoteFault:
        return None
    if fetched.faults:
        return None
    for name, offsets in fetched.offsets.items():
        for partition in offsets.committed:
            if partition.topic in topics:
                groups_by_topic.setdefault(partition.topic, {})[name] = groups[name].is_idle
    return groups_by_topic


def format_proposals(mirror: Mirror, plan: RecoveryPlan, salvage: Path | None) -> Iterator[str]:
    for proposal in plan.proposals:
        yield from _format_proposal(mirror, proposal)
    for cost in plan.costs:
        yield from _format_cost(mirror, cost)
        for own_range in (r for r in plan.destination_only if r.partition.topic == cost.topic):
            yield (
                f"  lost by it, too: {own_range.end - own_range.start} offsets of {own_range.partition} from offset"
                f" {own_range.start} on, which only cluster {mirror.destination} has"
            )
    if salvage is not None:
        saved = ", ".join(f"{r.partition} [{r.start}, {r.end})" for r in plan.lost) or "nothing"
        yield f"saved to {salvage} before anything is deleted: {saved}"


def format_blocked(plan: RecoveryPlan) -> list[str]:
    return [f"{p.partition}: {reason}" for p in plan.proposals for reason in p.blockers]


def format_question(plan: RecoveryPlan) -> str:
    templates = {
        RecoveryAction.RETRY: "Try {} again",
        RecoveryAction.ACCEPT: "Let go of {}",
        RecoveryAction.RECOPY: "Delete and copy anew {}",
    }
    topics = ", ".join(sorted({p.partition.topic for p in plan.actionable if p.action is RecoveryAction.RECOPY}))
    counts = {action: sum(p.action is action for p in plan.actionable) for action in RecoveryAction}
    return "; ".join(
        templates[action].format(topics if action is RecoveryAction.RECOPY else format_count(count, "partition"))
        for action, count in counts.items()
        if count
    )


def format_done(plan: RecoveryPlan) -> Iterator[str]:
    """Recopies are reported as they go."""
    for action, text in (
        (RecoveryAction.RETRY, "partitions will be looked at anew in the next epoch"),
        (RecoveryAction.ACCEPT, "partitions are no longer the mirror's"),
    ):
        if count := sum(p.action is action for p in plan.actionable):
            yield f"{count} {text}"
    for line in format_blocked(plan):
        yield f"left: {line}"


def _format_proposal(mirror: Mirror, proposal: RecoveryProposal) -> Iterator[str]:
    status = proposal.status
    offset_text = "" if status.failed_at is None else f" at offset {status.failed_at}"
    yield f"{proposal.partition}: {proposal.kind}{offset_text}: {status.reason}"
    remedy = REMEDIES[proposal.kind]
    yield f"  first: {remedy.first_step}"
    yield f"  {proposal.action}: {ACTION_EFFECTS[proposal.action]}"
    if proposal.action is RecoveryAction.RETRY and proposal.position is not None:
        yield f"  position: {proposal.position}"
    if proposal.action is RecoveryAction.RECOPY and proposal.kind in DIVERGENT_KINDS and status.failed_at is not None:
        own_offsets = max(0, (proposal.position or 0) - status.failed_at)
        offset_text = f"from offset {status.failed_at} on, which only cluster {mirror.destination} has"
        yield f"  lost by it: {own_offsets} offsets {offset_text}"
    for reason in proposal.blockers:
        yield f"  not now: {reason}"


def _format_cost(mirror: Mirror, cost: RecopyCost) -> Iterator[str]:
    yield (
        f"recopy of topic {cost.topic}: deletes {cost.deleted} offsets{_format_bytes(cost.deleted_bytes)} on cluster "
        f"{mirror.destination}, copies {cost.copied} offsets{_format_bytes(cost.copied_bytes)} of "
        f"{format_count(cost.partitions, 'partition')} from cluster {mirror.source}; until then a failover has only"
        " what is copied so far"
    )
    if cost.groups is None:
        yield "  groups: unknown; their committed offsets on it go with the topic, and are synced again"
    elif cost.groups:
        names = ", ".join(cost.groups)
        yield f"  groups whose committed offsets on it go with the topic, and are synced again: {names}"
    if cost.active_groups:
        yield (
            f"  stop first, or they may commit an old position on the new topic: {', '.join(cost.active_groups)} "
            f"(has members on cluster {mirror.destination})"
        )


def _format_bytes(count: int | None) -> str:
    return " (bytes unknown)" if count is None else f" ({count:,} bytes)"
