"""Checks ledger entries: a forged one would grant, or remove, what its author likes.

Finds demotion's denials that must outlive the next promotion, or withdrawn rights would revive.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from enum import StrEnum

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


class AclFlaw(StrEnum):
    """Why an ACL cannot be Mirrorbook's work. The catalogue has its phrase."""

    OWN_PRINCIPAL = "own_principal"
    INTERNAL_TOPIC = "internal_topic"
    STAGED_DENIAL = "staged_denial"
    NOT_STAGED = "not_staged"
    OWN_IDS = "own_ids"
    COPIED_CHANGE = "copied_change"
    COPIED_DENIAL = "copied_denial"
    DEMOTED_GRANT = "demoted_grant"
    DEMOTED_PRINCIPAL = "demoted_principal"
    DEMOTED_RESOURCE = "demoted_resource"
    DEMOTED_OPERATION = "demoted_operation"
    FENCE_GRANT = "fence_grant"
    FENCE_NAME = "fence_name"
    FENCE_OPERATION = "fence_operation"
    DELEGATION_TOKEN = "delegation_token"
    CLUSTER_RIGHT = "cluster_right"
    STOPS_MIRRORBOOK = "stops_mirrorbook"


def find_flaw(entry: LedgerEntry, own_principals: Set[str] = frozenset()) -> AclFlaw | None:
    """Returns None if Mirrorbook can have made the entry."""
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


def split_forged_entries(entries: Iterable[LedgerEntry]) -> tuple[frozenset[Acl], dict[Acl, AclFlaw]]:
    """Genuine ACLs, and flaws by forged ACL."""
    genuine, flaws = set[Acl](), dict[Acl, AclFlaw]()
    for entry in entries:
        if flaw := find_flaw(entry):
            flaws[entry.acl] = flaw
        else:
            genuine.add(entry.acl)
    return frozenset(genuine), flaws


def find_denial_conflict(acl: Acl) -> AclFlaw | None:
    """Why a denial for everybody is never copied. None: it waits for promotion."""
    if acl.resource in (Resource.GROUP, Resource.TRANSACTIONAL_ID) and overlaps_prefix(acl, OWN_NAME_PREFIX):
        return AclFlaw.STOPS_MIRRORBOOK
    return None


def _check_staged(acl: Acl, own_principals: Set[str]) -> AclFlaw | None:
    if acl.principal in own_principals:
        return AclFlaw.OWN_PRINCIPAL
    if acl.resource is Resource.TOPIC and acl.pattern is Pattern.LITERAL and acl.name.startswith("__"):
        return AclFlaw.INTERNAL_TOPIC
    if acl.permission is Permission.DENY:
        if acl.principal != EVERYBODY:
            return None if acl == build_own_ids_denial(acl) else AclFlaw.STAGED_DENIAL
        return _check_carried(acl) or find_denial_conflict(acl)
    if is_wildcard_grant(acl):
        return _check_staged_wildcard(acl)
    return None if can_change_topic(acl) else AclFlaw.NOT_STAGED


def _check_staged_wildcard(acl: Acl) -> AclFlaw | None:
    if can_take_over_own_ids(acl) and (acl.principal == EVERYBODY or acl.name.startswith(OWN_NAME_PREFIX)):
        return AclFlaw.OWN_IDS
    return None


def can_take_over_own_ids(acl: Acl) -> bool:
    writes = acl.permission is Permission.ALLOW and acl.operation in (Operation.WRITE, Operation.ALL)
    return writes and acl.resource is Resource.TRANSACTIONAL_ID and overlaps_prefix(acl, OWN_NAME_PREFIX)


def build_own_ids_denial(acl: Acl) -> Acl:
    return build_denial(OWN_NAME_PREFIX, acl.principal, resource=Resource.TRANSACTIONAL_ID, pattern=Pattern.PREFIXED)


def _check_copied(acl: Acl, own_principals: Set[str]) -> AclFlaw | None:
    if acl.principal in own_principals:
        is_ours = acl.permission is Permission.DENY and acl.resource is Resource.TOPIC and acl.name == OWN_TOPIC_PREFIX
        return None if is_ours else AclFlaw.OWN_PRINCIPAL
    if can_change_topic(acl):
        return AclFlaw.COPIED_CHANGE
    if acl.permission is Permission.DENY and acl.principal == EVERYBODY:
        return AclFlaw.COPIED_DENIAL
    return _check_carried(acl)


def _check_demoted(acl: Acl, own_principals: Set[str]) -> AclFlaw | None:
    if acl.permission is not Permission.DENY:
        return AclFlaw.DEMOTED_GRANT
    if acl.principal == EVERYBODY or acl.principal in own_principals:
        return AclFlaw.DEMOTED_PRINCIPAL
    if acl.resource is not Resource.TOPIC or acl.pattern is not Pattern.LITERAL or acl.name == "*":
        return AclFlaw.DEMOTED_RESOURCE
    if acl.operation not in CHANGING_OPERATIONS - {Operation.ALL} or acl.host != "*":
        return AclFlaw.DEMOTED_OPERATION
    return None


def _check_fenced(acl: Acl, own_principals: Set[str]) -> AclFlaw | None:
    if acl.permission is not Permission.DENY:
        return AclFlaw.FENCE_GRANT
    if acl.pattern is not Pattern.LITERAL or acl.host != "*":
        return AclFlaw.FENCE_NAME
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
    return None if is_ours else AclFlaw.FENCE_OPERATION


def _check_carried(acl: Acl) -> AclFlaw | None:
    if acl.resource is Resource.DELEGATION_TOKEN:
        return AclFlaw.DELEGATION_TOKEN
    if acl.resource is Resource.CLUSTER and acl.operation is not Operation.IDEMPOTENT_WRITE:
        return AclFlaw.CLUSTER_RIGHT
    return None


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
    """They would block what promotion grants on these topics."""
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
