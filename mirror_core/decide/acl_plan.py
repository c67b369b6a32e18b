"""Which ACLs of the source to copy, to stage for promotion, or to remove; what promotion grants.

Applications must not write a mirror topic, so rights to change it are only staged, and created at promotion. A wildcard
or prefixed right covers other names here, so until then it is copied by name. A DENY crosses as it is: a narrower one
would open something.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final

from mirror_core.decide.filters import AclFilter, NameFilter
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Pattern, Permission, Resource
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import HEARTBEAT_TOPIC_PREFIX
from mirror_core.rights.acl_rules import (
    CHANGING_OPERATIONS,
    EVERYBODY,
    OWN_NAME_PREFIX,
    SortedNames,
    build_demotions,
    build_offsetting_denials,
    can_change_topic,
    covers,
    find_changing_grants,
    is_wildcard_grant,
    overlaps_prefix,
)
from mirror_core.rights.ledger_rules import (
    AclFlaw,
    build_own_ids_denial,
    can_take_over_own_ids,
    find_denial_conflict,
    find_flaw,
    update_demotions,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AclScope:
    topics: Collection[str]
    groups: Collection[str]
    group_filter: NameFilter
    acl_filter: AclFilter
    own_principals: Set[str]
    own_acls: Set[Acl] = frozenset()
    required_denials: Set[Acl] = frozenset()
    """DENYs that Mirrorbook needs on the destination, whatever the source has."""


EXCLUDED_RIGHT: Final = "the mirror does not sync it (--principals, --exclude-principals, --exclude-rights)"


@dataclass(frozen=True, slots=True, kw_only=True)
class AclPlan:
    """Sorted, so that equal plans compare equal."""

    create: tuple[Acl, ...]
    """Written to the ledger first, then to the cluster."""
    share: tuple[Acl, ...]
    stage: tuple[Acl, ...]
    remove: tuple[LedgerEntry, ...]
    forget: tuple[LedgerEntry, ...]
    """Gone from the source, and missing on the cluster or shared: only the ledger forgets them."""
    equal: tuple[Acl, ...]
    waiting: tuple[Acl, ...]
    foreign: tuple[Acl, ...]
    out_of_scope: tuple[LedgerEntry, ...]
    """Ours and still on the source, but matched by no filter any more: kept."""
    left_out: tuple[tuple[Acl, str], ...]
    unprotected_grants: tuple[Acl, ...] = field(default=())
    """ALLOWs on the destination that let applications change mirror topics, without a DENY against them."""
    narrowed: frozenset[Acl] = field(default=frozenset())
    repurposed: tuple[LedgerEntry, ...] = field(default=())
    """DENYs of a demotion that will stay at promotion, or no longer; copied ones that become a demotion's."""


def translate_acl(acl: Acl) -> tuple[frozenset[Acl], frozenset[Acl]]:
    """Entries that apply now, and staged ones.

    ALL on a topic is staged, but its READ and DESCRIBE_CONFIGS are given now. ALL on the cluster becomes
    IDEMPOTENT_WRITE. A right to transactional ids changes no topic and is given now, except for our ids: their writers
    could fence the mirror's conductor. A DENY for everybody would stop the mirror's own principals, so it waits.
    """
    if acl.resource is Resource.CLUSTER and acl.operation is Operation.ALL:
        acl = replace(acl, operation=Operation.IDEMPOTENT_WRITE)
    if acl.permission is Permission.DENY:
        return (_NO_ACLS, frozenset({acl})) if acl.principal == EVERYBODY else (frozenset({acl}), _NO_ACLS)
    if (
        acl.resource is Resource.TRANSACTIONAL_ID
        and acl.operation in _WRITE_OPERATIONS
        and overlaps_prefix(acl, OWN_NAME_PREFIX)
    ):
        return frozenset({acl, build_own_ids_denial(acl)}), _NO_ACLS
    if not can_change_topic(acl):
        return frozenset({acl}), _NO_ACLS
    if acl.operation is not Operation.ALL:
        return _NO_ACLS, frozenset({acl})
    harmless = (Operation.READ, Operation.DESCRIBE_CONFIGS)
    return frozenset(replace(acl, operation=operation) for operation in harmless), frozenset({acl})


_NO_ACLS: Final = frozenset[Acl]()
_WRITE_OPERATIONS: Final = frozenset({Operation.WRITE, Operation.ALL})


def select_carried_acls(source: Set[Acl], scope: AclScope) -> tuple[set[Acl], dict[Acl, str]]:
    """Source entries that belong to the mirror; and others of its applications, with reasons.

    Topics and groups belong by name; transactional ids and IDEMPOTENT_WRITE with principals that may write one of its
    topics.
    """
    application_acls = {a for a in source - scope.own_acls if a.principal not in scope.own_principals}
    scoped_acls = _select_scoped_acls(application_acls, scope)
    users = {acl.principal for acl in scoped_acls}
    writers = {acl.principal for acl in scoped_acls if can_change_topic(acl) and acl.operation in _WRITE_OPERATIONS}
    carried, left_out = set[Acl](), dict[Acl, str]()
    for acl in application_acls if users else ():
        if acl.resource in (Resource.TOPIC, Resource.GROUP):
            if acl not in scoped_acls:
                continue
        elif not {acl.principal, EVERYBODY} & users and acl.principal != EVERYBODY:
            continue
        reason = _explain_not_carried(acl, users, writers, scope.own_principals)
        if not reason:
            carried |= _split_wildcard_grant(acl, writers)
            if acl.resource is Resource.CLUSTER and acl.operation is Operation.ALL:
                reason = "of this only IDEMPOTENT_WRITE is carried: all of it would make an administrator"
        if reason:
            left_out[acl] = reason
    return carried, left_out


def _select_scoped_acls(acls: Set[Acl], scope: AclScope) -> set[Acl]:
    topics, groups = SortedNames(scope.topics), SortedNames(scope.groups)
    return {acl for acl in acls if _is_in_scope(acl, scope, topics, groups)}


def _is_in_scope(acl: Acl, scope: AclScope, topics: SortedNames, groups: SortedNames) -> bool:
    if acl.resource is Resource.TOPIC:
        return topics.has_covered(acl)
    if acl.resource is Resource.GROUP:
        return groups.has_covered(acl) or acl.name == "*" or acl.name in scope.group_filter
    return False


def _explain_not_carried(acl: Acl, users: Set[str], writers: Set[str], own_principals: Set[str]) -> str:
    if acl.permission is Permission.DENY and acl.principal == EVERYBODY and (flaw := find_denial_conflict(acl)):
        return str(Finding("acl_not_carried", acl, flaw=flaw))
    match acl.resource:
        case Resource.TOPIC | Resource.GROUP:
            return ""
        case Resource.DELEGATION_TOKEN:
            return "a token lives on the cluster that issued it, and whoever may describe it can use it: issue new ones"
        case Resource.USER if acl.pattern is Pattern.LITERAL and acl.name in users - {EVERYBODY} - own_principals:
            return ""
        case Resource.USER:
            return "it is about tokens of others than the mirror's applications: grant it by hand if it is needed there"
        case Resource.CLUSTER if acl.operation not in (Operation.IDEMPOTENT_WRITE, Operation.ALL):
            return "of rights on the cluster only IDEMPOTENT_WRITE is carried: grant it by hand if it is needed there"
    if not {acl.principal, EVERYBODY} & writers and not (acl.principal == EVERYBODY and writers):
        return "its principal may write no mirror topic: grant it by hand if it is needed there"
    if acl.resource is Resource.TRANSACTIONAL_ID and overlaps_prefix(acl, OWN_NAME_PREFIX):
        if acl.name.startswith(OWN_NAME_PREFIX) and acl.permission is Permission.ALLOW:
            return f"transactional ids that begin with {OWN_NAME_PREFIX} are Mirrorbook's own"
        if acl.principal == EVERYBODY and EVERYBODY in writers and acl.operation in _WRITE_OPERATIONS:
            return "it would let everybody take over Mirrorbook's own transactional ids: replace it by grants to names"
    return ""


def _split_wildcard_grant(acl: Acl, writers: Set[str]) -> set[Acl]:
    """Replaces everybody's ALLOW on our transactional ids by one per writer: a DENY for all would deny us."""
    covers_own_ids = (
        acl.resource is Resource.TRANSACTIONAL_ID
        and acl.operation in _WRITE_OPERATIONS
        and overlaps_prefix(acl, OWN_NAME_PREFIX)
    )
    if covers_own_ids and acl.principal == EVERYBODY and acl.permission is Permission.ALLOW:
        return {replace(acl, principal=principal) for principal in writers - {EVERYBODY}}
    return {acl}


def plan_acls(
    source: Set[Acl],
    destination: Set[Acl],
    scope: AclScope,
    ledger: Iterable[LedgerEntry],
    other_ledgers: Iterable[LedgerEntry],
) -> AclPlan:
    """The ledgers: this mirror's and other mirrors' entries for the destination."""
    own_entries, topics = {entry.acl: entry for entry in ledger}, SortedNames(scope.topics)
    excluded_acls = {acl for acl in source if acl not in scope.acl_filter}
    all_source, source = source, source - excluded_acls
    shared_acls = {entry.acl for entry in other_ledgers if entry.purpose in (AclPurpose.COPIED, AclPurpose.PROMOTED)}
    carried, left_out = select_carried_acls(source, scope)
    excluded_of_applications = {acl for acl in excluded_acls if acl.principal not in scope.own_principals}
    left_out |= dict.fromkeys(_select_scoped_acls(excluded_of_applications, scope), EXCLUDED_RIGHT)
    translated, staged_acls = _translate_acls(carried)
    narrowed = {acl for acl in translated if _must_wait_for_promotion(acl)}
    immediate_acls = (translated - narrowed) | set(_expand_to_names(narrowed, topics, SortedNames(scope.groups)))
    staged_acls |= narrowed
    all_immediate, all_staged = _translate_acls(source - scope.own_acls)
    wide_acls = {acl for acl in all_immediate if _must_wait_for_promotion(acl)}
    # Staged rights that are excluded are kept, and their demotions: they may be the applications' rights at home.
    excluded_immediate, excluded_staged = _translate_acls(excluded_acls - scope.own_acls)
    all_staged |= wide_acls | narrowed | excluded_staged
    all_staged |= {acl for acl in excluded_immediate if _must_wait_for_promotion(acl)}
    all_immediate = (all_immediate - wide_acls) | immediate_acls | _select_backed_acls(own_entries, wide_acls)
    immediate_acls |= {
        denial for denial in scope.required_denials if denial in own_entries or denial not in destination
    }
    all_immediate |= scope.required_denials
    withdrawn = [
        entry
        for acl, entry in own_entries.items()
        if (entry.purpose is AclPurpose.COPIED and acl not in all_immediate)
        or (entry.purpose is AclPurpose.STAGED and acl not in all_staged)
    ]
    # What a denial has kept shut must not be open before promotion: from now on it is a demotion's.
    newly_demoted = {
        e.acl for e in withdrawn if e.purpose is AclPurpose.COPIED and e.acl.permission is Permission.DENY
    } & destination
    newly_demoted &= build_demotions(destination, scope.topics, scope.own_principals) if newly_demoted else _NO_ACLS
    withdrawn = [e for e in withdrawn if e.acl not in newly_demoted]
    remove = [
        e
        for e in withdrawn
        if e.purpose is AclPurpose.COPIED
        and e.acl in destination - shared_acls
        and not find_flaw(e, scope.own_principals)
    ]
    own_acls = {acl for acl, entry in own_entries.items() if entry.purpose in (AclPurpose.COPIED, AclPurpose.PROMOTED)}
    return AclPlan(
        create=_sort_acls(acl for acl in immediate_acls - destination),
        share=_sort_acls(acl for acl in immediate_acls & destination & shared_acls - own_entries.keys()),
        stage=_sort_acls(acl for acl in staged_acls - own_entries.keys()),
        remove=_sort_entries(remove),
        forget=_sort_entries(set(withdrawn) - set(remove)),
        equal=_sort_acls(immediate_acls & destination & own_acls),
        waiting=_sort_acls(a for a in staged_acls & own_entries.keys() if own_entries[a].purpose is AclPurpose.STAGED),
        foreign=_sort_acls(immediate_acls & destination - own_entries.keys() - shared_acls),
        out_of_scope=_sort_entries(
            entry
            for acl, entry in own_entries.items()
            if (entry.purpose is AclPurpose.COPIED and acl in all_immediate - immediate_acls)
            or (entry.purpose is AclPurpose.STAGED and acl in all_staged - staged_acls)
        ),
        left_out=tuple(sorted((acl, why) for acl, why in left_out.items() if acl not in own_entries)),
        unprotected_grants=_sort_acls(
            acl
            for acl in find_changing_grants(destination, scope.topics, scope.own_principals)
            if not _is_offset_by_denials(acl, destination, topics)
        ),
        narrowed=frozenset(narrowed),
        repurposed=_sort_entries(
            (
                *(replace(own_entries[acl], purpose=AclPurpose.DEMOTED) for acl in newly_demoted),
                *update_demotions(
                    own_entries.values(),
                    all_source - scope.own_acls,
                    {e.acl for e in withdrawn if e.purpose is AclPurpose.STAGED},
                ),
            )
        ),
    )


def _must_wait_for_promotion(acl: Acl) -> bool:
    """TWO_PHASE_COMMIT on transactional ids opens nothing without WRITE."""
    is_never_created = acl.resource is Resource.TRANSACTIONAL_ID and acl.operation is Operation.TWO_PHASE_COMMIT
    return is_wildcard_grant(acl) and not is_never_created


def _expand_to_names(wide_acls: Iterable[Acl], topics: SortedNames, groups: SortedNames) -> Iterator[Acl]:
    """Transactional ids are not expanded: which ones belong to the mirror is unknown."""
    names_by_resource = {Resource.TOPIC: topics, Resource.GROUP: groups}
    for acl in wide_acls:
        names = names_by_resource.get(acl.resource)
        yield from (replace(acl, name=n, pattern=Pattern.LITERAL) for n in (names.find_covered(acl) if names else ()))


def _select_backed_acls(own_acls: Iterable[Acl], wide_acls: Iterable[Acl]) -> set[Acl]:
    by_holder = dict[Acl, list[Acl]]()
    for acl in wide_acls:
        by_holder.setdefault(replace(acl, name="", pattern=Pattern.LITERAL), []).append(acl)
    literal_acls = (acl for acl in own_acls if not is_wildcard_grant(acl))
    return {
        a for a in literal_acls if any(covers(wide_acl, a.name) for wide_acl in by_holder.get(replace(a, name=""), ()))
    }


def _is_offset_by_denials(acl: Acl, destination: Set[Acl], topics: SortedNames) -> bool:
    return acl.principal != EVERYBODY and build_offsetting_denials(acl, topics) <= destination


def _translate_acls(acls: Iterable[Acl]) -> tuple[set[Acl], set[Acl]]:
    immediate, staged = set[Acl](), set[Acl]()
    for acl in acls:
        immediate_part, staged_part = translate_acl(acl)
        immediate |= immediate_part
        staged |= staged_part
    return immediate, staged


def _sort_acls(acls: Iterable[Acl]) -> tuple[Acl, ...]:
    return tuple(sorted(acls))


def _sort_entries(entries: Iterable[LedgerEntry]) -> tuple[LedgerEntry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.acl))


def find_narrowed_acls(ledger: Iterable[LedgerEntry]) -> tuple[Acl, ...]:
    staged = (e.acl for e in ledger if e.purpose is AclPurpose.STAGED)
    return tuple(sorted(acl for acl in staged if is_wildcard_grant(acl) and not can_change_topic(acl)))


def format_narrowed_acls(narrowed: Sequence[Acl]) -> str:
    return f"{len(narrowed)}: {join_limited(narrowed)}" if narrowed else "none"


ScramUsers = Mapping[str, Set[str]]
"""Mechanisms by user."""


def find_unknown_scram_users(
    entries: Iterable[LedgerEntry], source_users: ScramUsers | None, destination_users: ScramUsers | None
) -> dict[str, tuple[str, ...]]:
    """Holders of rights, with SCRAM mechanisms for which only the source has their credentials. Empty where one side's
    are unknown.
    """
    if source_users is None or destination_users is None:
        return {}
    holders = {e.acl.principal.removeprefix("User:") for e in entries if e.acl.permission is Permission.ALLOW}
    missing = {user: source_users[user] - destination_users.get(user, set()) for user in holders & source_users.keys()}
    return {user: tuple(sorted(mechanisms)) for user, mechanisms in sorted(missing.items()) if mechanisms}


STAGED_PURPOSES = frozenset({AclPurpose.STAGED, AclPurpose.PROMOTED})
"""Promotion may be repeated, so it asks for earlier promoted entries again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionGrants:
    grants: tuple[Acl, ...]
    narrowed: Mapping[Acl, tuple[str, ...]]
    refused: Mapping[Acl, AclFlaw]


def plan_promotion_grants(
    ledger: Iterable[LedgerEntry], topics: Collection[str], existing_topics: Collection[str], own_principals: Set[str]
) -> PromotionGrants:
    """`topics`: promoted; `existing_topics`: all on the destination.

    `*` never crosses: it means other topics here than where it was granted. A prefix crosses unless it covers a topic
    here that is not promoted, or heartbeats, which later mirrors and drills will have.
    """
    promoted_names, other_names = SortedNames(topics), SortedNames(set(existing_topics) - set(topics))
    grants, narrowed, refused = set[Acl](), dict[Acl, tuple[str, ...]](), dict[Acl, AclFlaw]()
    for entry in ledger:
        if entry.purpose not in STAGED_PURPOSES:
            continue
        acl = entry.acl
        if flaw := find_flaw(entry, own_principals):
            refused[acl] = flaw
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
    """The ledger after a planned failover's final sync, for rights to change topics.

    `held_acls`, which applications hold on the source, get staged; other staged entries are forgotten, promoted ones
    stay.
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


def explain_narrowed_grant(acl: Acl, also_covered: Collection[str], cluster: str) -> Finding:
    opens_heartbeats = acl.pattern is Pattern.PREFIXED and overlaps_prefix(acl, HEARTBEAT_TOPIC_PREFIX)
    return Finding(
        "grant_narrowed", acl, cluster=cluster, topics=sorted(also_covered), opens_heartbeats=opens_heartbeats
    )


def explain_forged_entry(acl: Acl, flaw: AclFlaw) -> Finding:
    return Finding("grant_forged", acl, flaw=flaw)


def warn_promotion_grants(promotion: PromotionGrants, cluster: str) -> Iterator[Finding]:
    yield from (explain_forged_entry(acl, flaw) for acl, flaw in promotion.refused.items())
    yield from (explain_narrowed_grant(acl, wide_grants, cluster) for acl, wide_grants in promotion.narrowed.items())
    by_prefix = [a for a in promotion.grants if a.resource is Resource.TOPIC and a.pattern is Pattern.PREFIXED]
    if by_prefix:
        prefixes, principals = ({getattr(acl, name) for acl in by_prefix} for name in ("name", "principal"))
        yield Finding("grants_by_prefix", cluster, prefixes=sorted(prefixes), principals=sorted(principals))
    wide_grants = [acl for acl in promotion.grants if is_wildcard_grant(acl) and acl.resource is not Resource.TOPIC]
    if wide_grants:
        yield Finding("grants_beyond_mirror", cluster, grants=wide_grants)
    for acl in promotion.grants:
        if acl.permission is Permission.DENY and acl.resource is not Resource.TOPIC and acl.principal == EVERYBODY:
            yield Finding("denial_for_everybody", acl, cluster=cluster)
        if (
            acl.permission is Permission.DENY
            and acl.resource is Resource.TOPIC
            and acl.operation in CHANGING_OPERATIONS
        ):
            yield Finding("denial_of_changes", acl, cluster=cluster)
        if acl.permission is Permission.ALLOW and acl.principal == EVERYBODY:
            yield Finding("grant_to_everybody", acl)
