"""The tables of a mirror's page: worst first, unknown as unknown, and whatever is left out is said."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest

from mirror_core.decide.failover_plan import PlanDecision
from mirror_core.decide.failover_readiness import GroupReadAgain, UnplannedForecast
from mirror_core.decide.loss_bound import compute_loss
from mirror_core.mirrors.describe import PartitionDescription
from mirror_core.model.figures import FigureKey
from mirror_core.model.mirror import DesiredState, FailureKind, PartitionState
from mirror_core.model.names import Offset, Partition
from mirror_core.model.source_observation import ObservedTopic, SourceObservation
from mirror_core.model.sync_state import DriftRow, SyncAction, SyncCategory
from mirror_core.page.mirror_page import (
    ROWS_PER_PAGE,
    MirrorPageContent,
    compute_lateness,
    make_mirror_page,
    make_topic_table,
)
from mirror_core.page.snapshots import MirrorAssessment, MirrorView
from mirror_core.state.state_records import PartitionRecord
from tests.support.html_pages import Page
from tests.support.page_views import MIRROR, NAME, NOW, page, plan, row, seen, shown, status, told
from tests.support.typed_lines import parse

FAILED = PartitionState.FAILED


def of_topic(topic: str, one: PartitionDescription) -> PartitionDescription:
    return replace(one, partition=f"{topic}-{one.partition.rpartition('-')[2]}")


def look(*rows: PartitionDescription) -> MirrorView:
    """At partitions of any topics, of whose sources' ends nothing was seen."""
    return replace(seen(*rows), loss=None)


def at(known: MirrorView, *, partitions: int = 1, topics: int = 1) -> MirrorPageContent:
    return make_mirror_page(MIRROR, told(), known, None, NOW, partitions, topics)


def cells(view: MirrorPageContent, section: str) -> list[list[str]]:
    """Of a table's body."""
    (found,) = re.findall(rf'<section id="{section}">.*?</section>', shown(view), re.DOTALL)
    return Page(found).rows[1:]


def told_beside(view: MirrorPageContent, section: str) -> str:
    (found,) = re.findall(rf'<section id="{section}">.*?</section>', shown(view), re.DOTALL)
    return Page(found).text


# -- topics ------------------------------------------------------------------------------------------------------------


def test_topics_with_failed_partitions_come_first_then_unknown_lag_then_the_greatest_then_by_name() -> None:
    rows = (
        of_topic("a", row(0, lag=5)),
        of_topic("late", row(0, lag=9_000_000)),
        of_topic("b", row(0, lag=5)),
        of_topic("unknown", row(0, lag=None)),
        of_topic("failed", row(0, FAILED, kind=FailureKind.GONE)),
        of_topic("failed", row(1, lag=1)),
    )

    assert [one[0] for one in cells(at(look(*rows)), "topics")] == ["failed", "unknown", "late", "a", "b"]


def test_of_a_topic_that_has_failed_as_a_whole_the_lag_is_not_0() -> None:
    (found,) = at(look(of_topic("failed", row(0, FAILED, kind=FailureKind.GONE)))).topics.rows
    assert found.lag == "unknown"


@pytest.mark.parametrize("state", [state for state in PartitionState if state is not PartitionState.FAILED])
def test_a_lag_counts_in_whatever_state_its_partition_is(state: PartitionState) -> None:
    late, unknown = (at(look(of_topic("t", row(0, state, lag=lag)))).topics.rows[0].lag for lag in (9_000_000, None))
    assert (late, unknown) == ("9,000,000", "unknown")


def test_every_topic_is_on_some_page_and_the_latest_on_the_first() -> None:
    rows = [of_topic(f"t{n:03}", row(0, lag=9_000_000 if n == 199 else 0)) for n in range(201)]
    views = [at(look(*rows), topics=number) for number in (1, 2, 3, 10_000)]

    assert views[0].topics.rows[0].topic == "t199"
    assert {one.topic for view in views for one in view.topics.rows} == {f"t{n:03}" for n in range(201)}
    assert [(view.topics.page, len(view.topics.rows)) for view in views] == [(1, 100), (2, 100), (3, 1), (3, 1)]
    assert "201 in all" in told_beside(views[0], "topics")


def test_a_turned_page_of_one_table_keeps_that_of_the_other() -> None:
    rows = [of_topic(f"t{n:03}", row(0)) for n in range(301)]
    view = at(look(*rows), partitions=3, topics=2)
    found = dict(re.findall(r'id="((?:page|topics)-\w+)" href="([^"]*)"', shown(view)))

    assert found == {
        "page-before": f"/mirrorbook/mirrors/{NAME}?topics=2&amp;page=2#partitions",
        "page-next": f"/mirrorbook/mirrors/{NAME}?topics=2&amp;page=4#partitions",
        "topics-before": f"/mirrorbook/mirrors/{NAME}?page=3&amp;topics=1#topics",
        "topics-next": f"/mirrorbook/mirrors/{NAME}?page=3&amp;topics=3#topics",
    }
    assert "-before" not in shown(at(look(*rows[:100])))


# -- behind, and proved ------------------------------------------------------------------------------------------------


def behind(**whole_ms: int | None) -> MirrorView:
    """Partitions of topics `a` and `b`, each lacking 5 offsets; when each lacked nothing, None: that was never seen."""
    rows = [of_topic(name[0], row(int(name[1]), lag=5)) for name in whole_ms]
    statuses = {(one := Partition(name[0], int(name[1]))): status(one) for name in whole_ms}
    topics = tuple(
        ObservedTopic(
            topic=topic,
            ends=tuple(105 for name in whole_ms if name[0] == topic),
            recovery_points=tuple(
                (int(name[1]), NOW - 1_000 - at_ms, 100)
                for name, at_ms in whole_ms.items()
                if name[0] == topic and at_ms is not None
            ),
        )
        for topic in sorted({name[0] for name in whole_ms})
    )
    sighting = SourceObservation(mirror=NAME, at_ms=NOW - 1_000, topics=topics, listed_ms=NOW - 1_000)
    bound = compute_loss(statuses, sighting, {p: Offset(100) for p in statuses}, (), now_ms=NOW)
    return replace(look(*rows), loss=bound)


def test_each_partition_and_topic_says_how_far_it_is_behind_in_time_and_unknown_where_that_is() -> None:
    view = at(behind(a0=NOW - 4_000, a1=NOW - 1_234_500, b0=NOW - 9_000, b1=None))

    assert {one[0]: one[5] for one in cells(view, "partitions")} == {
        "a-0": "4.0",
        "a-1": "1,234.5",
        "b-0": "9.0",
        "b-1": "unknown",
    }
    assert {one[0]: one[4] for one in cells(view, "topics")} == {"a": "1,234.5", "b": "unknown"}


def test_of_an_old_look_and_of_a_stopped_mirror_no_seconds_are_shown() -> None:
    known = behind(a0=NOW - 4_000)
    recorded = told(PartitionRecord(NAME, status(Partition("a", 0))))
    old = make_mirror_page(MIRROR, recorded, replace(known, at_ms=NOW - 11_000), None, NOW)
    stopped = make_mirror_page(replace(MIRROR, desired=DesiredState.STOPPED), recorded, known, None, NOW)

    for view, words in ((old, "unknown"), (stopped, "stopped")):
        assert [one[5] for one in cells(view, "partitions")] == [words]
        assert [one[4] for one in cells(view, "topics")] == [words]


def test_each_partition_and_topic_says_how_much_of_it_was_proved_equal() -> None:
    rows = (
        of_topic("a", replace(row(0), verified_end=1_234_567, position=2_000_000)),
        of_topic("a", replace(row(1), verified_end=50, position=40)),
        of_topic("b", row(0)),
        of_topic("c", replace(row(0), position=None, verified_end=7)),
    )
    view = at(look(*rows))

    assert {one[0]: one[6] for one in cells(view, "partitions")} == {
        "a-0": "1,234,567",
        "a-1": "50",
        "b-0": "none",
        "c-0": "7",
    }
    assert {one[0]: one[5] for one in cells(view, "topics")} == {
        "a": "1,234,607 of 2,000,040",
        "b": "0 of 100",
        "c": "unknown",
    }
    recorded = page(None, one=told(PartitionRecord(NAME, status(Partition("b", 0)))))
    assert [one[6] for one in cells(recorded, "partitions")] == ["unknown"], "nobody was asked"
    assert [one[5] for one in cells(recorded, "topics")] == ["unknown"]


# -- groups and drift --------------------------------------------------------------------------------------------------


def judgement(groups: dict[str, GroupReadAgain], *drift: DriftRow) -> MirrorAssessment:
    made = plan(groups={group: {FigureKey.READ_AGAIN_AFTER_SYNC: 0} for group in groups})
    unplanned = UnplannedForecast(refused=(), groups=groups)
    return MirrorAssessment(NOW, PlanDecision(made, ()), drift, unplanned=unplanned)


def test_of_many_groups_those_are_shown_that_would_read_the_most_again_or_of_which_that_is_unknown() -> None:
    groups = {f"g-{n:04}": GroupReadAgain(most=n, now=None) for n in range(3_000)} | {
        "z": GroupReadAgain(most=None, now=None)
    }
    view = page(seen(row(0)), judgement(groups))

    assert [one[0] for one in cells(view, "groups")] == ["z", *(f"g-{2_999 - n:04}" for n in range(99))]
    assert "2,901 more are not shown" in told_beside(view, "groups")
    few = page(seen(row(0)), judgement({"g": GroupReadAgain(most=1, now=1)}))
    assert "not shown" not in told_beside(few, "groups")


def test_of_much_drift_it_is_said_how_much_is_left_out() -> None:
    def drift(n: int, action: SyncAction) -> DriftRow:
        return DriftRow(part=SyncCategory.TOPICS, subject=f"t{n}", source="", destination="", action=action)

    rows = [drift(n, SyncAction.EQUAL if n < 10 else SyncAction.CREATE) for n in range(1_511)]
    assert len(cells(page(seen(row(0)), judgement({}, *rows)), "drift")) == ROWS_PER_PAGE
    assert "1,401 more are not shown" in told_beside(page(seen(row(0)), judgement({}, *rows)), "drift")
    assert "not shown" not in told_beside(page(seen(row(0)), judgement({}, *rows[:110])), "drift")


def test_the_commands_that_list_everything_are_commands() -> None:
    groups = {f"g-{n}": GroupReadAgain(most=n, now=None) for n in range(200)}
    drift = [
        DriftRow(part=SyncCategory.TOPICS, subject=f"t{n}", source="", destination="", action=SyncAction.CREATE)
        for n in range(200)
    ]
    found = re.findall(r"<code>mirrorbook (.*?)</code>", shown(page(seen(row(0)), judgement(groups, *drift))))
    assert [shlex.split(line)[:2] for line in found] == [["failover", "plan"], ["sync", NAME]]
    for line in found:
        parse(line)


def test_of_nothing_there_is_one_empty_page() -> None:
    found = make_topic_table((), compute_lateness(None, stopped=False), 7)
    assert (found.rows, found.total, found.page, found.pages) == ([], 0, 1, 1)
