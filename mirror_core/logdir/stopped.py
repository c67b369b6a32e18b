from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from mirror_core.logdir.layout import (
    LogDir,
    Moved,
    Owner,
    PartitionLog,
    Unfit,
    check_not_root_elsewhere,
    owner_of,
    read_log_dir,
    read_partition,
)
from mirror_core.logdir.plan import Cut, plan
from mirror_core.logdir.targets import Targets
from mirror_core.model.errors import Refused
from mirror_core.model.names import Partition

NOT_DONE = "nothing was cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    owner: Owner
    cuts: Sequence[Cut]
    elsewhere: Sequence[Partition]
    """In the failback's file, but on other brokers."""
    clean: bool

    @property
    def due(self) -> Sequence[Cut]:
        return [cut for cut in self.cuts if cut.actions]


@contextmanager
def stopped(paths: Sequence[Path]) -> Iterator[Sequence[LogDir]]:
    """The broker cannot start meanwhile. Raises Refused when it runs."""
    with ExitStack() as held:
        reasons = list[str]()
        found = list[LogDir]()
        for path in dict.fromkeys(path.resolve() for path in paths):
            try:
                check_not_root_elsewhere(path)
                owner_of(path)  # before a lock file is created
                held.enter_context(_locked(path))
                found.append(_read(path))
            except Unfit as unfit:
                reasons.append(str(unfit))
        if len({log_dir.owner for log_dir in found}) > 1:
            reasons += [
                f"{one.path} is of cluster {one.owner.cluster_id}, node {one.owner.node_id}: give one broker's only"
                for one in found
            ]
        if reasons:
            raise Refused(NOT_DONE, reasons)
        yield found


def planned(log_dirs: Sequence[LogDir], targets: Targets) -> Plan:
    """All targets or none: Refused has every reason."""
    owner = log_dirs[0].owner
    if targets.cluster_id not in (None, owner.cluster_id):
        reason = f"{log_dirs[0].path} is of cluster {owner.cluster_id}, {targets.origin} is for {targets.cluster_id}"
        raise Refused(NOT_DONE, [reason])
    cuts, elsewhere, reasons = list[Cut](), list[Partition](), list[str]()
    for partition, target in sorted(targets.offsets.items()):
        try:
            log = read_partition(log_dirs, partition)
            if log is None:
                elsewhere.append(partition)
                continue
            _check_id(log, targets.topic_ids)
            cuts.append(plan(log, target))
        except Moved as moved:
            if targets.all_here:
                reasons.append(f"{partition}: {moved}")
            else:
                elsewhere.append(partition)
        except Unfit as unfit:
            reasons.append(f"{partition}: {unfit}")
    if elsewhere and (targets.all_here or not cuts):
        where = ", ".join(str(log_dir.path) for log_dir in log_dirs)
        reasons += [f"{partition} is not in {where}: is that all of log.dirs?" for partition in elsewhere]
    if reasons:
        raise Refused(NOT_DONE, reasons)
    return Plan(owner=owner, cuts=cuts, elsewhere=elsewhere, clean=all(log_dir.clean for log_dir in log_dirs))


def _read(path: Path) -> LogDir:
    try:
        return read_log_dir(path)
    except PermissionError as error:
        raise Unfit(f"{error.filename} cannot be read: run this as the user that owns {path}") from None


def _check_id(log: PartitionLog, ids: Mapping[str, str]) -> None:
    wanted = ids.get(log.partition.topic)
    if wanted not in (None, log.topic_id):
        raise Unfit(
            f"{log.folder} is of the topic with id {log.topic_id}, the target is for {wanted}: it was recreated"
        )


@contextmanager
def _locked(log_dir: Path) -> Iterator[None]:
    """As the broker locks it (POSIX). Removes a new lock file afterwards."""
    path = log_dir / ".lock"
    made = not path.exists()
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise Unfit(f"{path}: {why}: run this as the user that owns {log_dir}") from None
    try:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Unfit(f"{log_dir} is in use: stop its broker first (SIGTERM), and keep it stopped") from None
        try:
            yield
        finally:
            if made:
                path.unlink(missing_ok=True)
    finally:
        os.close(lock)
