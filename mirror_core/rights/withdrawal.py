"""Denials of a demotion that must outlive the next promotion.

A demotion denies what grants allow, and leaves the grants. Promotion lifts the denials, which would revive grants
that the source has withdrawn meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import replace

from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Permission, Resource
from mirror_core.rights.acls import CHANGING, EVERYBODY, Names, covers, may_change


def judged_again(ledger: Iterable[LedgerEntry], source: Set[Acl], withdrawn: Collection[Acl]) -> Iterator[LedgerEntry]:
    """Changed entries only.

    `source`: ACLs without our own denials. `withdrawn`: staged grants that left the source. Rights that were never
    staged decide nothing: names may differ there, or it had no authorizer.
    """
    given, gone = _by_principal(source), _by_principal(withdrawn)
    for entry in ledger:
        denied = entry.acl
        if entry.purpose is AclPurpose.DEMOTED:
            if denied in source or (_allows(gone, denied) and not _allows(given, denied)):
                yield replace(entry, purpose=AclPurpose.WITHDRAWN)
        elif entry.purpose is AclPurpose.WITHDRAWN and denied not in source and _allows(given, denied):
            yield replace(entry, purpose=AclPurpose.DEMOTED)


def locked_out(held: Set[Acl], given: Collection[Acl], topics: Collection[str]) -> Iterator[Acl]:
    """Denials that would block what promotion grants on these topics."""
    names, grants = Names(topics), _by_principal(given)
    for acl in sorted(held):
        if acl.resource is not Resource.TOPIC or acl.permission is not Permission.DENY:
            continue
        mine = [*grants.get(EVERYBODY, ()), *grants.get(acl.principal, ())]
        if acl.principal == EVERYBODY:
            mine = [grant for grants_ in grants.values() for grant in grants_]
        if any(_meet(acl, grant) and any(covers(grant, topic) for topic in names.covered(acl)) for grant in mine):
            yield acl


def _by_principal(acls: Iterable[Acl]) -> Mapping[str, list[Acl]]:
    found = dict[str, list[Acl]]()
    for acl in acls:
        if may_change(acl):
            found.setdefault(acl.principal, []).append(acl)
    return found


def _allows(grants: Mapping[str, list[Acl]], denied: Acl) -> bool:
    mine = [*grants.get(denied.principal, ()), *grants.get(EVERYBODY, ())]
    return any(a.operation in (denied.operation, Operation.ALL) and covers(a, denied.name) for a in mine)


def _meet(denial: Acl, grant: Acl) -> bool:
    both = {denial.operation, grant.operation}
    return denial.operation in CHANGING and (len(both) == 1 or Operation.ALL in both)
