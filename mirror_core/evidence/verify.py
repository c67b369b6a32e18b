"""Verifies a bundle offline, with the folder and a public key only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from mirror_core.decide.drills import can_be_forgotten
from mirror_core.decide.evidence import (
    AuditFlaw,
    RunConclusion,
    conclude_run,
    find_audit_flaws,
    find_broken_links,
    has_topic_contents,
)
from mirror_core.evidence.bundle import (
    BUNDLE_SCHEMA,
    ENTRIES_FILE,
    HEAD_FILE,
    PLAN_FILE,
    BundleHead,
    FileEntry,
    compute_sha256,
    list_files,
)
from mirror_core.evidence.signing import PublicKey
from mirror_core.model.chronicle import AuditEntry, AuditEntryKind, AuditLine, get_head_hash, to_canonical_json
from mirror_core.model.errors import BadRequest
from mirror_core.model.run import Plan, Run

Decoded = TypeVar("Decoded")


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleVerification:
    run: str
    verdict: RunConclusion
    reason: str
    approved_by: str
    entries: int
    files: int
    key: str | None
    """Without a key anybody may have written it all."""
    flaws: tuple[AuditFlaw, ...]
    left_out: tuple[str, ...] = ()
    forgotten: bool = False
    """An old drill, which the state topic has forgotten."""


KnownEntries = Mapping[str, Mapping[int, AuditLine]]


def verify_bundle(
    folder: Path,
    key: PublicKey | None,
    run: str | None = None,
    known_entries: KnownEntries | None = None,
    runs: Iterable[Run] = (),
) -> BundleVerification:
    """Raises BadRequest if it is no bundle.

    `run`: it must be this one. `known_entries`: entries must match these, unless `runs` show that the run was
    forgotten.
    """
    if not (folder / HEAD_FILE).is_file():
        raise BadRequest(f"{folder}: there is no {HEAD_FILE}: not the evidence of a run")
    flaws_found = list[AuditFlaw]()
    head = _read_json(folder / HEAD_FILE, BundleHead, flaws_found)
    plan = _read_json(folder / PLAN_FILE, Plan, flaws_found)
    lines = _read_lines(folder / ENTRIES_FILE, flaws_found)
    entries = list(_parse_entries(lines, flaws_found))
    if head is None or plan is None or len(entries) < len(lines) or not entries:
        return _to_verification(head, entries, RunConclusion.UNFINISHED, "it cannot be read", None, flaws_found)
    flaws_found += _find_head_flaws(folder, head, key, run)
    if (head.entries, head.hash) != (len(lines), get_head_hash(lines)):
        head_text = f"it stands for {head.entries} entries, the last of hash {head.hash[:12]}"
        entries_text = f"there are {len(lines)}, the last of hash {get_head_hash(lines)[:12]}"
        flaws_found.append(
            AuditFlaw(HEAD_FILE, f"{head_text}; {entries_text}: an older head, or entries of another bundle")
        )
    flaws_found += find_broken_links(entries, lines, head.run)
    flaws_found += find_audit_flaws(entries, plan, compute_sha256(folder / PLAN_FILE))
    left_out = list[str]()
    flaws_found += _find_file_flaws(folder, entries, left_out if head.copy is True else None)
    forgotten = False
    if known_entries is not None:
        forgotten = head.run not in known_entries and can_be_forgotten(runs, plan, entries[0].at_ms)
        flaws_found += () if forgotten else _find_unknown_entries(entries, lines, known_entries.get(head.run, {}))
    verdict, reason = conclude_run(entries, plan)
    if verdict is not head.verdict:
        flaws_found.append(
            AuditFlaw(HEAD_FILE, f"its verdict is {head.verdict.value!r}, and the entries come to {verdict.value!r}")
        )
    return replace(
        _to_verification(head, entries, verdict, reason, key, flaws_found),
        left_out=tuple(left_out),
        forgotten=forgotten,
    )


def _to_verification(
    head: BundleHead | None,
    entries: Sequence[AuditEntry],
    verdict: RunConclusion,
    reason: str,
    key: PublicKey | None,
    flaws_found: Sequence[AuditFlaw],
) -> BundleVerification:
    return BundleVerification(
        run=head.run if head else "unknown",
        verdict=verdict,
        reason=reason,
        approved_by=str(entries[0].body.get("approved_by", "")) if entries else "",
        entries=len(entries),
        files=sum(entry.kind is AuditEntryKind.FILE for entry in entries),
        key=key.id if key and not flaws_found else None,
        flaws=tuple(flaws_found),
    )


def _find_head_flaws(folder: Path, head: BundleHead, key: PublicKey | None, run: str | None) -> Iterator[AuditFlaw]:
    if head.schema != BUNDLE_SCHEMA:
        yield AuditFlaw(HEAD_FILE, f"it is of form {head.schema!r}, this Mirrorbook knows {BUNDLE_SCHEMA!r}")
    if (folder / HEAD_FILE).read_text(encoding="utf-8") != to_canonical_json(head):
        yield AuditFlaw(HEAD_FILE, "it does not look as it was written")
    if run is not None and head.run != run:
        yield AuditFlaw(HEAD_FILE, f"it is of run {head.run}")
    if key is None:
        return
    if head.signature is None:
        yield AuditFlaw(HEAD_FILE, "it is not signed")
    elif not key.is_signature_of(head.content, head.signature):
        yield AuditFlaw(HEAD_FILE, f"the signature is not that of key {key.id} over what it says")


def _find_unknown_entries(
    entries: Sequence[AuditEntry], lines: Sequence[str], known_entries: Mapping[int, AuditLine]
) -> Iterator[AuditFlaw]:
    chained_lines = [line for entry, line in zip(entries, lines, strict=True) if entry.kind is not AuditEntryKind.FILE]
    for number, line in enumerate(chained_lines):
        if number not in known_entries:
            yield AuditFlaw(f"entry {number}", "the state topic knows nothing of it")
        elif known_entries[number].line != line:
            yield AuditFlaw(f"entry {number}", "the state topic says something else")
    if len(known_entries) > len(chained_lines):
        yield AuditFlaw(
            ENTRIES_FILE,
            f"the state topic knows {len(known_entries) - len(chained_lines)} entries more: this bundle is older",
        )


def _find_file_flaws(folder: Path, entries: Sequence[AuditEntry], left_out: list[str] | None) -> Iterator[AuditFlaw]:
    expected = dict[str, FileEntry]()
    for entry in entries:
        if entry.kind is AuditEntryKind.FILE:
            try:
                file_entry = msgspec.convert(entry.body, FileEntry)
            except msgspec.ValidationError as error:
                yield AuditFlaw(f"entry {entry.n}", f"not a file: {error}")
                continue
            if file_entry.name in expected:
                yield AuditFlaw(f"entry {entry.n}", f"file {file_entry.name} is told of twice")
            expected[file_entry.name] = file_entry
    present = {bundled_file.name: bundled_file.path for bundled_file in list_files(folder)}
    for name in sorted(expected.keys() | present.keys()):
        if name not in present and left_out is not None and has_topic_contents(name):
            left_out.append(name)
        elif name not in present:
            yield AuditFlaw(name, "it is missing")
        elif name not in expected:
            yield AuditFlaw(name, "it is none of the bundle's")
        elif present[name].is_symlink() or not present[name].is_file():
            yield AuditFlaw(name, "it is not a plain file")
        elif (present[name].stat().st_size, compute_sha256(present[name])) != (
            expected[name].size,
            expected[name].sha256,
        ):
            yield AuditFlaw(name, "it was altered")


def _read_lines(path: Path, flaws_found: list[AuditFlaw]) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        flaws_found.append(AuditFlaw(path.name, f"cannot be read: {type(error).__name__}"))
        return []
    if not text.endswith("\n"):
        flaws_found.append(AuditFlaw(path.name, "it does not end with a whole line"))
    return text.removesuffix("\n").split("\n")


def _parse_entries(lines: Sequence[str], flaws_found: list[AuditFlaw]) -> Iterator[AuditEntry]:
    for number, line in enumerate(lines):
        try:
            yield msgspec.json.decode(line, type=AuditEntry)
        except msgspec.MsgspecError as error:
            flaws_found.append(AuditFlaw(f"entry {number}", f"cannot be read: {error}"))
            return


def _read_json(path: Path, document_type: type[Decoded], flaws_found: list[AuditFlaw]) -> Decoded | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=document_type)
    except (OSError, msgspec.MsgspecError) as error:
        flaws_found.append(AuditFlaw(path.name, f"cannot be read: {error}"))
        return None
