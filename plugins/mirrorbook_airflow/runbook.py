"""Tasks of the runbooks. Each phase is one step of a run of the core, which journals it: repeating a task is harmless.

plan >> approve >> begin >> the steps, with a teardown that aborts a failed run for as long as that is possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.standard.exceptions import HITLRejectException
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Asset, AssetAlias, BaseOperator, TaskGroup
from airflow.sdk.exceptions import AirflowFailException

from mirror_core.decide.steps import STEPS, Need, names, point_of_no_return, standing_still
from mirror_core.decide.strategies import Allowed
from mirror_core.model.errors import LostOwnership, Refused
from mirror_core.model.hooks import AssetEvent, asset_uri
from mirror_core.model.names import MirrorName, base_name, reverse_name
from mirror_core.model.run import Mode, RunKind, RunState
from mirror_core.model.text import visible, visible_lines
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.markdown import plan_markdown
from mirrorbook_airflow.mirrors import find_mirror
from mirrorbook_airflow.operators import RETRIES, MirrorOperator, ReplicateMirror
from mirrorbook_airflow.params import approvers
from mirrorbook_airflow.services import services

if TYPE_CHECKING:
    from airflow.sdk import Context

    from mirror_core.model.run import Run, StepRecord
    from mirror_core.runbook.failback import Failback
    from mirror_core.runbook.failover import Failover

APPROVAL_TIMEOUT: Final = timedelta(hours=1)
"""A plan that nobody has approved for so long is stale; it counts as rejected."""

_SET_UP_BY: Final[Mapping[Mode, str]] = MappingProxyType({Mode.PLANNED: "fence", Mode.UNPLANNED: "stand"})
"""The last step of those without which no later one may be taken again."""
STAND_STILL: Final = standing_still(RunKind.FAILOVER)[0]
"""The step from which on a planned failover keeps applications from writing."""
SWITCH: Final = "switch"
SWITCHED: Final = AssetAlias("mirrorbook-switched")
"""Which mirror's asset it is, is known when the task runs."""
LOST: Final = "lost"
"""XCom of a step that somebody else took over while its task ran."""


class RunOperator(MirrorOperator):
    """A task of a failover or a failback."""

    template_fields: Sequence[str] = ("mirror", "strategies")

    def __init__(self, *, kind: RunKind, mode: Mode = Mode.PLANNED, strategies: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind = kind
        self.mode = mode
        self.strategies = strategies

    @property
    def choice(self) -> Any:
        """What the plan is asked for: a failover's mode; what a failback may do with topics that have a tail."""
        return self.mode if self.kind is RunKind.FAILOVER else Allowed.parse(tuple(self.strategies.split()))

    def engine(self, context: Context, step: str | None = None) -> Failover | Failback:
        """The core's conductor, equipped for `step`; every task of this DAG run conducts in the same name."""
        from mirror_core.runbook.failback import Failback
        from mirror_core.runbook.failover import Failover

        link, _ = find_mirror(self.mirror)
        make = Failover if self.kind is RunKind.FAILOVER else Failback
        equipment = services(link, step, context["params"]["master"])
        return make(link, equipment, started_by=conductor(context), say=self.say)

    def say(self, words: str) -> None:
        """Into the task's log, which shows colours: names in it are anybody's."""
        self.log.info("%s", visible_lines(words))


def conductor(context: Context) -> str:
    """Who runs it, for the journal: the DAG run, and the person who started it."""
    run = context["dag_run"]
    person = getattr(run, "triggering_user_name", None)
    return f"airflow {run.dag_id}/{run.run_id}" + (f" by {person}" if person else "")


class PlanRun(RunOperator):
    """Make the plan. Red, with every reason, when it may not be run now."""

    def execute(self, context: Context) -> dict[str, str]:
        with airflow_errors():
            decision = self.engine(context).decide(self.choice)
            body = plan_markdown(decision.plan)
            if decision.reasons:
                self.log.info("%s", body)
                raise Refused(f"{self.kind} of mirror {self.mirror}", decision.reasons)
        return {"hash": decision.plan.hash, "body": body}


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
            **{**RETRIES, **kwargs},
        )

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        try:
            return super().execute_complete(context, event)
        except HITLRejectException:
            raise AirflowFailException("rejected, nothing was done") from None  # a no is never asked about again


class BeginRun(RunOperator):
    """Open a run of the plan that was approved, if it still holds; the run's id. Takes up its own run again."""

    def __init__(self, *, plan: BaseOperator, approval: BaseOperator, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan_task = plan.task_id
        self.approval_task = approval.task_id

    def execute(self, context: Context) -> str:
        with airflow_errors():
            _, state = find_mirror(self.mirror)
            own = [run for run in state.runs.values() if self._is_own(run, context)]
            if own:
                return max(own, key=lambda run: run.started_ms).id
            approved = context["ti"].xcom_pull(task_ids=self.plan_task)["hash"]
            engine, person = self.engine(context), self._approver(context)
            try:
                return engine.begin(approved, self.choice, approved_by=person).id
            except LostOwnership:  # to a sync that had looked for a run before there was one: once, not again
                return engine.begin(approved, self.choice, approved_by=person).id

    def _approver(self, context: Context) -> str:
        """Who answered, as Airflow knows them."""
        answer = context["ti"].xcom_pull(task_ids=self.approval_task) or {}
        person = answer.get("responded_by_user") or {}
        return str(person.get("name") or person.get("id") or "")

    def _is_own(self, run: Run, context: Context) -> bool:
        """Begun by this DAG run and not given up. It may be done, too, when somebody else has finished it."""
        wanted = (self.mirror, self.kind, conductor(context))
        known = (run.plan.mirror, run.plan.kind, run.started_by)
        return known == wanted and run.state in (RunState.RUNNING, RunState.DONE)


class TakeStep(RunOperator):
    """One step of the run. At once when it is done already; the core refuses it when an earlier one is not."""

    def __init__(self, *, step: str, begin: BaseOperator, **kwargs: Any) -> None:
        super().__init__(task_id=step, **kwargs)
        self.step = step
        self.begin_task = begin.task_id

    def execute(self, context: Context) -> dict[str, object]:
        run = context["ti"].xcom_pull(task_ids=self.begin_task)
        with airflow_errors():
            engine = self.engine(context, self.step)
            try:
                record = self._take(engine, run)
            except LostOwnership:
                context["ti"].xcom_push(key=LOST, value=True)
                raise
        for name, value in record.evidence.items():
            self.log.info("%s: %s", name, visible(str(value)))
        return {"run": run, "attempt": record.attempt}

    def _take(self, engine: Failover | Failback, run: str) -> StepRecord:
        try:
            return engine.step(run, self.step)
        except LostOwnership:
            # A failback writes the reverse mirror's state, too, which no run holds yet: a sync may take it from us.
            if self.kind is RunKind.FAILOVER or engine.status(run)[0].conducted_by != engine.started_by:
                raise
            return engine.step(run, self.step)


class SwitchStep(TakeStep):
    """The step that tells applications; after it, and whoever took it, the asset event that the mirror's hooks ask for.

    A repeated task emits it again.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(outlets=[SWITCHED], **kwargs)

    def execute(self, context: Context) -> dict[str, object]:
        done = super().execute(context)
        with airflow_errors():
            link, _ = find_mirror(self.mirror)
        if any(isinstance(hook.call, AssetEvent) for hook in link.config.hooks(link.mirror.name)):
            mirror = base_name(link.mirror.name)
            uri = asset_uri(mirror)
            extra: dict[str, Any] = {"mirror": mirror, "active": link.destination.name, "run": done["run"]}
            context["outlet_events"][SWITCHED].add(Asset(uri=uri, name=uri), extra=extra)
            self.log.info("asset event: %s", uri)
        return done


class AbortRun(RunOperator):
    """After a failure before the point of no return: un-fence, and let the mirror go on. Otherwise change nothing.

    A step that failed because somebody else took the run over is no failure of the run: it is theirs to end it.
    """

    def __init__(self, *, begin: BaseOperator, steps: Sequence[BaseOperator], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.begin_task = begin.task_id
        self.step_tasks = tuple(step.task_id for step in steps)

    def execute(self, context: Context) -> str:
        run_id = context["ti"].xcom_pull(task_ids=self.begin_task)
        with airflow_errors():
            _, state = find_mirror(self.mirror)
            run = state.runs.get(run_id)
            if run is None or run.ended_ms is not None:
                return "nothing to abort: the run has ended"
            if (run_id, point_of_no_return(self.kind, run.plan.mode)) in state.steps:
                return "kept: past the point of no return; clear the failed task, and the run goes on"
            if any(context["ti"].xcom_pull(task_ids=task, key=LOST) for task in self.step_tasks):
                return "kept: another process took the run over; if none goes on, clear the failed task or resume it"
            engine = self.engine(context)
            fenced = (run_id, STAND_STILL) in state.steps
            if fenced and run.plan.mode is Mode.PLANNED and not engine.source_answers():
                # Given up, it would not know any more what it has fenced and drained.
                return (
                    "kept: the source does not answer. If it is lost, trigger mirror_failover_unplanned: it goes on "
                    "from here. If it comes back, clear the failed task, or abort the run by the command line"
                )
            try:
                ended = engine.abort(run_id, only_mine=True)
            except LostOwnership as error:
                return f"kept: {error}"
        return f"aborted: {ended.note or 'applications may write on the source again'}"


@dataclass(frozen=True, slots=True)
class Phases:
    """First and last task of a chain."""

    first: BaseOperator
    last: BaseOperator


def failover_phases(mirror: str, question: str, mode: str = Mode.PLANNED) -> Phases:
    """The whole failover of a mirror: from the plan to the report, in the DAG or task group that is being defined."""
    chosen = Mode(mode)
    plan, begin = _approved_run(mirror, RunKind.FAILOVER, question, chosen)
    common: dict[str, Any] = {"mirror": mirror, "kind": RunKind.FAILOVER, "begin": begin, "mode": chosen}
    order = names(RunKind.FAILOVER, chosen)
    steps = [(SwitchStep if step == SWITCH else TakeStep)(step=step, **common) for step in order]
    # Set-up tasks run again when a later task is cleared: after an abort, nothing is ever drained without a fence, or
    # promoted while copiers write.
    last_setup = order.index(_SET_UP_BY[chosen])
    setups = [task.as_setup() for task in (begin, *steps[: last_setup + 1])]
    abort = AbortRun(task_id="abort", steps=steps, **common)
    last = _chain(begin, *steps)
    last >> abort
    abort.as_teardown(setups=setups, on_failure_fail_dagrun=True)
    return Phases(plan, last)


def failback_phases(mirror: str, question: str, home: str, strategies: str = "") -> Phases:
    """The whole failback of a mirror, with the failover of its reverse mirror in a task group `home`."""
    plan, begin = _approved_run(mirror, RunKind.FAILBACK, question, Mode.PLANNED, strategies=strategies)
    common: dict[str, Any] = {"mirror": mirror, "kind": RunKind.FAILBACK, "begin": begin}
    back = reverse_name(MirrorName(mirror))
    last: BaseOperator = begin
    for step in STEPS[RunKind.FAILBACK, Mode.PLANNED]:
        if Need.REVERSE_COPY in step.needs:
            last = _chain(last, ReplicateMirror(task_id="replicate_reverse", mirror=back))
        if Need.HOME in step.needs:
            with TaskGroup("home"):
                way_home = failover_phases(back, home)
            _chain(last, way_home.first)
            last = way_home.last
        last = _chain(last, TakeStep(step=step.name, **common))
    return Phases(plan, _chain(last, ReplicateMirror(task_id="replicate", mirror=mirror)))


def _approved_run(
    mirror: str, kind: RunKind, question: str, mode: Mode, strategies: str = ""
) -> tuple[PlanRun, BeginRun]:
    plan = PlanRun(task_id="plan", mirror=mirror, kind=kind, mode=mode, strategies=strategies)
    approve = ApprovePlan(task_id="approve", question=question, plan=plan)
    begin = BeginRun(
        task_id="begin", mirror=mirror, kind=kind, plan=plan, approval=approve, mode=mode, strategies=strategies
    )
    _chain(plan, approve, begin)
    return plan, begin


def _chain(*tasks: BaseOperator) -> BaseOperator:
    for earlier, later in pairwise(tasks):
        earlier >> later
    return tasks[-1]
