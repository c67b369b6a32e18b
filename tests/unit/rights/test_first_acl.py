"""Whether a first ACL shuts others out, by what brokers said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.model.acl import Acl, Operation, Pattern, Resource
from mirror_core.rights.acl_rules import build_denial
from mirror_core.rights.first_acl import (
    ALLOW_EVERYONE_SETTING,
    SUPER_USER_CHECK_GROUP,
    UNKNOWN_USER,
    UNUSED_NAME,
    AllowEveryoneValue,
    AuthorizerReply,
    DescribeTrial,
    FirstAclEffect,
    UnansweredBroker,
    assess_first_acl,
    build_describe_trials,
    find_topics_without_acl,
    find_types_without_acl,
)
from mirror_core.rights.required_acls import CLUSTER_NAME

ME, OTHER = "User:me", "User:other"
KINDS = (Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID, Resource.CLUSTER)
FRESH = DescribeTrial(ME, Resource.GROUP, UNUSED_NAME, has_foreign_acl=False)
"""No ACL speaks of it."""
THEIRS = DescribeTrial(ME, Resource.TOPIC, "orders", has_foreign_acl=True)
"""Only ACLs of others do."""


def acl(resource: Resource, name: str, principal: str = OTHER, pattern: Pattern = Pattern.LITERAL) -> Acl:
    return Acl(resource=resource, name=name, pattern=pattern, principal=principal, operation=Operation.READ)


ON_ALL = frozenset(acl(kind, CLUSTER_NAME if kind is Resource.CLUSTER else "*") for kind in KINDS)


def heard(
    setting: AllowEveryoneValue = AllowEveryoneValue.HIDDEN,
    *,
    own: bool = True,
    supers: bool = True,
    broker: int = 1,
    **tried: bool,
) -> AuthorizerReply:
    """Tried: `fresh` and `theirs`, allowed or not."""
    known = {"fresh": FRESH, "theirs": THEIRS}
    return AuthorizerReply(
        broker=broker,
        setting=setting,
        is_kafka_authorizer=own,
        may_have_super_users=supers,
        allowed=frozenset(known[name] for name, may in tried.items() if may),
        refused=frozenset(known[name] for name, may in tried.items() if not may),
    )


@pytest.mark.parametrize(
    ("said", "expected", "words"),
    [
        # Kafka hides the value: what no ACL allows is allowed to somebody who is refused elsewhere.
        (heard(fresh=True, theirs=False), FirstAclEffect.YES, "User:me is no super user"),
        (heard(fresh=True, supers=False), FirstAclEffect.YES, "User:me is no super user"),
        (heard(AllowEveryoneValue.DENIED, fresh=True, theirs=False), FirstAclEffect.YES, "no super user"),
        # Nothing tells a super user from everybody.
        (heard(fresh=True), FirstAclEffect.LIKELY, "unless User:me is a super user"),
        (heard(fresh=True, theirs=True), FirstAclEffect.UNKNOWN, "User:me is a super user there"),
        (heard(), FirstAclEffect.UNKNOWN, "nothing without an ACL could be tried"),
        (heard(theirs=False), FirstAclEffect.UNKNOWN, "nothing without an ACL could be tried"),
        (
            heard(AllowEveryoneValue.DENIED, theirs=False),
            FirstAclEffect.UNKNOWN,
            "grant the control principal DESCRIBE_CONFIGS",
        ),
        # Refused without an ACL: nobody lives on a default.
        (heard(fresh=False), FirstAclEffect.NO, "refuses User:me to GROUP 'unused-mirrorbook-check'"),
        (heard(fresh=False, theirs=False), FirstAclEffect.NO, "refuses"),
        (heard(AllowEveryoneValue.NOT_SET, fresh=True), FirstAclEffect.NO, "is not set"),
        (heard(AllowEveryoneValue.NOT_SET, fresh=True, theirs=True), FirstAclEffect.NO, "is not set"),
        # In an authorizer that is not Kafka's, what is not set may be true, and rights may be no ACLs.
        (heard(AllowEveryoneValue.NOT_SET, own=False, fresh=True), FirstAclEffect.UNKNOWN, "may be a super user"),
        (heard(AllowEveryoneValue.NOT_SET, own=False, fresh=False), FirstAclEffect.NO, "refuses"),
        # Who shows it is believed.
        (
            heard(AllowEveryoneValue.TRUE, fresh=True, theirs=True),
            FirstAclEffect.YES,
            f"{ALLOW_EVERYONE_SETTING} is true",
        ),
        (heard(AllowEveryoneValue.FALSE, fresh=True), FirstAclEffect.NO, f"{ALLOW_EVERYONE_SETTING} is false"),
    ],
)
def test_what_one_broker_says(said: AuthorizerReply, expected: FirstAclEffect, words: str) -> None:
    found = assess_first_acl((), [said])
    assert (found.shuts_out, words in found.reason) == (expected, True), found
    assert bool(found.advice) == (expected is not FirstAclEffect.NO)


YES, LIKELY = heard(fresh=True, theirs=False, broker=2), heard(fresh=True, broker=3)
NO, BLIND = heard(AllowEveryoneValue.NOT_SET, broker=4), heard(broker=5)
GONE = UnansweredBroker(6, "certificate refused")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([NO, YES], FirstAclEffect.YES),
        ([NO, GONE, BLIND, LIKELY, YES], FirstAclEffect.YES),
        ([NO, LIKELY], FirstAclEffect.LIKELY),
        ([NO, BLIND], FirstAclEffect.UNKNOWN),
        ([NO, NO], FirstAclEffect.NO),
        ([NO, GONE], FirstAclEffect.NO),
        ([GONE, NO], FirstAclEffect.NO),
        ([GONE], FirstAclEffect.UNKNOWN),
        ([GONE, YES], FirstAclEffect.YES),
        ([], FirstAclEffect.UNKNOWN),
    ],
)
def test_one_broker_that_says_yes_decides_and_a_silent_one_does_not(
    said: list[AuthorizerReply | UnansweredBroker], expected: FirstAclEffect
) -> None:
    found = assess_first_acl((), said)
    assert found.shuts_out is expected
    assert ("broker 6 was not heard: certificate refused" in found.reason) == (GONE in said)


def test_where_everything_has_an_acl_nobody_lives_on_the_default() -> None:
    """Whatever the setting is, so that this is the way out of a refusal."""
    assert assess_first_acl(ON_ALL, [YES]).shuts_out is FirstAclEffect.NO
    assert find_types_without_acl(ON_ALL) == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_without_an_acl_on_all_of_it_is_named(kind: Resource) -> None:
    some = {one for one in ON_ALL if one.resource is not kind}
    if kind is not Resource.CLUSTER:
        some |= {
            acl(kind, "orders"),
            acl(kind, "*", pattern=Pattern.PREFIXED),
            acl(kind, "a", pattern=Pattern.PREFIXED),
        }
    words = {
        Resource.TOPIC: "an ACL on `*` of topics",
        Resource.GROUP: "an ACL on `*` of groups",
        Resource.TRANSACTIONAL_ID: "an ACL on `*` of transactional ids",
        Resource.CLUSTER: "an ACL on the cluster",
    }
    assert find_types_without_acl(some) == (kind,)
    found = assess_first_acl(some, [YES])
    assert found.shuts_out is FirstAclEffect.YES
    assert f"or add {words[kind]}. Or leave the cluster open, by `authorizer: none`" in found.advice


def test_a_denial_is_an_acl_too() -> None:
    denials = {build_denial(one.name, OTHER, resource=one.resource) for one in ON_ALL}
    assert find_types_without_acl(denials) == ()


def test_of_each_kind_something_without_an_acl_is_tried() -> None:
    assert build_describe_trials((), ME) == {
        DescribeTrial(ME, kind, CLUSTER_NAME if kind is Resource.CLUSTER else UNUSED_NAME, has_foreign_acl=False)
        for kind in KINDS
    }


@pytest.mark.parametrize("kind", [Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID])
def test_what_only_others_have_an_acl_on_is_tried_too(kind: Resource) -> None:
    def tried(*entries: Acl) -> set[tuple[str, bool]]:
        return {
            (trial.name, trial.has_foreign_acl)
            for trial in build_describe_trials(entries, ME)
            if trial.resource is kind
        }

    theirs = acl(kind, "orders")
    assert tried(theirs) == {(UNUSED_NAME, False), ("orders", True)}
    assert tried(replace(theirs, pattern=Pattern.PREFIXED)) == {(UNUSED_NAME, False), ("orders", True)}
    assert tried(theirs, acl(kind, "orders", ME)) == {(UNUSED_NAME, False)}
    assert tried(theirs, acl(kind, "or", ME, Pattern.PREFIXED)) == {(UNUSED_NAME, False)}
    assert tried(theirs, acl(kind, "orders", "User:*")) == {(UNUSED_NAME, False)}
    assert tried(theirs, acl(kind, "*", ME)) == set()  # all is covered, by an ACL that names us
    assert tried(acl(kind, "*")) == {(UNUSED_NAME, True)}  # by one that does not
    assert tried(acl(kind, "unused", pattern=Pattern.PREFIXED)) == {("unused", True)}


def test_the_cluster_is_tried_by_its_own_name() -> None:
    def tried(*entries: Acl) -> set[bool]:
        return {
            trial.has_foreign_acl for trial in build_describe_trials(entries, ME) if trial.resource is Resource.CLUSTER
        }

    theirs = acl(Resource.CLUSTER, CLUSTER_NAME)
    assert (tried(theirs), tried(theirs, acl(Resource.CLUSTER, CLUSTER_NAME, ME))) == ({True}, set())


def test_the_acl_that_settles_a_likely_answer_does_so() -> None:
    """It concerns nobody. Super users are admitted to its group all the same, and nobody else is."""
    found = assess_first_acl((), [LIKELY])
    assert f"--group {SUPER_USER_CHECK_GROUP}" in found.advice
    [settling] = [
        t
        for t in build_describe_trials([acl(Resource.GROUP, SUPER_USER_CHECK_GROUP, "User:nobody")], ME)
        if t.has_foreign_acl
    ]
    assert settling == DescribeTrial(ME, Resource.GROUP, SUPER_USER_CHECK_GROUP, has_foreign_acl=True)
    as_super = replace(LIKELY, allowed=frozenset({FRESH, settling}))
    as_anybody = replace(LIKELY, refused=frozenset({settling}))
    assert assess_first_acl((), [as_super]).shuts_out is FirstAclEffect.UNKNOWN
    assert assess_first_acl((), [as_anybody]).shuts_out is FirstAclEffect.YES


def test_what_a_user_without_a_known_name_may_do_does_not_make_it_a_super_user() -> None:
    """Of a certificate: the ACL that seems to be another's may be its own."""
    own = acl(Resource.TOPIC, "orders", "User:CN=mirrorbook", Pattern.PREFIXED)
    said = replace(LIKELY, allowed=build_describe_trials({own}, UNKNOWN_USER))
    assert assess_first_acl({own}, [said]).shuts_out is FirstAclEffect.LIKELY
    settling = acl(Resource.GROUP, SUPER_USER_CHECK_GROUP, "User:nobody")
    tried = build_describe_trials({own, settling}, UNKNOWN_USER)
    assert assess_first_acl({own, settling}, [replace(LIKELY, allowed=tried)]).shuts_out is FirstAclEffect.UNKNOWN


def test_what_another_user_may_proves_nothing_about_this_one() -> None:
    theirs = frozenset({replace(THEIRS, user=OTHER)})
    assert assess_first_acl((), [replace(LIKELY, refused=theirs)]).shuts_out is FirstAclEffect.LIKELY
    assert assess_first_acl((), [replace(LIKELY, allowed=LIKELY.allowed | theirs)]).shuts_out is FirstAclEffect.LIKELY


def test_the_advice_names_all_that_lacks_an_acl() -> None:
    advice = assess_first_acl((), [YES]).advice
    assert "an ACL on `*` of topics, `*` of groups, `*` of transactional ids and on the cluster. Or leave" in advice


@pytest.mark.parametrize(
    ("entries", "bare"),
    [
        ((), ("orders", "paid")),
        ((acl(Resource.TOPIC, "orders"),), ("paid",)),
        ((acl(Resource.TOPIC, "or", pattern=Pattern.PREFIXED), acl(Resource.GROUP, "paid")), ("paid",)),
        ((acl(Resource.TOPIC, "", pattern=Pattern.PREFIXED),), ()),
        ((acl(Resource.TOPIC, "*"),), ()),
    ],
)
def test_topics_that_no_acl_speaks_of(entries: tuple[Acl, ...], bare: tuple[str, ...]) -> None:
    assert find_topics_without_acl(["paid", "orders"], entries) == bare
