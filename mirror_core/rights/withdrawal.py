"""Denials of a demotion that must outlive the next promotion.

A demotion denies what grants allow, and leaves the grants. Promotion lifts the denials, which would revive grants
that the source has withdrawn meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import replace

from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Permission, Resource
from mirror_core.rights.acls import CHANGING_OPERATIONS, EVERYBODY, SortedNames, can_change_topic, covers


def update_demotions(
    ledger: Iterable[LedgerEntry], source: Set[Acl], withdrawn: Collection[Acl]
) -> Iterator[LedgerEntry]:
    """Changed entries only.

    `source`: ACLs without our own denials. `withdrawn`: staged grants that left the source. Rights that were never
    staged decide nothing: names may differ there, or it had no authorizer.
    """
    source_grants, withdrawn_grants = _group_by_principal(source), _group_by_principal(withdrawn)
    for entry in ledger:
        denied = entry.acl
        if entry.purpose is AclPurpose.DEMOTED:
            if denied in source or (_is_granted(withdrawn_grants, denied) and not _is_granted(source_grants, denied)):
                yield replace(entry, purpose=AclPurpose.WITHDRAWN)
        elif entry.purpose is AclPurpose.WITHDRAWN and denied not in source and _is_granted(source_grants, denied):
            yield replace(entry, purpose=AclPurpose.DEMOTED)


def find_locked_out_denials(denials: Set[Acl], promoted: Collection[Acl], topics: Collection[str]) -> Iterator[Acl]:
    """Denials that would block what promotion grants on these topics."""
    names, grants = SortedNames(topics), _group_by_principal(promoted)
    for acl in sorted(denials):
        if acl.resource is not Resource.TOPIC or acl.permission is not Permission.DENY:
            continue
        applying_grants = [*grants.get(EVERYBODY, ()), *grants.get(acl.principal, ())]
        if acl.principal == EVERYBODY:
            applying_grants = [grant for grants_ in grants.values() for grant in grants_]
        if any(
            _is_offset_by(acl, grant) and any(covers(grant, topic) for topic in names.find_covered(acl))
            for grant in applying_grants
        ):
            yield acl


def _group_by_principal(acls: Iterable[Acl]) -> Mapping[str, list[Acl]]:
    by_principal = dict[str, list[Acl]]()
    for acl in acls:
        if can_change_topic(acl):
            by_principal.setdefault(acl.principal, []).append(acl)
    return by_principal


def _is_granted(grants: Mapping[str, list[Acl]], denied: Acl) -> bool:
    applying_grants = [*grants.get(denied.principal, ()), *grants.get(EVERYBODY, ())]
    return any(a.operation in (denied.operation, Operation.ALL) and covers(a, denied.name) for a in applying_grants)


def _is_offset_by(denial: Acl, grant: Acl) -> bool:
    operations = {denial.operation, grant.operation}
    return denial.operation in CHANGING_OPERATIONS and (len(operations) == 1 or Operation.ALL in operations)
