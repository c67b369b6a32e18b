"""The page of a run: what people read of it, and what is cut where there is much of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from mirror_core.evidence import run_report
from mirror_core.evidence.run_report import (
    ReportQuestion,
    answer_questions,
    compute_clocks,
    make_headline,
    write_run_report,
)
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.forecast import ForecastOutcome, PlanForecast
from mirror_core.model.mirror import PartitionState, PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import (
    PlanStep,
    Run,
    RunKind,
    RunMode,
    RunState,
    StepEvidence,
    StepRecord,
    StepState,
)
from tests.support.html_pages import Page
from tests.support.run_pages import BEGUN, PLAN, RUN
from tests.support.sentences import format_sentence

SIDES = ("east", "west")


def step(name: str, start_s: float, end_s: float | None, **more: object) -> StepRecord:
    done = StepRecord(
        run="r-7",
        step=name,
        state=StepState.STARTED if end_s is None else StepState.DONE,
        attempt=1,
        started_ms=BEGUN + round(start_s * 1000),
        ended_ms=None if end_s is None else BEGUN + round(end_s * 1000),
    )
    return replace(done, **more)  # type: ignore[arg-type]  # fields of a step


def status(index: int, **more: object) -> PartitionStatus:
    found = PartitionStatus(
        partition=Partition("a", index),
        state=PartitionState.STOPPED,
        source_topic_id="",
        destination_topic_id="",
        lmo=Offset(index),
    )
    return replace(found, **more)  # type: ignore[arg-type]  # fields of a status


def page_of(folder: Path, run: Run, steps: list[StepRecord], *statuses: PartitionStatus) -> Page:
    path = write_run_report(folder, run, steps, {s.partition: s for s in statuses}, {}, sides=SIDES, chronicle=())
    assert path == folder / "report.html"
    return Page(path.read_text(encoding="utf-8"))


STEPS = [
    step("prove", 0, 2.5, evidence={"records compared": 9, "report": "prove/index.html"}),
    step("fence", 3, 4, attempt=2),
    step("drain", 4.25, 6),
    step("promote", 9, 9.5),
    step("canary", 9.5, None, state=StepState.FAILED, error="broker 2 of west: no answer"),
]


def test_the_page_tells_the_run_step_by_step(tmp_path: Path) -> None:
    page = page_of(tmp_path, RUN, STEPS)
    assert page.facts == [
        *("unknown", "6.5 s", "unknown", "unknown"),
        "applications were moved from east to west",
        "begun 2026-09-21 14:13:20 UTC, promoted 2026-09-21 14:13:29 UTC after 6.5 s without writes",
        "unknown",
        "we don't: nothing was compared",
        "9.5 s",
        "6.5 s",
        "6.5 s",
        "3.2 s",
        "3.2 s",
        "unknown: not measured by this run",
    ]
    assert page.rows[:8] == [
        ["step", "applications may write", "state", "attempts", "begun", "seconds"],
        ["prove", "source", "DONE", "1", "2026-09-21 14:13:20.123 UTC", "2.50"],
        ["fence", "nowhere", "DONE", "2", "2026-09-21 14:13:23.123 UTC", "1.00"],
        ["drain", "nowhere", "DONE", "1", "2026-09-21 14:13:24.373 UTC", "1.75"],
        ["promote", "nowhere", "DONE", "1", "2026-09-21 14:13:29.123 UTC", "0.50"],
        ["canary", "destination", "FAILED", "1", "2026-09-21 14:13:29.623 UTC", "–"],
        ["records compared", "9"],
        ["report", "prove/index.html"],
    ]
    assert page.rows[8] == ["error", "broker 2 of west: no answer"]
    assert page.rows[-6:] == [
        ["source", "E"],
        ["groups", "none"],
        ["lag", "5 offsets"],
        ["a-0", "lag: 5 offsets"],
        ["g", "read again at most: 3 offsets"],
        ["topic a", "strategy recreate"],
    ]
    assert "begun by ann at 2026-09-21 14:13:20.123 UTC" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_first_of_all_it_says_what_was_lost_and_how_that_is_known(tmp_path: Path) -> None:
    gate = {"parity_verdict": "passed", "records_in_all": 120, "records_since_proof": 20, "partitions": 2}
    proved = [*STEPS[:3], step("parity", 6, 7, evidence=gate), *STEPS[3:]]
    nothing = ForecastOutcome(lost_offsets=0, lost_basis="all equal", reread_basis="")
    assert page_of(tmp_path, replace(RUN, forecast_outcome=nothing), proved).facts[6:8] == [
        "nothing", f"all equal; {format_sentence('records_of_partitions_compared_equal', 120, 2, 20)}",
    ]  # fmt: skip
    assert page_of(tmp_path, RUN, proved).facts[6] == "unknown", "nobody has counted it"
    in_part = {**gate, "not_compared": ("a-1",)}
    partly = replace(RUN, forecast_outcome=replace(nothing, lost_offsets=None, least_lost_offsets=0))
    lost, known = page_of(tmp_path, partly, [*STEPS[:3], step("parity", 6, 7, evidence=in_part), *STEPS[3:]]).facts[6:8]
    assert lost == "unknown, and of what could be counted nothing"
    assert known.endswith("behind the fence; promoted as they were, and not compared: a-1")
    for changed in ({"records_in_all": 0}, {"parity_verdict": "indeterminate"}):
        doubtful = [*STEPS[:3], step("parity", 6, 7, evidence={**gate, **changed}), *STEPS[3:]]
        assert page_of(tmp_path, RUN, doubtful).facts[6] == "unknown"
    failed = [*STEPS[:3], step("parity", 6, 7, evidence=gate, state=StepState.FAILED)]
    assert page_of(tmp_path, RUN, failed).facts[6] == "unknown"
    bound = PlanForecast(seconds=1.0, lost_offsets=3, lost_is_minimum=True)
    given_up = replace(PLAN, mode=RunMode.UNPLANNED, forecast=bound)
    assert page_of(tmp_path, replace(RUN, plan=given_up), []).facts[6] == "at least 3 offsets"
    assert page_of(tmp_path, replace(RUN, plan=replace(given_up, forecast=msgspec.UNSET)), []).facts[6] == "unknown"


def test_a_loss_that_was_counted_stands_in_place_of_the_forecast(tmp_path: Path) -> None:
    bound = PlanForecast(seconds=1.0, lost_offsets=3, lost_is_minimum=True)
    plan = replace(PLAN, mode=RunMode.UNPLANNED, forecast=bound)
    counted = ForecastOutcome(
        lost_offsets=1204, lost_basis="by the old source's ends", reread_offsets={}, reread_basis=""
    )
    page = page_of(tmp_path, replace(RUN, plan=plan, forecast_outcome=counted), [])
    assert page.facts[6:8] == ["1,204 offsets", "by the old source's ends"]
    taken = replace(counted, lost_offsets=0, taken_since_offsets=536)
    parted = page_of(tmp_path, replace(RUN, plan=plan, forecast_outcome=taken), [])
    assert parted.facts[6:8] == ["nothing", str(Finding("taken_since", offsets=536))]
    unseen = page_of(tmp_path, replace(RUN, plan=plan, forecast_outcome=replace(counted, lost_offsets=None)), [])
    assert unseen.facts[6] == "at least 3 offsets"


def test_what_a_run_reached_is_said_and_not_what_was_meant(tmp_path: Path) -> None:
    fenced = page_of(tmp_path, RUN, STEPS[:2]).facts[4:]
    assert fenced[:2] == ["nothing was moved from east to west", "begun 2026-09-21 14:13:20 UTC"]
    lost = replace(RUN, plan=replace(PLAN, mode=RunMode.UNPLANNED))
    assert (
        page_of(tmp_path, lost, [step("promote", 1, 2)]).facts[4]
        == "applications were moved from east to west, without east"
    )
    home = replace(RUN, plan=replace(PLAN, kind=RunKind.FAILBACK, steps=(PlanStep(name="salvage", action=""),)))
    done = page_of(tmp_path, home, [step("salvage", 0, 1, evidence={"records": 7})]).facts[4:]
    assert done[0] == "applications have come from west home to east"
    assert done[2] == "7 records that only the old source had"
    assert page_of(tmp_path, home, [step("salvage", 0, None)]).facts[4] == "on the way from west home to east"


def headline_of(folder: Path, run: Run, steps: list[StepRecord]) -> list[str]:
    page = page_of(folder, run, steps)
    text = (folder / "report.html").read_text(encoding="utf-8")
    (verdict,) = re.findall(r'<p class="verdict (.*)</p>', text)
    return [verdict, *page.facts[:4]]


def test_the_page_begins_with_a_verdict_and_four_figures(tmp_path: Path) -> None:
    gate = {"parity_verdict": "passed", "records_in_all": 66_092, "records_since_proof": 20, "partitions": 2}
    steps = [*STEPS[:3], step("parity", 6, 7, evidence=gate), STEPS[3]]
    reread = ForecastOutcome(lost_offsets=0, lost_basis="", reread_offsets={"g": 900, "h": 125}, reread_basis="asked")
    assert headline_of(tmp_path, replace(RUN, forecast_outcome=reread), steps) == [
        'good">Failover of m, planned: done',
        *("nothing", "6.5 s", "1,025 offsets by consumer groups", "66,092 records"),
    ]
    unknown = replace(reread, reread_offsets={"g": None})
    assert headline_of(tmp_path, replace(RUN, forecast_outcome=unknown), steps)[3] == "unknown"
    forecast = PlanForecast(seconds=5.0, lost_offsets=0, reread_offsets={"g": (0, 30)})
    foretold = replace(RUN, plan=replace(PLAN, forecast=forecast), forecast_outcome=unknown)
    assert headline_of(tmp_path, foretold, steps)[3] == "at most 30 offsets by the plan; not counted yet"
    assert headline_of(tmp_path, RUN, STEPS)[0] == 'bad">Failover of m, planned: step canary FAILED'
    assert headline_of(tmp_path, RUN, STEPS[:2])[0] == 'warn">Failover of m, planned: not ended'
    given_up = replace(RUN, state=RunState.ABORTED)
    assert headline_of(tmp_path, given_up, STEPS[:1])[0] == 'warn">Failover of m, planned: ABORTED'
    home = replace(RUN, plan=replace(PLAN, kind=RunKind.FAILBACK))
    saved = headline_of(tmp_path, home, [step("salvage", 0, 1, evidence={"records": 4_640})])
    assert saved[1:3] == ["4,640 records", "see failover m-back"]
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Saved to files, in no topic" in text


def test_the_page_of_a_failback_says_how_to_write_back_what_was_saved(tmp_path: Path) -> None:
    salvage = step("salvage", 0, 1, evidence={"records": 4_640, "folder": "/evidence/salvage"})
    answers = dict(answer_questions(replace(RUN, plan=replace(PLAN, kind=RunKind.FAILBACK)), [salvage], "east", "west"))
    assert "`mirrorbook salvage replay /evidence/salvage" in answers[ReportQuestion.SAVED]


def test_what_is_behind_the_first_screen_is_folded(tmp_path: Path) -> None:
    page_of(tmp_path, RUN, STEPS)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    first, _, folded = text.partition("<details")
    assert 'class="figures"' in first
    assert folded.count("<table>") == text.count("<table>") == 5
    assert text.count("<details") == text.count("</details>")


def test_forecast_and_count_stand_side_by_side(tmp_path: Path) -> None:
    told = PlanForecast(
        seconds=5.0, steps={"fence": 1.5}, basis="last drill", lost_offsets=0, reread_offsets={"g": (0, 0)}
    )
    counted = ForecastOutcome(
        lost_offsets=None, lost_basis="not compared", reread_offsets={"g": 30}, reread_basis="asked"
    )
    run = replace(RUN, plan=replace(PLAN, forecast=told), forecast_outcome=counted)
    page = page_of(tmp_path, run, STEPS)
    at = page.rows.index(["what", "of", "predicted", "measured", "error", "how it is known"])
    assert page.rows[at + 1] == [
        "seconds without writes",
        "",
        "5.00 s",
        "6.50 s",
        "+1.50 s",
        "foretold by the last drill",
    ]
    assert ["seconds of step", "fence", "1.50 s", "1.00 s", "-0.50 s", ""] in page.rows
    assert ["offsets lost", "", "0", "unknown", "unknown", "not compared"] in page.rows
    assert ["offsets read again", "g", "0", "30", "+30", "asked"] in page.rows
    document = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert document["forecast"][0]["error"] == 1.5
    assert "Predicted and measured" in page.text
    assert "Predicted and measured" not in page_of(tmp_path, RUN, STEPS).text


def test_of_a_source_that_is_lost_the_page_says_what_was_ever_compared_with_it(tmp_path: Path) -> None:
    lost = replace(RUN, plan=replace(PLAN, mode=RunMode.UNPLANNED))

    def proved(evidence: StepEvidence, state: StepState = StepState.DONE) -> str:
        return page_of(tmp_path, lost, [step("record_lmo", 1, 2, evidence=evidence, state=state)]).facts[9]

    some: StepEvidence = {
        FigureKey.COMPARED_BEFORE_OFFSETS: 90,
        FigureKey.MIRRORED_OFFSETS: 100,
        FigureKey.NEVER_COMPARED: ("orders-0 [90, 100)",),
        "receipts": "7 files",
    }
    known = format_sentence("offsets_were_compared_equal", 90, 100)
    assert proved(some) == f"{known}; never compared: orders-0 [90, 100)"
    assert proved({**some, FigureKey.NEVER_COMPARED: ()}) == known
    unsaid: StepEvidence = {FigureKey.COMPARED_NOT_CONFIRMED: ("orders-1 [0, 50)",), FigureKey.NEVER_COMPARED: ()}
    words = "compared earlier, not confirmed in this run: orders-1 [0, 50)"
    assert proved({**some, **unsaid}) == f"{known}; {words}"
    assert proved({}) == proved(some, StepState.FAILED) == "unknown"


def test_of_a_source_that_is_lost_the_page_says_what_certificates_prove(tmp_path: Path) -> None:
    lost = replace(RUN, plan=replace(PLAN, mode=RunMode.UNPLANNED))

    def told(seen: StepEvidence) -> list[str]:
        path = write_run_report(tmp_path, lost, [], {}, {}, sides=SIDES, chronicle=(), proof=seen)
        return Page(path.read_text(encoding="utf-8")).facts[10:12]

    some: StepEvidence = {
        FigureKey.CERTIFICATES_VERDICT: "indeterminate",
        FigureKey.CERTIFIED_OFFSETS: 80,
        FigureKey.CERTIFIABLE_OFFSETS: 100,
        FigureKey.NOT_AS_COPIED: (),
        FigureKey.NOT_PROVED: ("a-0: 20 of 100 offsets, [80, 100)",),
        FigureKey.NOT_PROVED_BECAUSE: ("lost",),
    }
    assert told({**some, FigureKey.TO_PROVE_MORE: "type"}) == [
        format_sentence("offsets_not_proved_lost", 80, 100, "a-0", 20, 100, "[80, 100)"),
        "type",
    ]
    assert told({**some, FigureKey.TO_PROVE_MORE_FROM_SOURCE: "rebuild"})[1] == "rebuild"
    assert told({**some, FigureKey.NOT_AS_COPIED: ("a-0: altered",)})[0].startswith(
        "NOT AS IT WAS COPIED: a-0: altered."
    )
    assert told({**some, FigureKey.CERTIFICATES_VERDICT: "passed"})[0] == "80 of 100 offsets are as they were copied"
    assert told({})[0] == "unknown"
    assert make_headline(lost, [], "", some).figures[-1] == (
        "Proved equal",
        "by certificates: 80 of 100 offsets",
    )
    assert make_headline(lost, [], "", {}).figures[-1] == ("Proved equal", "unknown")


def test_programs_read_the_same(tmp_path: Path) -> None:
    page_of(tmp_path, RUN, STEPS, status(1), status(0))
    document = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert document["run"]["id"] == "r-7"
    assert document["run"]["plan"]["bound_facts"][0]["name"] == "source"
    assert document["clocks"] == {
        "conductor": 9.5,
        "first_step_to_promotion": 6.5,
        "write_block_upper": 6.5,
        "working": 3.25,
        "waiting": 3.25,
    }
    assert [s["step"] for s in document["steps"]] == ["prove", "fence", "drain", "promote", "canary"]
    assert [s["partition"]["index"] for s in document["partitions"]] == [0, 1], "in order"
    assert document["left"] == {}


def test_what_steps_left_is_kept_step_by_step(tmp_path: Path) -> None:
    left: dict[str, dict[str, object]] = {"fence": {"Fenced": {"topics": ["a"]}}, "drain": {"Drained": {"n": 7}}}
    write_run_report(tmp_path, RUN, [], {}, left, sides=SIDES, chronicle=())
    document = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert document["left"] == left
    assert (document["steps"], document["partitions"]) == ([], [])


def test_partitions_are_listed_by_name_with_what_is_known_of_them(tmp_path: Path) -> None:
    failed = status(10, state=PartitionState.FAILED, lmo=None, reason="damaged")
    page = page_of(tmp_path, RUN, [], failed, status(9), status(0))
    at = page.rows.index(["partition", "state", "last mirrored offset", "reason"])
    assert page.rows[at + 1 : at + 4] == [
        ["a-0", "STOPPED", "0", ""],
        ["a-9", "STOPPED", "9", ""],
        ["a-10", "FAILED", "–", "damaged"],
    ]


def test_a_run_that_was_approved_with_open_questions_says_so(tmp_path: Path) -> None:
    plain = page_of(tmp_path, RUN, [])
    assert plain.items == []
    asked = replace(RUN, plan=replace(PLAN, warnings=(Finding("no data plane"),), unknown=(Finding("loss"),)))
    page = page_of(tmp_path, asked, [])
    assert page.items == ["no data plane", "loss"]
    assert set(page.headings) - set(plain.headings) == {"Approved with these warnings", "Not known when approved"}


def test_of_many_partitions_and_facts_the_page_shows_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_report, "MAX_TABLE_ROWS", 3)
    page_of(tmp_path, RUN, [], *(status(index) for index in range(3)))
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "The first 3 of 6; all are in run.json." in text, "facts"
    page = page_of(
        tmp_path, replace(RUN, plan=replace(PLAN, bound_facts=())), [], *(status(index) for index in range(5))
    )
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "The first 3 of 5; all are in run.json." in text
    assert ["a-2", "STOPPED", "2", ""] in page.rows
    assert ["a-3", "STOPPED", "3", ""] not in page.rows
    assert len(json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["partitions"]) == 5
    few = replace(PLAN, bound_facts=(), figures={}, partitions={})
    page_of(tmp_path, replace(RUN, plan=few), [], status(0))
    assert "The first" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_promotion_without_a_fence_has_no_block_to_tell_of() -> None:
    assert compute_clocks(RUN, [step("promote", 3, 5)]) == {
        "conductor": 5.0,
        "first_step_to_promotion": None,
        "write_block_upper": None,
        "working": 2.0,
        "waiting": None,
    }


def test_a_fence_that_took_two_attempts_held_applications_up_since_the_first(tmp_path: Path) -> None:
    steps = [step("fence", 60, 61, attempt=2, first_started_ms=BEGUN + 1_000), step("promote", 62, 63)]
    assert compute_clocks(RUN, steps)["write_block_upper"] == 62.0


def test_a_step_that_never_ended_worked_for_no_known_time() -> None:
    steps = [step("fence", 1, 2), step("drain", 2, None), step("promote", 4, 4.5)]
    assert compute_clocks(RUN, steps)["working"] is None
    overlapping = [step("fence", 1, 4), step("drain", 1, 4), step("promote", 4, 4.5)]
    assert compute_clocks(RUN, overlapping)["waiting"] == 0, "never less than nothing"
    assert compute_clocks(RUN, [step("fence", 0, 0.0004), step("promote", 1, 1.0335)])["working"] == pytest.approx(
        0.034
    )


def test_a_report_written_again_replaces_the_earlier_one(tmp_path: Path) -> None:
    page_of(tmp_path, RUN, [], *(status(index) for index in range(50)))
    page_of(tmp_path, replace(RUN, started_by="bob"), [])
    assert json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["run"]["started_by"] == "bob"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "notes.html",
        "notes.jsonl",
        "report.html",
        "run.json",
    ]
