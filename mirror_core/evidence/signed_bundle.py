"""A run's evidence as a tamper-evident folder, verified offline with only a public key.

`entries.jsonl`: the audit log and a line per file. `head.json`: number of lines, last hash, verdict, and a signature
over these (Ed25519, RFC 8032, PEM keys).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from mirror_core.decide.audit_log_check import (
    AuditFlaw,
    RunConclusion,
    conclude_run,
    find_audit_flaws,
    find_broken_links,
    has_topic_contents,
)
from mirror_core.decide.drills import can_be_forgotten
from mirror_core.evidence.file_store import Folder
from mirror_core.evidence.html_templates import load_template
from mirror_core.model.audit_log import (
    AuditEntry,
    AuditEntryKind,
    AuditLine,
    build_next_line,
    get_head_hash,
    to_canonical_json,
)
from mirror_core.model.errors import BadRequest
from mirror_core.model.files import report_write_errors
from mirror_core.model.run import Plan, Run
from mirror_core.model.run_checkpoints import RunNote
from mirror_core.model.text import format_time

_FOREIGN_RIGHTS: Final = 0o077


class Signer:
    def __init__(self, path: Path) -> None:
        """BadRequest if it is no key, or others may read it."""
        # Late: only needed to sign or verify.
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        content = _read_key_file(path, "signing key")
        if path.stat().st_mode & _FOREIGN_RIGHTS:
            raise BadRequest(f"signing key {path}: others may read or write it: chmod 600")
        try:
            key = load_pem_private_key(content, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise BadRequest(f"signing key {path}: not a private key in PEM without a passphrase") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise BadRequest(f"signing key {path}: not of type Ed25519")
        self._key = key
        self.id = compute_key_id(key.public_key().public_bytes_raw())

    def sign(self, content: str) -> str:
        return base64.b64encode(self._key.sign(content.encode())).decode()


class PublicKey:
    """The verifier's own, never taken from the bundle."""

    def __init__(self, path: Path) -> None:
        """Raises BadRequest."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        try:
            key = load_pem_public_key(_read_key_file(path, "public key"))
        except (ValueError, UnsupportedAlgorithm):
            raise BadRequest(f"public key {path}: not a public key in PEM") from None
        if not isinstance(key, Ed25519PublicKey):
            raise BadRequest(f"public key {path}: not of type Ed25519")
        self._key = key
        self.id = compute_key_id(key.public_bytes_raw())

    def is_signature_of(self, content: str, signature: str) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            decoded = base64.b64decode(signature, validate=True)
            self._key.verify(decoded, content.encode())
        except (InvalidSignature, binascii.Error, ValueError):
            return False
        return base64.b64encode(decoded).decode() == signature  # the last digits hold bits that decoding drops


def compute_key_id(raw: bytes) -> str:
    """First 16 hexadecimal digits of the public key's SHA-256."""
    return hashlib.sha256(raw).hexdigest()[:16]


def _read_key_file(path: Path, key_kind: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadRequest(f"{key_kind} {path}: cannot be read: {error.strerror}") from None


BUNDLE_SCHEMA: Final = "mirrorbook/evidence/1"
PLAN_FILE, ENTRIES_FILE, HEAD_FILE = "plan.json", "entries.jsonl", "head.json"
_BUNDLE_FILES: Final = frozenset({PLAN_FILE, ENTRIES_FILE, HEAD_FILE})
NOTES_FILE, NOTES_PAGE = "notes.jsonl", "notes.html"
"""Added later: each observation has its own signature, and the bundle says nothing of them."""
_NOT_PLAIN_FILE: Final = "it is not a plain file"
BUNDLE_ADVICE: Final = "make room and rights there, then `mirrorbook evidence write`"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleHead:
    schema: str
    run: str
    entries: int
    hash: str
    verdict: RunConclusion
    key: str | None = None
    signature: str | None = None
    """Over all other fields."""
    copy: bool | UnsetType = UNSET
    """In copies, which leave out topic contents. Absent in the run's own folder."""

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
    notes = [name for name in (NOTES_FILE, NOTES_PAGE) if _is_plain_file(folder / name)]
    for name in (*file_names, *notes, PLAN_FILE, ENTRIES_FILE):
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
    for name in sorted(paths.keys() - _BUNDLE_FILES - {NOTES_FILE, NOTES_PAGE}):
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


Decoded = TypeVar("Decoded")


class VerifiedNote(msgspec.Struct, frozen=True, kw_only=True):
    """An observation that was added after the run. It changes no verdict."""

    by: str
    at_ms: int
    text: str
    signed: bool
    """By the key that was given, over all that it says."""


def write_notes(folder: Path, run: Run, notes: Sequence[RunNote]) -> None:
    page = load_template("notes.html.j2", when=format_time).render(run=run, notes=notes)
    with report_write_errors(f"notes of run {run.id}", folder, BUNDLE_ADVICE):
        _replace_file(folder / NOTES_FILE, "".join(f"{to_canonical_json(note)}\n" for note in notes))
        _replace_file(folder / NOTES_PAGE, page)


def _verify_notes(folder: Path, run: str, key: PublicKey | None) -> Iterator[VerifiedNote]:
    """Leaves out unreadable lines: they prove nothing."""
    path = folder / NOTES_FILE
    lines = path.read_bytes().splitlines() if _is_plain_file(path) else ()
    for line in lines:
        try:
            note = msgspec.json.decode(line, type=RunNote)
        except (msgspec.MsgspecError, RecursionError):
            continue
        is_signed = key is not None and note.run == run and note.signature is not None
        signed = is_signed and key is not None and key.is_signature_of(note.content, note.signature or "")
        yield VerifiedNote(by=note.by, at_ms=note.at_ms, text=note.text, signed=signed)


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleVerification:
    run: str
    verdict: RunConclusion | None
    """Unknown with any flaw."""
    reason: str
    approved_by: str
    entries: int
    files: int
    key: str | None
    """Without a key anybody may have written it all."""
    flaws: tuple[AuditFlaw, ...]
    left_out: tuple[str, ...] = ()
    forgotten: bool = False
    """An old drill, gone from the state topic."""
    notes: tuple[VerifiedNote, ...] = ()


KnownEntries = Mapping[str, Mapping[int, AuditLine]]


def verify_bundle(
    folder: Path,
    key: PublicKey | None,
    run: str | None = None,
    known_entries: KnownEntries | None = None,
    runs: Iterable[Run] = (),
) -> BundleVerification:
    """BadRequest if it is no bundle.

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
        return _to_verification(head, entries, RunConclusion.UNFINISHED, "", None, flaws_found)
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
        number = entries[0].body.get("number")
        forgotten = head.run not in known_entries and isinstance(number, int) and can_be_forgotten(runs, plan, number)
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
        notes=tuple(_verify_notes(folder, head.run, key)),
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
        verdict=None if flaws_found else verdict,
        reason="" if flaws_found else reason,
        approved_by=str(entries[0].body.get("approved_by", "")) if entries else "",
        entries=len(entries),
        files=sum(entry.kind is AuditEntryKind.FILE for entry in entries),
        key=key.id if key and not flaws_found else None,
        flaws=tuple(flaws_found),
    )


def _find_head_flaws(folder: Path, head: BundleHead, key: PublicKey | None, run: str | None) -> Iterator[AuditFlaw]:
    if head.schema != BUNDLE_SCHEMA:
        yield AuditFlaw(HEAD_FILE, f"it is of form {head.schema!r}, this Mirrorbook knows {BUNDLE_SCHEMA!r}")
    if (folder / HEAD_FILE).read_bytes() != to_canonical_json(head).encode():
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
            yield AuditFlaw(name, _NOT_PLAIN_FILE)
        elif (present[name].stat().st_size, compute_sha256(present[name])) != (
            expected[name].size,
            expected[name].sha256,
        ):
            yield AuditFlaw(name, "it was altered")


def _is_plain_file(path: Path) -> bool:
    """A link may change its file; a pipe never ends."""
    return path.is_file() and not path.is_symlink()


def _read_lines(path: Path, flaws_found: list[AuditFlaw]) -> list[str]:
    if not _is_plain_file(path):
        flaws_found.append(AuditFlaw(path.name, _NOT_PLAIN_FILE))
        return []
    try:
        text = path.read_bytes().decode()  # line breaks as they are: each byte counts
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
        except (msgspec.MsgspecError, RecursionError) as error:
            flaws_found.append(AuditFlaw(f"entry {number}", f"cannot be read: {error}"))
            return


def _read_json(path: Path, document_type: type[Decoded], flaws_found: list[AuditFlaw]) -> Decoded | None:
    if not _is_plain_file(path):
        flaws_found.append(AuditFlaw(path.name, _NOT_PLAIN_FILE))
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=document_type)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        flaws_found.append(AuditFlaw(path.name, f"cannot be read: {error}"))
        return None
