"""A deployment that wants two people to approve a plan: another task asks, and the first one is turned down there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mirror_core.model.run import Approval, RunKind
from tests.dag.conftest import DAGS
from tests.dag.test_structure import APPROVED

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag

pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore")]  # warnings of Airflow are not ours to mend

Answer = dict[str, Any]


def answer(person: str, choice: str = "Approve") -> Answer:
    """As Airflow hands it on."""
    return {
        "chosen_options": [choice],
        "params_input": {},
        "responded_at": datetime.now(UTC),
        "responded_by_user": {"id": person, "name": person},
    }


def context(**left: Answer) -> Any:
    """What a task gets from Airflow, where these tasks have left their answers. `about`: the plan that they were shown,
    if it is not the one that is there now."""

    def pull(task_ids: str, key: str = "return_value") -> object:
        if key == "asked_about":
            return (left.get("about") or left["plan"])["hash"]
        return left.get(task_ids) if key == "return_value" else None

    run = SimpleNamespace(dag_id="mirror_failover", run_id="r1", triggering_user_name="ann")
    ti = SimpleNamespace(xcom_pull=pull, xcom_push=lambda key, value: None)
    return {"ti": ti, "dag_run": run, "params": {"master": "local[*]"}}


@pytest.fixture
def second(airflow_database: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    from airflow.providers.standard.operators.empty import EmptyOperator
    from mirrorbook_airflow.approving import ApproveSecond

    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__APPROVERS", "ann ben")
    plan, first = EmptyOperator(task_id="plan"), EmptyOperator(task_id="approve")
    return ApproveSecond(task_id="approve_second", question="Fail over?", plan=plan, first=first)


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


def test_the_first_person_is_not_among_those_who_are_asked_again(second: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.standard.operators import hitl
    from airflow.sdk.exceptions import TaskAwaitingInput

    asked: list[list[Mapping[str, str]]] = []
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **fields: asked.append(fields["assigned_users"]))
    given = context(approve=answer("ann"), plan={"hash": "0123456789ab"})
    with pytest.raises(TaskAwaitingInput):
        second.execute({**given, "task_instance": SimpleNamespace(id="t1")})
    assert asked == [[{"id": "ben", "name": "ben"}]]


def test_where_nobody_else_may_approve_the_task_is_red_at_once(second: Any) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    second.assigned_users = second.assigned_users[:1]
    with pytest.raises(AirflowFailException, match="nobody but ann may approve here: nothing was done"):
        second.execute(context(approve=answer("ann")))


def test_the_same_person_twice_is_refused_and_two_people_are_not(second: Any) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    given = context(approve=answer("ann"))
    with pytest.raises(AirflowFailException, match=r"ann has approved it already.*: nothing was done"):
        second.execute_complete(given, answer("ann"))
    assert second.execute_complete(given, answer("ben"))["responded_by_user"]["name"] == "ben"


@pytest.mark.parametrize("left", [{}, {"approve": answer("ann")}, {"approve_second": answer("ben")}])
def test_a_question_that_was_marked_as_answered_by_hand_is_no_approval(
    second: Any, monkeypatch: pytest.MonkeyPatch, left: dict[str, Answer]
) -> None:
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow import runbook

    monkeypatch.setattr(runbook, "find_mirror", lambda name: (None, SimpleNamespace(runs={})))
    monkeypatch.setattr(runbook.RunOperator, "engine", lambda self, context: None)
    begin = runbook.BeginRun(
        task_id="begin",
        mirror="orders",
        kind=RunKind.FAILOVER,
        plan=EmptyOperator(task_id="plan"),
        approvals=(EmptyOperator(task_id="approve"), second),
    )
    plan: Any = {"hash": "0123456789ab"}
    with pytest.raises(AirflowFailException, match="2 people have to approve it"):
        begin.execute(context(plan=plan, **left))


@pytest.mark.parametrize("people", [1, 2])
def test_a_begin_that_is_cleared_days_later_begins_nothing_by_the_old_approval(
    second: Any, monkeypatch: pytest.MonkeyPatch, people: int
) -> None:
    """A set begins by the same look at its approvals."""
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow import runbook

    begun: list[Sequence[Approval]] = []

    def begin_run(wanted: str, choice: object, *, approved_by: Sequence[Approval], silent: bool) -> Any:
        begun.append(approved_by)
        return SimpleNamespace(id="r1")

    monkeypatch.setattr(runbook, "find_mirror", lambda name: (None, SimpleNamespace(runs={})))
    monkeypatch.setattr(runbook.RunOperator, "engine", lambda self, context: SimpleNamespace(begin=begin_run))
    begin = runbook.BeginRun(
        task_id="begin",
        mirror="orders",
        kind=RunKind.FAILOVER,
        plan=EmptyOperator(task_id="plan"),
        approvals=(EmptyOperator(task_id="approve"), second)[:people],
    )
    plan: Any = {"hash": "0123456789ab"}
    now = datetime.now(UTC)

    def given(age: timedelta) -> Any:
        left = {"approve": answer("ann"), "approve_second": answer("ben")}
        return context(plan=plan, **{task: {**one, "responded_at": now - age} for task, one in left.items()})

    with pytest.raises(AirflowFailException, match="task approve was answered about plan ba9876543210, and this is 01"):
        begin.execute(
            context(about={"hash": "ba9876543210"}, plan=plan, approve=answer("ann"), approve_second=answer("ben"))
        )
    assert begin.execute(given(timedelta(minutes=50))) == "r1"
    with pytest.raises(AirflowFailException, match="approved it 2880 minutes ago, and an approval holds for 60"):
        begin.execute(given(timedelta(days=2)))
    assert len(begun) == 1
