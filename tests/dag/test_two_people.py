"""A deployment that wants two people to approve a plan: another task asks, and the first one is turned down there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from mirror_core.decide.approval_rules import ApprovalPolicy, make_approval
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.run import Approval, RunKind
from mirror_core.model.run_checkpoints import RecordedApproval
from mirror_core.model.timing import now_ms
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.set_failover import SetFailover
from mirror_core.state import approvals
from mirror_core.state.state_records import State
from tests.dag.answering import answer, answer_question, record_in
from tests.dag.conftest import DAGS
from tests.support.cluster_names import LINK
from tests.support.dag_params import APPROVED
from tests.support.mirror_views import RUN
from tests.support.sentences import format_sentence

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag

pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore")]  # warnings of Airflow are not ours to mend

PLAN: Any = {"hash": "0" * 64, "body": "the plan"}
OTHER = "1" * 64


@dataclass(slots=True)
class Desk:
    """Tasks of one DAG run about mirror `a`, and what is recorded in the state topic."""

    state: State
    plan: Any
    first: Any
    second: Any
    left: dict[str, Any] = field(default_factory=dict)

    @property
    def context(self) -> Any:
        run = SimpleNamespace(dag_id="mirror_failover", run_id="r1", triggering_user_name="ann")
        ti = SimpleNamespace(
            xcom_pull=lambda task_ids, key="return_value": self.left.get(task_ids) if key == "return_value" else None,
            xcom_push=lambda key, value: None,
        )
        return {"ti": ti, "dag_run": run, "params": {"master": "local[*]"}}

    def answered(self, task: Any, person: str) -> Any:
        return answer_question(task, self.context, person)

    def shown(self, plan: Any = PLAN) -> None:
        """The task that plans has run."""
        from mirrorbook_airflow.approvals import record_shown_plan

        self.left["plan"] = plan
        record_shown_plan(self.context, "plan", [(LINK, self.state)], plan["hash"], plan["body"])

    @property
    def recorded(self) -> tuple[RecordedApproval, ...]:
        return approvals.find_approvals(self.state, LINK.mirror.name, "mirror_failover/r1/plan")

    def begin(self, people: int = 2) -> Any:
        from mirrorbook_airflow.runbook import BeginRun

        asked = (self.first, self.second)[:people]
        return BeginRun(task_id="begin", mirror="m", kind=RunKind.FAILOVER, plan=self.plan, approvals=asked)


@pytest.fixture
def desk(airflow_database: None, monkeypatch: pytest.MonkeyPatch) -> Desk:
    from airflow.providers.standard.operators.empty import EmptyOperator
    from mirrorbook_airflow import approvals, runbook
    from mirrorbook_airflow.approvals import ApprovePlan, ApproveSecond

    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__APPROVERS", "ann ben")
    state = State()
    record_in(state, monkeypatch)
    for module in (approvals, runbook):
        monkeypatch.setattr(module, "find_mirror", lambda name: (LINK, state))
    plan = EmptyOperator(task_id="plan")
    first = ApprovePlan(task_id="approve", question="Fail over?", plan=plan)
    second = ApproveSecond(task_id="approve_second", question="Fail over?", plan=plan, first=first)
    made = Desk(state, plan, first, second)
    made.shown()
    return made


def test_the_second_question_is_there_where_two_people_are_wanted_and_only_there(
    dag_bag: DagBag, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__TWO_PEOPLE", "true")
    strict = DagBag(str(DAGS))
    assert strict.import_errors == {}
    for name in APPROVED:
        assert not [task for task in dag_bag.dags[name].tasks if task.task_id.endswith("approve_second")]
        for group in ("", "home.") if name == "mirror_failback" else ("",):
            dag = strict.dags[name]
            asks, begins = dag.get_task(f"{group}approve_second"), dag.get_task(f"{group}begin")
            assert asks.upstream_task_ids == {f"{group}approve"}
            assert begins.upstream_task_ids == {f"{group}approve_second"}
            assert vars(asks)["body"] == vars(dag.get_task(f"{group}approve"))["body"], "the same plan"


def test_the_first_person_is_not_among_those_who_are_asked_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.standard.operators import hitl
    from mirrorbook_airflow import approvals
    from mirrorbook_airflow.approvals import AwaitAnswer

    desk.answered(desk.first, "ann")
    asked: list[list[Mapping[str, str]]] = []
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **fields: asked.append(fields["assigned_users"]))
    monkeypatch.setattr(approvals, "fetch_displayed_question", lambda asks, context: (asks.subject, asks.body or ""))
    desk.second.body = PLAN["body"]
    with pytest.raises(AwaitAnswer) as asking:
        desk.second.execute({**desk.context, "task_instance": SimpleNamespace(id="t1")})
    assert asked == [[{"id": "ben", "name": "ben"}]]
    assert asking.value.kwargs == {"approves": PLAN["hash"]}, "no XCom tells what is approved"


def test_a_plan_whose_run_was_begun_and_goes_on_is_not_asked_about_again(desk: Desk) -> None:
    """A no would end nothing, and say that nothing was done."""
    from airflow.sdk.exceptions import AirflowFailException

    desk.answered(desk.first, "ann")
    approvals = tuple(one.approval for one in desk.recorded)
    begun = replace(RUN, plan=replace(RUN.plan, mirror=LINK.mirror.name), approvals=approvals)
    desk.state.put(begun)
    with pytest.raises(AirflowFailException, match=f"run {begun.id} was begun by it and has not ended"):
        answer_question(desk.first, desk.context, "ben", "Reject")
    assert [one.approval.name for one in desk.recorded] == ["ann"]
    desk.state.put(replace(begun, approvals=()))
    with pytest.raises(AirflowFailException, match="rejected by ben: nothing was done"):
        answer_question(desk.first, desk.context, "ben", "Reject")


def test_where_nobody_else_may_approve_the_task_is_red_at_once(desk: Desk) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    desk.answered(desk.first, "ann")
    desk.second.assigned_users = desk.second.assigned_users[:1]
    with pytest.raises(AirflowFailException, match="nobody but ann may approve here: nothing was done"):
        desk.answered(desk.second, "ben")


def test_the_same_person_twice_is_refused_and_two_people_are_not(desk: Desk) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    desk.answered(desk.first, "ann")
    with pytest.raises(AirflowFailException, match="ann has approved it already"):
        desk.answered(desk.second, "ann")
    assert [one.task for one in desk.recorded] == ["approve"], "what was refused is no approval"
    assert desk.answered(desk.second, "ben")["responded_by_user"]["name"] == "ben"
    assert [(one.approval.name, one.approves) for one in desk.recorded] == [
        ("ann", PLAN["hash"]),
        ("ben", PLAN["hash"]),
    ]


@pytest.mark.parametrize("answered", [answer("eve"), {**answer("ann"), "responded_by_user": None}])
def test_an_answer_of_somebody_else_or_of_nobody_is_no_approval(desk: Desk, answered: dict[str, Any]) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match="nothing was done"):
        desk.first.execute_complete(desk.context, answered, approves=PLAN["hash"])
    assert not desk.recorded


def test_what_is_shown_is_what_was_planned(desk: Desk) -> None:
    """Airflow lets users write XComs: one that shows a harmless plan asks nobody."""
    from airflow.sdk.exceptions import AirflowFailException

    desk.left["plan"] = {**PLAN, "body": "nothing happens"}
    with pytest.raises(AirflowFailException, match="what is shown is not what task plan has made"):
        desk.answered(desk.first, "ann")
    desk.state.checkpoints.clear()
    with pytest.raises(AirflowFailException, match="its plan is not in the state topic"):
        desk.answered(desk.first, "ann")
    desk.left["plan"] = {**PLAN, "hash": ""}
    assert desk.answered(desk.first, "ann") is None
    assert not desk.recorded


@pytest.mark.parametrize("people", [1, 2])
@pytest.mark.parametrize("forged", [{}, {"approve": answer("ann")}, {"approve_second": answer("ben")}])
def test_a_question_that_was_marked_as_answered_by_hand_is_no_approval(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, forged: dict[str, Any], people: int
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    begun = _conductor(desk, monkeypatch)
    desk.left |= forged
    with pytest.raises(AirflowFailException, match=f"{people} (person has|people have) to approve it, and so far no"):
        desk.begin(people).execute(desk.context)
    desk.answered(desk.first, "ann")
    desk.left |= {"approve_second": answer("ben")}
    if people == 2:
        with pytest.raises(AirflowFailException, match="2 people have to approve it, and so far ann did"):
            desk.begin().execute(desk.context)
        desk.answered(desk.second, "ben")
    assert desk.begin(people).execute(desk.context) == "r1"
    assert [[one.name for one in approvals] for approvals in begun] == [["ann", "ben"][:people]]


@pytest.mark.parametrize("people", [1, 2])
def test_a_begin_that_is_cleared_days_later_begins_nothing_by_the_old_approval(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, people: int
) -> None:
    """A set begins by the same look at its approvals."""
    from airflow.sdk.exceptions import AirflowFailException

    begun, now = _conductor(desk, monkeypatch), now_ms()

    def answered(age: timedelta, approves: str = PLAN["hash"]) -> None:
        for task, person in (("approve", "ann"), ("approve_second", "ben"))[:people]:
            at_ms = now - round(age.total_seconds() * 1000)
            approval = make_approval(f"mirror_failover/r1/{task}/{at_ms}", person, person, at_ms)
            question = "mirror_failover/r1/plan"
            recorded = RecordedApproval(question=question, task=task, approves=approves, approval=approval)
            approvals.record_approval(LINK.destination, LINK.mirror.name, recorded)

    answered(timedelta(0), OTHER)
    with pytest.raises(AirflowFailException, match="task approve was answered about plan 111111111111, and this is pl"):
        desk.begin(people).execute(desk.context)
    answered(timedelta(days=2))
    with pytest.raises(AirflowFailException, match="approved it 2880 minutes ago, and an approval holds for 60"):
        desk.begin(people).execute(desk.context)
    answered(timedelta(minutes=50))
    assert desk.begin(people).execute(desk.context) == "r1"
    assert len(begun) == 1


def _conductor(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Approval]]:
    """The core's, up to what it would write; the approvals that runs are begun by."""
    from mirrorbook_airflow import runbook

    begun: list[Sequence[Approval]] = []
    failover = Failover(LINK, cast("Any", None), started_by="airflow mirror_failover/r1 by ann")

    def begin(plan_hash: str, choice: object, *, approved_by: ApprovalPolicy, part_of: None, silent: bool) -> Any:
        begun.append(cast("Any", failover)._check_approvals(desk.state, approved_by, plan_hash, part_of=None))
        return SimpleNamespace(id="r1")

    engine: Any = SimpleNamespace(link=LINK, begin=begin, find_run_to_resume=lambda plan_hash, mode: None)
    alone = SetFailover(MirrorSet("", (LINK.mirror.name,)), {LINK.mirror.name: engine}, print_line=print)
    monkeypatch.setattr(runbook.RunOperator, "make_conductor", lambda self, context: alone)
    return begun


FAB, KEYCLOAK = "airflow.providers.fab.FabAuthManager", "airflow.providers.keycloak.KeycloakAuthManager"
SIMPLE = "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"
SOMEBODY = "0b7d6b9e-8d5a-4e57-9d0e-2f1a4c6b8e90"


@pytest.mark.parametrize(
    ("manager", "ids", "wrong"),
    [
        (FAB, "1 27", []),
        (FAB, "ann 2", [format_sentence("approvers_no_id_of_manager", "ann")]),
        (KEYCLOAK, SOMEBODY, []),
        (KEYCLOAK, "ann", ["APPROVERS names 'ann', which is no id of Keycloak: those are UUIDs"]),
        (SIMPLE, "ann ben", []),
        (SIMPLE, "ann 1", ["APPROVERS names '1', which is no user in [core] simple_auth_manager_users"]),
        ("our.own.AuthManager", "ann", []),
        (FAB, "", []),
    ],
)
def test_approvers_are_ids_that_the_auth_manager_gives(
    monkeypatch: pytest.MonkeyPatch, manager: str, ids: str, wrong: list[str]
) -> None:
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow.approvals import CheckApprovers
    from mirrorbook_airflow.params import explain_wrong_approvers

    monkeypatch.setenv("AIRFLOW__CORE__AUTH_MANAGER", manager)
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "ann:admin, ben:user")
    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__APPROVERS", ids)
    assert explain_wrong_approvers() == wrong
    task, context = CheckApprovers(task_id="approvers"), cast("Any", {})
    if wrong:
        with pytest.raises(AirflowFailException, match="APPROVERS names"):
            task.execute(context)
    else:
        task.execute(context)


def test_two_people_are_two_approvers(monkeypatch: pytest.MonkeyPatch) -> None:
    from mirrorbook_airflow.params import explain_wrong_approvers

    monkeypatch.setenv("AIRFLOW__CORE__AUTH_MANAGER", FAB)
    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__TWO_PEOPLE", "true")
    for ids, wrong in (("1", 1), ("1 1", 1), ("1 2", 0), ("", 0)):
        monkeypatch.setenv("AIRFLOW__MIRRORBOOK__APPROVERS", ids)
        assert len(explain_wrong_approvers()) == wrong
