"""The file in which a user says what is expected of mirrors: what it means, and how its mistakes are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mirror_core.decide.expectation_config import JudgedTable, parse_expectations
from mirror_core.evidence.expectation_suites import PARITY, READINESS, SUITES, SYNC, TableExpectations
from mirror_core.evidence.expectations import load_expectations
from mirror_core.kafka.config import Config, load_config
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import MirrorName

TIER: dict[str, Any] = {"name": "payments", "topics": ["pay[.].*", "orders"]}
OWN: dict[str, Any] = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "lag", "max_value": 9}}


def config(folder: Path, section: object, **files: object) -> Config:
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    path = folder / "mirrorbook.yaml"
    clusters = {"east": {"bootstrap.servers": "127.0.0.1:1"}}
    path.write_text(yaml.safe_dump({"clusters": clusters, "expectations": section}), encoding="utf-8")
    return load_config(path)


def test_the_first_tier_that_names_a_topic_has_it() -> None:
    rest = {"name": "rest", "topics": [".*"]}
    found = parse_expectations("f", {"tiers": [TIER, rest]})
    tiers = {topic: found.find_tier(topic) for topic in ("orders", "pay.in", "payroll", "mirrorbook.heartbeats.m")}
    assert tiers == {"orders": "payments", "pay.in": "payments", "payroll": "rest", "mirrorbook.heartbeats.m": ""}
    assert parse_expectations("f", {"tiers": [rest, TIER]}).find_tier("orders") == "rest"


def test_a_tier_may_be_for_some_mirrors_only_and_takes_its_expectations_with_it() -> None:
    own = [{**OWN, "tier": "payments"}, {"type": "expect_table_row_count_to_equal", "kwargs": {"value": 1}}]
    found = parse_expectations("f", {"tiers": [{**TIER, "mirrors": ["m1"]}], "readiness": own})
    assert [
        len(found.for_mirror(MirrorName(name)).expectations[JudgedTable.READINESS]) for name in ("m1", "m1-back", "m2")
    ] == [2, 2, 1]
    assert found.for_mirror(MirrorName("m1-back")).find_tier("orders") == "payments", (
        "the way home is the same applications'"
    )
    assert found.for_mirror(MirrorName("m2")).find_tier("orders") == ""


def test_a_file_is_found_beside_the_one_that_names_it(tmp_path: Path) -> None:
    loaded = config(tmp_path, "more.yaml", more={"tiers": [{**TIER, "max_lag": 5}], "parity": []})
    (tier,) = load_expectations(loaded).tiers
    assert (tier.name, dict(tier.limits), tier.no_drift) == ("payments", {"max_lag": 5.0}, False)


def test_without_a_section_nothing_more_is_expected(tmp_path: Path) -> None:
    loaded = config(tmp_path, {})
    assert loaded.expectations == {}
    for suite in SUITES.values():
        assert TableExpectations(
            suite=suite, user_expectations=load_expectations(loaded, suite)
        ).list_expectations() == list(suite.expectations)


def test_ours_stand_whatever_is_added() -> None:
    raw = {"tiers": [{**TIER, "max_lag": 5, "drift": "none"}], **{str(judging): [OWN] for judging in JudgedTable}}
    for suite in SUITES.values():
        found = TableExpectations(suite=suite, user_expectations=parse_expectations("f", raw)).list_expectations()
        assert found[: len(suite.expectations)] == list(suite.expectations)
        assert len(found) > len(suite.expectations)
        assert not any(one.by for one in suite.expectations)


WRONG: list[tuple[object, str]] = [
    ([], r"f: must be a mapping"),
    ({"tier": []}, r"f: unknown 'tier'; known are parity, readiness, sync, tiers"),
    ({"tiers": {}}, r"f: tiers: must be a list"),
    (
        {"tiers": [{**TIER, "max_lags": 1}]},
        r"f: tiers\[0\]: unknown 'max_lags'; known are drift, max_drill_age_s, max_l",
    ),
    ({"tiers": [{"topics": ["a"]}]}, r"f: tiers\[0\]\.name: must be text of letters"),
    ({"tiers": [{**TIER, "name": 'a"b'}]}, r"f: tiers\[0\]\.name: must be text of letters"),
    ({"tiers": [{"name": "a", "topics": []}]}, r"f: tiers\[0\] \(a\)\.topics: must be a list of names or regular"),
    ({"tiers": [{"name": "a", "topics": ["("]}]}, r"f: tiers\[0\] \(a\)\.topics: '\(' is not a regular expression"),
    ({"tiers": [{**TIER, "mirrors": "m"}]}, r"f: tiers\[0\] \(payments\)\.mirrors: must be a list"),
    ({"tiers": [{**TIER, "max_lag": -1}]}, r"f: tiers\[0\] \(payments\)\.max_lag: must be a number, 0 or more"),
    ({"tiers": [{**TIER, "max_lag": True}]}, r"f: tiers\[0\] \(payments\)\.max_lag: must be a number"),
    ({"tiers": [{**TIER, "max_lag": float("nan")}]}, r"f: tiers\[0\] \(payments\)\.max_lag: must be a number"),
    ({"tiers": [{**TIER, "drift": "some"}]}, r"f: tiers\[0\] \(payments\)\.drift: can be `none` only; leave it out"),
    ({"tiers": [TIER, TIER]}, r"f: tiers: more than one is named 'payments': rename one"),
    ({"sync": [{"kwargs": {}}]}, r"f: sync\[0\]\.type: must name an expectation, such as expect_column_values"),
    ({"sync": [{**OWN, "if": 1}]}, r"f: sync\[0\]: unknown 'if'; known are .*kwargs, .*tier, type"),
    ({"sync": [{**OWN, "kwargs": []}]}, r"f: sync\[0\]\.kwargs: must be a mapping"),
    (
        {"tiers": [TIER], "sync": [{**OWN, "tier": "x"}]},
        r"f: sync\[0\]\.tier: there is no tier 'x'; there are payments",
    ),
    (
        {"tiers": [TIER], "sync": [{"type": "x", "kwargs": {"row_condition": "a == 1"}, "tier": "payments"}]},
        r"f: sync\[0\]: has both `tier` and row_condition",
    ),
]


@pytest.mark.parametrize(("raw", "words"), WRONG)
def test_a_mistake_is_named_with_its_place_and_what_can_be_written(raw: object, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        parse_expectations("f", raw)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (
            {**OWN, "type": "expect_column_values_to_be_betwen"},
            r"\.type: Great Expectations knows no '.*betwen'; do you mean expect_column_values_to_be_between",
        ),
        (
            {**OWN, "kwargs": {"column": "lags", "max_value": 1}},
            r"\.kwargs: the table of readiness has no column 'la",
        ),
        (
            {**OWN, "kwargs": {"column": "lag", "most": 1}},
            r"\.kwargs: .*between does not take them so: most: extra",
        ),
        ({**OWN, "kwargs": {"max_value": 1}}, r".* does not take them so: column: field required"),
        (
            {**OWN, "kwargs": {**OWN["kwargs"], "result_format": "BASIC"}},
            r"\.kwargs: 'result_format' cannot be given here",
        ),
        (
            {**OWN, "kwargs": {**OWN["kwargs"], "row_condition": "lag ="}},
            r": expect_column_values_to_be_between cannot be evaluated on the table of readiness: invalid syntax",
        ),
        (
            {"type": "unexpected_rows_expectation", "kwargs": {"unexpected_rows_query": "SELECT 1 FROM {batch}"}},
            r": unexpected_rows_expectation cannot be evaluated on the table of readiness: No provider",
        ),
        (
            {"type": OWN["type"], "kwargs": {"column": "lag", "max_value": {"$PARAMETER": "x"}}},
            r": expect_column_values_to_be_between cannot be evaluated on the table of readiness: .*No value found",
        ),
    ],
)
def test_great_expectations_is_asked_about_its_own_words(tmp_path: Path, own: dict[str, Any], words: str) -> None:
    loaded = config(tmp_path, {"readiness": [own]})
    with pytest.raises(BadRequest, match=rf"mirrorbook\.yaml: expectations: readiness\[0\]{words}"):
        load_expectations(loaded, READINESS)


def test_what_is_written_well_is_taken_also_as_great_expectations_shows_it(tmp_path: Path) -> None:
    shown = {**OWN, "meta": {}, "severity": "critical", "id": "0cf2"}
    own = [shown, {"type": "expect_column_max_to_be_between", "kwargs": {"column": "behind_s", "max_value": 1}}]
    drift = {"type": "expect_column_values_to_not_be_in_set", "kwargs": {"column": "action", "value_set": ["skip"]}}
    found = load_expectations(config(tmp_path, {"readiness": own, "sync": [drift]}), READINESS, SYNC, PARITY)
    assert [
        len(found.expectations[judging]) for judging in (JudgedTable.READINESS, JudgedTable.SYNC, JudgedTable.PARITY)
    ] == [2, 1, 0]


def test_a_mistake_holds_up_nothing_but_what_is_judged_by_it(tmp_path: Path) -> None:
    loaded = config(tmp_path, "gone.yaml")
    with pytest.raises(BadRequest, match=r"mirrorbook\.yaml: expectations: .*gone\.yaml cannot be read"):
        load_expectations(loaded)
    (tmp_path / "gone.yaml").write_text("tiers: [", encoding="utf-8")
    with pytest.raises(BadRequest, match=r"gone\.yaml line \d+: not valid YAML"):
        load_expectations(loaded)
    loaded = config(tmp_path, 7)
    with pytest.raises(BadRequest, match=r"mirrorbook\.yaml: expectations: must be a mapping; .*the path of a file"):
        load_expectations(loaded)
