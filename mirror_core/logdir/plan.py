"""Plans the truncation of a partition.

The log is valid after each action, so a killed command can be repeated. Indexes go before their segment is cut: a
broker trusts an index, and a too long one makes it use a wrong log end and overwrite records. Without indexes it
reads the segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirror_core.decide.cutting import NONE_OPEN, CutPoint, cut_point
from mirror_core.logdir.layout import CLEANED, INDEXES, LOG, SNAPSHOT, PartitionLog, Segment, Unfit, checkpoint
from mirror_core.logdir.segments import Damaged, headers, log_end, open_at, place_of, walk
from mirror_core.model.names import Offset
from mirror_core.wire.batch import CONTROL, NEWEST


@dataclass(frozen=True, slots=True)
class Lower:
    """So that less counts as compacted."""

    checkpoint: Path
    to: Offset


@dataclass(frozen=True, slots=True)
class Remove:
    """Gone for good before the next action."""

    paths: Sequence[Path]


@dataclass(frozen=True, slots=True)
class Shorten:
    path: Path
    to: int


Action = Lower | Remove | Shorten


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    batches: int
    records: int | None
    """Unknown (None) with old formats or damage."""
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    log: PartitionLog
    target: Offset
    log_end: Offset
    boundary: Offset
    """End of a batch, at or below the target."""
    offset: Offset
    """Log end afterwards; below the boundary if transactions are open there."""
    open: Mapping[int, Offset]
    """First offset by producer id, at the boundary."""
    lost: Lost
    actions: Sequence[Action]
    """Empty: nothing to cut."""


def plan(log: PartitionLog, target: Offset) -> Cut:
    """Raises NotTruncatable."""
    if target < log.start:
        raise Unfit(f"the log starts at {log.start}, behind {target}: none of it would be left. Recreate the topic")
    end = log_end(log)
    point = _point(log, target)
    if point.offset is None or point.offset < log.start:
        raise Unfit(
            f"at {target} or below no batch ends, without a transaction being open, behind the log start {log.start}: "
            "recreate the topic"
        )
    if point.offset < end and (left := open_at(log, end)):
        raise Unfit(
            f"transactions are open at its end {end} (of producer ids {', '.join(map(str, sorted(left)))}): their "
            "coordinator would append their markers to what is left. Start the broker, end them "
            "(kafka-transactions.sh), stop it and come back"
        )
    lost, actions = Lost(batches=0, records=0, bytes=0), list[Action]()
    if point.offset < end:
        kept = _kept(log, point.offset)
        place = place_of(kept, point.offset)
        lost = _lost(log, kept, point.offset, place)
        actions = list(_actions(log, kept, point.offset, place))
    return Cut(
        log=log, target=target, log_end=end, boundary=point.boundary, offset=point.offset, open=point.open, lost=lost,
        actions=actions,
    )  # fmt: skip


def verify(cut: Cut, log: PartitionLog) -> None:
    """Raises NotTruncatable."""
    end = log_end(log)
    if end != cut.offset:
        raise Unfit(f"it ends at {end}, not at {cut.offset}")
    place_of(log.segments[-1], end)
    left = [path for base, path in log.numbered(*INDEXES) if base >= log.segments[-1].base]
    left += [path for base, path in log.numbered(SNAPSHOT) if base > end]
    if cut.actions and left:
        raise Unfit(f"{', '.join(map(str, left))} should not be there any more")


def _point(log: PartitionLog, target: Offset) -> CutPoint:
    """Reads few segments: starts at the newest one with a producer snapshot."""
    bases = [segment.base for segment in log.segments]
    first = max((number for number, base in enumerate(bases) if base <= target), default=0)
    while True:
        open_before = open_at(log, bases[first])
        if open_before is None and first:
            first -= 1
            continue
        found = headers(log.segments[first:], torn_end=not log.clean)
        point = cut_point(found, target, bases[first], open_before or NONE_OPEN)
        # A segment's start is no safe end: compaction may have left a hole before it.
        if not first or (point.offset is not None and point.offset > bases[first]):
            return point
        oldest = min([*point.open.values(), *(open_before or NONE_OPEN).values()], default=bases[first])
        below = max((number for number, base in enumerate(bases) if base <= oldest), default=0)
        first = min(first - 1, below)


def _kept(log: PartitionLog, offset: Offset) -> Segment:
    """The first segment stays even if empty, since its name is the next offset."""
    return [segment for segment in log.segments if segment.base < offset or segment is log.segments[0]][-1]


def _lost(log: PartitionLog, kept: Segment, offset: Offset, place: int) -> Lost:
    count, records, size = 0, 0, -place
    whole = True
    for segment in log.segments:
        if segment.base < kept.base:
            continue
        size += segment.path.stat().st_size
        try:
            for header, _, _ in walk(segment):
                if header.next_offset > offset:
                    count += 1
                    whole = whole and header.magic >= NEWEST
                    records += 0 if header.attributes & CONTROL else header.record_count
        except Damaged:
            whole = False
    return Lost(batches=count, records=records if whole else None, bytes=size)


def _actions(log: PartitionLog, kept: Segment, offset: Offset, place: int) -> Iterator[Action]:
    noted = checkpoint(log.log_dir / CLEANED).get(log.partition)
    if noted is not None and noted > offset:
        yield Lower(log.log_dir / CLEANED, offset)
    stale = [path for base, path in log.numbered(SNAPSHOT) if base > offset]
    stale += [path for base, path in log.numbered(*INDEXES) if base == kept.base]
    if stale:
        yield Remove(stale)
    above = [(base, path) for kinds in (INDEXES, (LOG,)) for base, path in log.numbered(*kinds) if base > kept.base]
    for highest in sorted({base for base, _ in above}, reverse=True):
        yield Remove([path for base, path in above if base == highest])
    if kept.path.stat().st_size > place:
        yield Shorten(kept.path, place)
