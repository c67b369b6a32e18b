"""Offline source partitions that a planned failover leaves behind."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Final

from mirror_core.dataplane.driver import EPOCH_S
from mirror_core.decide.epochs import LONGEST_S
from mirror_core.decide.scope import Scope, led_again
from mirror_core.decide.view import some
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.leaderless import leaderless
from mirror_core.kafka.offsets import Point, list_points
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import MirrorError, Refused
from mirror_core.model.mirror import ZOMBIE_MS, Lease
from mirror_core.model.names import Partition
from mirror_core.model.run import Evidence
from mirror_core.runbook.acts import Acts
from mirror_core.runbook.checkpoints import LeftBehind
from mirror_core.state.link import Link

TASK_S: Final = LONGEST_S + EPOCH_S / 2 + 1
"""No task writes longer: the longest epoch, half a usual one of early start, and a margin."""


def take_back(acts: Acts, scope: Scope) -> bool:
    """Whether one has a leader again: then it is drained and compared.

    A leader that does not answer yet counts.
    """
    if not scope.left:
        return False
    name = acts.link.source.name
    with ClusterClient(acts.link.source) as source:
        led = set(scope.left) - leaderless(source, scope.left)
    if led:
        acts.journal.keep("begin", led_again(scope, led))
        acts.say(f"not left behind, since {name} has a leader for it again: {some(sorted(led))}")
    return bool(led)


def not_compared(acts: Acts) -> Refused:
    again = f"`mirrorbook failover resume {acts.link.mirror.name}` compares it first"
    return Refused(
        f"run {acts.journal.run_id}: fence",
        [f"what was to be left behind has a leader again since the last comparison. Nothing is fenced: {again}"],
    )


def outwait_tasks(acts: Acts, lease: Lease, left: Collection[Partition]) -> Collection[Partition]:
    """Wait until no earlier task can write these partitions.

    A task that lost its driver copies a partition that gets a leader, until its own clock stops it. `lease` has times
    of another host's clock: perhaps ahead of ours, at most two seconds behind.
    """
    until_ms = min(lease.writers_until_ms + ZOMBIE_MS, lease.beat_ms + int(TASK_S * 1000))
    wait_s = (until_ms - now_ms()) / 1000
    if left and wait_s > 0:
        acts.say(f"drain: waiting {wait_s:.0f} s until no copying task can write what is left behind any more")
        time.sleep(wait_s)
    return left


def standing_at(link: Link, partitions: Collection[Partition]) -> tuple[LeftBehind, ...]:
    if not partitions:
        return ()
    with ClusterClient(link.destination) as destination:
        ends, high = list_points(destination, partitions, [Point.LOG_END, Point.HIGH_WATERMARK]).values()
    if problems := [f"{p}: replicated up to {high[p]} of {end}" for p, end in sorted(ends.items()) if high[p] < end]:
        raise MirrorError(
            f"mirror {link.mirror.name}: what is left behind is not replicated on {link.destination.name}: "
            f"{some(problems)}. Resume the run, or abort it"
        )
    return tuple(LeftBehind(topic=p.topic, index=p.index, end=end, high=end) for p, end in sorted(ends.items()))


def in_evidence(behind: Sequence[LeftBehind]) -> Evidence:
    ends = some(f"{one.topic}-{one.index} at {one.end}" for one in behind)
    return {"left_behind": f"{len(behind)}: {ends}"} if behind else {}
