"""Notifiers of a deployment: told of red runs and of questions, and no failover waits for one that is broken."""

from __future__ import annotations

import asyncio
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from mirror_core.model.errors import BadRequest
from tests.dag.conftest import DAGS

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag

pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore")]  # warnings of Airflow are not ours to mend

OURS = """
from airflow.sdk import BaseNotifier

told = []
owners = []

class Pager(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, text):
        super().__init__()
        self.text = text

    def notify(self, context):
        told.append((self.text, context["what"]))
        owners.append(context["mirror_owners"])

by_reason = Pager("{{ dag.dag_id }}, {{ dag_run.run_id }}: {{ reason }}")
by_reason.notify = lambda context: told.append(by_reason.text)

on_call = Pager("run {{ what }}")

def broken(context):
    raise OSError("the pager is down")
"""


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, airflow_database: None) -> Any:
    (tmp_path / "our_notifiers.py").write_text(OURS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__NOTIFY", "our_notifiers:broken our_notifiers:on_call nowhere:at_all")
    yield "our_notifiers"
    sys.modules.pop("our_notifiers", None)


@contextmanager
def named(document: dict[str, Any]) -> Iterator[None]:
    """A mirrors.yaml that says this."""
    from mirrorbook_airflow.hooks import get_home_folder

    file = get_home_folder("config").parent / "mirrors.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    try:
        yield
    finally:
        file.unlink()


def test_nobody_is_told_where_nobody_is_named(dag_bag: DagBag) -> None:
    assert {dag.on_failure_callback for dag in dag_bag.dags.values()} == {None}


def test_every_red_run_and_every_question_is_told_of(ours: str) -> None:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.providers.standard.operators.hitl import ApprovalOperator
    from airflow.serialization.serialized_objects import DagSerialization

    bag = DagBag(str(DAGS))
    assert bag.import_errors == {}
    assert ours not in sys.modules, "imported whenever DAGs are read"
    dags: list[Any] = [*bag.dags.values()]
    asking = [task for dag in dags for task in dag.tasks if isinstance(task, ApprovalOperator)]
    calls = [dag.on_failure_callback for dag in dags] + [task.notifiers for task in asking]
    assert len(calls) > 18
    for call in calls:
        assert [one.name for one in call] == [f"{ours}:broken", f"{ours}:on_call", "nowhere:at_all"]
    for dag in dags:
        DagSerialization.to_dict(dag)

    for notifier in calls[0]:
        notifier({"dag": None, "what": "red"})

    assert sys.modules[ours].told == [("run red", "red")]


@pytest.mark.parametrize(
    ("about", "owners"),
    [
        ({"params": {"mirror": "orders"}}, {"orders": "ann"}),
        ({"params": {"mirror": "other"}}, {}),
        ({"params": {"mirrors": ["orders-back", "other"]}}, {"orders-back": "ann"}),
        ({"params": {"mirrors": []}}, {"orders": "ann", "bills": "bob"}),
        ({"params": {"set": "shop"}}, {"bills": "bob"}),
        ({"params": {"set": "no such set"}}, {}),
        ({"dag_run": SimpleNamespace(conf={"mirror": "bills"})}, {"bills": "bob"}),
    ],
)
def test_whoever_is_told_learns_whom_to_call(ours: str, about: dict[str, Any], owners: dict[str, str]) -> None:
    from mirrorbook_airflow.notifications import NamedNotifier

    with named(
        {
            "mirrors": {"orders": {"owner": "ann"}, "bills": {"owner": "bob"}, "other": {"switch": []}},
            "sets": {"shop": {"mirrors": ["bills", "other"]}},
        }
    ):
        context: Any = {"what": "red", **about}
        NamedNotifier(f"{ours}:on_call").notify(context)
    assert sys.modules[ours].owners == [owners]


@pytest.mark.parametrize(
    ("about", "owners"),
    [
        ({}, {"bills": "bob"}),
        ({"params": {"mirrors": []}}, {"bills": "bob"}),
        ({"params": {"mirror": "orders"}}, {"orders": "ann"}),
        (
            {"params": {"pause": True}, "task": SimpleNamespace(mirror="orders-back", set_name="")},
            {"orders-back": "ann"},
        ),
        ({"task": SimpleNamespace(mirror="", set_name="shop")}, {"bills": "bob"}),
    ],
)
def test_a_dag_of_one_mirror_names_its_owner_only(ours: str, about: dict[str, Any], owners: dict[str, str]) -> None:
    from mirrorbook_airflow.notifications import NamedNotifier

    with named(
        {
            "mirrors": {"orders": {"owner": "ann"}, "bills": {"owner": "bob"}},
            "sets": {"shop": {"mirrors": ["bills"]}},
        }
    ):
        context: Any = {"what": "red", **about}
        NamedNotifier(f"{ours}:on_call", {"mirrors": ["bills", "bills-back"]}).notify(context)
    [told] = sys.modules[ours].owners
    assert {name: owner for name, owner in told.items() if name != "bills-back"} == owners


def test_a_mistake_about_owners_keeps_nobody_from_being_told(ours: str, capsys: pytest.CaptureFixture[str]) -> None:
    from mirrorbook_airflow.notifications import NamedNotifier

    with named({"mirrors": {"orders": {"owner": 7}}}):
        context: Any = {"what": "red", "params": {"mirror": "orders"}}
        NamedNotifier(f"{ours}:on_call").notify(context)
    assert (sys.modules[ours].told, sys.modules[ours].owners) == ([("run red", "red")], [{}])
    said = capsys.readouterr().out
    assert "the owners cannot be read: mirrors.yaml: mirrors.orders.owner: must be whom to call" in said
    assert "Traceback" not in said


def test_a_failover_that_has_not_ended_in_time_is_told_of(ours: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.serialization.serialized_objects import DagSerialization

    dags: dict[str, Any] = {**DagBag(str(DAGS)).dags}
    assert {dag.deadline for dag in dags.values()} == {None}
    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__DEADLINE_S", "900")
    bag = DagBag(str(DAGS))
    assert bag.import_errors == {}
    dags = {**bag.dags}
    late = {name for name, dag in dags.items() if dag.deadline}
    assert late == {name for name in dags if name.startswith("mirror_failover")}
    for name in late:
        DagSerialization.to_dict(dags[name])
        [deadline] = dags[name].deadline
        assert deadline.interval.total_seconds() == 900
    monkeypatch.delenv("AIRFLOW__MIRRORBOOK__NOTIFY")
    assert {dag.deadline for dag in DagBag(str(DAGS)).dags.values()} == {None}, "nobody is there to be told"

    path = deadline.callback.path
    tell, kwargs = pkgutil.resolve_name(path), deadline.callback.kwargs
    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__NOTIFY", f"{ours}:broken {ours}:by_reason")
    for run_id, state in (("r1", "running"), ("r2", "failed"), ("r3", "success")):
        run = {"dag_id": "mirror_failover", "run_id": run_id, "state": state}
        asyncio.run(tell(context={"dag_run": run, "deadline": {}}, **kwargs))
    assert sys.modules[ours].told == ["mirror_failover, r1: not done 900 s after it was asked for"]


@pytest.mark.parametrize("given", ["soon", "nan", "inf", "-5", "1e300"])
def test_a_time_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    from mirrorbook_airflow.params import read_deadline_s

    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__DEADLINE_S", given)
    with pytest.raises(BadRequest, match=f"deadline_s is '{given}': it must be seconds"):
        read_deadline_s()


def test_a_question_is_asked_although_the_pager_is_down(ours: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.standard.operators import hitl
    from airflow.providers.standard.operators.empty import EmptyOperator
    from mirrorbook_airflow import approvals
    from mirrorbook_airflow.approvals import ApprovePlan, AwaitAnswer

    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **fields: None)
    monkeypatch.setattr(ApprovePlan, "check_displayed_plan", lambda self, context: "0123456789ab")
    monkeypatch.setattr(approvals, "fetch_displayed_question", lambda asks, context: (asks.subject, asks.body or ""))
    monkeypatch.setattr(ApprovePlan, "read_states", lambda self, context: [])
    asked = ApprovePlan(task_id="approve", question="Fail over?", plan=EmptyOperator(task_id="plan"))
    ti = SimpleNamespace(xcom_pull=lambda task_ids: {"hash": "0123456789ab"}, xcom_push=lambda key, value: None)
    run = SimpleNamespace(dag_id="mirror_failover", run_id="r1")
    context: Any = {"ti": ti, "task_instance": SimpleNamespace(id="t1"), "dag_run": run, "what": "question"}
    with pytest.raises(AwaitAnswer):
        asked.execute(context)
    assert sys.modules[ours].told == [("run question", "question")]
