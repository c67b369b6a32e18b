"""The report of a run: clocks, unknown values, and text of others that must not become markup."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.evidence.parity_report import write_parity_report
from mirror_core.evidence.run_report import compute_clocks, write_run_report
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.parity_verdict import ParityFinding, ParityResult, ParityVerdict
from mirror_core.model.run import (
    FailbackStrategy,
    Plan,
    PlanFact,
    PlanStep,
    Run,
    RunKind,
    RunMode,
    StepRecord,
    StepState,
)
from tests.support.memory_state import run_of


@pytest.fixture
def run() -> Run:
    plan = Plan(
        kind=RunKind.FAILOVER,
        mirror=MirrorName("m"),
        mode=RunMode.PLANNED,
        steps=(PlanStep(name="fence", action="deny"),),
        bound_facts=(PlanFact("source", "E"),),
        warnings=(Finding("<script>alert(1)</script>"),),
    )
    return replace(run_of("r", plan), started_by="me <me@home>", started_ms=1_000, conducted_by="me <me@home>")


def step(name: str, start_ms: int, end_ms: int | None) -> StepRecord:
    state = StepState.STARTED if end_ms is None else StepState.DONE
    return StepRecord(run="r", step=name, state=state, attempt=1, started_ms=start_ms, ended_ms=end_ms)


def test_waiting_between_steps_is_told_apart_from_work(run: Run) -> None:
    steps = [step("prove", 1_000, 5_000), step("fence", 6_000, 7_000), step("drain", 7_000, 8_500)]
    steps += [step("promote", 12_000, 12_500), step("canary", 12_500, 14_000)]
    assert compute_clocks(run, steps) == {
        "conductor": 11.5,
        "first_step_to_promotion": 6.5,
        "write_block_upper": 6.5,
        "working": 3.0,
        "waiting": 3.5,
    }


def test_what_is_not_known_is_null_and_not_zero(run: Run) -> None:
    set_back = compute_clocks(run, [step("fence", 2_000, 1_000), step("promote", 4_000, 5_000)])
    assert (set_back["working"], set_back["waiting"]) == (None, None), "a part would be shown as the whole"
    found = compute_clocks(run, [step("fence", 2_000, 3_000), step("promote", 4_000, None)])
    assert set(found.values()) == {None}


def test_the_page_escapes_what_others_wrote_and_asks_nobody_else(run: Run, tmp_path: Path) -> None:
    partition = Partition("orders", 0)
    status = PartitionStatus(
        partition=partition,
        state=PartitionState.STOPPED,
        source_topic_id="",
        destination_topic_id="",
        reason="<b>bad</b>",
        lmo=Offset(7),
    )
    left = {"drain": {"Drained": {"n": 7}}}
    page = write_run_report(
        tmp_path, run, [step("fence", 1, 2)], {partition: status}, left, sides=("east", "west"), chronicle=()
    ).read_text()
    assert "<script" not in page
    assert "<b>bad" not in page
    assert "&lt;script&gt;" in page
    assert "://" not in page
    document = json.loads((tmp_path / "run.json").read_text())
    assert document["schema"] == "mirrorbook/run/2"
    assert document["partitions"][0]["lmo"] == 7
    assert document["left"] == left
    assert [s["step"] for s in document["steps"]] == ["fence"]
    assert not list(tmp_path.glob("_*")), "a half-written file was left behind"


def test_what_hides_or_turns_the_line_round_is_written_out(run: Run, tmp_path: Path) -> None:
    group = "g\x1b[2J\u202egnol"
    found = replace(step("fence", 1, 2), evidence={group: group}, error=f"{group}\nsecond line")
    plan = replace(
        run.plan,
        warnings=(Finding(group),),
        figures={FigureKey.OWNER: group},
        strategies={group: FailbackStrategy.NONE},
    )
    begun = replace(run, plan=plan, started_by=group)
    page = write_run_report(tmp_path, begun, [found], {}, {}, sides=("east", "west"), chronicle=()).read_text(
        encoding="utf-8"
    )
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert page.count("g\\x1b[2J\\u202egnol") >= 7
    assert "\nsecond line" in page


def test_a_parity_report_shows_names_of_others_as_text(tmp_path: Path) -> None:
    finding = ParityFinding(
        partition=Partition("t", 0), offset=Offset(1), kind="value", detail="<a href=x>\x1b\u202e</a>"
    )
    result = ParityResult(verdict=ParityVerdict.FAILED, records=1, chunks=1, findings=(finding,), reasons=("\u202eno",))
    east, west = ClusterName("east"), ClusterName("west")
    made = write_parity_report(tmp_path, result, [], source=east, destination=west, level=3, started=0.0, demands=None)
    page = Path(made.report).read_text(encoding="utf-8")
    assert "&lt;a href=x&gt;\\x1b\\u202e&lt;/a&gt;" in page
    assert "\\u202eno" in page
