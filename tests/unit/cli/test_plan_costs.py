"""A plan says first what it costs, and what cannot be undone is confirmed by the mirror's name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from msgspec import UNSET

from mirror_core.cli.plan_costs import confirm_costs, format_loss, list_costs, sum_costs
from mirror_core.cli.run_commands import confirm_set_move, print_decision
from mirror_core.cli.runs import list_result, print_plan
from mirror_core.decide.failback_plan import FailbackSnapshot, decide_failback
from mirror_core.decide.failover_plan import PlanDecision, decide_failover
from mirror_core.decide.mirror_snapshot import MirrorSnapshot, UnseenCluster
from mirror_core.decide.run_result import RunLoss, RunResult, decide_loss, find_uncounted_loss, format_run_loss
from mirror_core.model.errors import Refused
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.forecast import ForecastOutcome, PlanForecast
from mirror_core.model.mirror import Lease
from mirror_core.model.names import ClusterName, Partition
from mirror_core.model.run import FailbackStrategy, Plan, RunMode
from tests.support import failback_views, loss_views
from tests.support.failover_views import healthy_view
from tests.support.forecasts import COMMITTED
from tests.support.loss_views import DESTINATION, SIGHTING
from tests.support.mirror_views import RUN

view, failback_view = loss_views.view, failback_views.view
Answer = Callable[[str], list[str]]
UNSEEN = {"gives_up_source": True, "unseen_s": 6.0, "offsets_per_s": 100.0}


@pytest.fixture
def lossy(view: MirrorSnapshot) -> MirrorSnapshot:
    destination = replace(DESTINATION, committed=COMMITTED)
    return replace(view, destination=destination, source_observation=replace(SIGHTING, offsets_per_s=100.0))


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    asked = list[str]()

    def answer_with(text: str) -> list[str]:
        def ask(question: str, **options: object) -> str:
            asked.append(question)
            return text

        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        monkeypatch.setattr(typer, "prompt", ask)
        monkeypatch.setattr(typer, "confirm", lambda question, **options: ask(question) == "y")
        return asked

    return answer_with


def test_a_forecast_has_what_the_source_took_unseen_by_its_last_known_rate(lossy: MirrorSnapshot) -> None:
    forecast = decide_failover(lossy).plan.forecast
    assert isinstance(forecast, PlanForecast)
    assert (forecast.lost_offsets, forecast.lost_is_minimum, forecast.gives_up_source) == (37, True, True)
    assert (forecast.unseen_s, forecast.offsets_per_s, forecast.unseen_offsets) == (6.0, 100.0, 599)
    assert forecast.max_reread_offsets == 5 + 6


@pytest.mark.parametrize("changed", [{"mode": RunMode.PLANNED}, {"is_drained": True}])
def test_nothing_unseen_is_lost_where_the_source_is_drained(lossy: MirrorSnapshot, changed: dict[str, object]) -> None:
    forecast = decide_failover(replace(lossy, **changed)).plan.forecast  # type: ignore[arg-type]
    assert isinstance(forecast, PlanForecast)
    assert (forecast.gives_up_source, forecast.unseen_s, forecast.unseen_offsets) == (False, None, None)


def test_an_unknown_rate_makes_no_loss_of_nothing(lossy: MirrorSnapshot) -> None:
    unknown = replace(lossy, source_observation=SIGHTING)
    forecast = decide_failover(unknown).plan.forecast
    assert isinstance(forecast, PlanForecast)
    assert forecast.unseen_offsets is None
    lost = dict(list_costs(decide_failover(unknown).plan, unknown.mirror))["lost"]
    assert "(an unknown number of offsets, 1 of them copied" in lost


def test_what_a_group_with_members_reads_again_is_asked_about_with_what_to_do(lossy: MirrorSnapshot) -> None:
    joined = replace(DESTINATION, committed=COMMITTED, active_groups=("g",))
    plan = decide_failover(replace(lossy, mode=RunMode.PLANNED, destination=joined)).plan
    again = dict(list_costs(plan, lossy.mirror))["read again"]
    assert again == "unknown: g has members on west. Stop them first; others: up to 6 records"


@pytest.mark.parametrize("mode", RunMode)
def test_nothing_is_read_again_by_consumers_that_stop_before_the_fence(lossy: MirrorSnapshot, mode: RunMode) -> None:
    plan = decide_failover(lossy).plan
    assert isinstance(plan.forecast, PlanForecast)
    plan = replace(plan, mode=mode, forecast=replace(plan.forecast, reread_offsets={"g": (0, 0)}))
    again = dict(list_costs(plan, lossy.mirror))["read again"]
    assert again == (str(Finding("reread_by_stopped", "east")) if mode is RunMode.PLANNED else "nothing")


def test_what_a_loss_cannot_count_follows_what_is_known_of_it_before_and_after_the_run(lossy: MirrorSnapshot) -> None:
    new = replace(lossy, unmirrored=(Partition("new", 0), Partition("new", 1)))
    plan = decide_failover(new).plan
    known = dict(list_costs(decide_failover(lossy).plan, lossy.mirror))["lost"]
    told = dict(list_costs(plan, lossy.mirror))["lost"]
    assert told.startswith(f"{known}; and all of topic new (2 partitions): ")
    assert format_run_loss(decide_loss(replace(RUN, plan=plan)), ClusterName("east")).endswith(told.removeprefix(known))


@pytest.mark.parametrize("listed_ms", [None, 70_000])
def test_topics_that_no_listing_has_told_of_follow_each_figure_of_a_loss(
    lossy: MirrorSnapshot, listed_ms: int | None
) -> None:
    """The source observed each known partition since: new topics, or those that new filters match, may hold any."""
    assert lossy.source_observation is not None
    unlisted = replace(lossy, source_observation=replace(lossy.source_observation, listed_ms=listed_ms))
    plan = decide_failover(unlisted).plan
    known = dict(list_costs(decide_failover(lossy).plan, lossy.mirror))["lost"]
    told = dict(list_costs(plan, lossy.mirror))["lost"]
    uncounted = find_uncounted_loss(plan).unlisted
    assert uncounted
    assert told == f"{known}; and {uncounted}"
    assert unlisted.loss.text == f"{lossy.loss.text}; and {uncounted}"
    forecast_only = replace(RUN, plan=plan)
    counted = replace(forecast_only, forecast_outcome=ForecastOutcome(lost_offsets=0, lost_basis="", reread_basis=""))
    for run in (forecast_only, counted):
        result = format_run_loss(decide_loss(run), ClusterName("east"))
        assert result != "nothing"
        assert result.endswith(f"; and {uncounted}")
    is_warned = "topics_unlisted" in {warning.code for warning in plan.warnings}
    assert (is_warned, unlisted.loss.missing_in_all) == ((True, None) if listed_ms is None else (False, 37))


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_the_question_of_an_unplanned_failover_says_the_loss_and_wants_the_name(
    lossy: MirrorSnapshot, answer: Answer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    asked, plan = answer("m"), decide_failover(lossy).plan
    confirm_costs(plan, lossy.mirror, "Run plan 1?", yes=False, as_json=False)
    lines = lines_of(capsys)
    assert max(map(len, lines)) <= 80
    assert len(lines) < 20, "all of it is on one screen with the question"
    shown = " ".join(" ".join(lines).split())
    for part in (
        "UNPLANNED",
        "east is given up",
        "at least 37 offsets",
        "what east took in the last 6.0 s",
        "about 599: 600 if it wrote on at 100/s, less 1 copied since",
        "up to 11",
    ):
        assert part in shown
    assert len(asked) == 1
    assert "Type m " in asked[0]


@pytest.mark.parametrize("seen", ["silent", "partly", "fully"])
def test_the_question_begins_with_a_source_that_answers_and_says_from_whom_a_run_is_taken(
    lossy: MirrorSnapshot, answer: Answer, capsys: pytest.CaptureFixture[str], seen: str
) -> None:
    answer("m")
    source = healthy_view().source if seen == "fully" else UnseenCluster("no answer")
    conducted = replace(
        lossy,
        source=source,
        mode=RunMode.UNPLANNED,
        continues_run="m-failover-1",
        conducted_by="conducted by ann on desk",
    )
    plan = decide_failover(conducted).plan
    if seen == "partly":
        plan = replace(plan, warnings=(Finding("source_answers_partly", "east"), *plan.warnings))
    confirm_costs(plan, lossy.mirror, "Run plan 1?", yes=False, as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    headlines = {
        "silent": "UNPLANNED failover of m: ",
        "partly": "EAST ANSWERS IN PART. Once it answers in full, a planned failover loses nothing. UNPLANNED ",
        "fully": "EAST ANSWERS. A planned failover loses nothing. UNPLANNED failover of m: ",
    }
    assert shown.startswith(headlines[seen])
    assert "this failover takes run m-failover-1, conducted by ann on desk: " in shown


@pytest.mark.parametrize("typed", ["", "y", "M", "mm"])
def test_nothing_but_the_name_begins_it(lossy: MirrorSnapshot, answer: Answer, typed: str) -> None:
    answer(typed)
    with pytest.raises(Refused, match="cancelled"):
        confirm_costs(decide_failover(lossy).plan, lossy.mirror, "Run plan 1?", yes=False, as_json=False)


def test_unattended_it_needs_yes_and_asks_nothing(lossy: MirrorSnapshot, answer: Answer) -> None:
    asked, plan = answer(""), decide_failover(lossy).plan
    confirm_costs(plan, lossy.mirror, "Run plan 1?", yes=True, as_json=False)
    assert not asked


def test_without_a_terminal_it_is_refused(lossy: MirrorSnapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    with pytest.raises(Refused, match="pass --yes"):
        confirm_costs(decide_failover(lossy).plan, lossy.mirror, "Run plan 1?", yes=False, as_json=False)


def test_a_planned_failover_is_confirmed_by_a_yes_with_its_costs_on_the_same_screen(
    lossy: MirrorSnapshot, answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = answer("y")
    plan: Plan = decide_failover(replace(lossy, mode=RunMode.PLANNED)).plan
    confirm_costs(plan, lossy.mirror, "Run plan 1?", yes=False, as_json=False)
    assert asked == ["Run plan 1?"]
    labels = [line.partition(":")[0].strip() for line in lines_of(capsys) if ":" in line]
    assert labels[1:] == [label for label, _ in list_costs(plan, lossy.mirror)]


def test_the_question_of_a_planned_set_stands_below_the_costs_of_each_mirror(
    lossy: MirrorSnapshot, answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, decision = answer("y"), decide_failover(replace(lossy, mode=RunMode.PLANNED))
    set_plan: Any = SimpleNamespace(decisions={lossy.mirror.name: decision}, hash="h" * 64)
    conductor: Any = SimpleNamespace(get_link=lambda name: SimpleNamespace(mirror=lossy.mirror))
    confirm_set_move("shop", conductor, set_plan, "move applications", yes=False, as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert [f"{label}: {cost}" in shown for label, cost in list_costs(decision.plan, lossy.mirror)] == [True] * 4
    assert len(asked) == 1
    assert "move applications" in asked[0]


def test_the_costs_of_a_set_are_summed_as_far_as_they_are_known(
    lossy: MirrorSnapshot, answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    answer("shop")
    decision = decide_failover(lossy)
    set_plan: Any = SimpleNamespace(decisions={"a": decision, "b": decision}, hash="h" * 64)
    conductor: Any = SimpleNamespace(get_link=lambda name: SimpleNamespace(mirror=lossy.mirror))
    confirm_set_move("shop", conductor, set_plan, "move applications", yes=False, as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert " ".join(str(dict(sum_costs([decision.plan] * 2))["lost"]).split()) in shown


@pytest.mark.parametrize(
    ("forecasts", "lost", "read_again"),
    [
        ([{}, {}], (0, 0, False), (0, False)),
        ([{"lost_offsets": 464}, {"lost_offsets": 36}], (500, 0, False), (0, False)),
        ([{"lost_offsets": 464}, {"lost_offsets": 1, "lost_is_minimum": True}], (465, 0, True), (0, False)),
        ([{"lost_offsets": 464}, {"lost_offsets": None}], (464, 0, True), (0, False)),
        ([{"lost_offsets": 464}, None], (464, 0, True), (0, True)),
        ([UNSEEN, {"lost_offsets": 3}], (3, 600, False), (0, False)),
        ([UNSEEN, {**UNSEEN, "offsets_per_s": None}], (0, 600, True), (0, False)),
        ([{"reread_offsets": {"g": (0, 7)}}, {"reread_offsets": {"g": (1, 5)}}], (0, 0, False), (12, False)),
        ([{"reread_offsets": {"g": (0, 7)}}, {"uncounted_groups": {"h": "active"}}], (0, 0, False), (7, True)),
    ],
)
def test_a_sum_is_at_least_where_one_of_a_set_is_not_known(
    forecasts: list[dict[str, Any] | None], lost: tuple[int, int, bool], read_again: tuple[int, bool]
) -> None:
    known = {"seconds": None, "lost_offsets": 0}
    plans = [replace(RUN.plan, forecast=UNSET if f is None else PlanForecast(**known | f)) for f in forecasts]
    offsets, unseen, is_minimum = lost
    assert dict(sum_costs(plans)) == {
        "lost": Finding("set_loss", offsets=offsets, unseen=unseen, is_minimum=is_minimum),
        "read again": Finding("set_reread", most=read_again[0], is_partial=read_again[1]),
    }


def test_a_loss_of_which_nothing_is_counted_begins_with_what_nobody_saw(lossy: MirrorSnapshot) -> None:
    """`at least 0 offsets` would be quoted as no loss."""
    forecast = decide_failover(lossy).plan.forecast
    assert isinstance(forecast, PlanForecast)
    uncounted = replace(forecast, lost_offsets=0)
    assert format_loss(uncounted, lossy.mirror.source).startswith("what east took in the last 6.0 s (about 599: ")
    uncopied = replace(uncounted, copied_unseen_offsets=0)
    assert "(about 600 if it wrote on at 100/s," in format_loss(uncopied, lossy.mirror.source)
    faster = replace(uncounted, copied_unseen_offsets=640)
    assert "unknown number: 640 were copied since" in format_loss(faster, lossy.mirror.source)
    result = RunLoss(offsets=0, is_minimum=True, unseen_s=6.0, unseen_offsets=600)
    assert format_run_loss(result, lossy.mirror.source).startswith("what east took in the 6.0 s before")


def test_what_nobody_saw_is_no_loss_once_the_source_was_down(lossy: MirrorSnapshot) -> None:
    """The estimate grows while nobody looks: nobody may take it for what each minute of waiting costs."""
    for unseen, snapshot in ((600, lossy), (None, replace(lossy, source_observation=SIGHTING))):
        result = RunLoss(offsets=0, is_minimum=True, unseen_s=6.0, unseen_offsets=unseen)
        assert "none once it was down" in dict(list_costs(decide_failover(snapshot).plan, lossy.mirror))["lost"]
        assert "none once it was down" in format_run_loss(result, lossy.mirror.source)


def test_waiting_makes_no_loss_larger_once_the_source_refuses_connections(lossy: MirrorSnapshot) -> None:
    assert lossy.source_observation is not None
    for waited_s, generation, expected in ((0, 3, 2.0), (50, 3, 2.0), (50, 4, 56.0), (0, None, 6.0)):
        now_ms = lossy.now_ms + waited_s * 1000
        lease = Lease(mirror=lossy.mirror.name, owner="o", generation=3, heartbeat_ms=now_ms, writers_until_ms=now_ms)
        observation = replace(
            lossy.source_observation,
            refused_ms=None if generation is None else lossy.now_ms - 4_000,
            refused_generation=generation,
        )
        plan = decide_failover(replace(lossy, now_ms=now_ms, lease=lease, source_observation=observation)).plan
        assert isinstance(plan.forecast, PlanForecast)
        assert (plan.forecast.taking_s, plan.forecast.unseen_offsets) == (expected, round(expected * 100) - 1)
        is_bounded = expected == 2.0
        assert plan.figures.get(FigureKey.SOURCE_REFUSED_S) == (4.0 + waited_s if is_bounded else None)
        assert ("still reach it another way" in format_loss(plan.forecast, ClusterName("east"))) is is_bounded


def test_a_run_that_another_one_followed_says_nothing_about_now() -> None:
    west, east = ClusterName("west"), ClusterName("east")
    result = RunResult(applications=west, old_source=east, left=east, loss=RunLoss(offsets=0))
    label, cluster = next(list_result(result, None, is_superseded=True))
    assert (label, cluster) == ("applications moved to", "west")


def test_a_failback_says_before_it_asks_what_it_deletes_and_copies_anew(failback_view: FailbackSnapshot) -> None:
    plan = decide_failback(failback_view).plan
    costs = dict(list_costs(plan, failback_view.mirror))
    deleted = Finding("topics_recreated", "east", topics=["a"], source="west", offsets=70, size_bytes=None)
    assert costs["deleted on east"] == str(deleted)
    kept = replace(plan, strategies=dict.fromkeys(plan.strategies, FailbackStrategy.HANDOVER))
    assert "deleted on east" not in dict(list_costs(kept, failback_view.mirror))


@pytest.mark.parametrize("mode", list(RunMode))
def test_costs_come_first_in_a_plan_and_steps_last(
    lossy: MirrorSnapshot, mode: RunMode, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = replace(decide_failover(replace(lossy, mode=mode)).plan, unknown=(Finding("source_facts_unknown", "east"),))
    print_plan(plan, lossy.mirror, (), as_json=False)
    lines = lines_of(capsys)
    positions = [
        next(n for n, line in enumerate(lines) if line.strip().startswith(start))
        for start in ("lost:", "unknown:", "warning:", "What is known now", "Steps")
    ]
    assert positions == sorted(positions)
    assert positions[0] < 5


def test_a_refused_plan_leaves_its_reasons_to_the_error_and_says_nothing_else(
    lossy: MirrorSnapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = decide_failover(lossy).plan
    with pytest.raises(Refused) as refused:
        print_decision(
            "failover of m", PlanDecision(plan=plan, reasons=(Finding("east is silent"),)), lossy.mirror, as_json=False
        )
    assert refused.value.reasons == ("east is silent",)
    lines = lines_of(capsys)
    assert [line.partition(":")[0] for line in lines] == ["plan", "hash"]
