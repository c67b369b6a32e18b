from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from dataclasses import replace

from mirror_core.kafka.acl_requests import BrokerAcls, create_acls, delete_acls, describe_acls, wait_until_acls_absent
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.acl import LIFTABLE_PURPOSES, Acl, AclPurpose, LedgerEntry, LiftedDenial, Pattern, Resource
from mirror_core.model.errors import LostOwnership
from mirror_core.model.logs import get_logger
from mirror_core.model.names import ClusterName, MirrorName, get_both_directions
from mirror_core.rights.ledger_rules import find_flaw
from mirror_core.state.journal import JournalLog
from mirror_core.state.state_records import State, StateRecord, Tombstone

_log = get_logger(__name__)


def list_entries(
    log: JournalLog, mirror: MirrorName, cluster: ClusterName, purpose: AclPurpose
) -> tuple[LedgerEntry, ...]:
    return tuple(e for e in log.state.ledger_entries(mirror) if e.purpose is purpose and e.cluster == cluster)


def record_entries(
    log: JournalLog, mirror: MirrorName, cluster: ClusterName, acls: Iterable[Acl], purpose: AclPurpose
) -> None:
    recorded = {e.acl for e in list_entries(log, mirror, cluster, purpose)}
    entries = [
        LedgerEntry(mirror=mirror, cluster=cluster, acl=acl, purpose=purpose) for acl in sorted(set(acls) - recorded)
    ]
    if entries:
        log.put(*entries)


def forget_pending_fence(log: JournalLog, mirror: MirrorName) -> None:
    """Before lifting a fence on purpose: a watcher would apply it again."""
    pending_fence = log.state.pending_fences.get(mirror)
    if pending_fence is not None:
        log.put(Tombstone(pending_fence))


def list_demotions(
    state: State, mirror: MirrorName, cluster: ClusterName, topics: Collection[str]
) -> list[LedgerEntry]:
    """By this mirror or its reverse; those of other topics protect another mirror's copy."""
    wanted_topics, mirror_names = frozenset(topics), get_both_directions(mirror)
    entries = (e for e in state.ledger.values() if e.cluster == cluster and e.mirror in mirror_names)
    return [e for e in entries if e.purpose is AclPurpose.DEMOTED and is_on_topics(e.acl, wanted_topics)]


def is_on_topics(acl: Acl, topics: Set[str]) -> bool:
    return acl.resource is Resource.TOPIC and acl.pattern is Pattern.LITERAL and acl.name in topics


def copy_demotions(
    log: JournalLog, mirror: MirrorName, state: State, cluster: ClusterName, topics: Collection[str]
) -> None:
    """From the reverse mirror, whose ledger's cluster may die before promotion.

    Withdrawn entries stay withdrawn. Copied ones become demotions; the next sync decides about them.
    """
    own_entries = (e for e in log.state.ledger_entries(mirror) if e.cluster == cluster)
    recorded = {e.acl for e in own_entries if e.purpose is not AclPurpose.COPIED}
    demotions = list_demotions(state, mirror, cluster, topics)
    entries = [replace(entry, mirror=mirror) for entry in demotions if entry.acl not in recorded]
    if entries:
        log.put(*entries)


def restage_grants(
    log: JournalLog,
    mirror: MirrorName,
    client: ClusterClient,
    own_principals: Set[str],
    topics: Collection[str] | None = None,
) -> None:
    """Applications must be demoted already. A staged right that the source withdraws is forgotten.

    `topics`: only those by the names of these topics. None: all.
    """
    promoted = list_entries(log, mirror, client.name, AclPurpose.PROMOTED)
    if topics is not None:
        wanted_topics = frozenset(topics)
        promoted = tuple(entry for entry in promoted if is_on_topics(entry.acl, wanted_topics))
    restaged = [entry for entry in promoted if not find_flaw(entry, own_principals)]
    delete_unshared_entries(log, client, restaged, _to_staged)


def _to_staged(entry: LedgerEntry) -> StateRecord:
    return replace(entry, purpose=AclPurpose.STAGED)


def to_lifted_records(state: State, entries: Iterable[LedgerEntry]) -> Iterator[LiftedDenial]:
    """Kept, since a process that slept may create the denials again, and die before it learns better."""
    for entry in entries:
        if entry.purpose in LIFTABLE_PURPOSES and not find_flaw(entry):
            yield LiftedDenial(entry=entry, run=_find_run_id(state, entry.mirror))


def _find_run_id(state: State, mirror: MirrorName) -> str:
    run, pending_fence = state.active_run(mirror), state.pending_fences.get(mirror)
    return run.id if run else pending_fence.run if pending_fence else ""


def _list_outlived_records(state: State, client: ClusterClient, entries: Iterable[LedgerEntry]) -> list[Tombstone]:
    """Their fences are gone: memory does not grow with each run."""
    fence = {entry for entry in entries if entry.purpose is AclPurpose.FENCE}
    runs = {entry.mirror: _find_run_id(state, entry.mirror) for entry in fence}
    lifted_records = (
        record
        for record in state.lifted_entries.values()
        if record.entry.mirror in runs and record.entry.cluster == client.name
    )
    outdated = (
        record for record in lifted_records if record.entry.purpose is AclPurpose.FENCE and record.entry not in fence
    )
    older = [record for record in outdated if not record.run or record.run != runs[record.entry.mirror]]
    current_acls = describe_acls(client) if older else None
    current_entries = current_acls.entries if isinstance(current_acls, BrokerAcls) else frozenset()
    return [Tombstone(record) for record in older if record.entry.acl not in current_entries]


def delete_entries(
    log: JournalLog,
    client: ClusterClient,
    entries: Collection[LedgerEntry],
    to_record: Callable[[LedgerEntry], StateRecord | Tombstone] = Tombstone,
) -> None:
    """Forgotten when no broker shows them any more.

    A forged entry is only forgotten.
    """
    if entries:
        acls = [entry.acl for entry in entries if not find_flaw(entry)]
        delete_acls(client, acls)
        wait_until_acls_absent(client, acls)
        _log.info("%d entries taken away, shown by no broker any more", len(acls), cluster=client.name)
        try:
            log.put(
                *map(to_record, entries),
                *to_lifted_records(log.state, entries),
                *_list_outlived_records(log.state, client, entries),
            )
        except LostOwnership:
            _reconcile_acls(log, client, acls)
            raise
        # An earlier owner that woke up meanwhile may have created them again from the ledger. From now on it
        # finds nothing there.
        delete_acls(client, acls)


def delete_unshared_entries(
    log: JournalLog,
    client: ClusterClient,
    own_entries: Iterable[LedgerEntry],
    to_record: Callable[[LedgerEntry], StateRecord | Tombstone] = Tombstone,
) -> None:
    """Keeps entries that another mirror has recorded, even during the deletion."""
    entries = tuple(own_entries)
    if not entries:
        return
    wanted_by_others = list_wanted_acls(log.refresh(), client.name, entries)
    if shared := [e for e in entries if e.acl in wanted_by_others]:
        log.put(*map(to_record, shared), *to_lifted_records(log.state, shared))
    unshared = [e for e in entries if e.acl not in wanted_by_others]
    delete_entries(log, client, unshared, to_record)
    if unshared and (wanted_again := list_wanted_acls(log.refresh(), client.name, entries) & {e.acl for e in unshared}):
        create_acls(client, wanted_again)


def list_wanted_acls(state: State, cluster: ClusterName, without: Collection[LedgerEntry] = ()) -> set[Acl]:
    """Staged ones must not exist yet."""
    entries = (e for e in state.ledger.values() if e.cluster == cluster and e.purpose is not AclPurpose.STAGED)
    excluded = frozenset(without)
    return {e.acl for e in entries if e not in excluded}


def create_entries(log: JournalLog, client: ClusterClient, entries: Sequence[LedgerEntry]) -> None:
    acls = [entry.acl for entry in entries]
    create_acls(client, acls)
    try:
        log.put(*entries[:1])  # a write that only the mirror's owner can do
    except LostOwnership:
        _reconcile_acls(log, client, acls)
        raise


def record_and_create(
    log: JournalLog, mirror: MirrorName, client: ClusterClient, acls: Collection[Acl], purpose: AclPurpose
) -> None:
    record_entries(log, mirror, client.name, acls, purpose)
    create_entries(log, client, [e for e in list_entries(log, mirror, client.name, purpose) if e.acl in acls])


def _reconcile_acls(log: JournalLog, client: ClusterClient, acls: Collection[Acl]) -> None:
    before = None
    while (wanted := list_wanted_acls(log.refresh(), client.name) & set(acls)) != before:
        create_acls(client, wanted)
        delete_acls(client, set(acls) - wanted)
        before = wanted
