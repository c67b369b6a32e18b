"""The old source's fence: observation, late writes, and denials while a run holds the mirror."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from mirror_core.decide.slipped import find_late_ranges, find_new_late_ranges, find_unknown_ends, format_late_ranges
from mirror_core.decide.standing import FenceDecision, FenceObservation
from mirror_core.decide.view import join_limited
from mirror_core.kafka.acls import AuthorizerOff, BrokerAcls, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import OffsetPoint, list_known_offsets
from mirror_core.kafka.reader import LogReader
from mirror_core.kafka.transactions import list_open_transactions
from mirror_core.model.acl import Acl, AclPurpose, Resource
from mirror_core.model.limits import TIMEOUTS
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.ruling import WriteBarrier
from mirror_core.model.standing import FenceAction, PendingFence
from mirror_core.state.journal import JournalLog
from mirror_core.state.link import MirrorLink
from mirror_core.state.records import State
from mirror_core.sync.fence import (
    STILLNESS_PAUSE_S,
    build_denials,
    deny_writes,
    list_deniable_ids,
    list_unfenced_brokers,
)

MAX_STILLNESS_CHECKS: Final = 10


def observe_fence(
    link: MirrorLink, state: State, source: ClusterClient, pending_fence: PendingFence
) -> FenceObservation:
    source_acls = describe_acls(source)
    if pending_fence.action is FenceAction.LIFT:
        return FenceObservation(barred=_find_barrier(link, source_acls))
    # Denials first: a broker that hung may take writes until it has learned of them.
    barred = _find_barrier(link, source_acls)
    unfenced = (
        list_unfenced_brokers(source, list_fence_denials(link, state, pending_fence))
        if barred is WriteBarrier.DENY_ACLS
        else []
    )
    partitions = state.partitions.get(link.mirror.name, {})
    ends = list_known_offsets(source, partitions, OffsetPoint.LOG_END)
    written = _find_late_records(link, source, pending_fence, ends)
    authorizer = link.source.ruling.authorizer
    return FenceObservation(
        barred=barred, authorizer=authorizer, unfenced_brokers=tuple(unfenced), log_ends=ends, written_ranges=written
    )


def _find_barrier(link: MirrorLink, source_acls: BrokerAcls | AuthorizerOff) -> WriteBarrier:
    return link.source.ruling.get_write_barrier(denials_possible=isinstance(source_acls, BrokerAcls))


def _find_late_records(
    link: MirrorLink, source: ClusterClient, pending_fence: PendingFence, ends: dict[Partition, Offset]
) -> dict[Partition, tuple[Offset, Offset]]:
    """Records behind the recorded ends. Transactions that end there append markers only."""
    recorded = pending_fence.log_ends.to_mapping()
    grown = {p: recorded[p] for p, end in ends.items() if end > recorded.get(p, end)}
    if not grown:
        return {}
    stable_ends = list_known_offsets(source, grown, OffsetPoint.STABLE_END)
    log_starts = list_known_offsets(source, grown, OffsetPoint.START)  # retention may have passed the recorded end
    late_ranges: dict[Partition, tuple[Offset, Offset]] = {}
    with LogReader(link.source, timeout_s=TIMEOUTS.old_source_response_s) as reader:
        for partition, recorded_end in grown.items():
            start = max(recorded_end, log_starts.get(partition, recorded_end))
            read_end = min(stable_ends.get(partition, start), ends[partition])
            first_batch = next(reader.batches(partition, start, read_end), None) if read_end > start else None
            if first_batch is not None:
                late_ranges[partition] = (max(start, Offset(first_batch[0].base_offset)), ends[partition])
    return late_ranges


def list_fence_denials(link: MirrorLink, state: State, pending_fence: PendingFence) -> set[Acl]:
    """The ledger's denials, and those that others had made before."""
    return list_recorded_denials(link, state) | set(
        build_denials({p.topic for p in pending_fence.log_ends.to_mapping()})
    )


def list_recorded_denials(link: MirrorLink, state: State) -> set[Acl]:
    """From names only: an entry of the fence has no other use."""
    recorded = [
        e.acl
        for e in state.ledger_entries(link.mirror.name)
        if e.cluster == link.source.name and e.purpose is AclPurpose.FENCE
    ]
    topics = {acl.name for acl in recorded if acl.resource is Resource.TOPIC}
    ids = {acl.name for acl in recorded if acl.resource is Resource.TRANSACTIONAL_ID}
    return set(build_denials(topics, ids))


def deny_all_writers(
    link: MirrorLink,
    log: JournalLog,
    source: ClusterClient,
    topics: Collection[str],
    ids: Collection[str] = (),
    *,
    before_deny: Callable[[Collection[Acl]], None] = lambda acls: None,
) -> frozenset[Acl] | AuthorizerOff:
    """Deny all writers of these topics, and transactions that are open on them."""
    denied = deny_writes(link, log, source, topics, ids, before_deny=before_deny)
    if isinstance(denied, AuthorizerOff):
        return denied
    # Topics first: transactions that joined a partition before could still be committed by their producers.
    open_ids = set(list_deniable_ids(list_open_transactions(source, topics))) - set(ids)
    return deny_writes(link, log, source, topics, open_ids, before_deny=before_deny) if open_ids else denied


def wait_until_still(source: ClusterClient, partitions: Iterable[Partition]) -> dict[Partition, Offset]:
    """A super user's logs never stand still."""
    partition_list = list(partitions)
    ends = list_known_offsets(source, partition_list, OffsetPoint.LOG_END)
    for _ in range(MAX_STILLNESS_CHECKS):
        time.sleep(STILLNESS_PAUSE_S)
        before, ends = ends, list_known_offsets(source, partition_list, OffsetPoint.LOG_END)
        if before == ends:
            break
    return ends


def format_new_late_ranges(
    link: MirrorLink, state: State, new_fence: PendingFence, old_fence: PendingFence
) -> Iterator[str]:
    new_ranges = find_new_late_ranges(new_fence, old_fence, state.partitions.get(link.mirror.name, {}))
    if new_ranges:
        yield (
            f"cluster {new_fence.cluster} has what {link.destination.name} never had, written before it fell silent, or "
            f"after it came back and before it was fenced: {format_late_ranges(new_ranges, state.source_observations.get(link.mirror.name))}"
        )


def add_late_ranges(
    decision: FenceDecision, pending_fence: PendingFence, statuses: Mapping[Partition, PartitionStatus]
) -> FenceDecision:
    unknown_partitions = find_unknown_ends(pending_fence, statuses)
    lines = (
        f"{pending_fence.cluster}: the log end of {join_limited(unknown_partitions)} is not known yet, nor what was accepted there",
    )
    return replace(
        decision,
        late_ranges=find_late_ranges(pending_fence, statuses),
        lines=(*decision.lines, *lines) if unknown_partitions else decision.lines,
    )
