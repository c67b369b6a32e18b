"""Tasks that ask a person, and what is known of who answered.

An approval counts when the task that asked has recorded it in the state topic of the mirror's destination, by what
Airflow itself recorded of the answer. XComs and states of tasks are anybody's to write in Airflow: they prove nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.standard.exceptions import HITLRejectException
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, TaskAwaitingInput

from mirror_core.decide.approval_rules import (
    APPROVAL_VALIDITY_S,
    ApprovalPolicy,
    explain_missing_approvals,
    explain_not_approved,
    is_approver,
    make_approval,
    select_valid_approvals,
)
from mirror_core.model.errors import Refused
from mirror_core.model.run import Approval, shorten_hash
from mirror_core.model.run_checkpoints import RecordedApproval, ShownPlan
from mirror_core.model.text import escape_invisible
from mirror_core.model.timing import now_ms
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.markdown import proved_markdown
from mirrorbook_airflow.mirror_lookup import find_mirror, find_set
from mirrorbook_airflow.notifications import notifiers
from mirrorbook_airflow.operators import TASK_DEFAULTS
from mirrorbook_airflow.params import approvers, page_root, wrong_approvers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow.sdk import Context

    from mirror_core.model.names import MirrorName
    from mirror_core.state.mirror_link import MirrorLink
    from mirror_core.state.state_records import State

APPROVAL_TIMEOUT: Final = timedelta(seconds=APPROVAL_VALIDITY_S)
"""A plan that nobody has approved for so long counts as rejected."""
APPROVES: Final = "approves"
"""What an answer is about, from the task's first half to its second one: not an XCom, which others may write."""


class ApprovePlan(ApprovalOperator):
    """Ask a person. Nothing has been done so far, and a Reject, also by silence, leaves everything as it is.

    Airflow 3.3 may lose an answer that comes while its scheduler is busy, and fail the task: then it asks again. A plan
    with an empty hash needs no approval.
    """

    template_fields = (*ApprovalOperator.template_fields, "mirror", "set_name")

    def __init__(self, *, question: str, plan: BaseOperator, **kwargs: Any) -> None:
        pulled = f"ti.xcom_pull(task_ids='{plan.task_id}')"
        super().__init__(
            subject=f"{question} Plan {{{{ {pulled}['hash'][:12] }}}}",
            body=f"{{{{ {pulled}['body'] }}}}",
            defaults=[self.REJECT],
            fail_on_reject=True,
            response_timeout=APPROVAL_TIMEOUT,
            assigned_users=approvers(),
            notifiers=notifiers(),
            **{**TASK_DEFAULTS, **kwargs},
        )
        self.plan_task = plan.task_id
        self.mirror: str = getattr(plan, "mirror", "")
        self.set_name: str = getattr(plan, "set_name", "")

    def execute(self, context: Context) -> Any:
        if not context["ti"].xcom_pull(task_ids=self.plan_task)["hash"]:
            self.log.info("not asked: nothing is done that needs an approval")
            return None
        with airflow_errors():
            approves = self.shown(context)
        return self._ask(context, approves)

    def shown(self, context: Context) -> str:
        """What an answer approves, of what is shown now. Refused when that is not what the plan's task has recorded."""
        plan = recorded_plan(context, self.plan_task, self.states())
        named = context["ti"].xcom_pull(task_ids=self.plan_task)["hash"]
        body_sha256 = hashlib.sha256((self.body or "").encode()).hexdigest()
        if (named, body_sha256) != (plan.plan_hash, plan.body_sha256):
            reason = f"what is shown is not what task {self.plan_task} has made: trigger the DAG again"
            raise Refused(f"plan {shorten_hash(plan.plan_hash)}", [reason])
        return plan.plan_hash

    def _ask(self, context: Context, approves: str) -> Any:
        self._refuse_older_text(context)
        try:
            return super().execute(context)
        except TaskAwaitingInput as asking:
            asking.kwargs = {**(asking.kwargs or {}), APPROVES: approves}
            raise

    def _refuse_older_text(self, context: Context) -> None:
        """Airflow (3.3.2) keeps the text of a task's first question, also when the task is cleared and asks again."""
        if displayed_question(self, context) != (self.subject, self.body or ""):
            raise AirflowFailException(
                "Airflow still shows the question as it was first asked, with an older plan, and nobody should answer "
                f"that: {self.left_as_is()}. Trigger the DAG again, or go on from the command line"
            )

    def execute_complete(self, context: Context, event: dict[str, Any], approves: str = "") -> Any:
        try:
            answer = super().execute_complete(context, event)
        except HITLRejectException:
            said = f"rejected by {name_of(event)}"
            if event.get("timedout"):
                said = f"nobody answered by {datetime.now(UTC):%H:%M} UTC"
            # A no is never asked about again.
            raise AirflowFailException(f"{said}: {self.left_as_is()}") from None
        approval = self._approval(context, event)
        self.log.info("approved by %s (%s): %s", approval.name, approval.id, shorten_hash(approves))
        with airflow_errors():
            self._record(question_of(context, self.plan_task), approval, approves)
        return answer

    def _approval(self, context: Context, event: dict[str, Any]) -> Approval:
        """Who has approved. The API server makes the event from its own record of the answer, when it takes that."""
        run, person, at = context["dag_run"], event["responded_by_user"] or {}, event["responded_at"]
        who = str(person.get("id") or "")
        if not who or event["chosen_options"] != [self.APPROVE]:
            raise AirflowFailException(f"Airflow has no record that somebody approved it: {self.left_as_is()}")
        at_ms = round(at.timestamp() * 1000)
        # Asked again, the task has an answer of another time.
        approval_id = f"{run.dag_id}/{run.run_id}/{self.task_id}/{at_ms}"
        approval = make_approval(approval_id, who, str(person.get("name") or who), at_ms)
        if not is_approver(policy_of(context, self.plan_task, (self.task_id,)), approval):
            raise AirflowFailException(f"{approval.name} ({approval.id}) may not approve here: {self.left_as_is()}")
        return approval

    def _record(self, question: str, approval: Approval, approves: str) -> None:
        from mirror_core.state.approvals import record_approval

        recorded = RecordedApproval(question=question, task=self.task_id, approves=approves, approval=approval)
        for link, _ in self.states():
            record_approval(link.destination, link.mirror.name, recorded)

    def states(self) -> list[tuple[MirrorLink, State]]:
        """The mirrors that the question is about, and the states of their destinations."""
        mirrors: Sequence[str] = find_set(self.set_name).mirrors if self.set_name else (self.mirror,)
        return [find_mirror(mirror) for mirror in mirrors]

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

    def _ask(self, context: Context, approves: str) -> Any:
        with airflow_errors():
            first = self._first(question_of(context, self.plan_task))
        if self.assigned_users:  # Airflow itself turns everybody else down
            known = {name for one in first for name in (one.id, one.name)}
            self.assigned_users = [user for user in self.assigned_users if user["id"] not in known]
            if not self.assigned_users:
                raise AirflowFailException(f"nobody but {first[0].name} may approve here: {self.left_as_is()}")
        return super()._ask(context, approves)

    def _record(self, question: str, approval: Approval, approves: str) -> None:
        if reasons := explain_missing_approvals((*self._first(question), approval), 2):
            raise AirflowFailException(f"{'; '.join(reasons)}: {self.left_as_is()}")
        super()._record(question, approval, approves)

    def _first(self, question: str) -> list[Approval]:
        from mirror_core.state.approvals import find_approvals

        link, state = self.states()[0]
        known = find_approvals(state, link.mirror.name, question)
        return [one.approval for one in known if one.task == self.first_task]


class GoAhead(ApprovePlan):
    """Ask once more, at the moment: all is proved, and applications stop now. Not where the run was told not to."""

    def __init__(self, *, question: str, plan: BaseOperator, proof: BaseOperator, **kwargs: Any) -> None:
        super().__init__(question=question, plan=plan, **kwargs)
        self.proof_task = proof.task_id
        self.body = ""

    def execute(self, context: Context) -> Any:
        if not context["params"]["pause"]:
            self.log.info("not asked: parameter `pause` is off")
            return None
        return super().execute(context)

    def shown(self, context: Context) -> str:
        """The run that is asked about: a task that is cleared later begins another run, and this answer stays."""
        asked_of = str(context["ti"].xcom_pull(task_ids=self.proof_task)["run"])
        proved = [
            (run, state.steps_of(run))
            for link, state in self.states()
            for run in state.runs.values()
            if run.plan.mirror == link.mirror.name and asked_of in (run.id, run.set_run)
        ]
        if not proved:
            raise Refused(f"run {asked_of}", ["it is none of this question's mirrors"])
        self.body = proved_markdown(proved, page_root())
        return asked_of


def displayed_question(task: ApprovalOperator, context: Context) -> tuple[str, str]:
    """Subject and body of this task's question as Airflow shows them, once it is asked."""
    from airflow.sdk.api.datamodels._generated import HITLUser
    from airflow.sdk.execution_time.comms import CreateHITLDetailPayload, HITLDetailRequestResult
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    asked = CreateHITLDetailPayload(
        ti_id=context["ti"].id,
        options=task.options,
        subject=task.subject,
        body=task.body,
        defaults=task.defaults,
        multiple=task.multiple,
        params=task.serialized_params,
        assigned_users=[HITLUser(**user) for user in task.assigned_users or ()],
    )
    displayed = SUPERVISOR_COMMS.send(asked)
    if not isinstance(displayed, HITLDetailRequestResult):
        raise AirflowFailException(f"task {task.task_id}: Airflow does not say which question it shows")
    return displayed.subject, displayed.body or ""


def name_of(event: Mapping[str, Any]) -> str:
    """Of the person whose answer this is."""
    person = event.get("responded_by_user") or {}
    return escape_invisible(str(person.get("name") or person.get("id") or "somebody whom Airflow does not name"))


class CheckApprovers(BaseOperator):
    """Red where nobody could approve anything, by users' ids: in a disaster it would be too late to learn it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**TASK_DEFAULTS, **kwargs})

    def execute(self, context: Context) -> None:
        if wrong := wrong_approvers():
            raise AirflowFailException("; ".join(wrong))


def question_of(context: Context, plan_task: str) -> str:
    """By which the state topic tells the questions of tasks apart."""
    run = context["dag_run"]
    return f"{run.dag_id}/{run.run_id}/{plan_task}"


def policy_of(context: Context, plan_task: str, tasks: Sequence[str]) -> ApprovalPolicy:
    """Which approvals these tasks have to have recorded: as the deployment is set up, not as a run was triggered."""
    named = approvers()
    ids = None if named is None else frozenset(user["id"] for user in named)
    return ApprovalPolicy(question=question_of(context, plan_task), tasks=tuple(tasks), approvers=ids)


def record_shown(
    context: Context,
    task: str,
    states: Iterable[tuple[MirrorLink, State]],
    plan_hash: str,
    body: str,
    silent: Sequence[MirrorName] = (),
) -> None:
    """Record what people are asked about from now on: by the task that has made the plan."""
    from mirror_core.state.approvals import record_plan

    shown = ShownPlan(
        question=question_of(context, task),
        plan_hash=plan_hash,
        body_sha256=hashlib.sha256(body.encode()).hexdigest(),
        at_ms=now_ms(),
        silent_sources=tuple(silent),
    )
    for link, state in states:
        record_plan(link.destination, state, link.mirror.name, shown)


def recorded_plan(context: Context, plan_task: str, states: Iterable[tuple[MirrorLink, State]]) -> ShownPlan:
    """What task `plan_task` of this DAG run has made. Refused when that is not recorded, or not the same of all."""
    from mirror_core.state.approvals import find_shown_plan

    question = question_of(context, plan_task)
    found = {find_shown_plan(state, link.mirror.name, question) for link, state in states}
    plan = next(iter(found), None)
    if plan is None or len(found) > 1:
        raise Refused(f"task {plan_task}", ["its plan is not in the state topic: trigger the DAG again"])
    return plan


def agreed(
    context: Context, go_ahead: GoAheadTask, states: Callable[[], Sequence[tuple[MirrorLink, State]]], run: str
) -> Agreed:
    """Who said at task `go_ahead` that applications may be stopped now; nobody where nobody was to be asked. Refused
    when nobody who may has said so of this run."""
    from mirror_core.state.approvals import find_approvals, read_approval_time_ms

    if go_ahead is None or not context["params"]["pause"]:
        return ()
    task, plan_task = go_ahead
    policy = policy_of(context, plan_task, (task,))
    for link, state in states():
        recorded = find_approvals(state, link.mirror.name, policy.question)
        people = select_valid_approvals(policy, [one for one in recorded if one.approves == run])
        if not people:
            reasons = explain_not_approved(policy, recorded, run, read_approval_time_ms(link.destination))
            raise Refused(f"run {run} stops applications", reasons)
    return people


GoAheadTask = tuple[str, str] | None
"""Ids of the task that asks and of the one that made the plan; None: nobody is asked."""
Agreed = tuple[Approval, ...]


def names_of(approvals: Sequence[Approval]) -> str:
    return ", ".join(one.name for one in approvals)
