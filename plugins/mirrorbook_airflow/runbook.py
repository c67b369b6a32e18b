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
from mirror_core.model.names import MirrorName, format_reverse_name
from mirror_core.model.run import AIRFLOW_CONDUCTOR_PREFIX, RunKind, RunMode
from mirror_core.model.text import escape_invisible, escape_invisible_lines
from mirrorbook_airflow.approvals import (
    Agreed,
    ApprovePlan,
    ApproveSecond,
    GoAhead,
    GoAheadTask,
    agreed,
    names_of,
    policy_of,
    record_shown,
    recorded_plan,
)
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.markdown import PROVE, plan_markdown, proved_markdown
from mirrorbook_airflow.mirror_lookup import find_mirror
from mirrorbook_airflow.operators import CUT_OVER_TIMEOUT, DAYS, HOURS, MirrorOperator
from mirrorbook_airflow.params import page_root, two_people
from mirrorbook_airflow.replicate_tasks import ReplicateMirror
from mirrorbook_airflow.run_status import LAST_WORDS, LastWords
from mirrorbook_airflow.switch_event import FENCED, HOME, SWITCHED, emit_home, emit_switched
from mirrorbook_airflow.worker_services import services

if TYPE_CHECKING:
    from airflow.sdk import Context

    from mirror_core.model.run import Run, StepRecord
    from mirror_core.runbook.failback_conductor import Failback
    from mirror_core.runbook.failover_conductor import Failover
    from mirror_core.state.state_records import State

STAND_STILL: Final = list_standstill_steps(RunKind.FAILOVER)[0]
"""The step from which on a planned failover keeps applications from writing."""
SWITCH: Final = "switch"
CUT_OVER: Final = "cut_over"
NOW: Final = "Stop applications of mirror {mirror} now?"
_WHOLE_LOGS: Final = frozenset(
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
"""Steps that may read or copy all that a mirror has."""
LOST: Final = "lost"
"""XCom of a step that somebody else took over while its task ran."""


class RunOperator(MirrorOperator):
    """A task of a failover or a failback."""

    timeout = HOURS

    template_fields: Sequence[str] = ("mirror", "strategies")

    def __init__(self, *, kind: RunKind, mode: RunMode = RunMode.PLANNED, strategies: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind = kind
        self.mode = mode
        self.strategies = strategies

    @property
    def choice(self) -> Any:
        """What the plan is asked for: a failover's mode; what a failback may do with topics that have a tail."""
        return self.mode if self.kind is RunKind.FAILOVER else AllowedStrategies.parse(tuple(self.strategies.split()))

    def engine(self, context: Context, steps: Sequence[str] = ()) -> Failover | Failback:
        """The core's conductor, equipped for these steps; every task of this DAG run conducts in the same name."""
        from mirror_core.runbook.failback_conductor import Failback
        from mirror_core.runbook.failover_conductor import Failover

        link, _ = find_mirror(self.mirror)
        make = Failover if self.kind is RunKind.FAILOVER else Failback
        params = context["params"]
        return make(
            link,
            services(link.config.path, steps, params["master"]),
            started_by=conductor(context),
            print_line=self.say,
            gate_limit_s=params.get("gate_limit_s"),
            leave_behind=self.mode is RunMode.PLANNED and bool(params.get("leave_behind")),
        )

    def say(self, words: str) -> None:
        """Into the task's log, which shows colours: names in it are anybody's."""
        self.log.info("%s", escape_invisible_lines(words))


def conductor(context: Context) -> str:
    """Who runs it, for the journal: the DAG run, and the person who started it."""
    run = context["dag_run"]
    person = getattr(run, "triggering_user_name", None)
    return f"{AIRFLOW_CONDUCTOR_PREFIX}{run.dag_id}/{run.run_id}" + (f" by {person}" if person else "")


class PlanRun(RunOperator):
    """Make the plan. Red, with every reason, when it may not be run now."""

    def execute(self, context: Context) -> dict[str, Any]:
        with airflow_errors():
            engine: Any = self.engine(context)
            lost = self.mode is RunMode.UNPLANNED
            decision, silent = engine.decide_unplanned() if lost else (engine.decide(self.choice), False)
            body = plan_markdown(decision.plan)
            if decision.reasons:
                self.log.info("%s", body)
                raise Refused(f"{self.kind} of mirror {self.mirror}", decision.reasons)
            gives_up = (MirrorName(self.mirror),) if silent else ()
            record_shown(context, self.task_id, [find_mirror(self.mirror)], decision.plan.hash, body, gives_up)
        return {"hash": decision.plan.hash, "body": body}


class BeginRun(RunOperator):
    """Open a run of the plan that was approved, if it still holds; the run's id. Takes up its own run again."""

    def __init__(self, *, plan: BaseOperator, approvals: Sequence[BaseOperator], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan_task = plan.task_id
        self.approval_tasks = tuple(task.task_id for task in approvals)

    def execute(self, context: Context) -> str:
        with airflow_errors():
            engine = self.engine(context)
            plan = recorded_plan(context, self.plan_task, [find_mirror(self.mirror)])
            own = engine.find_run_to_resume(plan.plan_hash)
            if own is not None:
                return own.id
            policy = policy_of(context, self.plan_task, self.approval_tasks)
            return engine.begin(plan.plan_hash, self.choice, approved_by=policy, silent=bool(plan.silent_sources)).id


def timeout_of(steps: Sequence[str]) -> timedelta:
    """Execution timeout of a task that takes these steps."""
    if any(set(steps) & set(list_standstill_steps(RunKind.FAILOVER, mode)) for mode in RunMode):
        return CUT_OVER_TIMEOUT
    return DAYS if _WHOLE_LOGS.intersection(steps) else HOURS


class TakeSteps(RunOperator):
    """Steps of the run that follow each other. Those that are done are not taken again; the core refuses them when an
    earlier one is not."""

    def __init__(
        self, *, steps: Sequence[str], begin: BaseOperator, go_ahead: GoAhead | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**{"execution_timeout": timeout_of(steps), **kwargs})
        self.steps = tuple(steps)
        self.begin_task = begin.task_id
        self.go_ahead: GoAheadTask = (go_ahead.task_id, go_ahead.plan_task) if go_ahead else None

    def execute(self, context: Context) -> dict[str, object]:
        run = context["ti"].xcom_pull(task_ids=self.begin_task)
        with airflow_errors():
            engine = self.engine(context, self.steps)
            engine.refuse_foreign_run(run)
            people = agreed(context, self.go_ahead, lambda: [find_mirror(self.mirror)], run)
            agreed_by = names_of(people)
            self._refuse_expired(engine, run, people)
            if engine.read_status(run)[0].conducted_by != engine.started_by:
                # A person has taken the run over, and may still be at work.
                engine.refuse_conducted(run, f"run {run}: {', '.join(self.steps)}")
            try:
                records = self._take(engine, run, agreed_by)
            except LostOwnership:
                context["ti"].xcom_push(key=LOST, value=True)
                raise
        for record in records:
            for name, value in record.evidence.items():
                self.log.info("%s: %s: %s", record.step, name, escape_invisible(str(value)))
        with airflow_errors():
            check_as_copied((run, records))
        done = {"run": run, "attempts": {record.step: record.attempt for record in records}}
        if PROVE in self.steps:
            done["said"] = proved_markdown([engine.read_status(run)], page_root())
        return done

    def _refuse_expired(self, engine: Failover | Failback, run: str, people: Agreed) -> None:
        """Before applications are stopped, or topics deleted: a task may be cleared days after people have answered."""
        failover = self.kind is RunKind.FAILOVER
        first = list_standstill_steps(self.kind, self.mode)[0] if failover else find_no_return_step(self.kind)
        if self.steps[0] == first:
            engine.refuse_expired(run, people)

    def _take(self, engine: Failover | Failback, run: str, agreed_by: str) -> tuple[StepRecord, ...]:
        try:
            return engine.run_steps(run, self.steps, agreed_by=agreed_by)
        except LostOwnership:
            # A failback writes the reverse mirror's state, too, which no run holds yet: a sync may take it from us.
            if self.kind is RunKind.FAILOVER or engine.read_status(run)[0].conducted_by != engine.started_by:
                raise
            return engine.run_steps(run, self.steps, agreed_by=agreed_by)


class TellingStep(TakeSteps):
    """A step that Airflow's own DAGs hear of, whoever took it, by asset events. A repeated task emits them again.

    `cut_over` takes the one that tells applications; here it is found done.
    """

    def __init__(self, *, steps: Sequence[str], **kwargs: Any) -> None:
        outlets, self.emit = _TELLING[steps[-1]]
        super().__init__(steps=steps, outlets=list(outlets), **kwargs)

    def execute(self, context: Context) -> dict[str, object]:
        done = super().execute(context)
        with airflow_errors():
            link, state = find_mirror(self.mirror)
        for uri in self.emit(link, state, str(done["run"]), context):
            self.log.info("asset event: %s", uri)
        return done


_TELLING: Final = {
    SWITCH: ((FENCED, SWITCHED), emit_switched),
    list_step_names(RunKind.FAILBACK)[-1]: ((HOME,), emit_home),
}
"""Steps after which there are asset events: the aliases that they go out by, and who emits them."""


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
            outcome = self._given_up(context, state, run)
            for line in read_run_outcome(link, run) if run else ():
                self.log.info("%s", line)
        return outcome

    def _given_up(self, context: Context, state: State, run: Run | None) -> str:
        from mirror_core.runbook.run_outcome import is_awaiting_confirmation
        from mirror_core.state.no_return import is_past_no_return

        if run is None or run.ended_ms is not None:
            return "nothing to abort: the run has ended"
        if is_past_no_return(state, run):
            return "kept: past the point of no return; clear the failed task, and the run goes on"
        if any(context["ti"].xcom_pull(task_ids=task, key=LOST) for task in self.step_tasks):
            return "kept: another process took the run over; if none goes on, clear the failed task or resume it"
        engine, waits = self.engine(context), is_awaiting_confirmation(state, run)
        fenced = run.plan.mode is RunMode.PLANNED and (run.id, STAND_STILL) in state.steps
        if (fenced or waits) and not engine.can_reach_source():
            if waits:
                return format_waiting_run(run.plan.mirror, engine.link.source.name)
            return (  # given up, it would not know any more what it has fenced and drained
                "kept: the source does not answer. If it is lost, trigger mirror_failover_unplanned: it goes on "
                "from here. If it comes back, clear the failed task, or abort the run by the command line"
            )
        try:
            ended = engine.abort(run.id, only_mine=True)
        except LostOwnership as error:
            return f"kept: {error}"
        said = f"aborted: {ended.note or 'applications may write on the source again'}"
        return f"{said}. {format_planned_failover_hint(engine.link.source.name)}" if waits else said


@dataclass(frozen=True, slots=True)
class Phases:
    """First and last task of a chain, and the teardown that ends it."""

    first: BaseOperator
    last: BaseOperator
    teardown: BaseOperator


def failover_phases(mirror: str, question: str, mode: str = RunMode.PLANNED) -> Phases:
    """The whole failover of a mirror: from the plan to the report, in the DAG or task group that is being defined."""
    chosen = RunMode(mode)
    plan, begin = _approved_run(mirror, RunKind.FAILOVER, question, chosen)
    common: dict[str, Any] = {"mirror": mirror, "kind": RunKind.FAILOVER, "begin": begin, "mode": chosen}
    order = list_step_names(RunKind.FAILOVER, chosen)
    still, told = order.index(list_standstill_steps(RunKind.FAILOVER, chosen)[0]), order.index(SWITCH)
    before = [_step(name, **common) for name in order[:still]]
    now = NOW.format(mirror=mirror)
    asked = [GoAhead(task_id="go_ahead", question=now, plan=plan, proof=proof) for proof in before[-1:]]
    at_once = order[still : told + 1]
    cut_over = TakeSteps(task_id=CUT_OVER, steps=at_once, go_ahead=asked[0] if asked else None, **common)
    steps = [*before, cut_over, *(_step(name, **common) for name in order[told:])]
    # Set-up tasks run again when a later task is cleared: after an abort there is another run, and its own proof.
    setups = [task.as_setup() for task in (begin, *before)]
    abort = AbortRun(task_id="abort", steps=steps, **common)
    last = chain(begin, *before, *asked, *steps[len(before) :])
    last >> abort
    abort.as_teardown(setups=setups, on_failure_fail_dagrun=True)
    return Phases(plan, last, abort)


def failback_phases(mirror: str, question: str, home: str, strategies: str = "") -> Phases:
    """The whole failback of a mirror, with the failover of its reverse mirror in a task group `home`."""
    plan, begin = _approved_run(mirror, RunKind.FAILBACK, question, RunMode.PLANNED, strategies=strategies)
    common: dict[str, Any] = {"mirror": mirror, "kind": RunKind.FAILBACK, "begin": begin}
    back = format_reverse_name(MirrorName(mirror))
    said = LastWords(task_id=LAST_WORDS, mirror=mirror, begin=begin).as_teardown()
    last: BaseOperator = begin
    for step in RUN_STEPS[RunKind.FAILBACK, RunMode.PLANNED]:
        if StepNeed.REVERSE_COPY in step.needs:
            last = chain(last, ReplicateMirror(task_id="replicate_reverse", mirror=back))
        if StepNeed.REVERSE_FAILOVER in step.needs:
            with TaskGroup("home"):
                way_home = failover_phases(back, home)
            chain(last, way_home.first)
            last = way_home.last
            chain(way_home.teardown, said)
        last = chain(last, _step(step.name, **common))
    last = chain(last, ReplicateMirror(task_id="replicate", mirror=mirror))
    chain(last, said)
    return Phases(plan, last, said)


def _step(name: str, **common: Any) -> TakeSteps:
    """A task for one step."""
    return (TellingStep if name in _TELLING else TakeSteps)(task_id=name, steps=(name,), **common)


def _approved_run(
    mirror: str, kind: RunKind, question: str, mode: RunMode, strategies: str = ""
) -> tuple[PlanRun, BeginRun]:
    plan = PlanRun(task_id="plan", mirror=mirror, kind=kind, mode=mode, strategies=strategies)
    asked = approvals_of(plan, question)
    common: dict[str, Any] = {"mirror": mirror, "kind": kind, "mode": mode, "strategies": strategies}
    begin = BeginRun(task_id="begin", plan=plan, approvals=asked, **common)
    chain(plan, *asked, begin)
    return plan, begin


def approvals_of(plan: BaseOperator, question: str) -> tuple[BaseOperator, ...]:
    """The tasks that ask about a plan: one, or two where the deployment wants another person to agree."""
    first = ApprovePlan(task_id="approve", question=question, plan=plan)
    if not two_people():
        return (first,)
    return first, ApproveSecond(task_id="approve_second", question=question, plan=plan, first=first)


def chain(*tasks: BaseOperator) -> BaseOperator:
    """Put tasks one behind the other; the last one."""
    for earlier, later in pairwise(tasks):
        earlier >> later
    return tasks[-1]
