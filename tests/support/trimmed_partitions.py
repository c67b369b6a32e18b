"""Trimmed partitions, shared by tests."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from mirror_core.copy.driver_messages import ClaimBoard
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.resume_decision import LogInspector
from mirror_core.copy.task import build_report
from mirror_core.dataplane.counters import Counters
from mirror_core.dataplane.epoch_planner import to_assigned
from mirror_core.dataplane.epoch_results import EpochResults
from mirror_core.decide.gaps_and_resume import BothLogBounds, OwnProducerState
from mirror_core.model.errors import StateNotWritten
from mirror_core.model.mirror import DesiredState, Mirror, NeverCopied, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.task_messages import TaskReport, TrimmedRange
from mirror_core.state.state_records import PartitionRecord, StateRecord
from mirror_core.state.state_records import State as Topic
from tests.support.resume_decisions import decide
from tests.support.task_assignments import assignment

A, B = Partition("orders", 0), Partition("orders", 1)

EAST, WEST, NAME = ClusterName("east"), ClusterName("west"), MirrorName("m")

MIRROR = Mirror(
    name=NAME,
    source=EAST,
    destination=WEST,
    source_id="E",
    destination_id="W",
    topics=("orders",),
    producer_id=1 << 62,
    desired=DesiredState.STARTED,
    created_ms=1,
)


def status(
    partition: Partition = A, start: int | None = 0, state: PartitionState = PartitionState.MIRRORING
) -> PartitionStatus:
    return PartitionStatus(
        partition=partition,
        state=state,
        source_topic_id="s",
        destination_topic_id="d",
        source_start=None if start is None else Offset(start),
    )


def deletion(first: int, end: int, partition: Partition = A) -> TrimmedRange:
    return TrimmedRange(partition=partition, first=Offset(first), next=Offset(end))


# -- the task --------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def replicator(of: PartitionStatus, *, told: bool, clock: Clock | None = None) -> PartitionReplicator:
    made = PartitionReplicator(
        replace(to_assigned(of, hold_ms=0), source_epoch=1, all_answered=True), clock=clock or Clock(), has_driver=told
    )
    made.set_leaders(1, 1, 1)
    return made


def judged(one: PartitionReplicator, position: int, start: int, end: int = 1_000) -> CopyState:
    """After both logs were looked at."""
    seen = BothLogBounds(
        log_start=0,
        log_end=position,
        producer=OwnProducerState(position, -1),
        source_start=start,
        source_end=end,
        ends_as_sent=True,
    )
    one.next_attempt_at = 0.0
    decide(cast("LogInspector", None), one, seen)
    return one.state


def reported(one: PartitionReplicator) -> TaskReport:
    return build_report(assignment(one.assigned), [one], "", 0.0, 0.0, 0.0, str)


# -- the driver ------------------------------------------------------------------------------------------------------


class HeldState:
    """A lease whose writes may fail."""

    generation = 1
    clock_ahead_ms = 0

    def __init__(self, *statuses: PartitionStatus) -> None:
        self.state = Topic()
        self.broken = False
        self.writes = 0
        self.put(MIRROR, *(PartitionRecord(NAME, one) for one in statuses))

    def put(self, *records: StateRecord) -> None:
        if self.broken:
            raise StateNotWritten("not enough replicas")
        self.writes += 1
        for record in records:
            self.state.put(record)

    def never(self, partition: Partition = A) -> NeverCopied | None:
        return self.state.partitions[NAME][partition].never_copied


def results(said: list[str] | None = None) -> EpochResults:
    link = SimpleNamespace(mirror=MIRROR, source=SimpleNamespace(name=EAST), destination=None)
    return EpochResults(cast("Any", link), Counters(), (said if said is not None else []).append)


def ask(board: ClaimBoard, first: int, end: int, *, epoch: int = 1) -> list[tuple[str, int, int]]:
    return list(board._receive_trims([(A.topic, A.index, first, end)], epoch))


def count(made: EpochResults, lease: HeldState, *, final: bool = False) -> None:
    made.record_trimmed(cast("Any", lease), final=final)
