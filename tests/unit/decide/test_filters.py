"""Live filters of topics and groups."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.drills import to_drill_group
from mirror_core.decide.filters import (
    build_acl_filter,
    build_group_filter,
    build_setting_filter,
    build_topic_filter,
    parse_topic_filter,
)
from mirror_core.decide.topic_settings import ALWAYS_SYNCED_KEYS
from mirror_core.model.acl import Acl, Operation, Pattern, Permission, Resource
from mirror_core.model.errors import BadRequest
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName, MirrorName, format_reverse_name, get_heartbeat_topic

MIRROR = Mirror(
    name=MirrorName("m"),
    source=ClusterName("east"),
    destination=ClusterName("west"),
    source_id="e",
    destination_id="w",
    topics=("orders.*", "bills"),
    exclude_topics=("orders-tmp.*",),
    producer_id=1 << 62,
    desired=DesiredState.STARTED,
    created_ms=0,
)


def test_whole_names_are_matched_and_exclusion_wins() -> None:
    chosen = build_topic_filter(MIRROR)
    names = ["orders", "orders-1", "my-orders", "bills", "bills-2", "orders-tmp", "orders-tmp-3"]
    assert [name for name in names if name in chosen] == ["orders", "orders-1", "bills"]


def test_internal_topics_are_never_mirrored() -> None:
    everything = build_topic_filter(replace(MIRROR, topics=(".*",), exclude_topics=()))
    assert "__consumer_offsets" not in everything
    assert "__mirrorbook_state" not in everything
    assert "__mirrorbook_active" not in everything
    assert "_schemas" in everything


def test_our_own_groups_are_never_synced() -> None:
    everything = build_group_filter(MIRROR)
    assert "mirrorbook-state-reader" not in everything
    assert "mirrorbooks" in everything


def test_a_drill_s_group_is_carried_by_its_own_mirror_and_by_no_other() -> None:
    own = to_drill_group("m")
    for name, carried in (("drill.m", True), ("m", False), ("drill.m2", False), ("drill.", False)):
        mirror = replace(MIRROR, name=MirrorName(name), groups=(".*",))
        assert (own in build_group_filter(mirror)) == carried
        assert "mirrorbook-canary-drill.m" not in build_group_filter(mirror)
        assert f"{own}2" not in build_group_filter(mirror) or name == "drill.m2"


@pytest.mark.parametrize(
    "broken", [replace(MIRROR, topics=("fine", "a(b")), replace(MIRROR, exclude_topics=("a(b",))], ids=["in", "out"]
)
def test_a_bad_expression_is_named(broken: Mirror) -> None:
    with pytest.raises(BadRequest, match=r"'a\(b' is not a regular expression"):
        build_topic_filter(broken)


def test_a_mirror_carries_its_own_heartbeats_whatever_its_filters_say_and_nobody_elses() -> None:
    own, others = get_heartbeat_topic(MIRROR.name), get_heartbeat_topic(MirrorName("other"))
    for mirror in (replace(MIRROR, topics=(".*",), exclude_topics=()), replace(MIRROR, exclude_topics=(".*",))):
        assert own in build_topic_filter(mirror)
        assert others not in build_topic_filter(mirror)
    back = replace(MIRROR, name=format_reverse_name(MIRROR.name))
    assert own in build_topic_filter(back), "the same topic goes both ways, as an application's does"


NAMES: Final = st.text("abC1._-", max_size=12)
PIECES: Final = st.sampled_from(
    ["a", "b", "C", "1", "-", r"\.", ".", "[ab]", "[^a]", "[a-c.]", r"\d", r"\w", r"[^\W_]", ""]
)
EXPRESSIONS: Final = st.recursive(
    PIECES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "{2}", "{0,2}", "{1,}"])).map(
            lambda p: f"(?:{p[0]}){p[1]}"
        ),
        inner.map(lambda one: f"(?i:{one})"),
    ),
    max_leaves=6,
)


@given(EXPRESSIONS, NAMES)
def test_an_expression_means_what_python_would_say(expression: str, name: str) -> None:
    assert (name in parse_topic_filter([expression])) == (re.fullmatch(expression, name) is not None)


@pytest.mark.parametrize("name", ["a\nb", "a\n", "\n"])
def test_no_name_with_a_line_break_escapes_a_filter_for_all_groups(name: str) -> None:
    assert name in build_group_filter(replace(MIRROR, groups=(".*",)))
    assert name not in build_group_filter(replace(MIRROR, groups=(".*",), exclude_groups=(".*",)))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("expression", ["(a+)+b", "(a|a)*b", "(.*a){20}b", "a*" * 30 + "b"])
def test_an_expression_that_would_backtrack_without_end_takes_one_look_at_each_character(expression: str) -> None:
    topics = build_topic_filter(replace(MIRROR, topics=(expression,)))
    groups = build_group_filter(replace(MIRROR, groups=(expression,)))
    group = "a" * 32_000
    assert group[:249] not in topics
    assert group not in groups
    assert f"{group}b" in groups


@pytest.mark.parametrize("expression", ["(?!tmp).*", "(?<!x)a", r"(a)\1", "a*+", "(?>a)b", r"a\Z", "a{,3}", "a{2000}"])
def test_what_cannot_be_matched_in_bounded_time_or_would_mean_something_else_is_refused(expression: str) -> None:
    with pytest.raises(BadRequest, match="RE2"):
        build_topic_filter(replace(MIRROR, topics=(expression,)))


def test_an_expression_that_is_no_text_is_refused() -> None:
    with pytest.raises(BadRequest, match="is not a regular expression"):
        parse_topic_filter(["a\udcff"])


def right(operation: Operation, name: str, resource: Resource = Resource.TOPIC, **more: Any) -> Acl:
    return Acl(resource=resource, name=name, principal="User:app", operation=operation, **more)


EXCLUDED_RIGHTS: Final = [
    (right(Operation.READ, "orders-1"), True),
    (right(Operation.READ, "bills"), False),
    (right(Operation.WRITE, "orders-1"), False),
    (right(Operation.READ, "orders-1", Resource.GROUP), False),
    (right(Operation.READ, "orders-1", permission=Permission.DENY), False),
    (right(Operation.ALL, "orders-1"), True),
    (right(Operation.ALL, "bills"), False),
    (right(Operation.READ, "*"), True),
    (right(Operation.WRITE, "*"), False),
    (right(Operation.READ, "ord", pattern=Pattern.PREFIXED), True),
    (right(Operation.READ, "bill", pattern=Pattern.PREFIXED), False),
]


@pytest.mark.parametrize(("acl", "is_excluded"), EXCLUDED_RIGHTS, ids=[str(acl) for acl, _ in EXCLUDED_RIGHTS])
def test_a_right_is_excluded_if_it_grants_any_part_of_what_is_named(acl: Acl, is_excluded: bool) -> None:
    chosen = build_acl_filter(replace(MIRROR, exclude_rights=("READ TOPIC orders.*",)), ("orders-1", "bills"), ("g",))
    assert (acl not in chosen) is is_excluded
    assert acl in build_acl_filter(MIRROR, ("orders-1", "bills"), ("g",)), "no filter leaves nothing out"


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("READ", "write operation, resource type and name"),
        ("READ TOPIC", "write operation, resource type and name"),
        ("read TOPIC .*", "'read' is none of ALL, READ, WRITE"),
        ("READ TOPICS .*", "'TOPICS' is none of TOPIC, GROUP"),
        ("READ TOPIC (", "is not a regular expression"),
    ],
)
def test_an_excluded_right_that_can_match_nothing_is_refused(expression: str, reason: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(reason)):
        build_acl_filter(replace(MIRROR, exclude_rights=(expression,)), (), ())


def test_excluded_settings_are_each_clusters_own_but_for_those_that_a_mirror_needs() -> None:
    chosen = build_setting_filter(replace(MIRROR, exclude_settings=(r"segment\..*",)))
    assert chosen.select({"segment.ms": "1", "flush.ms": "2"}) == {"flush.ms": "2"}
    everything = build_setting_filter(replace(MIRROR, exclude_settings=(".*",)))
    assert set(everything.select(dict.fromkeys([*ALWAYS_SYNCED_KEYS, "flush.ms"], "1"))) == ALWAYS_SYNCED_KEYS


@pytest.mark.parametrize("key", sorted(ALWAYS_SYNCED_KEYS))
def test_a_setting_that_a_mirror_needs_cannot_be_excluded_by_its_name(key: str) -> None:
    for expression in (key, re.escape(key)):
        with pytest.raises(BadRequest, match=re.escape(f"a mirror sets {key} itself")):
            build_setting_filter(replace(MIRROR, exclude_settings=(expression,)))
