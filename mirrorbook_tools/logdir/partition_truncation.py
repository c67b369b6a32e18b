"""Plans the truncation of a partition.

The log is valid after each action, so a killed command can be repeated. Indexes go before their segment is cut: a
broker trusts an index, and a too long one makes it use a wrong log end and overwrite records. Without indexes it
reads the segment.

Executes truncations. Each action is on disk before the next, and may be repeated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirror_core.decide.truncation import NO_OPEN_TRANSACTIONS, CutPoint, find_cut_point
from mirror_core.model.errors import MirrorError
from mirror_core.model.files import sync_path
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.batch import CONTROL, CURRENT_MAGIC
from mirrorbook_tools.logdir.layout import (
    CLEANER_CHECKPOINT,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    LogDir,
    LogSegment,
    NotTruncatable,
    PartitionLog,
    read_checkpoint,
    read_partition,
)
from mirrorbook_tools.logdir.segments import (
    DamagedSegment,
    find_end_position,
    find_log_end,
    iterate_batches,
    iterate_headers,
    read_open_transactions,
)


@dataclass(frozen=True, slots=True)
class LowerCheckpoint:
    """So that less counts as compacted."""

    checkpoint: Path
    offset: Offset


@dataclass(frozen=True, slots=True)
class RemoveFiles:
    """Gone for good before the next action."""

    paths: Sequence[Path]


@dataclass(frozen=True, slots=True)
class ShortenSegment:
    path: Path
    size: int


TruncationAction = LowerCheckpoint | RemoveFiles | ShortenSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedRecords:
    batches: int
    records: int | None
    """Unknown (None) with old formats or damage."""
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTruncation:
    log: PartitionLog
    target: Offset
    log_end: Offset
    boundary: Offset
    """End of a batch, at or below the target."""
    offset: Offset
    """Log end afterwards; below the boundary if transactions are open there."""
    open_transactions: Mapping[int, Offset]
    """First offset by producer id, at the boundary."""
    removed: RemovedRecords
    actions: Sequence[TruncationAction]
    """Empty: nothing to cut."""


def plan_truncation(log: PartitionLog, target: Offset) -> PartitionTruncation:
    """Raises NotTruncatable."""
    if target < log.start:
        raise NotTruncatable(
            f"the log starts at {log.start}, behind {target}: none of it would be left. Recreate the topic"
        )
    end = find_log_end(log)
    point = _find_cut_point(log, target)
    if point.offset is None or point.offset < log.start:
        raise NotTruncatable(
            f"at {target} or below no batch ends, without a transaction being open, behind the log start {log.start}: "
            "recreate the topic"
        )
    if point.offset < end and (open_transactions := read_open_transactions(log, end)):
        raise NotTruncatable(
            f"transactions are open at its end {end} (of producer ids"
            f" {', '.join(map(str, sorted(open_transactions)))}): their coordinator would append their markers to what"
            " is left. Start the broker, end them (kafka-transactions.sh), stop it and come back"
        )
    removed, actions = RemovedRecords(batches=0, records=0, bytes=0), list[TruncationAction]()
    if point.offset < end:
        last_segment = _find_last_segment(log, point.offset)
        position = find_end_position(last_segment, point.offset)
        removed = _count_removed(log, last_segment, point.offset, position)
        actions = list(_list_actions(log, last_segment, point.offset, position))
    return PartitionTruncation(
        log=log,
        target=target,
        log_end=end,
        boundary=point.boundary,
        offset=point.offset,
        open_transactions=point.open_transactions,
        removed=removed,
        actions=actions,
    )


def verify_truncation(truncation: PartitionTruncation, log: PartitionLog) -> None:
    """Raises NotTruncatable."""
    end = find_log_end(log)
    if end != truncation.offset:
        raise NotTruncatable(f"it ends at {end}, not at {truncation.offset}")
    find_end_position(log.segments[-1], end)
    leftover_files = [path for base, path in log.list_files(*INDEX_SUFFIXES) if base >= log.segments[-1].base]
    leftover_files += [path for base, path in log.list_files(SNAPSHOT_SUFFIX) if base > end]
    if truncation.actions and leftover_files:
        raise NotTruncatable(f"{', '.join(map(str, leftover_files))} should not be there any more")


def _find_cut_point(log: PartitionLog, target: Offset) -> CutPoint:
    """Reads few segments: starts at the newest one with a producer snapshot."""
    bases = [segment.base for segment in log.segments]
    first = max((number for number, base in enumerate(bases) if base <= target), default=0)
    while True:
        open_before = read_open_transactions(log, bases[first])
        if open_before is None and first:
            first -= 1
            continue
        batch_headers = iterate_headers(log.segments[first:], torn_end=not log.has_clean_shutdown)
        point = find_cut_point(batch_headers, target, bases[first], open_before or NO_OPEN_TRANSACTIONS)
        # A segment's start is no safe end: compaction may have left a hole before it.
        if not first or (point.offset is not None and point.offset > bases[first]):
            return point
        oldest = min(
            [*point.open_transactions.values(), *(open_before or NO_OPEN_TRANSACTIONS).values()], default=bases[first]
        )
        below = max((number for number, base in enumerate(bases) if base <= oldest), default=0)
        first = min(first - 1, below)


def _find_last_segment(log: PartitionLog, offset: Offset) -> LogSegment:
    """The first segment stays even if empty, since its name is the next offset."""
    return [segment for segment in log.segments if segment.base < offset or segment is log.segments[0]][-1]


def _count_removed(log: PartitionLog, last_segment: LogSegment, offset: Offset, position: int) -> RemovedRecords:
    count, records, size = 0, 0, -position
    is_complete = True
    for segment in log.segments:
        if segment.base < last_segment.base:
            continue
        size += segment.path.stat().st_size
        try:
            for header, _, _ in iterate_batches(segment):
                if header.next_offset > offset:
                    count += 1
                    is_complete = is_complete and header.magic >= CURRENT_MAGIC
                    records += 0 if header.attributes & CONTROL else header.record_count
        except DamagedSegment:
            is_complete = False
    return RemovedRecords(batches=count, records=records if is_complete else None, bytes=size)


def _list_actions(
    log: PartitionLog, last_segment: LogSegment, offset: Offset, position: int
) -> Iterator[TruncationAction]:
    cleaned_offset = read_checkpoint(log.log_dir / CLEANER_CHECKPOINT).get(log.partition)
    if cleaned_offset is not None and cleaned_offset > offset:
        yield LowerCheckpoint(log.log_dir / CLEANER_CHECKPOINT, offset)
    stale_files = [path for base, path in log.list_files(SNAPSHOT_SUFFIX) if base > offset]
    stale_files += [path for base, path in log.list_files(*INDEX_SUFFIXES) if base == last_segment.base]
    if stale_files:
        yield RemoveFiles(stale_files)
    later_files = [
        (base, path)
        for kinds in (INDEX_SUFFIXES, (LOG_SUFFIX,))
        for base, path in log.list_files(*kinds)
        if base > last_segment.base
    ]
    for highest in sorted({base for base, _ in later_files}, reverse=True):
        yield RemoveFiles([path for base, path in later_files if base == highest])
    if last_segment.path.stat().st_size > position:
        yield ShortenSegment(last_segment.path, position)


class TruncationIncomplete(MirrorError):
    """Truncation did not finish, or ended elsewhere."""


def perform_truncations(
    truncations: Sequence[PartitionTruncation],
    log_dirs: Sequence[LogDir],
    report_done: Callable[[PartitionTruncation], None],
) -> None:
    """Cuts and verifies. After TruncationIncomplete repeat it before the broker starts."""
    for truncation in truncations:
        log = truncation.log
        try:
            for action in truncation.actions:
                perform_action(log.partition, action)
            reread_log = read_partition([d for d in log_dirs if d.path == log.log_dir], log.partition)
            if reread_log is None:
                raise NotTruncatable(f"{log.folder} is gone")
            verify_truncation(truncation, reread_log)
        except (OSError, NotTruncatable) as error:
            reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
            raise TruncationIncomplete(
                f"{log.partition} was not cut at offset {truncation.offset}: {reason}. Mend that and repeat the"
                " command; do not start the broker before"
            ) from None
        report_done(truncation)


def perform_action(partition: Partition, action: TruncationAction) -> None:
    if isinstance(action, LowerCheckpoint):
        _write_checkpoint(action.checkpoint, read_checkpoint(action.checkpoint) | {partition: action.offset})
    elif isinstance(action, RemoveFiles):
        for path in action.paths:
            path.unlink(missing_ok=True)
        sync_path(action.paths[0].parent)
    else:
        descriptor = os.open(action.path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            os.ftruncate(descriptor, action.size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_checkpoint(path: Path, offsets: dict[Partition, Offset]) -> None:
    rows = "".join(f"{partition.topic} {partition.index} {offset}\n" for partition, offset in offsets.items())
    old_stat, new_file = path.stat(), path.with_name(f"{path.name}.tmp")
    new_file.unlink(missing_ok=True)  # left by a killed attempt
    with new_file.open("x", encoding="utf-8") as file:
        file.write(f"0\n{len(offsets)}\n{rows}")
        file.flush()
        os.fchmod(file.fileno(), old_stat.st_mode & 0o777)
        os.fsync(file.fileno())
    new_file.replace(path)
    sync_path(path.parent)
