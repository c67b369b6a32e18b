"""What promotion gives to applications: staged grants, no wider than the mirror."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from mirror_core.decide.view import some
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Pattern, Permission, Resource
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import HEARTBEATS
from mirror_core.rights.acls import CHANGING, EVERYBODY, Names, covers, is_wide, may_change, meets
from mirror_core.rights.provenance import forged, may_take_over_ours, shut_out_of_ours

STAGED = frozenset({AclPurpose.STAGED, AclPurpose.PROMOTED})
"""Promotion may be repeated, so it asks for earlier promoted entries again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    grants: tuple[Acl, ...]
    narrowed: Mapping[Acl, tuple[str, ...]]
    refused: Mapping[Acl, str]


def promotion(
    ledger: Iterable[LedgerEntry], topics: Collection[str], there: Collection[str], own_principals: Set[str]
) -> Promotion:
    """From a mirror's ledger, its promoted topics, and all topics on the destination.

    `*` never crosses: it means other topics here than where it was granted. A prefix crosses unless it covers a topic
    here that is not promoted, or heartbeats, which later mirrors and drills will have.
    """
    ours, others = Names(topics), Names(set(there) - set(topics))
    grants, narrowed, refused = set[Acl](), dict[Acl, tuple[str, ...]](), dict[Acl, str]()
    for entry in ledger:
        if entry.purpose not in STAGED:
            continue
        acl = entry.acl
        if why := forged(entry, own_principals):
            refused[acl] = why
        elif acl.resource is not Resource.TOPIC:
            grants.add(acl)
            if may_take_over_ours(acl):
                grants.add(shut_out_of_ours(acl))
        elif covered := ours.covered(acl):
            beside = tuple(others.covered(acl))
            if _whole(acl, beside):
                grants.add(acl)
            else:
                narrowed[acl] = beside
                grants |= {replace(acl, name=topic, pattern=Pattern.LITERAL) for topic in covered}
    return Promotion(
        grants=tuple(sorted(grants)), narrowed=dict(sorted(narrowed.items())), refused=dict(sorted(refused.items()))
    )


def as_synced(ledger: Iterable[LedgerEntry], mirror: Mirror, held: Collection[Acl]) -> tuple[LedgerEntry, ...]:
    """The ledger as the final sync of a planned failover leaves it, for rights to change topics.

    `held`: what applications hold on the source: it gets staged, and other staged entries are forgotten. Earlier
    promoted entries stay.
    """
    kept = (e for e in ledger if not (e.purpose is AclPurpose.STAGED and may_change(e.acl)))
    staged = (
        LedgerEntry(mirror=mirror.name, cluster=mirror.destination, acl=acl, purpose=AclPurpose.STAGED)
        for acl in sorted(held)
    )
    return tuple({entry.acl: entry for entry in (*kept, *staged)}.values())


def unbacked(ledger: Iterable[LedgerEntry], topics: Collection[str], held: Collection[Acl]) -> tuple[Acl, ...]:
    names = Names(topics)
    staged = {e.acl for e in ledger if e.purpose in STAGED and may_change(e.acl) and names.any_covered(e.acl)}
    return tuple(sorted(staged - set(held)))


def given_there(ledger: Iterable[LedgerEntry], held: Collection[Acl]) -> tuple[Acl, ...]:
    given = {e.acl for e in ledger if e.purpose is AclPurpose.PROMOTED and e.acl.permission is Permission.ALLOW}
    return tuple(sorted(given.intersection(held)))


def not_held(given: Iterable[Acl], held: Collection[Acl]) -> tuple[Acl, ...]:
    """Rights without an equal or wider one on the cluster that applications came from."""
    there = frozenset(held)
    mine = dict[tuple[Resource, str, Operation], list[Acl]]()
    for acl in there:
        if acl.permission is Permission.ALLOW:
            mine.setdefault((acl.resource, acl.principal, acl.operation), []).append(acl)

    def wider(acl: Acl) -> bool:
        whose, what = (acl.principal, EVERYBODY), (acl.operation, Operation.ALL)
        found = (one for user in whose for how in what for one in mine.get((acl.resource, user, how), ()))
        return any(_within(acl, one) for one in found)

    return tuple(sorted(acl for acl in given if acl not in there and not wider(acl)))


def _within(acl: Acl, other: Acl) -> bool:
    if acl.pattern is Pattern.PREFIXED and other.pattern is not Pattern.PREFIXED and other.name != "*":
        return False
    return covers(other, acl.name) and other.host in ("*", acl.host)


def _whole(acl: Acl, beside: tuple[str, ...]) -> bool:
    if acl.pattern is Pattern.PREFIXED:
        return not beside and not "__".startswith(acl.name) and not meets(acl, HEARTBEATS)
    return acl.name != "*"


def narrowing(acl: Acl, beside: Collection[str], cluster: str) -> str:
    opens = f"{some(beside)}, too" if beside else "all there is"
    if not beside and acl.pattern is Pattern.PREFIXED and meets(acl, HEARTBEATS):
        opens = "heartbeats of mirrors made later, too"
    given = f"{acl} will be granted topic by topic: on {cluster} it would open {opens}"
    return f"{given}. Topics made later need a grant of their own"


def forgery(acl: Acl, why: str) -> str:
    return f"{acl} is recorded as staged, but will not be granted: {why}: find out who may write the state topic"


def warnings(what: Promotion, cluster: str) -> Iterator[str]:
    yield from (forgery(acl, why) for acl, why in what.refused.items())
    yield from (narrowing(acl, beside, cluster) for acl, beside in what.narrowed.items())
    prefixes = sorted({a.name for a in what.grants if a.resource is Resource.TOPIC and a.pattern is Pattern.PREFIXED})
    if prefixes:
        yield f"grants by prefix open topics made later on {cluster}, too, whose names begin with {some(prefixes)}"
    beside = [acl for acl in what.grants if is_wide(acl) and acl.resource is not Resource.TOPIC]
    if beside:
        yield f"not for the mirror's groups and transactional ids alone on {cluster}, but as they stand: {some(beside)}"
    for acl in what.grants:
        if acl.permission is Permission.DENY and acl.resource is Resource.TOPIC and acl.operation in CHANGING:
            yield (
                f"{acl}: the source has it, so promotion gives it, and nobody may do that on {cluster} then. Is it the "
                "fence of another mirror of this source? Then take it away there, and sync, before this failover"
            )
        if acl.permission is Permission.ALLOW and acl.principal == EVERYBODY:
            yield f"{acl}: nobody can fail back while everybody may write: replace it by grants to names"
