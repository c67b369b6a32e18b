"""Carries out an approved plan for FAILED partitions.

A recopy first records all as FAILED, kind `recopying`: the data plane leaves them alone, and a repeat sees how far it
came.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

from mirror_core.dataplane.epoch_planner import reset_failed
from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.decide.failure_remedies import RecoveryAction
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.kafka.topic_existence import find_existing_topics
from mirror_core.kafka.topics import delete_topic
from mirror_core.mirrors.control import take_control
from mirror_core.mirrors.recovery_plan import RecopyCost, RecoveryPlan
from mirror_core.model.errors import Refused
from mirror_core.model.mirror import FailureKind, PartitionState, PartitionStatus
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.parity_verdict import ParityRange
from mirror_core.model.run import shorten_hash
from mirror_core.model.sync_state import OwnGroupOffsets
from mirror_core.model.text import format_count
from mirror_core.parity.salvage import LocalSalvage
from mirror_core.state.lease import acquire_lease, make_owner_name, observe_live_lease, release_at_end
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.partition_transitions import PartitionEvent, apply_events
from mirror_core.state.state_records import PartitionRecord, State, StateRecord, Tombstone
from mirror_core.state.writer import StateWriter
from mirror_core.sync.offset_commits import OwnCommittedOffsets

ReportLine = Callable[[str], None]


def check_approved_plan(link: MirrorLink, current_plan: RecoveryPlan, approved_hash: str) -> None:
    if current_plan.hash != approved_hash:
        reason = (
            f"what was approved is plan {shorten_hash(approved_hash)}, and it is {shorten_hash(current_plan.hash)} now:"
            " something has changed since, look again"
        )
        raise Refused(f"mirror {link.mirror.name}: recover", [reason], reason_code="plan_outdated")


def salvage_lost_records(link: MirrorLink, approved_plan: RecoveryPlan, folder: Path, report: ReportLine) -> None:
    """Raises unless every record is saved."""
    saved = LocalSalvage(link.config.path)(link.mirror.destination_identity, approved_plan.lost, folder)
    records_text = format_count(sum(partition.records for partition in saved.values()), "record")
    report(f"{records_text} of cluster {link.destination.name} saved to {folder}")


def recover_partitions(link: MirrorLink, approved_plan: RecoveryPlan, report: ReportLine) -> None:
    """Refused when the mirror has changed; LostOwnership when copying has begun."""
    with take_control(link, MirrorCommand.RECOVER, lambda state: _list_changes(link, state, approved_plan)) as writer:
        _apply_recovery(link, writer, approved_plan, report)


def _list_changes(link: MirrorLink, state: State, approved_plan: RecoveryPlan) -> Iterator[str]:
    statuses = state.partitions.get(link.mirror.name, {})
    for partition in sorted(p.partition for p in approved_plan.actionable if statuses.get(p.partition) != p.status):
        yield f"{partition} has changed since you were asked: look again"
    live_copier = observe_live_lease(link.destination, state, link.mirror.name)
    if live_copier and any(p.action is RecoveryAction.RECOPY for p in approved_plan.actionable):
        yield f"{live_copier.owner} copies this mirror now: look again"


def _apply_recovery(link: MirrorLink, writer: StateWriter, approved_plan: RecoveryPlan, report: ReportLine) -> None:
    records: list[StateRecord | Tombstone] = []
    for proposal in approved_plan.actionable:
        if proposal.action is RecoveryAction.ACCEPT:
            records.append(Tombstone(PartitionRecord(link.mirror.name, proposal.status)))
        elif proposal.action is RecoveryAction.RETRY:
            records.append(_to_retry_record(link.mirror.name, proposal.status))
    # What was compared before the failure is compared anew: the source's history may differ. A retry continues
    # the same copy, so known differences stay until that place is found equal.
    proof = writer.state.verifications.get(link.mirror.name)
    if records and proof:
        retried, accepted = (
            {p.partition for p in approved_plan.actionable if p.action is action}
            for action in (RecoveryAction.RETRY, RecoveryAction.ACCEPT)
        )
        records.append(proof.reset_partitions(retried).forget_partitions(accepted))
    if records:
        writer.put(*records)
    recopied_topics = {p.partition.topic for p in approved_plan.actionable if p.action is RecoveryAction.RECOPY}
    if recopied_topics:
        _recopy_topics(
            link,
            writer,
            [cost for cost in approved_plan.costs if cost.topic in recopied_topics],
            approved_plan.lost,
            report,
        )


def _to_retry_record(mirror: MirrorName, status: PartitionStatus) -> StateRecord | Tombstone:
    reset_status = reset_failed(status)
    return Tombstone(PartitionRecord(mirror, status)) if reset_status is None else PartitionRecord(mirror, reset_status)


def _recopy_topics(
    link: MirrorLink, writer: StateWriter, costs: list[RecopyCost], lost: tuple[ParityRange, ...], report: ReportLine
) -> None:
    with (
        release_at_end(acquire_lease(link.destination, link.mirror.name, make_owner_name())) as lease,
        ClusterClient(link.destination) as destination,
    ):
        lease.wait_for_old_writers(report)
        for cost in costs:
            lease.renew()
            _refuse_if_grown(
                destination, cost, lost, {s.partition for s in _list_topic_statuses(link, writer.state, cost.topic)}
            )
            record_recopy(link, writer, cost)
            _delete_shown_topic(destination, cost)
            topic_statuses, proof = (
                _list_topic_statuses(link, writer.state, cost.topic),
                writer.state.verifications.get(link.mirror.name),
            )
            proof_records = [] if proof is None else [proof.forget_partitions({s.partition for s in topic_statuses})]
            writer.put(
                *proof_records,
                *_forget_group_offsets(link, writer.state, cost.topic),
                *(Tombstone(PartitionRecord(link.mirror.name, s)) for s in topic_statuses),
            )
            report(f"{cost.topic}: deleted on cluster {link.mirror.destination}; the next epoch copies it anew")


def _forget_group_offsets(link: MirrorLink, state: State, topic: str) -> list[OwnGroupOffsets]:
    """Brokers delete a topic's committed offsets with it."""
    own_offsets = OwnCommittedOffsets(link.mirror.name, state)
    for group, partitions in own_offsets.list_partitions().items():
        own_offsets.forget_offsets(group, {p for p in partitions if p.topic == topic})
    return own_offsets.pop_unwritten()


def record_recopy(link: MirrorLink, writer: StateWriter, cost: RecopyCost) -> None:
    reason = (
        f"topic {cost.topic} is being copied anew: it was about to be deleted on cluster {link.mirror.destination}; "
        f"`mirrorbook mirror recover {link.mirror.name} --topics {cost.topic} --action recopy` finishes that"
    )
    writer.put(
        *(
            PartitionRecord(
                link.mirror.name,
                replace(
                    status,
                    state=(
                        PartitionState.FAILED
                        if status.state is PartitionState.FAILED
                        else apply_events(status.state, PartitionEvent.FAIL)
                    ),
                    reason=reason,
                    failed_at=None,
                    kind=FailureKind.RECOPYING,
                ),
            )
            for status in _list_topic_statuses(link, writer.state, cost.topic)
        )
    )


def _delete_shown_topic(destination: ClusterClient, cost: RecopyCost) -> None:
    current_topic = find_existing_topics(destination, [cost.topic]).get(cost.topic)
    if current_topic is None:
        return
    if current_topic.id != cost.destination_id:
        reason = f"it is another topic now (id {current_topic.id}) than when you were asked: look again"
        raise Refused(
            f"topic {cost.topic} on cluster {destination.name} was not deleted", [reason], reason_code="topic_replaced"
        )
    delete_topic(destination, cost.topic, cost.destination_id)


def _refuse_if_grown(
    destination: ClusterClient, cost: RecopyCost, lost: tuple[ParityRange, ...], recorded: Collection[Partition]
) -> None:
    shown_ends = {r.partition: r.end for r in lost if r.partition.topic == cost.topic}
    current_topic = find_existing_topics(destination, [cost.topic]).get(cost.topic)
    if current_topic is None or current_topic.id != cost.destination_id:
        return  # gone, or refused on deletion
    added = {Partition(cost.topic, index) for index in current_topic.partitions}.difference(recorded, shown_ends)
    shown_ends |= dict.fromkeys(added, Offset(0))
    current_ends = list_offsets(destination, shown_ends, OffsetPoint.LOG_END) if shown_ends else {}
    grown = [
        f"{p} has grown from {end} to {current_ends[p]} since you were asked"
        for p, end in shown_ends.items()
        if current_ends[p] != end
    ]
    if grown:
        raise Refused(
            f"topic {cost.topic} on cluster {destination.name} was not deleted", grown, reason_code="topic_grown"
        )


def _list_topic_statuses(link: MirrorLink, state: State, topic: str) -> list[PartitionStatus]:
    return [s for p, s in sorted(state.partitions.get(link.mirror.name, {}).items()) if p.topic == topic]
