"""Checks ledger entries: others may write the state topic.

A forged entry would grant, or remove, what its author likes.

Denials of a demotion that must outlive the next promotion.

A demotion denies what grants allow, and leaves the grants. Promotion lifts the denials, which would revive grants
that the source has withdrawn meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import replace

from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Pattern, Permission, Resource
from mirror_core.rights.acl_rules import (
    CHANGING_OPERATIONS,
    EVERYBODY,
    OWN_NAME_PREFIX,
    OWN_TOPIC_PREFIX,
    SortedNames,
    build_denial,
    can_change_topic,
    covers,
    is_wildcard_grant,
    overlaps_prefix,
)


def find_forgery_reason(entry: LedgerEntry, own_principals: Set[str] = frozenset()) -> str:
    """Why Mirrorbook cannot have made the entry. Empty: it can."""
    acl = entry.acl
    match entry.purpose:
        case AclPurpose.STAGED | AclPurpose.PROMOTED:
            return _check_staged(acl, own_principals)
        case AclPurpose.COPIED:
            return _check_copied(acl, own_principals)
        case AclPurpose.DEMOTED | AclPurpose.WITHDRAWN:
            return _check_demoted(acl, own_principals)
        case AclPurpose.FENCE:
            return _check_fenced(acl, own_principals)


def split_forged_entries(entries: Iterable[LedgerEntry]) -> tuple[frozenset[Acl], dict[Acl, str]]:
    """ACLs of genuine entries, and reasons by forged ACL."""
    genuine, forged_reasons = set[Acl](), dict[Acl, str]()
    for entry in entries:
        if reason := find_forgery_reason(entry):
            forged_reasons[entry.acl] = reason
        else:
            genuine.add(entry.acl)
    return frozenset(genuine), forged_reasons


def find_denial_conflict(acl: Acl) -> str:
    """Why a denial for everybody is never copied. Empty: it waits for promotion."""
    if acl.resource in (Resource.GROUP, Resource.TRANSACTIONAL_ID) and overlaps_prefix(acl, OWN_NAME_PREFIX):
        return f"it would stop Mirrorbook, too, whose {acl.resource} names begin with {OWN_NAME_PREFIX}"
    return ""


def _check_staged(acl: Acl, own_principals: Set[str]) -> str:
    if acl.principal in own_principals:
        return "it is for one of the mirror's own principals"
    if acl.resource is Resource.TOPIC and acl.pattern is Pattern.LITERAL and acl.name.startswith("__"):
        return "internal topics are never mirrored"
    if acl.permission is Permission.DENY:
        if acl.principal != EVERYBODY:
            return "" if acl == build_own_ids_denial(acl) else "a denial for one principal is never staged"
        return _check_carried(acl) or find_denial_conflict(acl)
    if is_wildcard_grant(acl):
        return _check_staged_wildcard(acl)
    return "" if can_change_topic(acl) else "only rights to change topics, and rights by `*` or prefix, are ever staged"


def _check_staged_wildcard(acl: Acl) -> str:
    if can_take_over_own_ids(acl) and (acl.principal == EVERYBODY or acl.name.startswith(OWN_NAME_PREFIX)):
        return "it would let others take over Mirrorbook's own transactional ids"
    return ""


def can_take_over_own_ids(acl: Acl) -> bool:
    writes = acl.permission is Permission.ALLOW and acl.operation in (Operation.WRITE, Operation.ALL)
    return writes and acl.resource is Resource.TRANSACTIONAL_ID and overlaps_prefix(acl, OWN_NAME_PREFIX)


def build_own_ids_denial(acl: Acl) -> Acl:
    return build_denial(OWN_NAME_PREFIX, acl.principal, resource=Resource.TRANSACTIONAL_ID, pattern=Pattern.PREFIXED)


def _check_copied(acl: Acl, own_principals: Set[str]) -> str:
    if acl.principal in own_principals:
        is_ours = acl.permission is Permission.DENY and acl.resource is Resource.TOPIC and acl.name == OWN_TOPIC_PREFIX
        return "" if is_ours else "it is for one of the mirror's own principals"
    if can_change_topic(acl):
        return "a right to change topics is never copied"
    if acl.permission is Permission.DENY and acl.principal == EVERYBODY:
        return "a denial for everybody is never copied"
    return _check_carried(acl)


def _check_demoted(acl: Acl, own_principals: Set[str]) -> str:
    if acl.permission is not Permission.DENY:
        return "demotions only deny"
    if acl.principal == EVERYBODY or acl.principal in own_principals:
        return "a demotion denies applications by their names"
    if acl.resource is not Resource.TOPIC or acl.pattern is not Pattern.LITERAL or acl.name == "*":
        return "a demotion denies topic by topic"
    if acl.operation not in CHANGING_OPERATIONS - {Operation.ALL} or acl.host != "*":
        return "a demotion denies each change, from everywhere"
    return ""


def _check_fenced(acl: Acl, own_principals: Set[str]) -> str:
    if acl.permission is not Permission.DENY:
        return "fences only deny"
    if acl.pattern is not Pattern.LITERAL or acl.host != "*":
        return "a fence denies name by name, from everywhere"
    is_for_everybody = acl.principal == EVERYBODY
    match acl.resource, acl.operation:
        case (Resource.TOPIC, Operation.WRITE) if acl.name != "*":
            is_ours = is_for_everybody or not own_principals or acl.principal in own_principals
        case (Resource.TRANSACTIONAL_ID, Operation.WRITE) if acl.name != "*":
            is_ours = is_for_everybody
        case (Resource.GROUP, Operation.READ) if acl.name == "*":
            is_ours = not is_for_everybody and (not own_principals or acl.principal in own_principals)
        case _:
            is_ours = False
    return "" if is_ours else "a fence denies everybody to write, or the copier to write or to commit"


def _check_carried(acl: Acl) -> str:
    if acl.resource is Resource.DELEGATION_TOKEN:
        return "rights to delegation tokens are never carried"
    if acl.resource is Resource.CLUSTER and acl.operation is not Operation.IDEMPOTENT_WRITE:
        return "of rights on the cluster only IDEMPOTENT_WRITE is ever carried"
    return ""


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
