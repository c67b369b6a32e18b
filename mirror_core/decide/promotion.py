"""What promotion gives to applications: staged grants, no wider than the mirror."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from mirror_core.decide.view import join_limited
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Pattern, Permission, Resource
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import HEARTBEAT_TOPIC_PREFIX
from mirror_core.rights.acls import (
    CHANGING_OPERATIONS,
    EVERYBODY,
    SortedNames,
    can_change_topic,
    covers,
    is_wildcard_grant,
    overlaps_prefix,
)
from mirror_core.rights.provenance import build_own_ids_denial, can_take_over_own_ids, find_forgery_reason

STAGED_PURPOSES = frozenset({AclPurpose.STAGED, AclPurpose.PROMOTED})
"""Promotion may be repeated, so it asks for earlier promoted entries again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionGrants:
    grants: tuple[Acl, ...]
    narrowed: Mapping[Acl, tuple[str, ...]]
    refused: Mapping[Acl, str]


def plan_promotion_grants(
    ledger: Iterable[LedgerEntry], topics: Collection[str], existing_topics: Collection[str], own_principals: Set[str]
) -> PromotionGrants:
    """From a mirror's ledger, its promoted topics, and all topics on the destination.

    `*` never crosses: it means other topics here than where it was granted. A prefix crosses unless it covers a topic
    here that is not promoted, or heartbeats, which later mirrors and drills will have.
    """
    promoted_names, other_names = SortedNames(topics), SortedNames(set(existing_topics) - set(topics))
    grants, narrowed, refused = set[Acl](), dict[Acl, tuple[str, ...]](), dict[Acl, str]()
    for entry in ledger:
        if entry.purpose not in STAGED_PURPOSES:
            continue
        acl = entry.acl
        if reason := find_forgery_reason(entry, own_principals):
            refused[acl] = reason
        elif acl.resource is not Resource.TOPIC:
            grants.add(acl)
            if can_take_over_own_ids(acl):
                grants.add(build_own_ids_denial(acl))
        elif covered := promoted_names.find_covered(acl):
            also_covered = tuple(other_names.find_covered(acl))
            if _can_grant_as_is(acl, also_covered):
                grants.add(acl)
            else:
                narrowed[acl] = also_covered
                grants |= {replace(acl, name=topic, pattern=Pattern.LITERAL) for topic in covered}
    return PromotionGrants(
        grants=tuple(sorted(grants)), narrowed=dict(sorted(narrowed.items())), refused=dict(sorted(refused.items()))
    )


def predict_synced_ledger(
    ledger: Iterable[LedgerEntry], mirror: Mirror, held_acls: Collection[Acl]
) -> tuple[LedgerEntry, ...]:
    """The ledger as the final sync of a planned failover leaves it, for rights to change topics.

    `held`: what applications hold on the source: it gets staged, and other staged entries are forgotten. Earlier
    promoted entries stay.
    """
    kept = (e for e in ledger if not (e.purpose is AclPurpose.STAGED and can_change_topic(e.acl)))
    staged = (
        LedgerEntry(mirror=mirror.name, cluster=mirror.destination, acl=acl, purpose=AclPurpose.STAGED)
        for acl in sorted(held_acls)
    )
    return tuple({entry.acl: entry for entry in (*kept, *staged)}.values())


def find_unbacked_grants(
    ledger: Iterable[LedgerEntry], topics: Collection[str], held_acls: Collection[Acl]
) -> tuple[Acl, ...]:
    names = SortedNames(topics)
    staged = {
        e.acl for e in ledger if e.purpose in STAGED_PURPOSES and can_change_topic(e.acl) and names.has_covered(e.acl)
    }
    return tuple(sorted(staged - set(held_acls)))


def find_granted_acls(ledger: Iterable[LedgerEntry], held_acls: Collection[Acl]) -> tuple[Acl, ...]:
    granted_acls = {e.acl for e in ledger if e.purpose is AclPurpose.PROMOTED and e.acl.permission is Permission.ALLOW}
    return tuple(sorted(granted_acls.intersection(held_acls)))


def find_unheld_grants(granted_acls: Iterable[Acl], current_acls: Collection[Acl]) -> tuple[Acl, ...]:
    """Rights without an equal or wider one on the cluster that applications came from."""
    held_acls = frozenset(current_acls)
    acls_by_holder = dict[tuple[Resource, str, Operation], list[Acl]]()
    for acl in held_acls:
        if acl.permission is Permission.ALLOW:
            acls_by_holder.setdefault((acl.resource, acl.principal, acl.operation), []).append(acl)

    def is_granted_wider(acl: Acl) -> bool:
        principals, operations = (acl.principal, EVERYBODY), (acl.operation, Operation.ALL)
        candidates = (
            held_acl
            for principal in principals
            for operation in operations
            for held_acl in acls_by_holder.get((acl.resource, principal, operation), ())
        )
        return any(_is_within(acl, held_acl) for held_acl in candidates)

    return tuple(sorted(acl for acl in granted_acls if acl not in held_acls and not is_granted_wider(acl)))


def _is_within(acl: Acl, other: Acl) -> bool:
    if acl.pattern is Pattern.PREFIXED and other.pattern is not Pattern.PREFIXED and other.name != "*":
        return False
    return covers(other, acl.name) and other.host in ("*", acl.host)


def _can_grant_as_is(acl: Acl, also_covered: tuple[str, ...]) -> bool:
    if acl.pattern is Pattern.PREFIXED:
        return not also_covered and not "__".startswith(acl.name) and not overlaps_prefix(acl, HEARTBEAT_TOPIC_PREFIX)
    return acl.name != "*"


def format_narrowed_grant(acl: Acl, also_covered: Collection[str], cluster: str) -> str:
    opens_text = f"{join_limited(also_covered)}, too" if also_covered else "all there is"
    if not also_covered and acl.pattern is Pattern.PREFIXED and overlaps_prefix(acl, HEARTBEAT_TOPIC_PREFIX):
        opens_text = "heartbeats of mirrors made later, too"
    grant_text = f"{acl} will be granted topic by topic: on {cluster} it would open {opens_text}"
    return f"{grant_text}. Topics made later need a grant of their own"


def format_forged_entry(acl: Acl, reason: str) -> str:
    return f"{acl} is recorded as staged, but will not be granted: {reason}: find out who may write the state topic"


def warn_promotion_grants(promotion: PromotionGrants, cluster: str) -> Iterator[str]:
    yield from (format_forged_entry(acl, reason) for acl, reason in promotion.refused.items())
    yield from (format_narrowed_grant(acl, wide_grants, cluster) for acl, wide_grants in promotion.narrowed.items())
    prefixes = sorted(
        {a.name for a in promotion.grants if a.resource is Resource.TOPIC and a.pattern is Pattern.PREFIXED}
    )
    if prefixes:
        yield f"grants by prefix open topics made later on {cluster}, too, whose names begin with {join_limited(prefixes)}"
    wide_grants = [acl for acl in promotion.grants if is_wildcard_grant(acl) and acl.resource is not Resource.TOPIC]
    if wide_grants:
        yield f"not for the mirror's groups and transactional ids alone on {cluster}, but as they stand: {join_limited(wide_grants)}"
    for acl in promotion.grants:
        if (
            acl.permission is Permission.DENY
            and acl.resource is Resource.TOPIC
            and acl.operation in CHANGING_OPERATIONS
        ):
            yield (
                f"{acl}: the source has it, so promotion gives it, and nobody may do that on {cluster} then. Is it the "
                "fence of another mirror of this source? Then take it away there, and sync, before this failover"
            )
        if acl.permission is Permission.ALLOW and acl.principal == EVERYBODY:
            yield f"{acl}: nobody can fail back while everybody may write: replace it by grants to names"
