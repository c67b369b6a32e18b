"""Tasks that would take a run from whoever conducts it: they leave it alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.decide.failover_plan import PlanDecision
from mirror_core.decide.set_schedule import SetPlan
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.errors import Refused
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import NO_OFFSETS, MirrorName, Offset, Partition, PartitionOffsets
from mirror_core.model.run import Run, RunMode, RunState, StepRecord, StepState
from mirror_core.model.run_checkpoints import StepValue
from mirror_core.runbook.failover_conductor import Failover, list_refused_losses
from mirror_core.runbook.set_conductor import MemberRun
from mirror_core.runbook.set_failover import SetFailover
from mirror_core.runbook.step_records import UnderReplicatedLogs
from mirror_core.state.journal import make_checkpoint
from mirror_core.state.point_of_no_return import SourceReturned
from mirror_core.state.state_records import State
from tests.dag.answering import answer, answer_question, record_in
from tests.support.cluster_names import LINK
from tests.support.mirror_views import RUN

pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore")]  # warnings of Airflow are not ours to mend

A, B = MirrorName("a"), MirrorName("b")
MINE = "airflow mirror_failover_set/r1"


def refuse(run_id: str, title: str, **known: bool) -> None:
    raise Refused(title, ["it is conducted by ann"], "run_conducted")


def not_to_be_done(*arguments: object, **options: object) -> None:
    pytest.fail("the run was taken from whoever conducts it")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], Any]:
    """A set of which ann has taken one run over. What tasks have left in Airflow."""
    from mirrorbook_airflow import runbook

    one: Any = SimpleNamespace(started_by=MINE, refuse_conducted=refuse)
    runs = {
        A: replace(RUN, id="a-1", started_by=MINE, conducted_by="ann"),
        B: replace(RUN, id="b-1", started_by=MINE, conducted_by=MINE),
    }
    monkeypatch.setattr(
        SetFailover, "_read_member_runs", lambda self, attempt: {n: MemberRun(r, ()) for n, r in runs.items()}
    )
    for name in ("prove", "finish", "abort"):
        monkeypatch.setattr(SetFailover, name, not_to_be_done)
    monkeypatch.setattr(SetFailover, "refuse_expired", lambda self, attempt, agreed: None)
    several = SetFailover(MirrorSet("shop", (A, B)), {A: one, B: one}, print_line=print)
    monkeypatch.setattr(runbook.RunOperator, "make_conductor", lambda self, context, steps=(): several)
    return {("begin", "return_value"): "shop-1"}


@pytest.mark.parametrize(("name", "steps"), [("prove", ("prove",)), ("cut_over", ("fence", "drain"))])
def test_a_set_of_which_a_person_conducts_a_run_is_left_to_them(
    name: str, steps: tuple[str, ...], taken: dict[tuple[str, str], Any]
) -> None:
    """Also by the teardown behind the task, which would abort the others."""
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow.runbook import AbortRun, RunSteps

    def context(task: str) -> Any:
        pull: Callable[..., Any] = lambda task_ids, key="return_value": taken.get((task_ids, key))  # noqa: E731
        push: Callable[..., Any] = lambda key, value: taken.update({(task, key): value})  # noqa: E731
        run = SimpleNamespace(dag_id="mirror_failover_set", run_id="r1")
        return {"ti": SimpleNamespace(xcom_pull=pull, xcom_push=push), "dag_run": run, "params": {}}

    common: dict[str, Any] = {"set_name": "shop", "begin": EmptyOperator(task_id="begin")}
    task = RunSteps(task_id=name, steps=steps, **common)
    with pytest.raises(AirflowFailException, match="it is conducted by ann"):
        task.execute(context(name))
    said = AbortRun(task_id="abort", steps=(task,), **common).execute(context("abort"))
    assert said.startswith("kept: another process took a run over")


def test_a_run_is_taken_from_whoever_conducts_it_only_by_a_word_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow import control_tasks

    state = State()
    state.put(replace(RUN, state=RunState.RUNNING))
    monkeypatch.setattr(control_tasks, "find_mirror", lambda name: (LINK, state))
    monkeypatch.setattr(control_tasks, "make_services", lambda path, steps, master: None)
    monkeypatch.setattr(Failover, "refuse_conducted", lambda self, run_id, title, **known: refuse(run_id, title))
    monkeypatch.setattr(Failover, "abort", not_to_be_done)
    control, context = _controlled(state, monkeypatch, "abort")
    with pytest.raises(AirflowFailException, match=f"run {RUN.id}: abort:\\s+- it is conducted by ann"):
        control(take_over=False)
    monkeypatch.setattr(Failover, "abort", lambda self, run_id: replace(RUN, state=RunState.ABORTED, note="by a form"))
    context["params"]["take_over"] = True
    with pytest.raises(AirflowFailException, match="task approve was answered about"):
        control(asked=False)
    assert "approved by ann\n" in (said := control(take_over=True))
    assert "by a form" in said
    state.put(replace(RUN, state=RunState.ABORTED, ended_ms=1))
    state.put(replace(RUN, id="m-failover-2", state=RunState.RUNNING))
    with pytest.raises(AirflowFailException, match="1 person has to approve it, and so far nobody did"):
        control(asked=False)


@pytest.mark.parametrize("action", ["stop", "abort", "leave_behind"])
def test_what_ends_a_mirror_or_a_run_or_goes_on_with_it_needs_approvals(
    monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow import control_tasks

    state = State()
    state.put(replace(RUN, state=RunState.RUNNING))
    done = list[str]()

    def act(link: object, context: object, approved: object) -> str:
        done.append(action)
        return "did"

    monkeypatch.setattr(control_tasks, "ACTIONS", {action: act})
    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__TWO_PEOPLE", "true")
    control, context = _controlled(state, monkeypatch, action)
    context["left"] |= {"approve": answer("ann"), "approve_second": answer("ben")}
    with pytest.raises(AirflowFailException, match="2 people have to approve it, and so far nobody did"):
        control(asked=False, take_over=False)
    with pytest.raises(AirflowFailException, match="ann has approved it already"):
        control(people=("ann", "ann"))
    assert not done
    assert control(people=("ann", "ben")) == "approved by ann, ben\ndid"
    with pytest.raises(AirflowFailException, match="clear approve, and it asks"):
        control(asked=False)
    assert done == [action], "an approval is for one time"
    assert control(people=("ann", "ben")) == "approved by ann, ben\ndid"


def test_a_word_for_what_a_run_has_stopped_for_is_none_for_what_it_stops_for_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow import control_tasks

    state, done = State(), list[str]()
    state.put(replace(RUN, state=RunState.RUNNING))
    state.put(make_checkpoint(RUN.id, "settle", UnderReplicatedLogs(ends=NO_OFFSETS)))

    def act(link: object, context: object, approved: object) -> str:
        done.append("left")
        return "left"

    monkeypatch.setattr(control_tasks, "ACTIONS", {"leave_behind": act})
    control, _ = _controlled(state, monkeypatch, "leave_behind")
    with pytest.raises(AirflowFailException, match="task approve was answered about plan"):
        control(meanwhile=lambda: state.put(make_checkpoint(RUN.id, "promote", SourceReturned())))
    assert not done
    assert control() == "approved by ann\nleft"


def _ends(offset: int) -> PartitionOffsets:
    return PartitionOffsets.from_mapping({Partition("orders", 0): Offset(offset)})


@pytest.mark.parametrize(
    ("step", "shown", "grown", "confirmed"),
    [
        (
            "settle",
            UnderReplicatedLogs(ends=_ends(5), high_watermarks=_ends(3)),
            UnderReplicatedLogs(ends=_ends(5), high_watermarks=_ends(2)),
            UnderReplicatedLogs(ends=_ends(5), high_watermarks=_ends(3), left_behind=True),
        ),
        (
            "promote",
            SourceReturned(log_ends=_ends(5)),
            SourceReturned(log_ends=_ends(9)),
            SourceReturned(log_ends=_ends(5), loss_confirmed=True, confirmed_ms=7),
        ),
    ],
)
def test_an_approval_to_leave_records_behind_is_for_the_records_that_were_shown(
    monkeypatch: pytest.MonkeyPatch, step: str, shown: StepValue, grown: StepValue, confirmed: StepValue
) -> None:
    """A repeated attempt, whose process was killed behind the confirmation, needs no other approval."""
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow import control_tasks

    state, done = State(), list[object]()
    state.put(replace(RUN, state=RunState.RUNNING))
    state.put(make_checkpoint(RUN.id, step, shown))

    def act(link: object, context: object, approved: Any) -> str:
        done.append(approved.losses)
        return "left"

    monkeypatch.setattr(control_tasks, "ACTIONS", {"leave_behind": act})
    control, _ = _controlled(state, monkeypatch, "leave_behind")
    with pytest.raises(AirflowFailException, match="task approve was answered about plan"):
        control(meanwhile=lambda: state.put(make_checkpoint(RUN.id, step, grown)))
    assert not done
    state.put(make_checkpoint(RUN.id, step, shown))
    assert control(meanwhile=lambda: state.put(make_checkpoint(RUN.id, step, confirmed))) == "approved by ann\nleft"
    assert done == [list_refused_losses(state, RUN)]


def test_an_approval_stays_while_its_action_has_not_succeeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt of a task whose process was killed needs nobody."""
    from mirrorbook_airflow import control_tasks

    state, attempts = State(), list[str]()

    def act(link: object, context: object, approved: object) -> str:
        attempts.append("stop")
        if len(attempts) == 1:
            raise KeyboardInterrupt
        return "did"

    monkeypatch.setattr(control_tasks, "ACTIONS", {"stop": act})
    control, _ = _controlled(state, monkeypatch, "stop")
    with pytest.raises(KeyboardInterrupt):
        control()
    assert control(asked=False) == "approved by ann\ndid"


@pytest.mark.parametrize("stopped", [True, False])
def test_a_stop_that_nobody_approved_stops_nothing(monkeypatch: pytest.MonkeyPatch, stopped: bool) -> None:
    """Another mirror of this name was created meanwhile; or somebody starts a stopped one while the task begins."""
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow import control_tasks

    state = State()
    mirror = replace(LINK.mirror, desired=DesiredState.STOPPED if stopped else DesiredState.STARTED)
    control, _ = _controlled(state, monkeypatch, "stop")
    monkeypatch.setattr("mirror_core.mirrors.mirror_commands.stop_mirror", not_to_be_done)

    def find(mirror: Mirror) -> None:
        monkeypatch.setattr(control_tasks, "find_mirror", lambda name: (replace(LINK, mirror=mirror), state))

    find(mirror)
    if stopped:
        assert control(asked=False) == "stopped already"
        return
    with pytest.raises(AirflowFailException, match="task approve was answered about plan"):
        control(meanwhile=lambda: find(replace(mirror, created_ms=mirror.created_ms + 1)))


def _controlled(state: State, monkeypatch: pytest.MonkeyPatch, action: str) -> tuple[Callable[..., str], Any]:
    """Sends the form of `mirror_control`, answers, and lets the last task do it; what its tasks get from Airflow."""
    from airflow.sdk import DAG
    from mirrorbook_airflow import approvals, control_tasks
    from mirrorbook_airflow.runbook import make_approval_tasks

    record_in(state, monkeypatch)
    for module in (approvals, control_tasks):
        monkeypatch.setattr(module, "find_mirror", lambda name: (LINK, state))
    left = dict[str, Any]()
    context: Any = {
        "params": {"action": action, "take_over": False},
        "dag_run": SimpleNamespace(dag_id="mirror_control", run_id="r1"),
        "ti": SimpleNamespace(xcom_pull=lambda task_ids: left.get(task_ids)),
        "left": left,
    }
    with DAG("mirror_control"):
        show = control_tasks.ShowChange(task_id="show", mirror=LINK.mirror.name)
        asks = make_approval_tasks(show, "Do it?")
        task = control_tasks.ControlMirror(task_id="control", mirror=LINK.mirror.name, show=show, approvals=asks)

    def control(
        *,
        asked: bool = True,
        people: tuple[str, ...] = ("ann",),
        meanwhile: Callable[[], None] = lambda: None,
        **params: bool,
    ) -> str:
        context["params"].update(params)
        left.setdefault("show", {"hash": "", "body": ""})  # as anybody may write it
        if asked:
            left["show"] = show.execute(context)
            for question, person in zip(asks, people, strict=True):
                answer_question(question, context, person)
        meanwhile()
        return str(task.execute(context))

    return control, context


@pytest.mark.parametrize(("begun", "words"), [(False, ["word", "driven"]), (True, ["driven"])])
def test_a_form_gives_the_word_that_a_run_waits_for_and_goes_on_with_it(
    monkeypatch: pytest.MonkeyPatch, begun: bool, words: list[str]
) -> None:
    """Also in the task's next attempt, when the first one has gone on by the word and was killed."""
    from mirrorbook_airflow import control_tasks

    state, run = State(), replace(RUN, plan=replace(RUN.plan, mode=RunMode.UNPLANNED), state=RunState.RUNNING)
    state.put(run)
    if begun:
        state.put(StepRecord(run=run.id, step="promote", state=StepState.DONE, attempt=1, started_ms=0))
    done = list[str]()
    monkeypatch.setattr(control_tasks, "find_mirror", lambda name: (LINK, state))
    monkeypatch.setattr(control_tasks, "make_services", lambda path, steps, master: None)
    monkeypatch.setattr(Failover, "refuse_conducted", lambda self, run_id, title, **known: done.append("asked"))
    monkeypatch.setattr(Failover, "confirm_leave_behind", lambda self, run_id, losses: done.append("word"))

    def drive(self: Failover, run_id: str) -> Run:
        done.append("driven")
        return replace(run, state=RunState.DONE)

    monkeypatch.setattr(Failover, "drive", drive)
    control, _ = _controlled(state, monkeypatch, "leave_behind")
    assert "is DONE" in control()
    assert done == ["asked", *words]


@pytest.mark.parametrize(("action", "end"), [("abort", RunState.ABORTED), ("leave_behind", RunState.DONE)])
@pytest.mark.parametrize("used_up", [False, True], ids=["before_its_approvals_are_used_up", "after"])
def test_an_attempt_that_was_killed_after_it_ended_the_run_is_repeated_well(
    monkeypatch: pytest.MonkeyPatch, action: str, end: RunState, used_up: bool
) -> None:
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow import control_tasks

    state = State()
    state.put(replace(RUN, state=RunState.RUNNING))
    act, use_up = control_tasks.ACTIONS[action], control_tasks.ControlMirror._use_up_approvals

    def kill(*arguments: Any) -> str:
        state.put(replace(RUN, state=end, ended_ms=5))
        if used_up:
            use_up(*arguments)
        raise KeyboardInterrupt

    control, _ = _controlled(state, monkeypatch, action)
    if used_up:
        monkeypatch.setattr(control_tasks, "ACTIONS", {action: lambda *arguments: ""})
        monkeypatch.setattr(control_tasks.ControlMirror, "_use_up_approvals", kill)
    else:
        monkeypatch.setattr(control_tasks, "ACTIONS", {action: kill})
    with pytest.raises(KeyboardInterrupt):
        control()
    monkeypatch.setattr(control_tasks, "ACTIONS", {action: act})
    assert control(asked=False).startswith(f"run {RUN.id} is {end} already")
    other = next(one for one in (RunState.ABORTED, RunState.DONE) if one is not end)
    state.put(replace(RUN, state=other, ended_ms=5))
    with pytest.raises(AirflowFailException, match=f"there is nothing to {action}"):
        control(asked=False)


class Begun(Exception):
    """A run is begun."""


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("of_a_set", [False, True])
def test_an_approval_knows_whether_the_source_was_silent(
    monkeypatch: pytest.MonkeyPatch, of_a_set: bool, silent: bool
) -> None:
    """What a person has agreed to is to give up a dead cluster, or one that answers."""
    from airflow.providers.standard.operators.empty import EmptyOperator
    from mirrorbook_airflow import runbook

    found = PlanDecision(replace(RUN.plan, mode=RunMode.UNPLANNED), ())
    names, begun, state = ((A,) if silent else ()), list[Any](), State()
    joint = SetPlan({A: found}, "0123", (), silent=names)
    members = MirrorSet("shop" if of_a_set else "", (A,))

    def begin(*arguments: object, **known: object) -> None:
        begun.append(known["silent"])
        raise Begun

    record_in(state, monkeypatch)
    several: Any = SimpleNamespace(
        mirror_set=members, decide=lambda: joint, begin=begin,
        find_active_attempt=lambda started_by, plan_hash: None, find_unbegun_attempt=lambda started_by: None,
    )  # fmt: skip
    monkeypatch.setattr(runbook, "find_mirror", lambda name: (LINK, state))
    monkeypatch.setattr(runbook, "find_planned_set", lambda context, plan_task, name, kind: members)
    monkeypatch.setattr(runbook.RunOperator, "make_conductor", lambda self, context, steps=(): several)
    asked, lost = EmptyOperator(task_id="approve"), RunMode.UNPLANNED
    target: dict[str, Any] = {"set_name": "shop"} if of_a_set else {"mirror": "a"}
    plan = runbook.PlanRun(task_id="plan", mode=lost, **target)
    task = runbook.BeginRun(task_id="begin", plan=plan, approvals=(asked,), mode=lost, **target)
    run = SimpleNamespace(dag_id="mirror_failover_unplanned", run_id="r1")
    ti = SimpleNamespace(xcom_pull=lambda task_ids: {"hash": "0", "silent": not silent})
    context: Any = {"params": {}, "ti": ti, "dag_run": run}
    plan.execute(context)
    with pytest.raises(Begun):
        task.execute(context)
    assert begun == [names], "whatever an XCom says"
