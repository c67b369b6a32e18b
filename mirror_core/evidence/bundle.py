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

from mirror_core.decide.evidence import Conclusion, concluded, holds_contents
from mirror_core.evidence.folders import Folder
from mirror_core.evidence.signing import Signer
from mirror_core.model.chronicle import Entry, Kind, canonical, head_of, next_line
from mirror_core.model.errors import BadRequest
from mirror_core.model.files import writing
from mirror_core.model.run import Run

SCHEMA: Final = "mirrorbook/evidence/1"
PLAN, ENTRIES, HEAD = "plan.json", "entries.jsonl", "head.json"
_OURS: Final = frozenset({PLAN, ENTRIES, HEAD})
ADVICE: Final = "make room and rights there, then `mirrorbook evidence write`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The signed document."""

    schema: str
    run: str
    entries: int
    hash: str
    verdict: Conclusion
    key: str | None = None
    signature: str | None = None
    """Over all other fields."""
    copy: bool | UnsetType = UNSET
    """Set in copies, which leave out topic contents. Absent in the run's own folder."""

    @property
    def content(self) -> str:
        return canonical(replace(self, signature=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    name: str
    size: int
    sha256: str


def copy_bundle(folder: Path, head: Head, place: Folder, signer: Signer | None) -> str:
    """Returns where. Leaves out topic contents. The head is written last."""
    head = replace(head, copy=True, signature=None)
    if signer:
        head = replace(head, signature=signer.sign(head.content))
    what = f"copy of the evidence of run {head.run}"
    names = [found.name for found in files(folder) if not holds_contents(found.name)]
    for name in (*names, PLAN, ENTRIES):
        with writing(what, folder / name, ADVICE):
            content = (folder / name).read_bytes()
        place.write(what, f"{folder.name}/{name}", content, ADVICE)
    place.write(what, f"{folder.name}/{HEAD}", canonical(head).encode(), ADVICE)
    return f"{place.where}/{folder.name}"


def write_bundle(folder: Path, run: Run, lines: Sequence[str], signer: Signer | None) -> Head:
    """The head is written last: a half-written bundle does not fit its older head."""
    with writing(f"evidence of run {run.id}", folder, ADVICE):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        said = list(lines)
        when = run.ended_ms or run.started_ms
        for found in files(folder):
            if found.path.is_symlink() or not found.path.is_file():
                raise BadRequest(f"evidence of run {run.id}: {found.path} is no plain file: take it away")
            found.path.chmod(0o600)
            entry = FileEntry(name=found.name, size=found.path.stat().st_size, sha256=sha256_of(found.path))
            told = next_line(said, run=run.id, at_ms=when, by=run.conducted_by, kind=Kind.FILE, body=entry)
            said.append(told.line)
        entries = [msgspec.json.decode(line, type=Entry) for line in said]
        verdict, _ = concluded(entries, run.plan)
        head = Head(
            schema=SCHEMA,
            run=run.id,
            entries=len(said),
            hash=head_of(said),
            verdict=verdict,
            key=signer.id if signer else None,
        )
        if signer:
            head = replace(head, signature=signer.sign(head.content))
        _replace(folder / PLAN, canonical(run.plan))
        _replace(folder / ENTRIES, "".join(f"{line}\n" for line in said))
        _replace(folder / HEAD, canonical(head))
    return head


@dataclass(frozen=True, slots=True)
class Beside:
    name: str
    path: Path


def files(folder: Path) -> Iterator[Beside]:
    found = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir()}
    for name in sorted(found.keys() - _OURS):
        yield Beside(name, found[name])


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _replace(path: Path, content: str) -> None:
    """Atomic, private to this user, durable."""
    fresh = path.with_name(f"_{path.name}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    os.replace(fresh, path)
