"""Tasks that ask for approval, and who answered.

The asking task records an approval in the state topic of the mirror's destination, from Airflow's own record of the
answer. XComs and task states prove nothing: any task may write them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.standard.exceptions import HITLRejectException
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseOperator, exceptions
from airflow.sdk.exceptions import AirflowFailException

from mirror_core.decide.approval_rules import (
    APPROVAL_VALIDITY_S,
    ApprovalPolicy,
    explain_missing_approvals,
    explain_not_approved,
    is_approver,
    make_approval,
    select_valid_approvals,
)
from mirror_core.model.config_sections import MirrorSet, SetOrder
from mirror_core.model.errors import Refused
from mirror_core.model.run import Approval, Run, RunKind, RunMode, shorten_hash
from mirror_core.model.run_checkpoints import RecordedApproval, ShownPlan
from mirror_core.model.text import escape_invisible
from mirror_core.model.timing import now_ms
from mirrorbook_airflow import mirror_lookup
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.markdown import format_comparisons
from mirrorbook_airflow.mirror_lookup import find_mirror
from mirrorbook_airflow.notifications import make_notifiers
from mirrorbook_airflow.operators import TASK_DEFAULTS
from mirrorbook_airflow.page import get_page_root
from mirrorbook_airflow.params import explain_wrong_approvers, read_approvers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow.sdk import Context

    from mirror_core.model.names import MirrorName
    from mirror_core.state.mirror_link import MirrorLink
    from mirror_core.state.state_records import State

APPROVAL_TIMEOUT: Final = timedelta(seconds=APPROVAL_VALIDITY_S)
"""A plan without an answer for so long counts as rejected."""
AwaitAnswer: Final[type[exceptions.TaskDeferred]] = getattr(exceptions, "TaskAwaitingInput", exceptions.TaskDeferred)
"""Raised to suspend a task until its question is answered; before Airflow 3.3, to defer it to a trigger."""
APPROVES_KEY: Final = "approves"
"""Keyword of `execute_complete`. Not an XCom: other tasks could write that."""


class ApprovePlan(ApprovalOperator):
    """Asks for approval of a plan; no answer is a Reject. A plan with an empty hash needs none.

    Airflow 3.3 may lose an answer while its scheduler is busy, and fails the task: it then asks again.
    """

    template_fields = (*ApprovalOperator.template_fields, "mirror", "set_name")

    def __init__(self, *, question: str, plan: BaseOperator, approvers: Sequence[str] = (), **kwargs: Any) -> None:
        xcom = f"(ti.xcom_pull(task_ids='{plan.task_id}') or {{}})"
        super().__init__(
            subject=f"{question} Plan {{{{ {xcom}.get('hash', '')[:12] }}}}",
            body=f"{{{{ {xcom}.get('body', '') }}}}",
            defaults=[self.REJECT],
            fail_on_reject=True,
            response_timeout=APPROVAL_TIMEOUT,
            assigned_users=read_approvers(approvers),
            notifiers=make_notifiers(),
            **{**TASK_DEFAULTS, **kwargs},
        )
        self.plan_task = plan.task_id
        self.approvers = tuple(approvers)
        self.mirror: str = getattr(plan, "mirror", "")
        self.set_name: str = getattr(plan, "set_name", "")

    def execute(self, context: Context) -> Any:
        if not pull_result(context, self.plan_task, "hash"):
            self.log.info("not asked: nothing is done that needs an approval")
            return None
        with airflow_errors():
            approves = self.check_displayed_plan(context)
            self._withdraw_approval(context)
        return self._request_approval(context, approves)

    def check_displayed_plan(self, context: Context) -> str:
        """The hash that an answer approves.

        Raises Refused unless the text is the one that the plan's task recorded, and while a run that was begun by it
        goes on: a no would not end that.
        """
        states = self.read_states(context)
        plan = read_shown_plan(context, self.plan_task, states)
        active_runs = [run for link, state in states if (run := state.active_run(link.mirror.name)) is not None]
        prefix = self._format_approval_prefix(context)
        if begun := [r.id for r in active_runs if any(str(a.approval_id).startswith(prefix) for a in r.approvals)]:
            reasons = [f"run {run} was begun by it and has not ended: clear the task that failed" for run in begun]
            raise Refused(f"plan {shorten_hash(plan.plan_hash)}", reasons, reason_code="run_goes_on")
        pulled_hash = pull_result(context, self.plan_task, "hash")
        body_sha256 = hashlib.sha256((self.body or "").encode()).hexdigest()
        if (pulled_hash, body_sha256) != (plan.plan_hash, plan.body_sha256):
            reason = f"what is shown is not what task {self.plan_task} has made: trigger the DAG again"
            raise Refused(f"plan {shorten_hash(plan.plan_hash)}", [reason], reason_code="not_approved")
        return plan.plan_hash

    def _request_approval(self, context: Context, approves: str) -> Any:
        self._refuse_stale_question(context)
        try:
            return super().execute(context)
        except AwaitAnswer as pause:
            pause.kwargs = {**(pause.kwargs or {}), APPROVES_KEY: approves}
            raise

    def _refuse_stale_question(self, context: Context) -> None:
        """Airflow 3.3.2 keeps the text of a task's first question when the task is cleared and asks again."""
        if fetch_displayed_question(self, context) != (self.subject, self.body or ""):
            raise AirflowFailException(
                "Airflow still shows the question as it was first asked, with an older plan, and nobody should answer "
                "that. This task changed nothing. Trigger the DAG again, or go on from the command line: "
                "`mirrorbook failover status` says where the run stands"
            )

    def execute_complete(self, context: Context, event: dict[str, Any], approves: str = "") -> Any:
        try:
            answer = super().execute_complete(context, event)
        except HITLRejectException:
            reason = f"rejected by {format_responder(event)}"
            if event.get("timedout"):
                reason = f"nobody answered by {datetime.now(UTC):%H:%M} UTC"
            # A no is never asked about again.
            raise AirflowFailException(f"{reason}: {self.format_left_unchanged()}") from None
        approval = self._read_approval(context, event)
        self.log.info("approved by %s (%s): %s", approval.name, approval.id, shorten_hash(approves))
        with airflow_errors():
            self._record_approval(context, approval, approves)
        return answer

    def _read_approval(self, context: Context, event: dict[str, Any]) -> Approval:
        """From the event, which the API server makes of its own record of the answer."""
        person, at = event["responded_by_user"] or {}, event["responded_at"]
        user_id = str(person.get("id") or "")
        if not user_id or event["chosen_options"] != [self.APPROVE]:
            raise AirflowFailException(
                f"Airflow has no record that somebody approved it: {self.format_left_unchanged()}"
            )
        at_ms = round(at.timestamp() * 1000)
        approval_id = f"{self._format_approval_prefix(context)}{at_ms}"  # asked again, it has an answer of another time
        approval = make_approval(approval_id, user_id, str(person.get("name") or user_id), at_ms)
        if not is_approver(make_approval_policy(context, self.plan_task, (self.task_id,), self.approvers), approval):
            raise AirflowFailException(
                f"{approval.name} ({approval.id}) may not approve here: {self.format_left_unchanged()}"
            )
        return approval

    def _format_approval_prefix(self, context: Context) -> str:
        run = context["dag_run"]
        return f"{run.dag_id}/{run.run_id}/{self.task_id}/"

    def _record_approval(self, context: Context, approval: Approval, approves: str) -> None:
        from mirror_core.state.approvals import record_approval

        question = make_question_id(context, self.plan_task)
        recorded = RecordedApproval(question=question, task=self.task_id, approves=approves, approval=approval)
        for link, _ in self.read_states(context):
            record_approval(link.destination, link.mirror.name, recorded)

    def _withdraw_approval(self, context: Context) -> None:
        """A task that asks again has no answer yet: not even marked as done it stands for the last one."""
        from mirror_core.state.approvals import withdraw_approval

        question = make_question_id(context, self.plan_task)
        for link, state in self.read_states(context):
            withdraw_approval(link.destination, state, link.mirror.name, question, self.task_id)

    def read_states(self, context: Context) -> list[tuple[MirrorLink, State]]:
        mirrors: Sequence[str] = (self.mirror,)
        if self.set_name:
            mirrors = find_planned_set(context, self.plan_task, self.set_name).mirrors
        return [find_mirror(mirror) for mirror in mirrors]

    def format_left_unchanged(self) -> str:
        before = self.get_flat_relatives(upstream=True)
        if all(isinstance(task, ApprovePlan) or task.task_id == self.plan_task for task in before):
            return "nothing was done"
        return "applications were not moved; what was done before stands in the logs of the run's last tasks"


class ApproveSecond(ApprovePlan):
    """Asks a second person about the same plan. The first approver cannot answer again."""

    def __init__(self, *, question: str, plan: BaseOperator, first: BaseOperator, **kwargs: Any) -> None:
        super().__init__(question=f"{question} (a second person)", plan=plan, **kwargs)
        self.first_task = first.task_id

    def _request_approval(self, context: Context, approves: str) -> Any:
        with airflow_errors():
            first = self._find_first_approvals(context)
        if self.assigned_users:  # Airflow itself turns everybody else down
            first_approvers = {name for approval in first for name in (approval.id, approval.name)}
            self.assigned_users = [user for user in self.assigned_users if user["id"] not in first_approvers]
            if not self.assigned_users:
                raise AirflowFailException(
                    f"nobody but {first[0].name} may approve here: {self.format_left_unchanged()}"
                )
        return super()._request_approval(context, approves)

    def _record_approval(self, context: Context, approval: Approval, approves: str) -> None:
        if reasons := explain_missing_approvals((*self._find_first_approvals(context), approval), 2):
            raise AirflowFailException(f"{'; '.join(reasons)}: {self.format_left_unchanged()}")
        super()._record_approval(context, approval, approves)

    def _find_first_approvals(self, context: Context) -> list[Approval]:
        from mirror_core.state.approvals import find_approvals

        link, state = self.read_states(context)[0]
        recorded = find_approvals(state, link.mirror.name, make_question_id(context, self.plan_task))
        return [approval.approval for approval in recorded if approval.task == self.first_task]


class GoAhead(ApprovePlan):
    """Asks again just before applications stop. Skipped where the plan says so, and where they are stopped."""

    def __init__(self, *, question: str, plan: BaseOperator, proof: BaseOperator, **kwargs: Any) -> None:
        super().__init__(question=question, plan=plan, **kwargs)
        self.proof_task = proof.task_id
        self.body = ""

    def execute(self, context: Context) -> Any:
        with airflow_errors():
            states = self.read_states(context)
            are_stopped = are_applications_stopped(self._read_run_id(context), states)
            asks_again = are_stopped or read_shown_plan(context, self.plan_task, states).asks_again
        if not asks_again:
            self.log.info("not asked: parameter `pause` was off when the plan was made")
            return None
        if are_stopped:  # a cleared task goes on with a run that was agreed to before
            self.log.info("not asked: the run has stopped the applications already")
            return None
        return super().execute(context)

    def check_displayed_plan(self, context: Context) -> str:
        """The run's id: a cleared task begins another run, which this answer does not approve."""
        run_id = self._read_run_id(context)
        compared_runs = [
            (run, state.steps_of(run)) for run, _, state in list_member_runs(run_id, self.read_states(context))
        ]
        if not compared_runs:
            raise Refused(
                f"run {run_id}", ["it is none of this question's mirrors"], reason_code="approval_of_other_mirror"
            )
        self.body = format_comparisons(compared_runs, get_page_root())
        return run_id

    def _read_run_id(self, context: Context) -> str:
        return pull_result(context, self.proof_task, "run")


def list_member_runs(run_id: str, states: Iterable[tuple[MirrorLink, State]]) -> list[tuple[Run, MirrorLink, State]]:
    """The run of this id, or the runs of the set failover of this id."""
    return [
        (run, link, state)
        for link, state in states
        for run in state.runs.values()
        if run.plan.mirror == link.mirror.name and run_id in (run.id, run.set_run)
    ]


def are_applications_stopped(run_id: str, states: Iterable[tuple[MirrorLink, State]]) -> bool:
    """By each of the runs, so that there is no moment left to agree to."""
    from mirror_core.runbook.failover_conductor import has_disturbed_applications

    runs = list_member_runs(run_id, states)
    return bool(runs) and all(has_disturbed_applications(state, run, link.source.name) for run, link, state in runs)


def fetch_displayed_question(task: ApprovalOperator, context: Context) -> tuple[str, str]:
    """Subject and body as Airflow shows them."""
    from airflow.sdk.api.datamodels._generated import HITLUser
    from airflow.sdk.execution_time.comms import CreateHITLDetailPayload, HITLDetailRequestResult
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    payload = CreateHITLDetailPayload(
        ti_id=context["ti"].id,
        options=task.options,
        subject=task.subject,
        body=task.body,
        defaults=task.defaults,
        multiple=task.multiple,
        params=task.serialized_params,
        assigned_users=[HITLUser(**user) for user in task.assigned_users or ()],
    )
    displayed = SUPERVISOR_COMMS.send(payload)
    if not isinstance(displayed, HITLDetailRequestResult):
        raise AirflowFailException(f"task {task.task_id}: Airflow does not say which question it shows")
    return displayed.subject, displayed.body or ""


def format_responder(event: Mapping[str, Any]) -> str:
    person = event.get("responded_by_user") or {}
    return escape_invisible(str(person.get("name") or person.get("id") or "somebody whom Airflow does not name"))


class CheckApprovers(BaseOperator):
    """Fails where nobody could approve, before a disaster shows it."""

    def __init__(self, *, approvers: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(**{**TASK_DEFAULTS, **kwargs})
        self.approvers = tuple(approvers)

    def execute(self, context: Context) -> None:
        if wrong := explain_wrong_approvers(self.approvers):
            raise AirflowFailException("; ".join(wrong))


def pull_result(context: Context, task: str, key: str) -> str:
    """What a task before this one has left. To be shown or looked up, not believed."""
    result = context["ti"].xcom_pull(task_ids=task)
    if not isinstance(result, Mapping) or key not in result:
        raise AirflowFailException(f"task {task} has not been done: clear it; to mark it as success does nothing")
    return str(result[key])


def find_planned_set(context: Context, plan_task: str, name: str, kind: RunKind = RunKind.FAILOVER) -> MirrorSet:
    """As task `plan_task` of this DAG run planned it; where it has not, as it is now."""
    plan = context["ti"].xcom_pull(task_ids=plan_task)
    plan_hash = str(plan.get("hash", "")) if isinstance(plan, Mapping) else ""
    return mirror_lookup.find_planned_set(name, kind, make_question_id(context, plan_task), plan_hash)


def make_question_id(context: Context, plan_task: str) -> str:
    run = context["dag_run"]
    return f"{run.dag_id}/{run.run_id}/{plan_task}"


def make_approval_policy(
    context: Context, plan_task: str, tasks: Sequence[str], approvers: Sequence[str]
) -> ApprovalPolicy:
    """From the deployment's settings and the DAG's code, not from the run's parameters."""
    allowed_users = read_approvers(approvers)
    ids = None if allowed_users is None else frozenset(user["id"] for user in allowed_users)
    return ApprovalPolicy(question=make_question_id(context, plan_task), tasks=tuple(tasks), approvers=ids)


def record_shown_plan(
    context: Context,
    task: str,
    states: Iterable[tuple[MirrorLink, State]],
    plan_hash: str,
    body: str,
    silent: Sequence[MirrorName] = (),
    *,
    asks_again: bool = True,
    of_set: MirrorSet | None = None,
) -> None:
    from mirror_core.state.approvals import record_plan

    shown_plan = ShownPlan(
        question=make_question_id(context, task),
        plan_hash=plan_hash,
        body_sha256=hashlib.sha256(body.encode()).hexdigest(),
        at_ms=now_ms(),
        silent_sources=tuple(silent),
        asks_again=asks_again,
        set_mirrors=of_set.mirrors if of_set else (),
        set_order=of_set.order if of_set else SetOrder.SIDE_BY_SIDE,
    )
    for link, state in states:
        record_plan(link.destination, state, link.mirror.name, shown_plan)


def has_second_question(context: Context, mode: RunMode) -> bool:
    """Whether a failover that is planned now asks before it stops applications."""
    return mode is RunMode.UNPLANNED or bool(context["params"]["pause"])


def format_single_question(body: str) -> str:
    """The text of a plan that is not asked about again."""
    return (
        "**Nobody is asked again before applications are stopped**: parameter `pause` is off. Approving this plan "
        f"stops them as soon as all is proved.\n\n{body}"
    )


def read_shown_plan(context: Context, plan_task: str, states: Iterable[tuple[MirrorLink, State]]) -> ShownPlan:
    """The plan that task `plan_task` of this DAG run recorded. Raises Refused unless all states hold the same one."""
    from mirror_core.state.approvals import find_shown_plan

    question = make_question_id(context, plan_task)
    plans = {find_shown_plan(state, link.mirror.name, question) for link, state in states}
    plan = next(iter(plans), None)
    if plan is None or len(plans) > 1:
        raise Refused(
            f"task {plan_task}",
            ["its plan is not in the state topic: trigger the DAG again"],
            reason_code="plan_missing",
        )
    return plan


def read_go_ahead(
    context: Context,
    go_ahead: GoAheadTask,
    states: Callable[[], Sequence[tuple[MirrorLink, State]]],
    run: str,
) -> GoAheadApprovals:
    """Approvals of task `go_ahead`; empty where it does not ask. Raises Refused without a valid one."""
    from mirror_core.state.approvals import find_approvals
    from mirror_core.state.mirror_link import read_broker_time_ms

    if go_ahead is None or are_applications_stopped(run, states()):
        return ()
    task, plan_task, approvers = go_ahead
    if not read_shown_plan(context, plan_task, states()).asks_again:
        return ()
    policy = make_approval_policy(context, plan_task, (task,), approvers)
    for link, state in states():
        recorded = find_approvals(state, link.mirror.name, policy.question)
        people = select_valid_approvals(policy, [approval for approval in recorded if approval.approves == run])
        if not people:
            reasons = explain_not_approved(policy, recorded, run, read_broker_time_ms(link.destination))
            raise Refused(f"run {run} stops applications", reasons, reason_code="not_approved")
    return people


GoAheadTask = tuple[str, str, tuple[str, ...]] | None
"""Ids of the asking task and of the plan's task, and its approvers; None: the run does not ask."""
GoAheadApprovals = tuple[Approval, ...]


def format_approvers(approvals: Sequence[Approval]) -> str:
    return ", ".join(approval.name for approval in approvals)
