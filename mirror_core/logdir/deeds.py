"""What is done to a stopped broker's logs. Each deed is on the disk before the next one begins, and may be repeated."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from mirror_core.logdir.disk import sync
from mirror_core.logdir.layout import LogDir, Unfit, checkpoint, read_partition
from mirror_core.logdir.plan import Cut, Deed, Lower, Remove, verify
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import Offset, Partition


class HalfDone(MirrorError):
    """Cutting did not come to its end, or to another one."""


def perform(cuts: Sequence[Cut], log_dirs: Sequence[LogDir], done: Callable[[Cut], None]) -> None:
    """Cut, and look whether it is cut. HalfDone: repeat it before the broker starts."""
    for cut in cuts:
        log = cut.log
        try:
            for deed in cut.deeds:
                do(log.partition, deed)
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


def do(partition: Partition, deed: Deed) -> None:
    """One of them."""
    if isinstance(deed, Lower):
        _note(deed.checkpoint, checkpoint(deed.checkpoint) | {partition: deed.to})
    elif isinstance(deed, Remove):
        for path in deed.paths:
            path.unlink(missing_ok=True)
        sync(deed.paths[0].parent)
    else:
        with deed.path.open("r+b") as log:
            log.truncate(deed.to)
            os.fsync(log.fileno())


def _note(path: Path, offsets: dict[Partition, Offset]) -> None:
    """A checkpoint file as brokers write it, of the same owner."""
    rows = "".join(f"{partition.topic} {partition.index} {offset}\n" for partition, offset in offsets.items())
    before, beside = path.stat(), path.with_name(f"{path.name}.tmp")
    with beside.open("w", encoding="utf-8") as file:
        file.write(f"0\n{len(offsets)}\n{rows}")
        file.flush()
        os.fchmod(file.fileno(), before.st_mode & 0o777)
        if before.st_uid != os.geteuid():
            os.fchown(file.fileno(), before.st_uid, before.st_gid)
        os.fsync(file.fileno())
    beside.replace(path)
    sync(path.parent)
