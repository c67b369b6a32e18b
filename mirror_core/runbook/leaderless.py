"""Offline source partitions that a planned failover leaves behind."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Final

from mirror_core.dataplane.driver import EPOCH_S
from mirror_core.decide.epochs import MAX_EPOCH_S
from mirror_core.decide.scope import FailoverScope, drain_led_again
from mirror_core.decide.view import join_limited
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.leaderless import find_offline_partitions
from mirror_core.kafka.offsets import OffsetPoint, list_offset_points
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import MirrorError, Refused
from mirror_core.model.mirror import ZOMBIE_WRITER_MARGIN_MS, Lease
from mirror_core.model.names import Partition
from mirror_core.model.run import StepEvidence
from mirror_core.runbook.acts import StepContext
from mirror_core.runbook.checkpoints import LeftBehindPartition
from mirror_core.state.link import MirrorLink

MAX_TASK_S: Final = MAX_EPOCH_S + EPOCH_S / 2 + 1
"""No task writes longer: the longest epoch, half a usual one of early start, and a margin."""


def readmit_led_partitions(context: StepContext, scope: FailoverScope) -> bool:
    """Whether one has a leader again: then it is drained and compared.

    A leader that does not answer yet counts.
    """
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
            f"what was to be left behind has a leader again since the last comparison. Nothing is fenced: {resume_command}"
        ],
    )


def wait_for_tasks_to_stop(
    context: StepContext, lease: Lease, left_partitions: Collection[Partition]
) -> Collection[Partition]:
    """Wait until no earlier task can write these partitions.

    A task that lost its driver copies a partition that gets a leader, until its own clock stops it. `lease` has times
    of another host's clock: perhaps ahead of ours, at most two seconds behind.
    """
    until_ms = min(lease.writers_until_ms + ZOMBIE_WRITER_MARGIN_MS, lease.heartbeat_ms + int(MAX_TASK_S * 1000))
    wait_s = (until_ms - now_ms()) / 1000
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


def format_left_behind(left_behind: Sequence[LeftBehindPartition]) -> StepEvidence:
    ends = join_limited(
        f"{left_partition.topic}-{left_partition.index} at {left_partition.end}" for left_partition in left_behind
    )
    return {"left_behind": f"{len(left_behind)}: {ends}"} if left_behind else {}
