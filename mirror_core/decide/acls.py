"""What an access control entry says; which ones let applications change mirror topics, and what denials meet those."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from typing import Final

from mirror_core.model.acl import Acl, Operation, Pattern, Permission, Resource

CHANGING: Final = frozenset(
    {
        Operation.ALL,
        Operation.WRITE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.ALTER_CONFIGS,
        Operation.CREATE,
    }
)
"""Operations on a topic that can change a mirror topic."""

EVERYBODY: Final = "User:*"
OUR_NAMES: Final = "mirrorbook"
"""Groups and transactional ids of ours begin with this word."""
OUR_TOPICS: Final = "__mirrorbook"
"""And our topics with this one."""


def covers(acl: Acl, name: str) -> bool:
    """Whether an entry speaks of the resource of this name (the resource's type is not looked at)."""
    if acl.pattern is Pattern.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in ("*", name)


def meets(acl: Acl, prefix: str) -> bool:
    """Whether an entry speaks of any name that begins so (the resource's type is not looked at)."""
    if acl.name == "*" and acl.pattern is Pattern.LITERAL:
        return True
    return acl.name.startswith(prefix) or (acl.pattern is Pattern.PREFIXED and prefix.startswith(acl.name))


def may_change(acl: Acl) -> bool:
    """Whether it grants a right by which a topic can be changed."""
    return acl.resource is Resource.TOPIC and acl.permission is Permission.ALLOW and acl.operation in CHANGING


def demotions(destination: Set[Acl], topics: Collection[str], own_principals: Set[str]) -> set[Acl]:
    """Denials that keep applications from changing these topics: literal per topic, for each principal that may now.

    What `undemotable` finds is left out: nothing offsets that.
    """
    deny = set[Acl]()
    for acl in changing(destination, topics, own_principals) - undemotable(destination, topics, own_principals):
        operations = CHANGING - {Operation.ALL} if acl.operation is Operation.ALL else {acl.operation}
        deny |= {denial(t, acl.principal, operation=o) for t in topics if covers(acl, t) for o in operations}
    return deny


def undemotable(destination: Set[Acl], topics: Collection[str], own_principals: Set[str]) -> frozenset[Acl]:
    """Grants by which everybody may change one of these topics: a person must replace them by grants to names.

    Only a denial for everybody would meet one, and that would stop the mirror itself.
    """
    return frozenset(a for a in changing(destination, topics, own_principals) if a.principal == EVERYBODY)


def changing(acls: Iterable[Acl], topics: Collection[str], own_principals: Set[str]) -> set[Acl]:
    """Grants by which others than the mirror may change one of these topics."""
    return {
        acl
        for acl in acls
        if may_change(acl) and acl.principal not in own_principals and any(covers(acl, topic) for topic in topics)
    }


def denial(
    name: str,
    principal: str = EVERYBODY,
    *,
    resource: Resource = Resource.TOPIC,
    operation: Operation = Operation.WRITE,
    pattern: Pattern = Pattern.LITERAL,
) -> Acl:
    """A denial, which wins over every grant, for all but super users."""
    return Acl(
        resource=resource,
        name=name,
        pattern=pattern,
        principal=principal,
        operation=operation,
        permission=Permission.DENY,
    )
