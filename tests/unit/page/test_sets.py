"""Sets of mirrors on the DR page: the worst of their mirrors, the last run, the buttons, names of others as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
from mirrorbook_airflow.page.buttons import (
    FAILOVER_SET,
    FAILOVER_SET_UNPLANNED,
    SET_BUTTON_LABELS,
    list_own_set_dags,
    list_set_buttons,
)

from mirror_core.model.config_sections import MirrorSet, SetOrder
from mirror_core.model.mirror import PartitionState
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.run import Run, RunKind, RunMode, RunState
from mirror_core.page.overview import SetView, list_overviews, list_set_views
from mirror_core.page.routes import render
from mirror_core.page.snapshots import ActionButton, ClusterSnapshot, ClusterSnapshots, MirrorView
from mirror_core.state.state_records import State
from tests.support.html_pages import Page
from tests.support.page_views import HOSTILE, MIRROR, NAME, NOW, row, seen, step
from tests.support.set_pages import ATTEMPT, run_of

OTHER = MirrorName("payments")
LONG = "a\"b'<i>&" + "x" * 232 + "\u202e" + "</p>"
FREE = dict.fromkeys(SET_BUTTON_LABELS, "")


def clusters(
    *records: object, sets: Iterable[MirrorSet] | None = (MirrorSet("shop", (NAME, OTHER)),)
) -> ClusterSnapshots:
    """Two clusters, each the destination of a mirror of the set."""
    states = {ClusterName("west"): State(), ClusterName("north"): State()}
    states[ClusterName("west")].put(MIRROR)
    states[ClusterName("north")].put(replace(MIRROR, name=OTHER, destination=ClusterName("north")))
    for record in records:
        of = getattr(record, "plan", None)
        mine = "north" if (of.mirror == OTHER if of else str(getattr(record, "run", "")).startswith(OTHER)) else "west"
        states[ClusterName(mine)].put(record)  # type: ignore[arg-type]
    told = {name: ClusterSnapshot(state, {}, NOW - 500) for name, state in states.items()}
    return ClusterSnapshots(NOW, told, {}, sets=None if sets is None else tuple(sets))


def views(
    found: ClusterSnapshots,
    looked: Mapping[MirrorName, MirrorView | None] | None = None,
    why_not: Mapping[str, str] = FREE,
) -> list[SetView]:
    both: Mapping[MirrorName, MirrorView | None] = {NAME: seen(row(0, lag=5)), OTHER: seen(row(0, lag=9))}

    def list_buttons(name: str, unknown: Sequence[MirrorName], runs: Sequence[Run]) -> Iterable[ActionButton]:
        own = {dag: dag_id for dag, dag_id in list_own_set_dags(name).items() if dag_id in why_not}
        return list_set_buttons(why_not, unknown, runs, own)

    overviews = list_overviews(found, both if looked is None else looked, {}, NOW)
    return list(list_set_views(found, overviews, list_buttons, NOW))


def shown(found: ClusterSnapshots, *sets: SetView) -> str:
    return render("mirrors", rows=[], sets=sets, clusters=found, base="/proxy", root="/proxy/mirrorbook")


def greys(found: ClusterSnapshots, why_not: Mapping[str, str] = FREE) -> dict[str, str]:
    return {action.dag: action.disabled_reason for view in views(found, why_not=why_not) for action in view.actions}


def test_the_worst_mirror_speaks_for_its_set() -> None:
    (view,) = views(clusters())

    assert view.furthest is not None
    assert view.greatest_loss is not None
    assert (view.furthest.name, view.furthest.lag) == (OTHER, 9)
    assert (view.greatest_loss.name, view.greatest_loss.known_loss) == (OTHER, 9)


@pytest.mark.parametrize("unknown", [None, seen(row(0, lag=99), at_ms=NOW - 60_000)])
def test_a_mirror_of_which_nothing_is_known_now_is_worse_than_any_number(unknown: MirrorView | None) -> None:
    (view,) = views(clusters(), {NAME: unknown, OTHER: seen(row(0, lag=9))})

    assert view.furthest is not None
    assert view.greatest_loss is not None
    assert (view.furthest.name, view.furthest.lag) == (NAME, None)
    assert (view.greatest_loss.name, view.greatest_loss.known_loss) == (NAME, None)


def test_a_set_with_a_mirror_that_nobody_knows_is_unknown_and_its_buttons_are_grey() -> None:
    found = clusters(sets=[MirrorSet("shop", (NAME, MirrorName("gone")))])
    (view,) = views(found)

    assert (view.furthest, view.greatest_loss) == (None, None)
    assert greys(found) == dict.fromkeys(SET_BUTTON_LABELS, "no cluster that answers knows mirror gone")
    assert ["gone", "no cluster that answers knows it"] in Page(shown(found, view)).rows


def test_the_last_failover_of_a_set_is_told_over_all_clusters() -> None:
    old = [run_of(one, "shop-20250101T000000-ffff", started_ms=NOW, ended_ms=NOW) for one in (NAME, OTHER)]
    new = [run_of(NAME, number=2, state=RunState.DONE, ended_ms=NOW), run_of(OTHER, number=2)]
    fence = replace(step("fence", NOW - 4_000, NOW - 3_000), run=new[1].id)
    strange = run_of(NAME, "shop-two-20260201T000000-abcd")
    (view,) = views(clusters(*old, *new, strange, fence))

    assert view.run is not None
    assert (view.run.id, view.run.ended, view.run.phases) == (ATTEMPT, False, "1 applications stopped, 1 done")
    assert [(one.phase, one.standstill) for one in view.members][1] == ("applications stopped", "4.0 s so far")


def test_a_failback_of_a_set_is_told_by_its_own_runs_and_not_by_the_way_home() -> None:
    failbacks = [
        replace(made, plan=replace(made.plan, kind=RunKind.FAILBACK))
        for made in (run_of(NAME, number=2), run_of(OTHER, number=2))
    ]
    aligns = [replace(step("align", NOW - 4_000, NOW - 3_000), run=made.id) for made in failbacks]
    home = run_of(MirrorName(f"{NAME}-back"), number=9, state=RunState.DONE, ended_ms=NOW, failback_run=failbacks[0].id)
    (view,) = views(clusters(*failbacks, *aligns, home))
    assert view.run is not None
    assert view.run.phases == "1 home, not mirrored yet, 1 old source being changed"


def test_a_set_that_was_never_failed_over_says_so() -> None:
    found = clusters()
    assert "No failover of this set was ever begun." in Page(shown(found, *views(found))).text


def test_a_run_of_airflow_leads_to_its_approval() -> None:
    by = "airflow mirror_failover_set/manual__2026-01-01T00:00:00+00:00 by ann"
    asking = clusters(*(run_of(one, started_by=by) for one in (NAME, OTHER)))
    ended = clusters(*(run_of(one, started_by=by, ended_ms=NOW) for one in (NAME, OTHER)))

    link = "/proxy/dags/mirror_failover_set/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00"
    assert {link, f"{link}/required_actions"} <= set(Page(shown(asking, *views(asking))).links)
    assert link in Page(shown(ended, *views(ended))).links
    assert f"{link}/required_actions" not in Page(shown(ended, *views(ended))).links


def test_buttons_lead_to_the_forms_of_sets_unless_the_user_may_not() -> None:
    found = clusters()
    links = Page(shown(found, *views(found))).links
    assert {f"/proxy/dags/{dag}" for dag in (FAILOVER_SET, FAILOVER_SET_UNPLANNED)} <= set(links)

    text = Page(shown(found, *views(found, why_not=dict.fromkeys(SET_BUTTON_LABELS, "viewer may not"))))
    assert not [link for link in text.links if link.startswith("/proxy/dags")]
    assert text.text.count("viewer may not") == 2


def test_a_planned_run_leaves_the_sources_to_be_given_up() -> None:
    assert greys(clusters(run_of(NAME))) == {
        FAILOVER_SET: f"{NAME}: failover {run_of(NAME).id} is under way",
        FAILOVER_SET_UNPLANNED: "",
    }
    assert greys(clusters(run_of(NAME, mode=RunMode.UNPLANNED)))[FAILOVER_SET_UNPLANNED]


def test_names_of_sets_and_mirrors_are_text() -> None:
    sets = [MirrorSet(name, (NAME, MirrorName(name)), SetOrder.IN_ORDER) for name in (HOSTILE, LONG)]
    found = clusters(run_of(NAME, f"{LONG}-20260101T000000-abcd", note=HOSTILE), sets=sets)
    found = replace(found, error=HOSTILE, unreachable={ClusterName(LONG): HOSTILE})
    failed = {NAME: seen(row(0, PartitionState.FAILED))}

    text = shown(found, *views(found, failed, dict.fromkeys(SET_BUTTON_LABELS, HOSTILE)))

    parsed = Page(text)
    assert not parsed.tags & {"script", "i"}
    assert "\u202e" not in text
    assert {link for link in parsed.links if not link.startswith("/proxy/")} == set()
    assert LONG.replace("\u202e", r"\u202e") in parsed.text
    assert len(parsed.ids) == len(set(parsed.ids)) >= 6


def test_no_sets_and_sets_that_are_not_known_are_different() -> None:
    assert "None: section sets: of mirrors.yaml names none." in Page(shown(clusters(sets=()))).text
    assert "unknown: the configuration could not be read" in Page(shown(clusters(sets=None))).text
