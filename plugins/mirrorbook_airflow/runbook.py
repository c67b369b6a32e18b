"""Tasks of the runbooks. Each phase is one step of a run of the core, which journals it: repeating a task is harmless.

plan >> approve >> begin >> the steps, with a teardown that aborts a failed run for as long as that is possible. Those
during which applications can write nowhere are one task, `cut_over`, together with the one that tells them where to go:
from task to task Airflow takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator, TaskGroup

from mirror_core.decide.certificate_coverage import check_as_copied
from mirror_core.decide.source_probe import format_planned_failover_hint, format_waiting_run
from mirror_core.decide.steps import (
    RUN_STEPS,
    StepNeed,
    find_no_return_step,
    list_standstill_steps,
    list_step_names,
    list_steps_needing,
)
from mirror_core.decide.truncation import AllowedStrategies
from mirror_core.model.errors import LostOwnership, Refused
from mirror_core.model.figures import list_figure_rows
from mirror_core.model.names import MirrorName, format_reverse_name
from mirror_core.model.run import AIRFLOW_CONDUCTOR_PREFIX, RunKind, RunMode
from mirror_core.model.text import escape_invisible, escape_invisible_lines
from mirrorbook_airflow.approvals import (
    ApprovePlan,
    ApproveSecond,
    GoAhead,
    GoAheadApprovals,
    GoAheadTask,
    format_approvers,
    format_single_question,
    has_second_question,
    make_approval_policy,
    read_go_ahead,
    read_shown_plan,
    record_shown_plan,
)
from mirrorbook_airflow.asset_events import ACTIVE_ALIAS, FENCED_ALIAS, HOME_ALIAS, emit_home, emit_switched
from mirrorbook_airflow.catch_up_wait import AwaitCatchUp
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.markdown import PROVE_STEP, format_comparisons, format_plan
from mirrorbook_airflow.mirror_lookup import find_mirror
from mirrorbook_airflow.operators import CHANGE_TIMEOUT, COPY_TIMEOUT, CUT_OVER_TIMEOUT, READ_TIMEOUT, MirrorOperator
from mirrorbook_airflow.page import get_page_root
from mirrorbook_airflow.params import must_ask_two_people
from mirrorbook_airflow.replicate_tasks import ReplicateMirror
from mirrorbook_airflow.run_status import LAST_WORDS_TASK, LogMirrorStatus
from mirrorbook_airflow.worker_services import make_services

if TYPE_CHECKING:
    from airflow.sdk import Context

    from mirror_core.model.run import Run, StepRecord
    from mirror_core.runbook.failback_conductor import Failback
    from mirror_core.runbook.failover_conductor import Failover
    from mirror_core.state.state_records import State

STANDSTILL_STEP: Final = list_standstill_steps(RunKind.FAILOVER)[0]
"""The step from which on a planned failover keeps applications from writing."""
SWITCH_STEP: Final = "switch"
CUT_OVER_TASK: Final = "cut_over"
GO_AHEAD_QUESTION: Final = "Stop applications of mirror {mirror} now?"
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


class RunOperator(MirrorOperator):
    timeout = CHANGE_TIMEOUT

    template_fields: Sequence[str] = ("mirror", "strategies")

    def __init__(self, *, kind: RunKind, mode: RunMode = RunMode.PLANNED, strategies: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind = kind
        self.mode = mode
        self.strategies = strategies

    @property
    def plan_choice(self) -> Any:
        """A failover's mode; a failback's allowed strategies."""
        return self.mode if self.kind is RunKind.FAILOVER else AllowedStrategies.parse(tuple(self.strategies.split()))

    def make_conductor(self, context: Context, steps: Sequence[str] = ()) -> Failover | Failback:
        """For these steps; all tasks of the DAG run conduct in the same name."""
        from mirror_core.runbook.failback_conductor import Failback
        from mirror_core.runbook.failover_conductor import Failover

        link, _ = find_mirror(self.mirror)
        conductor_class = Failover if self.kind is RunKind.FAILOVER else Failback
        params = context["params"]
        return conductor_class(
            link,
            make_services(link.config.path, steps, params["master"]),
            started_by=format_conductor(context),
            print_line=self.log_line,
            gate_limit_s=params.get("gate_limit_s"),
            leave_behind=self.mode is RunMode.PLANNED and bool(params.get("leave_behind")),
        )

    def log_line(self, line: str) -> None:
        """Escaped: names may hold control characters."""
        self.log.info("%s", escape_invisible_lines(line))


def format_conductor(context: Context) -> str:
    """The DAG run, and the user who triggered it."""
    run = context["dag_run"]
    person = getattr(run, "triggering_user_name", None)
    return f"{AIRFLOW_CONDUCTOR_PREFIX}{run.dag_id}/{run.run_id}" + (f" by {person}" if person else "")


class PlanRun(RunOperator):
    """Fails with every reason when the plan may not be run now."""

    def execute(self, context: Context) -> dict[str, Any]:
        with airflow_errors():
            engine: Any = self.make_conductor(context)
            is_unplanned = self.mode is RunMode.UNPLANNED
            decision, silent = engine.decide_unplanned() if is_unplanned else (engine.decide(self.plan_choice), False)
            asks_again = self.kind is RunKind.FAILBACK or has_second_question(context, self.mode)
            body = format_plan(decision.plan) if asks_again else format_single_question(format_plan(decision.plan))
            if decision.reasons:
                self.log.info("%s", body)
                raise Refused(f"{self.kind} of mirror {self.mirror}", decision.reasons)
            silent_sources = (MirrorName(self.mirror),) if silent else ()
            record_shown_plan(
                context,
                self.task_id,
                [find_mirror(self.mirror)],
                decision.plan.hash,
                body,
                silent_sources,
                asks_again=asks_again,
            )
        return {"hash": decision.plan.hash, "body": body}


class BeginRun(RunOperator):
    """Opens a run of the approved plan if it still holds, or resumes its own; returns the run's id."""

    def __init__(
        self, *, plan: BaseOperator, approvals: Sequence[BaseOperator], approvers: Sequence[str] = (), **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.plan_task = plan.task_id
        self.approval_tasks = tuple(task.task_id for task in approvals)
        self.approvers = tuple(approvers)

    def execute(self, context: Context) -> str:
        with airflow_errors():
            engine = self.make_conductor(context)
            plan = read_shown_plan(context, self.plan_task, [find_mirror(self.mirror)])
            own = engine.find_run_to_resume(plan.plan_hash, self.mode)
            if own is not None:
                return own.id
            policy = make_approval_policy(context, self.plan_task, self.approval_tasks, self.approvers)
            return engine.begin(
                plan.plan_hash, self.plan_choice, approved_by=policy, silent=bool(plan.silent_sources)
            ).id


def get_timeout(steps: Sequence[str]) -> timedelta:
    if any(set(steps) & set(list_standstill_steps(RunKind.FAILOVER, mode)) for mode in RunMode):
        return CUT_OVER_TIMEOUT
    return COPY_TIMEOUT if _WHOLE_LOG_STEPS.intersection(steps) else CHANGE_TIMEOUT


class RunSteps(RunOperator):
    """Runs consecutive steps. Finished ones are not repeated; the core refuses them while an earlier one is open."""

    def __init__(
        self, *, steps: Sequence[str], begin: BaseOperator, go_ahead: GoAhead | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**{"execution_timeout": get_timeout(steps), **kwargs})
        self.steps = tuple(steps)
        self.begin_task = begin.task_id
        self.go_ahead: GoAheadTask = (go_ahead.task_id, go_ahead.plan_task, go_ahead.approvers) if go_ahead else None

    def execute(self, context: Context) -> dict[str, object]:
        run = context["ti"].xcom_pull(task_ids=self.begin_task)
        with airflow_errors():
            engine = self.make_conductor(context, self.steps)
            engine.refuse_foreign_run(run)
            people = read_go_ahead(context, self.go_ahead, lambda: [find_mirror(self.mirror)], run)
            agreed_by = format_approvers(people)
            self._refuse_expired(engine, run, people)
            if engine.read_status(run)[0].conducted_by != engine.started_by:
                # A person has taken the run over, and may still be at work.
                engine.refuse_conducted(run, f"run {run}: {', '.join(self.steps)}")
            try:
                records = self._run_steps(engine, run, agreed_by)
            except LostOwnership:
                context["ti"].xcom_push(key=LOST_OWNERSHIP_KEY, value=True)
                raise
        for record in records:
            for label, text in list_figure_rows(record.evidence):
                self.log.info("%s: %s: %s", record.step, label, escape_invisible(text))
        with airflow_errors():
            check_as_copied((run, records))
        done = {"run": run, "attempts": {record.step: record.attempt for record in records}}
        if PROVE_STEP in self.steps:
            done["said"] = format_comparisons([engine.read_status(run)], get_page_root())
        return done

    def _refuse_expired(self, engine: Failover | Failback, run: str, people: GoAheadApprovals) -> None:
        """A task may be cleared days after its approval."""
        failover = self.kind is RunKind.FAILOVER
        first = list_standstill_steps(self.kind, self.mode)[0] if failover else find_no_return_step(self.kind)
        if self.steps[0] == first:
            engine.refuse_expired(run, people)

    def _run_steps(self, engine: Failover | Failback, run: str, agreed_by: str) -> tuple[StepRecord, ...]:
        try:
            return engine.run_steps(run, self.steps, agreed_by=agreed_by)
        except LostOwnership:
            # A failback writes the reverse mirror's state, too, which no run holds yet: a sync may take it from us.
            if self.kind is RunKind.FAILOVER or engine.read_status(run)[0].conducted_by != engine.started_by:
                raise
            return engine.run_steps(run, self.steps, agreed_by=agreed_by)


class RunAnnouncedStep(RunSteps):
    """A step with asset events, whoever ran it. A repeated task emits them again; `cut_over` runs `switch` before."""

    def __init__(self, *, steps: Sequence[str], **kwargs: Any) -> None:
        outlets, self.emit = _ANNOUNCED_STEPS[steps[-1]]
        super().__init__(steps=steps, outlets=list(outlets), **kwargs)

    def execute(self, context: Context) -> dict[str, object]:
        done = super().execute(context)
        with airflow_errors():
            link, state = find_mirror(self.mirror)
        self.emit(link, state, str(done["run"]), context)
        return done


_ANNOUNCED_STEPS: Final = {
    SWITCH_STEP: ((FENCED_ALIAS, ACTIVE_ALIAS), emit_switched),
    list_step_names(RunKind.FAILBACK)[-1]: ((HOME_ALIAS,), emit_home),
}
"""Steps with asset events: their aliases, and the emitter."""


class CheckEnded(RunOperator):
    """The leaf: green where the run has ended well and stands, whatever its tasks were marked as.

    Teardowns don't count for the state of a DAG run; behind a rejected or failed task this one is what makes it red.
    """

    timeout = READ_TIMEOUT

    def __init__(self, *, begin: BaseOperator, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.begin_task = begin.task_id

    def execute(self, context: Context) -> None:
        run = context["ti"].xcom_pull(task_ids=self.begin_task)
        with airflow_errors():
            engine = self.make_conductor(context)
            engine.refuse_foreign_run(run)
            engine.refuse_unfinished(run)


class AbortRun(RunOperator):
    """After a failure before the point of no return: un-fence, and let the mirror go on. Otherwise change nothing.

    A step that failed because somebody else took the run over is no failure of the run: it is theirs to end it.
    """

    def __init__(self, *, begin: BaseOperator, steps: Sequence[BaseOperator], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.begin_task = begin.task_id
        self.step_tasks = tuple(step.task_id for step in steps)

    def execute(self, context: Context) -> str:
        from mirror_core.runbook.run_outcome import read_run_outcome

        run_id = context["ti"].xcom_pull(task_ids=self.begin_task)
        with airflow_errors():
            link, state = find_mirror(self.mirror)
            run = state.runs.get(run_id)
            outcome = self._abort_if_allowed(context, state, run)
            for line in read_run_outcome(link, run) if run else ():
                self.log.info("%s", line)
        return outcome

    def _abort_if_allowed(self, context: Context, state: State, run: Run | None) -> str:
        from mirror_core.runbook.run_outcome import is_awaiting_confirmation
        from mirror_core.state.point_of_no_return import is_past_no_return

        if run is None or run.ended_ms is not None:
            return "nothing to abort: the run has ended"
        if is_past_no_return(state, run):
            return "kept: past the point of no return; clear the failed task, and the run goes on"
        if any(context["ti"].xcom_pull(task_ids=task, key=LOST_OWNERSHIP_KEY) for task in self.step_tasks):
            return "kept: another process took the run over; if none goes on, clear the failed task or resume it"
        engine, awaits_confirmation = self.make_conductor(context), is_awaiting_confirmation(state, run)
        fenced = run.plan.mode is RunMode.PLANNED and (run.id, STANDSTILL_STEP) in state.steps
        if (fenced or awaits_confirmation) and not engine.can_reach_source():
            if awaits_confirmation:
                return format_waiting_run(run.plan.mirror, engine.link.source.name)
            return (  # given up, it would not know any more what it has fenced and drained
                "kept: the source does not answer. If it is lost, trigger mirror_failover_unplanned: it goes on "
                "from here. If it comes back, clear the failed task, or abort the run by the command line"
            )
        try:
            ended = engine.abort(run.id, only_mine=True)
        except LostOwnership as error:
            return f"kept: {error}"
        message = f"aborted: {ended.note or 'applications may write on the source again'}"
        return f"{message}. {format_planned_failover_hint(engine.link.source.name)}" if awaits_confirmation else message


@dataclass(frozen=True, slots=True)
class RunTasks:
    first: BaseOperator
    begin: BaseOperator
    last: BaseOperator
    teardown: BaseOperator


def make_failover_tasks(mirror: str, question: str, mode: str = RunMode.PLANNED) -> RunTasks:
    chosen = RunMode(mode)
    plan, begin = _make_begin_task(mirror, RunKind.FAILOVER, question, chosen)
    common: dict[str, Any] = {"mirror": mirror, "kind": RunKind.FAILOVER, "begin": begin, "mode": chosen}
    order = list_step_names(RunKind.FAILOVER, chosen)
    standstill_index, switch_index = (
        order.index(list_standstill_steps(RunKind.FAILOVER, chosen)[0]),
        order.index(SWITCH_STEP),
    )
    before = [_make_step_task(name, **common) for name in order[:standstill_index]]
    go_ahead_question = GO_AHEAD_QUESTION.format(mirror=mirror)
    go_aheads = [
        GoAhead(task_id="go_ahead", question=go_ahead_question, plan=plan, proof=proof) for proof in before[-1:]
    ]
    cut_over_steps = order[standstill_index : switch_index + 1]
    cut_over = RunSteps(
        task_id=CUT_OVER_TASK, steps=cut_over_steps, go_ahead=go_aheads[0] if go_aheads else None, **common
    )
    steps = [*before, cut_over, *(_make_step_task(name, **common) for name in order[switch_index:])]
    # Set-up tasks run again when a later task is cleared: after an abort there is another run, and its own proof.
    setups = [task.as_setup() for task in (begin, *before)]
    abort = AbortRun(task_id="abort", steps=steps, **common)
    last = chain_tasks(begin, *before, *go_aheads, *steps[len(before) :])
    last >> abort
    abort.as_teardown(setups=setups, on_failure_fail_dagrun=True)
    return RunTasks(plan, begin, last, abort)


def make_failback_tasks(mirror: str, question: str, home_question: str, strategies: str = "") -> RunTasks:
    """With the failover of its reverse mirror in a task group `home`."""
    plan, begin = _make_begin_task(mirror, RunKind.FAILBACK, question, RunMode.PLANNED, strategies=strategies)
    common: dict[str, Any] = {"mirror": mirror, "kind": RunKind.FAILBACK, "begin": begin}
    reverse_mirror = format_reverse_name(MirrorName(mirror))
    log_status = LogMirrorStatus(task_id=LAST_WORDS_TASK, mirror=mirror, begin=begin).as_teardown()
    last: BaseOperator = begin
    for step in RUN_STEPS[RunKind.FAILBACK, RunMode.PLANNED]:
        if StepNeed.REVERSE_COPY in step.needs:
            replicate = ReplicateMirror(task_id="replicate_reverse", mirror=reverse_mirror)
            last = chain_tasks(last, replicate, AwaitCatchUp(task_id="await_copy", mirror=mirror, begin=begin))
        if StepNeed.REVERSE_FAILOVER in step.needs:
            with TaskGroup("home"):
                reverse_failover = make_failover_tasks(reverse_mirror, home_question)
            chain_tasks(last, reverse_failover.first)
            last = reverse_failover.last
            chain_tasks(reverse_failover.teardown, log_status)
        last = chain_tasks(last, _make_step_task(step.name, **common))
    last = chain_tasks(last, ReplicateMirror(task_id="replicate", mirror=mirror))
    chain_tasks(last, log_status)
    return RunTasks(plan, begin, last, log_status)


def _make_step_task(name: str, **common: Any) -> RunSteps:
    return (RunAnnouncedStep if name in _ANNOUNCED_STEPS else RunSteps)(task_id=name, steps=(name,), **common)


def _make_begin_task(
    mirror: str, kind: RunKind, question: str, mode: RunMode, strategies: str = ""
) -> tuple[PlanRun, BeginRun]:
    plan = PlanRun(task_id="plan", mirror=mirror, kind=kind, mode=mode, strategies=strategies)
    approval_tasks = make_approval_tasks(plan, question)
    common: dict[str, Any] = {"mirror": mirror, "kind": kind, "mode": mode, "strategies": strategies}
    begin = BeginRun(task_id="begin", plan=plan, approvals=approval_tasks, **common)
    chain_tasks(plan, *approval_tasks, begin)
    return plan, begin


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
