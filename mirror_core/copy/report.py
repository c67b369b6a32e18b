"""Builds the task's report: receipts of what was acknowledged, failures, and why partitions wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.states import State
from mirror_core.copy.words import not_now
from mirror_core.decide.crowded import in_steps
from mirror_core.decide.gaps import filled
from mirror_core.kafka.tiered import SILENT
from mirror_core.model.clock import now_ms
from mirror_core.model.copying import Aligned, Assignment, Receipt, TaskReport
from mirror_core.model.names import Offset


def report(
    assignment: Assignment,
    replicators: Sequence[PartitionReplicator],
    trouble: str,
    started: float,
    cpu_s: float,
    waits_for: Callable[[int], str],
    looks_cut_short: int = 0,
) -> TaskReport:
    receipts = [
        Receipt(
            mirror=assignment.mirror,
            partition=one.partition,
            epoch=assignment.epoch,
            task=assignment.task,
            first=Offset(one.tally.first),
            next=Offset(one.place.acknowledged),
            records=one.records,
            gaps=one.tally.gaps,
            batches=one.tally.batches,
            bytes=one.tally.bytes,
            pieces=one.tally.pieces,
            source_topic_id=one.assigned.source_topic_id,
            destination_topic_id=one.assigned.destination_topic_id,
            source_end=None if one.source.end is None else Offset(one.source.end),
            started_ms=int(started * 1000),
            ended_ms=now_ms(),
        )
        for one in replicators
        if one.tally.first is not None
    ]
    return TaskReport(
        receipts=tuple(receipts),
        failures=tuple(one.failure for one in replicators if one.failure and one.state is State.FAILED),
        cpu_s=cpu_s,
        aligned=tuple(_aligned(one, one.aligned) for one in replicators if one.aligned is not None),
        deletions=tuple(deletion for one in replicators for deletion in one.deletions.of(one.partition)),
        retry=_why(assignment.source, replicators, trouble, waits_for),
        looks_cut_short=looks_cut_short,
        untold=started * 1000 >= assignment.stop_ms,
    )


def _aligned(one: PartitionReplicator, found: Aligned) -> Aligned:
    start = one.deletions.reached(one.place.acknowledged)
    return replace(
        found,
        answered=one.answered,
        source_start=None if start is None else Offset(start),
        filled=0 if one.hides else in_steps(filled(one.place.acknowledged, one.place.acknowledged_sequence)),
    )


def _why(source: str, replicators: Sequence[PartitionReplicator], trouble: str, waits_for: Callable[[int], str]) -> str:
    lost = [one for one in replicators if one.state is State.LOST]
    said = [one.lost_why for one in lost if one.lost_why]
    remote = [one for one in replicators if awaits_remote(one)]
    said += [not_now(source, one.partition, one.place.position, SILENT) for one in remote]
    held = [one for one in replicators if one.working and (one.place.in_flight or one.sendable)]
    silent = [one for one in held if waits_for(one.destination_broker)]
    said += [waits_for(broker) for broker in sorted({one.destination_broker for one in silent})]
    if not lost and not remote and not silent:
        return ""
    words, waiting = said[0] if said else trouble, len({*lost, *remote, *silent})
    return f"{words} ({waiting} partitions wait)" if words and waiting > 1 else words


def awaits_remote(one: PartitionReplicator) -> bool:
    return one.working and one.source.empty > 0 and one.source.remote(one.place.position)
