"""The file that lifts a fence when the destination is dead. Written before any denial.

It holds names, not ACL entries: whatever is edited in, only denials of a fence's shape come out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from mirror_core.evidence.bundle import HEAD
from mirror_core.evidence.folders import local_folder
from mirror_core.model.acl import Acl, Resource
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.rights.acls import denial

MOST_BYTES: Final = 64 * 1024 * 1024
WHAT: Final = "the file that lifts the fence"
_VERSION: Final = 1
_TOPIC: Final = re.compile(r"(?!__)(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
_MOST_OF_A_NAME: Final = 32_767


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceFile:
    version: int = _VERSION
    run: str
    mirror: MirrorName
    cluster: ClusterName
    cluster_id: str
    destination: ClusterName
    written_ms: int
    topics: tuple[str, ...] = ()
    transactional_ids: tuple[str, ...] = ()
    command: bool = False
    """Fenced by `fence_command`, without denials."""
    lifted_ms: int | None = None

    @property
    def denials(self) -> frozenset[Acl]:
        if self.command:
            return frozenset()
        ids = (denial(name, resource=Resource.TRANSACTIONAL_ID) for name in self.transactional_ids)
        return frozenset((*map(denial, self.topics), *ids))


_DECODER: Final = msgspec.json.Decoder(FenceFile)


def names_of(acls: Collection[Acl], resource: Resource) -> tuple[str, ...]:
    return tuple(sorted(acl.name for acl in acls if acl.resource is resource))


def path_of(folder: Path, run: str) -> Path:
    return (folder / f"unfence-{run}.json").absolute()


def write(path: Path, fence: FenceFile, advice: str) -> None:
    content = msgspec.json.format(msgspec.json.encode(fence), indent=2)
    local_folder(str(path.parent), private=True).write(WHAT, path.name, content, advice)


def mark_lifted(path: Path, fence: FenceFile, advice: str) -> None:
    """An ended run's folder is signed and stays unchanged."""
    if not (path.parent / HEAD).exists():
        write(path, fence, advice)


def alike(path: Path, fence: FenceFile) -> Iterator[tuple[Path, FenceFile]]:
    """Fence files of other open runs that share denials: lifting this one lifts those, too."""
    if path.parent.name != f"run-{fence.run}":  # a copied file: its neighbours are not ours
        return
    for other in sorted(path.parent.parent.glob("run-*/unfence-*.json")):
        if other == path or (other.parent / HEAD).exists():
            continue
        try:
            found = read(other)
        except BadRequest:
            continue
        if found.lifted_ms is None and found.cluster_id == fence.cluster_id and found.denials & fence.denials:
            yield other, found


def read(path: Path) -> FenceFile:
    try:
        if not path.is_file():
            raise BadRequest(f"{path}: there is no such file")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # a path with a null byte is a ValueError
        raise BadRequest(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return decode(content, str(path))


def decode(content: bytes, where: str) -> FenceFile:
    """Raises BadRequest if no fence can have written this."""
    if len(content) > MOST_BYTES:
        raise BadRequest(f"{where}: larger than any fence's file")
    try:
        found = _DECODER.decode(content)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadRequest(f"{where} is no file that a fence has written: {error}") from None
    if found.version != _VERSION:
        raise BadRequest(f"{where} is of version {found.version}, this Mirrorbook reads {_VERSION}")
    for topic in found.topics:
        if not _TOPIC.fullmatch(topic):
            raise BadRequest(f"{where}: no fence denies writing to a topic named {topic[:300]!r}")
    for name in found.transactional_ids:
        if not 0 < len(name.encode()) <= _MOST_OF_A_NAME:
            raise BadRequest(f"{where}: no fence denies a transactional id {name[:300]!r}")
    if not found.topics and not found.transactional_ids:
        raise BadRequest(f"{where} names nothing that was denied")
    return found
