"""Tasks of the failover and the failback of a set. The decisions are in the core."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from airflow.sdk import BaseOperator, TaskGroup, TriggerRule
from airflow.sdk.exceptions import AirflowSkipException

from mirror_core.decide.certificate_coverage import check_as_copied
from mirror_core.decide.set_schedule import RunPhase
from mirror_core.decide.steps import list_step_names, list_undisturbed_steps
from mirror_core.decide.truncation import AllowedStrategies
from mirror_core.model.errors import LostOwnership, Refused
from mirror_core.model.names import format_reverse_name
from mirror_core.model.run import FailbackStrategy, RunKind, RunMode
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
from mirrorbook_airflow.asset_events import ACTIVE_ALIAS, FENCED_ALIAS, HOME_ALIAS, emit_home, emit_switched
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.markdown import format_comparisons, format_set_plans
from mirrorbook_airflow.mirror_lookup import find_mirror, find_set
from mirrorbook_airflow.operators import (
    CHANGE_TIMEOUT,
    COPY_TIMEOUT,
    CUT_OVER_TIMEOUT,
    MAP_INDEX,
    READ_TIMEOUT,
    TASK_DEFAULTS,
)
from mirrorbook_airflow.page import get_page_root
from mirrorbook_airflow.replicate_tasks import DAG_ID as REPLICATE_DAG
from mirrorbook_airflow.replicate_tasks import ReplicateMirror
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
    from airflow.sdk import Context, XComArg

    from mirror_core.model.config_sections import MirrorSet
    from mirror_core.model.names import MirrorName
    from mirror_core.runbook.conductor import Conductor
    from mirror_core.runbook.failback_conductor import SetFailback
    from mirror_core.runbook.set_conductor import MemberRun
    from mirror_core.runbook.set_failover import SetFailover
    from mirror_core.state.mirror_link import MirrorLink
    from mirror_core.state.state_records import State

GO_AHEAD_QUESTION: Final = "Stop applications of set {name} now?"
FailbackTasks = tuple[str, str]
"""Ids of the tasks that begin a failback and plan it."""
AnyConductor = TypeVar("AnyConductor", bound="Conductor[Any]")


class SetOperator(BaseOperator):
    template_fields: Sequence[str] = ("set_name",)
    timeout: ClassVar[timedelta] = CHANGE_TIMEOUT

    def __init__(
        self,
        *,
        set_name: str,
        kind: RunKind = RunKind.FAILOVER,
        mode: RunMode = RunMode.PLANNED,
        failback: FailbackTasks | None = None,
        **kwargs: Any,
    ) -> None:
        """`failback`: this is its failover home."""
        super().__init__(**{**TASK_DEFAULTS, "execution_timeout": self.timeout, **kwargs})
        self.set_name = set_name
        self.kind = kind
        self.mode = mode
        self.failback = failback
        self.plan_task = ""

    def find_members(self, context: Context) -> MirrorSet:
        """Those that were planned, as soon as they were."""
        if self.plan_task:
            return find_planned_set(context, self.plan_task, self.set_name, self.kind)
        return self._find_way_home(context, *self.failback) if self.failback else find_set(self.set_name, self.kind)

    def _find_way_home(self, context: Context, begin_task: str, plan_task: str) -> MirrorSet:
        """The reverse mirrors of those that are to go home."""
        attempt = context["ti"].xcom_pull(task_ids=begin_task)
        members = find_planned_set(context, plan_task, self.set_name, RunKind.FAILBACK)
        failback: Any = self._make_conductor_of(members, RunKind.FAILBACK, context)
        failback.refuse_superseded(attempt, format_conductor(context))
        way_home = failback.make_way_home(attempt)
        if way_home is None:
            raise Refused(f"failback {attempt} of set {self.set_name}", ["all its mirrors are home"], "already_home")
        home_set: MirrorSet = way_home.mirror_set
        return home_set

    def make_conductor(self, context: Context, steps: Sequence[str] = ()) -> SetFailover | SetFailback:
        return self._make_conductor_of(self.find_members(context), self.kind, context, steps)

    def _make_conductor_of(
        self, members: MirrorSet, kind: RunKind, context: Context, steps: Sequence[str] = ()
    ) -> SetFailover | SetFailback:
        from mirror_core.runbook.failback_conductor import Failback, SetFailback
        from mirror_core.runbook.failover_conductor import Failover
        from mirror_core.runbook.set_failover import SetFailover

        params = context["params"]

        def make_conductors(conductor_class: type[AnyConductor]) -> dict[MirrorName, AnyConductor]:
            links = {name: find_mirror(name)[0] for name in members.mirrors}
            return {
                name: conductor_class(
                    link,
                    make_services(link.config.path, steps, params["master"]),
                    started_by=format_conductor(context),
                    print_line=lambda line, name=name: self.log_line(f"{name}: {line}"),  # type: ignore[misc]
                    gate_limit_s=params.get("gate_limit_s"),
                )
                for name, link in links.items()
            }

        if kind is RunKind.FAILOVER:
            return SetFailover(members, make_conductors(Failover), self.mode, print_line=self.log_line)
        strategy = params.get("strategy")
        allowed = AllowedStrategies(FailbackStrategy(strategy) if strategy else None)
        return SetFailback(members, make_conductors(Failback), allowed, print_line=self.log_line)

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
            failover = self.make_conductor(context)
            set_decision = failover.decide()
            plans = [decision.plan for decision in set_decision.decisions.values()]
            body = format_set_plans(failover.mirror_set, set_decision.hash, plans)
            asks_again = self.kind is RunKind.FAILBACK or has_second_question(context, self.mode)
            body = body if asks_again else format_single_question(body)
            if set_decision.reasons:
                self.log.info("%s", body)
                raise Refused(f"{self.kind} of set {self.set_name}", set_decision.reasons, "set_plan_refused")
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
            failover = self.make_conductor(context)
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


class BegunSetOperator(SetOperator):
    """A task behind the one that has begun the runs of a set."""

    def __init__(self, *, begin: BaseOperator, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.begin_task, self.plan_task = begin.task_id, getattr(begin, "plan_task", "")

    def pull_attempt(self, context: Context, begin_task: str = "") -> Any:
        """None where nothing was begun."""
        return context["ti"].xcom_pull(task_ids=begin_task or self.begin_task)

    def find_attempt(self, context: Context, steps: Sequence[str] = ()) -> tuple[Any, str]:
        """Its conductor, and its id. Refused where the runs are no longer of this DAG run."""
        conductor, attempt = self.make_conductor(context, steps), self.pull_attempt(context)
        conductor.refuse_superseded(attempt, format_conductor(context))
        return conductor, attempt


class CompareSet(BegunSetOperator):
    timeout = COPY_TIMEOUT

    def execute(self, context: Context) -> dict[str, str]:
        with self.push_lost_ownership(context):
            failover, attempt = self.find_attempt(context, list_undisturbed_steps(RunKind.FAILOVER))
            failover.refuse_taken_over(attempt)
            statuses = failover.prove(attempt)
        return {
            "run": attempt,
            "said": format_comparisons(((status.run, status.steps) for status in statuses.values()), get_page_root()),
        }


class CutOverSet(BegunSetOperator):
    """Blocks writes. A retry goes on where it stopped."""

    timeout = CUT_OVER_TIMEOUT

    def __init__(self, *, go_ahead: GoAhead | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.go_ahead: GoAheadTask = (go_ahead.task_id, go_ahead.plan_task, go_ahead.approvers) if go_ahead else None

    def execute(self, context: Context) -> dict[str, str]:
        with self.push_lost_ownership(context):
            failover, attempt = self.find_attempt(context)
            approvals = read_go_ahead(context, self.go_ahead, partial(self.read_states, context), attempt)
            failover.refuse_expired(attempt, approvals)
            failover.refuse_taken_over(attempt)
            statuses = failover.finish(attempt, agreed_by=format_approvers(approvals))
            check_as_copied(*((status.run.id, status.steps) for status in statuses.values()))
        return {"run": attempt, "report": str(failover.page_path(attempt))}


class AnnounceSwitchedSet(BegunSetOperator):
    """Also when other mirrors have failed."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(outlets=[FENCED_ALIAS, ACTIVE_ALIAS], trigger_rule=TriggerRule.ALL_DONE, **kwargs)

    def execute(self, context: Context) -> list[str]:
        if self.pull_attempt(context) is None:
            raise AirflowSkipException("nothing was begun")
        with airflow_errors():
            failover, attempt = self.find_attempt(context)
            moved = failover.find_runs_after_step(attempt, SWITCH_STEP)
            mirrors = {name: find_mirror(name) for name in moved}
        for name, run in moved.items():
            emit_switched(*mirrors[name], run, context)
        return [str(name) for name in moved]


class CheckSetEnded(BegunSetOperator):
    """The leaf: green where all have moved, whatever tasks were marked as. As a single mirror's.

    A person may give members of a failback up before anything of theirs is changed: the others come home.
    """

    timeout = READ_TIMEOUT

    def execute(self, context: Context) -> None:
        with airflow_errors():
            conductor, attempt = self.find_attempt(context)
            last_step = list_step_names(self.kind, self.mode)[-1]
            moved = conductor.find_runs_after_step(attempt, last_step)
            left = [name for name in conductor.mirror_set.mirrors if name not in moved]
            if left and not (moved and self.kind is RunKind.FAILBACK and conductor.are_given_up(attempt, left)):
                why = f"step {last_step} is not done. To mark a task as success does nothing"
                raise Refused(
                    f"{self.kind} {attempt} of set {self.set_name}", [f"{name}: {why}" for name in left], "set_not_done"
                )


class CopySetBack(BegunSetOperator):
    """All of a failback that applications do not notice. Returns the reverse mirrors of those that are to go home."""

    timeout = COPY_TIMEOUT

    def __init__(self, *, replicate_dag: str = REPLICATE_DAG, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.replicate_dag = replicate_dag

    def execute(self, context: Context) -> list[str]:
        with self.push_lost_ownership(context):
            failback, attempt = self.find_attempt(context, list_step_names(RunKind.FAILBACK))
            failback.refuse_expired(attempt, ())
            failback.refuse_taken_over(attempt)
            members: Mapping[MirrorName, MemberRun] = failback.bring_close(attempt)
            due = [name for name, member in members.items() if member.phase is RunPhase.HOME_DUE]
            if not due:  # behind a mapped task without mirrors all is skipped
                raise Refused(
                    f"failback {attempt} of set {self.set_name}", ["all its mirrors are home"], "already_home"
                )
        return [str(format_reverse_name(name)) for name in due]


class ProtectSet(BegunSetOperator):
    """The last steps of mirrors whose applications are home, also when others are not. Returns all that are home."""

    def __init__(self, *, home_begin: BaseOperator, **kwargs: Any) -> None:
        super().__init__(outlets=[HOME_ALIAS], trigger_rule=TriggerRule.ALL_DONE, **kwargs)
        self.home_begin_task = home_begin.task_id

    def execute(self, context: Context) -> list[str]:
        if self.pull_attempt(context) is None or self.pull_attempt(context, self.home_begin_task) is None:
            raise AirflowSkipException("the failover home was not begun")
        with self.push_lost_ownership(context):
            failback, attempt = self.find_attempt(context, list_step_names(RunKind.FAILBACK)[-1:])
            failback.refuse_taken_over(attempt)
            members = failback.finish(attempt)
            home = {name: member.run.id for name, member in members.items() if member.phase is RunPhase.DONE}
            mirrors = {name: find_mirror(name) for name in home}
        for name, run in home.items():
            emit_home(*mirrors[name], run, context)
        return [str(name) for name in home]


class AbortSet(BegunSetOperator):
    """After a failure before the first promotion: let all mirrors go on. Otherwise change nothing."""

    def __init__(self, *, steps: Sequence[BaseOperator], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.step_tasks = tuple(task.task_id for task in steps)

    def execute(self, context: Context) -> str:
        attempt = self.pull_attempt(context)
        if attempt is None:
            return "nothing to abort: nothing was begun"
        if any(context["ti"].xcom_pull(task_ids=task, key=LOST_OWNERSHIP_KEY) for task in self.step_tasks):
            return "kept: another process took a run over; if none goes on, clear the failed task or resume them"
        with airflow_errors():
            lines = self.make_conductor(context).abort(attempt)
        return escape_invisible_lines("\n".join(lines)) or "nothing to abort: all runs have ended"


@dataclass(frozen=True, slots=True)
class MoveTasks:
    """Tasks of the failover of a set."""

    first: BaseOperator
    begin: BaseOperator
    moving: tuple[BaseOperator, BaseOperator]
    teardown: BaseOperator


def make_set_tasks(name: str, question: str, mode: str = RunMode.PLANNED) -> None:
    tasks = _make_move_tasks(name, question, RunMode(mode))
    common: dict[str, Any] = {"set_name": name, "kind": RunKind.FAILOVER}
    last_words = LogSetStatus(task_id=LAST_WORDS_TASK, begin=tasks.begin, **common).as_teardown()
    chain_tasks(tasks.teardown, last_words)
    [*tasks.moving] >> CheckSetEnded(task_id="done", begin=tasks.begin, mode=RunMode(mode), failback=None, **common)


def make_set_failback_tasks(name: str, question: str, home_question: str) -> None:
    """With the failover of the reverse mirrors in a task group `home`."""
    common: dict[str, Any] = {"set_name": name, "kind": RunKind.FAILBACK, "mode": RunMode.PLANNED, "failback": None}
    plan = PlanSet(task_id="plan", **common)
    approval_tasks = make_approval_tasks(plan, question)
    begin = BeginSet(task_id="begin", plan=plan, approvals=approval_tasks, **common)
    copy_back = CopySetBack(task_id="copy_back", begin=begin, **common)
    chain_tasks(plan, *approval_tasks, begin, copy_back)
    with TaskGroup("home"):
        home = _make_move_tasks(name, home_question, RunMode.PLANNED, (begin.task_id, plan.task_id))
    protect = ProtectSet(task_id="protect", begin=begin, home_begin=home.begin, **common)
    done = CheckSetEnded(task_id="done", begin=begin, **common)
    last_words = LogSetStatus(task_id=LAST_WORDS_TASK, set_name=name, kind=RunKind.FAILBACK, begin=begin)
    copying = [
        _map_replication(task_id, found.output, copy_back.replicate_dag)
        for task_id, found in (("replicate_reverse", copy_back), ("replicate", protect))
    ]
    copy_back >> home.first
    [*home.moving] >> protect
    [*copying, home.moving[0]] >> done
    [*copying, home.teardown] >> last_words.as_teardown()


def _map_replication(task_id: str, mirrors: XComArg, replicate_dag: str) -> Any:
    """A data plane for each."""
    return ReplicateMirror.partial(
        task_id=task_id, replicate_dag=replicate_dag, map_index_template=MAP_INDEX, **TASK_DEFAULTS
    ).expand(mirror=mirrors)


def _make_move_tasks(name: str, question: str, mode: RunMode, failback: FailbackTasks | None = None) -> MoveTasks:
    common: dict[str, Any] = {"set_name": name, "kind": RunKind.FAILOVER, "mode": mode, "failback": failback}
    plan = PlanSet(task_id="plan", **common)
    approval_tasks = make_approval_tasks(plan, question)
    begin = BeginSet(task_id="begin", plan=plan, approvals=approval_tasks, **common)
    proofs = (
        [CompareSet(task_id="prove", begin=begin, **common)] if list_undisturbed_steps(RunKind.FAILOVER, mode) else []
    )
    go_ahead_question = GO_AHEAD_QUESTION.format(name=name)
    go_aheads = [GoAhead(task_id="go_ahead", question=go_ahead_question, plan=plan, proof=proof) for proof in proofs]
    move = CutOverSet(task_id=CUT_OVER_TASK, begin=begin, go_ahead=go_aheads[0] if go_aheads else None, **common)
    switched = AnnounceSwitchedSet(task_id="switched", begin=begin, **common)
    abort = AbortSet(task_id="abort", begin=begin, steps=(*proofs, move), **common)
    chain_tasks(plan, *approval_tasks, begin, *proofs, *go_aheads, move, switched, abort)
    # Set-up tasks run again when a later task is cleared: after an abort there are other runs, and their own proof.
    abort.as_teardown(setups=[task.as_setup() for task in (begin, *proofs)], on_failure_fail_dagrun=True)
    return MoveTasks(plan, begin, (move, switched), abort)
