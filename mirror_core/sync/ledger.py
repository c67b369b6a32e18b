"""The ledger of ACL entries: recorded before they exist, forgotten after they are gone.

ACLs know no owner. A process that slept learns after its action that it lost the mirror; it then makes the cluster hold
what the ledger says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from dataclasses import replace

from mirror_core.kafka.acls import Acls, absent_on_every_broker, create_acls, delete_acls, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.acl import LIFTABLE, Acl, AclPurpose, LedgerEntry, Lifted, Pattern, Resource
from mirror_core.model.errors import LostOwnership
from mirror_core.model.logs import logger
from mirror_core.model.names import ClusterName, MirrorName, both_ways
from mirror_core.rights.provenance import forged
from mirror_core.state.journal import Log
from mirror_core.state.records import Forget, Record, State

_log = logger(__name__)


def entered(log: Log, mirror: MirrorName, cluster: ClusterName, purpose: AclPurpose) -> tuple[LedgerEntry, ...]:
    return tuple(e for e in log.state.ledger_of(mirror) if e.purpose is purpose and e.cluster == cluster)


def remember(log: Log, mirror: MirrorName, cluster: ClusterName, acls: Iterable[Acl], purpose: AclPurpose) -> None:
    known = {e.acl for e in entered(log, mirror, cluster, purpose)}
    entries = [
        LedgerEntry(mirror=mirror, cluster=cluster, acl=acl, purpose=purpose) for acl in sorted(set(acls) - known)
    ]
    if entries:
        log.put(*entries)


def forget_debt(log: Log, mirror: MirrorName) -> None:
    """Before lifting a fence on purpose: a watcher would apply it again."""
    debt = log.state.debts.get(mirror)
    if debt is not None:
        log.put(Forget(debt))


def demoted_there(state: State, mirror: MirrorName, cluster: ClusterName, topics: Collection[str]) -> list[LedgerEntry]:
    """Demotions by this mirror or its reverse; those of other topics protect another mirror's copy."""
    names, ours = frozenset(topics), both_ways(mirror)
    there = (e for e in state.ledger.values() if e.cluster == cluster and e.mirror in ours)
    return [e for e in there if e.purpose is AclPurpose.DEMOTED and _names_one(e.acl, names)]


def _names_one(acl: Acl, topics: Set[str]) -> bool:
    return acl.resource is Resource.TOPIC and acl.pattern is Pattern.LITERAL and acl.name in topics


def remember_there_too(
    log: Log, mirror: MirrorName, state: State, cluster: ClusterName, topics: Collection[str]
) -> None:
    """Copy the reverse mirror's demotions here: its ledger's cluster may die before promotion.

    Withdrawn entries stay withdrawn. Copied ones become demotions; the next sync decides about them.
    """
    there = (e for e in log.state.ledger_of(mirror) if e.cluster == cluster)
    known = {e.acl for e in there if e.purpose is not AclPurpose.COPIED}
    demoted = demoted_there(state, mirror, cluster, topics)
    entries = [replace(entry, mirror=mirror) for entry in demoted if entry.acl not in known]
    if entries:
        log.put(*entries)


def stage_again(log: Log, mirror: MirrorName, client: ClusterClient, own_principals: Set[str]) -> None:
    """Applications must be demoted already. A staged right that the source withdraws is forgotten."""
    given = entered(log, mirror, client.name, AclPurpose.PROMOTED)
    ours = [entry for entry in given if not forged(entry, own_principals)]
    take_away_unshared(log, client, ours, _staged)


def _staged(entry: LedgerEntry) -> Record:
    return replace(entry, purpose=AclPurpose.STAGED)


def lifted(state: State, entries: Iterable[LedgerEntry]) -> Iterator[Lifted]:
    """Keep these: a process that slept may create the denials again, and die before it learns better."""
    for entry in entries:
        if entry.purpose in LIFTABLE and not forged(entry):
            yield Lifted(entry=entry, run=_run(state, entry.mirror))


def _run(state: State, mirror: MirrorName) -> str:
    run, debt = state.active_run(mirror), state.debts.get(mirror)
    return run.id if run else debt.run if debt else ""


def _outlived(state: State, client: ClusterClient, entries: Iterable[LedgerEntry]) -> list[Forget]:
    """Lifted records of earlier fences that are gone: memory does not grow with each run."""
    fence = {entry for entry in entries if entry.purpose is AclPurpose.FENCE}
    runs = {entry.mirror: _run(state, entry.mirror) for entry in fence}
    there = (one for one in state.lifted.values() if one.entry.mirror in runs and one.entry.cluster == client.name)
    fences = (one for one in there if one.entry.purpose is AclPurpose.FENCE and one.entry not in fence)
    older = [one for one in fences if not one.run or one.run != runs[one.entry.mirror]]
    seen = describe_acls(client) if older else None
    held = seen.entries if isinstance(seen, Acls) else frozenset()
    return [Forget(one) for one in older if one.entry.acl not in held]


def take_away(
    log: Log,
    client: ClusterClient,
    entries: Collection[LedgerEntry],
    then: Callable[[LedgerEntry], Record | Forget] = Forget,
) -> None:
    """Delete entries, and forget them when no broker shows them any more.

    A forged entry is only forgotten: deleting it would remove whatever its author likes.
    """
    if entries:
        acls = [entry.acl for entry in entries if not forged(entry)]
        delete_acls(client, acls)
        absent_on_every_broker(client, acls)
        _log.info("%d entries taken away, shown by no broker any more", len(acls), cluster=client.name)
        try:
            log.put(*map(then, entries), *lifted(log.state, entries), *_outlived(log.state, client, entries))
        except LostOwnership:
            _settle(log, client, acls)
            raise
        # An earlier owner that woke up meanwhile may have created them again from the ledger. From now on it
        # finds nothing there.
        delete_acls(client, acls)


def take_away_unshared(
    log: Log,
    client: ClusterClient,
    mine: Iterable[LedgerEntry],
    then: Callable[[LedgerEntry], Record | Forget] = Forget,
) -> None:
    """Keep entries that another mirror has recorded, even during the deletion."""
    entries = tuple(mine)
    if not entries:
        return
    others = wanted_there(log.refresh(), client.name, entries)
    if shared := [e for e in entries if e.acl in others]:
        log.put(*map(then, shared), *lifted(log.state, shared))
    alone = [e for e in entries if e.acl not in others]
    take_away(log, client, alone, then)
    if alone and (needed := wanted_there(log.refresh(), client.name, entries) & {e.acl for e in alone}):
        create_acls(client, needed)


def wanted_there(state: State, cluster: ClusterName, without: Collection[LedgerEntry] = ()) -> set[Acl]:
    """ACLs that the ledger wants on this cluster now; staged ones must not exist yet."""
    wanted = (e for e in state.ledger.values() if e.cluster == cluster and e.purpose is not AclPurpose.STAGED)
    skipped = frozenset(without)
    return {e.acl for e in wanted if e not in skipped}


def put_up(log: Log, client: ClusterClient, entries: Sequence[LedgerEntry]) -> None:
    """The entries hold only after `present_on_every_broker`."""
    acls = [entry.acl for entry in entries]
    create_acls(client, acls)
    try:
        log.put(*entries[:1])  # a write that only the mirror's owner can do
    except LostOwnership:
        _settle(log, client, acls)
        raise


def enter_and_put_up(
    log: Log, mirror: MirrorName, client: ClusterClient, acls: Collection[Acl], purpose: AclPurpose
) -> None:
    remember(log, mirror, client.name, acls, purpose)
    put_up(log, client, [e for e in entered(log, mirror, client.name, purpose) if e.acl in acls])


def _settle(log: Log, client: ClusterClient, acls: Collection[Acl]) -> None:
    before = None
    while (known := wanted_there(log.refresh(), client.name) & set(acls)) != before:
        create_acls(client, known)
        delete_acls(client, set(acls) - known)
        before = known
