from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mirror_core.model.errors import BadRequest
from mirror_core.model.hooks import Hook, parse_command_hook
from mirror_core.model.text import format_suggestion


class AuthorizerKind(StrEnum):
    KAFKA = "kafka"
    """Kafka's ACLs. Mirrorbook reads, copies and writes them."""
    NONE = "none"
    """No authorization. No ACL is read or written."""
    FOREIGN = "foreign"
    """An authorizer without Kafka's ACL requests. No ACL is read or written."""

    @property
    def no_acl_reason(self) -> str:
        """Follows the cluster's name in messages."""
        return _NO_ACL_REASONS[self]


_NO_ACL_REASONS: Final = {
    AuthorizerKind.KAFKA: "has no authorizer",
    AuthorizerKind.NONE: "gets no ACLs from Mirrorbook (`authorizer: none`)",
    AuthorizerKind.FOREIGN: "has an authorizer that is not Kafka's",
}


class WriteBarrier(StrEnum):
    DENY_ACLS = "denials"
    COMMAND = "fence_command"
    NONE = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizerConfig:
    authorizer: AuthorizerKind = AuthorizerKind.KAFKA
    fence_command: Hook | None = None
    """Only with FOREIGN and `unfence_command`."""
    unfence_command: Hook | None = None

    @property
    def is_foreign(self) -> bool:
        return self.authorizer is AuthorizerKind.FOREIGN

    def without_commands(self) -> AuthorizerConfig:
        return AuthorizerConfig(authorizer=self.authorizer)

    def get_write_barrier(self, *, denials_possible: bool) -> WriteBarrier:
        """`denials`: no broker was seen without an authorizer."""
        if self.fence_command is not None:
            return WriteBarrier.COMMAND
        return (
            WriteBarrier.DENY_ACLS
            if denials_possible and self.authorizer is AuthorizerKind.KAFKA
            else WriteBarrier.NONE
        )


KAFKA_AUTHORIZER: Final = AuthorizerConfig()
_FENCE_KEY: Final = "fence_command"
_UNFENCE_KEY: Final = "unfence_command"
AUTHORIZER_KEYS: Final = ("authorizer", _FENCE_KEY, _UNFENCE_KEY)
"""Not client properties."""


def parse_authorizer_config(location: str, raw: dict[object, object]) -> AuthorizerConfig:
    """Removes these keys from `raw`. BadRequest names a mistake."""
    value = str(raw.pop("authorizer", AuthorizerKind.KAFKA))
    known_values = [str(kind) for kind in AuthorizerKind]
    if value not in known_values:
        raise BadRequest(
            f"{location}.authorizer: {value!r} is none of {', '.join(known_values)}{format_suggestion(value, known_values)}"
        )
    authorizer = AuthorizerKind(value)
    hooks = {
        key: parse_command_hook(f"{location}.{key}", key, raw.pop(key))
        for key in (_FENCE_KEY, _UNFENCE_KEY)
        if key in raw
    }
    if hooks and authorizer is not AuthorizerKind.FOREIGN:
        raise BadRequest(
            f"{location}.{min(hooks)}: only for a cluster with `authorizer: foreign`; with `authorizer: {authorizer}` it "
            "would never be called"
        )
    if len(hooks) == 1:
        missing = _UNFENCE_KEY if _FENCE_KEY in hooks else _FENCE_KEY
        raise BadRequest(
            f"{location}.{missing}: is missing; a run that closes the cluster to applications must be able to open it "
            "again, so both commands are needed"
        )
    return AuthorizerConfig(
        authorizer=authorizer, fence_command=hooks.get(_FENCE_KEY), unfence_command=hooks.get(_UNFENCE_KEY)
    )
