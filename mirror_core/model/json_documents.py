from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from mirror_core.model.findings import Finding, FindingValue

Command = TypeVar("Command", bound=Callable[..., None])

_TERMINAL_CONTROLS: Final = re.compile(r"[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_DOCUMENTS_ATTRIBUTE: Final = "__documents__"


class JsonDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Without defaults, so every key is always present."""


class FindingDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A reason, a warning, or what is not known. Decide by `code` and `values`; `text` is for people."""

    code: str
    subject: str
    """Name of the mirror, cluster, topic, partition or group that it is about."""
    values: Mapping[str, FindingValue]
    text: str


class ErrorDocument(JsonDocument, frozen=True, kw_only=True):
    """Last line on standard error of a command that failed with --json."""

    code: str
    """Decide by this, or by the exit code."""
    message: str
    reasons: tuple[FindingDocument, ...]
    notes: tuple[str, ...]
    """Where applications can write now, and what to do."""
    exit_code: int


def to_finding_documents(findings: Iterable[Finding]) -> tuple[FindingDocument, ...]:
    return tuple(
        FindingDocument(code=finding.code, subject=finding.subject, values=finding.values, text=str(finding))
        for finding in findings
    )


def to_finding_document(finding: Finding | None) -> FindingDocument | None:
    return None if finding is None else to_finding_documents([finding])[0]


def to_reason_documents(reasons: Iterable[object], code: str) -> tuple[FindingDocument, ...]:
    """`code`: of reasons that are words only."""
    return tuple(
        to_finding_documents([reason])[0]
        if isinstance(reason, Finding)
        else FindingDocument(code=code, subject="", values={}, text=str(reason))
        for reason in reasons
    )


def prints_json(*documents: type[JsonDocument]) -> Callable[[Command], Command]:
    """Declares the documents (one of several) that a command prints with --json."""

    def declare(command: Command) -> Command:
        setattr(command, _DOCUMENTS_ATTRIBUTE, documents)
        return command

    return declare


def get_printed_documents(command: Callable[..., object]) -> tuple[type[JsonDocument], ...]:
    documents: tuple[type[JsonDocument], ...] = getattr(command, _DOCUMENTS_ATTRIBUTE, ())
    return documents


def format_json(document: object) -> str:
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    # JSON escapes C0 only; terminals obey C1 and bidirectional marks, too.
    return _TERMINAL_CONTROLS.sub(_escape_match, text)


def format_json_line(document: object) -> str:
    return _TERMINAL_CONTROLS.sub(_escape_match, msgspec.json.encode(document).decode())


def _escape_match(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]
