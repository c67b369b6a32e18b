"""What Airflow does about a task that asks: it stops, a person answers, it goes on with Airflow's record of that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.model.names import MirrorName
from mirror_core.model.run_checkpoints import RecordedApproval, ShownPlan
from mirror_core.state import approvals, mirror_link
from mirror_core.state.journal import make_checkpoint
from mirror_core.state.state_records import State, Tombstone

Answer = dict[str, Any]


def answer(person: str, choice: str = "Approve") -> Answer:
    """As the API server hands it on."""
    return {
        "chosen_options": [choice],
        "params_input": {},
        "responded_at": datetime.now(UTC),
        "responded_by_user": {"id": person, "name": person},
        "timedout": False,
    }


def answer_question(task: Any, context: Any, person: str, choice: str = "Approve") -> Any:
    """What the task leaves when this person has answered; None where it asks nothing. Its templates are rendered."""
    from airflow.providers.standard.operators import hitl
    from mirrorbook_airflow import approvals
    from mirrorbook_airflow.approvals import AwaitAnswer, GoAhead

    plan = context["ti"].xcom_pull(task_ids=task.plan_task)
    if not isinstance(task, GoAhead):
        task.body = plan["body"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hitl, "upsert_hitl_detail", lambda **fields: None)
        patched.setattr(approvals, "fetch_displayed_question", lambda asks, context: (asks.subject, asks.body or ""))
        try:
            return task.execute({**context, "task_instance": SimpleNamespace(id="t1")})
        except AwaitAnswer as asking:
            return task.execute_complete(context, answer(person, choice), **(asking.kwargs or {}))


@contextmanager
def answered_by(person: str) -> Iterator[None]:
    """Whatever a DAG asks, which runs in this process, this person approves."""
    from mirrorbook_airflow.approvals import ApprovePlan

    ask = ApprovePlan.execute

    def execute(task: ApprovePlan, context: Any) -> Any:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ApprovePlan, "execute", ask)
            return answer_question(task, context, person)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ApprovePlan, "execute", execute)
        yield


def record_in(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no broker is: what tasks record stands in this state."""

    def plan(cluster: object, before: State, mirror: MirrorName, shown: ShownPlan) -> None:
        state.put(make_checkpoint(mirror, f"shown-{shown.question.replace('/', '-')}", shown))

    def approval(cluster: object, mirror: MirrorName, given: RecordedApproval) -> None:
        state.put(make_checkpoint(mirror, f"given-{given.question.replace('/', '-')}-{given.task}", given))

    def use_up(cluster: object, before: State, mirror: MirrorName, question: str) -> None:
        for given in approvals.find_approvals(state, mirror, question):
            state.put(Tombstone(make_checkpoint(mirror, f"given-{question.replace('/', '-')}-{given.task}", given)))

    def withdraw(cluster: object, before: State, mirror: MirrorName, question: str, task: str) -> None:
        for given in approvals.find_approvals(state, mirror, question):
            if given.task == task:
                state.put(Tombstone(make_checkpoint(mirror, f"given-{question.replace('/', '-')}-{task}", given)))

    monkeypatch.setattr(approvals, "use_up_approvals", use_up, raising=False)
    monkeypatch.setattr(approvals, "withdraw_approval", withdraw)
    monkeypatch.setattr(approvals, "record_plan", plan)
    monkeypatch.setattr(approvals, "record_approval", approval)
    monkeypatch.setattr(mirror_link, "measure_clock_ahead_ms", lambda cluster, timeout_s: None)
