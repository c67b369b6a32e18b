"""A run that Airflow began and somebody else takes over: one of them ends it, nothing is aborted. On real brokers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.dataplane.task_runner import LocalCopy, RecordTrimmed
from mirror_core.model.errors import LostOwnership, Refused
from mirror_core.model.mirror import PartitionState
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import RunKind, RunMode, RunState, StepState
from mirror_core.model.timing import now_ms
from mirror_core.runbook import run_outcome
from mirror_core.runbook.failback_conductor import Failback
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.run_services import InProcessCopy
from mirror_core.state import run_heartbeat
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.writer import StateWriter, make_control_id
from tests.dag.answering import answer, answer_question
from tests.support.failback_runs import go_home
from tests.support.failover_runs import app_topic, denied
from tests.support.kafka_clients import Pair, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.waiting import patience

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]  # Airflow's own warnings

WAIT_S = patience(120.0)


@dataclass(slots=True)
class Held:
    """A copier that waits until it may go on, in the middle of the step `drain`."""

    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def copy(self, link: MirrorLink) -> InProcessCopy:
        def held(
            ends: dict[Partition, Offset], timeout_s: float, until: Callable[[float], None], deleted: RecordTrimmed
        ) -> None:
            self.reached.set()
            assert self.go_on.wait(WAIT_S), "nobody let it go on"
            LocalCopy(link)(ends, timeout_s, until, deleted)

        return held


@dataclass(slots=True)
class DagRun:
    """What tasks of one DAG run get from Airflow, and leave there for each other."""

    left: dict[tuple[str, str], object] = field(default_factory=dict)
    name: str = "r1"
    pause: bool = True

    def context(self, task: str) -> Any:
        def pull(task_ids: str, key: str = "return_value") -> object:
            return self.left.get((task_ids, key))

        def push(key: str, value: object) -> None:
            self.left[task, key] = value

        return {
            "ti": SimpleNamespace(xcom_pull=pull, xcom_push=push),
            "dag_run": SimpleNamespace(dag_id="mirror_failover", run_id=self.name),
            "params": {"master": "local[*]", "pause": self.pause},
        }

    def answered(self, operator: Any, person: str) -> None:
        self.left[operator.task_id, "return_value"] = answer_question(operator, self.context(operator.task_id), person)

    def execute(self, operator: Any) -> Any:
        result = operator.execute(self.context(operator.task_id))
        self.left[operator.task_id, "return_value"] = result
        return result


@dataclass(slots=True)
class Desk:
    """Airflow's tasks of a failover of this mirror, to be executed one by one in this process."""

    mirrored: Mirrored
    topic: str
    held: Held
    dag_run: DagRun
    plan_task: Any
    approve: Any
    begin: Any
    steps: dict[str, Any]
    abort: Any

    def take(self, *names: str) -> None:
        for name in names:
            self.dag_run.execute(self.steps[name])

    def cli(self, copy: Callable[[MirrorLink], InProcessCopy] = LocalCopy) -> Failover:
        services = replace(self.mirrored.services, copy=copy)
        return Failover(self.mirrored.link, services, started_by="somebody@elsewhere")

    @property
    def plan(self) -> Any:
        return self.dag_run.left["plan", "return_value"]

    @property
    def run(self) -> str:
        return str(self.dag_run.left["begin", "return_value"])

    def assert_done(self) -> None:
        """Ended once, by promotion; nothing was given back to the source."""
        state = self.mirrored.state
        assert [r.state for r in state.runs.values() if r.plan.mirror == self.mirrored.name] == [RunState.DONE]
        assert {s.state for s in self.mirrored.statuses.values()} == {PartitionState.STOPPED}
        assert denied(self.mirrored.pair.east, self.topic), "the fence was lifted"
        assert not denied(self.mirrored.pair.west, self.topic)


@pytest.fixture
def desk(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    from mirrorbook_airflow import approvals, runbook
    from mirrorbook_airflow.approvals import ApprovePlan
    from mirrorbook_airflow.runbook import AbortRun, BeginRun, PlanRun, RunSteps

    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    held = Held()
    services = replace(mirrored.services, copy=held.copy)
    for module in (approvals, runbook):
        monkeypatch.setattr(module, "find_mirror", lambda name: (mirrored.link, mirrored.state))
    monkeypatch.setattr(runbook, "make_services", lambda link, steps, master: services)
    common: dict[str, Any] = {"mirror": mirrored.name, "kind": RunKind.FAILOVER}
    plan = PlanRun(task_id="plan", **common)
    approve = ApprovePlan(task_id="approve", question="Fail over?", plan=plan)
    begin = BeginRun(task_id="begin", plan=plan, approvals=(approve,), **common)
    steps = {name: RunSteps(task_id=name, steps=(name,), begin=begin, **common) for name in ("prove", "fence", "drain")}
    abort = AbortRun(task_id="abort", begin=begin, steps=list(steps.values()), **common)
    made = Desk(mirrored, topic, held, DagRun(), plan, approve, begin, steps, abort)
    made.dag_run.execute(plan)
    made.dag_run.answered(approve, "ann")
    made.dag_run.execute(begin)
    return made


@contextmanager
def beside(act: Callable[[], object]) -> Iterator[Future[object]]:
    """Somebody who acts meanwhile, and has ended when the block has: see the future's exception."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(act)
        yield future
        future.exception(WAIT_S)


def test_a_task_whose_run_was_taken_over_fails_and_its_teardown_leaves_the_run_alone(desk: Desk) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    desk.take("prove", "fence")
    with beside(lambda: desk.take("drain")) as ended:
        assert desk.held.reached.wait(WAIT_S)
        assert desk.cli().drive(desk.run).state is RunState.DONE
        desk.held.go_on.set()

    assert isinstance(ended.exception(), AirflowFailException)
    assert "LostOwnership (exit code 5)" in str(ended.exception())
    assert desk.dag_run.execute(desk.abort) == "nothing to abort: all runs have ended"
    desk.assert_done()
    # Cleared afterwards, its tasks find everything done.
    assert desk.dag_run.execute(desk.begin) == desk.run
    desk.take("prove", "fence", "drain")
    desk.assert_done()


def test_the_teardown_of_a_killed_task_does_not_abort_under_the_hands_of_who_resumed(desk: Desk) -> None:
    desk.take("prove", "fence")  # and then its worker was killed: no task has said anything
    with beside(lambda: desk.cli(desk.held.copy).drive(desk.run)) as ended:
        assert desk.held.reached.wait(WAIT_S)
        said = desk.dag_run.execute(desk.abort)
        desk.held.go_on.set()

    assert said.startswith(f"{desk.mirrored.name}: not given up: ")
    assert "conducted by somebody@elsewhere" in said
    assert ended.exception() is None, "the one who resumed was fenced"
    desk.assert_done()


def test_a_task_that_is_tried_again_is_refused_while_somebody_else_conducts(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    monkeypatch.setattr(run_heartbeat, "RUN_HEARTBEAT_S", 0.2)
    desk.take("prove", "fence")  # and then its worker was killed; Airflow learns it minutes later
    with beside(lambda: desk.cli(desk.held.copy).drive(desk.run)) as ended:
        assert desk.held.reached.wait(WAIT_S)
        with pytest.raises(AirflowFailException, match="conducted by somebody@elsewhere on"):
            desk.take("drain")
        desk.held.go_on.set()

    assert ended.exception() is None, "the one who resumed was fenced"
    desk.assert_done()


def test_who_lost_the_run_to_nobody_in_particular_aborts_nothing_either(desk: Desk) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    desk.take("prove", "fence")
    with beside(lambda: desk.take("drain")) as ended:
        assert desk.held.reached.wait(WAIT_S)
        with StateWriter(desk.mirrored.config.cluster("west"), make_control_id(desk.mirrored.name)):  # and goes away
            desk.held.go_on.set()
    assert isinstance(ended.exception(), AirflowFailException)

    assert desk.dag_run.execute(desk.abort).startswith("kept: another process took a run over")

    assert desk.mirrored.state.runs[desk.run].state is RunState.RUNNING
    desk.take("drain")  # cleared: it goes on where it was
    assert desk.mirrored.state.steps[desk.run, "drain"].state is StepState.DONE
    desk.cli().abort(desk.run)


def test_a_failure_of_its_own_is_undone(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.take("prove", "fence")
    assert desk.dag_run.execute(desk.abort) == f"{desk.mirrored.name}: given up: applications may write on the source"
    assert "Nothing was begun" not in capsys.readouterr().out
    assert desk.mirrored.state.runs[desk.run].state is RunState.ABORTED
    assert not denied(desk.mirrored.pair.east, desk.topic)
    with pytest.raises(LostOwnership):
        desk.cli().abort(desk.run, only_mine=True)
    with pytest.raises(Refused, match="the run is ABORTED"):
        desk.cli().drive(desk.run)


def test_a_go_ahead_is_for_the_run_that_it_was_given(desk: Desk) -> None:
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow.approvals import GoAhead
    from mirrorbook_airflow.runbook import RunSteps

    ask = GoAhead(task_id="go_ahead", question="Now?", plan=desk.plan_task, proof=desk.steps["prove"])
    cut_over = RunSteps(
        task_id="cut_over", steps=("fence",), begin=desk.begin, go_ahead=ask, mirror=desk.mirrored.name,
        kind=RunKind.FAILOVER,
    )  # fmt: skip
    desk.take("prove")
    desk.dag_run.left["go_ahead", "return_value"] = answer("ann")  # an XCom that somebody has written
    with pytest.raises(AirflowFailException, match="1 person has to approve it, and so far nobody did"):
        desk.dag_run.execute(cut_over)
    desk.dag_run.answered(ask, "ann")
    given_up = desk.run
    desk.cli().abort(given_up)
    with pytest.raises(AirflowFailException, match=f"run {given_up} was begun by this approval and is ABORTED"):
        desk.dag_run.execute(desk.begin)  # somebody clears a task that failed
    assert not desk.mirrored.state.active_run(desk.mirrored.name)
    desk.dag_run.answered(desk.approve, "ann")  # cleared, too: it asks again
    desk.dag_run.execute(desk.begin)
    desk.take("prove")
    with pytest.raises(
        AirflowFailException, match=f"task go_ahead was answered about run {given_up}, and this is run {desk.run}"
    ):
        desk.dag_run.execute(cut_over)
    assert not denied(desk.mirrored.pair.east, desk.topic), "applications were stopped, and nobody had named the moment"
    desk.dag_run.answered(ask, "ann")
    desk.dag_run.execute(cut_over)
    assert denied(desk.mirrored.pair.east, desk.topic)
    [said] = [line for line in desk.mirrored.state.audit_lines(desk.run) if '"kind":"stop_confirmed"' in line]
    assert '"body":{"by":"ann"}' in said
    desk.cli().abort(desk.run)


def test_only_a_plan_that_says_so_stops_applications_without_a_second_question(desk: Desk) -> None:
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow.approvals import GoAhead
    from mirrorbook_airflow.runbook import RunSteps

    ask = GoAhead(task_id="go_ahead", question="Now?", plan=desk.plan_task, proof=desk.steps["prove"])
    cut_over = RunSteps(
        task_id="cut_over", steps=("fence",), begin=desk.begin, go_ahead=ask, mirror=desk.mirrored.name,
        kind=RunKind.FAILOVER,
    )  # fmt: skip
    desk.take("prove")
    assert "parameter `pause`" not in desk.plan["body"]
    desk.dag_run.pause = False  # changed after the plan was approved
    with pytest.raises(AirflowFailException, match="1 person has to approve it, and so far nobody did"):
        desk.dag_run.execute(cut_over)
    assert not denied(desk.mirrored.pair.east, desk.topic)
    desk.cli().abort(desk.run)
    desk.dag_run.name, desk.dag_run.left = "r2", {}
    desk.dag_run.execute(desk.plan_task)
    assert desk.plan["body"].startswith("**Nobody is asked again before applications are stopped**: parameter `pause`")
    desk.dag_run.answered(desk.approve, "ann")
    desk.dag_run.execute(desk.begin)
    desk.take("prove")
    assert desk.dag_run.execute(ask) is None
    desk.dag_run.execute(cut_over)
    assert denied(desk.mirrored.pair.east, desk.topic)
    desk.cli().abort(desk.run)


def test_once_applications_are_stopped_nobody_is_asked_whether_to_stop_them(desk: Desk) -> None:
    """Somebody clears `begin` of a run that failed behind its fence."""
    from mirrorbook_airflow.approvals import GoAhead
    from mirrorbook_airflow.runbook import RunSteps

    ask = GoAhead(task_id="go_ahead", question="Now?", plan=desk.plan_task, proof=desk.steps["prove"])
    cut_over = RunSteps(
        task_id="cut_over", steps=("fence", "drain"), begin=desk.begin, go_ahead=ask, mirror=desk.mirrored.name,
        kind=RunKind.FAILOVER,
    )  # fmt: skip
    desk.take("prove", "fence")
    assert desk.dag_run.execute(ask) is None
    desk.held.go_on.set()
    desk.dag_run.execute(cut_over)
    assert desk.mirrored.state.steps[desk.run, "drain"].state is StepState.DONE
    desk.cli().abort(desk.run)


def test_an_unplanned_runbook_beside_a_planned_one_goes_on_from_its_run_by_an_approval_of_its_own(desk: Desk) -> None:
    """As two groups of one DAG, which conduct in the same name."""
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow.approvals import ApprovePlan
    from mirrorbook_airflow.runbook import BeginRun, PlanRun

    desk.take("prove")
    common: dict[str, Any] = {"mirror": desk.mirrored.name, "kind": RunKind.FAILOVER, "mode": RunMode.UNPLANNED}
    plan = PlanRun(task_id="lost.plan", **common)
    approve = ApprovePlan(task_id="lost.approve", question="Fail over?", plan=plan)
    begin = BeginRun(task_id="lost.begin", plan=plan, approvals=(approve,), **common)
    desk.dag_run.execute(plan)
    with pytest.raises(AirflowFailException, match="1 person has to approve it, and so far nobody did"):
        desk.dag_run.execute(begin)
    desk.dag_run.answered(approve, "ben")
    unplanned = desk.dag_run.execute(begin)
    runs = desk.mirrored.state.runs
    assert runs[desk.run].state is RunState.SUPERSEDED
    assert (runs[unplanned].continues, runs[unplanned].approved_by) == (desk.run, "ben")
    assert desk.dag_run.execute(begin) == unplanned


def test_a_dag_run_is_green_only_where_its_run_has_ended_whatever_tasks_were_marked_as(desk: Desk) -> None:
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
    from mirrorbook_airflow.runbook import CheckEnded

    done = CheckEnded(task_id="done", mirror=desk.mirrored.name, kind=RunKind.FAILOVER, begin=desk.begin)
    desk.take("prove")
    with pytest.raises(AirflowFailException, match=r"it is RUNNING: not done: fence, drain, .*, canary, report"):
        desk.dag_run.execute(done)
    desk.cli().drive(desk.run)
    desk.dag_run.execute(done)
    desk.dag_run.left.pop(("begin", "return_value"))
    with pytest.raises(AirflowFailException, match="task begin has begun nothing"):
        desk.dag_run.execute(done)
    desk.dag_run.left.pop(("plan", "return_value"))  # a team's branch has led past all of it
    with pytest.raises(AirflowSkipException):
        desk.dag_run.execute(done)


def test_a_check_is_skipped_beside_a_run_and_red_where_nobody_goes_on_with_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose DAG was paused: the mirror is held, and would not be failed over."""
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
    from mirrorbook_airflow import operators

    monkeypatch.setattr(operators, "provide_mirror_config", lambda mirror: desk.mirrored.config.path)
    check = operators.CheckMirror(task_id="check", mirror=desk.mirrored.name)
    with pytest.raises(AirflowSkipException, match="the next check is after it"):
        desk.dag_run.execute(check)
    monkeypatch.setattr(run_outcome, "read_broker_time_ms", lambda cluster: now_ms() + 2 * 3_600_000)
    with pytest.raises(AirflowFailException, match=r"holds mirror(.|\n)* 120 minutes ago, and an approval"):
        desk.dag_run.execute(check)
    destination, name = desk.mirrored.link.destination, desk.mirrored.name
    with (
        StateWriter(destination, make_control_id(name)) as writer,
        run_heartbeat.send_heartbeats(writer, desk.run, desk.mirrored.state.runs[desk.run].conducted_by),
        pytest.raises(AirflowSkipException),
    ):
        desk.dag_run.execute(check)


def test_of_two_conductors_at_once_one_ends_the_run(desk: Desk) -> None:
    """The second takes over in the middle of a step; the first learns it at its next write."""
    first, run = desk.cli(desk.held.copy), desk.run
    with beside(lambda: first.drive(run)) as ended:
        assert desk.held.reached.wait(WAIT_S)
        second = Failover(desk.mirrored.link, desk.mirrored.services, started_by="another@elsewhere")
        assert second.drive(run).state is RunState.DONE
        desk.held.go_on.set()

    assert isinstance(ended.exception(), LostOwnership)
    desk.assert_done()
    found = desk.mirrored.state.runs[run]
    assert (found.started_by, found.conducted_by) == ("airflow mirror_failover/r1", "another@elsewhere")
    drained = desk.mirrored.state.steps[run, "drain"]
    assert (drained.state, drained.attempt) == (StepState.DONE, 2)
    assert [r for r in read_all(desk.mirrored.pair.west, desk.topic) if r.value != b"x"] == [
        r for r in read_all(desk.mirrored.pair.east, desk.topic) if r.value != b"x"
    ]


def test_a_second_run_and_a_step_that_is_done_take_nothing_from_the_conductor_at_work(desk: Desk) -> None:
    first, run = desk.cli(desk.held.copy), desk.run
    with beside(lambda: first.drive(run)) as ended:
        assert desk.held.reached.wait(WAIT_S)
        with pytest.raises(Refused, match="holds mirror"):
            desk.cli().begin("0123456789ab")
        assert desk.cli().run_step(run, "prove").attempt == 1
        desk.held.go_on.set()
    assert ended.exception() is None
    desk.assert_done()


def test_a_finished_run_that_a_failback_has_ended_does_nothing_and_tells_of_nothing(desk: Desk) -> None:
    """Somebody clears its tasks, or writes its id as what `begin` has left: weeks later nothing may be green."""
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow.runbook import AnnounceStep, RunSteps

    common: dict[str, Any] = {"begin": desk.begin, "mirror": desk.mirrored.name, "kind": RunKind.FAILOVER}
    cut_over = RunSteps(task_id="cut_over", steps=("fence", "drain"), **common)
    switch = AnnounceStep(task_id="switch", step="switch", steps=("switch",), **common)
    told = list[str]()

    switch.emit = lambda link, state, run, context: told.append(run)
    desk.held.go_on.set()
    first = desk.run
    assert desk.cli().drive(first).state is RunState.DONE
    assert desk.dag_run.execute(desk.begin) == first, "it is found done, as long as it is in effect"
    desk.dag_run.execute(cut_over)
    desk.dag_run.execute(switch)
    assert told == [first]

    failback = Failback(desk.mirrored.link, desk.mirrored.services, started_by="test")
    home = failback.begin(failback.plan().hash)
    failback.drive(home.id)
    go_home(failback, home.id)
    for task in (cut_over, switch):
        with pytest.raises(AirflowFailException, match=f"run {first} has ended"):
            desk.dag_run.execute(task)
    with pytest.raises(AirflowFailException, match=f"run {first} was begun by this approval and is DONE"):
        desk.dag_run.execute(desk.begin)
    desk.dag_run.execute(desk.plan_task)
    with pytest.raises(AirflowFailException, match="so far nobody did"):
        desk.dag_run.execute(desk.begin)
    desk.dag_run.answered(desk.approve, "ann")
    again = desk.dag_run.execute(desk.begin)
    assert again != first, "what was approved anew is begun anew"
    desk.cli().abort(again)
    desk.dag_run.left["begin", "return_value"] = first
    with pytest.raises(AirflowFailException, match=f"run {first} has ended"):
        desk.dag_run.execute(switch)
    assert told == [first]


def test_a_run_that_somebody_else_has_begun_is_none_of_this_dag_runs(desk: Desk) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    theirs = desk.run
    desk.dag_run = replace(desk.dag_run, name="r2")
    with pytest.raises(AirflowFailException, match=f"mirror_failover/r1 has begun run {theirs}"):
        desk.take("prove")
    assert (theirs, "prove") not in desk.mirrored.state.steps
    desk.cli().abort(theirs)
