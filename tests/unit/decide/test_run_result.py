"""What a run did to applications, in numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.cli.runs import list_result
from mirror_core.decide.run_result import (
    HealthResult,
    RtoVerdict,
    RunLoss,
    RunResult,
    WriteOutage,
    decide_loss,
    decide_run_result,
    find_saved,
    format_outage,
    format_outage_briefly,
    format_rto,
    format_run_loss,
    measure_outage,
)
from mirror_core.decide.steps import list_standstill_steps
from mirror_core.evidence.run_report import ReportQuestion, answer_questions
from mirror_core.model.figures import FigureKey, Figures
from mirror_core.model.findings import Finding
from mirror_core.model.forecast import ForecastOutcome, PlanForecast
from mirror_core.model.run import Run, RunKind, RunMode, RunState, StepEvidence, StepRecord, StepState
from tests.support.mirror_views import MIRROR, RUN

FORECAST = PlanForecast(
    seconds=1.0,
    lost_offsets=10,
    lost_is_minimum=True,
    gives_up_source=True,
    unseen_s=18.0,
    offsets_per_s=100.0,
)
UNPLANNED = replace(
    RUN,
    state=RunState.DONE,
    started_ms=100_000,
    plan=replace(RUN.plan, kind=RunKind.FAILOVER, mode=RunMode.UNPLANNED, forecast=FORECAST),
)
PLANNED = replace(UNPLANNED, plan=replace(UNPLANNED.plan, mode=RunMode.PLANNED))
FAILBACK = replace(PLANNED, plan=replace(PLANNED.plan, kind=RunKind.FAILBACK))


FAILED_BACK = RunResult(
    applications=MIRROR.source,
    old_source=MIRROR.source,
    left=MIRROR.destination,
    loss=None,
    saved=464,
    saved_to=("/evidence/salvage",),
)


def step(name: str, from_ms: int, to_ms: int | None, evidence: StepEvidence | None = None) -> StepRecord:
    state = StepState.STARTED if to_ms is None else StepState.DONE
    return StepRecord(
        run=RUN.id, step=name, state=state, attempt=1, started_ms=from_ms, ended_ms=to_ms, evidence=evidence or {}
    )


def steps_of(run: Run, from_ms: int, promoted_ms: int) -> list[StepRecord]:
    names = list_standstill_steps(run.plan.kind, run.plan.mode)
    return [step(names[0], from_ms, from_ms + 1), step(names[-1], promoted_ms - 1, promoted_ms)]


def test_an_unplanned_outage_begins_when_the_source_was_last_observed() -> None:
    outage = measure_outage(UNPLANNED, steps_of(UNPLANNED, 100_200, 100_800))
    assert outage == WriteOutage(promotion_s=0.6, at_most_s=18.8)
    set_back = measure_outage(UNPLANNED, steps_of(UNPLANNED, 90_200, 90_800))
    assert set_back == WriteOutage(promotion_s=0.6, at_most_s=None), "the conductor's clock was set back"


@pytest.mark.parametrize(
    "run",
    [
        replace(UNPLANNED, plan=replace(UNPLANNED.plan, forecast=replace(FORECAST, unseen_s=None))),
        replace(UNPLANNED, continues="m-failover-0"),
    ],
)
def test_an_outage_that_began_nobody_knows_when_is_not_called_short(run: Run) -> None:
    assert measure_outage(run, steps_of(run, 100_200, 100_800)) == WriteOutage(promotion_s=0.6, at_most_s=None)


def test_a_planned_outage_begins_at_the_fence() -> None:
    assert measure_outage(PLANNED, steps_of(PLANNED, 100_200, 101_700)) == WriteOutage(promotion_s=1.5, at_most_s=1.5)
    assert measure_outage(PLANNED, steps_of(PLANNED, 100_200, 101_700)[:1]) is None


def test_a_loss_that_was_not_counted_is_the_plans_bound() -> None:
    result = decide_run_result(UNPLANNED, steps_of(UNPLANNED, 100_200, 100_800), MIRROR)
    assert result is not None
    assert result.applications == MIRROR.destination
    assert result.loss == RunLoss(offsets=10, is_minimum=True, unseen_s=18.0, unseen_offsets=1_800)
    looked: Figures = {FigureKey.LOST_OFFSETS: 10, FigureKey.SOURCE_SEEN_S: 48.6}
    reported = replace(UNPLANNED, plan=replace(UNPLANNED.plan, figures=looked))
    answers = dict(answer_questions(reported, [], MIRROR.source, MIRROR.destination))
    assert answers[ReportQuestion.LOST] == dict(list_result(result, None))["lost"], "the report and `runs show`"


@pytest.mark.parametrize(
    ("mode", "outcome", "is_final"),
    [
        (RunMode.UNPLANNED, None, False),
        (RunMode.UNPLANNED, {"lost_offsets": None, "least_lost_offsets": 500}, False),
        (RunMode.UNPLANNED, {"lost_offsets": 464}, True),
        (RunMode.PLANNED, {"lost_offsets": 0}, True),
    ],
)
def test_a_report_whose_loss_is_not_counted_yet_names_where_the_count_will_stand(
    mode: RunMode, outcome: dict[str, int | None] | None, is_final: bool
) -> None:
    counted = None if outcome is None else ForecastOutcome(**outcome, lost_basis="", reread_basis="")  # type: ignore[arg-type]
    run = replace(UNPLANNED, plan=replace(UNPLANNED.plan, mode=mode), forecast_outcome=counted)
    told = dict(answer_questions(run, [], "east", "west")).get(ReportQuestion.COUNTED_LATER)
    assert told == (None if is_final else str(Finding("counted_later", run.id)))


def test_a_counted_loss_is_told_instead() -> None:
    counted = ForecastOutcome(lost_offsets=464, lost_basis="", reread_basis="", taken_since_offsets=72)
    result = decide_run_result(replace(UNPLANNED, forecast_outcome=counted), [], MIRROR)
    assert result is not None
    assert (result.loss, result.outage) == (RunLoss(offsets=464, taken_since=72), None)


def test_what_could_be_counted_of_a_source_that_is_back_is_told_though_others_have_no_copy() -> None:
    outcome = ForecastOutcome(lost_offsets=None, least_lost_offsets=500, lost_basis="", reread_basis="")
    plan = replace(UNPLANNED.plan, figures={FigureKey.UNCOPIED_OFFSETS: 36})
    for mode in RunMode:
        counted = replace(UNPLANNED, plan=replace(plan, mode=mode), forecast_outcome=outcome)
        assert decide_loss(counted) == RunLoss(offsets=500, is_minimum=True), "uncopied offsets are in it already"
        answered = dict(answer_questions(counted, [], "east", "west"))[ReportQuestion.LOST]
        assert answered == format_run_loss(decide_loss(counted), MIRROR.source)


def test_what_had_no_copy_is_named_as_it_was_counted_and_not_as_it_was_planned() -> None:
    planned = Finding("partitions_uncopied", "west", counted_topics=("late2 (1 partition)",), unknown_topics=("late3",))
    run = replace(UNPLANNED, plan=replace(UNPLANNED.plan, warnings=(planned,)))
    for lost in ({"lost_offsets": 289}, {"lost_offsets": None, "least_lost_offsets": 289}):
        outcome = ForecastOutcome(**lost, uncopied=("late3-0 (35)",), lost_basis="", reread_basis="")
        text = format_run_loss(decide_loss(replace(run, forecast_outcome=outcome)), MIRROR.source)
        assert ("289" in text, "late3-0 (35)" in text, "late2" in text) == (True, True, False), text


def test_what_a_failback_has_saved_is_no_longer_said_to_be_on_the_old_source() -> None:
    outcome = ForecastOutcome(lost_offsets=0, lost_basis="", reread_basis="", taken_since_offsets=8_240)
    salvage = step("salvage", 1, 2, {"records": 8_677, "folder": "/evidence/salvage"})
    run = replace(UNPLANNED, forecast_outcome=outcome)
    before, after = (
        decide_run_result(run, [], MIRROR, failback_steps=steps)
        for steps in ([salvage], [salvage, step("align", 3, 4)])
    )
    assert before is not None
    assert after is not None
    assert "a failback saves" in dict(list_result(before, None))["only on east"]
    shown = dict(list_result(after, None))
    assert "only on east" not in shown
    values = {"records": 8_677, "folders": ("/evidence/salvage",), "taken": 8_240}
    assert shown["saved since"] == str(Finding("loss_saved", "east", **values, lost=False, others=False))
    assert dict(list_result(FAILED_BACK, None))["to write back"].startswith("decide which")


@pytest.mark.parametrize(("taken", "uncopied"), [(518, ("late-0 (not mirrored yet: 50 offsets)",)), (0, ())])
def test_lost_records_that_a_failback_has_saved_are_said_to_be_saved(taken: int, uncopied: tuple[str, ...]) -> None:
    outcome = ForecastOutcome(
        lost_offsets=368, lost_basis="", reread_basis="", taken_since_offsets=taken, uncopied=uncopied
    )
    for saved, folders in ((700, ("/e/salvage",)), (None, ("/e/salvage",)), (0, ())):
        evidence: dict[str, int | str] = {} if saved is None else {"records": saved}
        steps = [step("salvage", 1, 2, {**evidence, **dict.fromkeys(("folder",) * len(folders), "/e/salvage")})]
        steps.append(step("align", 3, 4))
        result = decide_run_result(replace(UNPLANNED, forecast_outcome=outcome), [], MIRROR, failback_steps=steps)
        assert result is not None
        shown = dict(list_result(result, None))
        assert shown["lost"].startswith("368 offsets")
        values = {"records": saved, "taken": taken, "lost": True, "folders": folders, "others": bool(uncopied)}
        assert shown.get("saved since") == (str(Finding("loss_saved", "east", **values)) if folders else None)


def test_nothing_compared_is_no_loss_of_nothing() -> None:
    unknown = ForecastOutcome(lost_offsets=None, lost_basis="", reread_basis="")
    result = decide_run_result(replace(PLANNED, forecast_outcome=unknown), [], MIRROR)
    assert result is not None
    assert result.loss == RunLoss(offsets=None)


@pytest.mark.parametrize("lost", [None, 0, 3])
def test_the_report_of_a_planned_run_says_what_was_counted_whatever_was_compared(lost: int | None) -> None:
    passed: StepEvidence = {"parity_verdict": "passed", "records_in_all": 10, "partitions": 3}
    outcome = ForecastOutcome(lost_offsets=lost, lost_basis="by a look", reread_basis="", taken_since_offsets=2)
    answers = dict(answer_questions(replace(PLANNED, forecast_outcome=outcome), [step("parity", 1, 2, passed)], "", ""))
    assert answers[ReportQuestion.LOST] == {None: "unknown", 0: "nothing", 3: "3 offsets"}[lost]
    assert answers[ReportQuestion.BASIS].startswith("by a look; 10 records")
    assert (ReportQuestion.TAKEN_SINCE in answers) is (lost is not None)


@pytest.mark.parametrize("saved_by", ["salvage", "align", "create_reverse"])
def test_beginnings_are_named_whichever_step_has_saved_them(saved_by: str) -> None:
    """Another machine saves them again, or one that runs a newer version for the first time."""
    evidence: dict[str, dict[str, int | str]] = {"salvage": {"records": 400, "folder": "/e/salvage"}}
    evidence[saved_by] = {
        **evidence.get(saved_by, {}),
        "beginnings_records": 60,
        "beginnings_folder": "/e/salvage-beginnings",
    }
    found = find_saved([step(name, 1, 2, one) for name, one in evidence.items()])
    assert found == (460, ("/e/salvage", "/e/salvage-beginnings"))


def test_a_failback_tells_what_it_saved_and_the_outage_of_its_way_home() -> None:
    salvage = step(
        "salvage",
        1,
        2,
        {
            "records": 400,
            "folder": "/evidence/salvage",
            "beginnings_records": 60,
            "beginnings_folder": "/evidence/salvage-beginnings",
        },
    )
    align = step(
        "align",
        2,
        3,
        {
            "records_grown_since": 4,
            "folder": ("/evidence/salvage-2",),
            "beginnings_records": 60,
            "beginnings_folder": "/evidence/salvage-beginnings",
        },
    )
    home = (PLANNED, steps_of(PLANNED, 0, 2_000))
    result = decide_run_result(FAILBACK, [salvage, align], MIRROR, home)
    assert result is not None
    assert (result.applications, result.saved) == (MIRROR.source, 464)
    assert result.saved_to == tuple(f"/evidence/salvage{end}" for end in ("", "-beginnings", "-2"))
    assert (result.loss, result.outage) == (None, WriteOutage(promotion_s=2.0, at_most_s=2.0))


def test_a_failback_that_led_home_without_the_new_primary_counts_that_outage_and_names_its_run() -> None:
    home = replace(UNPLANNED, id="m-back-failover-1")
    result = decide_run_result(FAILBACK, [], MIRROR, (home, steps_of(home, 100_200, 100_800)))
    assert result is not None
    assert (result.moved_by, result.mode, result.left) == (home.id, RunMode.UNPLANNED, MIRROR.destination)
    shown = dict(list_result(result, None))
    assert "18.8 s" in shown["without writes"]
    assert f"mirrorbook runs show {home.id}" in shown["moved home by"]
    planned = decide_run_result(FAILBACK, [], MIRROR, (PLANNED, steps_of(PLANNED, 0, 2_000)))
    assert planned is not None
    assert "moved home by" not in dict(list_result(planned, None))


def test_a_result_names_groups_that_were_not_brought_over_also_on_the_way_home() -> None:
    sync = step("final_sync", 1, 2, {FigureKey.GROUPS_NOT_BROUGHT_OVER: ("g (has members)",)})
    for run, steps, home in ((PLANNED, [sync], None), (FAILBACK, [], (PLANNED, [sync]))):
        result = decide_run_result(run, steps, MIRROR, home)
        assert result is not None
        assert result.groups_left == ("g (has members)",)
        shown = dict(list_result(result, None))
        assert shown["groups not brought over"] == "g (has members)"
    answers = dict(answer_questions(PLANNED, [sync], "east", "west"))
    assert answers[ReportQuestion.GROUPS_LEFT] == "g (has members)"


def test_a_loss_of_nothing_stands_apart_from_heartbeats_that_were_not_compared() -> None:
    beats = "mirrorbook.heartbeats.m-0"
    passed: StepEvidence = {
        "parity_verdict": "passed",
        "records_in_all": 10,
        "partitions": 3,
        "not_compared": (),
        "heartbeats_not_compared": (beats,),
    }
    gate = step("parity", 1, 2, passed)
    nothing = ForecastOutcome(lost_offsets=0, lost_basis="", reread_basis="")
    result = decide_run_result(replace(PLANNED, forecast_outcome=nothing), [gate], MIRROR)
    assert result is not None
    shown = dict(list_result(result, None))
    assert (shown["lost"], shown["not compared"]) == ("nothing", f"Mirrorbook's own heartbeats ({beats})")
    answers = dict(answer_questions(replace(PLANNED, forecast_outcome=nothing), [gate], "east", "west"))
    assert answers[ReportQuestion.LOST] == "nothing"
    assert answers[ReportQuestion.BASIS].endswith(f"; not compared: Mirrorbook's own heartbeats ({beats})")


@pytest.mark.parametrize("state", [state for state in RunState if state is not RunState.DONE])
def test_a_run_that_is_not_done_has_no_result(state: RunState) -> None:
    assert decide_run_result(replace(UNPLANNED, state=state), [], MIRROR) is None


def limited(run: Run, rto_s: float) -> Run:
    return replace(run, plan=replace(run.plan, figures={FigureKey.RTO_S: rto_s}))


@pytest.mark.parametrize(
    ("run", "rto_s", "verdict"),
    [
        (PLANNED, 3.0, RtoVerdict.MET),
        (PLANNED, 0.5, RtoVerdict.MISSED),
        (PLANNED, 1.0, RtoVerdict.UNKNOWN),  # promoted within it, and nobody knows who wrote before the canary
        (UNPLANNED, 30.0, RtoVerdict.MET),
        (UNPLANNED, 0.5, RtoVerdict.MISSED),
        (UNPLANNED, 10.0, RtoVerdict.UNKNOWN),  # applications may have stood still before the run began, or not
        (replace(UNPLANNED, continues="m-failover-0"), 30.0, RtoVerdict.UNKNOWN),
    ],
)
def test_an_rto_is_met_or_missed_by_what_is_certain(run: Run, rto_s: float, verdict: RtoVerdict) -> None:
    steps = [*steps_of(run, 100_200, 100_800), step("canary", 100_900, 102_800)]
    outage = measure_outage(limited(run, rto_s), steps)
    assert outage is not None
    assert (outage.rto_s, outage.rto) == (rto_s, verdict)
    assert str(verdict).upper() in format_outage_briefly(outage, run.plan.mode).upper()
    assert format_rto(outage).startswith(f"{rto_s:,.0f} s, ")


def checked(*, is_well: bool, seconds: float) -> StepEvidence:
    return {
        FigureKey.HEALTH_COMMAND: "/opt/orders/healthy",
        FigureKey.HEALTH_WELL: is_well,
        FigureKey.HEALTH_S: seconds,
        **({} if is_well else {FigureKey.HEALTH_PROBLEM: "exit code 1"}),
    }


@pytest.mark.parametrize(
    ("is_well", "rto_s", "verdict"),
    [
        (True, 10.0, RtoVerdict.MET),
        (True, 8.0, RtoVerdict.UNKNOWN),  # a broker took canaries in time, and the application was seen well later
        (False, 8.0, RtoVerdict.MISSED),  # it was not well when that time was over
        (False, 60.0, RtoVerdict.UNKNOWN),  # nobody asked any more
    ],
)
def test_an_application_that_is_asked_decides_whether_an_rto_was_met(
    is_well: bool, rto_s: float, verdict: RtoVerdict
) -> None:
    canary = step("canary", 100_900, 108_800, checked(is_well=is_well, seconds=6.0))
    outage = measure_outage(limited(PLANNED, rto_s), [*steps_of(PLANNED, 100_200, 100_800), canary])
    assert outage is not None
    assert (outage.accepted_s, outage.recovered_s) == (2.6, 8.6 if is_well else None)
    assert outage.health == HealthResult(
        command="/opt/orders/healthy", is_well=is_well, seconds=6.0, problem="" if is_well else "exit code 1"
    )
    assert outage.rto is verdict


def test_a_canary_ends_what_applications_stood_still_and_none_leaves_it_open() -> None:
    promoted = steps_of(PLANNED, 100_200, 100_800)
    accepted = measure_outage(PLANNED, [*promoted, step("canary", 100_900, 102_800)])
    assert accepted == WriteOutage(promotion_s=0.6, at_most_s=0.6, accepted_s=2.6, recovered_s=2.6)
    unfinished = measure_outage(limited(PLANNED, 9.0), [*promoted, step("canary", 100_900, None)])
    assert unfinished is not None
    assert (unfinished.accepted_s, unfinished.rto) == (None, RtoVerdict.UNKNOWN)
    assert measure_outage(PLANNED, promoted) == WriteOutage(promotion_s=0.6, at_most_s=0.6), "there was no limit"


@pytest.mark.parametrize("at_most_s", [None, 22.8])
def test_an_unplanned_outage_is_said_once_and_ends_when_applications_followed(at_most_s: float | None) -> None:
    told = format_outage(WriteOutage(promotion_s=0.8, at_most_s=at_most_s), RunMode.UNPLANNED, "east")
    assert told.startswith(f"{Finding('unplanned_outage', 'east', at_most_s=at_most_s)}; ")
    assert told.count("22.8 s") == (at_most_s is not None)
    assert told.endswith(": 0.8 s")
