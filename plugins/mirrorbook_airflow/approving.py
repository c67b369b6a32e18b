"""Tasks that ask a person, and what is known of who answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.standard.exceptions import HITLRejectException
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import AirflowFailException

from mirror_core.decide.approvals import HOLDS_S, given, stale, unmet
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import Refused
from mirror_core.model.run import Approval
from mirror_core.model.text import visible
from mirrorbook_airflow.notifying import notifiers
from mirrorbook_airflow.operators import TASK_DEFAULTS
from mirrorbook_airflow.params import approvers

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

APPROVAL_TIMEOUT: Final = timedelta(seconds=HOLDS_S)
"""A plan that nobody has approved for so long counts as rejected."""
ASKED_OF: Final = "asked_of"
"""XCom of a question: the run that it was about."""
ASKED_ABOUT: Final = "asked_about"
"""XCom of a question: the hash of the plan that it showed."""


class ApprovePlan(ApprovalOperator):
    """Ask a person. Nothing has been done so far, and a Reject, also by silence, leaves everything as it is.

    Airflow 3.3 may lose an answer that comes while its scheduler is busy, and fail the task: then it asks again.
    """

    def __init__(self, *, question: str, plan: BaseOperator, **kwargs: Any) -> None:
        pulled = f"ti.xcom_pull(task_ids='{plan.task_id}')"
        super().__init__(
            subject=f"{question} Plan {{{{ {pulled}['hash'] }}}}",
            body=f"{{{{ {pulled}['body'] }}}}",
            defaults=[self.REJECT],
            fail_on_reject=True,
            response_timeout=APPROVAL_TIMEOUT,
            assigned_users=approvers(),
            notifiers=notifiers(),
            **{**TASK_DEFAULTS, **kwargs},
        )
        self.plan_task = plan.task_id

    def execute(self, context: Context) -> Any:
        # The plan's task may be cleared later without this one, and this one's answer stays.
        context["ti"].xcom_push(key=ASKED_ABOUT, value=context["ti"].xcom_pull(task_ids=self.plan_task)["hash"])
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        try:
            return super().execute_complete(context, event)
        except HITLRejectException:
            answer = f"rejected by {name_of(event)}"
            if event.get("timedout"):
                answer = f"nobody answered by {datetime.now(UTC):%H:%M} UTC"
            # A no is never asked about again.
            raise AirflowFailException(f"{answer}: {self.left_as_is()}") from None

    def left_as_is(self) -> str:
        """What a run has done that goes no further than this question."""
        before = self.get_flat_relatives(upstream=True)
        if all(isinstance(task, ApprovePlan) or task.task_id == self.plan_task for task in before):
            return "nothing was done"
        return "applications were not moved; what was done before stands in the logs of the run's last tasks"


class ApproveSecond(ApprovePlan):
    """Ask another person about the same plan. Whoever approved it first can't do so again: red, and nothing is done."""

    def __init__(self, *, question: str, plan: BaseOperator, first: BaseOperator, **kwargs: Any) -> None:
        super().__init__(question=f"{question} (a second person)", plan=plan, **kwargs)
        self.first_task = first.task_id

    def execute(self, context: Context) -> Any:
        first = approvals(context, (self.first_task,))
        if self.assigned_users:  # Airflow itself turns everybody else down
            known = {name for one in first for name in (one.id, one.name)}
            self.assigned_users = [user for user in self.assigned_users if user["id"] not in known]
            if not self.assigned_users:
                raise AirflowFailException(f"nobody but {first[0].name} may approve here: {self.left_as_is()}")
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        answer = super().execute_complete(context, event)
        reasons = unmet((*approvals(context, (self.first_task,)), *_approval(context, self.task_id, answer)), 2)
        if reasons:
            raise AirflowFailException(f"{'; '.join(reasons)}: {self.left_as_is()}")
        return answer


class GoAhead(ApprovePlan):
    """Ask once more, at the moment: all is proved, and applications stop now. Not where the run was told not to."""

    def __init__(self, *, question: str, plan: BaseOperator, proof: BaseOperator, **kwargs: Any) -> None:
        super().__init__(question=question, plan=plan, **kwargs)
        self.proof_task = proof.task_id
        pulled = f"ti.xcom_pull(task_ids='{proof.task_id}')"
        self.body = f"{{{{ {pulled}['said'] }}}}"

    def execute(self, context: Context) -> Any:
        if not context["params"]["pause"]:
            self.log.info("not asked: parameter `pause` is off")
            return None
        # A task that is cleared later begins another run, and this one's answer stays.
        context["ti"].xcom_push(key=ASKED_OF, value=context["ti"].xcom_pull(task_ids=self.proof_task)["run"])
        return super().execute(context)


def name_of(event: Mapping[str, Any]) -> str:
    """Of the person whose answer this is."""
    person = event.get("responded_by_user") or {}
    return visible(str(person.get("name") or person.get("id") or "somebody whom Airflow does not name"))


def answered(context: Context, task: str) -> str:
    """Who answered the question of this task, as Airflow knows them; empty: nobody was asked."""
    return ", ".join(one.name for one in approvals(context, (task,)))


def agreed(context: Context, task: str, run: str) -> str:
    """Who said at this task that applications may be stopped now; empty: nobody was to be asked. Refused when it was
    said of a run that was given up since: nobody has named this moment."""
    if not context["params"]["pause"]:
        return ""
    asked_of = context["ti"].xcom_pull(task_ids=task, key=ASKED_OF)
    if asked_of != run:
        words = f"task {task} was answered for {asked_of or 'no run'}: clear it, and it asks again"
        raise Refused(f"run {run} stops applications", [words])
    return answered(context, task)


def approved(context: Context, tasks: Sequence[str], what: str, plan_hash: str) -> tuple[Approval, ...]:
    """Who approved this plan of `what`, and when. Refused where two should have, and it is not known that they did: a
    task may be marked as done by hand, too; and where a task must have been cleared since: it was long ago, or of
    another plan."""
    found = approvals(context, tasks)
    few = unmet(found, len(tasks)) if len(tasks) > 1 else ()
    if reasons := (*few, *stale(found, now_ms()), *of_another(context, tasks, plan_hash)):
        raise Refused(what, reasons)
    return found


def of_another(context: Context, tasks: Sequence[str], plan_hash: str) -> tuple[str, ...]:
    """Which of these questions were answered, and not about this plan."""
    asked = {task: context["ti"].xcom_pull(task_ids=task, key=ASKED_ABOUT) for task in tasks if _asked(context, task)}
    return tuple(
        f"task {task} was answered about plan {about or 'unknown'}, and this is {plan_hash}: clear it, it asks again"
        for task, about in asked.items()
        if about != plan_hash
    )


def _asked(context: Context, task: str) -> bool:
    return bool(context["ti"].xcom_pull(task_ids=task))


def approvals(context: Context, tasks: Sequence[str]) -> tuple[Approval, ...]:
    """Who answered the questions of these tasks, and when; less of them where nobody was asked."""
    return tuple(found for task in tasks for found in _approval(context, task, context["ti"].xcom_pull(task_ids=task)))


def _approval(context: Context, task: str, answer: dict[str, Any] | None) -> list[Approval]:
    person = (answer or {}).get("responded_by_user") or {}
    known = {key: str(person.get(key) or "") for key in ("id", "name")}
    if not answer or not any(known.values()):
        return []
    when = answer.get("responded_at")
    at_ms = round(when.timestamp() * 1000) if isinstance(when, datetime) else None
    run = context["dag_run"]
    # The same, however often it is read; asked again, the task has an answer of another time.
    approval_id = f"{run.dag_id}/{run.run_id}/{task}/{at_ms or 'unknown'}"
    return [given(approval_id, known["id"], known["name"] or known["id"], at_ms)]
