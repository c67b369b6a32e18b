"""Client quotas: staged by a sync, set at promotion, staged again after the way home."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Final

import msgspec

from mirror_core.decide.filters import build_principal_filter
from mirror_core.decide.quota_plan import (
    EVERY_USER,
    Quotas,
    find_application_users,
    plan_promotion_quotas,
    plan_quotas,
    select_carried_quotas,
    select_removed_quotas,
)
from mirror_core.kafka.acl_requests import AuthorizerOff, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.cluster_info import alter_client_quotas, fetch_client_quotas
from mirror_core.kafka.config import Principal
from mirror_core.model.errors import LostOwnership, RemoteFault
from mirror_core.model.logs import get_logger
from mirror_core.model.names import DRILL_PREFIX, MirrorName
from mirror_core.model.sync_state import ClientQuota, DriftRow, QuotaEntry, QuotaPurpose, SyncAction, SyncCategory
from mirror_core.state.journal import JournalLog
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State, Tombstone
from mirror_core.sync.acl_rows import to_skipped_cluster_row

_log = get_logger(__name__)
_WIDE: Final = "; it limits clients that have nothing to do with the mirror, too"


def sync_quotas(
    link: MirrorLink,
    state: State,
    log: JournalLog | None,
    source: ClusterClient,
    destination: ClusterClient,
    topics: Collection[str],
    groups: Collection[str],
) -> list[DriftRow]:
    """Changes the ledger only; without a journal nothing."""
    source_quotas, current = fetch_client_quotas(source), fetch_client_quotas(destination)
    unknown = [c for c, quotas in ((source, source_quotas), (destination, current)) if quotas is None]
    if source_quotas is None or current is None:
        return [_to_unknown_row(client) for client in unknown]
    acls = describe_acls(source)
    users = (
        EVERY_USER
        if isinstance(acls, AuthorizerOff)
        else find_application_users(acls.entries, topics, groups, build_principal_filter(link.mirror))
    )
    carried = select_carried_quotas(source_quotas, users, _list_own_users(link))
    plan = plan_quotas(link.mirror.name, carried, _list_entries(state, link.mirror.name))
    if log is not None and (plan.record or plan.forget):
        log.put(*plan.record, *map(Tombstone, plan.forget))
    new = {entry.quota for entry in plan.record}
    rows = [
        _to_row(quota, value, current.get(quota), done=log is not None or quota not in new)
        for quota, value in carried.items()
    ]
    gone = "gone from the source, or its user from the mirror; only forgotten here"
    return rows + [make_quota_row(entry.quota, SyncAction.REMOVE, gone, done=log is not None) for entry in plan.forget]


def _to_row(quota: ClientQuota, value: float, current: float | None, *, done: bool) -> DriftRow:
    if current == value:
        return make_quota_row(quota, SyncAction.EQUAL, source=value, destination=current)
    if current is not None:
        reason = "set there by somebody else: never changed by a mirror"
        return make_quota_row(quota, SyncAction.KEEP, reason, source=value, destination=current)
    reason = "set at promotion" + ("" if quota.has_named_user else _WIDE)
    return make_quota_row(quota, SyncAction.STAGE, reason, source=value, done=done)


def make_quota_row(
    quota: ClientQuota,
    action: SyncAction,
    reason: str = "",
    *,
    source: float | None = None,
    destination: float | None = None,
    done: bool = False,
) -> DriftRow:
    return DriftRow(
        part=SyncCategory.QUOTAS,
        subject=str(quota),
        source="" if source is None else f"{source:.17g}",
        destination="" if destination is None else f"{destination:.17g}",
        action=action,
        reason=reason,
        done=done,
    )


def _to_unknown_row(client: ClusterClient) -> DriftRow:
    return to_skipped_cluster_row(
        SyncCategory.QUOTAS,
        client.name,
        "its client quotas are not known: it needs DESCRIBE_CONFIGS on the cluster, Kafka 2.6",
    )


def promote_quotas(link: MirrorLink, log: JournalLog) -> list[DriftRow]:
    """Sets what is staged, and is not there. Recorded first; may be repeated.

    Applications may write already, so nothing stops it: what could not be set is a row.
    """
    entries = _list_entries(log.state, link.mirror.name)
    if not entries or link.mirror.name.startswith(DRILL_PREFIX):
        return []
    with ClusterClient(link.destination) as client:
        try:
            current = fetch_client_quotas(client)
            if current is None:
                return [_to_unknown_row(client)]
            return list(_promote(link, log, client, entries, current))
        except RemoteFault as error:
            _log.warning("client quotas were not set: %s", error, mirror=link.mirror.name)
            return [to_skipped_cluster_row(SyncCategory.QUOTAS, client.name, f"client quotas were not set: {error}")]


def _promote(
    link: MirrorLink, log: JournalLog, client: ClusterClient, entries: Collection[QuotaEntry], current: Quotas
) -> Iterator[DriftRow]:
    others = _list_other_entries(log.state, link.mirror.name)
    planned = plan_promotion_quotas(entries, current, others, _list_own_users(link))
    shared = [entry for entry in planned.standing if entry.purpose is QuotaPurpose.PROMOTED]
    if planned.set or shared:
        log.put(*planned.set, *shared)
    alter_client_quotas(client, {entry.quota: entry.value for entry in planned.set})
    _put_or_reconcile(log, client, planned.set, planned.set[:1])  # a write that only the mirror's owner can do
    for entry in planned.set:
        yield make_quota_row(entry.quota, SyncAction.SET, "staged until promotion", source=entry.value, done=True)
    for quota, value in planned.kept.items():
        yield make_quota_row(quota, SyncAction.KEEP, "set there by somebody else", destination=value)
    for entry in planned.refused:
        row = make_quota_row(entry.quota, SyncAction.REFUSE, "no sync can have staged it: somebody else wrote it")
        yield msgspec.structs.replace(row, code="quota_forged")


def restage_quotas(log: JournalLog, mirror: MirrorName, client: ClusterClient) -> None:
    """When applications have gone home: removes what promotion has set, unless somebody has changed it since."""
    promoted = [e for e in _list_entries(log.state, mirror) if e.purpose is QuotaPurpose.PROMOTED]
    if not promoted:
        return
    current = fetch_client_quotas(client) or {}
    removed = select_removed_quotas(promoted, current, _list_other_entries(log.refresh(), mirror))
    alter_client_quotas(client, dict.fromkeys(removed))
    restaged = [replace(entry, purpose=QuotaPurpose.STAGED) for entry in promoted]
    _put_or_reconcile(log, client, [entry for entry in promoted if entry.quota in removed], restaged)


def _put_or_reconcile(
    log: JournalLog, client: ClusterClient, changed: Collection[QuotaEntry], records: Collection[QuotaEntry]
) -> None:
    """If the mirror was lost meanwhile, the cluster gets what the owner's ledger says."""
    if not records:
        return
    try:
        log.put(*records)
    except LostOwnership:
        entries = chain.from_iterable(entries.values() for entries in log.refresh().quotas.values())
        promoted = {e.quota: e.value for e in entries if e.purpose is QuotaPurpose.PROMOTED}
        alter_client_quotas(client, {entry.quota: promoted.get(entry.quota) for entry in changed})
        raise


def _list_entries(state: State, mirror: MirrorName) -> tuple[QuotaEntry, ...]:
    return tuple(state.quotas.get(mirror, {}).values())


def _list_other_entries(state: State, mirror: MirrorName) -> Iterable[QuotaEntry]:
    return chain.from_iterable(entries.values() for name, entries in state.quotas.items() if name != mirror)


def _list_own_users(link: MirrorLink) -> frozenset[str]:
    users = {cluster.user(principal) for cluster in (link.source, link.destination) for principal in Principal}
    return frozenset(user for user in users if user)
