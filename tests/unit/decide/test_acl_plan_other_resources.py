"""Rights beside topics and groups: what a transactional application holds goes with it, and nothing that harms us."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.decide.acl_plan import AclPlan
from mirror_core.model.acl import Acl, AclPurpose, Operation, Pattern, Permission, Resource
from mirror_core.rights.acl_rules import EVERYBODY, OWN_NAME_PREFIX, OWN_TOPIC_PREFIX, build_denial
from tests.support.acl_views import ALL, READ, WRITE, acl, entry, plan, scope

TXN = acl(Operation.WRITE, "payments-", resource=Resource.TRANSACTIONAL_ID, pattern=Pattern.PREFIXED)
ONE_TXN = acl(Operation.WRITE, "payments-1", resource=Resource.TRANSACTIONAL_ID)
ANY_TXN = acl(Operation.WRITE, "*", resource=Resource.TRANSACTIONAL_ID)
IDEMPOTENT = acl(Operation.IDEMPOTENT_WRITE, "kafka-cluster", resource=Resource.CLUSTER)
NOT_OURS = build_denial(OWN_NAME_PREFIX, "User:app", resource=Resource.TRANSACTIONAL_ID, pattern=Pattern.PREFIXED)


def beside(made: AclPlan) -> set[Acl]:
    return set(made.create) - {READ, acl(Operation.DESCRIBE_CONFIGS)}


@pytest.mark.parametrize("writing", [WRITE, ALL, acl(Operation.WRITE, "orders", pattern=Pattern.PREFIXED)])
def test_who_may_write_a_mirror_topic_takes_transactions_and_idempotence_along_at_once(writing: Acl) -> None:
    made = plan({writing, TXN, ONE_TXN, IDEMPOTENT}, set())
    assert beside(made) == {ONE_TXN, IDEMPOTENT}
    assert (set(made.stage), made.left_out) == ({writing, TXN}, ()), "no producer needs a wider one before promotion"


@pytest.mark.parametrize("other", [acl(Operation.WRITE, "zzz"), acl(Operation.WRITE, principal="User:mirror-data")])
def test_who_writes_no_mirror_topic_takes_nothing_along(other: Acl) -> None:
    rights = {replace(TXN, principal=other.principal), replace(IDEMPOTENT, principal=other.principal)}
    made = plan({other, *rights}, set())
    assert (made.create, made.stage, made.left_out) == ((), (), ()), "not an application of this mirror"


def test_a_reader_that_is_transactional_elsewhere_is_named() -> None:
    made = plan({READ, TXN, IDEMPOTENT}, set())
    assert made.create == (READ,)
    assert {left for left, why in made.left_out if "may write no mirror topic" in why} == {TXN, IDEMPOTENT}


def test_denials_go_along_and_one_for_everybody_waits() -> None:
    deny, public = replace(TXN, permission=Permission.DENY), replace(ONE_TXN, principal=EVERYBODY)
    nobody = replace(TXN, permission=Permission.DENY, principal=EVERYBODY)
    made = plan({WRITE, deny, public, nobody}, set())
    assert set(made.create) == {deny, public}
    assert set(made.stage) == {WRITE, nobody}


def test_a_right_to_all_transactional_ids_does_not_reach_ours() -> None:
    for ours in (ANY_TXN, replace(TXN, name="mirror"), replace(ANY_TXN, operation=Operation.ALL)):
        made = plan({WRITE, ours}, set())
        assert (set(made.create), set(made.stage)) == ({NOT_OURS}, {WRITE, ours})
    assert set(plan({WRITE, replace(ANY_TXN, operation=Operation.DESCRIBE)}, set()).create).isdisjoint({NOT_OURS})
    own = replace(ANY_TXN, name="mirrorbook.control-m")
    made = plan({WRITE, own}, set())
    assert (made.create, [left for left, _ in made.left_out]) == ((), [own])
    home = plan({WRITE, ANY_TXN, NOT_OURS}, set())
    assert (set(home.create), home.left_out) == ({NOT_OURS}, ()), "what a failback left on the source"


def test_the_denial_of_our_ids_goes_with_the_grant_that_it_was_for() -> None:
    ledger = (entry(ANY_TXN, AclPurpose.STAGED), entry(NOT_OURS))
    there = {NOT_OURS}
    assert plan({WRITE, ANY_TXN}, there, ledger).remove == ()
    assert {e.acl for e in plan({WRITE}, there, ledger).remove} == there
    promoted = (entry(ANY_TXN, AclPurpose.PROMOTED), entry(NOT_OURS))
    assert plan({WRITE, ANY_TXN}, {ANY_TXN, NOT_OURS}, promoted).remove == ()


def test_everybodys_right_to_all_transactional_ids_is_given_by_name() -> None:
    public = replace(ANY_TXN, principal=EVERYBODY)
    made = plan({WRITE, public}, set())
    assert (set(made.create), set(made.stage)) == ({NOT_OURS}, {WRITE, ANY_TXN})
    staged = (entry(a, AclPurpose.STAGED) for a in made.stage)
    again = plan({WRITE, public}, set(made.create), (*(entry(a) for a in made.create), *staged))
    assert (again.create, again.remove, again.forget) == ((), (), ())
    made = plan({replace(WRITE, principal=EVERYBODY), public}, set())
    assert (made.create, [left for left, _ in made.left_out]) == ((), [public]), "nobody has a name to be given one"


@pytest.mark.parametrize("resource", [Resource.TRANSACTIONAL_ID, Resource.GROUP])
def test_a_denial_for_everybody_that_would_stop_us_stays(resource: Resource) -> None:
    nobody = build_denial("*", resource=resource, operation=Operation.ALL)
    made = plan({WRITE, nobody}, set())
    assert (made.create, made.stage) == ((), (WRITE,))
    assert [left for left, _ in made.left_out] == [nobody]


def test_no_administrator_is_made() -> None:
    admin, maker = replace(IDEMPOTENT, operation=Operation.ALL), replace(IDEMPOTENT, operation=Operation.CREATE)
    made = plan({WRITE, admin, maker}, set())
    assert made.create == (IDEMPOTENT,)
    assert [left for left, _ in made.left_out] == [admin, maker]


def test_delegation_goes_along_between_applications_of_the_mirror() -> None:
    user = acl(Operation.CREATE_TOKENS, "User:reader", resource=Resource.USER)
    kept = {
        acl(Operation.CREATE_TOKENS, "*", resource=Resource.USER),
        acl(Operation.CREATE_TOKENS, "User:admin", resource=Resource.USER),
        acl(Operation.CREATE_TOKENS, "User:mirror-control", resource=Resource.USER),
        acl(Operation.DESCRIBE, "*", resource=Resource.DELEGATION_TOKEN),
    }
    reader = replace(READ, principal="User:reader")
    made = plan({WRITE, reader, user, *kept}, set())
    assert set(made.create) == {reader, user}
    assert {left for left, _ in made.left_out} == kept


def test_what_copying_tasks_must_never_write_is_denied_them_for_as_long_as_there_is_a_mirror() -> None:
    guard = build_denial(OWN_TOPIC_PREFIX, "User:mirror-data", pattern=Pattern.PREFIXED)
    guarded = replace(scope(), required_denials=frozenset({guard}))
    made = plan(set(), set(), of=guarded)
    assert made.create == (guard,)
    assert plan(set(), {guard}, (entry(guard),), of=guarded).remove == ()
    by_hand = plan(set(), {guard}, of=guarded)
    assert (by_hand.create, by_hand.foreign) == ((), ()), "whoever made it"


def test_a_forged_entry_takes_nobodys_rights_away() -> None:
    rule = acl(Operation.ALTER, "kafka-cluster", "User:mirror-control", resource=Resource.CLUSTER)
    made = plan(set(), {rule}, (entry(rule, AclPurpose.COPIED),))
    assert (made.remove, [e.acl for e in made.forget]) == ((), [rule])
