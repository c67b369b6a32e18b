"""Which access control entries to copy to the destination, which to keep back until promotion, which to take away.

A mirror topic must not be writable by applications, so rights to change it are only *staged*: remembered in the
ledger, created at promotion. Provenance decides everything else: what the ledger does not know is somebody else's and
is never changed or deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass, field, replace
from typing import Final

from mirror_core.decide.filters import Filter
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Pattern, Permission, Resource

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
_CARRIED: Final = frozenset({Resource.TOPIC, Resource.GROUP})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What the mirror carries, and who must never be touched."""

    topics: Collection[str]
    groups: Collection[str]
    """Groups of the source in scope now."""
    group_filter: Filter
    own_principals: Set[str]
    """The mirror's own users on both clusters."""
    own_acls: Set[Acl] = frozenset()
    """Fences and demotions that we put on the source ourselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AclPlan:
    """What to do on the destination. Entries sorted, so that two equal plans are equal."""

    create: tuple[Acl, ...]
    """Copied now: the ledger first, then the cluster."""
    share: tuple[Acl, ...]
    """There already, made by another mirror of ours: to be entered in this mirror's ledger, too."""
    stage: tuple[Acl, ...]
    """To be remembered for promotion."""
    remove: tuple[LedgerEntry, ...]
    """Ours, and gone from the source: delete on the cluster, then forget. Staged ones are only forgotten."""
    forget: tuple[LedgerEntry, ...]
    """Ours by ledger, gone from the source, and not (or not only ours) on the cluster: only to be forgotten."""
    equal: tuple[Acl, ...]
    """Copied earlier and in place."""
    waiting: tuple[Acl, ...]
    """Staged earlier."""
    foreign: tuple[Acl, ...]
    """Wanted, but there already by somebody else's hand: kept, and not ours to delete later."""
    out_of_scope: tuple[LedgerEntry, ...]
    """Ours, still on the source, but no longer matched by a filter: kept."""
    left_out: tuple[tuple[Acl, str], ...]
    """Entries of the source that concern the same applications but are not carried, with the reason."""
    open_doors: tuple[Acl, ...] = field(default=())
    """Grants on the destination that let applications change mirror topics, and that no denial offsets."""


def covers(acl: Acl, name: str) -> bool:
    """Whether an entry speaks of the resource of this name (the resource's type is not looked at)."""
    if acl.pattern is Pattern.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in ("*", name)


def may_change(acl: Acl) -> bool:
    """Whether it grants a right by which a topic can be changed."""
    return acl.resource is Resource.TOPIC and acl.permission is Permission.ALLOW and acl.operation in CHANGING


def translate(acl: Acl) -> tuple[frozenset[Acl], frozenset[Acl]]:
    """What an entry of the source becomes on the destination: what holds at once, and what is staged.

    ALL stays away as a whole, but what it grants beside changing (READ, with it DESCRIBE, and DESCRIBE_CONFIGS) is
    given at once. A denial for everybody would stop the mirror's own principals as well, so it waits, too.
    """
    if acl.permission is Permission.DENY:
        return (frozenset(), frozenset({acl})) if acl.principal == EVERYBODY else (frozenset({acl}), frozenset())
    if not may_change(acl):
        return frozenset({acl}), frozenset()
    if acl.operation is not Operation.ALL:
        return frozenset(), frozenset({acl})
    harmless = (Operation.READ, Operation.DESCRIBE_CONFIGS)
    return frozenset(replace(acl, operation=operation) for operation in harmless), frozenset({acl})


def plan_acls(
    source: Set[Acl], destination: Set[Acl], scope: Scope, ledger: Iterable[LedgerEntry], others: Iterable[LedgerEntry]
) -> AclPlan:
    """Compare both sides. `ledger` and `others` are this mirror's and other mirrors' entries for the destination."""
    mine = {entry.acl: entry for entry in ledger}
    shared = {entry.acl for entry in others if entry.purpose in (AclPurpose.COPIED, AclPurpose.PROMOTED)}
    carried = {acl for acl in source if _in_scope(acl, scope)}
    at_once, staged = _translated(carried)
    everything, everything_staged = _translated(source - scope.own_acls)
    gone = [
        entry
        for acl, entry in mine.items()
        if (entry.purpose is AclPurpose.COPIED and acl not in everything)
        or (entry.purpose is AclPurpose.STAGED and acl not in everything_staged)
    ]
    remove = [e for e in gone if e.purpose is AclPurpose.COPIED and e.acl in destination and e.acl not in shared]
    ours_there = {acl for acl, entry in mine.items() if entry.purpose in (AclPurpose.COPIED, AclPurpose.PROMOTED)}
    applications = {acl.principal for acl in carried}
    return AclPlan(
        create=_sort(acl for acl in at_once - destination),
        share=_sort(acl for acl in at_once & destination & shared - mine.keys()),
        stage=_sort(acl for acl in staged - mine.keys()),
        remove=_sort_entries(remove),
        forget=_sort_entries(entry for entry in gone if entry not in remove),
        equal=_sort(at_once & destination & ours_there),
        waiting=_sort(a for a in staged & mine.keys() if mine[a].purpose is AclPurpose.STAGED),
        foreign=_sort(at_once & destination - mine.keys() - shared),
        out_of_scope=_sort_entries(
            entry
            for acl, entry in mine.items()
            if (entry.purpose is AclPurpose.COPIED and acl in everything - at_once)
            or (entry.purpose is AclPurpose.STAGED and acl in everything_staged - staged)
        ),
        left_out=tuple(
            (acl, f"{acl.resource} entries are not carried: create it on the destination by hand if it is needed there")
            for acl in _sort(a for a in source if a.resource not in _CARRIED and a.principal in applications)
        ),
        open_doors=_sort(
            acl
            for acl in _changing(destination, scope.topics, scope.own_principals)
            if not _held_back(acl, destination, scope.topics)
        ),
    )


def demotions(destination: Set[Acl], topics: Collection[str], own_principals: Set[str]) -> set[Acl]:
    """Denials that keep applications from changing these topics: literal per topic, for each principal that may now.

    What `undemotable` finds is left out: nothing offsets that.
    """
    deny = set[Acl]()
    for acl in _changing(destination, topics, own_principals) - undemotable(destination, topics, own_principals):
        operations = CHANGING - {Operation.ALL} if acl.operation is Operation.ALL else {acl.operation}
        deny |= {denial(t, acl.principal, operation=o) for t in topics if covers(acl, t) for o in operations}
    return deny


def undemotable(destination: Set[Acl], topics: Collection[str], own_principals: Set[str]) -> frozenset[Acl]:
    """Grants by which everybody may change one of these topics: a person must replace them by grants to names.

    Only a denial for everybody would meet one, and that would stop the mirror itself.
    """
    return frozenset(a for a in _changing(destination, topics, own_principals) if a.principal == EVERYBODY)


def _changing(acls: Iterable[Acl], topics: Collection[str], own_principals: Set[str]) -> set[Acl]:
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
) -> Acl:
    """A denial, which wins over every grant, for all but super users."""
    return Acl(resource=resource, name=name, principal=principal, operation=operation, permission=Permission.DENY)


def _held_back(acl: Acl, destination: Set[Acl], topics: Collection[str]) -> bool:
    """Whether denials offset a grant on all of the topics it covers, whoever made them."""
    return acl.principal != EVERYBODY and demotions({acl}, topics, frozenset()) <= destination


def _in_scope(acl: Acl, scope: Scope) -> bool:
    if acl in scope.own_acls or acl.principal in scope.own_principals:
        return False
    if acl.resource is Resource.TOPIC:
        return any(covers(acl, topic) for topic in scope.topics)
    if acl.resource is Resource.GROUP:
        return any(covers(acl, group) for group in scope.groups) or acl.name == "*" or acl.name in scope.group_filter
    return False


def _translated(acls: Iterable[Acl]) -> tuple[set[Acl], set[Acl]]:
    at_once, staged = set[Acl](), set[Acl]()
    for acl in acls:
        now, later = translate(acl)
        at_once |= now
        staged |= later
    return at_once, staged


def _sort(acls: Iterable[Acl]) -> tuple[Acl, ...]:
    return tuple(sorted(acls))


def _sort_entries(entries: Iterable[LedgerEntry]) -> tuple[LedgerEntry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.acl))
