"""A run's evidence as a tamper-evident folder.

`plan.json`: the approved plan. `entries.jsonl`: the audit log and a line per file, each with the hash of the line
before. `head.json`: number of lines, last hash, verdict, and a signature over these. Other files lie beside and are
hashed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from mirror_core.decide.evidence import RunConclusion, conclude_run, has_topic_contents
from mirror_core.evidence.folders import Folder
from mirror_core.evidence.signing import Signer
from mirror_core.model.chronicle import AuditEntry, AuditEntryKind, build_next_line, get_head_hash, to_canonical_json
from mirror_core.model.errors import BadRequest
from mirror_core.model.files import report_write_errors
from mirror_core.model.run import Run

BUNDLE_SCHEMA: Final = "mirrorbook/evidence/1"
PLAN_FILE, ENTRIES_FILE, HEAD_FILE = "plan.json", "entries.jsonl", "head.json"
_BUNDLE_FILES: Final = frozenset({PLAN_FILE, ENTRIES_FILE, HEAD_FILE})
BUNDLE_ADVICE: Final = "make room and rights there, then `mirrorbook evidence write`"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleHead:
    """The signed document."""

    schema: str
    run: str
    entries: int
    hash: str
    verdict: RunConclusion
    key: str | None = None
    signature: str | None = None
    """Over all other fields."""
    copy: bool | UnsetType = UNSET
    """Set in copies, which leave out topic contents. Absent in the run's own folder."""

    @property
    def content(self) -> str:
        return to_canonical_json(replace(self, signature=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    name: str
    size: int
    sha256: str


def copy_bundle(folder: Path, head: BundleHead, target_folder: Folder, signer: Signer | None) -> str:
    """Returns where. Leaves out topic contents. The head is written last."""
    head = replace(head, copy=True, signature=None)
    if signer:
        head = replace(head, signature=signer.sign(head.content))
    description = f"copy of the evidence of run {head.run}"
    file_names = [bundled_file.name for bundled_file in list_files(folder) if not has_topic_contents(bundled_file.name)]
    for name in (*file_names, PLAN_FILE, ENTRIES_FILE):
        with report_write_errors(description, folder / name, BUNDLE_ADVICE):
            content = (folder / name).read_bytes()
        target_folder.write(description, f"{folder.name}/{name}", content, BUNDLE_ADVICE)
    target_folder.write(description, f"{folder.name}/{HEAD_FILE}", to_canonical_json(head).encode(), BUNDLE_ADVICE)
    return f"{target_folder.where}/{folder.name}"


def write_bundle(folder: Path, run: Run, lines: Sequence[str], signer: Signer | None) -> BundleHead:
    """The head is written last: a half-written bundle does not fit its older head."""
    with report_write_errors(f"evidence of run {run.id}", folder, BUNDLE_ADVICE):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        chain = list(lines)
        at_ms = run.ended_ms or run.started_ms
        for bundled_file in list_files(folder):
            if bundled_file.path.is_symlink() or not bundled_file.path.is_file():
                raise BadRequest(f"evidence of run {run.id}: {bundled_file.path} is no plain file: take it away")
            bundled_file.path.chmod(0o600)
            entry = FileEntry(
                name=bundled_file.name, size=bundled_file.path.stat().st_size, sha256=compute_sha256(bundled_file.path)
            )
            chained = build_next_line(
                chain, run=run.id, at_ms=at_ms, by=run.conducted_by, kind=AuditEntryKind.FILE, body=entry
            )
            chain.append(chained.line)
        entries = [msgspec.json.decode(line, type=AuditEntry) for line in chain]
        verdict, _ = conclude_run(entries, run.plan)
        head = BundleHead(
            schema=BUNDLE_SCHEMA,
            run=run.id,
            entries=len(chain),
            hash=get_head_hash(chain),
            verdict=verdict,
            key=signer.id if signer else None,
        )
        if signer:
            head = replace(head, signature=signer.sign(head.content))
        _replace_file(folder / PLAN_FILE, to_canonical_json(run.plan))
        _replace_file(folder / ENTRIES_FILE, "".join(f"{line}\n" for line in chain))
        _replace_file(folder / HEAD_FILE, to_canonical_json(head))
    return head


@dataclass(frozen=True, slots=True)
class BundledFile:
    name: str
    path: Path


def list_files(folder: Path) -> Iterator[BundledFile]:
    paths = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir()}
    for name in sorted(paths.keys() - _BUNDLE_FILES):
        yield BundledFile(name, paths[name])


def compute_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _replace_file(path: Path, content: str) -> None:
    """Atomic, private to this user, durable."""
    temporary_path = path.with_name(f"_{path.name}")
    handle = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary_path, path)
