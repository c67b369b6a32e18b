"""What the DR page shows: worst first, unknown as unknown, old as old, names of others as text."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.decide.clock_skew import explain_clock_behind
from mirror_core.decide.failover_plan import PlanDecision
from mirror_core.decide.failover_readiness import GroupReadAgain, UnplannedForecast
from mirror_core.decide.process_liveness import WATCHER_STEP
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding, format_remedy
from mirror_core.model.forecast import ForecastOutcome, PlanForecast
from mirror_core.model.json_documents import to_finding_documents
from mirror_core.model.mirror import (
    FailureKind,
    GroupSyncTime,
    NeverCopied,
    PartitionState,
)
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import Run, RunMode, RunState, StepRecord
from mirror_core.model.run_checkpoints import RunNote, WatcherHeartbeat
from mirror_core.model.sync_state import DriftRow, SyncAction, SyncCategory
from mirror_core.page import routes
from mirror_core.page.mirror_page import ROWS_PER_PAGE
from mirror_core.page.routes import render
from mirror_core.page.runs import list_run_views, parse_dag_run
from mirror_core.page.snapshots import MirrorAssessment, PendingApproval
from mirror_core.runbook.readiness_report import find_recorded_points
from mirror_core.state.journal import make_checkpoint
from mirror_core.state.run_heartbeat import make_released_heartbeat
from mirror_core.state.state_records import PartitionRecord
from tests.support.html_pages import Page
from tests.support.page_views import (
    HOSTILE,
    NAME,
    NOW,
    judged,
    page,
    plan,
    row,
    run,
    seen,
    shown,
    status,
    step,
    told,
)
from tests.support.sentences import format_sentence

STYLE = (Path(routes.__file__).parent / "static" / "page.css").read_text(encoding="utf-8")


def test_failed_partitions_come_first_then_unknown_lag_then_the_greatest() -> None:
    rows = (row(0, lag=5), row(1, lag=None), row(2, PartitionState.FAILED, kind=FailureKind.GONE), row(3, lag=50))

    found = page(seen(*rows)).partitions.rows

    assert [line.row.partition for line in found] == ["t-2", "t-1", "t-3", "t-0"]


def test_a_partition_says_what_the_source_deleted_before_it_was_copied_also_when_no_cluster_answers() -> None:
    never = NeverCopied(offsets=1_500, since_ms=1, newest_ms=1, first=Offset(0), next=Offset(1_500))
    words = "1,500 offsets were deleted on the source before they were copied"
    recorded = told(PartitionRecord(NAME, status(Partition("t", 0), never_copied=never)))

    assert words in shown(page(seen(replace(row(0), never_copied=never))))
    assert words in shown(page(None, one=recorded))
    assert words not in shown(page(seen(row(0))))


def test_of_five_thousand_partitions_a_page_shows_a_hundred_and_the_failed_one() -> None:
    rows = (*(row(n, lag=n) for n in range(4_999)), row(4_999, PartitionState.FAILED, kind=FailureKind.GONE))

    first, last = page(seen(*rows)), page(seen(*rows), number=10_000)

    assert len(first.partitions.rows) == ROWS_PER_PAGE
    assert first.partitions.rows[0].row.partition == "t-4999"
    assert (last.partitions.page, last.partitions.pages) == (50, 50)
    assert len(shown(first)) < 100_000


def test_what_is_not_known_is_never_shown_as_zero() -> None:
    view = page(None)

    assert [card.tone for card in view.cards][:3] == ["unknown"] * 3
    assert view.facts["lag"] == "unknown"
    assert view.age.stale
    assert view.alarms
    assert "unknown" in view.drift_text


def test_an_old_look_is_an_alarm_and_its_figures_are_gone() -> None:
    partition = Partition("t", 0)
    old = seen(row(0, lag=777_777), at_ms=NOW - 11_000)

    view = page(old, one=told(PartitionRecord(NAME, status(partition))))

    assert any("11.0 s ago" in line for line in view.alarms)
    assert [line.row.lag for line in view.partitions.rows] == [None]
    assert "777" not in shown(view)


def test_an_old_source_that_is_not_fenced_is_the_first_alarm_and_the_first_card() -> None:
    values = {"taken": 7, "lost": 3, "unmeasured": (), "reason": None, "can_fence": True, "run_kind": ""}
    returned = Finding("old_source_unfenced_answers", "west", mirror=f"{NAME}-back", **values)
    view = page(replace(seen(row(0)), returned=returned), judged())
    text = f"{returned}: {format_remedy(returned)}"
    assert f"mirrorbook mirror watch {NAME}-back --once" in text
    assert view.alarms[0] == text
    assert (view.cards[0].value, view.cards[0].tone, view.cards[0].lines[0]) == ("WEST IS NOT FENCED", "bad", text)
    old = page(replace(seen(row(0), at_ms=NOW - 60_000), returned=returned), judged())
    assert text not in old.alarms
    assert old.cards[0].value != "WEST IS NOT FENCED"


def test_a_look_of_just_now_is_no_alarm() -> None:
    view = page(seen(row(0)), judged())

    assert view.alarms == ()
    assert not view.age.stale


def test_a_clock_that_is_behind_is_an_alarm_and_what_was_written_in_its_future_is_of_unknown_age() -> None:
    synced = GroupSyncTime(mirror=NAME, synced_ms=NOW + 60_000, followed=True)
    drilled = replace(run(ended_ms=NOW), plan=replace(plan(), mirror=MirrorName(f"drill.{NAME}")), id="drill-1")
    one = told(synced, replace(drilled, started_ms=NOW + 60_000))
    view = page(seen(row(0), seen_ms=NOW + 60_000, clock=str(explain_clock_behind("m", 60.0))), one=one)
    (alarm,) = view.alarms
    assert alarm.startswith(format_sentence("page_clock_behind", 60))
    cards = {card.title: " ".join((card.value, *card.lines)) for card in view.cards}
    assert "groups synced at an unknown time (clocks differ)" in cards["Proved equal"]
    assert "at an unknown time (clocks differ)" in cards["Time without writes"]
    assert "behind: unknown" in cards["Loss if the source died now"]
    assert " 0.0 s" not in "".join(cards.values())


def test_a_silent_cluster_is_named_with_its_reason_and_the_age_of_what_is_known() -> None:
    view = page(seen(row(0)), one=told(at_ms=NOW - 60_000, silent="cluster west: no answer within 4.0 s"))

    assert view.alarms == (
        format_sentence("state_was_last_read_s_ago", "60.0"),
        "cluster west: no answer within 4.0 s",
    )


@pytest.mark.parametrize("silent", ["", "cluster west: no answer within 4.0 s"])
def test_a_cluster_that_fell_silent_since_it_was_judged_is_not_ready(silent: str) -> None:
    known = seen(row(0), trouble="none" if silent else "cluster east: gone")

    assert page(known, judged(), told(silent=silent)).cards[0].value == "UNKNOWN"
    assert page(known, judged("the source is dead"), told(silent=silent)).cards[0].value == "NOT READY"


def test_where_only_the_source_is_silent_the_first_line_says_that_applications_can_move_without_it() -> None:
    silent = PlanDecision(plan(), (Finding("cluster east does not answer"),), source_seen=False)
    lost = replace(
        judged(), decision=silent, unplanned=UnplannedForecast(refused=(), groups={}, groups_of_source=False)
    )
    card = page(seen(row(0)), lost).cards[0]
    assert (card.value, card.tone) == ("ONLY WITHOUT THE SOURCE", "warn")
    assert card.lines[0] == format_sentence("without_the_source_possible_read_again")
    assert "cluster east does not answer" in card.lines
    for unplanned in (None, UnplannedForecast(refused=to_finding_documents([Finding("a run holds it")]))):
        assert page(seen(row(0)), replace(lost, unplanned=unplanned)).cards[0].value == "NOT READY"
    for one in (told(silent="cluster west: no answer"), told(at_ms=NOW - 100_000)):
        assert page(seen(row(0)), lost, one).cards[0].value == "UNKNOWN", "nobody hears the destination now"
    seen_there = replace(lost, decision=replace(silent, source_seen=True))
    assert page(seen(row(0)), seen_there).cards[0].value == "NOT READY", "a planned one is refused for another reason"


def test_the_frame_of_a_page_holds_its_body_as_markup_and_its_title_as_text() -> None:
    text = render("page", title=HOSTILE, user=HOSTILE, body="<section id='x'></section>", data="", base="", root="/r")

    assert "<section id='x'></section>" in text
    assert "<script>" not in text
    assert "\u202e" not in text


def test_a_card_shows_the_first_lines_and_folds_the_rest_whole() -> None:
    warnings = tuple(f"warning {number} " + "of many words " * 20 for number in range(7))
    html = shown(page(seen(row(0)), judged(warnings=warnings)))
    first, _, folded = html.partition("and 5 more</summary>")
    assert all(warning.strip() in first for warning in warnings[:4])
    assert all(warning.strip() in folded for warning in warnings[4:])
    assert "max-height" not in STYLE


def test_a_question_of_airflow_about_the_mirror_is_a_banner() -> None:
    question = PendingApproval("mirror_failover", "Fail over <orders>?", NOW, "/dags/mirror_failover/runs/r/asked")
    html = shown(page(seen(row(0))), pending=[question])
    assert 'href="/dags/mirror_failover/runs/r/asked">DAG mirror_failover waits for your approval</a>' in html
    assert "Fail over &lt;orders&gt;?" in html
    assert "waits for your approval" not in shown(page(seen(row(0))))


def test_an_old_judgement_is_not_readiness() -> None:
    assert page(seen(row(0)), judged()).cards[0].value == "READY"
    assert page(seen(row(0)), judged(at_ms=NOW - 121_000)).cards[0].value == "UNKNOWN"


def test_readiness_has_the_cores_reasons() -> None:
    card = page(seen(row(0)), judged("somebody else writes")).cards[0]

    assert (card.value, card.tone) == ("NOT READY", "bad")
    assert "somebody else writes" in card.lines
    assert page(seen(row(0)), judged(warnings=("slow",))).cards[0].value == "READY, 1 warning"
    failed = Finding("partitions_failed", "m", count=1, lost=7, unknown=0, failures=["a-1 (damaged)"], more=0)
    deleted = Finding("deleted_early", "west", source="east", listed="a-0 [0, 60)")
    for loss in (failed, deleted):
        losing = replace(judged(), decision=PlanDecision(plan(warnings=(loss,)), ()))
        assert page(seen(row(0)), losing).cards[0].value == "NOT READY", "these records are lost by a planned one, too"


def test_a_mirror_that_was_never_drilled_nor_compared_is_not_green() -> None:
    never = replace(judged(), points=tuple(find_recorded_points(NAME, told().state, NOW)))
    card = page(seen(row(0)), never).cards[0]
    assert (card.value, card.tone) == ("READY, 3 warnings", "warn")
    assert format_sentence("no_drill_has_come_through_yet") in card.lines


def test_readiness_says_what_an_unplanned_failover_would_be_and_of_each_group_what_it_reads_again() -> None:
    def said(unplanned: UnplannedForecast | None, *reasons: str) -> tuple[tuple[str, ...], list[list[str]]]:
        one = judged(*reasons)
        assert one.decision is not None
        decision = replace(
            one.decision,
            plan=plan(groups={"g": {FigureKey.READ_AGAIN_AFTER_SYNC: 0}, "new": {FigureKey.READ_AGAIN_OFFSETS: None}}),
        )
        view = page(seen(row(0)), replace(one, decision=decision, unplanned=unplanned))
        return view.cards[0].lines, [cells for cells in Page(shown(view)).rows if cells[0] in ("g", "new")]

    groups = {"g": GroupReadAgain(most=1_204, now=12), "new": GroupReadAgain(most=None, now=None)}
    lines, rows = said(UnplannedForecast(refused=(), missing=3, groups=groups), "no leader for t-0")
    words = "at most 1,204 offsets, by 1 group; unknown of 1 group"
    assert f"without the source: possible; read again: {words}" in lines
    assert rows == [
        ["new", "read again as of the last sync: unknown", "unknown"],
        [
            "g",
            "read again after the final sync: 0 offsets",
            format_sentence("group_reads_again", "1,204", 12),
        ],
    ]
    lines, rows = said(
        UnplannedForecast(refused=to_finding_documents([Finding("west is silent"), Finding("it is stopped")]))
    )
    assert "without the source: refused: west is silent; it is stopped" in lines
    assert [cells[2] for cells in rows] == ["unknown", "unknown"]
    assert "without the source: unknown" in said(None)[0]


@pytest.mark.parametrize(
    ("age_ms", "lag", "tone", "value"),
    [
        (1_000, 0, "good", "at most the last 1.0 s"),
        (1_000, 5, "warn", "at least 5 offsets"),
        (11_000, 0, "warn", "at most the last 11.0 s"),
    ],
)
def test_no_known_loss_is_good_only_while_the_source_is_seen(age_ms: int, lag: int, tone: str, value: str) -> None:
    card = page(seen(row(0, lag=lag), seen_ms=NOW - age_ms)).cards[1]

    assert card.tone == tone
    assert card.value == value


@pytest.mark.parametrize(
    ("listed_s", "is_failed", "value"),
    [
        (9.0, False, "at most the last 9.0 s"),
        (None, False, "no offset that is known"),
        (1.0, True, "no offset that is known"),
    ],
)
def test_a_bound_in_seconds_holds_for_new_topics_and_failed_partitions_too(
    listed_s: float | None, is_failed: bool, value: str
) -> None:
    view = seen(row(0), row(1))
    assert view.loss is not None
    first, second = view.loss.partitions.items()
    partitions = dict([first, (second[0], replace(second[1], is_failed=is_failed, age_s=86_400.0 if is_failed else 1))])
    loss = replace(view.loss, topics_listed_s=listed_s, partitions=partitions)
    assert page(replace(view, loss=loss)).cards[1].value == value


def test_of_nothing_mirrored_no_loss_is_known() -> None:
    assert page(seen()).cards[1].value == "unknown"


def test_names_of_others_are_text_and_cannot_hide() -> None:
    hostile = (replace(row(0), partition=f"{HOSTILE}-0", reason=HOSTILE, state=PartitionState.FAILED),)
    drift = (
        DriftRow(
            part=SyncCategory.ACLS,
            subject=HOSTILE,
            source=HOSTILE,
            destination="",
            action=SyncAction.KEEP,
            reason=HOSTILE,
        ),
    )
    judgement = MirrorAssessment(
        NOW,
        PlanDecision(plan(groups={HOSTILE: {FigureKey.OWNER: HOSTILE}}, warnings=(HOSTILE,)), (Finding(HOSTILE),)),
        drift,
    )

    text = shown(page(seen(*hostile), judgement))

    parsed = Page(text)
    assert "script" not in parsed.tags
    assert "\u202e" not in text
    assert not [link for link in parsed.links if not link.startswith("/")]
    assert any("<script>" in cell for cells in parsed.rows for cell in cells), "it is not shown at all"


def test_no_element_carries_its_own_script_or_style_which_the_policy_would_refuse() -> None:
    text = shown(page(seen(row(0)), judged(), told(run())))

    assert not re.search(r"\s(?:style|on\w+)=", text)


def test_ids_are_unique() -> None:
    ids = re.findall(r'\sid="([^"]*)"', shown(page(seen(row(0)), judged(), told(run()))))

    assert len(ids) > 10
    assert len(ids) == len(set(ids))


# -- runs ------------------------------------------------------------------------------------------------------------


BEAT = (
    f'{{"token":"t","by":"x","host":"elsewhere","boot_id":"b","pid":7,"start_ticks":1,"at_ms":{NOW - 4_000},'
    '"released":false}'
)


def test_the_notes_of_a_run_are_shown_oldest_first_and_those_of_others_are_not() -> None:
    done = run()
    first = RunNote(run=done.id, at_ms=NOW - 2_000, by="ann@desk", text="shop was well")
    second = replace(first, at_ms=NOW - 1_000, text="billing, too", key="5f0c", signature="c2ln")
    others = (
        make_checkpoint(done.id, "note-c", replace(first, run="run-9")),
        make_checkpoint("run-9", "note-d", first),
    )
    notes = (make_checkpoint(done.id, "note-a", second), make_checkpoint(done.id, "note-b", first))
    (shown,) = list_run_views(told(done, *notes, *others), NAME, NOW)
    assert shown.notes == (first, second)


def test_the_standstill_is_counted_while_it_happens_and_told_by_the_core_at_its_end() -> None:
    steps = [step("prove", NOW - 19_000, NOW - 10_000), step("fence", NOW - 4_000, NOW - 3_000)]

    (before,) = list_run_views(told(run(), steps[0]), NAME, NOW)
    (during,) = list_run_views(told(run(), *steps), NAME, NOW)
    (after,) = list_run_views(told(run(), *steps, step("promote", NOW - 2_000, NOW - 1_000)), NAME, NOW)

    assert (before.standstill, during.standstill, after.standstill) == ("not begun", "4.0 s so far", "3.0 s")
    assert [s.state for s in during.steps] == ["DONE", "DONE", "not begun", "not begun"]


def test_a_run_that_was_given_up_stands_still_no_more() -> None:
    (found,) = list_run_views(told(run(ended_ms=NOW - 1_000), step("fence", NOW - 4_000, None)), NAME, NOW)

    assert found.standstill == "given up after at most 3.0 s"
    assert found.steps[1].seconds == "3.0"


def test_a_run_that_has_not_ended_says_whether_anybody_conducts_it() -> None:
    beat = replace(make_released_heartbeat(run().id, "x"), value=BEAT)
    (heard,) = list_run_views(told(run(), beat), NAME, NOW)
    (late,) = list_run_views(told(run(), beat), NAME, NOW + 60_000)
    (silent,) = list_run_views(told(run(), beat, silent="west does not answer"), NAME, NOW)
    (old,) = list_run_views(told(run(), beat, at_ms=NOW - 30_000), NAME, NOW)
    (ended,) = list_run_views(told(run(ended_ms=NOW - 1_000)), NAME, NOW)

    assert heard.conductor == "conducted by x on elsewhere (process 7), seen 4 s ago"
    assert [one.conductor[:7] for one in (late, silent, old)] == ["unknown"] * 3, "the state was not read just now"
    assert ended.conductor == ""
    assert heard.conductor in shown(page(None, one=told(run(), beat)))


def test_a_run_in_the_middle_that_nobody_conducts_is_an_alarm() -> None:
    beat = replace(make_released_heartbeat(run().id, "x"), value=BEAT.replace(f"{NOW - 4_000}", f"{NOW - 90_000}"))
    steps = (step("prove", NOW - 95_000, NOW - 94_000), step("fence", NOW - 93_000, None))
    [alarm] = [line for line in page(None, one=told(run(), beat, *steps)).alarms if "nobody conducts it" in line]
    assert "has stood still at fence" in alarm
    alive = replace(make_released_heartbeat(run().id, "x"), value=BEAT)
    assert not [line for line in page(None, one=told(run(), alive, *steps)).alarms if "nobody conducts it" in line]


def test_an_old_source_that_nobody_watches_is_an_alarm_and_not_by_an_old_state() -> None:
    def alarms(*records: object, at_ms: int = NOW - 500) -> list[str]:
        return [line for line in page(None, one=told(*records, at_ms=at_ms)).alarms if " watche" in line]

    debt = PendingFence(
        mirror=NAME, cluster=ClusterName("east"), action=FenceAction.APPLY, run="r", since_ms=NOW - 900_000
    )
    sign = WatcherHeartbeat(by="DAG mirror_watch", host="desk", pid=7, at_ms=NOW - 600_000, interval_s=60.0)
    [alarm] = alarms(debt, make_checkpoint(NAME, WATCHER_STEP, sign))
    assert alarm.startswith("nobody has watched cluster east since ")
    assert alarms(debt, make_checkpoint(NAME, WATCHER_STEP, sign), at_ms=NOW - 60_000) == []
    assert alarms(debt, make_checkpoint(NAME, WATCHER_STEP, replace(sign, at_ms=NOW - 10_000))) == []
    assert alarms() == []


def test_a_run_of_airflow_has_a_link_and_one_of_the_command_line_has_none() -> None:
    assert parse_dag_run(run().started_by) == (
        "mirror_failover",
        "/dags/mirror_failover/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00",
    )
    assert parse_dag_run("ann@host") == ("", "")
    assert parse_dag_run("airflow ../../evil/run") == ("", "")


# -- what was foretold -------------------------------------------------------------------------------------------------


def forecast(again: dict[str, tuple[int, int]], counts: dict[str, int | None]) -> tuple[Run, StepRecord]:
    told_ = PlanForecast(seconds=2.0, steps={"fence": 1.0}, basis="last drill", lost_offsets=0, reread_offsets=again)
    counted = ForecastOutcome(
        lost_offsets=3, lost_basis="by the old source's ends", reread_offsets=counts, reread_basis=HOSTILE
    )
    made = replace(run(ended_ms=NOW), plan=plan(forecast=told_), state=RunState.DONE, forecast_outcome=counted)
    return made, step("fence", NOW - 4_000, NOW - 3_000)


def test_what_was_foretold_is_beside_what_was_counted() -> None:
    text = shown(page(None, one=told(*forecast({HOSTILE: (0, 6)}, {HOSTILE: 9}))))

    parsed = Page(text)
    assert [run().id + ", planned, begun 1970-01-12 13:46:20 UTC"] in parsed.rows
    assert ["seconds of step fence", "1.00 s", "1.00 s", "none", ""] in parsed.rows
    assert ["offsets lost", "0", "3", "+3", "by the old source's ends"] in parsed.rows
    assert [cells[1:4] for cells in parsed.rows if cells[0].startswith("offsets read again")] == [["0 to 6", "9", "+3"]]
    assert "script" not in parsed.tags
    assert "\u202e" not in text


def test_of_many_groups_those_are_shown_whose_error_is_unknown_or_great() -> None:
    again = {f"g-{n:03}": (0, 0) for n in range(200)}
    counts: dict[str, int | None] = {**dict.fromkeys(again, 0), "g-150": None, "g-160": 7}

    (view,) = page(None, one=told(*forecast(again, counts))).forecasts

    groups = [row.what for row in view.rows if row.what.startswith("offsets read again")]
    assert groups[:3] == [f"offsets read again g-{n}" for n in ("150", "160", "000")]
    assert len(groups) + view.more == 200


def test_without_a_finished_run_nothing_was_foretold() -> None:
    assert "No failover has been finished, and no drill." in shown(page(None, one=told(run())))


# -- colours ---------------------------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance of #rrggbb."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_stands_out_from_what_is_behind_it_in_light_and_in_dark() -> None:
    schemes = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    assert len(schemes) == 2
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    for scheme in schemes:
        colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", scheme))
        for name in ("text", "dim", "link", "good", "warn", "bad", "unknown"):
            for behind in ("back", "panel"):
                assert contrast(colours[name], colours[behind]) >= 4.5, (name, behind)
        assert contrast(colours["alarm-text"], colours["alarm"]) >= 4.5


def test_the_newest_drill_is_told_with_its_standstill_and_age() -> None:
    def lines(*records: object) -> tuple[str, ...]:
        return next(c.lines for c in page(seen(), one=told(*records)).cards if c.title == "Time without writes")

    assert "no drill yet" in lines()
    of_drill = replace(run(ended_ms=NOW), plan=replace(plan(), mirror=MirrorName(f"drill.{NAME}")), id="drill-1")
    fence, promote = step("fence", NOW - 90_000, NOW - 89_000), step("promote", NOW - 89_000, NOW - 88_500)
    drilled = lines(of_drill, replace(fence, run="drill-1"), replace(promote, run="drill-1"))
    assert "last drill: planned, ABORTED, standstill 1.5 s, 20.0 s ago" in drilled


def test_the_newest_drill_of_each_mode_is_told_the_newest_first() -> None:
    def drill(mode: RunMode, age_s: int) -> Run:
        of_drill = replace(plan(mode), mirror=MirrorName(f"drill.{NAME}"))
        return replace(
            run(ended_ms=NOW), plan=of_drill, id=f"drill-{age_s}", number=100 - age_s, started_ms=NOW - age_s * 1000
        )

    drilled = [drill(RunMode.PLANNED, 90), drill(RunMode.PLANNED, 60), drill(RunMode.UNPLANNED, 30)]
    card = next(c for c in page(seen(), one=told(*drilled)).cards if c.title == "Time without writes")
    assert card.lines[1:] == (
        format_sentence("last_drill_aborted", "30.0"),
        "last drill: planned, ABORTED, standstill none measured, 60.0 s ago",
    )
