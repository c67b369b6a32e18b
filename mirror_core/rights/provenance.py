"""Checks ledger entries: others may write the state topic.

A forged entry would grant, or remove, what its author likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Pattern, Permission, Resource
from mirror_core.rights.acls import CHANGING, EVERYBODY, OUR_NAMES, OUR_TOPICS, denial, is_wide, may_change, meets


def forged(entry: LedgerEntry, own_principals: Set[str] = frozenset()) -> str:
    """Why Mirrorbook cannot have made the entry. Empty: it can."""
    acl = entry.acl
    match entry.purpose:
        case AclPurpose.STAGED | AclPurpose.PROMOTED:
            return _never_staged(acl, own_principals)
        case AclPurpose.COPIED:
            return _never_copied(acl, own_principals)
        case AclPurpose.DEMOTED | AclPurpose.WITHDRAWN:
            return _never_demoted(acl, own_principals)
        case AclPurpose.FENCE:
            return _never_fenced(acl, own_principals)


def believed(entries: Iterable[LedgerEntry]) -> tuple[frozenset[Acl], dict[Acl, str]]:
    """ACLs of genuine entries, and reasons by forged ACL."""
    found, doubted = set[Acl](), dict[Acl, str]()
    for entry in entries:
        if why := forged(entry):
            doubted[entry.acl] = why
        else:
            found.add(entry.acl)
    return frozenset(found), doubted


def never_for_everybody(acl: Acl) -> str:
    """Why a denial for everybody is never copied. Empty: it waits for promotion."""
    if acl.resource in (Resource.GROUP, Resource.TRANSACTIONAL_ID) and meets(acl, OUR_NAMES):
        return f"it would stop Mirrorbook, too, whose {acl.resource} names begin with {OUR_NAMES}"
    return ""


def _never_staged(acl: Acl, own_principals: Set[str]) -> str:
    if acl.principal in own_principals:
        return "it is for one of the mirror's own principals"
    if acl.resource is Resource.TOPIC and acl.pattern is Pattern.LITERAL and acl.name.startswith("__"):
        return "internal topics are never mirrored"
    if acl.permission is Permission.DENY:
        if acl.principal != EVERYBODY:
            return "" if acl == shut_out_of_ours(acl) else "a denial for one principal is never staged"
        return _never_crosses(acl) or never_for_everybody(acl)
    if is_wide(acl):
        return _never_staged_wide(acl)
    return "" if may_change(acl) else "only rights to change topics, and rights by `*` or prefix, are ever staged"


def _never_staged_wide(acl: Acl) -> str:
    if may_take_over_ours(acl) and (acl.principal == EVERYBODY or acl.name.startswith(OUR_NAMES)):
        return "it would let others take over Mirrorbook's own transactional ids"
    return ""


def may_take_over_ours(acl: Acl) -> bool:
    writes = acl.permission is Permission.ALLOW and acl.operation in (Operation.WRITE, Operation.ALL)
    return writes and acl.resource is Resource.TRANSACTIONAL_ID and meets(acl, OUR_NAMES)


def shut_out_of_ours(acl: Acl) -> Acl:
    return denial(OUR_NAMES, acl.principal, resource=Resource.TRANSACTIONAL_ID, pattern=Pattern.PREFIXED)


def _never_copied(acl: Acl, own_principals: Set[str]) -> str:
    if acl.principal in own_principals:
        ours = acl.permission is Permission.DENY and acl.resource is Resource.TOPIC and acl.name == OUR_TOPICS
        return "" if ours else "it is for one of the mirror's own principals"
    if may_change(acl):
        return "a right to change topics is never copied"
    if acl.permission is Permission.DENY and acl.principal == EVERYBODY:
        return "a denial for everybody is never copied"
    return _never_crosses(acl)


def _never_demoted(acl: Acl, own_principals: Set[str]) -> str:
    if acl.permission is not Permission.DENY:
        return "demotions only deny"
    if acl.principal == EVERYBODY or acl.principal in own_principals:
        return "a demotion denies applications by their names"
    if acl.resource is not Resource.TOPIC or acl.pattern is not Pattern.LITERAL or acl.name == "*":
        return "a demotion denies topic by topic"
    if acl.operation not in CHANGING - {Operation.ALL} or acl.host != "*":
        return "a demotion denies each change, from everywhere"
    return ""


def _never_fenced(acl: Acl, own_principals: Set[str]) -> str:
    if acl.permission is not Permission.DENY:
        return "fences only deny"
    if acl.pattern is not Pattern.LITERAL or acl.host != "*":
        return "a fence denies name by name, from everywhere"
    everybody = acl.principal == EVERYBODY
    match acl.resource, acl.operation:
        case (Resource.TOPIC, Operation.WRITE) if acl.name != "*":
            ours = everybody or not own_principals or acl.principal in own_principals
        case (Resource.TRANSACTIONAL_ID, Operation.WRITE) if acl.name != "*":
            ours = everybody
        case (Resource.GROUP, Operation.READ) if acl.name == "*":
            ours = not everybody and (not own_principals or acl.principal in own_principals)
        case _:
            ours = False
    return "" if ours else "a fence denies everybody to write, or the copier to write or to commit"


def _never_crosses(acl: Acl) -> str:
    if acl.resource is Resource.DELEGATION_TOKEN:
        return "rights to delegation tokens are never carried"
    if acl.resource is Resource.CLUSTER and acl.operation is not Operation.IDEMPOTENT_WRITE:
        return "of rights on the cluster only IDEMPOTENT_WRITE is ever carried"
    return ""
