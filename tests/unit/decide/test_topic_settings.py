"""Settings of mirror topics: safe for copying while mirrored, the source's afterwards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.topic_settings import (
    BATCH_MARGIN_BYTES,
    DEFAULT_REPLICAS,
    MIRROR_CONFIGS,
    MIRROR_HELD_KEYS,
    NEVER_COPIED_KEYS,
    add_source_defaults,
    build_promotion_configs,
    build_wanted_configs,
    choose_replication_factor,
    compute_raised_limit,
    diff_configs,
    is_compacted,
    parse_replication_factor,
)
from mirror_core.model.errors import BadRequest

keys = st.sampled_from([*sorted(MIRROR_HELD_KEYS | NEVER_COPIED_KEYS), "segment.bytes", "segment.ms", "flush.ms"])
overrides = st.dictionaries(keys, st.integers(1, 2**31 - 1).map(str))


def apply(current: dict[str, str], changes: dict[str, str | None]) -> dict[str, str]:
    merged = {**current, **changes}
    return {key: value for key, value in merged.items() if value is not None}


@given(source=overrides, current=overrides, factor=st.integers(1, 5))
def test_while_mirrored_nothing_expires_whatever_either_side_says(
    source: dict[str, str], current: dict[str, str], factor: int
) -> None:
    effective = {"max.message.bytes": "1048588", **source}
    wanted = build_wanted_configs(source, effective, factor)
    after = apply(current, diff_configs(wanted, current))
    assert MIRROR_CONFIGS.items() <= after.items()
    assert int(after["max.message.bytes"]) >= min(int(effective["max.message.bytes"]) + 1, 2**31 - 1)
    assert int(after["min.insync.replicas"]) <= factor
    ordinary = MIRROR_HELD_KEYS | NEVER_COPIED_KEYS
    assert {k: v for k, v in after.items() if k not in ordinary} == {
        k: v for k, v in source.items() if k not in ordinary
    }


def test_the_mirrors_own_settings_are_these() -> None:
    source = {"retention.ms": "1000", "cleanup.policy": "compact", "compression.type": "gzip"}
    assert build_wanted_configs(source, {"max.message.bytes": "2000000", **source}, 3) == {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "cleanup.policy": "delete",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": "9223372036854775807",
        "message.timestamp.after.max.ms": "9223372036854775807",
        "compression.type": "producer",
        "unclean.leader.election.enable": "false",
        "min.insync.replicas": "2",
        "max.message.bytes": "3048576",
    }


def test_a_cleaned_mirror_topic_keeps_what_the_source_keeps_and_for_as_long() -> None:
    source = {"cleanup.policy": "compact", "retention.ms": "1000", "max.compaction.lag.ms": "7"}
    effective = {**source, "delete.retention.ms": "86400000", "min.compaction.lag.ms": "0"}
    before, after = (build_wanted_configs(source, effective, 1, is_cleaned=cleaned) for cleaned in (False, True))
    assert {key: after[key] for key in after if after[key] != before.get(key)} == {
        "cleanup.policy": "compact,delete",
        "delete.retention.ms": "86400000",
        "min.compaction.lag.ms": "0",
    }
    assert before.keys() <= after.keys()
    assert (after["retention.ms"], after["retention.bytes"]) == ("-1", "-1")


@pytest.mark.parametrize(
    ("policy", "expected"), [("compact", True), ("delete,compact", True), ("compact, delete", True), ("delete", False)]
)
def test_which_policies_clean_by_key(policy: str, expected: bool) -> None:
    assert is_compacted({"cleanup.policy": policy}) is expected
    assert not is_compacted({})


@given(source=overrides, current=overrides, factor=st.integers(1, 5))
def test_promotion_gives_the_sources_settings_and_leaves_the_clusters_own(
    source: dict[str, str], current: dict[str, str], factor: int
) -> None:
    after = apply(current, diff_configs(build_promotion_configs(source, factor), current))
    for key in after.keys() | source.keys():
        if key in NEVER_COPIED_KEYS:
            assert after.get(key) == current.get(key)
        elif key == "min.insync.replicas":
            assert int(after[key]) == min(int(source[key]), factor)
        else:
            assert after.get(key) == source.get(key)


def test_defaults_of_the_source_count_where_the_destination_has_others_or_does_not_tell_them() -> None:
    effective = {"retention.ms": "9", "retention.bytes": "-1", "max.message.bytes": "7", "segment.ms": "5"}
    defaults = {"retention.ms": None, "retention.bytes": "-1", "max.message.bytes": "6", "segment.ms": "4"}
    assert add_source_defaults({}, effective, defaults) == {"retention.ms": "9", "max.message.bytes": "7"}
    assert add_source_defaults({"retention.ms": "8"}, effective, {"retention.ms": "1"}) == {"retention.ms": "8"}
    assert add_source_defaults({}, effective, {}) == {}, "which settings there are is not known"


def test_how_long_a_compacted_topic_keeps_tombstones_is_the_sources_after_promotion_too() -> None:
    effective, defaults = {"cleanup.policy": "compact", "delete.retention.ms": "9"}, {"delete.retention.ms": "1"}
    assert add_source_defaults({}, effective, {**defaults, "cleanup.policy": "compact"}) == {"delete.retention.ms": "9"}
    assert add_source_defaults({}, {**effective, "cleanup.policy": "delete"}, defaults) == {}


@pytest.mark.parametrize(
    ("key", "source", "destination", "kept"),
    [
        ("min.insync.replicas", "1", "2", False),
        ("min.insync.replicas", "2", "1", True),
        ("min.insync.replicas", "1", None, True),
        ("unclean.leader.election.enable", "true", "false", False),
        ("unclean.leader.election.enable", "true", None, False),
        ("unclean.leader.election.enable", "false", "true", True),
    ],
)
def test_a_default_that_makes_acknowledged_records_less_safe_is_not_kept(
    key: str, source: str, destination: str | None, kept: bool
) -> None:
    assert (key in add_source_defaults({}, {key: source}, {key: destination})) is kept
    assert add_source_defaults({key: source}, {key: source}, {key: destination}) == {key: source}, "set on the topic"


@given(current=overrides, wanted=overrides)
def test_changes_made_once_leave_nothing_to_change(current: dict[str, str], wanted: dict[str, str]) -> None:
    after = apply(current, diff_configs(wanted, current))
    assert diff_configs(wanted, after) == {}


@pytest.mark.parametrize(
    ("needs", "source", "limit"),
    [
        (3_000_000, 20_000_000, 20_000_000 + BATCH_MARGIN_BYTES),  # raised on the source since the last sync
        (3_000_000, 1_048_588, 6_000_000),  # older than the source's present limit
        (3_000_000, None, 6_000_000),
        (2**30, 1_048_588, 2**31 - 1),
    ],
)
def test_a_refused_batch_raises_the_limit_in_one_step(needs: int, source: int | None, limit: int) -> None:
    assert compute_raised_limit(needs, source) == limit


def test_as_many_replicas_as_the_source_has_and_the_destination_can() -> None:
    assert [choose_replication_factor(s, b) for s, b in ((3, 5), (3, 2), (1, 3), (0, 3))] == [3, 2, 1, 1]
    assert choose_replication_factor(DEFAULT_REPLICAS, 3) == DEFAULT_REPLICAS


def test_a_replication_factor_is_the_sources_the_destinations_default_or_a_number() -> None:
    assert [parse_replication_factor(policy, 3) for policy in ("source", "default", "2")] == [3, DEFAULT_REPLICAS, 2]
    for policy in ("", "0", "-1", "2.5", "sources", "32768", "\u0663"):
        with pytest.raises(BadRequest, match="say source, default or a number"):
            parse_replication_factor(policy, 3)
