"""Executes truncations. Each action is on disk before the next, and may be repeated."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from mirror_core.logdir.layout import LogDir, NotTruncatable, read_checkpoint, read_partition
from mirror_core.logdir.plan import (
    LowerCheckpoint,
    PartitionTruncation,
    RemoveFiles,
    TruncationAction,
    verify_truncation,
)
from mirror_core.model.errors import MirrorError
from mirror_core.model.files import sync_path
from mirror_core.model.names import Offset, Partition


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
                f"{log.partition} was not cut at offset {truncation.offset}: {reason}. Mend that and repeat the command; do not "
                "start the broker before"
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
