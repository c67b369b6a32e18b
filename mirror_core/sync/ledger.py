"""The ledger and the clusters: an entry of ours is remembered before it exists, and forgotten after it is gone.

So a crash anywhere leaves entries that a second call finds, and never one of ours that nobody remembers. Rights on a
cluster know no owner: who has slept before an action learns only after it that the mirror is another's by now. Then he
makes the cluster hold what is in the ledger.
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
    """What the ledger knows of a mirror's entries on one cluster, made for this purpose."""
    return tuple(e for e in log.state.ledger_of(mirror) if e.purpose is purpose and e.cluster == cluster)


def remember(log: Log, mirror: MirrorName, cluster: ClusterName, acls: Iterable[Acl], purpose: AclPurpose) -> None:
    """Enter what is about to be created; what is entered for this purpose already stays as it is."""
    known = {e.acl for e in entered(log, mirror, cluster, purpose)}
    entries = [
        LedgerEntry(mirror=mirror, cluster=cluster, acl=acl, purpose=purpose) for acl in sorted(set(acls) - known)
    ]
    if entries:
        log.put(*entries)


def forget_debt(log: Log, mirror: MirrorName) -> None:
    """Nothing is owed any more: before a fence is lifted on purpose, or a watcher would put it up again."""
    debt = log.state.debts.get(mirror)
    if debt is not None:
        log.put(Forget(debt))


def demoted_there(state: State, mirror: MirrorName, cluster: ClusterName, topics: Collection[str]) -> list[LedgerEntry]:
    """What keeps applications from changing these topics on a cluster, entered by this mirror or by its way home.

    Of these topics only: others there are another mirror's, whose copy goes on when this one's topics are given away.
    """
    names, ours = frozenset(topics), both_ways(mirror)
    there = (e for e in state.ledger.values() if e.cluster == cluster and e.mirror in ours)
    return [e for e in there if e.purpose is AclPurpose.DEMOTED and _names_one(e.acl, names)]


def _names_one(acl: Acl, topics: Set[str]) -> bool:
    return acl.resource is Resource.TOPIC and acl.pattern is Pattern.LITERAL and acl.name in topics


def remember_there_too(
    log: Log, mirror: MirrorName, state: State, cluster: ClusterName, topics: Collection[str]
) -> None:
    """Enter in this mirror's ledger, too, who was demoted on a cluster by the mirror of the other direction.

    That one's ledger is on the other cluster: should it die, promotion here must still know which denials to lift.
    What this mirror has withdrawn stays so: it is not to be lifted. What it had copied is the demotion's from now on:
    the next sync judges whether the source denies it still.
    """
    there = (e for e in log.state.ledger_of(mirror) if e.cluster == cluster)
    known = {e.acl for e in there if e.purpose is not AclPurpose.COPIED}
    demoted = demoted_there(state, mirror, cluster, topics)
    entries = [replace(entry, mirror=mirror) for entry in demoted if entry.acl not in known]
    if entries:
        log.put(*entries)


def stage_again(log: Log, mirror: MirrorName, client: ClusterClient, own_principals: Set[str]) -> None:
    """Take away what promotion gave on this cluster, which is to be a mirror's destination again, until the next one.

    As staged, a right that the source withdraws is forgotten by the next sync. Applications must be demoted already.
    """
    given = entered(log, mirror, client.name, AclPurpose.PROMOTED)
    ours = [entry for entry in given if not forged(entry, own_principals)]
    take_away_unshared(log, client, ours, _staged)


def _staged(entry: LedgerEntry) -> Record:
    return replace(entry, purpose=AclPurpose.STAGED)


def lifted(state: State, entries: Iterable[LedgerEntry]) -> Iterator[Lifted]:
    """How denials that were taken away are remembered: who slept may put them up again, and be killed before he learns
    that nobody wants them."""
    for entry in entries:
        if entry.purpose in LIFTABLE and not forged(entry):
            yield Lifted(entry=entry, run=_run(state, entry.mirror))


def _run(state: State, mirror: MirrorName) -> str:
    run, debt = state.active_run(mirror), state.debts.get(mirror)
    return run.id if run else debt.run if debt else ""


def _outlived(state: State, client: ClusterClient, entries: Iterable[LedgerEntry]) -> list[Forget]:
    """When a fence is lifted, what need not be remembered any more: what other runs' fences of the same mirror denied
    there, and does not stand. So memory does not grow with each run's transactional ids."""
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
    """Delete these entries from their cluster, and forget them when no broker shows one any more.

    What we can never have entered is only forgotten: a forged entry would take away whatever its author likes.
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
        # Who had the mirror before, and woke up meanwhile, has put up again what he found in the ledger. From now on he
        # finds nothing there.
        delete_acls(client, acls)


def take_away_unshared(
    log: Log,
    client: ClusterClient,
    mine: Iterable[LedgerEntry],
    then: Callable[[LedgerEntry], Record | Forget] = Forget,
) -> None:
    """Delete these entries of one mirror on this cluster, but for those that another mirror has entered, too.

    Such a one (`stop_commits` denies the same for all of them) stays, and is that other's alone: also when it was
    entered since we looked last, or while we deleted it.
    """
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
    """What the ledger wants on this cluster now, but for these entries: what is staged is not to be there yet."""
    wanted = (e for e in state.ledger.values() if e.cluster == cluster and e.purpose is not AclPurpose.STAGED)
    skipped = frozenset(without)
    return {e.acl for e in wanted if e not in skipped}


def put_up(log: Log, client: ClusterClient, entries: Sequence[LedgerEntry]) -> None:
    """Create what is in the ledger already. It holds only after `present_on_every_broker`."""
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
    """Both: into the ledger what is not there for this purpose, and all of it onto the cluster."""
    remember(log, mirror, client.name, acls, purpose)
    put_up(log, client, [e for e in entered(log, mirror, client.name, purpose) if e.acl in acls])


def _settle(log: Log, client: ClusterClient, acls: Collection[Acl]) -> None:
    """Have the cluster hold of these what the mirror's owner, who may be at work on them, has in the ledger."""
    before = None
    while (known := wanted_there(log.refresh(), client.name) & set(acls)) != before:
        create_acls(client, known)
        delete_acls(client, set(acls) - known)
        before = known
