"""Denials at promotion: removed, kept, and new ones against old copying tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass, replace

from mirror_core.decide.acl_plan import STAGED_PURPOSES
from mirror_core.decide.filters import build_acl_filter
from mirror_core.kafka.acl_requests import (
    AuthorizerOff,
    delete_acls,
    describe_acls,
    wait_until_acls_absent,
    wait_until_acls_present,
)
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ANONYMOUS, Principal
from mirror_core.model.acl import LIFTABLE_PURPOSES, Acl, AclPurpose, LedgerEntry, Resource
from mirror_core.model.errors import MirrorError
from mirror_core.model.findings import Finding
from mirror_core.model.names import get_both_directions
from mirror_core.model.sync_state import DriftRow, SyncCategory
from mirror_core.model.timing import TIMEOUTS
from mirror_core.rights.acl_rules import EVERYBODY, build_denial, format_acl_command
from mirror_core.rights.ledger_rules import find_flaw, find_locked_out_denials, update_demotions
from mirror_core.state.journal import JournalLog
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State, Tombstone
from mirror_core.state.state_topic import read_state
from mirror_core.sync.acl_ledger import (
    delete_unshared_entries,
    list_demotions,
    list_entries,
    list_wanted_acls,
    record_and_create,
    to_lifted_records,
)
from mirror_core.sync.acl_rows import to_skipped_cluster_row
from mirror_core.sync.principals import explain_data_uncertainty, list_own_principals


@dataclass(frozen=True, slots=True)
class FencedTasks:
    denials: frozenset[Acl] = frozenset()
    """Shown by every broker."""
    uncertainty: Finding | None = None
    """Why they may have no effect."""

    @property
    def is_certain(self) -> bool:
        return bool(self.denials) and not self.uncertainty


def fence_old_tasks(link: MirrorLink, log: JournalLog, client: ClusterClient, topics: Collection[str]) -> FencedTasks:
    """Tasks that no driver can reach; seen on every broker.

    Does nothing where the data principal is unknown, anonymous or also the control principal.
    """
    data_user, destination_acls = link.destination.user(Principal.DATA), describe_acls(client)
    is_shared = data_user in (None, ANONYMOUS, link.destination.user(Principal.CONTROL))
    if is_shared or isinstance(destination_acls, AuthorizerOff):
        return FencedTasks()
    wanted = frozenset(build_denial(topic, f"User:{data_user}") for topic in topics)
    # An equal entry made by others stays when ours are removed.
    own_denials = wanted - (
        destination_acls.entries - {e.acl for e in list_entries(log, link.mirror.name, client.name, AclPurpose.FENCE)}
    )
    record_and_create(log, link.mirror.name, client, own_denials, AclPurpose.FENCE)
    wait_until_acls_present(client, wanted)
    return FencedTasks(own_denials, explain_data_uncertainty(link.destination, destination_acls.entries, log.state))


def lift_demotions(
    link: MirrorLink, log: JournalLog, client: ClusterClient, topics: Collection[str], *, ask_source: bool
) -> tuple[frozenset[Acl], list[DriftRow]]:
    """Returns denials, and rows for what could not be read."""
    demoted = list_demotions(log.state, link.mirror.name, client.name, topics)
    source_demotions, rows = _read_source_demotions(link, topics) if ask_source else (set[Acl](), list[DriftRow]())
    source_demotions -= list_wanted_acls(log.state, client.name, demoted)
    delete_acls(client, source_demotions)
    wait_until_acls_absent(client, source_demotions)
    delete_unshared_entries(log, client, demoted)
    return frozenset(source_demotions | {e.acl for e in demoted}) - list_wanted_acls(log.state, client.name), rows


def sync_lifted_records(link: MirrorLink, log: JournalLog, reverse_state: State) -> None:
    """Takes over what the reverse mirror's promotion has lifted.

    An ACL that equals a forgotten one is an administrator's, or of a withdrawn right, and is copied.
    """
    mirror_names, source = get_both_directions(link.mirror.name), link.source.name
    reverse_entries = (e for e in reverse_state.ledger.values() if e.mirror in mirror_names and e.cluster == source)
    standing_acls = {e.acl for e in reverse_entries if e.purpose is AclPurpose.DEMOTED}
    lifted_entries = [
        e for e in list_entries(log, link.mirror.name, source, AclPurpose.DEMOTED) if e.acl not in standing_acls
    ]
    wanted = list_wanted_acls(reverse_state, source)
    records = {
        record.entry: record
        for record in to_lifted_records(log.state, (entry for entry in lifted_entries if entry.acl not in wanted))
    }
    for record in reverse_state.lifted_entries.values():
        if (
            record.entry.mirror in mirror_names
            and _blocks_this_mirror(link, record.entry)
            and not find_flaw(record.entry)
        ):
            entry = replace(record.entry, mirror=link.mirror.name)
            records[entry] = replace(record, entry=entry)
    recorded = set(log.state.lifted_entries.values())
    new_records = [record for record in records.values() if record not in recorded]
    if lifted_entries or new_records:
        log.put(*(Tombstone(entry) for entry in lifted_entries), *new_records)


def _blocks_this_mirror(link: MirrorLink, entry: LedgerEntry) -> bool:
    """Not transactional ids: each run may have others."""
    if entry.purpose is AclPurpose.DEMOTED:
        return entry.cluster == link.mirror.source
    is_topic_fence = entry.acl.resource is Resource.TOPIC and entry.acl.principal == EVERYBODY
    return is_topic_fence and entry.cluster == link.mirror.destination


def record_withdrawn_rights(link: MirrorLink, forward: State, log: JournalLog, source: ClusterClient) -> None:
    """Rights that the source lost since promotion granted them.

    For a mirror that begins where applications are: no sync has seen it. `forward`: the other direction's state.
    """
    source_acls = describe_acls(source)
    if isinstance(source_acls, AuthorizerOff):
        return
    forward_entries = [e for e in forward.ledger.values() if e.cluster == source.name]
    mirror_names = get_both_directions(link.mirror.name)
    topics = {p.topic for name in mirror_names for p in forward.partitions.get(name, {})}
    promoted = build_acl_filter(link.mirror, topics, ())  # what it excludes was never granted there
    granted = {
        e.acl
        for e in forward_entries
        if e.mirror in mirror_names and e.purpose in STAGED_PURPOSES and e.acl in promoted
    }
    source_own = source_acls.entries - {e.acl for e in forward_entries if e.purpose in LIFTABLE_PURPOSES}
    own_entries = (e for e in log.state.ledger_entries(link.mirror.name) if e.cluster == link.destination.name)
    if changes := list(update_demotions(own_entries, source_own, granted - source_own)):
        log.put(*changes)


def forget_revoked_rights(link: MirrorLink, log: JournalLog, destination: ClusterClient) -> None:
    """For a recreated mirror: promotion must not grant rights removed since, even before a sync."""
    destination_acls = describe_acls(destination)
    if isinstance(destination_acls, AuthorizerOff):
        return
    staged = (
        e
        for e in log.state.ledger_entries(link.mirror.name)
        if e.cluster == destination.name and e.purpose in STAGED_PURPOSES
    )
    if forgotten := [
        Tombstone(e) for e in staged if e.purpose is AclPurpose.STAGED or e.acl not in destination_acls.entries
    ]:
        log.put(*forgotten)


def list_remaining_denials(
    link: MirrorLink, state: State, acls: Set[Acl], granted: Collection[Acl], topics: Collection[str]
) -> Iterator[tuple[Acl, Finding]]:
    client, mirror_names = link.destination, get_both_directions(link.mirror.name)
    entries = [e for e in state.ledger.values() if e.cluster == client.name and e.acl in acls]
    withdrawn = {e.acl for e in entries if e.mirror in mirror_names and e.purpose is AclPurpose.WITHDRAWN}
    other_mirrors = {e.acl: e.mirror for e in entries if e.mirror not in mirror_names}
    wanted = {e.acl for e in entries if e.mirror in mirror_names} - withdrawn - other_mirrors.keys()
    expected = wanted | set(granted)
    for acl in sorted(withdrawn | set(find_locked_out_denials(acls - expected, granted, topics))):
        if acl.principal in list_own_principals(link):
            continue
        remove_command = format_acl_command(acl, bootstrap=client.control["bootstrap.servers"], remove=True)
        yield (
            acl,
            Finding(
                "denial_remains",
                acl,
                withdrawn_by=link.source.name if acl in withdrawn else "",
                sibling=other_mirrors.get(acl, ""),
                remove_command=remove_command,
            ),
        )


def _read_source_demotions(link: MirrorLink, topics: Collection[str]) -> tuple[set[Acl], list[DriftRow]]:
    try:
        state = read_state(link.source, timeout_s=TIMEOUTS.silent_source_s)
    except MirrorError as error:
        # Promotion must not need a living source. What is in our own ledger has been lifted already.
        reason = f"denials remembered on cluster {link.source.name} could not be looked up: {error}"
        return set(), [to_skipped_cluster_row(SyncCategory.ACLS, link.source.name, reason)]
    # A forged entry would remove whatever its author likes.
    demotions = list_demotions(state, link.mirror.name, link.destination.name, topics)
    return {e.acl for e in demotions if not find_flaw(e, list_own_principals(link))}, []
