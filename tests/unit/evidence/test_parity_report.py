"""The evidence of a parity check: what programs read, what people see, and what is on disk when something fails."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mirror_core.decide.parity_result import NOTHING_COMPARED, ParityRow
from mirror_core.evidence import parity_report
from mirror_core.evidence.expectation_suites import PARITY, TableExpectations
from mirror_core.evidence.expectations import ExpectationResult, TableJudgement
from mirror_core.evidence.parity_report import JudgesDisagree, write_parity_report
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.model.parity_verdict import ParityFinding, ParityResult, ParityVerdict
from tests.support.html_pages import Page

A0, A1, B0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)
STARTED = 1_790_000_000.123


def ends(partition: Partition, start: int, end: int, **more: Any) -> ParityRow:
    return ParityRow(
        partition=partition, chunk=-1, start=Offset(start), end=Offset(end), level=1,
        src_count=end - start, dst_count=end - start, **more,
    )  # fmt: skip


def chunk(partition: Partition, start: int, end: int, **more: Any) -> ParityRow:
    facts = {"src_count": end - start, "dst_count": end - start, "src_digest": "d1", "dst_digest": "d1", **more}
    return ParityRow(partition=partition, chunk=0, start=Offset(start), end=Offset(end), level=2, **facts)


EQUAL = ParityResult(
    verdict=ParityVerdict.PASSED, records=1_234_567, chunks=1, verified_ends={A0: Offset(30)}, seconds=2.25
)  # fmt: skip


def report(
    folder: Path,
    result: ParityResult,
    rows: Sequence[ParityRow],
    level: int = 3,
    *,
    demands: TableExpectations | None = None,
) -> str:
    written = write_parity_report(
        folder,
        result,
        rows,
        source=ClusterName("east"),
        destination=ClusterName("west"),
        level=level,
        started=STARTED,
        demands=demands,
    )
    assert written == replace(result, report=str(folder / "index.html"))
    return Path(written.report).read_text(encoding="utf-8")


def test_a_report_imports_nothing_that_takes_long_once_it_is_warm() -> None:
    code = """
import sys, tempfile
from pathlib import Path
from mirror_core.evidence.parity_report import warm_up
from tests.unit.evidence.test_parity_report import A0, EQUAL, ends, report
assert "pandas" not in sys.modules, "importing it takes long by itself"
warm_up()
before = set(sys.modules)
report(Path(tempfile.mkdtemp()), EQUAL, [ends(A0, 0, 30)])
print(sorted(name for name in set(sys.modules) - before if not name.startswith("encodings")))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    assert done.stdout.strip() == "[]"


def test_programs_read_the_result_and_its_sample(tmp_path: Path) -> None:
    report(tmp_path / "new" / "folder", EQUAL, [ends(A0, 0, 30), chunk(A0, 0, 30)])
    document = json.loads((tmp_path / "new" / "folder" / "result.json").read_text())
    assert document == {
        "format": 1,
        "source": "east",
        "destination": "west",
        "level": 3,
        "started": "2026-09-21T14:13:20.123+00:00",
        "verdict": "passed",
        "records": 1_234_567,
        "chunks": 1,
        "seconds": 2.25,
        "proven": [{"topic": "a", "partition": 0, "offset": 30}],
        "findings": [],
        "reasons": [],
        "unmet": [],
        "report": str(tmp_path / "new" / "folder" / "index.html"),
        "great_expectations": None,
    }
    assert not list((tmp_path / "new" / "folder").glob("_*")), "a half-written file was left behind"


def test_a_difference_is_told_to_programs_and_people(tmp_path: Path) -> None:
    findings = (
        ParityFinding(partition=A0, offset=Offset(7), kind="value", detail="12 bytes here, 13 bytes there"),
        ParityFinding(partition=B0, offset=None, kind="log end", detail="[5, 9) is missing there"),
    )
    result = ParityResult(
        verdict=ParityVerdict.FAILED,
        records=20,
        chunks=2,
        findings=findings,
        verified_ends={B0: Offset(5), A0: Offset(7)},
    )
    page = report(tmp_path, result, [chunk(A0, 0, 20, dst_digest="d2", differing=1, findings=findings[:1])])
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["verdict"] == "failed"
    assert document["findings"] == [
        {"topic": "a", "partition": 0, "offset": 7, "kind": "value", "detail": "12 bytes here, 13 bytes there"},
        {"topic": "b", "partition": 0, "offset": None, "kind": "log end", "detail": "[5, 9) is missing there"},
    ]
    assert [row["topic"] for row in document["proven"]] == ["a", "b"], "sorted"
    seen = Page(page)
    assert ["a-0", "7", "value", "12 bytes here, 13 bytes there"] in seen.rows
    assert ["b-0", "", "log end", "[5, 9) is missing there"] in seen.rows
    assert "Do not move applications" in page


def test_what_could_not_be_compared_is_no_pass(tmp_path: Path) -> None:
    result = ParityResult(verdict=ParityVerdict.INDETERMINATE, records=0, chunks=0, reasons=(NOTHING_COMPARED,))
    page = report(tmp_path, result, [])
    assert json.loads((tmp_path / "result.json").read_text())["reasons"] == [NOTHING_COMPARED]
    assert "This is not a pass" in page
    assert Page(page).items == [NOTHING_COMPARED]


def test_the_table_holds_every_row_and_what_of_it_counts_as_compared(tmp_path: Path) -> None:
    unread = ParityRow(
        partition=A1, chunk=3, start=Offset(0), end=Offset(9), level=2, error="a-1 on west: no leader", differing=0
    )
    rows = [ends(A0, 0, 30), chunk(A0, 0, 30, dst_count=29, dst_digest="d2", differing=1), unread]
    report(tmp_path, replace(EQUAL, verdict=ParityVerdict.FAILED), rows)
    table = pq.read_table(tmp_path / "table.parquet").to_pylist()
    assert [(row["topic"], row["partition"], row["chunk"], row["level"]) for row in table] == [
        ("a", 0, -1, 1),
        ("a", 0, 0, 2),
        ("a", 1, 3, 2),
    ]
    assert table[1] == {
        "topic": "a",
        "partition": 0,
        "chunk": 0,
        "start": 0,
        "end": 30,
        "level": 2,
        "src_count": 30,
        "dst_count": 29,
        "src_digest": "d1",
        "dst_digest": "d2",
        "compared": 29,
        "differing": 1,
        "error": "",
    }
    assert (table[2]["src_count"], table[2]["error"], table[2]["compared"]) == (None, "a-1 on west: no leader", 0)
    assert table[0]["compared"] == 0, "where logs begin and end is no record compared"
    nullable = [field.name for field in pq.read_schema(tmp_path / "table.parquet") if field.nullable]
    assert nullable == ["src_count", "dst_count"], "null where a log could not be read, and nowhere else"


def test_at_level_1_offsets_are_what_was_counted(tmp_path: Path) -> None:
    page = report(tmp_path, EQUAL, [ends(A0, 0, 30)], level=1)
    assert pq.read_table(tmp_path / "table.parquet").to_pylist()[0]["compared"] == 30
    assert "Their content was not compared" in page
    assert "Offsets counted" in page
    assert ["a-0", "0", "30", "–", "30", "equal"] in Page(page).rows


def test_the_page_lists_partitions_the_worst_first(tmp_path: Path) -> None:
    rows = [
        ends(A0, 3, 30),
        chunk(A0, 3, 30),
        ends(A1, 0, 12),
        chunk(A1, 0, 12, error="west: no leader"),
        chunk(A1, 12, 14, error="west: no leader"),
        ends(B0, 5, 5),
        chunk(Partition("c", 0), 0, 5000, dst_digest="d2", differing=2),
        chunk(Partition("c", 0), 5000, 9000, dst_digest="d2", differing=3),
        ends(Partition("0", 0), 0, 7, differing=1),
    ]
    result = replace(EQUAL, verdict=ParityVerdict.FAILED, verified_ends={A0: Offset(30), Partition("c", 0): Offset(4)})
    page = Page(report(tmp_path, result, rows))
    assert page.rows[-6:] == [
        ["Partition", "From", "To", "Proven equal up to", "Records", "Result"],
        ["0-0", "0", "7", "0", "0", "1 difference"],
        ["c-0", "0", "9,000", "4", "9,000", "5 differences"],
        ["a-1", "0", "14", "0", "0", "2 parts not compared"],
        ["a-0", "3", "30", "30", "27", "equal"],
        ["b-0", "5", "5", "0", "0", "empty"],
    ]
    assert page.facts[:6] == ["1,234,567", "34 of 9,056 offsets", "6", "2", "1", "2"]


def test_where_nothing_is_new_the_page_says_what_was_proved_before(tmp_path: Path) -> None:
    result = replace(EQUAL, records=0, verified_ends={A0: Offset(56_401)}, first_held_offsets={A0: Offset(401)})
    page = Page(report(tmp_path, result, [ends(A0, 56_401, 56_401), ends(B0, 5, 5)]))
    assert page.rows[-2:] == [
        ["a-0", "56,401", "56,401", "56,401", "0", "nothing new; proved up to 56,401 before"],
        ["b-0", "5", "5", "0", "0", "empty"],
    ]
    assert page.facts[:2] == ["0", "56,000 of 56,005 offsets"]


def test_a_long_list_is_cut_and_says_where_the_rest_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity_report, "MAX_LISTED_ROWS", 2)
    findings = tuple(ParityFinding(partition=A0, offset=Offset(n), kind="value", detail="") for n in range(5))
    reasons = ("one", "two", "three")
    rows = [ends(Partition("a", number), 0, 1) for number in range(6)]
    page = report(tmp_path, replace(EQUAL, verdict=ParityVerdict.FAILED, findings=findings, reasons=reasons), rows)
    assert "And 3 more: see result.json." in page
    assert "And 1 more: see result.json." in page
    assert "And 4 more: see table.parquet." in page
    assert len(json.loads((tmp_path / "result.json").read_text())["findings"]) == 5
    assert Page(page).items == ["one", "two"]
    for number in (1, 2):
        short = report(tmp_path, replace(EQUAL, reasons=reasons[:number]), rows[:number])
        assert "more: see" not in short


def test_the_page_escapes_what_others_wrote_and_asks_nobody_else(tmp_path: Path) -> None:
    evil = ParityFinding(partition=A0, offset=None, kind="value", detail="<script>alert(1)</script>")
    result = replace(EQUAL, verdict=ParityVerdict.FAILED, findings=(evil,), reasons=("<img src=//x>",))
    page = report(tmp_path, result, [chunk(A0, 0, 1, error="<b>")])
    seen = Page(page)
    assert seen.tags.isdisjoint({"script", "img", "b", "link"})
    assert seen.links == []
    assert "://" not in page
    assert ["a-0", "", "value", "<script>alert(1)</script>"] in seen.rows


OURS = TableExpectations(suite=PARITY)


def judged(*, success: bool) -> TableJudgement:
    return TableJudgement(
        held=(ExpectationResult(what="expect_equal(src_count, dst_count)", by="", held=success, where="a-0 chunk 3"),)
    )


@pytest.mark.parametrize("verdict", [ParityVerdict.PASSED, ParityVerdict.FAILED, ParityVerdict.INDETERMINATE])
@pytest.mark.parametrize("success", [True, False])
def test_two_judges_who_disagree_stop_everything_and_leave_the_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: ParityVerdict, success: bool
) -> None:
    asked: list[tuple[int, Path | None]] = []

    def judge(table: Any, docs: Path | None, demands: TableExpectations) -> TableJudgement:
        assert demands is OURS
        asked.append((table.num_rows, docs))
        return judged(success=success)

    monkeypatch.setattr(parity_report, "judge_table", judge)
    result = replace(EQUAL, verdict=verdict)
    agree = success == (verdict is ParityVerdict.PASSED)
    if agree:
        report(tmp_path, result, [chunk(A0, 0, 9)], demands=OURS)
    else:
        with pytest.raises(JudgesDisagree, match=f"our verdict is {verdict}, Great Expectations says") as caught:
            report(tmp_path, result, [chunk(A0, 0, 9)], demands=OURS)
        assert f"Great Expectations says {'success' if success else 'failure'}; see" in str(caught.value)
        assert str(tmp_path / "index.html") in str(caught.value)
    assert asked == [(1, tmp_path / "data-docs")]
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["great_expectations"] == {
        "success": success,
        "expectations": [
            {"type": "expect_equal(src_count, dst_count)", "by": "", "success": success, "where": "a-0 chunk 3"}
        ],
    }
    page = Page((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert page.facts[-1] == ("agrees" if agree else "DISAGREES")
    assert ["expect_equal(src_count, dst_count)", "Mirrorbook", "yes" if success else "no", "a-0 chunk 3"] in page.rows
    assert page.links == ["data-docs/index.html"]


@pytest.mark.parametrize(
    ("known", "before", "after"),
    [
        (True, ParityVerdict.PASSED, ParityVerdict.FAILED),
        (False, ParityVerdict.PASSED, ParityVerdict.INDETERMINATE),
        (True, ParityVerdict.INDETERMINATE, ParityVerdict.INDETERMINATE),
        (False, ParityVerdict.FAILED, ParityVerdict.FAILED),
    ],
)
def test_what_a_user_expects_ends_a_pass_and_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool, before: ParityVerdict, after: ParityVerdict
) -> None:
    ours = ExpectationResult(what="ours", by="", held=before is ParityVerdict.PASSED)
    theirs = ExpectationResult(
        what="expect_more()", by="f.yaml: parity[0]", held=False, known=known, where="a-0 chunk 3"
    )
    monkeypatch.setattr(parity_report, "judge_table", lambda *_: TableJudgement(held=(ours, theirs)))
    result = replace(EQUAL, verdict=before)
    east, west = ClusterName("east"), ClusterName("west")
    written = write_parity_report(
        tmp_path, result, [], source=east, destination=west, level=3, started=STARTED, demands=OURS
    )
    assert (written.verdict, written.unmet_expectations) == (after, ("f.yaml: parity[0]: expect_more(): a-0 chunk 3",))
    assert written.verified_ends == result.verified_ends, "what is proved is so, whatever is expected beside it"
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "f.yaml: parity[0]: expect_more(): a-0 chunk 3" in page
    assert "agrees" in page
    if before is ParityVerdict.PASSED:
        assert "compared equal, but something else" in page


def test_what_is_said_of_receipts_is_no_matter_of_the_second_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sees the table, and in that all is equal: altered receipts are no quarrel of two judges."""
    monkeypatch.setattr(parity_report, "judge_table", lambda *_: judged(success=True))
    altered = replace(EQUAL, verdict=ParityVerdict.FAILED, reasons=("receipts are altered",))
    east, west = ClusterName("east"), ClusterName("west")
    told: dict[str, Any] = {"source": east, "destination": west, "level": 2, "started": STARTED, "demands": OURS}
    with pytest.raises(JudgesDisagree):
        write_parity_report(tmp_path, altered, [], **told)
    written = write_parity_report(tmp_path, altered, [], table_verdict=ParityVerdict.PASSED, **told)
    assert (written.verdict, written.reasons) == (ParityVerdict.FAILED, ("receipts are altered",))


def test_the_title_names_the_mirror_by_the_folder_of_the_report(tmp_path: Path) -> None:
    page = report(tmp_path / "orders" / "parity-20260131T120000Z", EQUAL, [chunk(A0, 0, 9)])
    assert "<title>orders/parity-20260131T120000Z: east → west, passed</title>" in page


def test_without_a_second_judge_the_page_says_so(tmp_path: Path) -> None:
    page = Page(report(tmp_path, EQUAL, [chunk(A0, 0, 9)]))
    assert page.facts[-1] == "not asked"
    assert "Great Expectations" not in page.headings


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(MirrorError, match=r"parity report: .*file/below cannot be written: Not a directory"):
        report(file / "below", EQUAL, [])
    (tmp_path / "taken" / "result.json" / "below").mkdir(parents=True)
    with pytest.raises(MirrorError, match=r"parity report: .*result\.json cannot be written: Is a directory"):
        report(tmp_path / "taken", EQUAL, [])


def test_a_report_written_again_replaces_the_earlier_one(tmp_path: Path) -> None:
    report(tmp_path, EQUAL, [chunk(A0, 0, 30)])
    report(tmp_path, replace(EQUAL, verdict=ParityVerdict.FAILED), [])
    assert json.loads((tmp_path / "result.json").read_text())["verdict"] == "failed"
    assert pq.read_table(tmp_path / "table.parquet").num_rows == 0


def test_a_report_is_for_nobody_else_to_read(tmp_path: Path) -> None:
    """It may show keys and values that applications wrote."""
    folder = tmp_path / "parity"
    east, west = ClusterName("east"), ClusterName("west")
    write_parity_report(folder, EQUAL, [], source=east, destination=west, level=3, started=STARTED, demands=None)
    written = [folder, *folder.rglob("*")]
    assert {path.stat().st_mode & 0o077 for path in written} == {0}
    assert len(written) == 4


def test_what_differs_is_shown_before_what_was_not_read_and_never_as_equal(tmp_path: Path) -> None:
    finding = ParityFinding(partition=B0, offset=Offset(7), kind="value", detail="other bytes")
    result = ParityResult(
        verdict=ParityVerdict.FAILED, records=1, chunks=1, findings=(finding,), reasons=("a-0 [0, 30): no leader",)
    )
    rows = [chunk(A0, 0, 30, error="no leader"), chunk(A1, 0, 30, dst_digest="d2"), chunk(B0, 0, 30, differing=1)]
    page = report(tmp_path, result, rows)
    assert page.index("<h2>Differences") < page.index("<h2>Could not be compared")
    assert ">equal<" not in page
    lines = page[page.index("<summary>Partitions") :]
    assert lines.index("b-0") < lines.index("a-1") < lines.index("a-0")
