"""Verbs about one mirror, for people who have Airflow and no shell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from mirror_core.decide.recovery import Action
from mirror_core.model.errors import BadRequest, Refused
from mirror_core.model.mirror import Desired, Mirror
from mirror_core.model.run import RunKind
from mirror_core.model.text import visible_lines
from mirrorbook_airflow.approving import ApprovePlan, answered, of_another
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.hooks import home
from mirrorbook_airflow.markdown import recovery_markdown
from mirrorbook_airflow.mirrors import find_mirror
from mirrorbook_airflow.objects import kept_elsewhere
from mirrorbook_airflow.operators import DAYS, MirrorOperator
from mirrorbook_airflow.runbook import conductor
from mirrorbook_airflow.services import services

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import Context

    from mirror_core.mirrors.recovery_plan import RecoveryPlan
    from mirror_core.model.run import Run
    from mirror_core.state.link import Link
    from mirror_core.state.records import State


SHOW: Final = "show"
APPROVE: Final = "approve"
RECOVERIES: Final = tuple(Action)
"""What can be done about FAILED partitions, by the names that the form shows."""


class ShowRecovery(MirrorOperator):
    """What a recovery would delete or let go of, to be approved. Nothing, where nothing of that sort was asked for."""

    def execute(self, context: Context) -> dict[str, str]:
        from mirror_core.mirrors.recovery_words import left, proposed

        nothing = {"hash": "", "body": ""}
        if not _deletes(context):
            return nothing
        with airflow_errors():
            link, _ = find_mirror(self.mirror)
            seen, folder = _recovery(link, context)
            if not seen.proposals:
                return nothing
            if not seen.agreed:
                raise Refused(f"mirror {self.mirror}: recover", left(seen))
        lines = list(proposed(link.mirror, seen, folder))
        return {"hash": seen.hash, "body": recovery_markdown(self.mirror, seen.hash, lines)}


class ApproveRecovery(ApprovePlan):
    """Ask a person, where there is something to be deleted or let go of."""

    def execute(self, context: Context) -> Any:
        if not context["ti"].xcom_pull(task_ids=SHOW)["hash"]:
            self.log.info("not asked: nothing is deleted or let go of")
            return None
        return super().execute(context)


class ControlMirror(MirrorOperator):
    """Do what parameter `action` says. Doing it twice is harmless."""

    timeout = DAYS  # `recover` may salvage whole logs, `leave_behind` goes through a failover

    def execute(self, context: Context) -> str:
        with airflow_errors():
            link, _ = find_mirror(self.mirror)
            said = ACTIONS[context["params"]["action"]](link, context)
        self.log.info("%s", visible_lines(said))
        return said


def _desired(link: Link, wanted: Desired, verb: Callable[[Link], Mirror]) -> Desired:
    """What is desired after this verb. An attempt before this one, whose process was killed, may have done it."""
    return (link.mirror if link.mirror.desired is wanted else verb(link)).desired


def _pause(link: Link, context: Context) -> str:
    from mirror_core.mirrors.verbs import pause

    return f"desired: {_desired(link, Desired.PAUSED, pause)}"


def _resume(link: Link, context: Context) -> str:
    from mirror_core.mirrors.verbs import resume

    return f"desired: {_desired(link, Desired.STARTED, resume)}"


def _stop(link: Link, context: Context) -> str:
    from mirror_core.mirrors.verbs import stop

    return f"stopped: the last mirrored offsets of {len(stop(link))} partition(s) are recorded"


def _start(link: Link, context: Context) -> str:
    from mirror_core.mirrors.verbs import start

    desired = _desired(link, Desired.STARTED, start)
    return f"desired: {desired}. Where no data plane is at work for it, trigger mirror_replicate"


def _throttle(link: Link, context: Context) -> str:
    from mirror_core.mirrors.verbs import throttle

    limit = throttle(link, context["params"]["bytes_per_s"] or None).throttle
    return "throttle: none" if limit is None else f"throttle: {limit} bytes/s"


def _abort(link: Link, context: Context) -> str:
    run, _, engine = _taken_over(link, context, "abort")
    ended = engine.abort(run.id)
    return f"run {run.id} is {ended.state}. {ended.note}".strip()


def _leave_behind(link: Link, context: Context) -> str:
    """And go on with the run: what it waits for is a person's word."""
    from mirror_core.state.turning import turned

    run, state, engine = _taken_over(link, context, "leave_behind")
    if run.plan.kind is not RunKind.FAILOVER:
        raise BadRequest(f"run {run.id} is a {run.plan.kind}: only a failover leaves anything behind")
    if not turned(state, run):  # an attempt before this one, whose process was killed, has gone on by the word
        engine.leave_behind(run.id)
    ended = engine.drive(run.id)
    return f"run {run.id} is {ended.state}. {ended.note}".strip()


def _taken_over(link: Link, context: Context, action: str) -> tuple[Run, State, Any]:
    """The run that holds the mirror, and its engine. Refused while somebody conducts it, unless it is taken from them:
    they learn so at their next write."""
    from mirror_core.runbook.failback import Failback
    from mirror_core.runbook.failover import Failover

    _, state = find_mirror(link.mirror.name)
    run = state.active_run(link.mirror.name)
    if run is None:
        raise BadRequest(f"mirror {link.mirror.name}: no run holds it: there is nothing to {action}")
    make: Any = Failover if run.plan.kind is RunKind.FAILOVER else Failback
    engine = make(link, services(link.config.path, (), ""), started_by=conductor(context))
    if not context["params"]["take_over"]:
        engine.refuse_conducted(run.id, f"run {run.id}: {action}", take_over=True)
    return run, state, engine


def _deletes(context: Context) -> bool:
    """Whether what is asked for deletes something, or gives something up."""
    params = context["params"]
    return params["action"] == "recover" and Action(params["recover_action"]) is not Action.RETRY


def _recovery(link: Link, context: Context) -> tuple[RecoveryPlan, Path | None]:
    """What the form asks for, as it stands now, and where to save what is lost by it; None: nowhere."""
    from mirror_core.mirrors.recovery_plan import survey

    params, action = context["params"], Action(context["params"]["recover_action"])
    seen = survey(link, find_mirror(link.mirror.name)[1], params["topics"] or None, action)
    folder = home("evidence") / link.mirror.name / f"recover-{context['dag_run'].start_date:%Y%m%dT%H%M%SZ}"
    return seen, folder if params["salvage"] and action is Action.RECOPY else None


def _recover(link: Link, context: Context) -> str:
    from mirror_core.mirrors import recovery
    from mirror_core.mirrors.recovery_words import done, left

    seen, folder = _recovery(link, context)
    if not seen.proposals:
        return "no partition is FAILED"
    if not seen.agreed:
        raise Refused(f"mirror {link.mirror.name}: recover", left(seen))
    said = list[str]()
    if _deletes(context):
        person = answered(context, APPROVE)
        if not person:  # also where a task was marked as done by hand
            raise Refused(f"mirror {link.mirror.name}: recover", ["nobody has approved what it would delete"])
        shown = context["ti"].xcom_pull(task_ids=SHOW)["hash"]
        if reasons := of_another(context, (APPROVE,), shown):
            raise Refused(f"mirror {link.mirror.name}: recover", reasons)
        recovery.check_shown(link, seen, shown)
        said.append(f"approved by {person}")
    if folder is not None:
        with kept_elsewhere(folder):
            recovery.salvage(link, seen, folder, said.append)
    recovery.recover(link, seen, said.append)
    return "\n".join([*said, *done(seen)])


ACTIONS: Final[Mapping[str, Callable[[Link, Context], str]]] = MappingProxyType(
    {
        "pause": _pause,
        "resume": _resume,
        "stop": _stop,
        "start": _start,
        "throttle": _throttle,
        "recover": _recover,
        "abort": _abort,
        "leave_behind": _leave_behind,
    }
)
"""By the name that the form shows."""
