"""How long the destination keeps what the source deleted, by mistake or by a thief; what it lacks before the source.

DeleteRecords and retention look alike from outside, so both are held, and so is compaction that begins. One record a
partition: up to where the source had deleted, and when. Later deletions wait for the next record, so a deletion follows
after one hold at least, and two at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from mirror_core.decide.gaps_and_resume import find_counted_end
from mirror_core.model.figures import FigureItems, FigureKey, format_figures
from mirror_core.model.mirror import FailureKind, HeldDeletion, PartitionState, PartitionStatus
from mirror_core.model.names import HEARTBEAT_TOPIC_PREFIX, Offset, Partition
from mirror_core.model.sync_state import TopicSettings
from mirror_core.model.text import format_duration_ms, join_limited

NO_STARTS: Final[Mapping[Partition, Offset]] = MappingProxyType({})


_OTHER_TOPIC_KINDS: Final = frozenset({FailureKind.REPLACED, FailureKind.RECREATED, FailureKind.RECOPYING})


class LogStarts(NamedTuple):
    destination: Offset
    source: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldDecision:
    held: HeldDeletion | None
    """To be recorded where it differs."""
    move_to: Offset | None = None
    """The destination's new log start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldDecisions:
    changed: Mapping[Partition, HeldDeletion | None]
    """To be recorded."""
    due: Mapping[Partition, Offset]
    """New log starts of the destination."""


def decide_hold(held: HeldDeletion | None, starts: LogStarts, *, now_ms: int | None, hold_ms: int) -> HoldDecision:
    """`now_ms`: by the clock of the destination's brokers; None: unknown, nothing moves.

    Nothing is deleted in the call that first notices it, so it is recorded before. A source's log start that went back
    (a broker was killed before it stored it) takes back what was noticed beyond it.
    """
    if starts.source <= starts.destination:
        return HoldDecision(held=None)
    if hold_ms <= 0:
        return HoldDecision(held=None, move_to=starts.source)
    if held is None or held.next <= starts.destination:
        if now_ms is None:
            return HoldDecision(held=None)
        return HoldDecision(held=HeldDeletion(first=starts.destination, next=starts.source, since_ms=now_ms))
    held = replace(held, next=min(held.next, starts.source))
    is_due = now_ms is not None and held.since_ms + hold_ms <= now_ms
    return HoldDecision(held=held, move_to=held.next if is_due else None)


def decide_holds(
    held_deletions: Mapping[Partition, HeldDeletion],
    starts: Mapping[Partition, LogStarts],
    *,
    now_ms: int | None,
    hold_ms: int,
) -> HoldDecisions:
    """Heartbeats are not held: their topic is kept small on purpose."""
    decisions = {
        p: decide_hold(
            held_deletions.get(p),
            both,
            now_ms=now_ms,
            hold_ms=0 if p.topic.startswith(HEARTBEAT_TOPIC_PREFIX) else hold_ms,
        )
        for p, both in starts.items()
    }
    return HoldDecisions(
        changed={p: decision.held for p, decision in decisions.items() if decision.held != held_deletions.get(p)},
        due={p: decision.move_to for p, decision in decisions.items() if decision.move_to is not None},
    )


class EarlyDeletion(NamedTuple):
    """Offsets [first, next) that the destination does not hold any more, and that the source had when last seen."""

    first: Offset
    next: Offset

    def count_below(self, end: Offset) -> int:
        return max(0, min(self.next, end) - self.first)


def find_early_deletions(
    statuses: Iterable[PartitionStatus],
    log_starts: Mapping[Partition, Offset],
    source_starts: Mapping[Partition, Offset] = NO_STARTS,
) -> dict[Partition, EarlyDeletion]:
    """`log_starts`: of the destination. `source_starts`: as seen now, where it is.

    Heartbeats are left out, and copies that have not reached the source's log start yet.
    """
    deletions = dict[Partition, EarlyDeletion]()
    for status in statuses:
        partition, counted_end = status.partition, find_counted_end(status)
        log_start = log_starts.get(partition)
        is_copy = status.kind not in _OTHER_TOPIC_KINDS
        if log_start is None or counted_end is None or status.followed_start is None or not is_copy:
            continue
        first = max(counted_end, status.followed_start, source_starts.get(partition, counted_end))
        if log_start > first:
            deletions[partition] = EarlyDeletion(first, log_start)
    return deletions


def find_newer_starts(
    source_starts: Mapping[Partition, Offset],
    initial_starts: Mapping[Partition, Offset],
    followed_starts: Mapping[Partition, Offset],
) -> dict[Partition, Offset]:
    """Those that are to be recorded as `PartitionStatus.followed_start`. They never go back."""
    newest = {
        p: max(start, initial_starts.get(p, start), followed_starts.get(p, start)) for p, start in source_starts.items()
    }
    return {p: start for p, start in newest.items() if followed_starts.get(p) != start}


def format_early_deletions(deletions: Mapping[Partition, EarlyDeletion]) -> str:
    return join_limited(f"{p} [{first}, {end})" for p, (first, end) in sorted(deletions.items()))


def find_compaction_start(recorded: TopicSettings | None, *, is_compacted: bool, now_ms: int) -> int | None:
    """When the source was first seen to clean the topic by key, which deletes records as well."""
    if not is_compacted:
        return None
    return now_ms if recorded is None or recorded.compacted_since_ms is None else recorded.compacted_since_ms


def is_compaction_held(since_ms: int | None, *, now_ms: int, hold_ms: int) -> bool:
    return since_ms is not None and now_ms < since_ms + hold_ms


def list_held_figures(statuses: Mapping[Partition, PartitionStatus]) -> FigureItems:
    """Stopped partitions follow nobody."""
    held = {
        p: status.held_deletion
        for p, status in sorted(statuses.items())
        if status.held_deletion and status.state is not PartitionState.STOPPED
    }
    if held:
        largest_first = sorted(held, key=lambda p: (held[p].first - held[p].next, p))
        yield FigureKey.HELD_OFFSETS, sum(deletion.next - deletion.first for deletion in held.values())
        yield FigureKey.HELD_PARTITIONS, len(held)
        yield FigureKey.HELD_SINCE_MS, min(deletion.since_ms for deletion in held.values())
        yield FigureKey.HELD_RANGES, tuple(f"{p} [{held[p].first}, {held[p].next})" for p in largest_first)


def format_held_deletions(statuses: Mapping[Partition, PartitionStatus]) -> str:
    held_figures = dict(list_held_figures(statuses))
    return format_figures(held_figures) if held_figures else ""


def format_hold(statuses: Mapping[Partition, PartitionStatus], hold_ms: int) -> str:
    if not hold_ms:
        return "none: deletions are followed at once"
    return f"for {format_duration_ms(hold_ms)}: {format_held_deletions(statuses) or 'none now'}"
