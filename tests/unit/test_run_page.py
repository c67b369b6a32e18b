"""The page of a run: what people read of it, and what is cut where there is much of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.evidence import run_report
from mirror_core.evidence.run_report import clocks, write_run_report
from mirror_core.model.mirror import Desired, PartitionState, PartitionStatus
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.run import Fact, Mode, Plan, PlanStep, Run, RunKind, RunState, StepRecord, StepState, Strategy
from tests.pages import Page

BEGUN = 1_790_000_000_123
PLAN = Plan(
    kind=RunKind.FAILOVER,
    mirror=MirrorName("m"),
    mode=Mode.PLANNED,
    steps=(PlanStep(name="fence", action="deny"),),
    bound=(Fact("source", "E"), Fact("groups", "none")),
    figures={"lag in offsets": "5"},
    partitions={"a-0": "lag 5"},
    groups={"g": "3 records"},
    strategies={"a": Strategy.RECREATE},
)
RUN = Run(
    id="r-7",
    plan=PLAN,
    plan_hash="0123456789ab",
    state=RunState.DONE,
    started_by="ann",
    started_ms=BEGUN,
    desired=Desired.STARTED,
    conducted_by="ann",
)


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
    path = write_run_report(folder, run, steps, {s.partition: s for s in statuses}, {})
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
    assert page.facts == ["9.5 s", "6.5 s", "3.2 s", "3.2 s", "unknown: not measured by this run"]
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
        ["lag in offsets", "5"],
        ["a-0", "lag 5"],
        ["g", "3 records"],
        ["topic a", "strategy recreate"],
    ]
    assert "begun by ann at 2026-09-21 14:13:20.123 UTC" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_programs_read_the_same(tmp_path: Path) -> None:
    page_of(tmp_path, RUN, STEPS, status(1), status(0))
    document = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert document["run"]["id"] == "r-7"
    assert document["run"]["plan"]["bound"][0]["name"] == "source"
    assert document["clocks"] == {"conductor": 9.5, "write_block_upper": 6.5, "working": 3.25, "waiting": 3.25}
    assert [s["step"] for s in document["steps"]] == ["prove", "fence", "drain", "promote", "canary"]
    assert [s["partition"]["index"] for s in document["partitions"]] == [0, 1], "in order"
    assert document["left"] == {}


def test_what_steps_left_is_kept_step_by_step(tmp_path: Path) -> None:
    left: dict[str, dict[str, object]] = {"fence": {"Fenced": {"topics": ["a"]}}, "drain": {"Drained": {"n": 7}}}
    write_run_report(tmp_path, RUN, [], {}, left)
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
    asked = replace(RUN, plan=replace(PLAN, warnings=("no data plane",), unknown=("loss",)))
    page = page_of(tmp_path, asked, [])
    assert page.items == ["no data plane", "loss"]
    assert set(page.headings) - set(plain.headings) == {"Approved with these warnings", "Not known when approved"}


def test_of_many_partitions_and_facts_the_page_shows_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_report, "SHOWN", 3)
    page_of(tmp_path, RUN, [], *(status(index) for index in range(3)))
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "The first 3 of 6; all are in run.json." in text, "facts"
    page = page_of(tmp_path, replace(RUN, plan=replace(PLAN, bound=())), [], *(status(index) for index in range(5)))
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "The first 3 of 5; all are in run.json." in text
    assert ["a-2", "STOPPED", "2", ""] in page.rows
    assert ["a-3", "STOPPED", "3", ""] not in page.rows
    assert len(json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["partitions"]) == 5
    few = replace(PLAN, bound=(), figures={}, partitions={})
    page_of(tmp_path, replace(RUN, plan=few), [], status(0))
    assert "The first" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_promotion_without_a_fence_has_no_block_to_tell_of() -> None:
    assert clocks(RUN, [step("promote", 3, 5)]) == {
        "conductor": 5.0,
        "write_block_upper": None,
        "working": 2.0,
        "waiting": None,
    }


def test_a_step_that_never_ended_worked_for_no_known_time() -> None:
    steps = [step("fence", 1, 2), step("drain", 2, None), step("promote", 4, 4.5)]
    assert clocks(RUN, steps)["working"] == 1.5
    overlapping = [step("fence", 1, 4), step("drain", 1, 4), step("promote", 4, 4.5)]
    assert clocks(RUN, overlapping)["waiting"] == 0, "never less than nothing"
    assert clocks(RUN, [step("fence", 0, 0.0004), step("promote", 1, 1.0335)])["working"] == pytest.approx(0.034)


def test_a_report_written_again_replaces_the_earlier_one(tmp_path: Path) -> None:
    page_of(tmp_path, RUN, [], *(status(index) for index in range(50)))
    page_of(tmp_path, replace(RUN, started_by="bob"), [])
    assert json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["run"]["started_by"] == "bob"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run.json"]
