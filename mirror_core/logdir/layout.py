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

LOG: Final = ".log"
INDEXES: Final = (".index", ".timeindex", ".txnindex")
SNAPSHOT: Final = ".snapshot"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANED: Final = "cleaner-offset-checkpoint"

_NUMBERED: Final = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)")
_PASSED_OVER: Final = re.compile(r"leader-epoch-checkpoint(\.tmp)?|partition\.metadata(\.tmp)?|.*\.deleted")
"""No offsets that are cut, or removed by the broker at its start."""
_RENAMED: Final = re.compile(r"(.+-\d+)\.[^.]+-(?:future|delete|stray)")


class Unfit(Exception):
    """Why it cannot be cut, for the list of reasons."""


class Moved(Unfit):
    """The broker deletes it soon (file.delete.delay.ms); other brokers may have it."""


@dataclass(frozen=True, slots=True)
class Owner:
    cluster_id: str
    node_id: str


@dataclass(frozen=True, slots=True)
class Segment:
    base: Offset
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLog:
    """Only names and small files were read."""

    partition: Partition
    topic_id: str
    log_dir: Path
    segments: Sequence[Segment]
    start: Offset
    clean: bool

    @property
    def folder(self) -> Path:
        return self.log_dir / str(self.partition)

    def numbered(self, *kinds: str) -> Iterator[tuple[Offset, Path]]:
        for path in sorted(self.folder.iterdir(), reverse=True):
            found = _NUMBERED.fullmatch(path.name)
            if found is not None and found[2] in kinds:
                yield Offset(int(found[1])), path


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    path: Path
    owner: Owner
    clean: bool
    starts: Mapping[Partition, Offset]
    folders: Mapping[str, Sequence[Path]]
    """Own folder of each partition, and renamed remains."""


def check_not_root_elsewhere(path: Path) -> None:
    """Raises NotTruncatable for root in a folder that others can change: a link there could lead to any
    file."""
    if os.geteuid() != 0:
        return
    found = path.stat(follow_symlinks=False)
    if found.st_uid == 0 and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return
    try:
        user = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        user = f"#{found.st_uid}"
    whose = f"belongs to {user}" if found.st_uid else "can be changed by others than root"
    raise Unfit(f"{path} {whose}, and root would follow any link left in it: run this as the broker's user (sudo -u)")


def owner_of(path: Path) -> Owner:
    """Raises NotTruncatable unless it belongs to a KRaft broker."""
    lines = _text(path / "meta.properties", "so it is no log directory of a broker (log.dirs)").splitlines()
    facts = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    if facts.get("version") != "1" or not {"cluster.id", "node.id"} <= facts.keys():
        raise Unfit(f"{path}/meta.properties is not of version 1: this layout is not known")
    return Owner(facts["cluster.id"], facts["node.id"])


def read_log_dir(path: Path) -> LogDir:
    found: dict[str, list[Path]] = {}
    for folder in sorted(path.iterdir()):
        if folder.is_dir():
            renamed = _RENAMED.fullmatch(folder.name)
            found.setdefault(renamed[1] if renamed else folder.name, []).append(folder)
    return LogDir(
        path=path,
        owner=owner_of(path),
        clean=(path / CLEAN_SHUTDOWN).exists(),
        starts=checkpoint(path / LOG_STARTS),
        folders=found,
    )


def read_partition(log_dirs: Sequence[LogDir], partition: Partition) -> PartitionLog | None:
    """Raises NotTruncatable. None: not there."""
    if partition.topic.startswith("__"):
        raise Unfit("it is an internal topic: a cluster's memory of itself is not cut")
    folders = [(log_dir, folder) for log_dir in log_dirs for folder in log_dir.folders.get(str(partition), ())]
    places = [(log_dir, folder) for log_dir, folder in folders if folder.name == str(partition)]
    for _, folder in folders:
        if folder.name.endswith("-future"):
            raise Unfit(f"{folder} is there: it is being moved between log directories. Let the broker finish that")
        if not places:
            kind = Moved if folder.name.endswith("-delete") else Unfit
            raise kind(f"{folder} is all that is there: the broker does not use it any more")
    if len(places) > 1:
        raise Unfit(f"it is in {' and '.join(str(folder) for _, folder in places)}: only one of them can be right")
    return _read(places[0][0], partition) if places else None


def checkpoint(path: Path) -> dict[Partition, Offset]:
    """Version 0, count, then `topic partition offset`. Brokers leave empty files, too."""
    if not path.exists():
        return {}
    lines = _text(path, "").splitlines()
    if not lines:
        return {}
    try:
        rows = [line.split(" ") for line in lines[2:]]
        found = {Partition(topic, int(index)): Offset(int(offset)) for topic, index, offset in rows}
        if lines[0] != "0" or int(lines[1]) != len(rows):
            raise ValueError
    except ValueError:
        raise Unfit(f"{path} is no checkpoint of version 0: this layout is not known") from None
    return found


def topic_uuid(text: str) -> str:
    """Accepts Kafka's 22 characters or a UUID; returns a UUID. Raises ValueError."""
    if len(text) != 22:
        return str(uuid.UUID(text))
    try:
        return str(uuid.UUID(bytes=base64.b64decode(text + "==", "-_", validate=True)))
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def _read(log_dir: LogDir, partition: Partition) -> PartitionLog:
    folder = log_dir.path / str(partition)
    for path in (folder, *sorted(folder.iterdir())):
        if path.is_symlink():
            raise Unfit(f"{path} is a symbolic link: brokers make none, so it is not followed")
    check_not_root_elsewhere(folder)
    for path in sorted(folder.iterdir()):
        if path.name == "remote_log_snapshot":
            raise Unfit("its older part is in remote storage: what is there would be cut off from it")
        if not _NUMBERED.fullmatch(path.name) and not _PASSED_OVER.fullmatch(path.name):
            raise Unfit(f"{path} is not known. If a compaction left it (.cleaned, .swap), start the broker and stop it")
    segments = [Segment(Offset(int(path.stem)), path) for path in sorted(folder.glob(f"*{LOG}"))]
    if not segments:
        raise Unfit(f"{folder} has no segment")
    start, first = log_dir.starts.get(partition), segments[0].base
    if start is not None and start <= first:
        # Brokers note only log starts inside the first segment.
        raise Unfit(
            f"its log starts at {start} and the first segment here at {first}: the older part is in remote storage, "
            "and would be cut off from it"
        )
    return PartitionLog(
        partition=partition,
        topic_id=_topic_id(folder),
        log_dir=log_dir.path,
        segments=segments,
        start=first if start is None else start,
        clean=log_dir.clean,
    )


def _topic_id(folder: Path) -> str:
    path = folder / "partition.metadata"
    found = re.fullmatch(r"version: 0\ntopic_id: (\S+)\s*", _text(path, "so the layout is not known"))
    try:
        return topic_uuid(found[1] if found else "")
    except ValueError:
        raise Unfit(f"{path} names no topic id: this layout is not known") from None


def _text(path: Path, without: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Unfit(f"there is no {path}, {without}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Unfit(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
