"""Client quotas that a mirror stages, sets and takes away again: those of its ledger, and no others."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mirror_core.decide.filters import EVERY_NAME
from mirror_core.decide.quota_plan import (
    EVERY_USER,
    NO_QUOTAS,
    compare_quotas,
    find_application_users,
    is_settable,
    plan_promotion_quotas,
    plan_quotas,
    select_carried_quotas,
    select_removed_quotas,
)
from mirror_core.model.acl import Acl, Operation, Pattern, Permission, Resource
from mirror_core.model.names import MirrorName
from mirror_core.model.sync_state import ClientQuota, QuotaEntry, QuotaPurpose

M = MirrorName("m")
USER = ClientQuota(user="app", key="producer_byte_rate")
BOTH = ClientQuota(user="app", client_id="", key="consumer_byte_rate")
CLIENT = ClientQuota(client_id="batch", key="request_percentage")
DEFAULT = ClientQuota(user="", key="producer_byte_rate")
OTHER = ClientQuota(user="stranger", key="producer_byte_rate")
OWN = ClientQuota(user="mirror-data", key="producer_byte_rate")
OWN_USERS = frozenset({"mirror-data", "mirror-control"})


def entry(quota: ClientQuota, value: float = 1e6, purpose: QuotaPurpose = QuotaPurpose.STAGED) -> QuotaEntry:
    return QuotaEntry(mirror=M, quota=quota, value=value, purpose=purpose)


def right(name: str, principal: str, **more: object) -> Acl:
    read = Acl(resource=Resource.TOPIC, name=name, principal=principal, operation=Operation.READ)
    return replace(read, **more)  # type: ignore[arg-type]


def test_a_quota_is_named_as_kafka_configs_shows_it() -> None:
    assert [str(quota) for quota in (USER, BOTH, CLIENT, DEFAULT)] == [
        "user app: producer_byte_rate",
        "user app, client-id <default>: consumer_byte_rate",
        "client-id batch: request_percentage",
        "user <default>: producer_byte_rate",
    ]
    assert len({entry(quota).digest for quota in (USER, BOTH, CLIENT, DEFAULT)}) == 4


def test_users_of_the_mirror_are_those_with_a_right_to_what_it_carries() -> None:
    rights = [
        right("orders", "User:app"),
        right("ord", "User:prefixed", pattern=Pattern.PREFIXED),
        right("other", "User:stranger"),
        right("orders", "User:kept-out", permission=Permission.DENY),
        right("billing", "User:reader", resource=Resource.GROUP),
    ]
    assert find_application_users(rights, {"orders"}, {"billing"}, EVERY_NAME) == {"app", "prefixed", "reader"}
    assert find_application_users(rights, {"orders"}, (), {"User:app"}) == {"app"}, "by the mirror's principals"
    everybody = [*rights, right("orders", "User:*")]
    assert "anybody" in find_application_users(everybody, {"orders"}, (), EVERY_NAME)


def test_quotas_of_applications_and_those_without_a_user_are_carried_and_our_own_never() -> None:
    source = dict.fromkeys((USER, BOTH, CLIENT, DEFAULT, OTHER, OWN), 1e6)
    assert select_carried_quotas(source, {"app"}, OWN_USERS).keys() == {USER, BOTH, CLIENT, DEFAULT}
    assert select_carried_quotas(source, EVERY_USER, OWN_USERS).keys() == {USER, BOTH, CLIENT, DEFAULT, OTHER}


@pytest.mark.parametrize(
    ("quota", "value"),
    [
        (OWN, 1.0),
        (replace(USER, key="connection_creation_rate"), 1.0),
        (ClientQuota(key="producer_byte_rate"), 1.0),
        (USER, 0.0),
        (USER, math.inf),
        (USER, math.nan),
    ],
)
def test_what_no_sync_stages_is_not_set(quota: ClientQuota, value: float) -> None:
    assert not is_settable(quota, value, OWN_USERS)
    planned = plan_promotion_quotas([entry(quota, value)], {}, (), OWN_USERS)
    assert (planned.set, len(planned.refused)) == ((), 1)


def test_a_sync_records_what_is_new_or_changed_and_forgets_what_is_gone() -> None:
    ledger = [entry(USER), entry(CLIENT), entry(BOTH)]
    plan = plan_quotas(M, {USER: 1e6, BOTH: 5.0, DEFAULT: 7.0}, ledger)
    assert set(plan.record) == {entry(BOTH, 5.0), entry(DEFAULT, 7.0)}
    assert plan.forget == (entry(CLIENT),)


def test_a_sync_leaves_what_is_promoted() -> None:
    promoted = entry(USER, 1e6, QuotaPurpose.PROMOTED)
    assert plan_quotas(M, {USER: 2e6}, [promoted]) == plan_quotas(M, {}, [promoted])
    assert plan_quotas(M, {}, [promoted]).forget == ()


def test_promotion_sets_what_is_missing_and_changes_nothing_of_others() -> None:
    ledger = [entry(USER), entry(BOTH), entry(CLIENT), entry(DEFAULT)]
    others = [replace(entry(CLIENT, purpose=QuotaPurpose.PROMOTED), mirror=MirrorName("n"))]
    planned = plan_promotion_quotas(ledger, {BOTH: 5.0, CLIENT: 1e6, DEFAULT: 1e6}, others, OWN_USERS)
    assert planned.set == (entry(USER, purpose=QuotaPurpose.PROMOTED),)
    assert planned.kept == {BOTH: 5.0}
    assert set(planned.standing) == {entry(CLIENT, purpose=QuotaPurpose.PROMOTED), entry(DEFAULT)}
    assert planned.refused == ()


def test_a_repeated_promotion_sets_what_a_killed_one_has_recorded() -> None:
    recorded = entry(USER, purpose=QuotaPurpose.PROMOTED)
    assert plan_promotion_quotas([recorded], {}, (), OWN_USERS).set == (recorded,)
    assert plan_promotion_quotas([recorded], {USER: 1e6}, (), OWN_USERS).set == ()


def test_only_what_promotion_has_set_and_nobody_has_changed_or_needs_is_taken_away() -> None:
    ledger = [entry(q, purpose=QuotaPurpose.PROMOTED) for q in (USER, BOTH, CLIENT)] + [entry(DEFAULT)]
    current = {USER: 1e6, BOTH: 5.0, CLIENT: 1e6, DEFAULT: 1e6}
    others = [replace(entry(CLIENT, purpose=QuotaPurpose.PROMOTED), mirror=MirrorName("n"))]
    assert select_removed_quotas(ledger, current, others) == (USER,)
    assert set(select_removed_quotas(ledger, current, ())) == {USER, CLIENT}


def test_quotas_that_stay_missing_or_differ_are_named_with_both_values() -> None:
    source = {USER: 1e6, BOTH: 50.0, CLIENT: 2.5}
    assert compare_quotas(source, source) == NO_QUOTAS
    assert compare_quotas({}, source) == NO_QUOTAS, "what only the destination has is its own"
    differing = "user app, client-id <default>: consumer_byte_rate=50 (there 20)"
    assert compare_quotas(source, {USER: 1e6, BOTH: 20.0}).missing == (
        "client-id batch: request_percentage=2.5",
        differing,
    )
    staged = [entry(CLIENT, 2.5), entry(BOTH, 50.0)]
    assert compare_quotas(source, {USER: 1e6, BOTH: 20.0}, staged).missing == (differing,), "nothing there is changed"


def test_quotas_that_limit_others_too_are_named_if_promotion_sets_them() -> None:
    ledger = [entry(USER), entry(CLIENT, 2.5), entry(DEFAULT)]
    assert compare_quotas({}, {DEFAULT: 1.0}, ledger).wide == ("client-id batch: request_percentage=2.5",)
