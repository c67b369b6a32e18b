"""Gaps (offsets without a visible record), where a copy resumes, and counts of deleted offsets.

A gap [start, end) is filled with one transaction marker per offset. Markers have no sequence, so brokers do not refuse
one too many. They do refuse one whose coordinator epoch is below the newest of its producer id
(TRANSACTION_COORDINATOR_FENCED). So each marker's coordinator epoch is

    (end - next data sequence) mod 2**28 << 3 | attempt

The first part counts filled offsets once this gap is full. It grows with each gap, so the first marker of a newer gap
fences those of older ones; a higher attempt does the same inside one gap. At the count's limit a partition becomes
FAILED (gap-limit).

Every offset was taken by a record of ours, which counts in the sequence, or by a marker of ours, which counts in its
number. So a healthy log ends at next sequence + offsets filled. One that ends earlier has a half filled gap, one that
ends later a foreign write.

A broker that forgets producers (producer.id.expiration.ms, counted from record times) forgets both numbers at once,
even under a running copier, and then learns only the one that comes first. The sum is then too small, as if others had
written: the logs themselves must be compared.

A copy whose position fell behind the source's log start continues from that start. Both sides are then equal, and no
later comparison finds the loss: so it is counted when it happens, and stored before a task goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from mirror_core.model.findings import Finding
from mirror_core.model.mirror import NeverCopied, PartitionState, PartitionStatus
from mirror_core.model.names import HEARTBEAT_TOPIC_PREFIX, Offset, Partition
from mirror_core.model.task_messages import TrimmedRange
from mirror_core.model.text import format_count, format_time, join_limited
from mirror_core.wire.batch import SEQUENCE_MASK

FILLED_MASK: Final = (1 << 28) - 1
"""Offsets that can be filled in one partition before it must be copied anew."""
MAX_ATTEMPT: Final = 7
NO_MARKER: Final = -1
_ATTEMPT_BITS: Final = 3
_TURN_COUNT: Final = 4
_SHORT_TURN_MS: Final = 200
_SHORT_TURN_OPEN_MS: Final = 80
_LONG_TURN_MS: Final = 1200
LONG_TURN_OPEN_MS: Final = 600
"""A new task reads the log end within this time: a bound on the destination's latency."""
_ROUND_MS: Final = _TURN_COUNT * _SHORT_TURN_MS + _LONG_TURN_MS


def count_filled(end: int, sequence: int) -> int:
    return (end - sequence) & FILLED_MASK


def decode_filled(coordinator_epoch: int) -> int:
    return max(coordinator_epoch, 0) >> _ATTEMPT_BITS


def to_first_marker_epoch(count: int) -> int:
    return count << _ATTEMPT_BITS


def choose_marker_epoch(count: int, newest_epoch: int, *, is_owned: bool) -> int | None:
    """Coordinator epoch for the gap that makes `count` filled offsets; None: none is left.

    `newest_epoch`: the highest known to be sent, by any task. `is_owned`: the caller sent it and all its requests are
    answered, so no other task's markers must be fenced.
    """
    first_epoch = to_first_marker_epoch(count)
    if newest_epoch < first_epoch:
        return first_epoch if is_owned else first_epoch + 1
    if newest_epoch >> _ATTEMPT_BITS != count:
        return None  # the count has gone once around
    if is_owned:
        return newest_epoch
    return newest_epoch + 1 if newest_epoch & MAX_ATTEMPT < MAX_ATTEMPT else None


def limit_markers_in_flight(missing: int) -> int:
    """After a crash there is always room for one marker of a higher attempt, which fences those in flight."""
    return max(1, missing - 1)


def find_turn(epoch: int, wall_ms: int) -> int | None:
    """The number of the current turn if the task of this epoch may fence another in it; else None.

    Two tasks that wait for the same gap would otherwise both fill it: nothing in the log tells their markers apart. So
    turns go by the clock; tasks of neighbouring epochs never share one. The time between two turns covers clock
    differences and requests in flight. A task that read the log in one turn must not act on it in another.

    Each round has a short turn for every task, and one long turn that leaves time for a distant broker's response.
    """
    round_number, into_round = divmod(wall_ms, _ROUND_MS)
    own_turn = epoch % _TURN_COUNT
    short_turn, into_short = divmod(into_round, _SHORT_TURN_MS)
    if short_turn < _TURN_COUNT:
        return (
            round_number * (_TURN_COUNT + 1) + short_turn
            if short_turn == own_turn and into_short < _SHORT_TURN_OPEN_MS
            else None
        )
    into_long = into_round - _TURN_COUNT * _SHORT_TURN_MS
    return (
        round_number * (_TURN_COUNT + 1) + _TURN_COUNT
        if round_number % _TURN_COUNT == own_turn and into_long < LONG_TURN_OPEN_MS
        else None
    )


FILLED_STEP_OFFSETS: Final = 1 << 24
"""The count is recorded in these steps: sixteen times in a partition's life."""
NEAR_LIMIT_OFFSETS: Final = 12 * FILLED_STEP_OFFSETS


def round_filled(filled: int) -> int:
    return filled - filled % FILLED_STEP_OFFSETS


def find_gap_limit(mirror: str, statuses: Iterable[PartitionStatus]) -> Finding | None:
    near_limit = [
        status
        for status in statuses
        if status.filled_gap_offsets >= NEAR_LIMIT_OFFSETS and status.state is not PartitionState.FAILED
    ]
    if not near_limit:
        return None
    fullest_first = sorted(near_limit, key=lambda status: (-status.filled_gap_offsets, status.partition))
    return Finding(
        "gap_limit_near",
        mirror,
        partitions=[status.partition for status in fullest_first],
        filled_offsets=fullest_first[0].filled_gap_offsets,
        limit_offsets=FILLED_MASK + 1,
    )


MAX_MARKED_START: Final = 100_000
"""A log start at most this far behind the position is reached by markers, which consumers never see."""
NO_KNOWN_OFFSET: Final = -1
_HALF: Final = (FILLED_MASK + 1) // 2
MAX_GAP_OFFSETS: Final = _HALF - 1
"""A wider one, half filled, would pass for a foreign write: filled offsets are counted modulo 2**28."""


@dataclass(frozen=True, slots=True)
class OwnProducerState:
    next_sequence: int
    """For the next batch; 0 if there were only markers."""
    coordinator_epoch: int
    """For the newest marker; -1 without one."""
    newest_ms: int = -1
    """Producer's time of the newest batch; -1 without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BothLogBounds:
    """Both logs of a partition at about one moment."""

    log_start: int
    log_end: int
    producer: OwnProducerState | None
    source_start: int
    source_end: int
    ends_as_sent: bool = False
    """The destination's last batch was checked: it has the time that it was sent with."""
    has_equal_tails: bool = False
    """The source's last record below the position is on the destination. Looked at where `is_interrupted`."""
    verified_end: int | None = None
    """Both sides were compared equal up to this next offset, and the destination's leader has not changed since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    offset: int
    sequence: int
    gap_end: int
    """[offset, gap_end) is filled first: a half filled gap, or up to the source's log start."""
    seed_end: int
    """[offset, seed_end) is seeded first, and deleted."""
    must_check_tail: bool
    """Compare the destination's unverified tail with the source's first."""
    newest_ms: int = -1
    deleted_from: int | None = None
    """The source deleted [this, its log start) before it was copied. For a partition never copied: where the copy
    begins.
    """


@dataclass(frozen=True, slots=True)
class ForeignWrite:
    """A foreign write on the destination, at this offset or before."""

    offset: int
    filled_offsets: int


@dataclass(frozen=True, slots=True)
class SourceLostRecords:
    position: int
    """Next offset to copy, behind a half filled gap."""
    reason: str
    must_check_tail: bool
    """The destination's tail is unverified: a foreign write may have made it longer."""


def decide_resume_point(
    logs: BothLogBounds, *, holds_deletions: bool = False
) -> ResumePoint | ForeignWrite | SourceLostRecords:
    """The position is the destination's log end, if our own records and markers end there.

    `holds_deletions`: the destination's log is kept; seeding would delete it.
    """
    position = logs.log_end
    missing = 0 if logs.producer is None else _count_missing(logs.producer, position)
    if logs.producer is not None and missing < 0 and not _can_be_forgotten(logs.producer):
        return ForeignWrite(max(logs.log_start, position + missing), decode_filled(logs.producer.coordinator_epoch))
    gap_end = position + max(missing, 0)
    is_unverified = logs.producer is None or missing < 0
    if gap_end > logs.source_end:
        return SourceLostRecords(
            gap_end,
            f"the source's log ends at {logs.source_end}, before the position {gap_end}: it lost records that were "
            "copied (unclean leader election)",
            is_unverified,
        )
    source_start, seed_end, deleted_from = logs.source_start, position, None
    if gap_end < source_start:
        deleted_from = gap_end
        # What the source itself deleted before it was copied is a gap like any other; a wide one is seeded instead. One
        # that is half filled becomes longer: before its old end the source has nothing left to tell where it ends.
        is_near = source_start - position <= MAX_MARKED_START
        uses_markers = gap_end > position or is_near or (holds_deletions and logs.log_start < position)
        gap_end, seed_end = (source_start, position) if uses_markers else (position, source_start)
    nothing_to_check = position == logs.log_start or position <= source_start
    return ResumePoint(
        offset=position,
        # A leader that knows nothing of us takes any sequence; the offset keeps the count of filled offsets small.
        sequence=position & SEQUENCE_MASK if logs.producer is None else logs.producer.next_sequence,
        gap_end=gap_end,
        seed_end=seed_end,
        must_check_tail=is_unverified and not nothing_to_check,
        newest_ms=-1 if logs.producer is None else logs.producer.newest_ms,
        deleted_from=deleted_from,
    )


def to_own_producer_state(log_end: int, next_sequence: int) -> OwnProducerState:
    return OwnProducerState(next_sequence, to_first_marker_epoch(count_filled(log_end, next_sequence)))


def _can_be_forgotten(producer: OwnProducerState) -> bool:
    """The leader has seen only data or only markers, or forgot the rest."""
    return producer.coordinator_epoch == NO_MARKER or producer.next_sequence == 0


def _count_missing(producer: OwnProducerState, log_end: int) -> int:
    """In our newest gap; negative: offsets of a foreign write."""
    if producer.coordinator_epoch == NO_MARKER:
        return -((log_end - producer.next_sequence) & SEQUENCE_MASK)
    missing = (producer.next_sequence + decode_filled(producer.coordinator_epoch) - log_end) & FILLED_MASK
    return missing if missing < _HALF else missing - FILLED_MASK - 1


def find_own_end(producer: OwnProducerState, log_end: int) -> int | None:
    """Next offset after our records and markers, by what the leader knows; too low where it has forgotten markers.

    None: it has forgotten our records, or our newest gap is half filled, and others may have written there.
    """
    missing = _count_missing(producer, log_end)
    return None if missing > 0 or (missing < 0 and producer.next_sequence == 0) else log_end + missing


def find_counted_end(status: PartitionStatus) -> Offset | None:
    """All deletions below this offset are recorded or not the mirror's. None: heartbeats."""
    if status.partition.topic.startswith(HEARTBEAT_TOPIC_PREFIX):
        return None
    return status.never_copied.next if status.never_copied else status.source_start


def count_deletion(status: PartitionStatus, deletion: TrimmedRange, now_ms: int) -> PartitionStatus:
    counted_end, earlier = find_counted_end(status), status.never_copied
    first = deletion.first if counted_end is None else max(deletion.first, counted_end)
    if first >= deletion.next:
        return status
    never_copied = NeverCopied(
        offsets=deletion.next - first + (earlier.offsets if earlier else 0),
        since_ms=earlier.since_ms if earlier else now_ms,
        newest_ms=now_ms,
        # Nothing was copied between this one and the last one: they are one.
        first=earlier.first if earlier and earlier.next == first else Offset(first),
        next=deletion.next,
    )
    return replace(status, never_copied=never_copied)


def count_deletions(
    statuses: Mapping[Partition, PartitionStatus], deletions: Iterable[TrimmedRange], now_ms: int
) -> dict[Partition, PartitionStatus]:
    changed: dict[Partition, PartitionStatus] = {}
    for deletion in sorted(deletions, key=lambda d: (d.partition, d.first)):
        status = changed.get(deletion.partition, statuses.get(deletion.partition))
        if status is not None and not deletion.partition.topic.startswith(HEARTBEAT_TOPIC_PREFIX):
            changed[deletion.partition] = count_deletion(status, deletion, now_ms)
    return {partition: status for partition, status in changed.items() if status != statuses[partition]}


def sum_never_copied(statuses: Iterable[PartitionStatus]) -> int:
    return sum(s.never_copied.offsets for s in statuses if s.never_copied)


def format_never_copied(statuses: Mapping[Partition, PartitionStatus]) -> str:
    never_copied = {p: s.never_copied for p, s in sorted(statuses.items()) if s.never_copied}
    if not never_copied:
        return ""
    fullest_first = sorted(never_copied, key=lambda p: (-never_copied[p].offsets, p))
    since = min(record.since_ms for record in never_copied.values())
    listed = join_limited(
        [
            f"{p} ({never_copied[p].offsets:,}, the last of them [{never_copied[p].first}, {never_copied[p].next}))"
            for p in fullest_first
        ]
    )
    return (
        f"{format_count(sum_never_copied(statuses.values()), 'offset')} of"
        f" {format_count(len(never_copied), 'partition')}, first found {format_time(since)}: {listed}"
    )
