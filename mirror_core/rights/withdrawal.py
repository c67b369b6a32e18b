"""Denials of a demotion that must outlive the next promotion, since the source has withdrawn the right meanwhile.

A demotion leaves grants on the cluster as they are and denies what they allow. Promotion lifts the denials, so the
grants hold again: also one that was withdrawn on the source in between, if it is not ours to delete.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import replace

from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Permission, Resource
from mirror_core.rights.acls import CHANGING, EVERYBODY, Names, covers, may_change


def judged_again(ledger: Iterable[LedgerEntry], source: Set[Acl], withdrawn: Collection[Acl]) -> Iterator[LedgerEntry]:
    """Entries of a demotion as the ledger should have them from now on: only those that change.

    `source`: what is entered there, without our own fences and demotions. `withdrawn`: grants that were staged, and are
    on the source no more. A right that was never staged tells nothing: users may have other names there, and a source
    may have had no authorizer.
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
    """Denials among `held` that keep applications from what promotion gives them on these topics."""
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
    """Whether one of these grants what this denies."""
    mine = [*grants.get(denied.principal, ()), *grants.get(EVERYBODY, ())]
    return any(a.operation in (denied.operation, Operation.ALL) and covers(a, denied.name) for a in mine)


def _meet(denial: Acl, grant: Acl) -> bool:
    both = {denial.operation, grant.operation}
    return denial.operation in CHANGING and (len(both) == 1 or Operation.ALL in both)
