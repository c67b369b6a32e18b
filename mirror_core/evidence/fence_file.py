"""The file that lifts a fence when the destination is dead.

It holds names, not ACL entries: an edit can make it lift only denials of a fence's shape.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from mirror_core.evidence.file_store import open_local_folder
from mirror_core.evidence.signed_bundle import HEAD_FILE
from mirror_core.model.acl import Acl, Resource
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.run import RunKind, StepState
from mirror_core.rights.acl_rules import build_denial

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
FILE_DESCRIPTION: Final = "the file that lifts the fence"
_VERSION: Final = 1
_TOPIC: Final = re.compile(r"(?!__)(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
_MAX_ID_BYTES: Final = 32_767


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
    kind: RunKind = RunKind.FAILOVER
    """In a failback applications write on `destination`."""
    command: bool = False
    """Fenced by `fence_command`, without denials."""
    lifted_ms: int | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """As they were mirrored from `cluster`. Another id there now: deleted since, as a failback's step align does."""

    @property
    def denials(self) -> frozenset[Acl]:
        if self.command:
            return frozenset()
        ids = (build_denial(name, resource=Resource.TRANSACTIONAL_ID) for name in self.transactional_ids)
        return frozenset((*map(build_denial, self.topics), *ids))


_DECODER: Final = msgspec.json.Decoder(FenceFile)


class _ReportedPlan(msgspec.Struct):
    kind: RunKind
    mirror: str


class _ReportedRun(msgspec.Struct):
    id: str
    plan: _ReportedPlan
    started_ms: int


class _ReportedStep(msgspec.Struct):
    step: str
    state: StepState
    ended_ms: int | None = None


class _RunReport(msgspec.Struct):
    run: _ReportedRun
    steps: tuple[_ReportedStep, ...]


_REPORT_DECODER: Final = msgspec.json.Decoder(_RunReport)


def list_names(acls: Collection[Acl], resource: Resource) -> tuple[str, ...]:
    return tuple(sorted(acl.name for acl in acls if acl.resource is resource))


def fence_file_path(folder: Path, run: str) -> Path:
    return (folder / f"unfence-{run}.json").absolute()


def write_fence_file(path: Path, fence: FenceFile, advice: str) -> None:
    content = msgspec.json.format(msgspec.json.encode(fence), indent=2)
    open_local_folder(str(path.parent), private=True).write(FILE_DESCRIPTION, path.name, content, advice)


def mark_lifted(path: Path, fence: FenceFile, advice: str) -> None:
    """An ended run's folder is signed and stays unchanged."""
    if not (path.parent / HEAD_FILE).exists():
        write_fence_file(path, fence, advice)


def find_overlapping_files(path: Path, fence: FenceFile) -> Iterator[tuple[Path, FenceFile]]:
    """From other open runs that share denials: lifting this one lifts those, too."""
    if path.parent.name != f"run-{fence.run}":  # a copied file: its neighbours are not ours
        return
    for other in sorted(path.parent.parent.glob("run-*/unfence-*.json")):
        if other == path or (other.parent / HEAD_FILE).exists():
            continue
        try:
            other_fence = read_fence_file(other)
        except BadRequest:
            continue
        if (
            other_fence.lifted_ms is None
            and other_fence.cluster_id == fence.cluster_id
            and other_fence.denials & fence.denials
        ):
            yield other, other_fence


def find_open_fences(folder: Path, mirror: str) -> Iterator[tuple[Path, FenceFile]]:
    """By the files of runs that have not ended, in the evidence folder; without lifted ones."""
    for path in sorted(folder.glob("run-*/unfence-*.json")):
        if (path.parent / HEAD_FILE).exists():
            continue
        try:
            fence = read_fence_file(path)
        except BadRequest:
            continue
        if fence.mirror == mirror and fence.lifted_ms is None:
            yield path, fence


@dataclass(frozen=True, slots=True)
class PromotedFence:
    """A failover has promoted its destination, by its evidence."""

    file: Path
    fence: FenceFile
    promoted_ms: int


def find_promoted_fence(folder: Path, mirror: str) -> PromotedFence | None:
    """If the mirror's newest run with a report is a failover that promoted."""
    reports = list[tuple[int, Path, _RunReport]]()
    for path in folder.glob("run-*/run.json"):
        try:
            report = _REPORT_DECODER.decode(path.read_bytes())
        except (OSError, msgspec.MsgspecError, UnicodeError):
            continue
        if report.run.plan.mirror == mirror:
            reports.append((report.run.started_ms, path, report))
    if not reports:
        return None
    _, path, report = max(reports, key=lambda row: row[0])
    promoted_ms = next((s.ended_ms for s in report.steps if s.step == "promote" and s.state is StepState.DONE), None)
    if report.run.plan.kind is not RunKind.FAILOVER or promoted_ms is None:
        return None
    try:
        file = fence_file_path(path.parent, report.run.id)
        return PromotedFence(file, read_fence_file(file), promoted_ms)
    except BadRequest:
        return None


def read_fence_file(path: Path) -> FenceFile:
    try:
        if not path.is_file():
            raise BadRequest(f"{path}: there is no such file")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # a path with a null byte is a ValueError
        raise BadRequest(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return decode_fence_file(content, str(path))


def decode_fence_file(content: bytes, location: str) -> FenceFile:
    """BadRequest if no fence can have written this."""
    if len(content) > MAX_FILE_BYTES:
        raise BadRequest(f"{location}: larger than any fence's file")
    try:
        fence = _DECODER.decode(content)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadRequest(f"{location} is no file that a fence has written: {error}") from None
    if fence.version != _VERSION:
        raise BadRequest(f"{location} is of version {fence.version}, this Mirrorbook reads {_VERSION}")
    for topic in fence.topics:
        if not _TOPIC.fullmatch(topic):
            raise BadRequest(f"{location}: no fence denies writing to a topic named {topic[:300]!r}")
    for name in fence.transactional_ids:
        if not 0 < len(name.encode()) <= _MAX_ID_BYTES:
            raise BadRequest(f"{location}: no fence denies a transactional id {name[:300]!r}")
    if not fence.topics and not fence.transactional_ids:
        raise BadRequest(f"{location} names nothing that was denied")
    return fence
