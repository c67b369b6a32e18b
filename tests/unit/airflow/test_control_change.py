"""`mirror_control`, action `change`: what the form means, what has to be approved, and what a second attempt does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from mirrorbook_airflow import control_tasks
from mirrorbook_airflow.control_tasks import (
    FILTER_TEXTS,
    KEEP_PRESENT_FILTER,
    LEAVING_CHOICES,
    LEAVING_NOT_CHOSEN,
    ControlChange,
)

from mirror_core.decide.mirror_change import ChangeInputs, FilterChange, plan_change
from mirror_core.mirrors import mirror_change
from mirror_core.model.errors import Refused
from mirror_core.model.mirror import PartitionState, PartitionStatus, TopicAccess, TopicDeparture
from mirror_core.model.names import Offset, Partition
from mirror_core.state.state_records import State
from tests.support.cluster_names import LINK

MIRROR = LINK.mirror
CLOSED, RELEASED = TopicAccess.CLOSED, TopicAccess.RELEASED
AS_NOW = {f"new_{name}": [KEEP_PRESENT_FILTER] for name in FILTER_TEXTS}


def form(leaving: str = LEAVING_NOT_CHOSEN, **filters: list[str]) -> Any:
    return {"params": {"action": "change", **AS_NOW, **filters, "leaving_topics": leaving}}


def copied(topic: str, state: PartitionState = PartitionState.MIRRORING) -> PartitionStatus:
    lmo = Offset(7) if state is PartitionState.STOPPED else None
    return PartitionStatus(
        partition=Partition(topic, 0), state=state, source_topic_id="s", destination_topic_id="d", lmo=lmo
    )


def departed(topic: str, access: TopicAccess, *, is_done: bool = True) -> TopicDeparture:
    statuses = (copied(topic, PartitionState.STOPPED),)
    return TopicDeparture(
        mirror=MIRROR.name, topic=topic, access=access, since_ms=1, is_done=is_done, statuses=statuses
    )


Planned = Callable[..., ControlChange | None]


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Planned:
    """Plans what the form asks for, of topic `t` and of topics that have left."""

    def plan(context: Any, *departures: TopicDeparture, was_planned: bool = False) -> ControlChange | None:
        inputs = ChangeInputs(
            mirror=MIRROR,
            statuses={Partition("t", 0): copied("t")},
            departures={d.topic: d for d in departures},
            source_topics=("t", "u"),
            source_groups=(),
            destination_ids={"t": "d"},
            destination_ends={},
        )

        def prepare(link: object, state: object, change: FilterChange) -> Any:
            return SimpleNamespace(plan=plan_change(change, inputs))

        monkeypatch.setattr(mirror_change, "prepare_change", prepare)
        state = State(departures={MIRROR.name: {d.topic: d for d in departures}})
        return control_tasks._plan_change(LINK, state, context, was_planned=was_planned)

    return plan


def test_a_form_that_is_left_as_it_is_changes_no_filter() -> None:
    change = control_tasks._read_filter_change(form()["params"])
    assert change == FilterChange()
    assert not change.has_filters


@pytest.mark.parametrize("name", FILTER_TEXTS)
def test_each_filter_of_the_form_replaces_that_one(name: str) -> None:
    for patterns in (["a.*", "b"], []):
        sent: Any = {f"new_{name}": patterns}
        change = control_tasks._read_filter_change(form(**sent)["params"])
        wanted: Any = {name: tuple(patterns)}
        assert change == FilterChange(**wanted)


@pytest.mark.parametrize(("choice", "access"), LEAVING_CHOICES.items())
def test_what_becomes_of_topics_that_leave_is_chosen_by_name(choice: str, access: TopicAccess | None) -> None:
    assert control_tasks._read_filter_change(form(choice)["params"]).access is access


def test_a_change_is_approved_as_it_is_shown(planned: Planned) -> None:
    shown = planned(form("release", new_topics=["u"]))
    assert shown is not None
    for text in ("released on west: 1 topic: t", "start, created on west", shown.hash[:12]):
        assert text in shown.body
    kept = planned(form("keep closed", new_topics=["u"]))
    assert kept is not None
    assert kept.hash != shown.hash, "an approval is of one of both"


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        (form(new_topics=["u"]), "say what becomes of the copy"),
        (form("release", new_topics=[]), "no topics are left"),
        (form(), "this changes nothing"),
        (form("release", new_topics=["t"]), "this changes nothing"),
    ],
)
def test_what_may_not_be_changed_is_refused_before_anybody_is_asked(
    planned: Planned, context: Any, reason: str
) -> None:
    with pytest.raises(Refused, match=reason):
        planned(context)


def test_an_earlier_change_is_finished_unasked_and_nothing_else_beside_it(planned: Planned) -> None:
    leaving = departed("x", CLOSED, is_done=False)
    assert planned(form(), leaving) is None
    assert planned(form("keep closed"), leaving) is None
    for other in (form("release"), form("release", new_topics=["u"]), form("release", new_topics=["t"])):
        with pytest.raises(Refused, match="an earlier change is not finished"):
            planned(other, leaving)


def test_an_attempt_after_one_that_was_killed_goes_on_without_another_approval(planned: Planned) -> None:
    same = form("release", new_topics=["t"])
    assert planned(same, was_planned=True) is None, "the filters are recorded"
    released = form("release")
    assert planned(released, departed("x", CLOSED)) is not None
    assert planned(released, departed("x", CLOSED), was_planned=True) is not None, "it has not begun"
    assert planned(released, departed("x", RELEASED, is_done=False), was_planned=True) is None, "it is half way"
    assert planned(released, departed("x", RELEASED), was_planned=True) is None, "it is done"


@pytest.mark.parametrize("is_done", [False, True])
def test_the_word_of_the_second_who_records_the_same_filters_is_not_ignored(planned: Planned, is_done: bool) -> None:
    """Both were approved while the topic was still carried."""
    long_ago = replace(departed("old", CLOSED), since_ms=0)
    closed, released = departed("x", CLOSED, is_done=is_done), departed("x", RELEASED, is_done=is_done)
    withheld = replace(released, with_rights=False)
    release, keep_closed = form("release", new_topics=["t"]), form("keep closed", new_topics=["t"])
    for second, recorded in ((release, closed), (keep_closed, released), (release, withheld)):
        with pytest.raises(Refused, match="x"):
            planned(second, long_ago, recorded, was_planned=True)
    assert planned(release, long_ago, released, was_planned=True) is None
    assert planned(keep_closed, long_ago, closed, was_planned=True) is None
    assert planned(form(new_topics=["t"]), closed, was_planned=True) is None


@pytest.mark.parametrize("is_approved", [False, True])
def test_only_what_was_approved_is_recorded_and_what_is_not_finished_is_said(
    monkeypatch: pytest.MonkeyPatch, is_approved: bool
) -> None:
    recorded = list[tuple[FilterChange, str]]()
    monkeypatch.setattr(mirror_change, "change_mirror", lambda link, change, plan: recorded.append((change, plan)))
    monkeypatch.setattr(mirror_change, "finish_change", lambda link, report: is_approved)
    approved = ControlChange("0" * 64, "") if is_approved else None
    said = control_tasks.ACTIONS["change"](LINK, form("release", new_topics=["u"]), approved)
    assert recorded == ([(FilterChange(topics=("u",), access=RELEASED), "0" * 64)] if is_approved else [])
    assert ("the next sync goes on" in said) is not is_approved
