"""Which ACLs of the source to copy to the destination, to stage for promotion, or to remove.

A mirror topic must not be writable by applications, so rights to change it are only staged: remembered in the ledger
and created at promotion. A wildcard or prefixed right covers other names on the destination than on the source, so it
is staged too; until promotion it is copied by name, for topics and groups of the mirror only. A DENY crosses as it is:
a narrower one would open something. An entry that the ledger does not know belongs to others and is never changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from typing import Final

from mirror_core.decide.filters import Filter
from mirror_core.decide.view import some
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Pattern, Permission, Resource
from mirror_core.rights.acls import (
    EVERYBODY,
    OUR_NAMES,
    Names,
    changing,
    covers,
    demotions,
    is_wide,
    may_change,
    meets,
    offsetting,
)
from mirror_core.rights.provenance import forged, never_for_everybody, shut_out_of_ours
from mirror_core.rights.withdrawal import judged_again


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    topics: Collection[str]
    groups: Collection[str]
    group_filter: Filter
    own_principals: Set[str]
    own_acls: Set[Acl] = frozenset()
    guards: Set[Acl] = frozenset()
    """DENYs that Mirrorbook needs on the destination, whatever the source has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AclPlan:
    """What to do on the destination. Sorted, so that equal plans compare equal."""

    create: tuple[Acl, ...]
    """Copied now: written to the ledger first, then to the cluster."""
    share: tuple[Acl, ...]
    stage: tuple[Acl, ...]
    remove: tuple[LedgerEntry, ...]
    forget: tuple[LedgerEntry, ...]
    """In our ledger, gone from the source, and missing on the cluster or shared: only forget."""
    equal: tuple[Acl, ...]
    waiting: tuple[Acl, ...]
    foreign: tuple[Acl, ...]
    out_of_scope: tuple[LedgerEntry, ...]
    """Ours and still on the source, but matched by no filter any more: kept."""
    left_out: tuple[tuple[Acl, str], ...]
    open_doors: tuple[Acl, ...] = field(default=())
    """ALLOWs on the destination that let applications change mirror topics, without a DENY against them."""
    narrowed: frozenset[Acl] = field(default=frozenset())
    judged_again: tuple[LedgerEntry, ...] = field(default=())
    """DENYs of a demotion that will stay at promotion, or no longer; copied ones that become a demotion's."""


def translate(acl: Acl) -> tuple[frozenset[Acl], frozenset[Acl]]:
    """What a source entry becomes: entries that apply now, and entries that are staged.

    ALL on a topic is staged, but its READ and DESCRIBE_CONFIGS are given now. ALL on the cluster becomes
    IDEMPOTENT_WRITE. A right to transactional ids changes no topic and is given now, except for our ids: whoever writes
    with those could fence the mirror's conductor. A DENY for everybody would stop the mirror's own principals, so it
    waits.
    """
    if acl.resource is Resource.CLUSTER and acl.operation is Operation.ALL:
        acl = replace(acl, operation=Operation.IDEMPOTENT_WRITE)
    if acl.permission is Permission.DENY:
        return (_NONE, frozenset({acl})) if acl.principal == EVERYBODY else (frozenset({acl}), _NONE)
    if acl.resource is Resource.TRANSACTIONAL_ID and acl.operation in _WRITING and meets(acl, OUR_NAMES):
        return frozenset({acl, shut_out_of_ours(acl)}), _NONE
    if not may_change(acl):
        return frozenset({acl}), _NONE
    if acl.operation is not Operation.ALL:
        return _NONE, frozenset({acl})
    harmless = (Operation.READ, Operation.DESCRIBE_CONFIGS)
    return frozenset(replace(acl, operation=operation) for operation in harmless), frozenset({acl})


_NONE: Final = frozenset[Acl]()
_WRITING: Final = frozenset({Operation.WRITE, Operation.ALL})


def carried_of(source: Set[Acl], scope: Scope) -> tuple[set[Acl], dict[Acl, str]]:
    """Source entries that belong to the mirror; and those of its applications that are left out, with the
    reason.

    Topics and groups belong by name. Transactional ids and IDEMPOTENT_WRITE follow principals that may write one of its
    topics.
    """
    theirs = {a for a in source - scope.own_acls if a.principal not in scope.own_principals}
    topics, groups = Names(scope.topics), Names(scope.groups)
    named = {acl for acl in theirs if _in_scope(acl, scope, topics, groups)}
    users = {acl.principal for acl in named}
    writers = {acl.principal for acl in named if may_change(acl) and acl.operation in _WRITING}
    carried, left_out = set[Acl](), dict[Acl, str]()
    for acl in theirs if users else ():
        if acl.resource in (Resource.TOPIC, Resource.GROUP):
            if acl not in named:
                continue
        elif not {acl.principal, EVERYBODY} & users and acl.principal != EVERYBODY:
            continue
        reason = _stays(acl, users, writers, scope.own_principals)
        if not reason:
            carried |= _by_name(acl, writers)
            if acl.resource is Resource.CLUSTER and acl.operation is Operation.ALL:
                reason = "of this only IDEMPOTENT_WRITE is carried: all of it would make an administrator"
        if reason:
            left_out[acl] = reason
    return carried, left_out


def _in_scope(acl: Acl, scope: Scope, topics: Names, groups: Names) -> bool:
    if acl.resource is Resource.TOPIC:
        return topics.any_covered(acl)
    if acl.resource is Resource.GROUP:
        return groups.any_covered(acl) or acl.name == "*" or acl.name in scope.group_filter
    return False


def _stays(acl: Acl, users: Set[str], writers: Set[str], own_principals: Set[str]) -> str:
    if acl.permission is Permission.DENY and acl.principal == EVERYBODY and (reason := never_for_everybody(acl)):
        return reason
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
    if acl.resource is Resource.TRANSACTIONAL_ID and meets(acl, OUR_NAMES):
        if acl.name.startswith(OUR_NAMES) and acl.permission is Permission.ALLOW:
            return f"transactional ids that begin with {OUR_NAMES} are Mirrorbook's own"
        if acl.principal == EVERYBODY and EVERYBODY in writers and acl.operation in _WRITING:
            return "it would let everybody take over Mirrorbook's own transactional ids: replace it by grants to names"
    return ""


def _by_name(acl: Acl, writers: Set[str]) -> set[Acl]:
    """Replaces an ALLOW for everybody on our transactional ids by one for each writer.

    Each writer is denied our ids; a DENY for everybody would deny us.
    """
    ours = acl.resource is Resource.TRANSACTIONAL_ID and acl.operation in _WRITING and meets(acl, OUR_NAMES)
    if ours and acl.principal == EVERYBODY and acl.permission is Permission.ALLOW:
        return {replace(acl, principal=principal) for principal in writers - {EVERYBODY}}
    return {acl}


def plan_acls(
    source: Set[Acl], destination: Set[Acl], scope: Scope, ledger: Iterable[LedgerEntry], others: Iterable[LedgerEntry]
) -> AclPlan:
    """`ledger` and `others`: this mirror's and other mirrors' entries for the destination."""
    mine, topics = {entry.acl: entry for entry in ledger}, Names(scope.topics)
    shared = {entry.acl for entry in others if entry.purpose in (AclPurpose.COPIED, AclPurpose.PROMOTED)}
    carried, left_out = carried_of(source, scope)
    wanted, staged = _translated(carried)
    narrowed = {acl for acl in wanted if _waits(acl)}
    at_once = (wanted - narrowed) | set(_by_names(narrowed, topics, Names(scope.groups)))
    staged |= narrowed
    everything, everything_staged = _translated(source - scope.own_acls)
    wide = {acl for acl in everything if _waits(acl)}
    everything_staged |= wide | narrowed
    everything = (everything - wide) | at_once | _backed(mine, wide)
    at_once |= {guard for guard in scope.guards if guard in mine or guard not in destination}
    everything |= scope.guards
    gone = [
        entry
        for acl, entry in mine.items()
        if (entry.purpose is AclPurpose.COPIED and acl not in everything)
        or (entry.purpose is AclPurpose.STAGED and acl not in everything_staged)
    ]
    # What a denial has kept shut must not be open before promotion: from now on it is a demotion's.
    shut = {e.acl for e in gone if e.purpose is AclPurpose.COPIED and e.acl.permission is Permission.DENY} & destination
    shut &= demotions(destination, scope.topics, scope.own_principals) if shut else _NONE
    gone = [e for e in gone if e.acl not in shut]
    remove = [
        e
        for e in gone
        if e.purpose is AclPurpose.COPIED and e.acl in destination - shared and not forged(e, scope.own_principals)
    ]
    ours_there = {acl for acl, entry in mine.items() if entry.purpose in (AclPurpose.COPIED, AclPurpose.PROMOTED)}
    return AclPlan(
        create=_sort(acl for acl in at_once - destination),
        share=_sort(acl for acl in at_once & destination & shared - mine.keys()),
        stage=_sort(acl for acl in staged - mine.keys()),
        remove=_sort_entries(remove),
        forget=_sort_entries(set(gone) - set(remove)),
        equal=_sort(at_once & destination & ours_there),
        waiting=_sort(a for a in staged & mine.keys() if mine[a].purpose is AclPurpose.STAGED),
        foreign=_sort(at_once & destination - mine.keys() - shared),
        out_of_scope=_sort_entries(
            entry
            for acl, entry in mine.items()
            if (entry.purpose is AclPurpose.COPIED and acl in everything - at_once)
            or (entry.purpose is AclPurpose.STAGED and acl in everything_staged - staged)
        ),
        left_out=tuple(sorted(left_out.items())),
        open_doors=_sort(
            acl
            for acl in changing(destination, scope.topics, scope.own_principals)
            if not _held_back(acl, destination, topics)
        ),
        narrowed=frozenset(narrowed),
        judged_again=_sort_entries(
            (
                *(replace(mine[acl], purpose=AclPurpose.DEMOTED) for acl in shut),
                *judged_again(
                    mine.values(), source - scope.own_acls, {e.acl for e in gone if e.purpose is AclPurpose.STAGED}
                ),
            )
        ),
    )


def _waits(acl: Acl) -> bool:
    """Older brokers refuse a whole request for TWO_PHASE_COMMIT, so promotion never creates it."""
    return is_wide(acl) and acl.operation is not Operation.TWO_PHASE_COMMIT


def _by_names(wide: Iterable[Acl], topics: Names, groups: Names) -> Iterator[Acl]:
    """Not for transactional ids: which ones belong to the mirror is unknown."""
    known = {Resource.TOPIC: topics, Resource.GROUP: groups}
    for acl in wide:
        names = known.get(acl.resource)
        yield from (replace(acl, name=n, pattern=Pattern.LITERAL) for n in (names.covered(acl) if names else ()))


def _backed(mine: Iterable[Acl], wide: Iterable[Acl]) -> set[Acl]:
    """Entries by name that a wider right of the source still grants."""
    by_holder = dict[Acl, list[Acl]]()
    for acl in wide:
        by_holder.setdefault(replace(acl, name="", pattern=Pattern.LITERAL), []).append(acl)
    named = (acl for acl in mine if not is_wide(acl))
    return {a for a in named if any(covers(one, a.name) for one in by_holder.get(replace(a, name=""), ()))}


def _held_back(acl: Acl, destination: Set[Acl], topics: Names) -> bool:
    return acl.principal != EVERYBODY and offsetting(acl, topics) <= destination


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


def narrowed_in_words(ledger: Iterable[LedgerEntry]) -> str:
    staged = (e.acl for e in ledger if e.purpose is AclPurpose.STAGED)
    narrowed = sorted(acl for acl in staged if is_wide(acl) and not may_change(acl))
    return f"{len(narrowed)}: {some(narrowed)}" if narrowed else "none"


def strangers(entries: Iterable[LedgerEntry], here: Set[str] | None, there: Set[str] | None) -> tuple[str, ...]:
    """Holders of rights that only the source has SCRAM credentials for. Empty where one side's are
    unknown.
    """
    if here is None or there is None:
        return ()
    holders = {e.acl.principal.removeprefix("User:") for e in entries if e.acl.permission is Permission.ALLOW}
    return tuple(sorted((holders & here) - there))
