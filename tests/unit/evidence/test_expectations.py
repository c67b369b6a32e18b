"""What Great Expectations itself says of each table, and of what a user adds. It takes seconds to load."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mirror_core.decide.expectation_config import NO_EXPECTATIONS, TIER_LIMITS, UserExpectations, parse_expectations
from mirror_core.evidence import expectations
from mirror_core.evidence.expectation_suites import PARITY, READINESS, SYNC, Suite, TableExpectations
from mirror_core.evidence.expectations import TableJudgement, judge_table, judge_tables
from mirror_core.model.errors import BadRequest
from mirror_core.model.parity_verdict import ParityVerdict
from tests.support.html_pages import Page

FINE: Mapping[str, Any] = {
    "topic": "orders",
    "partition": 3,
    "chunk": 0,
    "start": 0,
    "end": 10,
    "level": 2,
    "src_count": 10,
    "dst_count": 10,
    "src_digest": "d1",
    "dst_digest": "d1",
    "compared": 10,
    "differing": 0,
    "error": "",
}
READY: Mapping[str, Any] = {
    "topic": "orders",
    "partition": 3,
    "state": "MIRRORING",
    "reason": "",
    "position": 100,
    "source_end": 102,
    "lag": 2,
    "behind_s": 0.5,
    "missing": 0,
    "standstill_s": 4.5,
    "proved": 90,
    "proof_age_s": 60.0,
    "sync_age_s": 1.0,
    "drill_age_s": 3600.0,
    "heartbeat_age_s": 1.0,
    "data_plane": True,
    "refused": "",
}
SYNCED: Mapping[str, Any] = {
    "part": "configs",
    "subject": "orders: retention.ms",
    "topic": "orders",
    "source": "1",
    "destination": "1",
    "action": "equal",
    "pending": False,
    "reason": "",
}
ROWS = {PARITY.table_kind: FINE, READINESS.table_kind: READY, SYNC.table_kind: SYNCED}


def judge(
    rows: Sequence[dict[str, Any]],
    docs: Path | None = None,
    *,
    suite: Suite = PARITY,
    more: UserExpectations = NO_EXPECTATIONS,
) -> TableJudgement:
    table = pa.Table.from_pylist([{**ROWS[suite.table_kind], **row} for row in rows], schema=suite.schema)
    return judge_table(table, docs, TableExpectations(suite=suite, user_expectations=more))


def broken(judged: TableJudgement) -> dict[str, str]:
    return {held.what: held.where for held in judged.held if not held.held}


def payments(**more: object) -> UserExpectations:
    """A tier of one topic, which is not the one that rows are about unless they say so."""
    return parse_expectations("f.yaml", {"tiers": [{"name": "payments", "topics": ["pay.*"], **more}]})


COUNTS = "expect_column_pair_values_to_be_equal(src_count, dst_count)"
DIGESTS = "expect_column_pair_values_to_be_equal(src_digest, dst_digest)"
DIFFERING = "expect_column_values_to_be_in_set(differing)"
ERROR = "expect_column_values_to_be_in_set(error)"
COMPARED = "expect_column_sum_to_be_between(compared)"
ROWS_THERE = "expect_table_row_count_to_be_between()"


def test_a_table_of_equal_chunks_is_a_success_and_says_what_was_expected(capfd: pytest.CaptureFixture[str]) -> None:
    judged = judge([{}, {"chunk": 1, "compared": 0}])
    assert judged.success
    assert judged.verdict is ParityVerdict.PASSED
    assert {held.what for held in judged.held} == {ROWS_THERE, COMPARED, COUNTS, DIGESTS, DIFFERING, ERROR}
    assert broken(judged) == {}
    assert {held.where for held in judged.held} == {""}
    assert judged.docs == ""
    assert judge([{"compared": 1}]).success, "one record is enough"
    assert capfd.readouterr() == ("", ""), "no progress bars beside our own words"


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"dst_count": 9}, COUNTS),
        ({"src_count": None}, COUNTS),
        ({"dst_count": None}, COUNTS),
        ({"src_digest": "d2"}, DIGESTS),
        ({"dst_digest": ""}, DIGESTS),
        ({"differing": 1}, DIFFERING),
        ({"error": "no leader"}, ERROR),
    ],
)
def test_each_defect_fails_what_it_breaks_and_names_the_chunk(row: dict[str, Any], what: str) -> None:
    judged = judge([{}, {"chunk": 7, **row}])
    assert not judged.success
    assert broken(judged) == {what: "orders-3 chunk 7"}


def test_counts_that_could_be_read_on_neither_side_are_equal_but_their_error_is_not_passed() -> None:
    judged = judge([{}, {"src_count": None, "dst_count": None, "error": "no leader"}])
    assert not judged.success
    assert list(broken(judged)) == [ERROR]


def test_nothing_compared_is_no_success() -> None:
    assert set(broken(judge([{"compared": 0}]))) == {COMPARED}
    empty = judge([])
    assert not empty.success
    assert ROWS_THERE in broken(empty)


def test_the_first_twenty_places_are_named() -> None:
    many = broken(judge([{"chunk": chunk, "differing": 1} for chunk in range(21)]))[DIFFERING]
    assert many.startswith("orders-3 chunk 0; orders-3 chunk 1; ")
    assert many.endswith("; orders-3 chunk 19; and 1 more")
    twenty = broken(judge([{"chunk": chunk, "differing": 1} for chunk in range(20)]))[DIFFERING]
    assert twenty.endswith("orders-3 chunk 19")


@pytest.mark.parametrize(
    ("suite", "row", "verdict", "what", "where"),
    [
        (READINESS, {"state": "FAILED"}, "failed", "expect_column_values_to_not_be_in_set(state)", "a-0: FAILED"),
        (READINESS, {"refused": "held"}, "failed", "expect_column_values_to_be_in_set(refused)", "a-0: held"),
        (READINESS, {"lag": None}, "indeterminate", "expect_column_values_to_not_be_null(lag)", "a-0: unknown"),
        (SYNC, {"action": "refuse"}, "failed", "expect_column_values_to_not_be_in_set(action)", "acls <b>a</b>"),
    ],
)
def test_each_defect_of_readiness_and_sync_is_found_and_named(
    suite: Suite, row: dict[str, Any], verdict: str, what: str, where: str
) -> None:
    here = {"topic": "a", "partition": 0} if suite is READINESS else {"part": "acls", "subject": "<b>a</b>"}
    judged = judge([{}, {**here, **row}], suite=suite)
    assert judge([{}], suite=suite).verdict is ParityVerdict.PASSED
    assert (judged.verdict, broken(judged)) == (verdict, {what: where})


@pytest.mark.parametrize("suite", [READINESS, SYNC])
def test_nothing_looked_at_is_indeterminate(suite: Suite) -> None:
    judged = judge([], suite=suite)
    assert judged.verdict is ParityVerdict.INDETERMINATE
    assert broken(judged)[ROWS_THERE] == "found 0"


@pytest.mark.parametrize(
    ("limit", "row"),
    [
        ({"max_lag": 1}, {"lag": 2}),
        ({"max_lag_s": 0.4}, {"behind_s": 0.5}),
        ({"max_missing": 0}, {"missing": 1}),
        ({"max_standstill_s": 4}, {"standstill_s": 4.5}),
        ({"max_proof_age_s": 59}, {"proof_age_s": 60.0}),
        ({"max_sync_age_s": 0}, {"sync_age_s": 1.0}),
        ({"max_drill_age_s": 100_000}, {"drill_age_s": float("inf")}),
    ],
)
def test_a_limit_of_a_tier_fails_what_would_pass_and_only_there(limit: dict[str, float], row: dict[str, Any]) -> None:
    elsewhere, there = {**row}, {**row, "topic": "pay.in"}
    well = {"topic": "pay.out", **dict.fromkeys(READY.keys() & set(TIER_LIMITS.values()), 0)}
    more = payments(**limit)
    assert judge([elsewhere, there, well], suite=READINESS).verdict is ParityVerdict.PASSED
    assert judge([elsewhere, well], suite=READINESS, more=more).verdict is ParityVerdict.PASSED
    judged = judge([elsewhere, there, well], suite=READINESS, more=more)
    assert judged.verdict is ParityVerdict.FAILED
    assert judged.success, "not by our own rules"
    (unmet,) = judged.unmet
    word, most = next(iter(limit.items()))
    assert unmet.by == f"tier payments: {word} {most:g}"
    assert unmet.where.startswith("pay.in-3: ")
    assert ";" not in unmet.where


def test_a_limit_for_what_is_not_known_or_of_a_tier_without_topics_is_no_pass() -> None:
    more = payments(max_lag_s=5)
    unknown = judge([{"topic": "pay.in", "behind_s": None}], suite=READINESS, more=more)
    assert (unknown.verdict, [held.where for held in unknown.unmet]) == (
        ParityVerdict.INDETERMINATE,
        ["pay.in-3: unknown"],
    )
    clocks = judge([{"topic": "pay.in", "sync_age_s": None}], suite=READINESS, more=payments(max_sync_age_s=5))
    assert clocks.verdict is ParityVerdict.INDETERMINATE
    nobody = judge([{}], suite=READINESS, more=more)
    assert nobody.verdict is ParityVerdict.INDETERMINATE
    assert [(held.by, held.where) for held in nobody.unmet] == [("tier payments", "found 0")]
    heartbeats = judge([{"topic": "mirrorbook.heartbeats.m"}], suite=READINESS, more=payments(topics=[".*"]))
    assert heartbeats.verdict is ParityVerdict.INDETERMINATE, "only ours would be looked at"


def test_no_limit_makes_a_pass_of_what_our_own_rules_fail() -> None:
    more = parse_expectations(
        "f.yaml",
        {
            "tiers": [{"name": "all", "topics": [".*"], "max_lag": 10**9, "drift": "none"}],
            "parity": [
                {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "differing", "value_set": [1]}}
            ],
        },
    )
    assert judge([{"state": "FAILED"}], suite=READINESS, more=more).verdict is ParityVerdict.FAILED
    assert judge([{"action": "refuse"}], suite=SYNC, more=more).verdict is ParityVerdict.FAILED
    assert not judge([{"differing": 1}], more=more).success


def test_drift_of_a_tier_is_what_a_sync_would_change_but_for_groups() -> None:
    more = payments(drift="none")
    there = {"topic": "pay.in", "action": "set"}
    moving = {**there, "part": "groups", "subject": "g pay.in-0", "action": "commit", "pending": True}
    assert judge([{"pending": True}, there, moving], suite=SYNC, more=more).verdict is ParityVerdict.PASSED
    judged = judge([{}, {**there, "pending": True}], suite=SYNC, more=more)
    assert (judged.verdict, [held.where for held in judged.unmet]) == (
        ParityVerdict.FAILED,
        ["configs orders: retention.ms"],
    )
    assert judge([{}, moving], suite=SYNC, more=more).verdict is ParityVerdict.INDETERMINATE


def test_own_expectations_are_added_and_unknown_values_do_not_pass_them() -> None:
    kwargs: dict[str, object] = {"column": "missing", "max_value": 0}
    own: dict[str, object] = {"type": "expect_column_max_to_be_between", "kwargs": kwargs}
    more = parse_expectations("f.yaml", {"readiness": [own]})
    assert judge([{}], suite=READINESS, more=more).verdict is ParityVerdict.PASSED
    worse = judge([{}, {"missing": 7}], suite=READINESS, more=more)
    assert (worse.verdict, [str(held) for held in worse.unmet]) == (
        ParityVerdict.FAILED,
        ["f.yaml: readiness[0]: expect_column_max_to_be_between(missing): found 7"],
    )
    assert judge([{}, {"missing": None}], suite=READINESS, more=more).verdict is ParityVerdict.INDETERMINATE
    nowhere = parse_expectations(
        "f.yaml", {"readiness": [{**own, "kwargs": {**kwargs, "row_condition": 'topic == "x"'}}]}
    )
    assert judge([{}], suite=READINESS, more=nowhere).verdict is ParityVerdict.INDETERMINATE
    counted = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "compared", "min_value": 20}}
    parity = judge([{}], more=parse_expectations("f.yaml", {"parity": [counted]}))
    assert (parity.success, parity.verdict) == (True, ParityVerdict.FAILED)


def test_the_data_docs_load_nothing_from_elsewhere_and_show_names_of_others_as_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    tables = [
        (TableExpectations(suite=suite), pa.Table.from_pylist([{**ROWS[suite.table_kind], **row}], schema=suite.schema))
        for suite, row in ((READINESS, {"refused": evil}), (SYNC, {"subject": evil, "action": "refuse"}))
    ]
    ready, synced = judge_tables(tables, tmp_path / "docs")
    assert ready.docs == synced.docs == str(tmp_path / "docs" / "index.html")
    assert list(broken(ready).values()) == [f"orders-3: {evil}"]
    pages = list((tmp_path / "docs").rglob("*.html"))
    assert {"readiness.html", "sync.html", "index.html"} <= {page.name for page in pages}
    assert Path(ready.docs) in pages
    index = Page(Path(ready.docs).read_text(encoding="utf-8"))
    assert index.links == [ready.validation_page, synced.validation_page]
    for kind, link in zip(("readiness", "sync"), index.links, strict=True):
        assert link.startswith(f"validations/{kind}/")
        assert (tmp_path / "docs" / link) in pages
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|link|img|source|iframe)\b[^>]*(?:https?:)?//[^>]*>|url\([^)]*//[^)]*\)", text)
        assert not loaded, page
        assert evil not in text, page
        assert "</html>" in text
    assert any("&lt;script&gt;alert(1)" in page.read_text(encoding="utf-8") for page in pages)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('<script src="https://a.example/x.js"></script>', ""),
        ("<SCRIPT async SRC='//a.example/x.js'> </SCRIPT>", ""),
        ('<link rel="stylesheet" href="http://a.example/x.css">', ""),
        ('<img src="https://a.example/x.png" alt="x">', ""),
        ('<iframe src="//a.example"></iframe>', "</iframe>"),
        ("<style>a { background: url('https://a.example/x.png'); }</style>", "<style>a { background: ; }</style>"),
        ('<a href="https://a.example">read on</a>', '<a href="https://a.example">read on</a>'),
        ('<img src="../static/x.png">', '<img src="../static/x.png">'),
        ("<script>let ours = 1;</script>", "<script>let ours = 1;</script>"),
    ],
)
def test_what_a_browser_would_fetch_is_cut_and_nothing_else(tmp_path: Path, text: str, left: str) -> None:
    page = tmp_path / "below" / "page.html"
    page.parent.mkdir()
    page.write_text(f"<p>päge {text}</p>", encoding="utf-8")
    expectations._remove_external_links(tmp_path)
    assert page.read_text(encoding="utf-8") == f"<p>päge {left}</p>"


def test_it_is_told_not_to_report_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is imported: the import alone would report already."""
    monkeypatch.delenv("GX_ANALYTICS_ENABLED", raising=False)
    seen: list[str | None] = []

    def absent(name: str) -> Any:
        seen.append(os.environ.get("GX_ANALYTICS_ENABLED"))
        raise ImportError(name)

    monkeypatch.setattr(expectations, "import_module", absent)
    with pytest.raises(BadRequest, match=r"install your Mirrorbook wheel with \[spark\]"):
        judge([{}])
    assert seen == ["false"]


def test_nobody_loads_it_before_it_is_asked() -> None:
    code = "import sys, mirror_core.cli.mirror, mirror_core.cli.parity; print('great_expectations' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert ended.stdout.strip() == "False"
