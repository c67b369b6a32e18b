"""The file by which a fence is lifted when the cluster that remembers it is dead. Written before anybody is denied.

It holds names, not access control entries: whatever somebody writes into it, only denials of the shape that a fence has
come out of it.
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
"""A fence of 100,000 topics, each with the longest name, takes half of it."""
WHAT: Final = "the file that lifts the fence"
_VERSION: Final = 1
_TOPIC: Final = re.compile(r"(?!__)(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
_MOST_OF_A_NAME: Final = 32_767
"""Bytes of a transactional id that Kafka's protocol can carry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceFile:
    """What a run's fence denies, and where."""

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
    """`fence_command` was called for these topics, and nothing is denied: `unfence_command` lifts it."""
    lifted_ms: int | None = None
    """When somebody began to lift it by this file; None: nobody did since it was raised."""

    @property
    def denials(self) -> frozenset[Acl]:
        if self.command:
            return frozenset()
        ids = (denial(name, resource=Resource.TRANSACTIONAL_ID) for name in self.transactional_ids)
        return frozenset((*map(denial, self.topics), *ids))


_DECODER: Final = msgspec.json.Decoder(FenceFile)


def names_of(acls: Collection[Acl], resource: Resource) -> tuple[str, ...]:
    """The names that a fence denies of one kind of resource."""
    return tuple(sorted(acl.name for acl in acls if acl.resource is resource))


def path_of(folder: Path, run: str) -> Path:
    """Where it lies in a run's evidence folder."""
    return (folder / f"unfence-{run}.json").absolute()


def write(path: Path, fence: FenceFile, advice: str) -> None:
    """All of it in place of an older one, for this user only, and through a power cut. Unwritable otherwise."""
    content = msgspec.json.format(msgspec.json.encode(fence), indent=2)
    local_folder(str(path.parent), private=True).write(WHAT, path.name, content, advice)


def mark_lifted(path: Path, fence: FenceFile, advice: str) -> None:
    """Let whoever resumes the run with this folder know. Of a run that has ended nothing is changed: its evidence is
    signed."""
    if not (path.parent / HEAD).exists():
        write(path, fence, advice)


def alike(path: Path, fence: FenceFile) -> Iterator[tuple[Path, FenceFile]]:
    """Files of runs that have not ended, in the same evidence folder, with some of the same denials: who lifts them
    by this one has lifted them for those, too."""
    if path.parent.name != f"run-{fence.run}":  # a copy: what lies around it is somebody else's
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
    """BadRequest when it cannot be read, or is no such file."""
    try:
        if not path.is_file():
            raise BadRequest(f"{path}: there is no such file")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # a path with a null byte is a ValueError
        raise BadRequest(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return decode(content, str(path))


def decode(content: bytes, where: str) -> FenceFile:
    """BadRequest when a fence cannot have written this."""
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
