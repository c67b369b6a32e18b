"""Errors by class: callers choose by class, never by text; the class decides the exit code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final

_NONE: Final[Mapping[Any, RemoteFault]] = MappingProxyType({})


class MirrorError(Exception):
    """Root of everything we raise on purpose. The text says what, where, why, and what to do."""

    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False


class BadRequest(MirrorError):
    """The operator's mistake: a wrong name, option, configuration or password."""

    exit_code = 2


class Refused(MirrorError):
    """A safe answer to a dangerous wish. Carries every reason, not only the first."""

    exit_code = 3

    def __init__(self, what: str, reasons: Iterable[str]) -> None:
        self.what = what
        self.reasons = tuple(reasons)
        super().__init__(what + ":" + "".join(f"\n  - {reason}" for reason in self.reasons))


class HeldByRun(Refused):
    """A failover or failback holds the mirror, and nobody else may change it meanwhile."""


class Indeterminate(MirrorError):
    """Could not be known: nothing was compared, or something that decides could not be read."""

    exit_code = 4


class LostOwnership(MirrorError):
    """Another process took over. Stop at once and touch nothing more."""

    exit_code = 5


class RemoteFault(MirrorError):
    """A cluster failed us, or answered what it must not."""

    def __init__(self, words: str, refused: Mapping[Any, RemoteFault] = _NONE) -> None:
        super().__init__(words)
        self.refused = refused
        """Of a request about several things: each that was refused, with its own reason."""


class Unreachable(RemoteFault):
    """No broker answered in time."""

    retryable = True


class NotLetIn(Unreachable):
    """It is there, and does not talk with us: our certificate is not taken, or TLS is expected. A broker that
    is restarted may end a connection in the same way."""

    retryable = False


class SignInFailed(NotLetIn):
    """One broker's certificate is not trusted, or it refuses the login. As a rule its own trouble: certificates and
    passwords are renewed broker by broker. When every broker says so, it is a BadRequest."""


class Unwritten(Unreachable):
    """The state topic takes nothing now, and the lease is ours as far as we know."""


class MissingPermission(RemoteFault):
    """The principal may not do what the step needs."""

    exit_code = 2


class SettingRefused(RemoteFault):
    """A policy or a range of values of the cluster refuses what was to be created or set."""


class PartitionFailed(RemoteFault):
    """This partition cannot go on; the others can."""
