"""Tasks of a failover of several mirrors. All that is decided about them together is decided in the core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import BaseOperator, TriggerRule
from airflow.sdk.exceptions import AirflowSkipException

from mirror_core.decide.certificate_coverage import check_as_copied
from mirror_core.decide.steps import list_undisturbed_steps
from mirror_core.model.errors import LostOwnership, Refused
from mirror_core.model.run import RunKind, RunMode
from mirror_core.model.text import escape_invisible_lines
from mirrorbook_airflow.approvals import (
    GoAhead,
    GoAheadTask,
    agreed,
    names_of,
    policy_of,
    record_shown,
    recorded_plan,
)
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.markdown import proved_markdown, set_markdown
from mirrorbook_airflow.mirror_lookup import find_mirror, find_set
from mirrorbook_airflow.operators import CUT_OVER_TIMEOUT, DAYS, HOURS, TASK_DEFAULTS
from mirrorbook_airflow.params import page_root
from mirrorbook_airflow.run_status import LAST_WORDS, LastWordsOfSet
from mirrorbook_airflow.runbook import (
    CUT_OVER,
    LOST,
    SWITCH,
    approvals_of,
    chain,
    conductor,
)
from mirrorbook_airflow.switch_event import FENCED, SWITCHED, emit_switched
from mirrorbook_airflow.worker_services import services

if TYPE_CHECKING:
    from airflow.sdk import Context

    from mirror_core.runbook.set_failover import SetFailover
    from mirror_core.state.mirror_link import MirrorLink
    from mirror_core.state.state_records import State

NOW: Final = "Stop applications of set {name} now?"


class SetOperator(BaseOperator):
    """A task of the failover of this set."""

    template_fields: Sequence[str] = ("set_name",)
    timeout: ClassVar[timedelta] = HOURS
    """Execution timeout."""

    def __init__(self, *, set_name: str, mode: RunMode = RunMode.PLANNED, **kwargs: Any) -> None:
        super().__init__(**{**TASK_DEFAULTS, "execution_timeout": self.timeout, **kwargs})
        self.set_name = set_name
        self.mode = mode

    def together(self, context: Context, steps: Sequence[str] = ()) -> SetFailover:
        """The core's conductor of all of them, equipped for these steps."""
        from mirror_core.runbook.failover_conductor import Failover
        from mirror_core.runbook.set_failover import SetFailover

        chosen, params = find_set(self.set_name), context["params"]
        conductors = {}
        for name in chosen.mirrors:
            link, _ = find_mirror(name)
            conductors[name] = Failover(
                link,
                services(link.config.path, steps, params["master"]),
                started_by=conductor(context),
                print_line=lambda words, name=name: self.say(f"{name}: {words}"),  # type: ignore[misc]
                gate_limit_s=params.get("gate_limit_s"),
            )
        return SetFailover(chosen, conductors, self.mode, print_line=self.say)

    def states(self) -> list[tuple[MirrorLink, State]]:
        """Of the destination of each mirror."""
        return [find_mirror(name) for name in find_set(self.set_name).mirrors]

    def say(self, words: str) -> None:
        """Into the task's log, which shows colours: names in it are anybody's."""
        self.log.info("%s", escape_invisible_lines(words))

    @contextmanager
    def conducting(self, context: Context) -> Iterator[None]:
        """Errors in Airflow's words; and that somebody else has taken a run over is left for the teardown."""
        with airflow_errors():
            try:
                yield
            except LostOwnership:
                context["ti"].xcom_push(key=LOST, value=True)
                raise


class PlanSet(SetOperator):
    """Make all plans. Red, with every reason, when one of them may not be run now."""

    def execute(self, context: Context) -> dict[str, Any]:
        with airflow_errors():
            together = self.together(context)
            joint = together.decide()
            plans = [decision.plan for decision in joint.decisions.values()]
            body = set_markdown(self.set_name, str(together.mirror_set.order), joint.hash, plans)
            if joint.reasons:
                self.log.info("%s", body)
                raise Refused(f"failover of set {self.set_name}", joint.reasons)
            record_shown(context, self.task_id, self.states(), joint.hash, body, joint.silent)
        return {"hash": joint.hash, "body": body}


class BeginSet(SetOperator):
    """Open the runs of the plans that were approved, if they still hold; the id that they share. Takes up its own."""

    def __init__(self, *, plan: BaseOperator, approvals: Sequence[BaseOperator], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan_task = plan.task_id
        self.approval_tasks = tuple(task.task_id for task in approvals)

    def execute(self, context: Context) -> str:
        with airflow_errors():
            together = self.together(context)
            plan = recorded_plan(context, self.plan_task, self.states())
            own = together.find_active_attempt(started_by=conductor(context), plan_hash=plan.plan_hash)
            if own is not None:
                return own
            if (cut_off := together.find_unbegun_attempt(started_by=conductor(context))) is not None:
                together.abort(cut_off)  # its own, whose process was killed: what was approved is begun as a whole
            policy = policy_of(context, self.plan_task, self.approval_tasks)
            return together.begin(plan.plan_hash, approved_by=policy, silent=plan.silent_sources)


class ProveSet(SetOperator):
    """Compare all that is mirrored so far, of every mirror, while applications go on."""

    timeout = DAYS

    def __init__(self, *, begin: BaseOperator, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.begin_task = begin.task_id

    def execute(self, context: Context) -> dict[str, str]:
        attempt = context["ti"].xcom_pull(task_ids=self.begin_task)
        with self.conducting(context):
            together = self.together(context, list_undisturbed_steps(RunKind.FAILOVER))
            together.refuse_superseded(attempt, conductor(context))
            together.refuse_taken_over(attempt)
            proved = together.prove(attempt)
        return {"run": attempt, "said": proved_markdown(((one.run, one.steps) for one in proved.values()), page_root())}


class MoveSet(SetOperator):
    """Everything during which applications can write nowhere, and what is left then. Begun again, it goes on."""

    timeout = CUT_OVER_TIMEOUT

    def __init__(self, *, begin: BaseOperator, go_ahead: GoAhead | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.begin_task = begin.task_id
        self.go_ahead: GoAheadTask = (go_ahead.task_id, go_ahead.plan_task) if go_ahead else None

    def execute(self, context: Context) -> dict[str, str]:
        attempt = context["ti"].xcom_pull(task_ids=self.begin_task)
        with self.conducting(context):
            together = self.together(context)
            together.refuse_superseded(attempt, conductor(context))
            people = agreed(context, self.go_ahead, self.states, attempt)
            together.refuse_expired(attempt, people)
            together.refuse_taken_over(attempt)
            ended = together.finish(attempt, agreed_by=names_of(people))
            check_as_copied(*((standing.run.id, standing.steps) for standing in ended.values()))
        return {"run": attempt, "report": str(together.page_path(attempt))}


class SwitchedSet(SetOperator):
    """Asset events of those mirrors whose applications have moved, also when others have failed."""

    def __init__(self, *, begin: BaseOperator, **kwargs: Any) -> None:
        super().__init__(outlets=[FENCED, SWITCHED], trigger_rule=TriggerRule.ALL_DONE, **kwargs)
        self.begin_task = begin.task_id

    def execute(self, context: Context) -> list[str]:
        attempt = context["ti"].xcom_pull(task_ids=self.begin_task)
        if attempt is None:
            raise AirflowSkipException("nothing was begun")
        with airflow_errors():
            together = self.together(context)
            together.refuse_superseded(attempt, conductor(context))
            moved = together.find_runs_after_step(attempt, SWITCH)
            found = {name: find_mirror(name) for name in moved}
        for name, run in moved.items():
            for uri in emit_switched(*found[name], run, context):
                self.log.info("asset event: %s", uri)
        return [str(name) for name in moved]


class AbortSet(SetOperator):
    """After a failure before the first promotion: let all mirrors go on. Otherwise change nothing."""

    def __init__(self, *, begin: BaseOperator, steps: Sequence[BaseOperator], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.begin_task = begin.task_id
        self.step_tasks = tuple(task.task_id for task in steps)

    def execute(self, context: Context) -> str:
        attempt = context["ti"].xcom_pull(task_ids=self.begin_task)
        if attempt is None:
            return "nothing to abort: nothing was begun"
        if any(context["ti"].xcom_pull(task_ids=task, key=LOST) for task in self.step_tasks):
            return "kept: another process took a run over; if none goes on, clear the failed task or resume them"
        with airflow_errors():
            done = self.together(context).abort(attempt)
        return escape_invisible_lines("\n".join(done)) or "nothing to abort: all runs have ended"


def set_phases(name: str, question: str, mode: str = RunMode.PLANNED) -> tuple[BaseOperator, BaseOperator]:
    """The whole failover of a set, in the DAG that is being defined; the task that moves them, and the last one."""
    common: dict[str, Any] = {"set_name": name, "mode": RunMode(mode)}
    plan = PlanSet(task_id="plan", **common)
    asked = approvals_of(plan, question)
    begin = BeginSet(task_id="begin", plan=plan, approvals=asked, **common)
    proofs = (
        [ProveSet(task_id="prove", begin=begin, **common)]
        if list_undisturbed_steps(RunKind.FAILOVER, RunMode(mode))
        else []
    )
    now = NOW.format(name=name)
    go_aheads = [GoAhead(task_id="go_ahead", question=now, plan=plan, proof=proof) for proof in proofs]
    move = MoveSet(task_id=CUT_OVER, begin=begin, go_ahead=go_aheads[0] if go_aheads else None, **common)
    switched = SwitchedSet(task_id="switched", begin=begin, **common)
    abort = AbortSet(task_id="abort", begin=begin, steps=(*proofs, move), **common)
    chain(plan, *asked, begin, *proofs, *go_aheads, move, switched, abort)
    # Set-up tasks run again when a later task is cleared: after an abort there are other runs, and their own proof.
    abort.as_teardown(setups=[task.as_setup() for task in (begin, *proofs)], on_failure_fail_dagrun=True)
    chain(abort, LastWordsOfSet(task_id=LAST_WORDS, set_name=name, begin=begin).as_teardown())
    return move, switched
