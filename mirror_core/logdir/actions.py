"""Executes truncations. Each action is on disk before the next, and may be repeated."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from mirror_core.logdir.layout import LogDir, Unfit, checkpoint, read_partition
from mirror_core.logdir.plan import Action, Cut, Lower, Remove, verify
from mirror_core.model.errors import MirrorError
from mirror_core.model.files import sync
from mirror_core.model.names import Offset, Partition


class HalfDone(MirrorError):
    """Truncation did not finish, or ended elsewhere."""


def perform(cuts: Sequence[Cut], log_dirs: Sequence[LogDir], done: Callable[[Cut], None]) -> None:
    """Cuts and verifies. After TruncationIncomplete repeat it before the broker starts."""
    for cut in cuts:
        log = cut.log
        try:
            for action in cut.actions:
                do(log.partition, action)
            anew = read_partition([d for d in log_dirs if d.path == log.log_dir], log.partition)
            if anew is None:
                raise Unfit(f"{log.folder} is gone")
            verify(cut, anew)
        except (OSError, Unfit) as error:
            why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
            raise HalfDone(
                f"{log.partition} was not cut at offset {cut.offset}: {why}. Mend that and repeat the command; do not "
                "start the broker before"
            ) from None
        done(cut)


def do(partition: Partition, action: Action) -> None:
    if isinstance(action, Lower):
        _note(action.checkpoint, checkpoint(action.checkpoint) | {partition: action.to})
    elif isinstance(action, Remove):
        for path in action.paths:
            path.unlink(missing_ok=True)
        sync(action.paths[0].parent)
    else:
        log = os.open(action.path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            os.ftruncate(log, action.to)
            os.fsync(log)
        finally:
            os.close(log)


def _note(path: Path, offsets: dict[Partition, Offset]) -> None:
    rows = "".join(f"{partition.topic} {partition.index} {offset}\n" for partition, offset in offsets.items())
    before, beside = path.stat(), path.with_name(f"{path.name}.tmp")
    beside.unlink(missing_ok=True)  # left by a killed attempt
    with beside.open("x", encoding="utf-8") as file:
        file.write(f"0\n{len(offsets)}\n{rows}")
        file.flush()
        os.fchmod(file.fileno(), before.st_mode & 0o777)
        os.fsync(file.fileno())
    beside.replace(path)
    sync(path.parent)
