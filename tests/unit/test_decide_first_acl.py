"""Whether a first ACL shuts others out, by what brokers said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.model.acl import Acl, Operation, Pattern, Resource
from mirror_core.rights.acls import denial
from mirror_core.rights.first_acl import (
    NAMELESS,
    SETTING,
    SETTLING_GROUP,
    UNUSED,
    Heard,
    Setting,
    ShutsOut,
    Trial,
    Unheard,
    bare_topics,
    first_acl,
    trials,
    without_acl,
)
from mirror_core.rights.needed import CLUSTER_NAME

ME, OTHER = "User:me", "User:other"
KINDS = (Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID, Resource.CLUSTER)
FRESH = Trial(ME, Resource.GROUP, UNUSED, others=False)
"""No ACL speaks of it."""
THEIRS = Trial(ME, Resource.TOPIC, "orders", others=True)
"""Only ACLs of others do."""


def acl(resource: Resource, name: str, principal: str = OTHER, pattern: Pattern = Pattern.LITERAL) -> Acl:
    return Acl(resource=resource, name=name, pattern=pattern, principal=principal, operation=Operation.READ)


ON_ALL = frozenset(acl(kind, CLUSTER_NAME if kind is Resource.CLUSTER else "*") for kind in KINDS)


def heard(
    setting: Setting = Setting.HIDDEN, *, own: bool = True, supers: bool = True, broker: int = 1, **tried: bool
) -> Heard:
    """Tried: `fresh` and `theirs`, allowed or not."""
    known = {"fresh": FRESH, "theirs": THEIRS}
    return Heard(
        broker=broker,
        setting=setting,
        kafkas_own=own,
        super_users=supers,
        allowed=frozenset(known[name] for name, may in tried.items() if may),
        refused=frozenset(known[name] for name, may in tried.items() if not may),
    )


@pytest.mark.parametrize(
    ("said", "expected", "words"),
    [
        # Kafka hides the value: what no ACL allows is allowed to somebody who is refused elsewhere.
        (heard(fresh=True, theirs=False), ShutsOut.YES, "User:me is no super user"),
        (heard(fresh=True, supers=False), ShutsOut.YES, "User:me is no super user"),
        (heard(Setting.DENIED, fresh=True, theirs=False), ShutsOut.YES, "no super user"),
        # Nothing tells a super user from everybody.
        (heard(fresh=True), ShutsOut.LIKELY, "unless User:me is a super user"),
        (heard(fresh=True, theirs=True), ShutsOut.UNKNOWN, "User:me is a super user there"),
        (heard(), ShutsOut.UNKNOWN, "nothing without an ACL could be tried"),
        (heard(theirs=False), ShutsOut.UNKNOWN, "nothing without an ACL could be tried"),
        (heard(Setting.DENIED, theirs=False), ShutsOut.UNKNOWN, "grant the control principal DESCRIBE_CONFIGS"),
        # Refused without an ACL: nobody lives on a default.
        (heard(fresh=False), ShutsOut.NO, "refuses User:me to GROUP 'unused-mirrorbook-check'"),
        (heard(fresh=False, theirs=False), ShutsOut.NO, "refuses"),
        (heard(Setting.NOT_SET, fresh=True), ShutsOut.NO, "is not set"),
        (heard(Setting.NOT_SET, fresh=True, theirs=True), ShutsOut.NO, "is not set"),
        # In an authorizer that is not Kafka's, what is not set may be true, and rights may be no ACLs.
        (heard(Setting.NOT_SET, own=False, fresh=True), ShutsOut.UNKNOWN, "may be a super user"),
        (heard(Setting.NOT_SET, own=False, fresh=False), ShutsOut.NO, "refuses"),
        # Who shows it is believed.
        (heard(Setting.TRUE, fresh=True, theirs=True), ShutsOut.YES, f"{SETTING} is true"),
        (heard(Setting.FALSE, fresh=True), ShutsOut.NO, f"{SETTING} is false"),
    ],
)
def test_what_one_broker_says(said: Heard, expected: ShutsOut, words: str) -> None:
    found = first_acl((), [said])
    assert (found.answer, words in found.why) == (expected, True), found
    assert bool(found.advice) == (expected is not ShutsOut.NO)


YES, LIKELY = heard(fresh=True, theirs=False, broker=2), heard(fresh=True, broker=3)
NO, BLIND = heard(Setting.NOT_SET, broker=4), heard(broker=5)
GONE = Unheard(6, "certificate refused")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([NO, YES], ShutsOut.YES),
        ([NO, GONE, BLIND, LIKELY, YES], ShutsOut.YES),
        ([NO, LIKELY], ShutsOut.LIKELY),
        ([NO, BLIND], ShutsOut.UNKNOWN),
        ([NO, NO], ShutsOut.NO),
        ([NO, GONE], ShutsOut.NO),
        ([GONE, NO], ShutsOut.NO),
        ([GONE], ShutsOut.UNKNOWN),
        ([GONE, YES], ShutsOut.YES),
        ([], ShutsOut.UNKNOWN),
    ],
)
def test_one_broker_that_says_yes_decides_and_a_silent_one_does_not(
    said: list[Heard | Unheard], expected: ShutsOut
) -> None:
    found = first_acl((), said)
    assert found.answer is expected
    assert ("broker 6 was not heard: certificate refused" in found.why) == (GONE in said)


def test_where_everything_has_an_acl_nobody_lives_on_the_default() -> None:
    """Whatever the setting is, so that this is the way out of a refusal."""
    assert first_acl(ON_ALL, [YES]).answer is ShutsOut.NO
    assert without_acl(ON_ALL) == ()


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
    assert without_acl(some) == (kind,)
    found = first_acl(some, [YES])
    assert found.answer is ShutsOut.YES
    assert f"or add {words[kind]}. Or leave the cluster open, by `authorizer: none`" in found.advice


def test_a_denial_is_an_acl_too() -> None:
    denials = {denial(one.name, OTHER, resource=one.resource) for one in ON_ALL}
    assert without_acl(denials) == ()


def test_of_each_kind_something_without_an_acl_is_tried() -> None:
    assert trials((), ME) == {
        Trial(ME, kind, CLUSTER_NAME if kind is Resource.CLUSTER else UNUSED, others=False) for kind in KINDS
    }


@pytest.mark.parametrize("kind", [Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID])
def test_what_only_others_have_an_acl_on_is_tried_too(kind: Resource) -> None:
    def tried(*entries: Acl) -> set[tuple[str, bool]]:
        return {(trial.name, trial.others) for trial in trials(entries, ME) if trial.resource is kind}

    theirs = acl(kind, "orders")
    assert tried(theirs) == {(UNUSED, False), ("orders", True)}
    assert tried(replace(theirs, pattern=Pattern.PREFIXED)) == {(UNUSED, False), ("orders", True)}
    assert tried(theirs, acl(kind, "orders", ME)) == {(UNUSED, False)}
    assert tried(theirs, acl(kind, "or", ME, Pattern.PREFIXED)) == {(UNUSED, False)}
    assert tried(theirs, acl(kind, "orders", "User:*")) == {(UNUSED, False)}
    assert tried(theirs, acl(kind, "*", ME)) == set()  # all is covered, by an ACL that names us
    assert tried(acl(kind, "*")) == {(UNUSED, True)}  # by one that does not
    assert tried(acl(kind, "unused", pattern=Pattern.PREFIXED)) == {("unused", True)}


def test_the_cluster_is_tried_by_its_own_name() -> None:
    def tried(*entries: Acl) -> set[bool]:
        return {trial.others for trial in trials(entries, ME) if trial.resource is Resource.CLUSTER}

    theirs = acl(Resource.CLUSTER, CLUSTER_NAME)
    assert (tried(theirs), tried(theirs, acl(Resource.CLUSTER, CLUSTER_NAME, ME))) == ({True}, set())


def test_the_acl_that_settles_a_likely_answer_does_so() -> None:
    """It concerns nobody. Super users are admitted to its group all the same, and nobody else is."""
    found = first_acl((), [LIKELY])
    assert f"--group {SETTLING_GROUP}" in found.advice
    [settling] = [t for t in trials([acl(Resource.GROUP, SETTLING_GROUP, "User:nobody")], ME) if t.others]
    assert settling == Trial(ME, Resource.GROUP, SETTLING_GROUP, others=True)
    as_super = replace(LIKELY, allowed=frozenset({FRESH, settling}))
    as_anybody = replace(LIKELY, refused=frozenset({settling}))
    assert first_acl((), [as_super]).answer is ShutsOut.UNKNOWN
    assert first_acl((), [as_anybody]).answer is ShutsOut.YES


def test_what_a_user_without_a_known_name_may_do_does_not_make_it_a_super_user() -> None:
    """Of a certificate: the ACL that seems to be another's may be its own."""
    own = acl(Resource.TOPIC, "orders", "User:CN=mirrorbook", Pattern.PREFIXED)
    said = replace(LIKELY, allowed=trials({own}, NAMELESS))
    assert first_acl({own}, [said]).answer is ShutsOut.LIKELY
    settling = acl(Resource.GROUP, SETTLING_GROUP, "User:nobody")
    tried = trials({own, settling}, NAMELESS)
    assert first_acl({own, settling}, [replace(LIKELY, allowed=tried)]).answer is ShutsOut.UNKNOWN


def test_what_another_user_may_proves_nothing_about_this_one() -> None:
    theirs = frozenset({replace(THEIRS, user=OTHER)})
    assert first_acl((), [replace(LIKELY, refused=theirs)]).answer is ShutsOut.LIKELY
    assert first_acl((), [replace(LIKELY, allowed=LIKELY.allowed | theirs)]).answer is ShutsOut.LIKELY


def test_the_advice_names_all_that_lacks_an_acl() -> None:
    advice = first_acl((), [YES]).advice
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
    assert bare_topics(["paid", "orders"], entries) == bare
