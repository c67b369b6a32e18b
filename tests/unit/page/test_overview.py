"""The list of all mirrors: what is known of each at a glance."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from msgspec import structs

from mirror_core.mirrors.mirror_facts import FactKey, make_fact
from mirror_core.model.mirror import DesiredState, GroupSyncTime, Lease, Mirror
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.run import RunKind, RunMode, RunState
from mirror_core.page.mirror_page import make_mirror_page
from mirror_core.page.overview import MirrorOverview, list_overviews
from mirror_core.page.poller import BackgroundPoller, ClusterPoller
from mirror_core.page.routes import render
from mirror_core.page.snapshots import ClusterSnapshot, ClusterSnapshots, MirrorAssessment, MirrorView
from tests.support.page_views import HOSTILE, MIRROR, NAME, NO_CLUSTERS, NOW, judged, page, plan, row, run, seen, told
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until


def line(
    known: MirrorView | None = None, judgement: MirrorAssessment | None = None, one: ClusterSnapshot | None = None
) -> MirrorOverview:
    (found,) = list_overviews(
        ClusterSnapshots(NOW, {ClusterName("west"): one or told()}, {}), {NAME: known}, {NAME: judgement}, NOW
    )
    return found


@pytest.mark.parametrize(
    ("judgement", "value", "tone", "first"),
    [
        (judged(), "READY", "good", "without the source: unknown"),
        (judged(warnings=("late", "old")), "READY, 2 warnings", "warn", "late"),
        (judged("2 partitions FAILED", "late"), "NOT READY", "bad", "2 partitions FAILED"),
        (judged(at_ms=NOW - 121_000), "UNKNOWN", "unknown", "looked at 121.0 s ago"),
        (None, "LOOKING …", "unknown", "not looked at yet"),
        (
            MirrorAssessment(NOW, None, None, "cluster east: no broker answered"),
            "UNKNOWN",
            "unknown",
            "cluster east: no broker",
        ),
    ],
)
def test_it_says_whether_each_could_fail_over_now_and_what_is_first_against_it(
    judgement: MirrorAssessment | None, value: str, tone: str, first: str
) -> None:
    ready = line(seen(row(0)), judgement).readiness
    assert (ready.value, ready.tone) == (value, tone)
    assert ready.lines[0].startswith(first)


BACK = replace(
    MIRROR,
    name=MirrorName("orders-back"),
    source=MIRROR.destination,
    destination=MIRROR.source,
    desired=DesiredState.STOPPED,
)


def list_both(back: Mirror, *east_records: object) -> list[MirrorOverview]:
    clusters = {ClusterName("west"): told(), ClusterName("east"): told(back, *east_records)}
    return list_overviews(ClusterSnapshots(NOW, clusters, {}), {}, {back.name: judged("it was never started")}, NOW)


def test_a_reverse_mirror_that_is_idle_is_grey_and_last_and_loses_nothing() -> None:
    aaa = replace(BACK, name=MirrorName("aaa-back"))
    assert [row.readiness.value for row in list_both(aaa)] == ["NOT READY", "LOOKING …"], "of no mirror that is known"
    home = replace(run(kind=RunKind.FAILBACK, ended_ms=NOW), state=RunState.DONE)
    forward, back = list_both(BACK, home)
    assert (forward.name, back.name) == ("orders", "orders-back")
    assert (back.readiness.value, back.readiness.tone) == ("IDLE", "unknown")
    assert "idle since 1970-01-12" in back.readiness.lines[0]
    assert (back.loss_bound, back.known_loss, back.behind) == ("none: it is idle", None, "idle")


@pytest.mark.parametrize("back", [BACK, replace(BACK, desired=DesiredState.STARTED)])
def test_a_reverse_mirror_in_use_is_not_idle(back: Mirror) -> None:
    records = () if back.desired is DesiredState.STARTED else (run(kind=RunKind.FAILBACK),)
    assert list_both(back, *records)[1].readiness.value != "IDLE"


def test_it_says_how_old_a_judgement_is() -> None:
    rows = [line(seen(row(0)), judged(at_ms=NOW - 60_000))]
    page_ = render("mirrors", rows=rows, sets=[], clusters=ClusterSnapshots(NOW, {}, {}), base="", root="/m")
    assert "judged 60.0 s ago" in page_
    rows = [line(seen(row(0)))]
    assert "judged" not in render(
        "mirrors", rows=rows, sets=[], clusters=ClusterSnapshots(NOW, {}, {}), base="", root="/m"
    )


@pytest.mark.parametrize(
    ("known", "one", "judgement", "first"),
    [
        (seen(row(0)), told(run(ended_ms=NOW - 1_000)), judged(), "not looked at since its last run has ended"),
        (seen(row(0)), told(), replace(judged(), desired=DesiredState.STOPPED), "not looked at since it is STARTED"),
        (seen(row(0)), told(at_ms=NOW - 30_000), judged(), "the state was last read 30.0 s ago"),
        (seen(row(0), at_ms=NOW - 30_000), told(), judged(), "both clusters were last looked at 30.0 s ago"),
    ],
)
def test_what_was_judged_before_something_changed_or_too_long_ago_is_not_ready(
    known: MirrorView, one: ClusterSnapshot, judgement: MirrorAssessment, first: str
) -> None:
    for ready in (line(known, judgement, one).readiness, page(known, judgement, one).cards[0]):
        assert (ready.value, ready.tone, ready.lines[0]) == ("UNKNOWN", "unknown", first)


def test_a_run_that_had_ended_before_it_was_judged_is_no_doubt() -> None:
    assert line(seen(row(0)), judged(), told(run(ended_ms=NOW - 6_000))).readiness.value == "READY"


def test_a_silent_cluster_keeps_the_list_from_judging_its_own_mirrors_only(monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.Event()
    names = {"hangs": "east", "waits": "east", "well": "north"}
    mirrors = [replace(MIRROR, name=MirrorName(name), source=ClusterName(source)) for name, source in names.items()]
    asked = list[MirrorName]()

    def readiness(looking: ClusterPoller, name: MirrorName) -> MirrorAssessment:
        asked.append(name)
        if name == "hangs":
            held.wait()
        return judged()

    monkeypatch.setattr(ClusterPoller, "_assess_readiness", readiness)
    monkeypatch.setattr("mirror_core.page.poller.ASSESSMENT_INTERVAL_S", 0.1)
    looking = ClusterPoller(NO_CLUSTERS)
    looking._cluster_snapshots = {ClusterName("west"): told(*mirrors)}

    def ready() -> dict[str, bool]:
        return {mirror.name: looking.get_readiness(mirror) is not None for mirror in mirrors}

    wait_until(lambda: ready()["well"], timeout_s=20, why="the others are judged")
    assert ready() == {"hangs": False, "waits": False, "well": True}
    monkeypatch.setattr(BackgroundPoller, "is_wanted", False)
    held.set()
    wait_until(
        lambda: not any(one._is_running for one in looking._readiness_pollers.values()),
        timeout_s=60,
        why="looks have ended",
    )
    assert set(asked) == {"hangs", NAME, "well"}, "nobody looks any more"


def test_a_mirror_whose_other_cluster_is_not_in_airflow_says_so_in_the_list() -> None:
    looking = ClusterPoller(NO_CLUSTERS)
    looking._cluster_snapshots = {ClusterName("west"): told()}
    wait_until(lambda: looking.get_readiness(MIRROR), timeout_s=20, why="it is judged")
    ready = looking.get_readiness(MIRROR)
    assert ready is not None
    assert "add both of its clusters" in ready.error


def test_a_cluster_that_has_fallen_silent_since_is_not_ready() -> None:
    assert line(seen(row(0)), judged(), told(silent="cluster west: no answer")).readiness.value == "UNKNOWN"


def test_it_says_how_much_is_proved_when_groups_were_synced_and_how_drills_went() -> None:
    groups = GroupSyncTime(mirror=NAME, synced_ms=NOW - 12_000, followed=True)
    of_drill = replace(run(ended_ms=NOW), plan=replace(plan(RunMode.UNPLANNED), mirror=MirrorName(f"drill.{NAME}")))
    found = line(seen(row(0)), one=told(groups, replace(of_drill, id="drill-1", started_ms=NOW - 60_000)))
    assert (found.comparison.value, found.comparison.tone) == ("0 of 100 offsets", "warn")
    assert found.synced == "12.0 s ago"
    assert f"last drill: {found.last_drills}" == format_sentence("last_drill_aborted", "60.0")
    nothing = line(seen(row(0), at_ms=NOW - 11_000))
    assert (nothing.comparison.value, nothing.comparison.tone) == ("unknown", "unknown")
    assert (nothing.synced, nothing.last_drills) == ("never", "never")


def test_a_copy_that_is_known_to_differ_is_said_in_the_list() -> None:
    known = seen(row(0))
    assert known.description is not None
    facts = {**known.description.facts, FactKey.DIFFERENCES: make_fact(("t-0",), "1 partition")}
    proved = line(
        replace(known, description=structs.replace(known.description, facts=facts, not_normal=(FactKey.DIFFERENCES,)))
    ).comparison
    assert (proved.value, proved.tone) == ("the copy differs in 1 partition", "bad")


def test_what_others_chose_stays_text_in_the_list() -> None:
    rows = [line(seen(row(0)), judged(HOSTILE))]
    assert "<script>" not in render(
        "mirrors", rows=rows, sets=[], clusters=ClusterSnapshots(NOW, {}, {}), base="", root="/m"
    )


def test_the_list_of_mirrors_says_what_is_stale() -> None:
    clusters = ClusterSnapshots(NOW, {ClusterName("west"): told(at_ms=NOW - 30_000)}, {})

    (line,) = list_overviews(clusters, {NAME: seen(row(0))}, {}, NOW)

    assert line.age.stale
    assert (line.lag, line.known_loss, line.loss_bound) == (None, None, "unknown")


def test_the_list_and_the_card_say_how_many_seconds_a_mirror_is_behind_and_never_0_for_unknown() -> None:
    clusters = ClusterSnapshots(NOW, {ClusterName("west"): told()}, {})

    def said(known: MirrorView | None) -> tuple[str, str]:
        (line,) = list_overviews(clusters, {NAME: known}, {}, NOW)
        card = next(c for c in page(known).cards if c.title == "Loss if the source died now")
        return line.behind, next(words for words in card.lines if words.startswith("behind: "))

    worst = format_sentence("behind_as_destination_holds", "1.0", "t-0")
    assert said(seen(row(0), row(1))) == ("1.0", worst)
    assert said(seen(row(0), row(1, lag=5))) == ("unknown", "behind: unknown of t-1")
    assert said(seen(row(0), at_ms=NOW - 11_000)) == ("unknown", "behind: unknown")
    assert said(None) == ("unknown", "behind: unknown")
    assert said(seen()) == ("unknown", "behind: unknown: no partition is copied")


def test_a_stopped_mirror_is_not_behind() -> None:
    stopped = replace(MIRROR, desired=DesiredState.STOPPED)
    told_ = told(stopped)
    (line,) = list_overviews(ClusterSnapshots(NOW, {ClusterName("west"): told_}, {}), {NAME: seen(row(0))}, {}, NOW)
    assert line.behind == "stopped"
    cards = make_mirror_page(stopped, told_, seen(row(0)), None, NOW).cards
    assert "behind: stopped" in next(c.lines for c in cards if c.title == "Loss if the source died now")


@pytest.mark.parametrize(
    ("beat_ms", "waits", "copier"),
    [(NOW - 11_000, ("a broker",), "not running"), (NOW, ("a broker",), "running, some wait"), (NOW, (), "running")],
)
def test_a_copier_that_is_silent_is_not_running_and_one_that_waits_says_so(
    beat_ms: int, waits: tuple[str, ...], copier: str
) -> None:
    lease = Lease(mirror=NAME, owner="o", generation=1, heartbeat_ms=beat_ms, writers_until_ms=0, wait_reasons=waits)
    clusters = ClusterSnapshots(NOW, {ClusterName("west"): told(lease)}, {})

    assert [line.copier for line in list_overviews(clusters, {}, {}, NOW)] == [copier]
