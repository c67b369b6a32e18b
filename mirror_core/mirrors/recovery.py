"""Carries out an approved plan for FAILED partitions.

A recopy is recorded first: all partitions become FAILED, kind `recopying`, with the topic's id. So the data plane
leaves them alone, and after a crash recover sees how far it came. Partition records go last; then the next plan copies
the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

from mirror_core.dataplane.again import anew
from mirror_core.decide.recovery import Action
from mirror_core.decide.verbs import Verb
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.existing import existing
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.kafka.topics import delete_topic
from mirror_core.mirrors.door import door
from mirror_core.mirrors.recovery_plan import Cost, RecoveryPlan
from mirror_core.model.errors import Refused
from mirror_core.model.mirror import FailureKind, PartitionState, PartitionStatus
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.parity import ParityRange
from mirror_core.model.run import short_hash
from mirror_core.parity.salvage import LocalSalvage
from mirror_core.state.lease import acquire, copier, kept, new_owner
from mirror_core.state.link import Link
from mirror_core.state.records import Forget, PartitionRecord, Record, State
from mirror_core.state.table import Event, after
from mirror_core.state.writer import StateWriter

Say = Callable[[str], None]


def check_shown(link: Link, seen: RecoveryPlan, shown: str) -> None:
    if seen.hash != shown:
        reason = (
            f"what was approved is plan {short_hash(shown)}, and it is {short_hash(seen.hash)} now: something has "
            "changed since, look again"
        )
        raise Refused(f"mirror {link.mirror.name}: recover", [reason])


def salvage(link: Link, agreed: RecoveryPlan, folder: Path, say: Say) -> None:
    """Raises unless every record is saved."""
    saved = LocalSalvage(link.config.path)(link.destination.name, agreed.lost, folder)
    say(f"{sum(s.records for s in saved.values())} record(s) of cluster {link.destination.name} saved to {folder}")


def recover(link: Link, agreed: RecoveryPlan, say: Say) -> None:
    """Refused when the mirror has changed; LostOwnership when copying has begun."""
    with door(link, Verb.RECOVER, lambda state: _changed(link, state, agreed)) as writer:
        _carry_out(link, writer, agreed, say)


def _changed(link: Link, state: State, agreed: RecoveryPlan) -> Iterator[str]:
    known = state.partitions.get(link.mirror.name, {})
    for partition in sorted(p.partition for p in agreed.agreed if known.get(p.partition) != p.status):
        yield f"{partition} has changed since you were asked: look again"
    living = copier(state, link.mirror.name)
    if living and any(p.action is Action.RECOPY for p in agreed.agreed):
        yield f"{living.owner} copies this mirror now: look again"


def _carry_out(link: Link, writer: StateWriter, agreed: RecoveryPlan, say: Say) -> None:
    records: list[Record | Forget] = []
    for proposal in agreed.agreed:
        if proposal.action is Action.ACCEPT:
            records.append(Forget(PartitionRecord(link.mirror.name, proposal.status)))
        elif proposal.action is Action.RETRY:
            records.append(_retried(link.mirror.name, proposal.status))
    # What was compared before the failure is compared anew: the source's history may differ. A retry continues
    # the same copy, so known differences stay until that place is found equal.
    proof = writer.state.proofs.get(link.mirror.name)
    if records and proof:
        retried, accepted = (
            {p.partition for p in agreed.agreed if p.action is action} for action in (Action.RETRY, Action.ACCEPT)
        )
        records.append(proof.unproved(retried).without(accepted))
    if records:
        writer.put(*records)
    doomed = {p.partition.topic for p in agreed.agreed if p.action is Action.RECOPY}
    if doomed:
        _recopy(link, writer, [cost for cost in agreed.costs if cost.topic in doomed], agreed.lost, say)


def _retried(mirror: MirrorName, status: PartitionStatus) -> Record | Forget:
    fresh = anew(status)
    return Forget(PartitionRecord(mirror, status)) if fresh is None else PartitionRecord(mirror, fresh)


def _recopy(link: Link, writer: StateWriter, costs: list[Cost], lost: tuple[ParityRange, ...], say: Say) -> None:
    """Holds the lease: nobody copies."""
    with (
        kept(acquire(link.destination, link.mirror.name, new_owner())) as lease,
        ClusterClient(link.destination) as destination,
    ):
        lease.outwait_writers(say)
        for cost in costs:
            lease.beat()
            _refuse_if_grown(destination, cost, lost, {s.partition for s in _of(link, writer.state, cost.topic)})
            begin_recopy(link, writer, cost)
            _delete(destination, cost)
            doomed, proof = _of(link, writer.state, cost.topic), writer.state.proofs.get(link.mirror.name)
            known = [] if proof is None else [proof.without({s.partition for s in doomed})]
            writer.put(*known, *(Forget(PartitionRecord(link.mirror.name, s)) for s in doomed))
            say(f"{cost.topic}: deleted on cluster {link.mirror.destination}; the next epoch copies it anew")


def begin_recopy(link: Link, writer: StateWriter, cost: Cost) -> None:
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
                    state=PartitionState.FAILED
                    if status.state is PartitionState.FAILED
                    else after(status.state, Event.FAIL),
                    reason=reason,
                    failed_at=None,
                    kind=FailureKind.RECOPYING,
                ),
            )
            for status in _of(link, writer.state, cost.topic)
        )
    )


def _delete(destination: ClusterClient, cost: Cost) -> None:
    """Deletes by topic id, so another topic of the same name stays."""
    present = existing(destination, [cost.topic]).get(cost.topic)
    if present is None:
        return
    if present.id != cost.destination_id:
        reason = f"it is another topic now (id {present.id}) than when you were asked: look again"
        raise Refused(f"topic {cost.topic} on cluster {destination.name} was not deleted", [reason])
    delete_topic(destination, cost.topic, cost.destination_id)


def _refuse_if_grown(
    destination: ClusterClient, cost: Cost, lost: tuple[ParityRange, ...], recorded: Collection[Partition]
) -> None:
    """Nothing is deleted that was not shown."""
    shown = {r.partition: r.end for r in lost if r.partition.topic == cost.topic}
    present = existing(destination, [cost.topic]).get(cost.topic)
    if present is None or present.id != cost.destination_id:
        return  # gone, or refused on deletion
    added = {Partition(cost.topic, index) for index in present.partitions}.difference(recorded, shown)
    shown |= dict.fromkeys(added, Offset(0))
    now = list_offsets(destination, shown, Point.LOG_END) if shown else {}
    grown = [f"{p} has grown from {end} to {now[p]} since you were asked" for p, end in shown.items() if now[p] != end]
    if grown:
        raise Refused(f"topic {cost.topic} on cluster {destination.name} was not deleted", grown)


def _of(link: Link, state: State, topic: str) -> list[PartitionStatus]:
    return [s for p, s in sorted(state.partitions.get(link.mirror.name, {}).items()) if p.topic == topic]
