"""The picture of a run: what was done when, by whom, in vain or not, and for how long nobody could write."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from mirror_core.evidence.run_report import write_run_report
from mirror_core.evidence.timeline import MIN_BAR_WIDTH, TIMELINE_WIDTH, Timeline, build_timeline, parse_entries
from mirror_core.model.audit_log import AuditEntryKind, build_next_line
from mirror_core.model.mirror import DesiredState
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Plan, Run, RunKind, RunMode, RunState, StepRecord, StepState
from tests.support.html_pages import Page
from tests.support.sentences import format_sentence

BEGUN = 1_790_000_000_000
PLAN = Plan(kind=RunKind.FAILOVER, mirror=MirrorName("m"), mode=RunMode.PLANNED, steps=(), bound_facts=())
RUN = Run(
    id="r", number=1, plan=PLAN, plan_hash="h", state=RunState.RUNNING, started_by="ann@desk", started_ms=BEGUN,
    desired=DesiredState.STARTED, conducted_by="ann@desk", approved_by="carol",
)  # fmt: skip


@dataclass
class Told:
    """A chronicle; times are seconds since the run was begun."""

    lines: list[str] = field(default_factory=list)

    def say(self, at: float, kind: AuditEntryKind, body: Any, by: str = "ann@desk") -> Told:
        self.lines.append(build_next_line(self.lines, run="r", at_ms=_ms(at), by=by, kind=kind, body=body).line)
        return self

    def step(self, name: str, begun: float, ended: float | None = None, *, attempt: int = 1, error: str = "") -> Told:
        started = StepRecord(run="r", step=name, state=StepState.STARTED, attempt=attempt, started_ms=_ms(begun))
        self.say(begun, AuditEntryKind.STEP, started)
        if ended is not None:
            state = StepState.FAILED if error else StepState.DONE
            self.say(ended, AuditEntryKind.STEP, replace(started, state=state, ended_ms=_ms(ended), error=error))
        return self

    @property
    def picture(self) -> Timeline:
        found = build_timeline(RUN, parse_entries(self.lines))
        assert found is not None
        return found


def _ms(seconds: float) -> int:
    return BEGUN + round(seconds * 1000)


@pytest.fixture
def told() -> Told:
    return Told().say(0, AuditEntryKind.BEGUN, {})


def test_each_step_is_where_and_as_long_as_it_was(told: Told) -> None:
    picture = told.step("prove", 0, 4).step("fence", 4, 6).step("drain", 7, 8).picture
    assert [(lane.step, lane.still, lane.took) for lane in picture.lanes] == [
        ("prove", False, "4.0 s"), ("fence", True, "2.0 s"), ("drain", True, "1.0 s"),
    ]  # fmt: skip
    prove, fence, drain = (lane.bars[0] for lane in picture.lanes)
    assert (prove.x, prove.width) == (0, TIMELINE_WIDTH / 2)
    assert (fence.x, fence.width) == (TIMELINE_WIDTH / 2, TIMELINE_WIDTH / 4)
    assert drain.x == round(TIMELINE_WIDTH * 7 / 8, 1)


def test_what_took_no_time_and_what_has_not_ended_are_seen_all_the_same(told: Told) -> None:
    picture = told.step("prove", 0, 0).step("fence", 0, 2).step("drain", 2).picture
    prove, _, drain = (lane.bars[0] for lane in picture.lanes)
    assert (prove.x, prove.width) == (0, MIN_BAR_WIDTH)
    assert (drain.x, drain.width, drain.state) == (TIMELINE_WIDTH - MIN_BAR_WIDTH, MIN_BAR_WIDTH, StepState.STARTED)
    assert picture.lanes[2].took == "not ended"


def test_the_step_that_writes_the_page_is_none_that_has_not_ended(told: Told) -> None:
    assert told.step("canary", 0, 1).step("report", 1).picture.lanes[-1].took == "wrote this page"


def test_before_the_first_step_there_is_no_picture(told: Told) -> None:
    assert build_timeline(RUN, parse_entries(told.lines)) is None
    assert build_timeline(RUN, []) is None


def test_the_standstill_begins_with_the_first_attempt_to_fence(told: Told) -> None:
    told.step("prove", 0, 1).step("fence", 1, 2, error="a transaction is open").step("fence", 3, 4, attempt=2)
    assert told.step("promote", 4, 5).picture.still == (round(TIMELINE_WIDTH / 5, 1), TIMELINE_WIDTH, "4.0 s")
    assert Told().say(0, AuditEntryKind.BEGUN, {}).step("prove", 0, 1).picture.still is None


def test_who_did_what_and_what_went_wrong_is_marked_and_told_in_order(told: Told) -> None:
    told.step("prove", 0, 1).say(2, AuditEntryKind.STOP_CONFIRMED, {"by": "dave"})
    told.step("fence", 2, 3, error="broker 2 of east:\nno answer").say(
        4, AuditEntryKind.CONDUCTOR_CHANGED, {}, by="bob@desk"
    )
    told.step("fence", 4, 5, attempt=2).say(6, AuditEntryKind.ABORTING, {}, by="bob@desk")
    assert [(m.number, m.after, m.bad, m.words) for m in told.picture.marks] == [
        (1, "0.0 s", False, "approved by carol, begun by ann@desk"),
        (2, "2.0 s", False, "dave said that applications may be stopped"),
        (3, "3.0 s", True, "fence failed: broker 2 of east:"),
        (4, "4.0 s", False, "taken over by bob@desk"),
        (5, "4.0 s", False, "fence: attempt 2"),
        (6, "6.0 s", True, "given up by bob@desk"),
    ]
    seats = [mark.seat for mark in told.picture.marks]
    assert seats == sorted(set(seats)), "one stands on another"


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("settle", format_sentence("dave_said_that_partitions_that_too")),
        ("promote", "dave said that what the source took may stay there"),
    ],
)
def test_what_somebody_left_behind_is_marked_as_bad(told: Told, step: str, words: str) -> None:
    told.step("settle", 0, 1).say(2, AuditEntryKind.STOP_CONFIRMED, {"by": "dave", "left_behind": True, "step": step})
    assert (True, words) in [(mark.bad, mark.words) for mark in told.picture.marks]


def test_an_attempt_that_was_broken_off_is_shown_as_one_without_an_end(told: Told) -> None:
    picture = told.step("prove", 0, 1).step("fence", 1).step("fence", 3, 4, attempt=2).picture
    lane = picture.lanes[1]
    assert [bar.state for bar in lane.bars] == [StepState.STARTED, StepState.DONE]
    assert lane.took == "1.0 s, attempt 2"
    assert picture.marks[-1].words == "fence: attempt 2, since the one before was broken off"


def test_a_night_of_waiting_is_cut_out_and_the_seconds_that_count_can_be_seen(told: Told) -> None:
    picture = told.step("prove", 0, 10_000).step("fence", 40_000, 40_001).step("promote", 40_001, 40_003).picture
    assert [label.words for label in picture.cuts] == ["2 h 47 min", "8 h 20 min"]
    assert picture.still is not None
    begin, end, words = picture.still
    assert words == "3.0 s"
    assert end - begin > TIMELINE_WIDTH / 4
    assert picture.axis[0].words == "+11:06:40.0"
    plain = Told().say(0, AuditEntryKind.BEGUN, {}).step("prove", 0, 8).step("fence", 8, 11).picture
    assert plain.cuts == (), "nothing is left out of what fits"


def test_the_page_shows_it_and_says_it_without_the_picture(told: Told, tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    told.step("prove", 0, 1).step("fence", 1, 3, error=hostile)
    page = write_run_report(tmp_path, RUN, [], {}, {}, sides=("east", "west"), chronicle=told.lines)
    text = page.read_text(encoding="utf-8")
    found = Page(text)
    assert {"svg", "title", "desc"} <= found.tags
    assert "script" not in found.tags
    assert "Nobody could write for 2.0 s." in text
    assert found.items == ["+0.0 s: approved by carol, begun by ann@desk", f"+3.0 s: fence failed: {hostile}"]
    assert "Timeline" in found.headings
