"""Tasks of the failover of a set. The decisions are in the core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import BaseOperator, TriggerRule
from airflow.sdk.exceptions import AirflowSkipException

from mirror_core.decide.certificate_coverage import check_as_copied
from mirror_core.decide.steps import list_step_names, list_undisturbed_steps
from mirror_core.model.errors import LostOwnership, Refused
from mirror_core.model.run import RunKind, RunMode
from mirror_core.model.text import escape_invisible_lines
from mirrorbook_airflow.approvals import (
    GoAhead,
    GoAheadTask,
    find_planned_set,
    format_approvers,
    format_single_question,
    has_second_question,
    make_approval_policy,
    read_go_ahead,
    read_shown_plan,
    record_shown_plan,
)
from mirrorbook_airflow.asset_events import ACTIVE_ALIAS, FENCED_ALIAS, emit_switched
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.markdown import format_comparisons, format_set_plans
from mirrorbook_airflow.mirror_lookup import find_mirror, find_set
from mirrorbook_airflow.operators import CHANGE_TIMEOUT, COPY_TIMEOUT, CUT_OVER_TIMEOUT, READ_TIMEOUT, TASK_DEFAULTS
from mirrorbook_airflow.page import get_page_root
from mirrorbook_airflow.run_status import LAST_WORDS_TASK, LogSetStatus
from mirrorbook_airflow.runbook import (
    CUT_OVER_TASK,
    LOST_OWNERSHIP_KEY,
    SWITCH_STEP,
    chain_tasks,
    format_conductor,
    make_approval_tasks,
)
from mirrorbook_airflow.worker_services import make_services

if TYPE_CHECKING:
    from airflow.sdk import Context

    from mirror_core.model.config_sections import MirrorSet
    from mirror_core.runbook.set_failover import SetFailover
    from mirror_core.state.mirror_link import MirrorLink
    from mirror_core.state.state_records import State

GO_AHEAD_QUESTION: Final = "Stop applications of set {name} now?"


class SetOperator(BaseOperator):
    template_fields: Sequence[str] = ("set_name",)
    timeout: ClassVar[timedelta] = CHANGE_TIMEOUT

    def __init__(self, *, set_name: str, mode: RunMode = RunMode.PLANNED, **kwargs: Any) -> None:
        super().__init__(**{**TASK_DEFAULTS, "execution_timeout": self.timeout, **kwargs})
        self.set_name = set_name
        self.mode = mode
        self.plan_task = ""

    def find_members(self, context: Context) -> MirrorSet:
        """Those that were planned, as soon as they were."""
        if not self.plan_task:
            return find_set(self.set_name)
        return find_planned_set(context, self.plan_task, self.set_name)

    def make_set_failover(self, context: Context, steps: Sequence[str] = ()) -> SetFailover:
        from mirror_core.runbook.failover_conductor import Failover
        from mirror_core.runbook.set_failover import SetFailover

        chosen, params = self.find_members(context), context["params"]
        conductors = {}
        for name in chosen.mirrors:
            link, _ = find_mirror(name)
            conductors[name] = Failover(
                link,
                make_services(link.config.path, steps, params["master"]),
                started_by=format_conductor(context),
                print_line=lambda line, name=name: self.log_line(f"{name}: {line}"),  # type: ignore[misc]
                gate_limit_s=params.get("gate_limit_s"),
            )
        return SetFailover(chosen, conductors, self.mode, print_line=self.log_line)

    def read_states(self, context: Context) -> list[tuple[MirrorLink, State]]:
        return [find_mirror(name) for name in self.find_members(context).mirrors]

    def log_line(self, line: str) -> None:
        """Escaped: names may hold control characters."""
        self.log.info("%s", escape_invisible_lines(line))

    @contextmanager
    def push_lost_ownership(self, context: Context) -> Iterator[None]:
        """Leaves a lost run to the teardown."""
        with airflow_errors():
            try:
                yield
            except LostOwnership:
                context["ti"].xcom_push(key=LOST_OWNERSHIP_KEY, value=True)
                raise


class PlanSet(SetOperator):
    """Fails with every reason when one of the plans may not be run now."""

    def execute(self, context: Context) -> dict[str, Any]:
        with airflow_errors():
            failover = self.make_set_failover(context)
            set_decision = failover.decide()
            plans = [decision.plan for decision in set_decision.decisions.values()]
            body = format_set_plans(failover.mirror_set, set_decision.hash, plans)
            asks_again = has_second_question(context, self.mode)
            body = body if asks_again else format_single_question(body)
            if set_decision.reasons:
                self.log.info("%s", body)
                raise Refused(f"failover of set {self.set_name}", set_decision.reasons)
            record_shown_plan(
                context,
                self.task_id,
                [find_mirror(name) for name in failover.mirror_set.mirrors],
                set_decision.hash,
                body,
                set_decision.silent,
                asks_again=asks_again,
                of_set=failover.mirror_set,
            )
        return {"hash": set_decision.hash, "body": body}


class BeginSet(SetOperator):
    """Opens the runs of the approved plans if they still hold, or resumes its own; returns the attempt's id."""

    def __init__(
        self, *, plan: BaseOperator, approvals: Sequence[BaseOperator], approvers: Sequence[str] = (), **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.plan_task = plan.task_id
        self.approval_tasks = tuple(task.task_id for task in approvals)
        self.approvers = tuple(approvers)

    def execute(self, context: Context) -> str:
        with airflow_errors():
            failover = self.make_set_failover(context)
            plan = read_shown_plan(context, self.plan_task, self.read_states(context))
            active_attempt = failover.find_active_attempt(
                started_by=format_conductor(context), plan_hash=plan.plan_hash
            )
            if active_attempt is not None:
                return active_attempt
            if (unbegun_attempt := failover.find_unbegun_attempt(started_by=format_conductor(context))) is not None:
                failover.abort(
                    unbegun_attempt
                )  # its own, whose process was killed: what was approved is begun as a whole
            policy = make_approval_policy(context, self.plan_task, self.approval_tasks, self.approvers)
            return failover.begin(plan.plan_hash, approved_by=policy, silent=plan.silent_sources)


class CompareSet(SetOperator):
    timeout = COPY_TIMEOUT

    def __init__(self, *, begin: BaseOperator, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.begin_task, self.plan_task = begin.task_id, getattr(begin, "plan_task", "")

    def execute(self, context: Context) -> dict[str, str]:
        attempt = context["ti"].xcom_pull(task_ids=self.begin_task)
        with self.push_lost_ownership(context):
            failover = self.make_set_failover(context, list_undisturbed_steps(RunKind.FAILOVER))
            failover.refuse_superseded(attempt, format_conductor(context))
            failover.refuse_taken_over(attempt)
            statuses = failover.prove(attempt)
        return {
            "run": attempt,
            "said": format_comparisons(((status.run, status.steps) for status in statuses.values()), get_page_root()),
        }


class CutOverSet(SetOperator):
    """Blocks writes. A retry goes on where it stopped."""

    timeout = CUT_OVER_TIMEOUT

    def __init__(self, *, begin: BaseOperator, go_ahead: GoAhead | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.begin_task, self.plan_task = begin.task_id, getattr(begin, "plan_task", "")
        self.go_ahead: GoAheadTask = (go_ahead.task_id, go_ahead.plan_task, go_ahead.approvers) if go_ahead else None

    def execute(self, context: Context) -> dict[str, str]:
        attempt = context["ti"].xcom_pull(task_ids=self.begin_task)
        with self.push_lost_ownership(context):
            failover = self.make_set_failover(context)
            failover.refuse_superseded(attempt, format_conductor(context))
            approvals = read_go_ahead(context, self.go_ahead, partial(self.read_states, context), attempt)
            failover.refuse_expired(attempt, approvals)
            failover.refuse_taken_over(attempt)
            statuses = failover.finish(attempt, agreed_by=format_approvers(approvals))
            check_as_copied(*((status.run.id, status.steps) for status in statuses.values()))
        return {"run": attempt, "report": str(failover.page_path(attempt))}


class AnnounceSwitchedSet(SetOperator):
    """Also when other mirrors have failed."""

    def __init__(self, *, begin: BaseOperator, **kwargs: Any) -> None:
        super().__init__(outlets=[FENCED_ALIAS, ACTIVE_ALIAS], trigger_rule=TriggerRule.ALL_DONE, **kwargs)
        self.begin_task, self.plan_task = begin.task_id, getattr(begin, "plan_task", "")

    def execute(self, context: Context) -> list[str]:
        attempt = context["ti"].xcom_pull(task_ids=self.begin_task)
        if attempt is None:
            raise AirflowSkipException("nothing was begun")
        with airflow_errors():
            failover = self.make_set_failover(context)
            failover.refuse_superseded(attempt, format_conductor(context))
            moved = failover.find_runs_after_step(attempt, SWITCH_STEP)
            mirrors = {name: find_mirror(name) for name in moved}
        for name, run in moved.items():
            emit_switched(*mirrors[name], run, context)
        return [str(name) for name in moved]


class CheckSetEnded(SetOperator):
    """The leaf: green where all have moved, whatever tasks were marked as. As a single mirror's."""

    timeout = READ_TIMEOUT

    def __init__(self, *, begin: BaseOperator, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.begin_task, self.plan_task = begin.task_id, getattr(begin, "plan_task", "")

    def execute(self, context: Context) -> None:
        attempt = context["ti"].xcom_pull(task_ids=self.begin_task)
        with airflow_errors():
            failover = self.make_set_failover(context)
            failover.refuse_superseded(attempt, format_conductor(context))
            last_step = list_step_names(RunKind.FAILOVER, self.mode)[-1]
            moved = failover.find_runs_after_step(attempt, last_step)
            if left := [name for name in failover.mirror_set.mirrors if name not in moved]:
                why = f"step {last_step} is not done. To mark a task as success does nothing"
                raise Refused(f"failover {attempt} of set {self.set_name}", [f"{name}: {why}" for name in left])


class AbortSet(SetOperator):
    """After a failure before the first promotion: let all mirrors go on. Otherwise change nothing."""

    def __init__(self, *, begin: BaseOperator, steps: Sequence[BaseOperator], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.begin_task, self.plan_task = begin.task_id, getattr(begin, "plan_task", "")
        self.step_tasks = tuple(task.task_id for task in steps)

    def execute(self, context: Context) -> str:
        attempt = context["ti"].xcom_pull(task_ids=self.begin_task)
        if attempt is None:
            return "nothing to abort: nothing was begun"
        if any(context["ti"].xcom_pull(task_ids=task, key=LOST_OWNERSHIP_KEY) for task in self.step_tasks):
            return "kept: another process took a run over; if none goes on, clear the failed task or resume them"
        with airflow_errors():
            lines = self.make_set_failover(context).abort(attempt)
        return escape_invisible_lines("\n".join(lines)) or "nothing to abort: all runs have ended"


def make_set_tasks(name: str, question: str, mode: str = RunMode.PLANNED) -> None:
    common: dict[str, Any] = {"set_name": name, "mode": RunMode(mode)}
    plan = PlanSet(task_id="plan", **common)
    approval_tasks = make_approval_tasks(plan, question)
    begin = BeginSet(task_id="begin", plan=plan, approvals=approval_tasks, **common)
    proofs = (
        [CompareSet(task_id="prove", begin=begin, **common)]
        if list_undisturbed_steps(RunKind.FAILOVER, RunMode(mode))
        else []
    )
    go_ahead_question = GO_AHEAD_QUESTION.format(name=name)
    go_aheads = [GoAhead(task_id="go_ahead", question=go_ahead_question, plan=plan, proof=proof) for proof in proofs]
    move = CutOverSet(task_id=CUT_OVER_TASK, begin=begin, go_ahead=go_aheads[0] if go_aheads else None, **common)
    switched = AnnounceSwitchedSet(task_id="switched", begin=begin, **common)
    abort = AbortSet(task_id="abort", begin=begin, steps=(*proofs, move), **common)
    chain_tasks(plan, *approval_tasks, begin, *proofs, *go_aheads, move, switched, abort)
    # Set-up tasks run again when a later task is cleared: after an abort there are other runs, and their own proof.
    abort.as_teardown(setups=[task.as_setup() for task in (begin, *proofs)], on_failure_fail_dagrun=True)
    chain_tasks(abort, LogSetStatus(task_id=LAST_WORDS_TASK, set_name=name, begin=begin).as_teardown())
    [move, switched] >> CheckSetEnded(task_id="done", begin=begin, **common)
