"""What a failover plan shows of consumer and share groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.decide.forecast_accuracy import build_forecast
from mirror_core.decide.group_coverage import find_share_sync_age_s
from mirror_core.decide.mirror_snapshot import DestinationSnapshot, MirrorSnapshot, UnseenCluster
from mirror_core.decide.plan_figures import (
    list_group_figures,
    list_plan_unknowns,
    list_plan_warnings,
)
from mirror_core.model.figures import MAX_RECORDED_NAMES, FigureKey, Figures
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import (
    GroupSyncTime,
)
from mirror_core.model.names import MirrorName, Offset, Partition, PartitionOffsets
from mirror_core.model.run import RunMode
from mirror_core.model.sync_state import OwnGroupOffsets, UncommittedGroupOffset, UnsyncedGroups
from tests.support import plan_views
from tests.support.plan_views import A0, A1, DESTINATION, SOURCE, shown, warned
from tests.support.sentences import format_sentence

view = plan_views.view


def synced(again: int | None) -> Figures:
    return {FigureKey.READ_AGAIN_OFFSETS: again, FigureKey.READ_AGAIN_AFTER_SYNC: 0}


def test_each_group_is_told_what_it_would_read_again(view: MirrorSnapshot) -> None:
    assert dict(list_group_figures(view)) == {"g": synced(32), "h": synced(0)}, "the destination's of h is later"
    behind = replace(view, destination=replace(DESTINATION, committed={"g": {A0: Offset(88)}}))
    assert dict(list_group_figures(behind)) == {
        "g": {**synced(2), FigureKey.NOT_SYNCED_PARTITIONS: 1},
        "h": {**synced(0), FigureKey.NOT_SYNCED_PARTITIONS: 1},
    }


@pytest.mark.parametrize("destination", [UnseenCluster("dead"), replace(DESTINATION, groups_unknown=True)])
def test_groups_that_could_not_be_asked_are_not_told_to_have_nothing(
    view: MirrorSnapshot, destination: DestinationSnapshot | UnseenCluster
) -> None:
    blind = replace(view, destination=destination)
    assert dict(list_group_figures(blind)) == {"g": synced(None), "h": synced(None)}
    assert any(warning.code == "groups_unreported" for warning in list_plan_warnings(blind)) is isinstance(
        destination, DestinationSnapshot
    )
    # No approval is void because a broker answered a moment later.
    assert set(list_plan_unknowns(replace(view, destination=replace(DESTINATION, groups_unknown=True)))) == set(
        list_plan_unknowns(view)
    )


def test_groups_without_a_coordinator_are_told_of_on_either_side_and_not_called_lost(view: MirrorSnapshot) -> None:
    own = OwnGroupOffsets(mirror=view.mirror.name, group="away", offsets=PartitionOffsets.from_mapping({A0: Offset(9)}))
    dead = replace(view, source=UnseenCluster("dead"), own_group_offsets=(own,))
    assert "away a-0" in warned(dead), "the destination lists all groups, and this one is not there"
    for side, partly in (
        ("west", replace(dead, destination=replace(DESTINATION, groups_partly_listed=True))),
        ("east", replace(view, source=replace(SOURCE, groups_partly_listed=True), own_group_offsets=(own,))),
    ):
        assert Finding("groups_unreported", side) in list_plan_warnings(partly)
        assert "away a-0" not in warned(partly)


def test_a_group_that_there_was_no_time_to_ask_about_is_not_told_to_have_nothing(view: MirrorSnapshot) -> None:
    partly = replace(DESTINATION, committed={"g": DESTINATION.committed["g"]}, groups_unread=1)
    told = dict(list_group_figures(replace(view, destination=partly)))
    assert told["g"] == dict(list_group_figures(view))["g"]
    assert told["h"] == synced(None)


def test_with_a_dead_source_a_group_may_read_again_what_lies_behind_its_offset(view: MirrorSnapshot) -> None:
    dead = replace(view, source=UnseenCluster("refused"))
    unknown: Figures = {FigureKey.READ_AGAIN_MOST: 5, FigureKey.GROUPS_SYNCED_S: None}
    assert dict(list_group_figures(dead)) == {"g": unknown, "h": unknown}
    seen = GroupSyncTime(mirror=view.mirror.name, synced_ms=101_500, followed=True)
    known: Figures = {FigureKey.READ_AGAIN_MOST: 5, FigureKey.GROUPS_SYNCED_S: 1.5}
    assert dict(list_group_figures(replace(dead, groups=seen))) == {"g": known, "h": known}
    answering = replace(view, mode=RunMode.UNPLANNED, groups=seen)
    assert dict(list_group_figures(answering))["g"] == known, (
        "an unplanned failover makes no final sync with the source"
    )
    # An offset of a partition that is not there now, or behind its log, adds nothing.
    odd = replace(DESTINATION, committed={"g": {Partition("x", 0): Offset(7), A0: Offset(99), A1: Offset(19)}})
    assert dict(list_group_figures(replace(dead, destination=odd)))["g"][FigureKey.READ_AGAIN_MOST] == 1
    assert dict(list_group_figures(replace(dead, destination=UnseenCluster("too")))) == {}


def test_a_group_with_members_on_the_destination_is_named_and_its_figure_is_unknown(view: MirrorSnapshot) -> None:
    joined = replace(view, destination=replace(DESTINATION, committed={}, active_groups=("g", "elsewhere")))
    (warning,) = [finding for finding in list_plan_warnings(joined) if finding.code == "groups_active"]
    assert warning.values["groups"] == ("g",)
    figures = dict(list_group_figures(joined))
    assert [figures[group][FigureKey.READ_AGAIN_AFTER_SYNC] for group in ("g", "h")] == [None, 0]


def test_groups_that_were_not_listed_since_the_filters_changed_are_told_of(view: MirrorSnapshot) -> None:
    def warned(snapshot: MirrorSnapshot) -> bool:
        return any(warning.code == "groups_unlisted" for warning in list_plan_warnings(snapshot))

    seen = GroupSyncTime(mirror=view.mirror.name, synced_ms=101_500, followed=True)
    dead = replace(view, source=UnseenCluster("refused"), groups=seen)
    by_others = UnsyncedGroups(mirror=view.mirror.name, share_groups_listed_by=(("other",), ()))
    assert not warned(dead)
    assert warned(replace(dead, groups=None))
    assert not warned(replace(view, groups=None)), "a planned failover lists them itself"
    assert not warned(replace(dead, groups=None, mirror=replace(view.mirror, groups=())))
    assert warned(replace(dead, groups_left=by_others)), "only a sync lists share groups"
    assert find_share_sync_age_s(view.mirror, replace(by_others, share_groups_synced_ms=1), view.now_ms) is None


def test_what_share_groups_acknowledged_behind_their_start_is_named_in_one_line(view: MirrorSnapshot) -> None:
    source = replace(SOURCE, committed={"queue": {A0: Offset(4)}}, share_groups={"queue": 1, "another": None})
    others = replace(view, source=source)
    (line,) = set(map(str, list_plan_warnings(others))) - set(map(str, list_plan_warnings(view)))
    assert "at least 0 records; known now: another: unknown, queue: 1 record" in line
    assert dict(list_group_figures(others))["queue"][FigureKey.READ_AGAIN_AFTER_SYNC] == 1
    assert build_forecast(others).reread_offsets == {}, "the groups go on until the fence"


LEFT = UnsyncedGroups(
    mirror=MirrorName("orders"),
    share_groups=("queue",),
    share_groups_synced_ms=0,
    uncommitted=(
        UncommittedGroupOffset(group="g", partition=str(A0), reason="refused by the destination (x)"),
        UncommittedGroupOffset(group="lost", partition="", reason="no answer"),
        UncommittedGroupOffset(
            group="h", partition=str(A0), reason="somebody has committed 9", destination_offset=Offset(9)
        ),
    ),
)


def test_what_was_left_of_groups_at_the_last_look_is_named_without_the_source(view: MirrorSnapshot) -> None:
    blank = replace(DESTINATION, committed={"h": {A0: Offset(9)}})
    dead = replace(view, source=UnseenCluster("dead"), destination=blank, now_ms=13_000)
    uncommitted_finding, others = sorted(
        {*list_plan_warnings(replace(dead, groups_left=LEFT))} - {*list_plan_warnings(dead)}, key=str
    )
    uncommitted = str(uncommitted_finding)
    assert (others.code, others.subject, others.values["synced_s"]) == ("share_groups_redelivered", "west", 13.0)
    assert others.values["groups"] == ("queue: unknown",)
    assert format_sentence("without_an_offset_on_the_destination", 2) in uncommitted
    assert f"g {A0}: refused by the destination (x), lost: no answer" in uncommitted
    assert f"h {A0} (stays at 9): somebody has committed 9" in uncommitted
    told = dict(list_group_figures(replace(dead, groups_left=LEFT)))
    assert [told[group].get(FigureKey.WITHOUT_OFFSET_PARTITIONS) for group in ("g", "lost", "h")] == [1, 1, None]


@pytest.mark.parametrize("is_dead", [True, False])
def test_a_share_group_that_the_destination_does_not_take_is_not_said_to_continue(
    view: MirrorSnapshot, *, is_dead: bool
) -> None:
    """As where the destination's brokers are older than share groups."""
    refused = UncommittedGroupOffset(group="queue", partition="", reason="no share groups there")
    left = UnsyncedGroups(mirror=view.mirror.name, uncommitted=(refused,), share_groups=("another", "queue"))
    source = UnseenCluster("dead") if is_dead else replace(SOURCE, share_groups={"queue": 0, "another": 0})
    told = {w.code: w for w in list_plan_warnings(replace(view, source=source, groups_left=left))}
    assert str(told["share_groups_redelivered"]).partition("; known now: ")[2].startswith("another: ")
    assert "queue" not in str(told["share_groups_redelivered"])
    assert "queue: no share groups there" in str(told["group_offsets_uncommitted"])


def test_what_is_on_the_destination_by_now_is_not_left(view: MirrorSnapshot) -> None:
    there = replace(view, groups_left=replace(LEFT, uncommitted=LEFT.uncommitted[:1]))
    assert set(map(str, list_plan_warnings(there))) == set(map(str, list_plan_warnings(view))), (
        "the source tells of its groups itself"
    )
    assert dict(list_group_figures(there)) == dict(list_group_figures(view))


def test_groups_that_have_members_on_the_destination_are_warned_of(view: MirrorSnapshot) -> None:
    joined = replace(view, destination=replace(DESTINATION, active_groups=("g",)))
    assert [
        line
        for line in map(str, list_plan_warnings(joined))
        if line.startswith("groups with members on west") and ": g." in line
    ]
    assert not [line for line in map(str, list_plan_warnings(view)) if "members" in line]


def test_many_groups_are_shown_in_part(view: MirrorSnapshot) -> None:
    names = [f"g{number:04}" for number in range(MAX_RECORDED_NAMES + 5)]
    committed = {name: {A0: Offset(1)} for name in reversed(names)}
    for side in (
        replace(view, source=replace(SOURCE, committed=committed)),
        replace(view, source=UnseenCluster("dead"), destination=replace(DESTINATION, committed=committed)),
    ):
        assert [name for name, _ in list_group_figures(side)] == names[:MAX_RECORDED_NAMES]


def test_groups_there_was_no_time_for_are_counted(view: MirrorSnapshot) -> None:
    assert FigureKey.UNREAD_GROUPS not in shown(view)
    late = replace(view, source=replace(SOURCE, groups=("g", "h", "i", "k")))
    assert shown(late)[FigureKey.UNREAD_GROUPS] == 2
