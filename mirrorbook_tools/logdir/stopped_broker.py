"""Where logs should end: from the command line, or a file that a failback wrote.

{"cluster_id": "…", "run": "…", "topics": {"orders": {"id": "<topic id>", "partitions": {"0": 5995}}}}
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from mirror_core.model.errors import BadRequest, Refused
from mirror_core.model.names import Offset, Partition
from mirrorbook_tools.logdir.layout import (
    LogDir,
    LogDirOwner,
    NotTruncatable,
    PartitionLog,
    PartitionMovedAway,
    check_root_safety,
    parse_topic_id,
    read_log_dir,
    read_owner,
    read_partition,
)
from mirrorbook_tools.logdir.partition_truncation import PartitionTruncation, plan_truncation

_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TARGET_ARGUMENT: Final = re.compile(r"(.+)-(\d{1,9})=(\d{1,18})")


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncationTargets:
    origin: str
    cluster_id: str | None
    offsets: Mapping[Partition, Offset]
    topic_ids: Mapping[str, str]
    requires_all: bool
    """Each must be on this broker."""


class _TargetTopic(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    partitions: dict[int, int]


class _TargetFile(msgspec.Struct, forbid_unknown_fields=True):
    cluster_id: str
    run: str
    topics: dict[str, _TargetTopic]


def read_targets(path: Path) -> TruncationTargets:
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_TargetFile, strict=False)
        ids = {topic: parse_topic_id(topic_target.id) for topic, topic_target in document.topics.items()}
    except OSError as error:
        raise BadRequest(f"--to {path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise BadRequest(f"--to {path} is not a file that `mirrorbook failback` wrote: {error}") from None
    offsets = {
        (topic, index): end
        for topic, topic_target in document.topics.items()
        for index, end in topic_target.partitions.items()
    }
    return TruncationTargets(
        origin=f"{path} (run {document.run})",
        cluster_id=document.cluster_id,
        offsets={_to_partition(topic, index): _to_offset(topic, index, end) for (topic, index), end in offsets.items()},
        topic_ids=ids,
        requires_all=False,
    )


def parse_targets(arguments: Sequence[str]) -> TruncationTargets:
    """`TOPIC-N=OFFSET`."""
    offsets: dict[Partition, Offset] = {}
    for argument in arguments:
        match = _TARGET_ARGUMENT.fullmatch(argument)
        if match is None:
            raise BadRequest(f"--partition {argument!r}: give TOPIC-NUMBER=OFFSET, such as orders-0=5995")
        partition = _to_partition(match[1], int(match[2]))
        if partition in offsets:
            raise BadRequest(f"--partition {argument!r}: {partition} is given twice")
        offsets[partition] = Offset(int(match[3]))
    return TruncationTargets(origin="--partition", cluster_id=None, offsets=offsets, topic_ids={}, requires_all=True)


def _to_partition(topic: str, index: int) -> Partition:
    if not _TOPIC_NAME.fullmatch(topic) or topic in (".", "..") or index < 0:
        raise BadRequest(f"{topic!r}-{index} names no partition")
    return Partition(topic, index)


def _to_offset(topic: str, index: int, end: int) -> Offset:
    if end < 0:
        raise BadRequest(f"{topic}-{index}: {end} is no offset")
    return Offset(end)


NOTHING_CUT = "nothing was cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTruncation:
    owner: LogDirOwner
    truncations: Sequence[PartitionTruncation]
    absent: Sequence[Partition]
    """In the failback's file, but on other brokers."""
    has_clean_shutdown: bool

    @property
    def due_truncations(self) -> Sequence[PartitionTruncation]:
        return [cut for cut in self.truncations if cut.actions]


@contextmanager
def hold_stopped_broker(paths: Sequence[Path]) -> Iterator[Sequence[LogDir]]:
    """The broker cannot start meanwhile. Raises Refused when it runs."""
    with ExitStack() as stack:
        reasons = list[str]()
        log_dirs = list[LogDir]()
        for path in dict.fromkeys(path.resolve() for path in paths):
            try:
                check_root_safety(path)
                read_owner(path)  # before a lock file is created
                stack.enter_context(_hold_lock(path))
                log_dirs.append(_read_directory(path))
            except NotTruncatable as error:
                reasons.append(str(error))
        if len({log_dir.owner for log_dir in log_dirs}) > 1:
            reasons += [
                f"{listed.path} is of cluster {listed.owner.cluster_id}, node {listed.owner.node_id}: give one broker's"
                " only"
                for listed in log_dirs
            ]
        if reasons:
            raise Refused(NOTHING_CUT, reasons, reason_code="broker_not_stopped")
        yield log_dirs


def plan_broker_truncation(log_dirs: Sequence[LogDir], targets: TruncationTargets) -> BrokerTruncation:
    """All targets or none: Refused has every reason."""
    owner = log_dirs[0].owner
    if targets.cluster_id not in (None, owner.cluster_id):
        reason = f"{log_dirs[0].path} is of cluster {owner.cluster_id}, {targets.origin} is for {targets.cluster_id}"
        raise Refused(NOTHING_CUT, [reason], reason_code="broker_not_stopped")
    truncations, absent, reasons = list[PartitionTruncation](), list[Partition](), list[str]()
    for partition, target in sorted(targets.offsets.items()):
        try:
            log = read_partition(log_dirs, partition)
            if log is None:
                absent.append(partition)
                continue
            _check_topic_id(log, targets.topic_ids)
            truncations.append(plan_truncation(log, target))
        except PartitionMovedAway as error:
            if targets.requires_all:
                reasons.append(f"{partition}: {error}")
            else:
                absent.append(partition)
        except NotTruncatable as refusal:
            reasons.append(f"{partition}: {refusal}")
    if absent and (targets.requires_all or not truncations):
        folders = ", ".join(str(log_dir.path) for log_dir in log_dirs)
        reasons += [f"{partition} is not in {folders}: is that all of log.dirs?" for partition in absent]
    if reasons:
        raise Refused(NOTHING_CUT, reasons, reason_code="logs_not_cuttable")
    return BrokerTruncation(
        owner=owner,
        truncations=truncations,
        absent=absent,
        has_clean_shutdown=all(log_dir.has_clean_shutdown for log_dir in log_dirs),
    )


def _read_directory(path: Path) -> LogDir:
    try:
        return read_log_dir(path)
    except PermissionError as error:
        raise NotTruncatable(f"{error.filename} cannot be read: run this as the user that owns {path}") from None


def _check_topic_id(log: PartitionLog, ids: Mapping[str, str]) -> None:
    expected_id = ids.get(log.partition.topic)
    if expected_id not in (None, log.topic_id):
        raise NotTruncatable(
            f"{log.folder} is of the topic with id {log.topic_id}, the target is for {expected_id}: it was recreated"
        )


@contextmanager
def _hold_lock(log_dir: Path) -> Iterator[None]:
    """As the broker locks it (POSIX). Removes a new lock file afterwards."""
    path = log_dir / ".lock"
    is_new = not path.exists()
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise NotTruncatable(f"{path}: {reason}: run this as the user that owns {log_dir}") from None
    try:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise NotTruncatable(f"{log_dir} is in use: stop its broker first (SIGTERM), and keep it stopped") from None
        try:
            yield
        finally:
            if is_new:
                path.unlink(missing_ok=True)
    finally:
        os.close(lock)
