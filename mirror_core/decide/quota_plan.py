"""Client quotas: staged while mirrored, since they limit every user of the cluster; set at promotion.

Those without a user, or of all users, cross as they stand, and plans say so.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Final

from mirror_core.model.acl import Acl, Permission, Resource
from mirror_core.model.names import MirrorName
from mirror_core.model.sync_state import ClientQuota, QuotaEntry, QuotaPurpose
from mirror_core.rights.acl_rules import EVERYBODY, SortedNames

Quotas = Mapping[ClientQuota, float]
_KNOWN_KEYS: Final = frozenset(
    {"producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"}
)
_USER_PREFIX: Final = "User:"


class _EveryUser:
    def __contains__(self, user: object) -> bool:
        return True


EVERY_USER: Final[Container[str]] = _EveryUser()


def find_application_users(
    acls: Iterable[Acl], topics: Collection[str], groups: Collection[str], carried_principals: Container[str]
) -> Container[str]:
    """By a right to one of these topics or groups. Rights of everybody make all users applications."""
    names = {Resource.TOPIC: SortedNames(topics), Resource.GROUP: SortedNames(groups)}
    holders = {
        acl.principal
        for acl in acls
        if acl.permission is Permission.ALLOW and acl.resource in names and names[acl.resource].has_covered(acl)
    }
    if EVERYBODY in holders:
        return EVERY_USER
    return {h.removeprefix(_USER_PREFIX) for h in holders if h in carried_principals}


def select_carried_quotas(source: Quotas, users: Container[str], own_users: Set[str]) -> dict[ClientQuota, float]:
    return {
        quota: value
        for quota, value in sorted(source.items(), key=lambda item: str(item[0]))
        if is_settable(quota, value, own_users) and (not quota.has_named_user or quota.user in users)
    }


def is_settable(quota: ClientQuota, value: float, own_users: Set[str]) -> bool:
    """False for what no sync stages: an entry like that was written by somebody else."""
    has_entity = quota.user is not None or quota.client_id is not None
    return has_entity and quota.key in _KNOWN_KEYS and quota.user not in own_users and 0 < value < math.inf


@dataclass(frozen=True, slots=True)
class QuotaPlan:
    record: tuple[QuotaEntry, ...]
    forget: tuple[QuotaEntry, ...]
    """Staged entries that the source has no more."""


def plan_quotas(mirror: MirrorName, carried: Quotas, ledger: Iterable[QuotaEntry]) -> QuotaPlan:
    entries = {entry.quota: entry for entry in ledger}
    wanted = [
        QuotaEntry(mirror=mirror, quota=quota, value=value, purpose=QuotaPurpose.STAGED)
        for quota, value in carried.items()
    ]
    promoted = {quota for quota, entry in entries.items() if entry.purpose is QuotaPurpose.PROMOTED}
    return QuotaPlan(
        record=tuple(entry for entry in wanted if entry.quota not in promoted and entries.get(entry.quota) != entry),
        forget=tuple(entries[quota] for quota in entries.keys() - carried.keys() - promoted),
    )


@dataclass(frozen=True, slots=True)
class QuotaPromotion:
    set: tuple[QuotaEntry, ...]
    standing: tuple[QuotaEntry, ...]
    """Set already, to this value. Recorded as ours only if a mirror has set them."""
    kept: Mapping[ClientQuota, float]
    """Other values there, set by others."""
    refused: tuple[QuotaEntry, ...]
    """No sync can have staged them."""


def plan_promotion_quotas(
    ledger: Iterable[QuotaEntry], current: Quotas, other_ledgers: Iterable[QuotaEntry], own_users: Set[str]
) -> QuotaPromotion:
    entries = sorted(ledger, key=lambda entry: str(entry.quota))
    refused = [entry for entry in entries if not is_settable(entry.quota, entry.value, own_users)]
    settable = [entry for entry in entries if is_settable(entry.quota, entry.value, own_users)]
    of_mirrors = {e.quota for e in other_ledgers if e.purpose is QuotaPurpose.PROMOTED}
    return QuotaPromotion(
        set=tuple(replace(e, purpose=QuotaPurpose.PROMOTED) for e in settable if e.quota not in current),
        standing=tuple(
            replace(e, purpose=QuotaPurpose.PROMOTED) if e.quota in of_mirrors else e
            for e in settable
            if current.get(e.quota) == e.value
        ),
        kept={e.quota: current[e.quota] for e in settable if current.get(e.quota, e.value) != e.value},
        refused=tuple(refused),
    )


def select_removed_quotas(
    ledger: Iterable[QuotaEntry], current: Quotas, other_ledgers: Iterable[QuotaEntry]
) -> tuple[ClientQuota, ...]:
    """Promoted ones that still have their value, and that no other mirror's applications need."""
    of_mirrors = {e.quota for e in other_ledgers if e.purpose is QuotaPurpose.PROMOTED}
    return tuple(
        entry.quota
        for entry in ledger
        if entry.purpose is QuotaPurpose.PROMOTED
        and current.get(entry.quota) == entry.value
        and entry.quota not in of_mirrors
    )


@dataclass(frozen=True, slots=True)
class QuotaComparison:
    missing: tuple[str, ...] = ()
    """The source's that the destination will lack behind a promotion, or has with other values."""
    wide: tuple[str, ...] = ()
    """Promotion sets them, and they limit clients which have nothing to do with the mirror, too."""


NO_QUOTAS: Final = QuotaComparison()


def compare_quotas(source: Quotas, destination: Quotas, ledger: Collection[QuotaEntry] = ()) -> QuotaComparison:
    to_be_set = {entry.quota: entry.value for entry in ledger if entry.quota not in destination}
    missing = [
        _format_quota(quota, value) + (f" (there {destination[quota]:.17g})" if quota in destination else "")
        for quota, value in source.items()
        if quota not in to_be_set and destination.get(quota) != value
    ]
    wide = [_format_quota(quota, value) for quota, value in to_be_set.items() if not quota.has_named_user]
    return QuotaComparison(tuple(sorted(missing)), tuple(sorted(wide)))


def _format_quota(quota: ClientQuota, value: float) -> str:
    return f"{quota}={value:.17g}"
