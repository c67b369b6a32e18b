"""Which ACLs cover which names, let applications change mirror topics, and which denials offset them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Set
from itertools import islice, takewhile
from types import MappingProxyType
from typing import Final

from mirror_core.model.acl import Acl, Operation, Pattern, Permission, Resource
from mirror_core.model.text import format_option, format_shell_command

CHANGING_OPERATIONS: Final = frozenset(
    {
        Operation.ALL,
        Operation.WRITE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.ALTER_CONFIGS,
        Operation.CREATE,
    }
)
EVERYBODY: Final = "User:*"
OWN_NAME_PREFIX: Final = "mirrorbook"
OWN_TOPIC_PREFIX: Final = "__mirrorbook"


def covers(acl: Acl, name: str) -> bool:
    """Ignores the resource type."""
    if acl.pattern is Pattern.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in ("*", name)


class SortedNames:
    def __init__(self, names: Iterable[str]) -> None:
        self._sorted = sorted(set(names))
        self._known = frozenset(self._sorted)

    def find_covered(self, acl: Acl) -> list[str]:
        if acl.pattern is Pattern.PREFIXED:
            first = bisect_left(self._sorted, acl.name)
            return list(takewhile(lambda name: name.startswith(acl.name), islice(self._sorted, first, None)))
        if acl.name == "*":
            return list(self._sorted)
        return [acl.name] if acl.name in self._known else []

    def has_covered(self, acl: Acl) -> bool:
        if acl.pattern is Pattern.PREFIXED:
            first = bisect_left(self._sorted, acl.name)
            return first < len(self._sorted) and self._sorted[first].startswith(acl.name)
        return acl.name in self._known or (acl.name == "*" and bool(self._known))


def overlaps_prefix(acl: Acl, prefix: str) -> bool:
    """Covers any name with this prefix. Ignores the resource type."""
    if acl.name == "*" and acl.pattern is Pattern.LITERAL:
        return True
    return acl.name.startswith(prefix) or (acl.pattern is Pattern.PREFIXED and prefix.startswith(acl.name))


def is_wildcard_grant(acl: Acl) -> bool:
    """It covers other names on another cluster."""
    named = acl.resource in (Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID)
    return named and acl.permission is Permission.ALLOW and (acl.pattern is Pattern.PREFIXED or acl.name == "*")


def can_change_topic(acl: Acl) -> bool:
    return (
        acl.resource is Resource.TOPIC and acl.permission is Permission.ALLOW and acl.operation in CHANGING_OPERATIONS
    )


def build_demotions(destination: Set[Acl], topics: Collection[str], own_principals: Set[str]) -> set[Acl]:
    """Literal denials per topic and principal that can change it.

    Leaves out grants of `find_undemotable_grants`: no denial can offset them.
    """
    names, deny = SortedNames(topics), set[Acl]()
    for acl in find_changing_grants(destination, topics, own_principals):
        if acl.principal != EVERYBODY:
            deny |= build_offsetting_denials(acl, names)
    return deny


def build_offsetting_denials(acl: Acl, topics: SortedNames) -> set[Acl]:
    operations = CHANGING_OPERATIONS - {Operation.ALL} if acl.operation is Operation.ALL else {acl.operation}
    return {build_denial(t, acl.principal, operation=o) for t in topics.find_covered(acl) for o in operations}


def find_undemotable_grants(destination: Set[Acl], topics: Collection[str], own_principals: Set[str]) -> frozenset[Acl]:
    """Grants to everybody, which a person must replace: only a denial for everybody would offset one."""
    return frozenset(a for a in find_changing_grants(destination, topics, own_principals) if a.principal == EVERYBODY)


def find_changing_grants(acls: Iterable[Acl], topics: Collection[str], own_principals: Set[str]) -> set[Acl]:
    names = SortedNames(topics)
    return {a for a in acls if can_change_topic(a) and a.principal not in own_principals and names.has_covered(a)}


def build_denial(
    name: str,
    principal: str = EVERYBODY,
    *,
    resource: Resource = Resource.TOPIC,
    operation: Operation = Operation.WRITE,
    pattern: Pattern = Pattern.LITERAL,
) -> Acl:
    """Overrides every grant, except for super users."""
    return Acl(
        resource=resource,
        name=name,
        pattern=pattern,
        principal=principal,
        operation=operation,
        permission=Permission.DENY,
    )


_RESOURCE_OPTIONS: Final[Mapping[Resource, str]] = MappingProxyType(
    {
        Resource.TOPIC: "--topic",
        Resource.GROUP: "--group",
        Resource.TRANSACTIONAL_ID: "--transactional-id",
        Resource.DELEGATION_TOKEN: "--delegation-token",
        Resource.USER: "--user-principal",
    }
)


def format_acl_command(acl: Acl, *, bootstrap: str = "BOOTSTRAP", remove: bool = False) -> str:
    side = "allow" if acl.permission is Permission.ALLOW else "deny"
    arguments = [*format_option("--bootstrap-server", bootstrap), "--remove" if remove else "--add"]
    arguments += [*format_option(f"--{side}-principal", acl.principal), "--operation", _format_operation(acl.operation)]
    if acl.resource is Resource.CLUSTER:
        arguments.append("--cluster")
    else:
        arguments += format_option(_RESOURCE_OPTIONS[acl.resource], acl.name)
    if acl.pattern is Pattern.PREFIXED:
        arguments += ["--resource-pattern-type", "prefixed"]
    if acl.host != "*":
        arguments += format_option(f"--{side}-host", acl.host)
    return format_shell_command("kafka-acls.sh", *arguments)


def _format_operation(operation: Operation) -> str:
    return "".join(part.capitalize() for part in operation.split("_"))
