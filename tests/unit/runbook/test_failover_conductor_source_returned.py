"""A source that was silent when somebody agreed to give it up, and that answers when that is to be done."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from mirror_core.cli import failover as command
from mirror_core.cli import failover as of_sets
from mirror_core.decide.approval_rules import explain_source_answers_again
from mirror_core.decide.failover_plan import PlanDecision, decide_failover
from mirror_core.decide.mirror_snapshot import MirrorSnapshot, UnseenCluster
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.errors import (
    AuthenticationFailed,
    BadRequest,
    ConnectionRejected,
    MirrorError,
    MissingPermission,
    Refused,
    Unreachable,
)
from mirror_core.model.findings import Finding
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Run, RunMode
from mirror_core.model.timing import now_ms
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.set_failover import SetFailover
from mirror_core.state.state_records import State
from tests.support.cluster_names import LINK
from tests.support.failover_views import view  # noqa: F401 - a fixture
from tests.support.mirror_views import RUN
from tests.support.sentences import format_sentence

A, B = MirrorName("a"), MirrorName("b")
SEEN = PlanDecision(RUN.plan, ())
UNSEEN = replace(SEEN, source_seen=False)


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("answers", [False, True])
def test_only_who_agreed_when_it_was_silent_is_asked_again(silent: bool, answers: bool) -> None:
    said = explain_source_answers_again(
        "east", "failover run m", was_silent=silent, has_answered=answers, has_answered_fully=answers
    )
    assert bool(said) is (silent and answers)
    for line in said:
        assert "east answers by now" in line
        assert "With --mode planned nothing is lost. Or" in line
        assert "`mirrorbook failover run m --mode unplanned` shows the new plan" in line


@pytest.mark.parametrize(
    ("held", "words"), [(None, "With --mode planned nothing is lost"), (RUN, f"Run {RUN.id} can go on")]
)
def test_of_a_source_that_answers_only_in_part_it_is_said_what_a_planned_run_waits_for(
    held: Run | None, words: str
) -> None:
    (line,) = explain_source_answers_again(
        "east", "failover run m", was_silent=True, has_answered=True, has_answered_fully=False, held_run=held
    )
    assert f"{words} as soon as east tells all that is asked" in line


def test_a_plan_knows_whether_it_was_made_without_its_source(view: MirrorSnapshot) -> None:  # noqa: F811
    lost = replace(view, mode=RunMode.UNPLANNED)
    assert decide_failover(lost).source_seen
    assert not decide_failover(replace(lost, source=UnseenCluster("dead"))).source_seen


@pytest.fixture
def failover(monkeypatch: pytest.MonkeyPatch) -> Failover:
    made = Failover(LINK, cast("Any", None), started_by="me")
    nothing: Any = SimpleNamespace(state=None, active_run=lambda name: None)
    monkeypatch.setattr("mirror_core.runbook.conductor.read_complete_state", lambda cluster: nothing)
    monkeypatch.setattr(Failover, "_open_control_writer", lambda self: nullcontext(nothing))
    monkeypatch.setattr(Failover, "_open_run", lambda self, writer, found, *rest, **more: RUN)
    monkeypatch.setattr(Failover, "is_source_reachable", lambda self: False)
    return made


def test_who_is_refused_anyway_ends_nobodys_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planned run whose source was silent is conducted still when that answers again, and can go on."""
    taken = list[str]()
    planned = replace(RUN, plan=replace(RUN.plan, mode=RunMode.PLANNED))
    state: Any = SimpleNamespace(active_run=lambda name: planned)

    def control(self: Failover) -> Any:
        taken.append("the control id")
        return nullcontext(state)

    monkeypatch.setattr("mirror_core.runbook.conductor.read_complete_state", lambda cluster: state)
    monkeypatch.setattr(Failover, "_open_control_writer", control)
    monkeypatch.setattr(Failover, "_decide", lambda self, state, choice: SEEN)
    made = Failover(LINK, cast("Any", None), started_by="me")
    with pytest.raises(Refused, match=format_sentence("run_can_go_on_and_loses", RUN.id)):
        made.begin(RUN.plan.hash, RunMode.UNPLANNED, silent=True)
    assert taken == []


@pytest.mark.parametrize(
    ("found", "plan_hash", "room", "words"),
    [
        (replace(SEEN, reasons=(Finding("west could not be read"),)), SEEN.plan.hash, True, "west could not be read"),
        (SEEN, "0123456789ab", True, "plan 0123456789ab is out of date"),
        (SEEN, SEEN.plan.hash, False, "no room for evidence"),
    ],
    ids=["forbidden", "another plan", "no room"],
)
def test_nor_does_who_may_not_begin_for_another_reason(
    monkeypatch: pytest.MonkeyPatch, found: PlanDecision, plan_hash: str, room: bool, words: str
) -> None:
    """Whoever conducts the planned run has fenced perhaps, and would leave it so."""
    taken = list[str]()
    planned = replace(RUN, plan=replace(RUN.plan, mode=RunMode.PLANNED))
    state: Any = SimpleNamespace(active_run=lambda name: planned)

    def control(self: Failover) -> Any:
        taken.append("the control id")
        return nullcontext(SimpleNamespace(state=state))

    def check_evidence() -> None:
        if not room:
            raise Refused("begin", ["no room for evidence"], "folder_in_use")

    monkeypatch.setattr("mirror_core.runbook.conductor.read_complete_state", lambda cluster: state)
    monkeypatch.setattr(Failover, "_open_control_writer", control)
    monkeypatch.setattr(Failover, "_decide", lambda self, state, choice: found)
    services: Any = SimpleNamespace(check_evidence=check_evidence)
    with pytest.raises(Refused, match=words):
        Failover(LINK, services, started_by="me").begin(plan_hash, RunMode.UNPLANNED)
    assert taken == []


def test_a_source_that_answers_again_is_given_up_by_no_approval_of_before(
    failover: Failover, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failover, "_decide", lambda self, state, choice: SEEN)
    with pytest.raises(Refused, match=format_sentence("source_answers_by_now", "east")):
        failover.begin(SEEN.plan.hash, RunMode.UNPLANNED, silent=True)
    assert failover.begin(SEEN.plan.hash, RunMode.UNPLANNED) is RUN, "who agreed has seen that it answers"
    monkeypatch.setattr(Failover, "_decide", lambda self, state, choice: UNSEEN)
    assert failover.begin(SEEN.plan.hash, RunMode.UNPLANNED, silent=True) is RUN
    # One broker answers, and not to all that was asked.
    monkeypatch.setattr(Failover, "is_source_reachable", lambda self: True)
    with pytest.raises(Refused, match=r"east answers by now.* nothing is lost as soon as east tells all"):
        failover.begin(SEEN.plan.hash, RunMode.UNPLANNED, silent=True)
    assert failover.begin(SEEN.plan.hash, RunMode.UNPLANNED) is RUN


@pytest.mark.parametrize("silent", [False, True])
def test_a_run_remembers_whether_its_source_was_silent(monkeypatch: pytest.MonkeyPatch, silent: bool) -> None:
    state, written = State(), list[Run]()
    state.mirrors[LINK.mirror.name] = LINK.mirror
    writer: Any = SimpleNamespace(state=state, now_ms=now_ms, put=lambda run, *more: written.append(run))
    monkeypatch.setattr("mirror_core.runbook.conductor.read_complete_state", lambda cluster: state)
    monkeypatch.setattr(Failover, "_open_control_writer", lambda self: nullcontext(writer))
    monkeypatch.setattr(Failover, "_decide", lambda self, state, choice: UNSEEN)
    monkeypatch.setattr(Failover, "is_source_reachable", lambda self: False)
    services: Any = SimpleNamespace(check_evidence=lambda: None)
    made = Failover(LINK, services, started_by="me")
    assert made.begin(UNSEEN.plan.hash, RunMode.UNPLANNED, silent=silent) is written[0]
    assert written[0].source_silent is silent


def test_a_run_of_an_older_mirrorbook_is_read() -> None:
    older = msgspec.to_builtins(RUN)
    del older["source_silent"]
    assert msgspec.convert(older, type(RUN)) == RUN
    assert not RUN.source_silent


def test_a_plan_names_a_source_that_answers_only_in_part(failover: Failover, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failover, "decide", lambda self, choice: UNSEEN)
    monkeypatch.setattr(Failover, "is_source_reachable", lambda self: True)
    found, silent = failover.decide_unplanned()
    assert not silent
    assert "east answers, if only in part" in str(found.plan.warnings[0])
    assert found.plan.hash == UNSEEN.plan.hash


@pytest.mark.parametrize(
    ("found", "answers", "silent"), [(SEEN, False, False), (UNSEEN, True, False), (UNSEEN, False, True)]
)
def test_a_source_is_silent_when_none_of_its_brokers_answers(
    failover: Failover, monkeypatch: pytest.MonkeyPatch, found: PlanDecision, answers: bool, silent: bool
) -> None:
    monkeypatch.setattr(Failover, "decide", lambda self, choice: found)
    monkeypatch.setattr(Failover, "is_source_reachable", lambda self: answers)
    decision, was_silent = failover.decide_unplanned()
    assert was_silent is silent
    assert replace(decision, plan=found.plan) == found


@pytest.mark.parametrize("silent", [False, True])
def test_a_command_begins_by_what_it_has_shown(monkeypatch: pytest.MonkeyPatch, silent: bool) -> None:
    begun = list[bool]()
    by: Any = SimpleNamespace(
        decide_unplanned=lambda: (UNSEEN, silent), refuse_conducted_planned_run=lambda: None, started_by="me"
    )

    def begin(by: Any, decision: PlanDecision, mode: RunMode, *, silent: bool, as_json: bool) -> None:
        begun.append(silent)
        raise Refused("enough", [])

    monkeypatch.setattr(command, "find_mirror", lambda config, name: (LINK, None))
    monkeypatch.setattr(command, "make_conductor", lambda *arguments, **options: by)
    monkeypatch.setattr(command, "confirm_plan", lambda *arguments, **options: True)
    monkeypatch.setattr(command, "begin_run", begin)
    with pytest.raises(Refused, match="enough"):
        command.run("m", mode=RunMode.UNPLANNED)
    assert begun == [silent]


def both(monkeypatch: pytest.MonkeyPatch, *, seen: bool, begun: list[str], answers: bool = False) -> SetFailover:
    """Two mirrors; of the first one the source is seen or not."""

    def conductor(name: MirrorName, found: PlanDecision) -> Any:
        def begin(*arguments: object, **options: object) -> None:
            begun.append(name)

        return SimpleNamespace(
            link=LINK,
            decide_unplanned=lambda: (found, not (found.source_seen or answers)),
            refuse_conducted_planned_run=lambda: None,
            begin=begin,
            started_by="me",
        )

    conductors = {A: conductor(A, replace(SEEN, source_seen=seen)), B: conductor(B, SEEN)}
    monkeypatch.setattr(SetFailover, "_read_member_runs", lambda self, attempt: {})
    monkeypatch.setattr(SetFailover, "_group_by_attempt", lambda self, started_by: {})
    monkeypatch.setattr(SetFailover, "_read_states", lambda self: {"west": State()})
    return SetFailover(MirrorSet("shop", (A, B)), conductors, RunMode.UNPLANNED, print_line=lambda line: None)


def test_of_a_set_none_is_given_up_when_one_source_answers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[str]()
    dead = both(monkeypatch, seen=False, begun=begun)
    plans = dead.decide()
    assert plans.silent == (A,)
    several = both(monkeypatch, seen=True, begun=begun)
    with pytest.raises(Refused, match="a: east answers by now"):
        several.begin(plans.hash, approved_by="ann", silent=(A,))
    in_part = both(monkeypatch, seen=False, begun=begun, answers=True)
    with pytest.raises(
        Refused, match=r"a: east answers by now.* nothing is lost as soon.*failover run-set shop --mode unplanned"
    ):
        in_part.begin(plans.hash, approved_by="ann", silent=(A,))
    assert begun == []
    several.begin(plans.hash, approved_by="ann", silent=())
    dead.begin(plans.hash, approved_by="ann", silent=(A,))
    assert sorted(begun) == [A, A, B, B]


def test_run_set_begins_by_what_it_has_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    several = both(monkeypatch, seen=False, begun=[])
    asked: list[object] = []

    def begin(self: SetFailover, plan_hash: str, **known: object) -> str:
        asked.append(known["silent"])
        raise Refused("enough", [])

    monkeypatch.setattr(SetFailover, "begin", begin)
    monkeypatch.setattr(of_sets, "_make_set_failover", lambda *arguments, **options: several)
    monkeypatch.setattr("mirror_core.cli.run_commands.print_set_plan", lambda *arguments, **options: None)
    monkeypatch.setattr("mirror_core.cli.run_commands.read_broker_time_ms", lambda cluster: 1)
    with pytest.raises(Refused) as refused:
        of_sets.run_set("shop", mode=RunMode.UNPLANNED, yes=True)
    assert [finding.code for finding in refused.value.findings if isinstance(finding, Finding)] == [
        "living_source_needs_person"
    ], "the source of the other mirror answers"
    monkeypatch.setattr(of_sets, "confirm_set_move", lambda *arguments, **options: None)
    with pytest.raises(Refused, match="enough"):
        of_sets.run_set("shop", mode=RunMode.UNPLANNED)
    assert asked == [(A,)]


class Other:
    """Another cluster at the source's address: it answers, and is not the source."""

    def __init__(self, *given: object, **options: object) -> None: ...

    def __enter__(self) -> Other:
        return self

    def __exit__(self, *ended: object) -> None: ...

    def metadata(self, topics: object) -> Any:
        return SimpleNamespace(cluster_id="another")


def test_another_cluster_at_its_address_is_no_source_that_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failover = Failover(LINK, cast("Any", None), started_by="me")
    monkeypatch.setattr("mirror_core.state.mirror_link.ClusterClient", Other)
    monkeypatch.setattr(Failover, "decide", lambda self, choice: UNSEEN)
    assert not failover.can_reach_source()
    assert failover.decide_unplanned() == (UNSEEN, True)
    monkeypatch.setattr(Other, "metadata", lambda self, topics: SimpleNamespace(cluster_id=LINK.mirror.source_id))
    assert failover.can_reach_source()


@pytest.mark.parametrize(
    ("error", "there"),
    [
        (Unreachable("no broker answered"), False),
        (AuthenticationFailed("a certificate has expired"), True),
        (ConnectionRejected("the broker closed the connection"), True),
        (BadRequest("every broker refuses the login"), True),
        (MissingPermission("not authorized"), True),
    ],
)
def test_who_lets_us_not_in_is_there_and_is_given_up_by_no_approval_of_before(
    monkeypatch: pytest.MonkeyPatch, error: MirrorError, there: bool
) -> None:
    """It may take writes: a password was changed. But nobody can lift a fence there, so a run is kept."""

    def raises(self: Other, topics: object) -> Any:
        raise error

    failover = Failover(LINK, cast("Any", None), started_by="me")
    monkeypatch.setattr("mirror_core.state.mirror_link.ClusterClient", Other)
    monkeypatch.setattr(Other, "metadata", raises)
    monkeypatch.setattr(Failover, "decide", lambda self, choice: UNSEEN)
    assert failover.is_source_reachable() is there
    assert failover.decide_unplanned()[1] is not there
    assert not failover.can_reach_source()
