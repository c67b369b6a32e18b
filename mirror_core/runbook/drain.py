"""The drain: both clusters' brokers show that everything behind the fence is copied."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mirror_core.dataplane.driver import EPOCH_S
from mirror_core.decide.copy_estimate import count_compared, format_progress
from mirror_core.decide.deletion_hold import (
    LogStarts,
    decide_holds,
    find_early_deletions,
    format_early_deletions,
)
from mirror_core.decide.failover_scope import FailoverScope, drain_led_again
from mirror_core.decide.gaps_and_resume import count_deletions
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.decide.task_assignment import MAX_EPOCH_S
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, find_offline_partitions, list_offset_points, list_offsets
from mirror_core.kafka.topics import delete_records
from mirror_core.model.errors import MirrorError, Refused, RemoteFault
from mirror_core.model.figures import MAX_RECORDED_NAMES, FigureKey, FigureScalar
from mirror_core.model.mirror import ZOMBIE_WRITER_MARGIN_MS
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityRange
from mirror_core.model.run import StepEvidence
from mirror_core.model.task_messages import TrimmedRange
from mirror_core.model.text import format_count
from mirror_core.model.timing import read_steady_s
from mirror_core.runbook.run_services import StepContext
from mirror_core.runbook.step_records import LeftBehindPartition
from mirror_core.state.lease import read_hold_clock_ms
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import PartitionRecord
from mirror_core.state.writer import StateWriter


def record_deletions(link: MirrorLink, writer: StateWriter, deletions: Sequence[TrimmedRange]) -> None:
    statuses = writer.state.partitions.get(link.mirror.name, {})
    changed_statuses = count_deletions(statuses, deletions, writer.now_ms())
    if changed_statuses:
        writer.put(*(PartitionRecord(link.mirror.name, status) for status in changed_statuses.values()))


def report_drain_progress(
    link: MirrorLink,
    ends: Mapping[Partition, Offset],
    print_line: Callable[[str], None],
    record_deadline: Callable[[float], None],
) -> Callable[[float], None]:
    """Wraps `record_deadline`; reports from the second copy round on."""
    first_ends: dict[Partition, Offset] | None = None
    rounds, began = 0, 0.0

    def before_round(end_s: float) -> None:
        nonlocal first_ends, rounds, began
        record_deadline(end_s)
        rounds += 1
        if rounds == 1:
            return
        try:
            with ClusterClient(link.destination) as destination:
                current_ends = list_offsets(destination, ends, OffsetPoint.LOG_END)
        except RemoteFault as error:  # the copy meets it, too, and has its own retries
            print_line(f"drain: how far it is, is not known: {error}")
            return
        if first_ends is None:
            first_ends, began = current_ends, time.monotonic()
        ranges_left = [
            ParityRange(partition=p, start=min(first_ends[p], end), end=end) for p, end in sorted(ends.items())
        ]
        print_line(f"drain: {format_progress(*count_compared(ranges_left, current_ends), time.monotonic() - began)}")

    return before_round


@dataclass(frozen=True, slots=True)
class DrainedLogs:
    positions: dict[Partition, Offset]
    held: dict[Partition, int]
    """Offsets that the source has deleted, and that stay: their hold is not over."""


def verify_drained(link: MirrorLink, ends: Mapping[Partition, Offset], writer: StateWriter) -> DrainedLogs:
    """Destination log ends, equal to the source's.

    Raises MirrorError otherwise. Also applies source deletions whose hold is over: nobody else would. The rest stays.
    """
    name, state = link.mirror.name, writer.state
    statuses = state.partitions.get(name, {})
    held = {p: s.held_deletion for p, s in statuses.items() if s.held_deletion is not None}
    with ClusterClient(link.source) as source, ClusterClient(link.destination) as destination:
        source_ends, source_starts = list_offset_points(source, ends, [OffsetPoint.LOG_END, OffsetPoint.START]).values()
        points = list_offset_points(
            destination, ends, [OffsetPoint.LOG_END, OffsetPoint.HIGH_WATERMARK, OffsetPoint.START]
        )
        positions, replicated, starts = points.values()
        problems = [
            f"{p}: log end on {source.name} went from {ends[p]} to {source_ends[p]}"
            for p in ends
            if source_ends[p] != ends[p]
        ]
        problems += [f"{p}: position {positions[p]}, log end {ends[p]}" for p in ends if positions[p] != ends[p]]
        problems += [f"{p}: replicated up to {replicated[p]} of {ends[p]}" for p in ends if replicated[p] < ends[p]]
        recorded = [statuses[p] for p in ends if p in statuses]
        if early_deletions := find_early_deletions(recorded, starts, source_starts):
            problems.append(f"only {source.name} still has: {format_early_deletions(early_deletions)}")
        if problems:
            raise MirrorError(
                f"mirror {link.mirror.name}: not drained: {join_limited(problems)}. "
                "Resume the run to go on copying, or abort it"
            )
        behind = {p: LogStarts(starts[p], source_starts[p]) for p in ends if starts[p] < source_starts[p]}
        hold_ms = link.config.deletion_hold_ms(name)
        clock_ms = read_hold_clock_ms(link.destination, state, name) if hold_ms and behind else None
        due = decide_holds(held, behind, now_ms=clock_ms, hold_ms=hold_ms).due
        if due:
            moved = (replace(statuses[p], followed_start=start) for p, start in due.items())
            writer.put(*(PartitionRecord(name, status) for status in moved))
            delete_records(destination, due)
    held_offsets = {
        p: log_starts.source - due.get(p, log_starts.destination) for p, log_starts in sorted(behind.items())
    }
    return DrainedLogs(positions, {p: offsets for p, offsets in held_offsets.items() if offsets > 0})


MAX_TASK_S: Final = MAX_EPOCH_S + EPOCH_S / 2 + 1
"""No task writes longer: the longest epoch, half a usual one of early start, and a margin."""


def readmit_led_partitions(context: StepContext, scope: FailoverScope) -> bool:
    """Whether one has a leader again, even one that does not answer yet: then it is drained and compared."""
    if not scope.left_behind:
        return False
    name = context.link.source.name
    with ClusterClient(context.link.source) as source:
        led_partitions = set(scope.left_behind) - find_offline_partitions(source, scope.left_behind)
    if led_partitions:
        context.journal.save_checkpoint("begin", drain_led_again(scope, led_partitions))
        context.print_line(
            f"not left behind, since {name} has a leader for it again: {join_limited(sorted(led_partitions))}"
        )
    return bool(led_partitions)


def make_uncompared_refusal(context: StepContext) -> Refused:
    resume_command = f"`mirrorbook failover resume {context.link.mirror.name}` compares it first"
    return Refused(
        f"run {context.journal.run_id}: fence",
        [
            "what was to be left behind has a leader again since the last comparison. Nothing is fenced:"
            f" {resume_command}"
        ],
        reason_code="left_behind_has_leader",
    )


def wait_for_tasks_to_stop(
    context: StepContext, old_writers_end_s: float, left_partitions: Collection[Partition]
) -> Collection[Partition]:
    """A task that lost its driver copies a partition that gets a leader, until its own clock stops it.

    `old_writers_end_s`: by the steady clock.
    """
    wait_s = min(old_writers_end_s + ZOMBIE_WRITER_MARGIN_MS / 1000 - read_steady_s(), MAX_TASK_S)
    if left_partitions and wait_s > 0:
        context.print_line(
            f"drain: waiting {wait_s:.0f} s until no copying task can write what is left behind any more"
        )
        time.sleep(wait_s)
    return left_partitions


def read_left_behind(link: MirrorLink, partitions: Collection[Partition]) -> tuple[LeftBehindPartition, ...]:
    if not partitions:
        return ()
    with ClusterClient(link.destination) as destination:
        ends, high_watermarks = list_offset_points(
            destination, partitions, [OffsetPoint.LOG_END, OffsetPoint.HIGH_WATERMARK]
        ).values()
    if problems := [
        f"{p}: replicated up to {high_watermarks[p]} of {end}"
        for p, end in sorted(ends.items())
        if high_watermarks[p] < end
    ]:
        raise MirrorError(
            f"mirror {link.mirror.name}: what is left behind is not replicated on {link.destination.name}: "
            f"{join_limited(problems)}. Resume the run, or abort it"
        )
    return tuple(
        LeftBehindPartition(topic=p.topic, index=p.index, end=end, high_watermark=end)
        for p, end in sorted(ends.items())
    )


def format_held(held: Mapping[Partition, int]) -> StepEvidence:
    listed = join_limited(f"{p} ({offsets:,})" for p, offsets in held.items())
    return {"held_deletions": f"{format_count(sum(held.values()), 'offset')} held: {listed}"} if held else {}


def format_left_behind(left_behind: Sequence[LeftBehindPartition]) -> StepEvidence:
    if not left_behind:
        return {}
    ends: dict[str, FigureScalar] = {
        f"{partition.topic}-{partition.index}": partition.end for partition in left_behind[:MAX_RECORDED_NAMES]
    }
    high_watermarks: dict[str, FigureScalar] = {
        f"{partition.topic}-{partition.index}": partition.high_watermark
        for partition in left_behind[:MAX_RECORDED_NAMES]
        if partition.high_watermark != partition.end
    }
    return {
        FigureKey.LEFT_BEHIND_PARTITIONS: len(left_behind),
        FigureKey.LEFT_BEHIND_ENDS: ends,
        **({FigureKey.LEFT_BEHIND_HIGH_WATERMARKS: high_watermarks} if high_watermarks else {}),
    }
