"""What an access control entry says; which ones let applications change mirror topics, and what denials meet those."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Set
from itertools import islice, takewhile
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


class Names:
    """Names of topics, or of groups, that many entries are asked about."""

    def __init__(self, names: Iterable[str]) -> None:
        self._sorted = sorted(set(names))
        self._known = frozenset(self._sorted)

    def covered(self, acl: Acl) -> list[str]:
        """Those that an entry speaks of, in their order: as `covers` says of each."""
        if acl.pattern is Pattern.PREFIXED:
            first = bisect_left(self._sorted, acl.name)
            return list(takewhile(lambda name: name.startswith(acl.name), islice(self._sorted, first, None)))
        if acl.name == "*":
            return list(self._sorted)
        return [acl.name] if acl.name in self._known else []

    def any_covered(self, acl: Acl) -> bool:
        """Whether an entry speaks of one of them."""
        if acl.pattern is Pattern.PREFIXED:
            first = bisect_left(self._sorted, acl.name)
            return first < len(self._sorted) and self._sorted[first].startswith(acl.name)
        return acl.name in self._known or (acl.name == "*" and bool(self._known))


def meets(acl: Acl, prefix: str) -> bool:
    """Whether an entry speaks of any name that begins so (the resource's type is not looked at)."""
    if acl.name == "*" and acl.pattern is Pattern.LITERAL:
        return True
    return acl.name.startswith(prefix) or (acl.pattern is Pattern.PREFIXED and prefix.startswith(acl.name))


def is_wide(acl: Acl) -> bool:
    """Whether it grants a right by `*` or a prefix, which means other names on another cluster."""
    named = acl.resource in (Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID)
    return named and acl.permission is Permission.ALLOW and (acl.pattern is Pattern.PREFIXED or acl.name == "*")


def may_change(acl: Acl) -> bool:
    """Whether it grants a right by which a topic can be changed."""
    return acl.resource is Resource.TOPIC and acl.permission is Permission.ALLOW and acl.operation in CHANGING


def demotions(destination: Set[Acl], topics: Collection[str], own_principals: Set[str]) -> set[Acl]:
    """Denials that keep applications from changing these topics: literal per topic, for each principal that may now.

    What `undemotable` finds is left out: nothing offsets that.
    """
    names, deny = Names(topics), set[Acl]()
    for acl in changing(destination, topics, own_principals):
        if acl.principal != EVERYBODY:
            deny |= offsetting(acl, names)
    return deny


def offsetting(acl: Acl, topics: Names) -> set[Acl]:
    """Denials that offset a grant to a name on all of these topics that it covers."""
    operations = CHANGING - {Operation.ALL} if acl.operation is Operation.ALL else {acl.operation}
    return {denial(t, acl.principal, operation=o) for t in topics.covered(acl) for o in operations}


def undemotable(destination: Set[Acl], topics: Collection[str], own_principals: Set[str]) -> frozenset[Acl]:
    """Grants by which everybody may change one of these topics: a person must replace them by grants to names.

    Only a denial for everybody would meet one, and that would stop the mirror itself.
    """
    return frozenset(a for a in changing(destination, topics, own_principals) if a.principal == EVERYBODY)


def changing(acls: Iterable[Acl], topics: Collection[str], own_principals: Set[str]) -> set[Acl]:
    """Grants by which others than the mirror may change one of these topics."""
    names = Names(topics)
    return {a for a in acls if may_change(a) and a.principal not in own_principals and names.any_covered(a)}


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
