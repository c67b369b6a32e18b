"""Our lifted DENYs that a cluster has again: which ones, and what people are told.

A process paused right before it denies still denies when it wakes after its run was aborted: ACLs have no owner. It
removes them again unless it is killed first. Kafka does not record who made an entry, and an equal one may be another
mirror's or an administrator's. So nothing here lifts one; they are only named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set

from mirror_core.decide.view import some
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Lifted, Resource
from mirror_core.model.mirror import Desired, Mirror
from mirror_core.model.names import ClusterName, MirrorName, both_ways
from mirror_core.rights.acls import EVERYBODY
from mirror_core.rights.provenance import forged


def reappeared(
    mirror: Mirror,
    cluster: ClusterName,
    held: Set[Acl],
    lifted: Iterable[Lifted],
    there: Collection[LedgerEntry],
    own_principals: Set[str],
) -> tuple[Lifted, ...]:
    """Lifted entries that one of the mirror's clusters has again and no known ledger needs.

    `there`: see `list_entries_on_cluster`. What this mirror or its reverse promoted may be the DENY itself: a sync took
    it for a rule of the source.
    """
    own = {e for e in there if e.purpose is AclPurpose.PROMOTED and e.mirror in both_ways(mirror.name)}
    given, needed = {e.acl for e in own}, {e.acl for e in there if e not in own}
    found = dict[Acl, Lifted]()
    for one in lifted:
        entry, acl = one.entry, one.entry.acl
        carried = acl in given and acl.principal == EVERYBODY
        again = entry.cluster == cluster and not _homewards(mirror, entry)
        known = entry.mirror == mirror.name and (again or carried)
        if known and acl in held and acl not in needed and not forged(entry, own_principals):
            found[acl] = one
    return tuple(found[acl] for acl in sorted(found))


def _homewards(mirror: Mirror, entry: LedgerEntry) -> bool:
    """A fence on the destination of a stopped mirror: it may be the reverse mirror's, whose ledger is not
    at hand.
    """
    fence = entry.purpose is AclPurpose.FENCE and entry.acl.principal == EVERYBODY
    return fence and entry.cluster == mirror.destination and mirror.desired is Desired.STOPPED


def entered_there(
    mirror: Mirror, cluster: ClusterName, ledger: Iterable[LedgerEntry], mirrors: Mapping[MirrorName, Mirror]
) -> list[LedgerEntry]:
    id_, found = _ids(mirror)[cluster], list[LedgerEntry]()
    for entry in ledger:
        ids = _ids(mirrors[entry.mirror]) if entry.mirror in mirrors else {}
        there = ids.get(entry.cluster) == id_ or entry.cluster == cluster
        if there and entry.purpose is not AclPurpose.STAGED:
            found.append(entry)
    return found


def _ids(mirror: Mirror) -> dict[ClusterName, str]:
    return {mirror.source: mirror.source_id, mirror.destination: mirror.destination_id}


def named(found: Iterable[Lifted], mirror: Mirror, cluster: ClusterName) -> str:
    by_effect = dict[str, list[Lifted]]()
    for one in found:
        by_effect.setdefault(_effect(one.entry, cluster), []).append(one)
    return "; ".join(
        f"{_again(those, mirror, cluster)}: {some(one.entry.acl for one in those)}: {effect}"
        for effect, those in by_effect.items()
    )


def warned(found: Collection[Lifted], mirror: Mirror, cluster: ClusterName) -> str:
    return f"{_again(found, mirror, cluster)}: see `mirrorbook mirror describe {mirror.name}`" if found else ""


def _again(found: Collection[Lifted], mirror: Mirror, cluster: ClusterName) -> str:
    runs = some(sorted({one.run for one in found if one.run})) or "by an earlier run"
    those = f"{len(found)} denial(s) that mirror {mirror.name} had lifted ({runs})"
    return f"{those} stand on {cluster} again, or are another's"


def _effect(entry: LedgerEntry, cluster: ClusterName) -> str:
    if entry.purpose is AclPurpose.DEMOTED:
        return "applications cannot change these topics there"
    if entry.acl.principal == EVERYBODY:
        return "nobody can write there what they name, neither applications nor a copier"
    if entry.acl.resource is Resource.GROUP:
        return f"copying of groups' offsets to {cluster} stands still because of it"
    return f"copying to {cluster} stands still because of it"
