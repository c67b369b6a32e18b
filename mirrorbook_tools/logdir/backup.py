"""Backs up what will be cut off, before anything is changed.

<backup>/backup.json                    manifest; `complete` at the end
<backup>/<topic>-<n>/<name>             a file to be removed
<backup>/<topic>-<n>/<name>.from-<p>    end of a file, from byte p on
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from mirror_core.model.errors import MirrorError, Refused
from mirror_core.model.files import report_write_errors, sync_path
from mirrorbook_tools.logdir.layout import LogDirOwner
from mirrorbook_tools.logdir.partition_truncation import PartitionTruncation, RemoveFiles, ShortenSegment

MANIFEST_NAME: Final = "backup.json"
_CHUNK: Final = 1 << 20
_BACKUP_ADVICE: Final = "nothing was cut: make room and rights there, or give another folder"


class BackupDiffers(MirrorError):
    """A copy differs from its original."""


class BackupFile(msgspec.Struct, frozen=True):
    """A log file, or its end."""

    name: str
    start: int
    bytes: int
    sha256: str

    @property
    def copy_name(self) -> str:
        return f"{self.name}.from-{self.start}" if self.start else self.name


class PartitionBackup(msgspec.Struct, frozen=True):
    partition: str
    topic_id: str
    folder: str
    offset: int
    log_end: int
    pieces: tuple[BackupFile, ...]


class BackupManifest(msgspec.Struct, frozen=True):
    cluster_id: str
    node_id: str
    complete: bool
    partitions: tuple[PartitionBackup, ...] = ()


def compute_backup_size(cuts: Sequence[PartitionTruncation]) -> int:
    return sum(path.stat().st_size - start for cut in cuts for path, start in _list_sources(cut))


def write_backup(
    folder: Path, owner: LogDirOwner, cuts: Sequence[PartitionTruncation], log_dirs: Sequence[Path]
) -> None:
    """A complete backup of a killed attempt stays, since less is left to copy. Raises Refused when the
    folder holds something else."""
    target = folder.resolve()
    inside = [log_dir for log_dir in log_dirs if target.is_relative_to(log_dir)]
    if inside:
        raise Refused(
            "nothing was cut",
            [f"--backup {folder} is in {inside[0]}: the broker would take it for a log"],
            reason_code="backup_in_log_folder",
        )
    with report_write_errors("backup", folder, _BACKUP_ADVICE):
        manifest = _read_begun_manifest(folder)
        if manifest is not None and manifest.complete:
            _check_earlier_backup(folder, manifest, owner, cuts)
            return
        target.mkdir(parents=True, exist_ok=True, mode=0o700)  # private data
        free, needed = shutil.disk_usage(target).free, compute_backup_size(cuts)
        if free < needed:
            raise Refused(
                "nothing was cut",
                [f"--backup {folder}: {needed:,} bytes are needed, {free:,} are free"],
                reason_code="backup_without_room",
            )
        _write_manifest(folder, BackupManifest(owner.cluster_id, owner.node_id, complete=False))
        backups = tuple(_copy_partition(target, cut) for cut in cuts)
        _write_manifest(folder, BackupManifest(owner.cluster_id, owner.node_id, complete=True, partitions=backups))


def _read_begun_manifest(folder: Path) -> BackupManifest | None:
    if not folder.exists() or not any(folder.iterdir()):
        return None
    try:
        return msgspec.json.decode((folder / MANIFEST_NAME).read_bytes(), type=BackupManifest)
    except (FileNotFoundError, msgspec.DecodeError):
        raise Refused(
            "nothing was cut",
            [f"--backup {folder} holds something else: give an empty folder"],
            reason_code="backup_not_empty",
        ) from None


def _list_sources(cut: PartitionTruncation) -> Iterator[tuple[Path, int]]:
    for action in cut.actions:
        if isinstance(action, RemoveFiles):
            yield from ((path, 0) for path in action.paths)
        elif isinstance(action, ShortenSegment):
            yield action.path, action.size


def _copy_partition(folder: Path, cut: PartitionTruncation) -> PartitionBackup:
    target = folder / str(cut.log.partition)
    target.mkdir(exist_ok=True)
    backup_files = []
    for path, start in _list_sources(cut):
        with path.open("rb") as source:
            source.seek(start)
            digest = hashlib.sha256()
            backup_file = BackupFile(path.name, start, path.stat().st_size - start, "")
            with (target / backup_file.copy_name).open("wb") as copy:
                for chunk in _read_chunks(source):
                    digest.update(chunk)
                    copy.write(chunk)
                copy.flush()
                os.fsync(copy.fileno())
        backup_file = msgspec.structs.replace(backup_file, sha256=digest.hexdigest())
        _read_back(target / backup_file.copy_name, backup_file)
        backup_files.append(backup_file)
    sync_path(target)
    return PartitionBackup(
        str(cut.log.partition), cut.log.topic_id, str(cut.log.folder), cut.offset, cut.log_end, tuple(backup_files)
    )


def _check_earlier_backup(
    folder: Path, manifest: BackupManifest, owner: LogDirOwner, cuts: Sequence[PartitionTruncation]
) -> None:
    """An earlier backup holds all that is still to be cut."""
    for cut in cuts:
        copied = {
            (backup_file.name, backup_file.start, backup_file.bytes): backup_file
            for partition_backup in manifest.partitions
            if (partition_backup.folder, partition_backup.topic_id, partition_backup.offset)
            == (str(cut.log.folder), cut.log.topic_id, cut.offset)
            for backup_file in partition_backup.pieces
        }
        required = [(path.name, start, path.stat().st_size - start) for path, start in _list_sources(cut)]
        is_same_broker = (manifest.cluster_id, manifest.node_id) == (owner.cluster_id, owner.node_id)
        if not is_same_broker or not copied.keys() >= set(required):
            raise Refused(
                "nothing was cut",
                [f"--backup {folder} is of another cut: give an empty folder"],
                reason_code="backup_of_other_cut",
            )
        for key in required:
            _read_back(folder / str(cut.log.partition) / copied[key].copy_name, copied[key])


def _read_back(path: Path, backup_file: BackupFile) -> None:
    digest, count = hashlib.sha256(), 0
    try:
        with path.open("rb") as copy:
            for chunk in _read_chunks(copy):
                digest.update(chunk)
                count += len(chunk)
    except FileNotFoundError:
        raise BackupDiffers(f"backup: {path} is not there any more: nothing was cut") from None
    if (count, digest.hexdigest()) != (backup_file.bytes, backup_file.sha256):
        raise BackupDiffers(f"backup: {path} is not what was copied to it: nothing was cut. Is that disk well?")


def _read_chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _write_manifest(folder: Path, manifest: BackupManifest) -> None:
    new_file = folder / f"{MANIFEST_NAME}.tmp"
    with new_file.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
        file.flush()
        os.fsync(file.fileno())
    new_file.replace(folder / MANIFEST_NAME)
    sync_path(folder)
