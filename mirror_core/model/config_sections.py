""""""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from mirror_core.model.errors import BadRequest
from mirror_core.model.findings import Finding, format_no_acl_reason
from mirror_core.model.hooks import Hook, parse_command_hook, parse_health_command, parse_hooks
from mirror_core.model.names import ClusterName, MirrorName, compile_name_pattern, get_base_name
from mirror_core.model.text import format_suggestion, parse_duration_ms

OWNER_KEY: Final = "owner"
"""A plan figure's key: whom to call."""
_MAX_OWNER_LENGTH: Final = 200
_HOLD_KEY: Final = "hold_deletions"
_RTO_KEY: Final = "rto"
_HEALTH_KEY: Final = "health"
_SECTION_KEYS: Final = frozenset({_HEALTH_KEY, _HOLD_KEY, OWNER_KEY, _RTO_KEY, "switch", "together"})
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSections:
    """Mirrors without a setting are absent."""

    switch_hooks: Mapping[MirrorName, tuple[Hook, ...]] = field(default_factory=dict)
    consistency_groups: Mapping[MirrorName, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    owners: Mapping[MirrorName, str] = field(default_factory=dict)
    deletion_holds_ms: Mapping[MirrorName, int] = field(default_factory=dict)
    rtos_ms: Mapping[MirrorName, int] = field(default_factory=dict)
    health_commands: Mapping[MirrorName, Hook] = field(default_factory=dict)

    def get_owner(self, mirror: MirrorName) -> str:
        return get_for_mirror(self.owners, mirror, "")


def get_for_mirror(values: Mapping[MirrorName, T], mirror: MirrorName, default: T) -> T:
    """A reverse mirror falls back to its base name."""
    return values.get(mirror, values.get(get_base_name(mirror), default))


def parse_mirror_sections(path: str, mirrors: object) -> MirrorSections:
    """BadRequest has the location of a mistake."""
    if not isinstance(mirrors, dict):
        raise BadRequest(f"{path}: `mirrors:` must be a mapping of a mirror's name to its section")
    for name, section in mirrors.items():
        if not isinstance(section, dict) or not section or section.keys() - _SECTION_KEYS:
            raise BadRequest(
                f"{path}: mirrors.{name}: must be a mapping with the keys `{_HEALTH_KEY}`, `{_HOLD_KEY}`,"
                f" `owner`, `{_RTO_KEY}`, `switch` and `together` only"
            )

    def parse_each(key: str, parse_value: Callable[[str, object], T]) -> dict[MirrorName, T]:
        return {
            MirrorName(str(name)): parse_value(f"{path}: mirrors.{name}.{key}", section[key])
            for name, section in mirrors.items()
            if key in section
        }

    return MirrorSections(
        switch_hooks=parse_each("switch", parse_hooks),
        consistency_groups=parse_each("together", _parse_topic_groups),
        owners=parse_each(OWNER_KEY, _parse_owner),
        deletion_holds_ms=parse_each(_HOLD_KEY, _parse_hold_ms),
        rtos_ms=parse_each(_RTO_KEY, _parse_rto_ms),
        health_commands=parse_each(_HEALTH_KEY, parse_health_command),
    )


def _parse_owner(location: str, raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip() or not raw.isprintable() or len(raw) > _MAX_OWNER_LENGTH:
        raise BadRequest(f"{location}: must be whom to call, in one line of at most {_MAX_OWNER_LENGTH} characters")
    return raw.strip()


def _parse_hold_ms(location: str, raw: object) -> int:
    duration_ms = parse_duration_ms(str(raw))
    if duration_ms is None or isinstance(raw, bool):
        raise BadRequest(
            f"{location}: {raw!r} must be a whole number with a unit (s, m, h or d), such as 24h; or 0: deletions are"
            " followed at once"
        )
    return duration_ms


def _parse_rto_ms(location: str, raw: object) -> int:
    duration_ms = parse_duration_ms(str(raw))
    if not duration_ms or isinstance(raw, bool):
        raise BadRequest(
            f"{location}: {raw!r} must be a whole number with a unit (s, m, h or d), such as 5m: how long applications"
            " may be without writes"
        )
    return duration_ms


def _parse_topic_groups(location: str, raw: object) -> tuple[tuple[str, ...], ...]:
    if not isinstance(raw, list) or not all(
        isinstance(group, list) and group and all(isinstance(pattern, str) for pattern in group) for group in raw
    ):
        raise BadRequest(f"{location}: must be a list of lists of regular expressions")
    for pattern in (pattern for group in raw for pattern in group):
        compile_name_pattern(f"{location}:", pattern)
    return tuple(tuple(group) for group in raw)


class SetOrder(StrEnum):
    SIDE_BY_SIDE = "side_by_side"
    """All are fenced together; none is promoted before all are ready."""
    IN_ORDER = "in_order"
    """As listed; each is done before the next is fenced."""


@dataclass(frozen=True, slots=True)
class MirrorSet:
    """At least one mirror, without duplicates."""

    name: str
    mirrors: tuple[MirrorName, ...]
    order: SetOrder = SetOrder.SIDE_BY_SIDE
    left_out: tuple[Finding, ...] = ()
    """No part of a set of all mirrors, and why."""

    @property
    def is_mirror_alone(self) -> bool:
        """One that goes by itself: its run is of no set. It has no name of a set."""
        return not self.name


ALL_FROM_PREFIX: Final = "all-from-"
"""Before a cluster's name: the set of all mirrors from it, which no configuration lists."""


def format_source_set(cluster: ClusterName) -> str:
    return f"{ALL_FROM_PREFIX}{cluster}"


def parse_sets(location: str, section: object) -> dict[str, MirrorSet]:
    """BadRequest has the location of a mistake."""
    if not isinstance(section, dict):
        raise BadRequest(f"{location}: must be a mapping of a set's name to its mirrors")
    return {str(name): _parse_set(f"{location}.{name}", str(name), raw) for name, raw in section.items()}


def _parse_set(location: str, name: str, raw: object) -> MirrorSet:
    if name.startswith(ALL_FROM_PREFIX):
        raise BadRequest(
            f"{location}: {ALL_FROM_PREFIX}CLUSTER is the set of all mirrors from a cluster; choose another name"
        )
    if not isinstance(raw, dict) or raw.keys() - {"mirrors", "order"}:
        raise BadRequest(f"{location}: must be a mapping with `mirrors` and, if you like, `order`")
    mirrors, order = raw.get("mirrors"), raw.get("order", SetOrder.SIDE_BY_SIDE)
    if (
        not isinstance(mirrors, list)
        or not mirrors
        or not all(isinstance(mirror, str) and mirror for mirror in mirrors)
    ):
        raise BadRequest(f"{location}.mirrors: must be a list of mirrors' names")
    if duplicates := sorted({mirror for mirror in mirrors if mirrors.count(mirror) > 1}):
        raise BadRequest(f"{location}.mirrors: {', '.join(duplicates)} is listed twice")
    if order not in [*SetOrder]:
        raise BadRequest(f"{location}.order: {order!r} is neither {' nor '.join(SetOrder)}")
    return MirrorSet(name, tuple(MirrorName(mirror) for mirror in mirrors), SetOrder(order))


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
        return format_no_acl_reason(self)


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
        """`denials_possible`: no broker was seen without an authorizer."""
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
            f"{location}.authorizer: {value!r} is none of"
            f" {', '.join(known_values)}{format_suggestion(value, known_values)}"
        )
    authorizer = AuthorizerKind(value)
    hooks = {
        key: parse_command_hook(f"{location}.{key}", key, raw.pop(key))
        for key in (_FENCE_KEY, _UNFENCE_KEY)
        if key in raw
    }
    if hooks and authorizer is not AuthorizerKind.FOREIGN:
        raise BadRequest(
            f"{location}.{min(hooks)}: only for a cluster with `authorizer: foreign`; with `authorizer: {authorizer}`"
            " it would never be called"
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
