"""Callers decide by class, never by text. The class sets the exit code."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, Protocol, overload

from mirror_core.model.text import format_items

_NO_REFUSALS: Final[Mapping[Any, RemoteFault]] = MappingProxyType({})


class MirrorError(Exception):
    """The text says what, where, why, and what to do."""

    code: ClassVar[str] = "failed"
    """A stable word for scripts."""
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False


class BadRequest(MirrorError):
    code = "bad_request"
    exit_code = 2


class CodedReason(Protocol):
    @property
    def code(self) -> str: ...
    @property
    def subject(self) -> str: ...


class Refused(MirrorError):
    """Unsafe now. Carries all reasons."""

    code = "refused"
    exit_code = 3

    @overload
    def __init__(self, summary: str, reasons: Iterable[CodedReason]) -> None: ...
    @overload
    def __init__(self, summary: str, reasons: Iterable[object], reason_code: str) -> None: ...
    def __init__(self, summary: str, reasons: Iterable[object], reason_code: str = "") -> None:
        self.summary = summary
        self.reason_code = reason_code
        """For reasons that are words only."""
        self.findings = tuple(reasons)
        """Findings, where rules refused; else words."""
        self.reasons = tuple(map(str, self.findings))
        super().__init__(f"{summary}:{format_items(self.reasons)}")


class HeldByRun(Refused):
    """A failover or failback; others must not change the mirror."""

    code = "held_by_run"

    def __init__(self, summary: str, reasons: Iterable[object]) -> None:
        super().__init__(summary, reasons, self.code)


class Indeterminate(MirrorError):
    """A deciding fact could not be read, or nothing was compared."""

    code = "indeterminate"
    exit_code = 4


class LostOwnership(MirrorError):
    """Another process took over. Stop and write nothing more."""

    code = "lost_ownership"
    exit_code = 5


class RemoteFault(MirrorError):
    """A cluster failed, or sent an invalid response."""

    def __init__(self, message: str, refused: Mapping[Any, RemoteFault] = _NO_REFUSALS, *, subject: str = "") -> None:
        super().__init__(message)
        self.subject = subject
        """Cluster, topic or partition. Empty: only the message tells."""
        self.refused = refused
        """Failed items of a request about several."""


class Unreachable(RemoteFault):
    code = "unreachable"
    retryable = True


class ConnectionRefused(Unreachable):
    """Nothing listens at the address, or not yet."""


class ConnectionRejected(Unreachable):
    """Certificate not accepted, or TLS expected. A restarting broker may look the same."""

    retryable = False


class AuthenticationFailed(ConnectionRejected):
    """Usually temporary: credentials are renewed broker by broker. From all brokers it is a BadRequest."""

    code = "authentication_failed"


class StateNotWritten(Unreachable):
    """No writes to the state topic; the lease still seems ours."""


class MissingPermission(RemoteFault):
    code = "missing_permission"
    exit_code = 2


class SettingRefused(RemoteFault):
    """A policy or value range rejects it."""


class TooFewBrokers(RemoteFault):
    """For so many replicas."""


class PartitionFailed(RemoteFault):
    """This partition cannot go on; others can."""


def format_error_location(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(last.filename).name} line {last.lineno}"


def format_safe_error(error: Exception) -> str:
    """Only the type of unexpected errors: their text may hold secrets."""
    return str(error) if isinstance(error, MirrorError) else type(error).__name__
