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

from mirror_core.logdir.layout import Owner
from mirror_core.logdir.plan import Cut, Remove, Shorten
from mirror_core.model.errors import MirrorError, Refused
from mirror_core.model.files import sync, writing

MANIFEST: Final = "backup.json"
_CHUNK: Final = 1 << 20
_ADVICE: Final = "nothing was cut: make room and rights there, or give another folder"


class BackupDiffers(MirrorError):
    """A copy differs from its original."""


class Piece(msgspec.Struct, frozen=True):
    """A log file, or its end."""

    name: str
    start: int
    bytes: int
    sha256: str

    @property
    def copy(self) -> str:
        return f"{self.name}.from-{self.start}" if self.start else self.name


class Kept(msgspec.Struct, frozen=True):
    partition: str
    topic_id: str
    folder: str
    offset: int
    log_end: int
    pieces: tuple[Piece, ...]


class Manifest(msgspec.Struct, frozen=True):
    cluster_id: str
    node_id: str
    complete: bool
    partitions: tuple[Kept, ...] = ()


def size(cuts: Sequence[Cut]) -> int:
    return sum(path.stat().st_size - start for cut in cuts for path, start in _sources(cut))


def back_up(folder: Path, owner: Owner, cuts: Sequence[Cut], log_dirs: Sequence[Path]) -> None:
    """A complete backup of a killed attempt stays, since less is left to copy. Raises Refused when the
    folder holds something else."""
    place = folder.resolve()
    inside = [log_dir for log_dir in log_dirs if place.is_relative_to(log_dir)]
    if inside:
        raise Refused("nothing was cut", [f"--backup {folder} is in {inside[0]}: the broker would take it for a log"])
    with writing("backup", folder, _ADVICE):
        begun = _begun(folder)
        if begun is not None and begun.complete:
            _check(folder, begun, owner, cuts)
            return
        place.mkdir(parents=True, exist_ok=True, mode=0o700)  # private data
        free, needed = shutil.disk_usage(place).free, size(cuts)
        if free < needed:
            raise Refused("nothing was cut", [f"--backup {folder}: {needed:,} bytes are needed, {free:,} are free"])
        _write(folder, Manifest(owner.cluster_id, owner.node_id, complete=False))
        kept = tuple(_copy(place, cut) for cut in cuts)
        _write(folder, Manifest(owner.cluster_id, owner.node_id, complete=True, partitions=kept))


def _begun(folder: Path) -> Manifest | None:
    if not folder.exists() or not any(folder.iterdir()):
        return None
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (FileNotFoundError, msgspec.DecodeError):
        raise Refused("nothing was cut", [f"--backup {folder} holds something else: give an empty folder"]) from None


def _sources(cut: Cut) -> Iterator[tuple[Path, int]]:
    for action in cut.actions:
        if isinstance(action, Remove):
            yield from ((path, 0) for path in action.paths)
        elif isinstance(action, Shorten):
            yield action.path, action.to


def _copy(folder: Path, cut: Cut) -> Kept:
    place = folder / str(cut.log.partition)
    place.mkdir(exist_ok=True)
    pieces = []
    for path, start in _sources(cut):
        with path.open("rb") as source:
            source.seek(start)
            digest = hashlib.sha256()
            piece = Piece(path.name, start, path.stat().st_size - start, "")
            with (place / piece.copy).open("wb") as copy:
                for chunk in _chunks(source):
                    digest.update(chunk)
                    copy.write(chunk)
                copy.flush()
                os.fsync(copy.fileno())
        piece = msgspec.structs.replace(piece, sha256=digest.hexdigest())
        _read_back(place / piece.copy, piece)
        pieces.append(piece)
    sync(place)
    return Kept(str(cut.log.partition), cut.log.topic_id, str(cut.log.folder), cut.offset, cut.log_end, tuple(pieces))


def _check(folder: Path, manifest: Manifest, owner: Owner, cuts: Sequence[Cut]) -> None:
    """An earlier backup holds all that is still to be cut."""
    for cut in cuts:
        known = {
            (piece.name, piece.start, piece.bytes): piece
            for kept in manifest.partitions
            if (kept.folder, kept.topic_id, kept.offset) == (str(cut.log.folder), cut.log.topic_id, cut.offset)
            for piece in kept.pieces
        }
        wanted = [(path.name, start, path.stat().st_size - start) for path, start in _sources(cut)]
        ours = (manifest.cluster_id, manifest.node_id) == (owner.cluster_id, owner.node_id)
        if not ours or not known.keys() >= set(wanted):
            raise Refused("nothing was cut", [f"--backup {folder} is of another cut: give an empty folder"])
        for one in wanted:
            _read_back(folder / str(cut.log.partition) / known[one].copy, known[one])


def _read_back(path: Path, piece: Piece) -> None:
    digest, count = hashlib.sha256(), 0
    try:
        with path.open("rb") as copy:
            for chunk in _chunks(copy):
                digest.update(chunk)
                count += len(chunk)
    except FileNotFoundError:
        raise BackupDiffers(f"backup: {path} is not there any more: nothing was cut") from None
    if (count, digest.hexdigest()) != (piece.bytes, piece.sha256):
        raise BackupDiffers(f"backup: {path} is not what was copied to it: nothing was cut. Is that disk well?")


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _write(folder: Path, manifest: Manifest) -> None:
    beside = folder / f"{MANIFEST}.tmp"
    with beside.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
        file.flush()
        os.fsync(file.fileno())
    beside.replace(folder / MANIFEST)
    sync(folder)
