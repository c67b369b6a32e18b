"""Offline partitions of the source, and which of them a person may leave behind in a planned failover.

They can be neither drained nor compared. One that is left behind is fenced with its topic and promoted as the
destination has it; a failback finds and saves what only the source has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from mirror_core.decide.loss import compute_snapshot_loss
from mirror_core.decide.loss_figures import format_partition_loss
from mirror_core.decide.view import (
    DestinationSnapshot,
    MirrorSnapshot,
    SourceSnapshot,
    find_write_barrier,
    is_healthy,
    join_limited,
    select_healthy,
)
from mirror_core.model.names import Partition
from mirror_core.model.ruling import WriteBarrier
from mirror_core.model.run import RunMode

LEFT_BEHIND_FACT: Final = "left behind"


def list_offline_partitions(snapshot: MirrorSnapshot) -> tuple[Partition, ...]:
    """Those that a planned failover would have to drain; FAILED ones are not copied anyway."""
    if snapshot.mode is not RunMode.PLANNED or not isinstance(snapshot.source, SourceSnapshot):
        return ()
    statuses = snapshot.statuses  # of tens of thousands mostly none is without a leader: only these are looked at
    return tuple(
        sorted(p for p in set(snapshot.source.offline_partitions) if p in statuses and is_healthy(statuses[p]))
    )


def list_left_behind(snapshot: MirrorSnapshot) -> tuple[Partition, ...]:
    return tuple(p for p in list_offline_partitions(snapshot) if p in snapshot.left_behind)


def explain_offline_refusals(snapshot: MirrorSnapshot) -> Iterator[str]:
    offline, left_partitions, name = (
        list_offline_partitions(snapshot),
        list_left_behind(snapshot),
        snapshot.mirror.source,
    )
    if not_left := [p for p in offline if p not in snapshot.left_behind]:
        hint = (
            ""
            if any(_explain_unsafe(snapshot, offline))
            else f", leave them behind (`mirrorbook failover run {snapshot.mirror.name} --leave-behind`)"
        )
        yield (
            f"{name}: no leader for {join_limited(not_left)}, so the rest cannot be copied: restore their brokers{hint}, or use "
            "--mode unplanned"
        )
    if left_partitions:
        yield from _explain_unsafe(snapshot, left_partitions)


def _explain_unsafe(snapshot: MirrorSnapshot, offline: Collection[Partition]) -> Iterator[str]:
    mirror, destination, source = snapshot.mirror, snapshot.destination, snapshot.source
    listed = join_limited(offline)
    if mirror.failback_run:
        yield (
            f"{listed} cannot be left behind on the way home: {mirror.destination} is the source again afterwards, and "
            f"nothing would save what only {mirror.source} has"
        )
    if find_write_barrier(snapshot) is WriteBarrier.NONE:
        yield (
            f"{listed} cannot be left behind: nothing fences {mirror.source}, so applications could write there, too, "
            "as soon as there is a leader"
        )
    mirrored = [
        p for p in select_healthy(snapshot.statuses) if isinstance(source, SourceSnapshot) and p.topic in source.topics
    ]
    if set(mirrored) <= set(offline):
        yield (
            f"{mirror.source} has no leader for any partition that is mirrored well: nothing is left to be moved by a "
            "planned failover"
        )
    if (
        isinstance(destination, DestinationSnapshot) and snapshot.active_run is None
    ):  # a run waits for them, in its drain
        unknown = [p for p in offline if p not in destination.positions and p not in destination.offline_partitions]
        if unknown:
            yield (
                f"{join_limited(unknown)} cannot be left behind: how far {mirror.destination} holds them is not known, since a "
                "broker there does not answer"
            )


def warn_left_behind(snapshot: MirrorSnapshot) -> Iterator[str]:
    left_partitions, source = list_left_behind(snapshot), snapshot.mirror.source
    if not left_partitions:
        return
    losses = compute_snapshot_loss(snapshot).partitions
    listed = join_limited(f"{p} ({format_partition_loss(losses[p])})" for p in left_partitions)
    yield (
        f"{len(left_partitions)} partition(s) without a leader on {source} are left behind, and promoted with what "
        f"{snapshot.mirror.destination} has of them: {listed}. What only {source} has of them stays there, fenced, until a "
        f"failback saves it. A broker that has lost {source}'s controllers and not its applications may take writes of "
        "them until it hears of the fence: see that it is down"
    )


def list_left_behind_figures(snapshot: MirrorSnapshot) -> Iterator[tuple[str, str]]:
    if left_partitions := list_left_behind(snapshot):
        missing = _list_missing(snapshot, left_partitions)
        known_counts = [count for count in missing if count is not None]
        unknown_text = f" (unknown of {len(missing) - len(known_counts)})" if len(known_counts) < len(missing) else ""
        missing_text = (
            f"at least {sum(known_counts)} offset(s) missing" if known_counts else "how much is missing is unknown"
        )
        yield (
            LEFT_BEHIND_FACT,
            f"{len(left_partitions)} partition(s); {missing_text}{unknown_text if known_counts else ''}",
        )


def forecast_left_behind_loss(snapshot: MirrorSnapshot, counted: Collection[Partition]) -> tuple[int | None, bool]:
    missing = _list_missing(snapshot, [p for p in list_left_behind(snapshot) if p in counted])
    known_counts = [count for count in missing if count is not None]
    return (sum(known_counts) if known_counts or not missing else None), bool(missing)


def _list_missing(snapshot: MirrorSnapshot, left_partitions: Collection[Partition]) -> list[int | None]:
    losses = compute_snapshot_loss(snapshot).partitions if left_partitions else {}
    return [losses[p].missing for p in left_partitions]
