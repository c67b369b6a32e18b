"""What a task says at its end: receipts of what was acknowledged, and what went wrong."""

from __future__ import annotations

from collections.abc import Sequence

from mirror_core.copy.partition import Lane, LaneState, not_now
from mirror_core.kafka.tiered import SILENT
from mirror_core.model.clock import now_ms
from mirror_core.model.copying import Assignment, Receipt, TaskReport
from mirror_core.model.names import Offset


def report(assignment: Assignment, lanes: Sequence[Lane], trouble: str, started: float, cpu_s: float) -> TaskReport:
    """The task's report. `started`: wall clock, seconds; `trouble`: why lanes may have lost their place."""
    receipts = [
        Receipt(
            mirror=assignment.mirror,
            partition=lane.partition,
            epoch=assignment.epoch,
            task=assignment.task,
            first=Offset(lane.first),
            next=Offset(lane.acknowledged),
            records=lane.records,
            gaps=lane.gaps,
            batches=lane.batches,
            bytes=lane.sent_bytes,
            digest=lane.digest.hexdigest() if lane.digest is not None else "",
            source_end=None if lane.source_end is None else Offset(lane.source_end),
            started_ms=int(started * 1000),
            ended_ms=now_ms(),
        )
        for lane in lanes
        if lane.first is not None
    ]
    return TaskReport(
        receipts=tuple(receipts),
        failures=tuple(lane.failure for lane in lanes if lane.failure),
        cpu_s=cpu_s,
        aligned=tuple(lane.aligned for lane in lanes if lane.aligned is not None),
        retry=_why(assignment.source, lanes, trouble),
    )


def _why(source: str, lanes: Sequence[Lane], trouble: str) -> str:
    lost = [lane for lane in lanes if lane.state is LaneState.LOST]
    said = [lane.lost_why for lane in lost if lane.lost_why]
    silent = [lane for lane in lanes if lane.awaits_remote]
    said += [not_now(source, lane.partition, lane.position, SILENT) for lane in silent]
    if not lost and not silent:
        return ""
    words, waiting = said[0] if said else trouble, len(lost) + len(silent)
    return f"{words} ({waiting} partitions wait)" if words and waiting > 1 else words
