"""Verbs about one mirror, for people who have Airflow and no shell."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from mirror_core.decide.approval_rules import explain_not_approved, select_valid_approvals
from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.decide.failure_remedies import RecoveryAction
from mirror_core.decide.mirror_change import (
    FilterChange,
    explain_other_choice,
    format_plan,
    format_split,
    split_filters,
)
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.model.errors import BadRequest, Refused
from mirror_core.model.mirror import DesiredState, Mirror, PartitionState, TopicAccess
from mirror_core.model.names import MirrorName, get_base_name
from mirror_core.model.run import RunKind, RunState, find_last_begun
from mirror_core.model.text import escape_invisible_lines, format_count
from mirrorbook_airflow.airflow_variables import add_form_mirror
from mirrorbook_airflow.approvals import (
    format_approvers,
    make_approval_policy,
    make_question_id,
    pull_result,
    record_shown_plan,
)
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.hooks import get_home_folder
from mirrorbook_airflow.markdown import format_action, format_recovery
from mirrorbook_airflow.mirror_lookup import find_mirror, list_silent_clusters
from mirrorbook_airflow.object_store import copy_to_object_store
from mirrorbook_airflow.operators import COPY_TIMEOUT, FILTER_TEXTS, MirrorOperator
from mirrorbook_airflow.runbook import LEAF_RULE, format_conductor
from mirrorbook_airflow.worker_services import make_services

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import BaseOperator, Context

    from mirror_core.mirrors.recovery_plan import RecoveryPlan
    from mirror_core.model.run import Run
    from mirror_core.state.mirror_link import MirrorLink
    from mirror_core.state.state_records import State


RECOVERY_ACTIONS: Final = tuple(RecoveryAction)
"""What can be done about FAILED partitions, by the names that the form shows."""


@dataclass(frozen=True, slots=True)
class ControlChange:
    """What an action would do that somebody has to approve."""

    hash: str
    body: str
    run: str = ""
    """The run that it is about; empty: none."""
    losses: tuple[str, ...] = ()
    """What the run has stopped for, and leaves behind."""
    question: str = ""
    """Its approvals; empty while it is only shown."""


class ShowChange(MirrorOperator):
    """What the action would delete, end or give up, to be approved. Nothing, where it does nothing of that sort."""

    def execute(self, context: Context) -> dict[str, str]:
        with airflow_errors():
            link, state = find_mirror(self.mirror)
            change = _plan_change(link, state, context)
            if change is None:
                return {"hash": "", "body": ""}
            record_shown_plan(context, self.task_id, [(link, state)], change.hash, change.body)
        return {"hash": change.hash, "body": change.body}


class ControlMirror(MirrorOperator):
    """Do what parameter `action` says, with the approvals that it needs. Doing it twice is harmless."""

    def __init__(
        self, *, show: BaseOperator, approvals: Sequence[BaseOperator], approvers: Sequence[str] = (), **kwargs: Any
    ) -> None:
        super().__init__(trigger_rule=LEAF_RULE, **kwargs)
        self.show_task = show.task_id
        self.approval_tasks = tuple(task.task_id for task in approvals)
        self.approvers = tuple(approvers)

    timeout = COPY_TIMEOUT  # `recover` may salvage whole logs, `leave_behind` goes through a failover

    def execute(self, context: Context) -> str:
        pull_result(context, self.show_task, "hash")  # whoever skipped that wants nothing done
        with airflow_errors():
            if context["params"]["action"] == "delete" and _is_deleted(self.mirror):
                return "deleted already"  # by an attempt before this one, whose process was killed
            link, state = find_mirror(self.mirror)
            change = _plan_change(link, state, context, was_planned=True)
            if change:
                change = replace(change, question=make_question_id(context, self.show_task))
            people = self._require_approvals(context, link, state, change) if change else ""
            result = ACTIONS[context["params"]["action"]](link, context, change)
            if change:  # not before: the next attempt of a task whose process was killed goes on by the same approvals
                self._use_up_approvals(link, state, change)
        result = f"approved by {people}\n{result}" if people else result
        self.log.info("%s", escape_invisible_lines(result))
        return result

    def _require_approvals(self, context: Context, link: MirrorLink, state: State, change: ControlChange) -> str:
        from mirror_core.state.approvals import find_approvals
        from mirror_core.state.mirror_link import read_broker_time_ms

        policy = make_approval_policy(context, self.show_task, self.approval_tasks, self.approvers)
        recorded = find_approvals(state, MirrorName(self.mirror), change.question)
        now = read_broker_time_ms(link.destination)
        if reasons := explain_not_approved(policy, recorded, change.hash, now):
            raise Refused(f"mirror {self.mirror}: {context['params']['action']}", reasons, reason_code="not_approved")
        return format_approvers(select_valid_approvals(policy, recorded))

    def _use_up_approvals(self, link: MirrorLink, state: State, change: ControlChange) -> None:
        from mirror_core.state.approvals import use_up_approvals

        use_up_approvals(link.destination, state, MirrorName(self.mirror), change.question)


def _plan_change(
    link: MirrorLink, state: State, context: Context, *, was_planned: bool = False
) -> ControlChange | None:
    """What the chosen action would change that needs approval. Its hash stays the same until a killed
    attempt has been repeated. `was_planned`: it was planned before, and an attempt may have done it since."""
    params, mirror = context["params"], link.mirror
    action = params["action"]
    if action == "recover":
        return _plan_recovery_change(link, context)
    if action == "change":
        return _plan_filter_change(link, state, context, was_planned=was_planned)
    if action == "split":
        return _plan_split_change(link, state, context, was_planned=was_planned)
    if action not in _ACTIONS_TO_APPROVE or (action == "stop" and mirror.desired is DesiredState.STOPPED):
        return None
    if was_planned and action in _ENDS_OF_RUNS and _find_ended_run(state, mirror.name, action):
        return None
    hashed_values = [action, mirror.name, str(mirror.created_ms), mirror.source_id, mirror.destination_id]
    lines = [_ACTIONS_TO_APPROVE[action].format(source=mirror.source, destination=mirror.destination)]
    run_id, losses = "", tuple[str, ...]()
    if action == "delete":
        lines += _list_deletion_effects(link)
    if action in _ENDS_OF_RUNS:
        run = _require_active_run(state, mirror.name, action)
        run_id = run.id
        hashed_values += [run.id, str(bool(params["take_over"]))]
        if action == "leave_behind":
            losses = _list_losses(state, run)
            hashed_values += losses
        steps = state.steps_of(run)
        lines.append(f"Run {run.id}, conducted by {run.conducted_by}: {steps[-1].step if steps else 'no step'} last")
        lines += [f"It has said: {step.error}" for step in steps[-1:] if step.error]
        if params["take_over"]:
            lines.append("Also from a process that conducts it now: that one stops at its next write")
    plan_hash = hashlib.sha256("\n".join(hashed_values).encode()).hexdigest()
    return ControlChange(plan_hash, format_action(action, mirror.name, plan_hash, lines), run_id, losses)


_ACTIONS_TO_APPROVE: Final = MappingProxyType(
    {
        "stop": "Ends mirroring from {source} to {destination}, and records the last mirrored offsets",
        "delete": "Forgets the mirror from {source} to {destination}; its topics stay",
        "abort": "Gives the run up: applications stay on {source}, or may write there again",
        "leave_behind": (
            "Leaves behind what the run has stopped for: it stays on {source} only. Then the run goes on and promotes "
            "{destination}: no way back but a failback"
        ),
    }
)
"""Actions that need approval, and what they do."""


def _list_deletion_effects(link: MirrorLink) -> list[str]:
    from mirror_core.mirrors.mirror_commands import preview

    preview_of_deletion = preview(link, MirrorCommand.DELETE)
    preview_of_deletion.raise_refusal()
    return [*preview_of_deletion.lines[1:]]


def _is_deleted(mirror: str) -> bool:
    """No known cluster has it, and each has answered."""
    try:
        find_mirror(mirror)
    except BadRequest:
        return not list_silent_clusters()
    return False


def _list_losses(state: State, run: Run) -> tuple[str, ...]:
    from mirror_core.runbook.failover_conductor import list_refused_losses

    return list_refused_losses(state, run)


def _is_stopped(mirror: Mirror, state: State) -> bool:
    statuses = state.partitions.get(mirror.name, {}).values()
    return mirror.desired is DesiredState.STOPPED and all(s.state is PartitionState.STOPPED for s in statuses)


def _find_ended_run(state: State, mirror: MirrorName, action: str) -> Run | None:
    """The mirror's newest run, ended as the action ends it: by an attempt before this one, whose process was killed."""
    if state.active_run(mirror) is not None:
        return None
    newest = find_last_begun(run for run in state.runs.values() if run.plan.mirror == mirror)
    return newest if newest and newest.state is _ENDS_OF_RUNS[action] else None


_ENDS_OF_RUNS: Final = MappingProxyType({"abort": RunState.ABORTED, "leave_behind": RunState.DONE})


def _require_active_run(state: State, mirror: MirrorName, action: str) -> Run:
    run = state.active_run(mirror)
    if run is None:
        raise BadRequest(f"mirror {mirror}: no run holds it: there is nothing to {action}")
    return run


def _set_desired_state(link: MirrorLink, state: DesiredState, command: Callable[[MirrorLink], Mirror]) -> DesiredState:
    """What is desired after this verb. An attempt before this one, whose process was killed, may have done it."""
    return (link.mirror if link.mirror.desired is state else command(link)).desired


def _select_topics(link: MirrorLink, context: Context) -> tuple[str, ...]:
    """Empty: the whole mirror is meant."""
    from mirror_core.mirrors.mirror_commands import select_topics

    expressions = context["params"]["topics"]
    return select_topics(link.mirror, find_mirror(link.mirror.name)[1], expressions) if expressions else ()


def _pause(link: MirrorLink, context: Context, approved: ControlChange | None) -> str:
    from mirror_core.mirrors.mirror_commands import pause_mirror, pause_topics

    if topics := _select_topics(link, context):
        return f"paused: {join_limited(pause_topics(link, topics).paused_topics)}"
    return f"desired: {_set_desired_state(link, DesiredState.PAUSED, pause_mirror)}"


def _resume(link: MirrorLink, context: Context, approved: ControlChange | None) -> str:
    from mirror_core.mirrors.mirror_commands import resume_mirror, resume_topics

    if topics := _select_topics(link, context):
        return f"paused: {join_limited(resume_topics(link, topics).paused_topics) or 'none'}"
    return f"desired: {_set_desired_state(link, DesiredState.STARTED, resume_mirror)}"


def _stop(link: MirrorLink, context: Context, approved: ControlChange | None) -> str:
    from mirror_core.mirrors.mirror_commands import stop_mirror

    if approved is None and _is_stopped(*_read_mirror(link)):
        return "stopped already"
    ends = stop_mirror(link, question=approved.question if approved else "")
    return f"stopped, and recorded the last mirrored offsets of {format_count(len(ends), 'partition')}"


def _read_mirror(link: MirrorLink) -> tuple[Mirror, State]:
    current_link, state = find_mirror(link.mirror.name)
    return current_link.mirror, state


def _start(link: MirrorLink, context: Context, approved: ControlChange | None) -> str:
    from mirror_core.mirrors.mirror_commands import start_mirror

    desired = _set_desired_state(link, DesiredState.STARTED, start_mirror)
    supervised = get_base_name(link.mirror.name)
    return f"desired: {desired}. Where no data plane is at work for it: mirrorbook supervise {supervised}"


def _throttle(link: MirrorLink, context: Context, approved: ControlChange | None) -> str:
    from mirror_core.mirrors.mirror_commands import throttle_mirror

    limit = throttle_mirror(link, context["params"]["bytes_per_s"] or None).throttle
    return "throttle: none" if limit is None else f"throttle: {limit} bytes/s"


def _abort(link: MirrorLink, context: Context, approved: ControlChange | None) -> str:
    if text := _describe_ended_run(link, "abort", approved):
        return text
    run, _, engine = _take_over_run(link, context, "abort", approved)
    ended = engine.abort(run.id)
    return f"run {run.id} is {ended.state}. {ended.note}".strip()


def _leave_behind(link: MirrorLink, context: Context, approved: ControlChange | None) -> str:
    """And go on with the run: what it waits for is a person's word."""
    from mirror_core.state.point_of_no_return import is_past_no_return

    if text := _describe_ended_run(link, "leave_behind", approved):
        return text
    run, state, engine = _take_over_run(link, context, "leave_behind", approved)
    if run.plan.kind is not RunKind.FAILOVER:
        raise BadRequest(f"run {run.id} is a {run.plan.kind}: only a failover leaves anything behind")
    if not is_past_no_return(
        state, run
    ):  # an attempt before this one, whose process was killed, has gone on by the word
        engine.confirm_leave_behind(run.id, approved.losses if approved else ())
    ended = engine.drive(run.id)
    return f"run {run.id} is {ended.state}. {ended.note}".strip()


def _describe_ended_run(link: MirrorLink, action: str, approved: ControlChange | None) -> str:
    """Empty: it is not over, or approved again."""
    _, state = find_mirror(link.mirror.name)
    run = None if approved else _find_ended_run(state, link.mirror.name, action)
    return f"run {run.id} is {run.state} already. {run.note}".strip() if run else ""


def _take_over_run(
    link: MirrorLink, context: Context, action: str, approved: ControlChange | None
) -> tuple[Run, State, Any]:
    """The run that holds the mirror, and its engine. Refused while somebody conducts it, unless it is taken from them:
    they learn so at their next write."""
    from mirror_core.runbook.failback_conductor import Failback
    from mirror_core.runbook.failover_conductor import Failover

    _, state = find_mirror(link.mirror.name)
    run = _require_active_run(state, link.mirror.name, action)
    if approved is None or approved.run != run.id:
        raise Refused(
            f"run {run.id}: {action}",
            ["nobody has approved it of this run: trigger a new DAG run"],
            reason_code="not_approved",
        )
    conductor_class: Any = Failover if run.plan.kind is RunKind.FAILOVER else Failback
    engine = conductor_class(link, make_services(link.config.path, (), ""), started_by=format_conductor(context))
    if not context["params"]["take_over"]:
        engine.refuse_conducted(run.id, f"run {run.id}: {action}", take_over=True)
    return run, state, engine


def _plan_recovery_change(link: MirrorLink, context: Context) -> ControlChange | None:
    from mirror_core.mirrors.recovery_plan import format_blocked, format_proposals

    if RecoveryAction(context["params"]["recover_action"]) is RecoveryAction.RETRY:
        return None
    plan, folder = _plan_recovery(link, context)
    if not plan.proposals:
        return None
    if not plan.actionable:
        raise Refused(f"mirror {link.mirror.name}: recover", format_blocked(plan), reason_code="recovery_blocked")
    return ControlChange(
        plan.hash, format_recovery(link.mirror.name, plan.hash, list(format_proposals(link.mirror, plan, folder)))
    )


def _plan_recovery(link: MirrorLink, context: Context) -> tuple[RecoveryPlan, Path | None]:
    """What the form asks for, as it stands now, and where to save what is lost by it; None: nowhere."""
    from mirror_core.mirrors.recovery_plan import plan_recovery

    params, action = context["params"], RecoveryAction(context["params"]["recover_action"])
    plan = plan_recovery(link, find_mirror(link.mirror.name)[1], params["topics"] or None, action)
    folder = get_home_folder("evidence") / link.mirror.name / f"recover-{context['dag_run'].start_date:%Y%m%dT%H%M%SZ}"
    return plan, folder if params["salvage"] and action is RecoveryAction.RECOPY else None


def _recover(link: MirrorLink, context: Context, approved: ControlChange | None) -> str:
    from mirror_core.mirrors import partition_recovery
    from mirror_core.mirrors.recovery_plan import format_blocked, format_done

    plan, folder = _plan_recovery(link, context)
    if not plan.proposals:
        return "no partition is FAILED"
    if not plan.actionable:
        raise Refused(f"mirror {link.mirror.name}: recover", format_blocked(plan), reason_code="recovery_blocked")
    if RecoveryAction(context["params"]["recover_action"]) is not RecoveryAction.RETRY:
        partition_recovery.check_approved_plan(link, plan, approved.hash if approved else "")
    lines = list[str]()
    if folder is not None:
        with copy_to_object_store(folder):
            partition_recovery.salvage_lost_records(link, plan, folder, lines.append)
    partition_recovery.recover_partitions(link, plan, lines.append)
    return "\n".join([*lines, *format_done(plan)])


KEEP_PRESENT_FILTER: Final = "as now"
"""What the form shows for filters that stay."""
LEAVING_NOT_CHOSEN: Final = "not chosen"
LEAVING_CHOICES: Final = MappingProxyType(
    {LEAVING_NOT_CHOSEN: None, "release": TopicAccess.RELEASED, "keep closed": TopicAccess.CLOSED}
)


def _read_filter_change(params: Mapping[str, Any]) -> FilterChange:
    def read(name: str) -> tuple[str, ...] | None:
        patterns = tuple(params[name])
        return None if patterns == (KEEP_PRESENT_FILTER,) else patterns

    filters: dict[str, Any] = {name: read(f"new_{name}") for name in FILTER_TEXTS}
    factor = params["new_replication_factor"]
    return FilterChange(
        **filters,
        replication_factor=None if factor == KEEP_PRESENT_FILTER else factor,
        access=LEAVING_CHOICES[params["leaving_topics"]],
    )


def _plan_filter_change(link: MirrorLink, state: State, context: Context, *, was_planned: bool) -> ControlChange | None:
    from mirror_core.mirrors.mirror_change import prepare_change

    change = _read_filter_change(context["params"])
    is_recorded = was_planned and change.apply(link.mirror) == link.mirror
    if is_recorded and change.has_filters:
        departures = state.departures.get(link.mirror.name, {}).values()
        if reasons := [*explain_other_choice(change, departures)]:
            raise Refused(f"mirror {link.mirror.name}: change", reasons, reason_code="change_refused")
        return None  # by an attempt before this one, whose process was killed
    plan = prepare_change(link, state, change).plan
    if plan.unfinished and not plan.refused:
        return None  # it is recorded already, and the next sync would finish it unasked
    if is_recorded and not plan.released:
        return None
    if plan.refused:
        raise Refused(f"mirror {link.mirror.name}: change", plan.refused, reason_code="change_refused")
    lines = list(format_plan(plan, link.mirror))
    return ControlChange(plan.hash, format_action("change", link.mirror.name, plan.hash, lines))


def _change(link: MirrorLink, context: Context, approved: ControlChange | None) -> str:
    from mirror_core.mirrors.mirror_change import change_mirror, finish_change

    if approved is not None:
        change_mirror(link, _read_filter_change(context["params"]), approved.hash)
    lines = list[str]()
    if not finish_change(link, lines.append):
        lines.append("recorded; the next sync goes on, once the data plane has dropped the topics that leave")
    return "\n".join([*lines, "changed"])


def _delete(link: MirrorLink, context: Context, approved: ControlChange | None) -> str:
    from mirror_core.mirrors.mirror_commands import delete_mirror

    left = delete_mirror(link)
    return "\n".join([*left, f"deleted; its topics are still on cluster {link.mirror.destination}"])


def _plan_split_change(link: MirrorLink, state: State, context: Context, *, was_planned: bool) -> ControlChange | None:
    from mirror_core.mirrors.mirror_change import prepare_split

    into, topics = MirrorName(context["params"]["split_into"] or ""), tuple(context["params"]["topics"])
    if not into or not topics:
        raise BadRequest(
            f"mirror {link.mirror.name}: split needs `split_into`, a name for the new mirror, and `topics`"
        )
    if was_planned and (new := state.mirrors.get(into)) and new.topics == topics:
        remaining, _ = split_filters(link.mirror, into, topics)
        if remaining == link.mirror:
            return None  # by an attempt before this one, whose process was killed
    plan = prepare_split(link, state, into, topics)
    if plan.refused:
        raise Refused(f"mirror {link.mirror.name}: split", plan.refused, reason_code="split_refused")
    return ControlChange(
        plan.hash, format_action("split", link.mirror.name, plan.hash, list(format_split(plan, link.mirror)))
    )


def _split(link: MirrorLink, context: Context, approved: ControlChange | None) -> str:
    from mirror_core.mirrors.mirror_change import split_mirror

    into, lines = context["params"]["split_into"], list[str]()
    if approved is not None:
        split_mirror(link, into, tuple(context["params"]["topics"]), approved.hash, lines.append)
    add_form_mirror(into, link.mirror.destination)
    return "\n".join([*lines, f"split: mirror {into} is {link.mirror.desired}, as {link.mirror.name} is"])


ACTIONS: Final[Mapping[str, Callable[[MirrorLink, Context, ControlChange | None], str]]] = MappingProxyType(
    {
        "pause": _pause,
        "resume": _resume,
        "stop": _stop,
        "start": _start,
        "throttle": _throttle,
        "change": _change,
        "split": _split,
        "delete": _delete,
        "recover": _recover,
        "abort": _abort,
        "leave_behind": _leave_behind,
    }
)
"""By the name that the form shows."""
