"""Verifies a bundle offline, with the folder and a public key only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from mirror_core.decide.drills import may_be_forgotten
from mirror_core.decide.evidence import Conclusion, Flaw, broken_links, concluded, flaws, holds_contents
from mirror_core.evidence.bundle import ENTRIES, HEAD, PLAN, SCHEMA, FileEntry, Head, files, sha256_of
from mirror_core.evidence.signing import PublicKey
from mirror_core.model.chronicle import Entry, Kind, Told, canonical, head_of
from mirror_core.model.errors import BadRequest
from mirror_core.model.run import Plan, Run

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    run: str
    verdict: Conclusion
    why: str
    approved_by: str
    entries: int
    files: int
    key: str | None
    """Without a key anybody may have written it all."""
    flaws: tuple[Flaw, ...]
    not_here: tuple[str, ...] = ()
    forgotten: bool = False
    """An old drill, which the state topic has forgotten."""


Known = Mapping[str, Mapping[int, Told]]


def verify(
    folder: Path,
    key: PublicKey | None,
    run: str | None = None,
    known: Known | None = None,
    runs: Iterable[Run] = (),
) -> Verified:
    """Raises BadRequest if it is no bundle.

    `run`: it must be this one. `known_entries`: entries must match these, unless `runs` show that the run was
    forgotten.
    """
    if not (folder / HEAD).is_file():
        raise BadRequest(f"{folder}: there is no {HEAD}: not the evidence of a run")
    found = list[Flaw]()
    head = _read(folder / HEAD, Head, found)
    plan = _read(folder / PLAN, Plan, found)
    lines = _lines(folder / ENTRIES, found)
    entries = list(_entries(lines, found))
    if head is None or plan is None or len(entries) < len(lines) or not entries:
        return _told(head, entries, Conclusion.UNFINISHED, "it cannot be read", None, found)
    found += _signature(folder, head, key, run)
    if (head.entries, head.hash) != (len(lines), head_of(lines)):
        stands = f"it stands for {head.entries} entries, the last of hash {head.hash[:12]}"
        there = f"there are {len(lines)}, the last of hash {head_of(lines)[:12]}"
        found.append(Flaw(HEAD, f"{stands}; {there}: an older head, or entries of another bundle"))
    found += broken_links(entries, lines, head.run)
    found += flaws(entries, plan, sha256_of(folder / PLAN))
    away = list[str]()
    found += _files(folder, entries, away if head.copy is True else None)
    forgotten = False
    if known is not None:
        forgotten = head.run not in known and may_be_forgotten(runs, plan, entries[0].at_ms)
        found += () if forgotten else _as_known(entries, lines, known.get(head.run, {}))
    verdict, why = concluded(entries, plan)
    if verdict is not head.verdict:
        found.append(Flaw(HEAD, f"its verdict is {head.verdict.value!r}, and the entries come to {verdict.value!r}"))
    return replace(_told(head, entries, verdict, why, key, found), not_here=tuple(away), forgotten=forgotten)


def _told(
    head: Head | None,
    entries: Sequence[Entry],
    verdict: Conclusion,
    why: str,
    key: PublicKey | None,
    found: Sequence[Flaw],
) -> Verified:
    return Verified(
        run=head.run if head else "unknown",
        verdict=verdict,
        why=why,
        approved_by=str(entries[0].body.get("approved_by", "")) if entries else "",
        entries=len(entries),
        files=sum(entry.kind is Kind.FILE for entry in entries),
        key=key.id if key and not found else None,
        flaws=tuple(found),
    )


def _signature(folder: Path, head: Head, key: PublicKey | None, run: str | None) -> Iterator[Flaw]:
    if head.schema != SCHEMA:
        yield Flaw(HEAD, f"it is of form {head.schema!r}, this Mirrorbook knows {SCHEMA!r}")
    if (folder / HEAD).read_text(encoding="utf-8") != canonical(head):
        yield Flaw(HEAD, "it does not look as it was written")
    if run is not None and head.run != run:
        yield Flaw(HEAD, f"it is of run {head.run}")
    if key is None:
        return
    if head.signature is None:
        yield Flaw(HEAD, "it is not signed")
    elif not key.signed(head.content, head.signature):
        yield Flaw(HEAD, f"the signature is not that of key {key.id} over what it says")


def _as_known(entries: Sequence[Entry], lines: Sequence[str], known: Mapping[int, Told]) -> Iterator[Flaw]:
    told = [line for entry, line in zip(entries, lines, strict=True) if entry.kind is not Kind.FILE]
    for number, line in enumerate(told):
        if number not in known:
            yield Flaw(f"entry {number}", "the state topic knows nothing of it")
        elif known[number].line != line:
            yield Flaw(f"entry {number}", "the state topic says something else")
    if len(known) > len(told):
        yield Flaw(ENTRIES, f"the state topic knows {len(known) - len(told)} entries more: this bundle is older")


def _files(folder: Path, entries: Sequence[Entry], away: list[str] | None) -> Iterator[Flaw]:
    told = dict[str, FileEntry]()
    for entry in entries:
        if entry.kind is Kind.FILE:
            try:
                one = msgspec.convert(entry.body, FileEntry)
            except msgspec.ValidationError as error:
                yield Flaw(f"entry {entry.n}", f"not a file: {error}")
                continue
            if one.name in told:
                yield Flaw(f"entry {entry.n}", f"file {one.name} is told of twice")
            told[one.name] = one
    there = {found.name: found.path for found in files(folder)}
    for name in sorted(told.keys() | there.keys()):
        if name not in there and away is not None and holds_contents(name):
            away.append(name)
        elif name not in there:
            yield Flaw(name, "it is missing")
        elif name not in told:
            yield Flaw(name, "it is none of the bundle's")
        elif there[name].is_symlink() or not there[name].is_file():
            yield Flaw(name, "it is not a plain file")
        elif (there[name].stat().st_size, sha256_of(there[name])) != (told[name].size, told[name].sha256):
            yield Flaw(name, "it was altered")


def _lines(path: Path, found: list[Flaw]) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found.append(Flaw(path.name, f"cannot be read: {type(error).__name__}"))
        return []
    if not text.endswith("\n"):
        found.append(Flaw(path.name, "it does not end with a whole line"))
    return text.removesuffix("\n").split("\n")


def _entries(lines: Sequence[str], found: list[Flaw]) -> Iterator[Entry]:
    for number, line in enumerate(lines):
        try:
            yield msgspec.json.decode(line, type=Entry)
        except msgspec.MsgspecError as error:
            found.append(Flaw(f"entry {number}", f"cannot be read: {error}"))
            return


def _read(path: Path, kind: type[T], found: list[Flaw]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        found.append(Flaw(path.name, f"cannot be read: {error}"))
        return None
