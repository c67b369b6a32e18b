"""`mirror_control`, actions `change`, `split`, `delete`: what is asked for, approved, and done by a second attempt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import pytest
from mirrorbook_airflow import control_tasks
from mirrorbook_airflow.control_tasks import (
    KEEP_PRESENT_FILTER,
    LEAVING_CHOICES,
    LEAVING_NOT_CHOSEN,
    ControlChange,
)
from mirrorbook_airflow.operators import FILTER_TEXTS

from mirror_core.decide.mirror_change import ChangeInputs, FilterChange, plan_change, plan_split, split_filters
from mirror_core.mirrors import mirror_change, mirror_commands
from mirror_core.mirrors.control import CommandPreview
from mirror_core.model.errors import BadRequest, Refused
from mirror_core.model.mirror import Mirror, PartitionState, PartitionStatus, TopicAccess, TopicDeparture
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.state.state_records import State
from tests.support.cluster_names import LINK

MIRROR = LINK.mirror
CLOSED, RELEASED = TopicAccess.CLOSED, TopicAccess.RELEASED
AS_NOW: Any = {
    **{f"new_{name}": [KEEP_PRESENT_FILTER] for name in FILTER_TEXTS},
    "new_replication_factor": KEEP_PRESENT_FILTER,
}


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


def test_the_form_sets_the_replication_factor_of_new_topics() -> None:
    sent: Any = {"new_replication_factor": "2"}
    assert control_tasks._read_filter_change(form(**sent)["params"]) == FilterChange(replication_factor="2")


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


WIDE = replace(MIRROR, topics=("t", "u"))


def split_form(into: str = "new", *topics: str) -> Any:
    return {"params": {"action": "split", "split_into": into, "topics": list(topics or ("t",))}}


@pytest.fixture
def planned_split(monkeypatch: pytest.MonkeyPatch) -> Planned:
    def plan(context: Any, *mirrors: Mirror, was_planned: bool = False) -> ControlChange | None:
        inputs = ChangeInputs(
            mirror=mirrors[0],
            statuses={Partition(topic, 0): copied(topic) for topic in ("t", "u")},
            departures={},
            source_topics=("t", "u"),
            destination_ids={},
            destination_ends={},
        )
        monkeypatch.setattr(
            mirror_change, "prepare_split", lambda link, state, into, topics: plan_split(into, topics, inputs)
        )
        link = replace(LINK, mirror=mirrors[0])
        state = State(mirrors={mirror.name: mirror for mirror in mirrors})
        return control_tasks._plan_change(link, state, context, was_planned=was_planned)

    return plan


def test_a_split_is_approved_as_it_is_shown_and_not_repeated(planned_split: Planned) -> None:
    shown = planned_split(split_form(), WIDE)
    assert shown is not None
    assert shown.hash[:12] in shown.body
    assert "new" in shown.body
    again = planned_split(split_form(), WIDE, was_planned=True)
    assert again == shown, "it has not begun"
    after = split_filters(WIDE, MirrorName("new"), ("t",))
    assert planned_split(split_form(), *after, was_planned=True) is None, "it is done"


@pytest.mark.parametrize("context", [split_form(""), {"params": {**split_form()["params"], "topics": []}}])
def test_a_split_needs_a_name_and_topics(planned_split: Planned, context: Any) -> None:
    with pytest.raises(BadRequest, match="`split_into`, a name for the new mirror, and `topics`"):
        planned_split(context, WIDE)


def test_a_split_of_nothing_is_refused_before_anybody_is_asked(planned_split: Planned) -> None:
    with pytest.raises(Refused):
        planned_split(split_form("new", "none-of-them"), WIDE)


@pytest.mark.parametrize("is_approved", [False, True])
def test_only_an_approved_split_is_done(monkeypatch: pytest.MonkeyPatch, is_approved: bool) -> None:
    done, offered = list[Any](), list[tuple[str, str]]()
    monkeypatch.setattr(mirror_change, "split_mirror", lambda link, *split: done.append(split[:3]))
    monkeypatch.setattr(control_tasks, "add_form_mirror", lambda *names: offered.append(names))
    approved = ControlChange("0" * 64, "") if is_approved else None
    control_tasks.ACTIONS["split"](LINK, split_form(), approved)
    assert done == ([("new", ("t",), "0" * 64)] if is_approved else [])
    assert offered == [("new", LINK.mirror.destination)]


DELETION: Final[Any] = {"params": {"action": "delete"}}


def test_a_deletion_is_approved_of_this_mirror_with_its_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    preview = CommandPreview(("delete mirror m", "2 access rights copied to west are withdrawn"), None)
    monkeypatch.setattr(mirror_commands, "preview", lambda link, verb: preview)
    shown = control_tasks._plan_change(LINK, State(), DELETION)
    assert shown is not None
    assert "2 access rights copied to west are withdrawn" in shown.body
    assert control_tasks._plan_change(LINK, State(), DELETION, was_planned=True) == shown
    newer = replace(LINK, mirror=replace(MIRROR, created_ms=MIRROR.created_ms + 1))
    another = control_tasks._plan_change(newer, State(), DELETION)
    assert another is not None
    assert another.hash != shown.hash, "a mirror of the same name that was made since is another one"


def test_a_deletion_that_is_not_possible_now_is_refused_before_anybody_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusal = Refused("mirror m: delete", ["it is STARTED"], reason_code="command_refused")
    monkeypatch.setattr(mirror_commands, "preview", lambda link, verb: CommandPreview((), refusal))
    with pytest.raises(Refused, match="it is STARTED"):
        control_tasks._plan_change(LINK, State(), DELETION)


@pytest.mark.parametrize("silent", [{}, {"east": "no answer"}])
def test_a_mirror_counts_as_deleted_only_if_all_clusters_say_so(
    monkeypatch: pytest.MonkeyPatch, silent: dict[str, str]
) -> None:
    def find(mirror: str) -> Any:
        raise BadRequest(f"unknown mirror {mirror!r}")

    monkeypatch.setattr(control_tasks, "find_mirror", find)
    monkeypatch.setattr(control_tasks, "list_silent_clusters", lambda: silent)
    assert control_tasks._is_deleted("m") is not bool(silent)
    monkeypatch.setattr(control_tasks, "find_mirror", lambda mirror: (LINK, State()))
    assert not control_tasks._is_deleted("m")
