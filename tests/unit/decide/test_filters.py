"""Live filters of topics and groups."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.drills import to_drill_group
from mirror_core.decide.filters import build_group_filter, build_topic_filter, parse_topic_filter
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
