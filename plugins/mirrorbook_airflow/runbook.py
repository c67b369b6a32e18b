"""Tasks of the runbooks. Each phase is one step of a run of the core, which journals it: repeating a task is harmless.

plan >> approve >> begin >> the steps, with a teardown that aborts a failed run for as long as that is possible. Those
during which applications can write nowhere are one task, `cut_over`, together with the one that tells them where to go:
from task to task Airflow takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import BaseOperator, TaskGroup, TriggerRule
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from mirror_core.decide.certificate_coverage import check_as_copied
from mirror_core.decide.steps import (
    StepNeed,
    find_no_return_step,
    list_standstill_steps,
    list_step_names,
    list_steps_needing,
    list_undisturbed_steps,
)
from mirror_core.decide.truncation import AllowedStrategies
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.errors import LostOwnership, MirrorError, Refused
from mirror_core.model.figures import list_figure_rows
from mirror_core.model.names import MirrorName, format_reverse_name
from mirror_core.model.run import AIRFLOW_CONDUCTOR_PREFIX, RunKind, RunMode
from mirror_core.model.text import escape_invisible_lines
from mirrorbook_airflow.approvals import (
    ApprovePlan,
    ApproveSecond,
    GoAhead,
    GoAheadTask,
    find_planned_set,
    format_approvers,
    format_single_question,
    has_second_question,
    list_member_runs,
    make_approval_policy,
    read_go_ahead,
    read_shown_plan,
    record_shown_plan,
)
from mirrorbook_airflow.asset_events import ACTIVE_ALIAS, FENCED_ALIAS, HOME_ALIAS, emit_home, emit_switched
from mirrorbook_airflow.catch_up_wait import AwaitCatchUp
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.markdown import PROVE_STEP, format_comparisons, format_plan, format_set_plans
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
from mirrorbook_airflow.params import must_ask_two_people
from mirrorbook_airflow.replicate_tasks import DAG_ID as REPLICATE_DAG
from mirrorbook_airflow.replicate_tasks import ReplicateMirror
from mirrorbook_airflow.worker_services import make_services

if TYPE_CHECKING:
    from airflow.sdk import Context

    from mirror_core.model.run import StepRecord
    from mirror_core.runbook.failback_conductor import SetFailback
    from mirror_core.runbook.set_conductor import MemberRun
    from mirror_core.runbook.set_failover import SetFailover
    from mirror_core.state.mirror_link import MirrorLink
    from mirror_core.state.state_records import State

SWITCH_STEP: Final = "switch"
CUT_OVER_TASK: Final = "cut_over"
LAST_WORDS_TASK: Final = "last_words"
_WHOLE_LOG_STEPS: Final = frozenset(
    {
        "align",
        *(
            step
            for kind in RunKind
            for need in (StepNeed.SPARK, StepNeed.REVERSE_COPY)
            for step in list_steps_needing(kind, need)
        ),
    }
)
LOST_OWNERSHIP_KEY: Final = "lost"
"""XCom of a step whose run another process took over."""
LEAF_RULE: Final = TriggerRule.NONE_FAILED
"""Anybody who may clear tasks may mark one as skipped: a leaf that is skipped with it makes a green run."""
FailbackTasks = tuple[str, str]
"""Ids of the tasks that begin a failback and plan it."""


class RunOperator(BaseOperator):
    """A task of the failover or the failback of a mirror, or of a set of mirrors that go together."""

    template_fields: Sequence[str] = ("mirror", "set_name", "strategies")
    timeout: ClassVar[timedelta] = CHANGE_TIMEOUT

    def __init__(
        self,
        *,
        mirror: str = "",
        set_name: str = "",
        kind: RunKind = RunKind.FAILOVER,
        mode: RunMode = RunMode.PLANNED,
        strategies: str = "",
        failback: FailbackTasks | None = None,
        **kwargs: Any,
    ) -> None:
        """`failback`: this is the failover home of a set."""
        super().__init__(**{**TASK_DEFAULTS, "execution_timeout": self.timeout, **kwargs})
        self.mirror = mirror
        self.set_name = set_name
        self.kind = kind
        self.mode = mode
        self.strategies = strategies
        self.failback = failback
        self.plan_task = ""

    def find_members(self, context: Context) -> MirrorSet:
        """Those that were planned, as soon as they were. A mirror alone is a set without a name."""
        if self.mirror:
            return MirrorSet("", (MirrorName(self.mirror),))
        if self.plan_task:
            return find_planned_set(context, self.plan_task, self.set_name, self.kind)
        return self._find_way_home(context, *self.failback) if self.failback else find_set(self.set_name, self.kind)

    def _find_way_home(self, context: Context, begin_task: str, plan_task: str) -> MirrorSet:
        """The reverse mirrors of those that are to go home."""
        attempt = context["ti"].xcom_pull(task_ids=begin_task)
        members = find_planned_set(context, plan_task, self.set_name, RunKind.FAILBACK)
        failback: Any = self._make_conductor(members, RunKind.FAILBACK, context, ())
        failback.refuse_superseded(attempt)
        way_home = failback.make_way_home(attempt)
        if way_home is None:
            raise Refused(f"failback {attempt} of set {self.set_name}", ["all its mirrors are home"], "already_home")
        home_set: MirrorSet = way_home.mirror_set
        return home_set

    def make_conductor(self, context: Context, steps: Sequence[str] = ()) -> SetFailover | SetFailback:
        """For these steps; all tasks of the DAG run conduct in the same name."""
        return self._make_conductor(self.find_members(context), self.kind, context, steps)

    def _make_conductor(
        self, members: MirrorSet, kind: RunKind, context: Context, steps: Sequence[str]
    ) -> SetFailover | SetFailback:
        from mirror_core.runbook.failback_conductor import Failback, SetFailback
        from mirror_core.runbook.failover_conductor import Failover
        from mirror_core.runbook.set_failover import SetFailover

        params, conductor_class = context["params"], Failover if kind is RunKind.FAILOVER else Failback
        links = {name: find_mirror(name)[0] for name in members.mirrors}
        conductors: Any = {
            name: conductor_class(
                link,
                make_services(link.config.path, steps, params["master"]),
                started_by=format_conductor(context),
                print_line=partial(self.log_line, prefix="" if members.is_mirror_alone else f"{name}: "),
                gate_limit_s=params.get("gate_limit_s"),
                leave_behind=bool(params.get("leave_behind")),
            )
            for name, link in links.items()
        }
        if kind is RunKind.FAILOVER:
            return SetFailover(members, conductors, self.mode, print_line=self.log_line)
        allowed = AllowedStrategies.parse(tuple(self.strategies.split()))
        return SetFailback(members, conductors, allowed, print_line=self.log_line)

    def read_states(self, context: Context) -> list[tuple[MirrorLink, State]]:
        return [find_mirror(name) for name in self.find_members(context).mirrors]

    def log_line(self, line: str, prefix: str = "") -> None:
        """Escaped: names may hold control characters."""
        self.log.info("%s", escape_invisible_lines(f"{prefix}{line}"))


def format_conductor(context: Context) -> str:
    """The DAG run, and the user who triggered it."""
    run = context["dag_run"]
    person = getattr(run, "triggering_user_name", None)
    return f"{AIRFLOW_CONDUCTOR_PREFIX}{run.dag_id}/{run.run_id}" + (f" by {person}" if person else "")


class PlanRun(RunOperator):
    """Fails with every reason when the plan, or one of a set, may not be run now."""

    def execute(self, context: Context) -> dict[str, Any]:
        with airflow_errors():
            conductor = self.make_conductor(context)
            decided, members = conductor.decide(), conductor.mirror_set
            plans = [decision.plan for decision in decided.decisions.values()]
            is_alone = members.is_mirror_alone
            body = format_plan(plans[0]) if is_alone else format_set_plans(members, decided.hash, plans)
            asks_again = self.kind is RunKind.FAILBACK or has_second_question(context, self.mode)
            body = body if asks_again else format_single_question(body)
            if decided.reasons:
                self.log.info("%s", body)
                raise Refused(conductor.title, decided.reasons, "" if is_alone else "set_plan_refused")
            record_shown_plan(
                context,
                self.task_id,
                [find_mirror(name) for name in members.mirrors],
                decided.hash,
                body,
                decided.silent,
                asks_again=asks_again,
                of_set=None if is_alone else members,
            )
        return {"hash": decided.hash, "body": body}


class BeginRun(RunOperator):
    """Opens runs of the approved plans if they still hold, or resumes its own; returns the id of the run, or of all."""

    def __init__(
        self, *, plan: BaseOperator, approvals: Sequence[BaseOperator], approvers: Sequence[str] = (), **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.plan_task = plan.task_id
        self.approval_tasks = tuple(task.task_id for task in approvals)
        self.approvers = tuple(approvers)

    def execute(self, context: Context) -> str:
        with airflow_errors():
            conductor, started_by = self.make_conductor(context), format_conductor(context)
            plan = read_shown_plan(context, self.plan_task, self.read_states(context))
            own = conductor.find_active_attempt(started_by=started_by, plan_hash=plan.plan_hash)
            if own is not None:
                return own
            if (unbegun := conductor.find_unbegun_attempt(started_by=started_by)) is not None:
                conductor.abort(unbegun)  # its own, whose process was killed: what was approved is begun as a whole
            policy = make_approval_policy(context, self.plan_task, self.approval_tasks, self.approvers)
            return conductor.begin(plan.plan_hash, approved_by=policy, silent=plan.silent_sources)


def get_timeout(steps: Sequence[str]) -> timedelta:
    if any(set(steps) & set(list_standstill_steps(RunKind.FAILOVER, mode)) for mode in RunMode):
        return CUT_OVER_TIMEOUT
    return COPY_TIMEOUT if _WHOLE_LOG_STEPS.intersection(steps) else CHANGE_TIMEOUT


class BegunRunOperator(RunOperator):
    """A task behind the one that has begun the run, or the runs of a set."""

    def __init__(self, *, begin: BaseOperator, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.begin_task, self.plan_task = begin.task_id, getattr(begin, "plan_task", "")

    def pull_attempt(self, context: Context, begin_task: str = "") -> Any:
        """Id of the run, or of all of a set; None where nothing was begun."""
        return context["ti"].xcom_pull(task_ids=begin_task or self.begin_task)

    def require_attempt(self, context: Context) -> Any:
        """Raises AirflowSkipException where nothing was planned: a team's branch may lead past a runbook."""
        attempt = self.pull_attempt(context)
        if attempt is None:
            if context["ti"].xcom_pull(task_ids=self.plan_task) is None:
                raise AirflowSkipException(f"task {self.plan_task} has planned nothing")
            raise AirflowFailException(f"task {self.begin_task} has begun nothing: applications were not moved")
        return attempt

    def find_attempt(self, context: Context, steps: Sequence[str] = ()) -> tuple[SetFailover | SetFailback, str]:
        """Its conductor, and its id. Refused where the runs are no longer of this DAG run."""
        conductor, attempt = self.make_conductor(context, steps), self.pull_attempt(context)
        conductor.refuse_superseded(attempt)
        return conductor, attempt

    @contextmanager
    def push_lost_ownership(self, context: Context) -> Iterator[None]:
        """Leaves a lost run to the teardown."""
        with airflow_errors():
            try:
                yield
            except LostOwnership:
                context["ti"].xcom_push(key=LOST_OWNERSHIP_KEY, value=True)
                raise


class RunSteps(BegunRunOperator):
    """Runs consecutive steps. Finished ones are not repeated; the core refuses them while an earlier one is open."""

    def __init__(self, *, steps: Sequence[str], go_ahead: GoAhead | None = None, **kwargs: Any) -> None:
        super().__init__(**{"execution_timeout": get_timeout(steps), **kwargs})
        self.steps = tuple(steps)
        self.go_ahead: GoAheadTask = (go_ahead.task_id, go_ahead.plan_task, go_ahead.approvers) if go_ahead else None

    def execute(self, context: Context) -> Any:
        with self.push_lost_ownership(context):
            conductor, attempt = self.find_attempt(context, self.steps)
            approvals = read_go_ahead(context, self.go_ahead, partial(self.read_states, context), attempt)
            if self._find_approved_step() in self.steps:
                conductor.refuse_expired(attempt, approvals)  # a task may be cleared days after its approval
            conductor.refuse_taken_over(attempt)
            members = self._run_steps(conductor, attempt, format_approvers(approvals))
            records = {name: [r for r in member.steps if r.step in self.steps] for name, member in members.items()}
            self._log_figures(records)
            check_as_copied(*((members[name].run.id, steps) for name, steps in records.items()))
        if PROVE_STEP not in self.steps:
            return {"run": attempt} if self.mirror else {"run": attempt, "report": str(conductor.page_path(attempt))}
        compared_runs = ((member.run, member.steps) for member in members.values())
        return {"run": attempt, "said": format_comparisons(compared_runs, get_page_root())}

    def _find_approved_step(self) -> str:
        """The first one that stops applications, or changes the old source."""
        is_failover = self.kind is RunKind.FAILOVER
        return list_standstill_steps(self.kind, self.mode)[0] if is_failover else find_no_return_step(self.kind)

    def _run_steps(
        self, conductor: SetFailover | SetFailback, attempt: str, agreed_by: str
    ) -> Mapping[MirrorName, MemberRun]:
        try:
            return conductor.run_steps(attempt, self.steps, agreed_by=agreed_by)
        except LostOwnership:
            # A failback writes the reverse mirror's state, too, which no run holds yet: a sync may take it from us.
            open_runs = conductor.list_open_runs(attempt).values()
            if self.kind is RunKind.FAILOVER or any(run.conducted_by != conductor.started_by for run in open_runs):
                raise
            return conductor.run_steps(attempt, self.steps, agreed_by=agreed_by)

    def _log_figures(self, records: Mapping[MirrorName, Sequence[StepRecord]]) -> None:
        for name, steps in records.items():
            for step in steps:
                for label, text in list_figure_rows(step.evidence):
                    self.log_line(f"{step.step}: {label}: {text}", "" if self.mirror else f"{name}: ")


class AnnounceStep(RunSteps):
    """Emits events of a step for mirrors that have got so far, also when others failed. Returns their names."""

    def __init__(self, *, step: str, steps: Sequence[str] = (), after: Sequence[BaseOperator] = (), **kwargs: Any):
        """`after`: what a set must have begun, too."""
        outlets, self.emit = _ANNOUNCED_STEPS[step]
        super().__init__(steps=steps, outlets=list(outlets), **kwargs)
        self.step = step
        self.begin_tasks = (self.begin_task, *(task.task_id for task in after))

    def execute(self, context: Context) -> list[str]:
        unbegun = [task for task in self.begin_tasks if self.pull_attempt(context, task) is None]
        if unbegun and self.set_name:
            raise AirflowSkipException(f"nothing was begun by {', '.join(unbegun)}")
        if self.steps:
            super().execute(context)
        with airflow_errors():
            conductor, attempt = self.find_attempt(context)
            runs = conductor.find_runs_after_step(attempt, self.step)
            mirrors = {name: find_mirror(name) for name in runs}
        for name, run in runs.items():
            self.emit(*mirrors[name], run, context)
        return [str(name) for name in runs]


_ANNOUNCED_STEPS: Final = {
    SWITCH_STEP: ((FENCED_ALIAS, ACTIVE_ALIAS), emit_switched),
    list_step_names(RunKind.FAILBACK)[-1]: ((HOME_ALIAS,), emit_home),
}
"""Steps with asset events: their aliases, and the emitter."""


class CopySetBack(RunSteps):
    """All of a failback that applications do not notice. Returns the reverse mirrors of those that are to go home."""

    def __init__(self, *, replicate_dag: str = REPLICATE_DAG, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.replicate_dag = replicate_dag

    def execute(self, context: Context) -> list[str]:
        super().execute(context)
        with airflow_errors():  # behind a mapped task without mirrors all is skipped: refused if all are home
            return [str(name) for name in self._find_way_home(context, self.begin_task, self.plan_task).mirrors]


class CheckEnded(BegunRunOperator):
    """The leaf: green where the run, or all of a set, has ended well and stands, whatever its tasks were marked as.

    Teardowns don't count for the state of a DAG run; behind a rejected or failed task this one is what makes it red.
    """

    timeout = READ_TIMEOUT

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(trigger_rule=LEAF_RULE, **kwargs)

    def execute(self, context: Context) -> None:
        self.require_attempt(context)
        with airflow_errors():
            conductor, attempt = self.find_attempt(context)
            conductor.refuse_unfinished(attempt)


class LogStatus(BegunRunOperator):
    """Write access, pending fences and the next command: by the run that was begun, else by the newest.

    A teardown without a set-up task: it also runs when a plan was rejected. A silent destination hides no other mirror.
    """

    timeout = READ_TIMEOUT

    def execute(self, context: Context) -> str:
        begun = self.pull_attempt(context)
        with airflow_errors():
            try:
                mirrors = self.find_members(context).mirrors
            except MirrorError:  # what was planned cannot be told; who writes where can, of those that answer
                mirrors = find_set(self.set_name, self.kind).mirrors
        lines = [
            f"{'' if self.mirror else f'{name}: '}{line}"
            for name in mirrors
            for line in _read_status_lines(name, begun)
        ]
        for line in lines:
            self.log_line(line)
        return "\n".join(map(escape_invisible_lines, lines))


def _read_status_lines(mirror: str, begun: str | None) -> Sequence[str]:
    """`begun`: id of the run, or of the set's."""
    from mirror_core.runbook.run_outcome import read_mirror_status

    try:
        link, state = find_mirror(mirror)
    except MirrorError as error:
        return (f"Who can write where is not known here: {error}",)
    run_ids = [run.id for run, _, _ in list_member_runs(begun, [(link, state)])] if begun else []
    return read_mirror_status(link, next(iter(run_ids), None))


class AbortRun(BegunRunOperator):
    """After a failure before the point of no return, the first one of a set: let the mirrors go on. Otherwise change
    nothing.

    A step that failed because somebody else took a run over is no failure of the run: it is theirs to end it.
    """

    def __init__(self, *, steps: Sequence[BaseOperator], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.step_tasks = tuple(step.task_id for step in steps)

    def execute(self, context: Context) -> str:
        attempt = self.pull_attempt(context)
        if attempt is None:
            return "nothing to abort: nothing was begun"
        with airflow_errors():
            conductor = self.make_conductor(context)
            if not conductor.list_open_runs(attempt):
                lines = ["nothing to abort: all runs have ended"]
            elif any(context["ti"].xcom_pull(task_ids=task, key=LOST_OWNERSHIP_KEY) for task in self.step_tasks):
                lines = ["kept: another process took a run over; if none goes on, clear the failed task or resume it"]
            else:
                lines = [*conductor.abort(attempt)]
            for line in conductor.read_statuses(attempt)[MirrorName(self.mirror)] if self.mirror else ():
                self.log_line(line)  # a set has a task of its own for it
        return escape_invisible_lines("\n".join(lines))


@dataclass(frozen=True, slots=True)
class MoveTasks:
    """Tasks of the failover of a mirror, or of a set."""

    first: BaseOperator
    begin: BaseOperator
    ends: Sequence[BaseOperator]
    """All must have succeeded: the last one of a set does, also behind one that failed."""
    teardown: BaseOperator


def make_failover_tasks(target: Mapping[str, Any], mode: RunMode = RunMode.PLANNED) -> None:
    common: dict[str, Any] = {**target, "kind": RunKind.FAILOVER, "mode": mode}
    lost = f" without its source{'' if target['mirror'] else 's'}? Records that were not copied will be lost."
    question = f"Fail over {format_target(target)}{'?' if mode is RunMode.PLANNED else lost}"
    tasks = _make_move_tasks(question, common)
    common["begin"] = tasks.begin
    if not target["mirror"]:
        tasks.teardown >> LogStatus(task_id=LAST_WORDS_TASK, **common).as_teardown()
    [*tasks.ends] >> CheckEnded(task_id="done", **common)


def _make_move_tasks(question: str, common: dict[str, Any]) -> MoveTasks:
    """Steps of a set have no tasks of their own from `cut_over` on: its mirrors wait for each other there."""
    plan, begin = make_begin_tasks(question, **common)
    common = {**common, "begin": begin}
    is_alone, mode = bool(common["mirror"]), common["mode"]
    order, before = list_step_names(RunKind.FAILOVER, mode), list_undisturbed_steps(RunKind.FAILOVER, mode)
    switched_count = order.index(SWITCH_STEP) + 1
    cut_over_steps = order[len(before) : switched_count if is_alone else len(order)]
    proofs = [RunSteps(task_id=name, steps=(name,), **common) for name in before]
    go_ahead_question = f"Stop applications of {format_target(common)} now?"
    go_aheads = [GoAhead(task_id="go_ahead", question=go_ahead_question, plan=plan, proof=proof) for proof in proofs]
    go_ahead = next(iter(go_aheads), None)
    cut_over = RunSteps(task_id=CUT_OVER_TASK, steps=cut_over_steps, go_ahead=go_ahead, **common)
    after: list[RunSteps]
    if is_alone:
        after = [AnnounceStep(task_id=SWITCH_STEP, step=SWITCH_STEP, steps=(SWITCH_STEP,), **common)]
        after += [RunSteps(task_id=name, steps=(name,), **common) for name in order[switched_count:]]
    else:
        after = [AnnounceStep(task_id="switched", step=SWITCH_STEP, trigger_rule=TriggerRule.ALL_DONE, **common)]
    abort = AbortRun(task_id="abort", steps=[*proofs, cut_over, *after], **common)
    chain_tasks(begin, *proofs, *go_aheads, cut_over, *after, abort)
    # Set-up tasks run again when a later task is cleared: after an abort there is another run, and its own proof.
    abort.as_teardown(setups=[task.as_setup() for task in (begin, *proofs)], on_failure_fail_dagrun=True)
    return MoveTasks(plan, begin, after[-1:] if is_alone else [cut_over, *after], abort)


def make_failback_tasks(target: Mapping[str, Any], strategies: str) -> None:
    """With the failover of the reverse mirrors in a task group `home`."""
    mirror, common = target["mirror"], {**target, "kind": RunKind.FAILBACK, "mode": RunMode.PLANNED}
    plan, begin = make_begin_tasks(f"Fail back {format_target(target)}?", strategies=strategies, **common)
    common["begin"] = begin
    last_steps = list_steps_needing(RunKind.FAILBACK, StepNeed.REVERSE_FAILOVER)
    steps = tuple(name for name in list_step_names(RunKind.FAILBACK) if name not in last_steps)
    if mirror:
        home_target = name_mirror(format_reverse_name(MirrorName(mirror)))
        back: list[Any] = [*_make_mirror_back_tasks(mirror, steps, common)]
    else:
        home_target = {**target, "failback": (begin.task_id, plan.task_id)}
        back = [CopySetBack(task_id="copy_back", steps=steps, **common)]
    chain_tasks(begin, *back)
    with TaskGroup("home"):
        home_question = f"Bring applications of {format_target(target)} home?"
        home = _make_move_tasks(home_question, {**home_target, "kind": RunKind.FAILOVER, "mode": RunMode.PLANNED})
    back[-1] >> home.first
    protect = AnnounceStep(
        task_id="reprotect" if mirror else "protect",
        step=last_steps[-1],
        steps=last_steps,
        after=(home.begin,),
        trigger_rule=TriggerRule.ALL_SUCCESS if mirror else TriggerRule.ALL_DONE,
        **common,
    )
    [*home.ends] >> protect
    if mirror:
        copying = [ReplicateMirror(task_id="replicate", mirror=mirror)]
        protect >> copying[0]
    else:
        replications = (("replicate_reverse", back[0]), ("replicate", protect))
        copying = [_map_replication(name, mirrors, back[0].replicate_dag) for name, mirrors in replications]
    done = CheckEnded(task_id="done", **common)
    [*copying, home.ends[0]] >> done
    [*copying, home.teardown] >> LogStatus(task_id=LAST_WORDS_TASK, **common).as_teardown()


def _make_mirror_back_tasks(mirror: str, steps: Sequence[str], common: dict[str, Any]) -> Iterator[BaseOperator]:
    for step in steps:
        if step in list_steps_needing(RunKind.FAILBACK, StepNeed.REVERSE_COPY):
            yield ReplicateMirror(task_id="replicate_reverse", mirror=format_reverse_name(MirrorName(mirror)))
            yield AwaitCatchUp(task_id="await_copy", mirror=mirror, begin=common["begin"])
        yield RunSteps(task_id=step, steps=(step,), **common)


def _map_replication(task_id: str, mirrors: BaseOperator, replicate_dag: str) -> Any:
    """A data plane for each."""
    return ReplicateMirror.partial(
        task_id=task_id, replicate_dag=replicate_dag, map_index_template=MAP_INDEX, **TASK_DEFAULTS
    ).expand(mirror=mirrors.output)


def make_begin_tasks(question: str, **common: Any) -> tuple[PlanRun, BeginRun]:
    """The plan, its approval, and what begins it."""
    plan = PlanRun(task_id="plan", **common)
    approval_tasks = make_approval_tasks(plan, question)
    begin = BeginRun(task_id="begin", plan=plan, approvals=approval_tasks, **common)
    chain_tasks(plan, *approval_tasks, begin)
    return plan, begin


def name_mirror(mirror: str) -> dict[str, Any]:
    """Arguments of a task for a mirror alone. All are given: a DAG's `default_args` fill in what is not."""
    return {"mirror": mirror, "set_name": "", "failback": None}


def name_set(name: str) -> dict[str, Any]:
    return {**name_mirror(""), "set_name": name}


def format_target(target: Mapping[str, Any]) -> str:
    return f"mirror {target['mirror']}" if target["mirror"] else f"set {target['set_name']}"


def make_approval_tasks(plan: BaseOperator, question: str) -> tuple[BaseOperator, ...]:
    """One, or two where a second person must approve."""
    first = ApprovePlan(task_id="approve", question=question, plan=plan)
    if not must_ask_two_people():
        return (first,)
    return first, ApproveSecond(task_id="approve_second", question=question, plan=plan, first=first)


def chain_tasks(*tasks: BaseOperator) -> BaseOperator:
    """Returns the last one."""
    for earlier, later in pairwise(tasks):
        earlier >> later
    return tasks[-1]
