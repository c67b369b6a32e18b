"""What promotion gives: what was staged, topic by topic where it would open more, and nothing that nobody staged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.acl_plan import (
    PromotionGrants,
    find_granted_acls,
    find_unheld_grants,
    plan_promotion_grants,
    warn_promotion_grants,
)
from mirror_core.model.acl import Acl, AclPurpose, Operation, Pattern, Permission, Resource
from mirror_core.model.findings import Finding
from mirror_core.rights.acl_rules import (
    EVERYBODY,
    build_demotions,
    build_denial,
    can_change_topic,
    covers,
    is_wildcard_grant,
)
from mirror_core.rights.ledger_rules import (
    AclFlaw,
    build_own_ids_denial,
    can_take_over_own_ids,
    find_flaw,
    split_forged_entries,
)
from tests.support.acl_views import ALL, READ, TOPICS, WRITE, acl, acls, entry, scope

OURS = "__mirrorbook_state"
OWN = scope().own_principals
PREFIX = acl(Operation.WRITE, "orders", pattern=Pattern.PREFIXED)
STAR = acl(Operation.WRITE, "*")


def promoted(*staged: Acl, there: tuple[str, ...] = (), purpose: AclPurpose = AclPurpose.STAGED) -> PromotionGrants:
    return plan_promotion_grants([entry(a, purpose) for a in staged], TOPICS, {*TOPICS, OURS, *there}, OWN)


def literals(of: Acl) -> tuple[Acl, ...]:
    return tuple(sorted(replace(of, name=t, pattern=Pattern.LITERAL) for t in TOPICS if covers(of, t)))


@pytest.mark.parametrize("purpose", [AclPurpose.STAGED, AclPurpose.PROMOTED])
def test_names_and_prefixes_of_the_mirror_alone_are_given_as_they_are(purpose: AclPurpose) -> None:
    given = promoted(WRITE, PREFIX, purpose=purpose)
    assert set(given.grants) == {WRITE, PREFIX}
    assert (given.narrowed, given.refused) == ({}, {})
    assert list(warn_promotion_grants(given, "west")) == [
        Finding("grants_by_prefix", "west", prefixes=["orders"], principals=[PREFIX.principal])
    ]


def test_a_denial_for_everybody_is_named_before_it_shuts_the_new_primary() -> None:
    fence = build_denial(TOPICS[0])
    given = promoted(WRITE, fence)
    assert fence in given.grants
    assert list(warn_promotion_grants(given, "west")) == [Finding("denial_of_changes", fence, cluster="west")]


def test_a_star_is_given_topic_by_topic() -> None:
    given = promoted(STAR)
    assert given.grants == literals(STAR)
    assert list(warn_promotion_grants(given, "west")) == [
        Finding("grant_narrowed", STAR, cluster="west", topics=[OURS], opens_heartbeats=False)
    ]


@pytest.mark.parametrize("there", ["orders-of-another-mirror", "orders"])
def test_a_prefix_that_covers_somebody_elses_topic_is_given_topic_by_topic(there: str) -> None:
    given = promoted(PREFIX, there=(there,))
    assert given.grants == literals(PREFIX)
    assert given.narrowed == {PREFIX: (there,)}


def test_a_prefix_of_underscores_never_reaches_internal_topics() -> None:
    low = replace(PREFIX, name="_")
    given = plan_promotion_grants([entry(low, AclPurpose.STAGED)], ["_own"], ["_own"], OWN)
    assert given.grants == (replace(low, name="_own", pattern=Pattern.LITERAL),)


@pytest.mark.parametrize("prefix", ["m", "mirrorbook.heartbeats.", "mirrorbook.heartbeats.drill.m"])
def test_a_prefix_never_reaches_heartbeats_of_the_future(prefix: str) -> None:
    ours, low = "mirrorbook.heartbeats.drill.m", replace(PREFIX, name=prefix)
    given = plan_promotion_grants([entry(low, AclPurpose.STAGED)], [ours], [ours], OWN)
    assert given.grants == (replace(low, name=ours, pattern=Pattern.LITERAL),)
    assert list(warn_promotion_grants(given, "west")) == [
        Finding("grant_narrowed", low, cluster="west", topics=[], opens_heartbeats=True)
    ]


def test_a_denial_for_everybody_is_no_wider_than_the_mirror_either() -> None:
    nobody = build_denial("*")
    assert promoted(nobody).grants == literals(nobody)


@pytest.mark.parametrize(
    ("resource", "operation"),
    [(Resource.GROUP, Operation.READ), (Resource.TRANSACTIONAL_ID, Operation.WRITE)],
)
def test_a_denial_for_everybody_of_groups_or_ids_is_named_since_it_reaches_other_applications(
    resource: Resource, operation: Operation
) -> None:
    nobody = build_denial("pay", resource=resource, operation=operation, pattern=Pattern.PREFIXED)
    assert promoted(nobody).grants == (nobody,)
    assert list(warn_promotion_grants(promoted(nobody), "west")) == [
        Finding("denial_for_everybody", nobody, cluster="west")
    ]


def test_what_concerns_no_promoted_topic_waits() -> None:
    assert promoted(acl(Operation.WRITE, "other")) == PromotionGrants(grants=(), narrowed={}, refused={})


def test_a_public_grant_is_named_since_nobody_can_fail_back_under_it() -> None:
    public = replace(WRITE, principal=EVERYBODY)
    assert list(warn_promotion_grants(promoted(public), "west")) == [Finding("grant_to_everybody", public)]


FORGED = [
    acl(Operation.ALTER, "kafka-cluster", resource=Resource.CLUSTER),
    acl(Operation.ALL, "kafka-cluster", resource=Resource.CLUSTER),
    acl(Operation.WRITE, OURS),
    acl(Operation.WRITE, principal="User:mirror-data"),
    acl(Operation.READ, "__consumer_offsets"),
    READ,
    acl(Operation.READ, "g", resource=Resource.GROUP),
    acl(Operation.WRITE, "pay-1", resource=Resource.TRANSACTIONAL_ID),
    acl(Operation.WRITE, "*", EVERYBODY, resource=Resource.TRANSACTIONAL_ID),
    acl(Operation.WRITE, "mirrorbook.", resource=Resource.TRANSACTIONAL_ID, pattern=Pattern.PREFIXED),
    acl(Operation.CREATE_TOKENS, "User:admin", resource=Resource.USER),
    acl(Operation.DESCRIBE, "*", resource=Resource.DELEGATION_TOKEN),
    build_denial("orders-1", "User:rival"),
    build_denial("*", resource=Resource.TRANSACTIONAL_ID),
    build_denial("*", resource=Resource.GROUP, operation=Operation.READ),
    build_denial("kafka-cluster", resource=Resource.CLUSTER, operation=Operation.ALTER),
]


@pytest.mark.parametrize("what", FORGED, ids=str)
@pytest.mark.parametrize("purpose", [AclPurpose.STAGED, AclPurpose.PROMOTED])
def test_what_no_sync_can_have_staged_is_refused_by_name_and_holds_nothing_up(what: Acl, purpose: AclPurpose) -> None:
    given = plan_promotion_grants([entry(what, purpose), entry(WRITE, AclPurpose.STAGED)], TOPICS, {*TOPICS, OURS}, OWN)
    assert list(given.refused) == [what]
    assert given.grants == (WRITE,)
    warning = next(iter(warn_promotion_grants(given, "west")))
    assert (warning.code, warning.subject) == ("grant_forged", str(what))


def test_a_right_to_read_by_star_or_prefix_is_given_as_one_to_write_is() -> None:
    star, prefix = acl(Operation.READ, "*"), replace(PREFIX, operation=Operation.READ)
    given = promoted(star, prefix)
    assert set(given.grants) == {prefix, *literals(star)}
    assert set(promoted(prefix, there=("orders-of-another-mirror",)).grants) == set(literals(prefix))


def test_rights_to_groups_and_transactional_ids_are_given_as_they_stand_and_named() -> None:
    group = acl(Operation.READ, "*", resource=Resource.GROUP)
    ids = acl(Operation.WRITE, "*", resource=Resource.TRANSACTIONAL_ID)
    given = promoted(group, ids)
    assert set(given.grants) == {group, ids, build_own_ids_denial(ids)}
    [warning] = warn_promotion_grants(given, "west")
    assert (warning.code, warning.subject) == ("grants_beyond_mirror", "west")
    assert set(warning.values["grants"]) == {str(group), str(ids)}  # type: ignore[arg-type]
    again = plan_promotion_grants([entry(a, AclPurpose.PROMOTED) for a in given.grants], TOPICS, TOPICS, OWN)
    assert (again.grants, again.refused) == (given.grants, {})


@given(staged=st.sets(acls), there=st.sets(st.sampled_from(["zzz", "orders", "orders-x", OURS])))
def test_no_promotion_opens_more_than_the_mirrors_topics(staged: set[Acl], there: set[str]) -> None:
    given = plan_promotion_grants([entry(a, AclPurpose.STAGED) for a in staged], TOPICS, {*TOPICS, *there}, OWN)
    for grant in given.grants:
        allowed = grant.permission is Permission.ALLOW
        assert not allowed or (
            (can_change_topic(grant) or any(map(is_wildcard_grant, staged))) and grant.principal not in OWN
        )
        assert not can_take_over_own_ids(grant) or build_own_ids_denial(grant) in given.grants
        if grant.resource is Resource.TOPIC:
            assert {t for t in {*TOPICS, *there} if covers(grant, t)} <= set(TOPICS)
    for acl_ in staged - given.refused.keys():
        of_topics = acl_.resource is Resource.TOPIC
        for topic in TOPICS if of_topics else ():
            assert not covers(acl_, topic) or any(
                covers(g, topic) and replace(g, name="", pattern=acl_.pattern) == replace(acl_, name="")
                for g in given.grants
            ), "narrower than the mirror"


FENCE = build_denial("orders-1")
COMMITS = build_denial("*", min(OWN), resource=Resource.GROUP, operation=Operation.READ)


def test_a_fence_denies_everybody_to_write_or_the_copier_to_write_or_to_commit() -> None:
    ids = replace(FENCE, resource=Resource.TRANSACTIONAL_ID)
    for ours in (FENCE, ids, replace(FENCE, principal=min(OWN)), COMMITS):
        assert not find_flaw(entry(ours, AclPurpose.FENCE), OWN), ours
    for other in (
        ALL,
        replace(FENCE, permission=Permission.ALLOW),
        replace(FENCE, operation=Operation.READ),
        replace(FENCE, principal="User:app"),
        replace(FENCE, name="*"),
        replace(FENCE, pattern=Pattern.PREFIXED),
        replace(FENCE, host="10.0.0.1"),
        replace(FENCE, resource=Resource.CLUSTER),
        replace(ids, principal=min(OWN)),
        replace(COMMITS, name="payments"),
        replace(COMMITS, principal=EVERYBODY),
        replace(COMMITS, principal="User:app"),
    ):
        assert find_flaw(entry(other, AclPurpose.FENCE), OWN), other


APPS = build_denial("orders-1", "User:app")


@pytest.mark.parametrize("purpose", [AclPurpose.DEMOTED, AclPurpose.WITHDRAWN])
def test_a_demotion_denies_one_application_one_change_of_one_topic(purpose: AclPurpose) -> None:
    assert not find_flaw(entry(APPS, purpose), OWN)
    for other in (
        replace(APPS, permission=Permission.ALLOW),
        replace(APPS, principal=EVERYBODY),
        replace(APPS, principal=min(OWN)),
        replace(APPS, name="*"),
        replace(APPS, pattern=Pattern.PREFIXED),
        replace(APPS, resource=Resource.GROUP),
        replace(APPS, resource=Resource.TRANSACTIONAL_ID),
        replace(APPS, operation=Operation.READ),
        replace(APPS, operation=Operation.ALL),
        replace(APPS, host="10.0.0.1"),
    ):
        assert find_flaw(entry(other, purpose), OWN), other


def test_of_what_a_ledger_calls_ours_only_what_can_be_is_believed() -> None:
    fence, demotion = entry(FENCE, AclPurpose.FENCE), entry(APPS, AclPurpose.DEMOTED)
    commits = entry(replace(COMMITS, principal="User:of another mirror"), AclPurpose.FENCE)
    rule = replace(APPS, operation=Operation.READ)
    planted = [entry(rule, purpose) for purpose in (AclPurpose.FENCE, AclPurpose.DEMOTED)]
    found, doubted = split_forged_entries([fence, demotion, commits, *planted])
    assert found == {FENCE, APPS, commits.acl}
    assert set(doubted) == {rule}
    assert isinstance(doubted[rule], AclFlaw)


def test_each_flaw_has_a_phrase() -> None:
    assert all(str(Finding("denial_forged", WRITE, flaw=flaw)).count(".") == 1 for flaw in AclFlaw)


@given(granted=acls)
def test_no_demotion_of_ours_is_taken_for_a_forgery(granted: Acl) -> None:
    for deny in build_demotions({granted}, TOPICS, OWN):
        assert not find_flaw(entry(deny, AclPurpose.DEMOTED), OWN)


def test_only_rights_that_were_given_and_are_there_still_go_home() -> None:
    ledger = [entry(WRITE, AclPurpose.PROMOTED), entry(READ, AclPurpose.STAGED), entry(PREFIX, AclPurpose.PROMOTED)]
    denied = build_denial(TOPICS[0])
    assert find_granted_acls([*ledger, entry(denied, AclPurpose.PROMOTED)], [WRITE, READ, denied]) == (WRITE,)


@pytest.mark.parametrize(
    ("held", "missed"),
    [
        ([WRITE], False),
        ([replace(WRITE, name=WRITE.name[:2], pattern=Pattern.PREFIXED)], False),
        ([replace(WRITE, name="*")], False),
        ([replace(WRITE, operation=Operation.ALL)], False),
        ([replace(WRITE, principal=EVERYBODY)], False),
        ([replace(WRITE, permission=Permission.DENY)], True),
        ([replace(WRITE, principal="User:other")], True),
        ([replace(WRITE, host="10.0.0.1")], True),
        ([replace(WRITE, resource=Resource.GROUP)], True),
        ([READ], True),
        ([], True),
    ],
)
def test_a_right_is_held_at_home_by_itself_or_by_a_wider_one(held: list[Acl], missed: bool) -> None:
    assert find_unheld_grants([WRITE], held) == ((WRITE,) if missed else ())


def test_a_prefix_is_held_at_home_by_no_name() -> None:
    shorter = replace(PREFIX, name="o")
    assert find_unheld_grants([PREFIX], [replace(PREFIX, pattern=Pattern.LITERAL)]) == (PREFIX,)
    assert find_unheld_grants([PREFIX], [shorter]) == ()
    assert find_unheld_grants([shorter], [PREFIX]) == (shorter,)


@given(held=st.sets(acls))
def test_nothing_that_promotion_makes_of_what_is_held_is_missed(held: set[Acl]) -> None:
    given = promoted(*held).grants
    assert find_unheld_grants([a for a in given if a.permission is Permission.ALLOW], held) == ()
