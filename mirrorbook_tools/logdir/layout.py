"""Files in a broker's log directories (`log.dirs`, KRaft, Kafka 4.x), and what may be cut.

<log dir>/meta.properties                  cluster and node id
<log dir>/.lock                            held by a running broker
<log dir>/.kafka_cleanshutdown             clean shutdown
<log dir>/log-start-offset-checkpoint      log starts inside a segment
<log dir>/cleaner-offset-checkpoint        compacted up to
<log dir>/<topic>-<n>/partition.metadata   topic id
<log dir>/<topic>-<n>/<offset>.log         a segment; indexes: .index, .timeindex, .txnindex
<log dir>/<topic>-<n>/<offset>.snapshot    producer states at that offset

Unknown files are refused, not skipped.
"""

from __future__ import annotations

import base64
import binascii
import os
import pwd
import re
import stat
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mirror_core.model.names import Offset, Partition

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIXES: Final = (".index", ".timeindex", ".txnindex")
SNAPSHOT_SUFFIX: Final = ".snapshot"
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
LOG_START_CHECKPOINT: Final = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"

_NUMBERED_FILE: Final = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)")
_IGNORED_FILE: Final = re.compile(r"leader-epoch-checkpoint(\.tmp)?|partition\.metadata(\.tmp)?|.*\.deleted")
"""No offsets that are cut, or removed by the broker at its start."""
_RENAMED_FOLDER: Final = re.compile(r"(.+-\d+)\.[^.]+-(?:future|delete|stray)")


class NotTruncatable(Exception):
    """Why it cannot be cut, for the list of reasons."""


class PartitionMovedAway(NotTruncatable):
    """The broker deletes it soon (file.delete.delay.ms); other brokers may have it."""


@dataclass(frozen=True, slots=True)
class LogDirOwner:
    cluster_id: str
    node_id: str


@dataclass(frozen=True, slots=True)
class LogSegment:
    base: Offset
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLog:
    """Only names and small files were read."""

    partition: Partition
    topic_id: str
    log_dir: Path
    segments: Sequence[LogSegment]
    start: Offset
    has_clean_shutdown: bool

    @property
    def folder(self) -> Path:
        return self.log_dir / str(self.partition)

    def list_files(self, *suffixes: str) -> Iterator[tuple[Offset, Path]]:
        for path in sorted(self.folder.iterdir(), reverse=True):
            match = _NUMBERED_FILE.fullmatch(path.name)
            if match is not None and match[2] in suffixes:
                yield Offset(int(match[1])), path


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    path: Path
    owner: LogDirOwner
    has_clean_shutdown: bool
    starts: Mapping[Partition, Offset]
    folders: Mapping[str, Sequence[Path]]
    """Own folder of each partition, and renamed remains."""


def check_root_safety(path: Path) -> None:
    """Raises NotTruncatable for root in a folder that others can change: a link there could lead to any
    file."""
    if os.geteuid() != 0:
        return
    folder_stat = path.stat(follow_symlinks=False)
    if folder_stat.st_uid == 0 and not folder_stat.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return
    try:
        user = pwd.getpwuid(folder_stat.st_uid).pw_name
    except KeyError:
        user = f"#{folder_stat.st_uid}"
    ownership = f"belongs to {user}" if folder_stat.st_uid else "can be changed by others than root"
    raise NotTruncatable(
        f"{path} {ownership}, and root would follow any link left in it: run this as the broker's user (sudo -u)"
    )


def read_owner(path: Path) -> LogDirOwner:
    """Raises NotTruncatable unless it belongs to a KRaft broker."""
    lines = _read_text(path / "meta.properties", "so it is no log directory of a broker (log.dirs)").splitlines()
    properties = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    if properties.get("version") != "1" or not {"cluster.id", "node.id"} <= properties.keys():
        raise NotTruncatable(f"{path}/meta.properties is not of version 1: this layout is not known")
    return LogDirOwner(properties["cluster.id"], properties["node.id"])


def read_log_dir(path: Path) -> LogDir:
    folders: dict[str, list[Path]] = {}
    for folder in sorted(path.iterdir()):
        if folder.is_dir():
            renamed = _RENAMED_FOLDER.fullmatch(folder.name)
            folders.setdefault(renamed[1] if renamed else folder.name, []).append(folder)
    return LogDir(
        path=path,
        owner=read_owner(path),
        has_clean_shutdown=(path / CLEAN_SHUTDOWN_FILE).exists(),
        starts=read_checkpoint(path / LOG_START_CHECKPOINT),
        folders=folders,
    )


def read_partition(log_dirs: Sequence[LogDir], partition: Partition) -> PartitionLog | None:
    """Raises NotTruncatable. None: not there."""
    if partition.topic.startswith("__"):
        raise NotTruncatable("it is an internal topic: a cluster's memory of itself is not cut")
    folders = [(log_dir, folder) for log_dir in log_dirs for folder in log_dir.folders.get(str(partition), ())]
    partition_folders = [(log_dir, folder) for log_dir, folder in folders if folder.name == str(partition)]
    for _, folder in folders:
        if folder.name.endswith("-future"):
            raise NotTruncatable(
                f"{folder} is there: it is being moved between log directories. Let the broker finish that"
            )
        if not partition_folders:
            error_class = PartitionMovedAway if folder.name.endswith("-delete") else NotTruncatable
            raise error_class(f"{folder} is all that is there: the broker does not use it any more")
    if len(partition_folders) > 1:
        raise NotTruncatable(
            f"it is in {' and '.join(str(folder) for _, folder in partition_folders)}: only one of them can be right"
        )
    return _read_partition_log(partition_folders[0][0], partition) if partition_folders else None


def read_checkpoint(path: Path) -> dict[Partition, Offset]:
    """Version 0, count, then `topic partition offset`. Brokers leave empty files, too."""
    if not path.exists():
        return {}
    lines = _read_text(path, "").splitlines()
    if not lines:
        return {}
    try:
        rows = [line.split(" ") for line in lines[2:]]
        offsets = {Partition(topic, int(index)): Offset(int(offset)) for topic, index, offset in rows}
        if lines[0] != "0" or int(lines[1]) != len(rows):
            raise ValueError
    except ValueError:
        raise NotTruncatable(f"{path} is no checkpoint of version 0: this layout is not known") from None
    return offsets


def parse_topic_id(text: str) -> str:
    """Accepts Kafka's 22 characters or a UUID; returns a UUID. Raises ValueError."""
    if len(text) != 22:
        return str(uuid.UUID(text))
    try:
        return str(uuid.UUID(bytes=base64.b64decode(text + "==", "-_", validate=True)))
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def _read_partition_log(log_dir: LogDir, partition: Partition) -> PartitionLog:
    folder = log_dir.path / str(partition)
    for path in (folder, *sorted(folder.iterdir())):
        if path.is_symlink():
            raise NotTruncatable(f"{path} is a symbolic link: brokers make none, so it is not followed")
    check_root_safety(folder)
    for path in sorted(folder.iterdir()):
        if path.name == "remote_log_snapshot":
            raise NotTruncatable("its older part is in remote storage: what is there would be cut off from it")
        if not _NUMBERED_FILE.fullmatch(path.name) and not _IGNORED_FILE.fullmatch(path.name):
            raise NotTruncatable(
                f"{path} is not known. If a compaction left it (.cleaned, .swap), start the broker and stop it"
            )
    segments = [LogSegment(Offset(int(path.stem)), path) for path in sorted(folder.glob(f"*{LOG_SUFFIX}"))]
    if not segments:
        raise NotTruncatable(f"{folder} has no segment")
    start, first = log_dir.starts.get(partition), segments[0].base
    if start is not None and start <= first:
        # Brokers note only log starts inside the first segment.
        raise NotTruncatable(
            f"its log starts at {start} and the first segment here at {first}: the older part is in remote storage, "
            "and would be cut off from it"
        )
    return PartitionLog(
        partition=partition,
        topic_id=_read_topic_id(folder),
        log_dir=log_dir.path,
        segments=segments,
        start=first if start is None else start,
        has_clean_shutdown=log_dir.has_clean_shutdown,
    )


def _read_topic_id(folder: Path) -> str:
    path = folder / "partition.metadata"
    match = re.fullmatch(r"version: 0\ntopic_id: (\S+)\s*", _read_text(path, "so the layout is not known"))
    try:
        return parse_topic_id(match[1] if match else "")
    except ValueError:
        raise NotTruncatable(f"{path} names no topic id: this layout is not known") from None


def _read_text(path: Path, consequence: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotTruncatable(f"there is no {path}, {consequence}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise NotTruncatable(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
