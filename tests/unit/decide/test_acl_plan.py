"""Copied, staged, kept, taken away: by provenance, and never a right to change a mirror topic before promotion."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.acl_plan import (
    EXCLUDED_RIGHT,
    find_narrowed_acls,
    find_unknown_scram_users,
    format_narrowed_acls,
    translate_acl,
)
from mirror_core.decide.filters import build_acl_filter, build_promotion_filter
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Pattern, Permission, Resource
from mirror_core.model.names import MirrorName
from mirror_core.rights.acl_rules import (
    EVERYBODY,
    build_demotions,
    can_change_topic,
    covers,
    find_undemotable_grants,
    is_wildcard_grant,
)
from mirror_core.rights.ledger_rules import find_flaw
from tests.support.acl_views import (
    ALL,
    GROUPS,
    MIRROR,
    READ,
    TOPICS,
    WEST,
    WRITE,
    acl,
    acls,
    entry,
    make_mirror,
    plan,
    scope,
)


def test_reading_is_copied_and_writing_is_staged() -> None:
    made = plan({READ, WRITE}, set())
    assert made.create == (READ,)
    assert made.stage == (WRITE,)


def test_all_is_staged_and_what_it_grants_for_reading_is_copied() -> None:
    made = plan({ALL}, set())
    assert made.create == (acl(Operation.DESCRIBE_CONFIGS), READ)
    assert made.stage == (ALL,)


def test_denials_are_copied_but_one_for_everybody_waits_since_it_would_stop_the_mirror() -> None:
    one = acl(Operation.WRITE, permission=Permission.DENY)
    everybody = replace(one, principal=EVERYBODY)
    made = plan({one, everybody}, set())
    assert made.create == (one,)
    assert made.stage == (everybody,)


def test_our_own_fence_on_the_source_is_not_copied() -> None:
    fence = acl(Operation.WRITE, principal=EVERYBODY, permission=Permission.DENY)
    made = plan({fence, READ}, set(), of=scope(own_acls=frozenset({fence})))
    assert (made.create, made.stage) == ((READ,), ())


@pytest.mark.parametrize("purpose", [AclPurpose.COPIED, AclPurpose.STAGED])
def test_a_second_cycle_has_nothing_to_do(purpose: AclPurpose) -> None:
    there = {READ} if purpose is AclPurpose.COPIED else set()
    of = READ if purpose is AclPurpose.COPIED else WRITE
    made = plan({of}, there, (entry(of, purpose),))
    assert not any((made.create, made.share, made.stage, made.remove, made.forget, made.foreign, made.out_of_scope))


def test_only_what_we_copied_is_removed_when_gone_from_the_source() -> None:
    foreign = acl(Operation.READ, principal="User:local")
    made = plan(set(), {READ, foreign}, (entry(READ), entry(WRITE, AclPurpose.STAGED)))
    assert [e.acl for e in made.remove] == [READ]
    assert [e.acl for e in made.forget] == [WRITE]


def test_an_entry_that_was_there_before_is_kept_and_never_becomes_ours() -> None:
    assert plan({READ}, {READ}).foreign == (READ,)
    gone = plan(set(), {READ})
    assert gone.remove == ()


def test_narrower_filters_remove_nothing() -> None:
    made = plan({READ, WRITE}, {READ}, (entry(READ), entry(WRITE, AclPurpose.STAGED)), of=scope(topics=("bills",)))
    assert (made.remove, made.forget) == ((), ())
    assert [e.acl for e in made.out_of_scope] == [READ, WRITE]


def test_an_excluded_principal_gets_no_right_and_keeps_its_denials() -> None:
    denial = acl(Operation.READ, permission=Permission.DENY)
    other = acl(Operation.READ, principal="User:other")
    made = plan({READ, WRITE, denial, other}, set(), of=scope(exclude_principals=("User:app",)))
    assert (set(made.create), made.stage) == ({denial, other}, ())
    assert dict(made.left_out) == dict.fromkeys((READ, WRITE), EXCLUDED_RIGHT)
    narrow = plan({READ, WRITE, denial, other}, set(), of=scope(principals=("User:other",)))
    assert narrow == made


def test_copied_rights_of_a_principal_that_is_excluded_later_are_withdrawn_and_staged_ones_kept() -> None:
    held = (entry(READ), entry(WRITE, AclPurpose.STAGED))
    made = plan({READ, WRITE}, {READ}, held, of=scope(exclude_principals=(".*",)))
    assert [e.acl for e in made.remove] == [READ]
    assert made.forget == ()
    assert [e.acl for e in made.out_of_scope] == [WRITE]
    assert made.left_out == ()


def test_a_demotion_of_an_excluded_principal_is_lifted_by_promotion_whenever_it_was_excluded() -> None:
    denied = acl(Operation.WRITE, permission=Permission.DENY)
    held = (entry(WRITE, AclPurpose.STAGED), entry(denied, AclPurpose.DEMOTED))
    made = plan({WRITE}, {WRITE, denied}, held, of=scope(exclude_principals=("User:app",)))
    assert made.repurposed == ()


def test_a_way_home_gives_excluded_principals_back_what_they_had() -> None:
    for narrowed in (make_mirror(exclude_principals=("User:app",)), make_mirror(exclude_rights=("WRITE TOPIC .*",))):
        mirror = replace(narrowed, failback_run="run-1")
        assert WRITE in build_promotion_filter(mirror, TOPICS, GROUPS)
        assert WRITE not in build_acl_filter(mirror, TOPICS, GROUPS)
        assert WRITE not in build_promotion_filter(narrowed, TOPICS, GROUPS)


def test_an_excluded_right_is_not_copied_and_what_was_copied_before_is_withdrawn() -> None:
    denial, other = acl(Operation.READ, permission=Permission.DENY), acl(Operation.READ, "bills")
    narrowed = scope(exclude_rights=("READ TOPIC orders.*",))
    made = plan({READ, WRITE, denial, other}, set(), of=narrowed)
    assert (set(made.create), made.stage) == ({denial, other}, (WRITE,))
    assert dict(made.left_out) == {READ: EXCLUDED_RIGHT}
    made = plan({READ, WRITE}, {READ}, (entry(READ), entry(WRITE, AclPurpose.STAGED)), of=narrowed)
    assert ([e.acl for e in made.remove], made.waiting) == ([READ], (WRITE,))


def test_a_wide_right_that_covers_an_excluded_name_is_left_out_with_all_that_it_was_copied_as() -> None:
    wide = acl(Operation.READ, "orders", pattern=Pattern.PREFIXED)
    first, second = acl(Operation.READ, "orders-1"), acl(Operation.READ, "orders-2")
    assert set(plan({wide}, set()).create) == {first, second}
    made = plan(
        {wide}, {first, second}, (entry(first), entry(second)), of=scope(exclude_rights=("READ TOPIC orders-2",))
    )
    assert (made.create, {e.acl for e in made.remove}) == ((), {first, second})


def test_what_two_mirrors_copied_goes_with_the_last_of_them() -> None:
    other = entry(READ, mirror=MirrorName("other"))
    assert plan({READ}, {READ}, (), (other,)).share == (READ,)
    with_other = plan(set(), {READ}, (entry(READ),), (other,))
    assert (with_other.remove, [e.acl for e in with_other.forget]) == ((), [READ])
    alone = plan(set(), {READ}, (entry(READ),))
    assert [e.acl for e in alone.remove] == [READ]


def test_promoted_grants_are_left_alone() -> None:
    made = plan(set(), {WRITE}, (entry(WRITE, AclPurpose.PROMOTED),))
    assert not any((made.remove, made.forget, made.stage, made.create))


def test_patterns_and_groups_in_scope() -> None:
    prefix = acl(Operation.READ, "ord", pattern=Pattern.PREFIXED)
    star = acl(Operation.DESCRIBE, "*")
    elsewhere = acl(Operation.READ, "other")
    in_use = acl(Operation.READ, "bills-", resource=Resource.GROUP, pattern=Pattern.PREFIXED)
    matching = acl(Operation.READ, "orders-new", resource=Resource.GROUP)
    strange = acl(Operation.READ, "zebra", resource=Resource.GROUP)
    made = plan({prefix, star, elsewhere, in_use, matching, strange}, set())
    assert set(made.create) == {
        matching,
        replace(in_use, name="bills-app", pattern=Pattern.LITERAL),
        *(replace(prefix, name=topic, pattern=Pattern.LITERAL) for topic in ("orders-1", "orders-2")),
        *(replace(star, name=topic) for topic in TOPICS),
    }
    assert made.narrowed == set(made.stage) == {prefix, star, in_use}


WIDE = [
    acl(Operation.READ, "*", EVERYBODY),
    acl(Operation.READ, "o", "User:intern", pattern=Pattern.PREFIXED),
    acl(Operation.ALL, "*"),
    acl(Operation.ALL, "*", resource=Resource.GROUP),
    acl(Operation.READ, "", resource=Resource.GROUP, pattern=Pattern.PREFIXED),
    acl(Operation.WRITE, "*", resource=Resource.TRANSACTIONAL_ID),
    acl(Operation.ALL, "pay", resource=Resource.TRANSACTIONAL_ID, pattern=Pattern.PREFIXED),
]


@pytest.mark.parametrize("wide", WIDE, ids=str)
def test_what_is_copied_at_once_opens_the_mirrors_topics_and_groups_only(wide: Acl) -> None:
    made = plan({wide, acl(Operation.WRITE, principal=wide.principal)}, set())
    opened = [a for a in made.create if a.permission is Permission.ALLOW]
    assert {a.name for a in opened} <= {*TOPICS, *GROUPS}
    assert {a.pattern for a in opened} <= {Pattern.LITERAL}
    assert {a.principal for a in opened} <= {wide.principal}
    assert made.narrowed <= set(made.stage)
    covered = [n for n in (TOPICS if wide.resource is Resource.TOPIC else GROUPS) if covers(wide, n)]
    assert {a.name for a in opened} >= (set() if wide.resource is Resource.TRANSACTIONAL_ID else set(covered))
    if wide.principal != EVERYBODY or wide.resource is not Resource.TRANSACTIONAL_ID:
        assert [a for a in made.stage if (a.resource, a.name, a.pattern) == (wide.resource, wide.name, wide.pattern)]


def test_a_denial_is_as_wide_as_on_the_source_since_a_narrower_one_would_open_something() -> None:
    denials = {
        acl(Operation.READ, "*", permission=Permission.DENY),
        acl(Operation.READ, "ord", pattern=Pattern.PREFIXED, permission=Permission.DENY),
        acl(Operation.READ, "*", resource=Resource.GROUP, permission=Permission.DENY),
    }
    made = plan(denials, set())
    assert set(made.create) == denials
    assert made.narrowed == set()


def test_a_topic_that_begins_to_match_later_is_opened_then_and_one_that_ends_to_match_is_left() -> None:
    star = acl(Operation.READ, "*")
    narrow = scope(topics=("bills",))
    made = plan({star}, set(), of=narrow)
    assert made.create == (replace(star, name="bills"),)
    ledger: tuple[LedgerEntry, ...] = (entry(star, AclPurpose.STAGED), entry(made.create[0]))
    later = plan({star}, set(made.create), ledger, of=scope(topics=("bills", "orders-1")))
    assert (later.create, later.equal) == ((READ,), made.create)
    ledger += (entry(READ),)
    before = plan({star}, {READ, *made.create}, ledger, of=narrow)
    assert (before.remove, before.forget, [e.acl for e in before.out_of_scope]) == ((), (), [READ])
    gone = plan(set(), {READ, *made.create}, ledger, of=narrow)
    assert {e.acl for e in gone.remove} == {READ, *made.create}
    assert [e.acl for e in gone.forget] == [star]


def test_what_an_older_version_has_copied_by_star_or_prefix_is_replaced_by_names() -> None:
    star = acl(Operation.READ, "*")
    made = plan({star}, {star}, (entry(star),))
    assert [e.acl for e in made.remove] == [star]
    assert {a.name for a in made.create} == set(TOPICS)
    by_hand = plan({star}, {star})
    assert by_hand.remove == (), "somebody else's is kept"


def test_a_right_to_transactional_ids_by_star_waits_and_the_denial_of_ours_does_not() -> None:
    star = acl(Operation.WRITE, "*", resource=Resource.TRANSACTIONAL_ID)
    one = acl(Operation.WRITE, "pay-1", resource=Resource.TRANSACTIONAL_ID)
    made = plan({star, one, WRITE}, set())
    assert star in made.narrowed & set(made.stage)
    assert {a for a in made.create if a.permission is Permission.ALLOW} == {one}
    assert [a.name for a in made.create if a.permission is Permission.DENY] == ["mirrorbook"]
    assert "transactional_id" in format_narrowed_acls(find_narrowed_acls([entry(star, AclPurpose.STAGED)])).lower()
    assert find_narrowed_acls([entry(WRITE, AclPurpose.STAGED)]) == ()


def test_the_mirrors_own_principals_are_left_out() -> None:
    made = plan({acl(Operation.READ, principal="User:mirror-data"), READ}, set())
    assert (made.create, made.left_out) == ((READ,), ())


def test_open_doors_are_seen_until_denials_close_them() -> None:
    native = acl(Operation.WRITE, "orders", pattern=Pattern.PREFIXED)
    assert plan(set(), {native}).unprotected_grants == (native,)
    deny = build_demotions({native}, TOPICS, frozenset())
    assert {(d.name, d.operation, d.permission) for d in deny} == {
        ("orders-1", Operation.WRITE, Permission.DENY),
        ("orders-2", Operation.WRITE, Permission.DENY),
    }
    assert plan(set(), {native} | deny).unprotected_grants == ()
    assert plan(set(), {native} | set(sorted(deny)[:1])).unprotected_grants == (native,)
    public = acl(Operation.WRITE, "*", EVERYBODY)
    assert plan(set(), {public}).unprotected_grants == (public,)


def test_a_grant_to_everybody_cannot_be_demoted() -> None:
    public = acl(Operation.WRITE, "*", EVERYBODY)
    assert build_demotions({public}, TOPICS, frozenset()) == set()
    assert find_undemotable_grants({public, WRITE}, TOPICS, frozenset()) == {public}
    assert (
        find_undemotable_grants({public}, TOPICS, frozenset({EVERYBODY}))
        == find_undemotable_grants({public}, (), frozenset())
        == set()
    )


ledgers = st.lists(
    st.builds(
        LedgerEntry,
        mirror=st.just(MIRROR),
        cluster=st.just(WEST),
        acl=acls,
        purpose=st.sampled_from([AclPurpose.COPIED, AclPurpose.STAGED, AclPurpose.PROMOTED, AclPurpose.DEMOTED]),
    ).filter(lambda e: e.purpose is not AclPurpose.COPIED or e.acl in translate_acl(e.acl)[0]),  # others we never copy
    unique_by=lambda e: e.acl,
).map(tuple)


@given(source=st.sets(acls), destination=st.sets(acls), ledger=ledgers)
def test_no_cycle_opens_a_mirror_topic_or_touches_what_is_not_ours(
    source: set[Acl], destination: set[Acl], ledger: tuple[LedgerEntry, ...]
) -> None:
    made = plan(source, destination, ledger)
    assert not any(can_change_topic(created) for created in made.create)
    assert not any(created.permission is Permission.DENY and created.principal == EVERYBODY for created in made.create)
    assert {e.acl for e in made.remove} <= {e.acl for e in ledger if e.purpose is AclPurpose.COPIED}
    assert not {e.acl for e in made.remove if not is_wildcard_grant(e.acl)} & source
    opened = [c for c in made.create if c.permission is Permission.ALLOW]
    assert not [c for c in opened if is_wildcard_grant(c) and c.operation is not Operation.TWO_PHASE_COMMIT]
    assert {c.name for c in opened if c.resource is Resource.TOPIC} <= set(TOPICS)
    assert not [e for e in made.remove if find_flaw(e, scope().own_principals)]
    assert not [c for c in made.create if find_flaw(entry(c), scope().own_principals)]
    assert not [s for s in made.stage if find_flaw(entry(s, AclPurpose.STAGED), scope().own_principals)]
    assert not {created.principal for created in made.create + made.stage} & scope().own_principals


@given(source=st.sets(acls), destination=st.sets(acls))
def test_after_its_actions_a_cycle_finds_nothing_more(source: set[Acl], destination: set[Acl]) -> None:
    first = plan(source, destination)
    ledger = [entry(a) for a in first.create + first.share] + [entry(a, AclPurpose.STAGED) for a in first.stage]
    again = plan(source, destination | set(first.create), tuple(ledger))
    assert not any((again.create, again.stage, again.share, again.remove, again.forget, again.out_of_scope))


@given(granted=acls, topics=st.sets(st.sampled_from(TOPICS)))
def test_demotion_denies_every_change_that_a_grant_allows(granted: Acl, topics: set[str]) -> None:
    deny, impossible = (of({granted}, topics, frozenset()) for of in (build_demotions, find_undemotable_grants))
    changes = can_change_topic(granted) and any(covers(granted, topic) for topic in topics)
    assert bool(deny) != bool(impossible) or not changes
    assert bool(deny or impossible) == changes
    for denial in deny:
        assert denial.principal == granted.principal
        assert denial.permission is Permission.DENY
        assert covers(granted, denial.name)


@given(granted=acls)
def test_translation_loses_no_right(granted: Acl) -> None:
    at_once, staged = translate_acl(granted)
    if granted.resource is Resource.CLUSTER and granted.operation is Operation.ALL:
        granted = replace(granted, operation=Operation.IDEMPOTENT_WRITE)
    assert granted in at_once | staged
    assert not at_once & staged


def test_users_are_strangers_when_they_hold_a_right_and_only_the_source_lets_them_sign_in() -> None:
    user = WRITE.principal.removeprefix("User:")
    held = [entry(WRITE, AclPurpose.STAGED)]
    one, both = frozenset({"SCRAM-SHA-512"}), frozenset({"SCRAM-SHA-256", "SCRAM-SHA-512"})
    assert find_unknown_scram_users(held, {user: one, "idle": one}, {"other": one}) == {user: ("SCRAM-SHA-512",)}
    assert find_unknown_scram_users(held, {user: both}, {user: one}) == {user: ("SCRAM-SHA-256",)}
    assert find_unknown_scram_users(held, {user: one}, {user: both}) == {}
    assert find_unknown_scram_users(held, {}, {}) == {}, "it signs in by other means"
    assert find_unknown_scram_users(held, {user: one}, None) == find_unknown_scram_users(held, None, {}) == {}, (
        "one side does not tell"
    )
    denied = [entry(replace(WRITE, permission=Permission.DENY), AclPurpose.COPIED)]
    assert find_unknown_scram_users(denied, {user: one}, {}) == {}
