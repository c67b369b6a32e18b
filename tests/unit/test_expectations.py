"""The second opinion on a parity table: Great Expectations itself, nothing of it replaced. It takes seconds to load."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mirror_core.evidence import expectations
from mirror_core.evidence.expectations import Judged, judge_table
from mirror_core.evidence.parity_report import SCHEMA
from mirror_core.model.errors import BadRequest

FINE: dict[str, Any] = {
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


def judge(rows: Sequence[dict[str, Any]], docs: Path | None = None) -> Judged:
    return judge_table(pa.Table.from_pylist([{**FINE, **row} for row in rows], schema=SCHEMA), docs)


def broken(judged: Judged) -> dict[str, str]:
    return {what: where for what, held, where in judged.expectations if not held}


COUNTS = "expect_column_pair_values_to_be_equal(src_count, dst_count)"
DIGESTS = "expect_column_pair_values_to_be_equal(src_digest, dst_digest)"
DIFFERING = "expect_column_values_to_be_in_set(differing)"
ERROR = "expect_column_values_to_be_in_set(error)"
COMPARED = "expect_column_sum_to_be_between(compared)"
ROWS = "expect_table_row_count_to_be_between()"


def test_a_table_of_equal_chunks_is_a_success_and_says_what_was_expected(capfd: pytest.CaptureFixture[str]) -> None:
    judged = judge([{}, {"chunk": 1, "compared": 0}])
    assert judged.success
    assert {what for what, _, _ in judged.expectations} == {ROWS, COMPARED, COUNTS, DIGESTS, DIFFERING, ERROR}
    assert broken(judged) == {}
    assert {where for _, _, where in judged.expectations} == {""}
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
    assert ROWS in broken(empty)


def test_the_first_twenty_places_are_named() -> None:
    many = broken(judge([{"chunk": chunk, "differing": 1} for chunk in range(21)]))[DIFFERING]
    assert many.startswith("orders-3 chunk 0; orders-3 chunk 1; ")
    assert many.endswith("; orders-3 chunk 19; and 1 more")
    twenty = broken(judge([{"chunk": chunk, "differing": 1} for chunk in range(20)]))[DIFFERING]
    assert twenty.endswith("orders-3 chunk 19")


def test_the_data_docs_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    judged = judge([{}], tmp_path / "docs")
    assert judged.docs == str(tmp_path / "docs" / "index.html")
    pages = list((tmp_path / "docs").rglob("*.html"))
    assert len(pages) > 1
    assert Path(judged.docs) in pages
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|link|img|source|iframe)\b[^>]*(?:https?:)?//[^>]*>|url\([^)]*//[^)]*\)", text)
        assert not loaded, page
        assert "</html>" in text


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
    expectations._cut_foreign_links(tmp_path)
    assert page.read_text(encoding="utf-8") == f"<p>päge {left}</p>"


def test_it_is_told_not_to_report_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is imported: the import alone would report already."""
    monkeypatch.delenv("GX_ANALYTICS_ENABLED", raising=False)
    seen: list[str | None] = []

    def absent(name: str) -> Any:
        seen.append(os.environ.get("GX_ANALYTICS_ENABLED"))
        raise ImportError(name)

    monkeypatch.setattr(expectations, "import_module", absent)
    with pytest.raises(BadRequest, match=r"install mirrorbook\[spark\]"):
        judge([{}])
    assert seen == ["false"]


def test_nobody_loads_it_before_it_is_asked() -> None:
    code = "import sys, mirror_core.evidence.parity_report; print('great_expectations' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.strip() == "False"
