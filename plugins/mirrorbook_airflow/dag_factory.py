"""The public building blocks: `mirrorbook_dags`, a DAG factory, and `MirrorRunbook`, a task group for other DAGs.

A team's settings go on top of ours. What safety needs cannot be set: see `FIXED_ARGS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict, Unpack

from airflow.sdk import DAG, BaseOperator, Param, TaskGroup

from mirror_core.model.errors import BadRequest
from mirror_core.model.names import MirrorName, format_reverse_name
from mirror_core.model.run import RunMode
from mirrorbook_airflow.dag_actions import ACTIONS, DAG_PREFIX, DagAction, TargetKind, read_texts
from mirrorbook_airflow.notifications import notify_on_failure
from mirrorbook_airflow.operators import MAX_ACTIVE_RUNS, URGENT_TASK_DEFAULTS
from mirrorbook_airflow.params import mirror_list_param, mirror_param, read_approvers, set_param

START_DATE: Final = datetime(2026, 1, 1)
FIXED_ARGS: Final[Mapping[str, Any]] = {
    "trigger_rule": "all_success",
    "depends_on_past": False,
    "wait_for_downstream": False,
    "do_xcom_push": True,
    "mode": RunMode.PLANNED,
    "strategies": "",
    "go_ahead": None,
}
"""Arguments of tasks with these values, whatever `default_args` of a DAG say: a rejected plan ends a run."""
_OWN_ARGS: Final = frozenset({*FIXED_ARGS, "retries", "retry_delay", "execution_timeout", "start_date", "end_date"})
"""Names that nobody may give in `default_args`: steps state their own retries and execution timeouts."""


class TaskSettings(TypedDict, total=False):
    """Where tasks run, and for whom. Airflow's own names, but for the last two."""

    owner: str
    pool: str
    queue: str
    executor: str
    executor_config: Mapping[str, Any]
    priority_weight: int
    approvers: Sequence[str]
    """The only users whose approval counts here: ids, as in `[mirrorbook] approvers`, which has them, too."""
    replicate_dag: str
    """The DAG that a failback triggers, instead of `mirror_replicate`."""


def mirrorbook_params(action: str) -> dict[str, Param]:
    """Parameters of an action besides its mirror, for the form of a DAG with a `MirrorRunbook`."""
    return {**_get_action(action).params()}


class MirrorRunbook(TaskGroup):
    """One action of one mirror as a task group in a team's DAG. Its leaf `done` makes a failed one red.

    `mirror` may be a template. `params` are the action's parameters that have another value here than their default.
    """

    def __init__(
        self,
        group_id: str = "",
        *,
        mirror: str,
        action: str = "failover",
        params: Mapping[str, Any] | None = None,
        default_args: Mapping[str, Any] | None = None,
        time_limits: Mapping[str, timedelta] | None = None,
        prefix_group_id: bool = True,
        group_display_name: str = "",
        tooltip: str = "",
        **settings: Unpack[TaskSettings],
    ) -> None:
        chosen = _get_action(action)
        if chosen.group is None:
            possible = ", ".join(name for name, other in ACTIONS.items() if other.group)
            raise BadRequest(f"MirrorRunbook: action {action!r} is not for a task group: choose one of {possible}")
        super().__init__(
            group_id=group_id or action,
            prefix_group_id=prefix_group_id,
            group_display_name=group_display_name,
            tooltip=tooltip or read_texts()[action]["description"],
        )
        own = _merge_default_args(chosen, default_args, settings)
        self.default_args = {**self.default_args, **own, **FIXED_ARGS, "params": _choose_params(self, chosen, params)}
        with self:
            chosen.group(mirror)
        _limit_tasks(self, time_limits or {})


def mirrorbook_dags(
    *actions: str,
    mirrors: Iterable[str] = (),
    sets: Iterable[str] = (),
    dag_display_name: str = "",
    tags: Iterable[str] = (),
    schedule: Any = None,
    max_active_runs: int | None = None,
    params: Mapping[str, Any] | None = None,
    default_args: Mapping[str, Any] | None = None,
    time_limits: Mapping[str, timedelta] | None = None,
    on_failure_callback: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    on_success_callback: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    access_control: dict[str, Any] | None = None,
    owner_links: dict[str, str] | None = None,
    **settings: Unpack[TaskSettings],
) -> dict[str, DAG]:
    """DAGs by id, registered with Airflow: `mirror_ACTION` for all mirrors, or `mirror_ACTION.NAME` of one.

    Without `mirrors` and `sets`: for all. Without `actions`: all that are possible for these. In `dag_display_name`,
    `{action}` and `{name}` stand for those. `time_limits` are execution timeouts by task id.
    """
    dags = dict[str, DAG]()
    for name, target in _list_wanted(actions, list(mirrors), list(sets)):
        action = ACTIONS[name]
        own_settings: dict[str, Any] = {**settings}
        if target and "replicate" in (actions or ACTIONS):
            name_of_dag = "{mirror}" if action.target is TargetKind.SET else target
            own_settings.setdefault("replicate_dag", make_dag_id("replicate", name_of_dag))
        if (schedule is not None and not action.may_be_scheduled) or (max_active_runs and action.may_be_scheduled):
            scheduled = ", ".join(other for other, its in ACTIONS.items() if its.may_be_scheduled and its.group)
            raise BadRequest(
                f"mirrorbook_dags: {name}: `schedule` is for {scheduled}, which run once at a time; "
                "`max_active_runs` is for the others"
            )
        dag = _make_dag(
            name,
            target,
            schedule=action.schedule if schedule is None else schedule,
            max_active_runs=min(action.max_active_runs, max_active_runs or MAX_ACTIVE_RUNS),
            **({"dag_display_name": dag_display_name.format(action=name, name=target)} if dag_display_name else {}),
            tags=["mirrorbook", *(["runbook"] if action.is_runbook else []), *tags],
            default_args=_merge_default_args(action, default_args, own_settings),
            params=_override_defaults(name, action.params(), params or {}),
            access_control=access_control,
            owner_links=owner_links or {},
            on_success_callback=_list_callbacks(on_success_callback) or None,
            **_notify(action, target, _list_callbacks(on_failure_callback)),
        )
        _limit_tasks(dag.task_group, time_limits or {})
        dags[dag.dag_id] = dag
    return dags


def make_dag_id(action: str, name: str = "") -> str:
    """The DAG for all mirrors, or that of one mirror or set. The page finds DAGs by these ids."""
    return f"{DAG_PREFIX}{action}" + (f".{name}" if name else "")


def _get_action(name: str) -> DagAction:
    if name not in ACTIONS:
        raise BadRequest(f"there is no action {name!r} of a mirror: choose one of {', '.join(ACTIONS)}")
    return ACTIONS[name]


def _list_wanted(actions: Sequence[str], mirrors: Sequence[str], sets: Sequence[str]) -> list[tuple[str, str]]:
    """Actions, each with the mirror or set of its DAG; empty: the DAG is for all."""
    for name in actions:
        if _get_action(name).is_for_all and (mirrors or sets):
            raise BadRequest(f"mirrorbook_dags: DAG `{name}` is for all mirrors: make it without `mirrors` and `sets`")
    if not mirrors and not sets:
        return [(name, "") for name in actions or ACTIONS]
    return [
        (name, target)
        for name in actions or (name for name, action in ACTIONS.items() if not action.is_for_all)
        for target in (sets if ACTIONS[name].target is TargetKind.SET else mirrors)
    ]


def _merge_default_args(
    action: DagAction, default_args: Mapping[str, Any] | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    if wrong := sorted(_OWN_ARGS.intersection(default_args or {})):
        raise BadRequest(
            f"default_args: {', '.join(wrong)}: the steps state these themselves, and a DAG cannot "
            "change them. For execution timeouts use time_limits"
        )
    read_approvers(settings.get("approvers", ()))  # refused here, not on the day of the disaster
    return {**(URGENT_TASK_DEFAULTS if action.is_runbook else {}), **(default_args or {}), **settings}


def _override_defaults(action: str, params: Mapping[str, Param], values: Mapping[str, Any]) -> dict[str, Param]:
    if unknown := sorted(set(values) - set(params)):
        raise BadRequest(f"action {action} has no parameter {', '.join(unknown)}: it has {', '.join(params) or 'none'}")
    for name, value in values.items():
        params[name].value = params[name].resolve(value)
    return {**params}


def _choose_params(group: MirrorRunbook, action: DagAction, values: Mapping[str, Any] | None) -> dict[str, Param]:
    """Those that the DAG's own form does not have. A parameter of that name has to be ours: it decides for us."""
    own = _override_defaults(str(group.group_id), action.params(), values or {})
    for name in set(own) & set(group.dag.params):
        form = group.dag.params.get_param(name).schema
        if form.get("type") != own[name].schema.get("type") or name in (values or {}):
            raise BadRequest(
                f"MirrorRunbook {group.group_id}: parameter {name!r} of DAG {group.dag.dag_id} decides for this group, "
                "too: take it from mirrorbook_params(), and give no value here; or give it another name"
            )
    return {name: param for name, param in own.items() if name not in group.dag.params}


def _list_callbacks(given: Callable[..., Any] | Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
    return [given] if callable(given) else [*given]


def _notify(action: DagAction, target: str, callbacks: Sequence[Callable[..., Any]]) -> dict[str, Any]:
    """A team's callbacks beside those of the deployment."""
    scope: dict[str, Any] = {}
    if target:
        scope = {"set": target} if action.target is TargetKind.SET else {"mirrors": [*_list_covered(action, target)]}
    ours = notify_on_failure(scope, with_deadline=action.has_deadline)
    return {**ours, "on_failure_callback": [*ours.get("on_failure_callback", ()), *callbacks] or None}


def _list_covered(action: DagAction, mirror: str) -> tuple[str, ...]:
    """Mirrors on which the DAG of this one may act."""
    return (mirror, str(format_reverse_name(MirrorName(mirror)))) if action.covers_reverse else (mirror,)


def _limit_tasks(group: TaskGroup, limits: Mapping[str, timedelta]) -> None:
    for label, limit in limits.items():
        task: Any = group.dag.task_dict.get(group.child_id(label))
        if task is None:
            raise BadRequest(f"time_limits: DAG {group.dag.dag_id} has no task {group.child_id(label)}")
        if isinstance(task, BaseOperator):
            task.execution_timeout = limit
        else:
            task.partial_kwargs["execution_timeout"] = limit


def _make_target_param(name: str, action: DagAction, target: str) -> Param:
    """A constant for one mirror or set, which forms hide: Airflow refuses every other value."""
    text = read_texts()[name]["target"]
    if target and action.target is TargetKind.MIRRORS:
        return Param([], type="array", const=[], description_md=text)
    if target and action.target is TargetKind.MIRROR and action.covers_reverse:
        return Param(target, type="string", enum=[*_list_covered(action, target)], description_md=text)
    if target:
        return Param(target, type="string", const=target, description_md=text)
    if name == "create":
        return Param(type="string", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description_md=text)
    make = {TargetKind.MIRROR: mirror_param, TargetKind.MIRRORS: mirror_list_param, TargetKind.SET: set_param}
    return make[action.target](text)


def _make_dag(
    name: str, target: str, *, params: Mapping[str, Param], default_args: dict[str, Any], **settings: Any
) -> DAG:
    action, texts = ACTIONS[name], read_texts()[name]
    if target and action.target is TargetKind.MIRRORS:
        default_args["own_mirrors"] = _list_covered(action, target)
    if action.is_active_at_once or settings["schedule"] is None:
        settings["is_paused_upon_creation"] = False
    with DAG(
        make_dag_id(name, target),
        description=texts["description"] + (f": {target}" if target else ""),
        doc_md=texts["doc_md"],
        start_date=START_DATE,
        catchup=False,
        default_args=default_args,
        params={action.target.value: _make_target_param(name, action, target), **params},
        **settings,
    ) as dag:
        is_fixed = target and not (action.covers_reverse and action.target is TargetKind.MIRROR)
        action.build(target if is_fixed else f"{{{{ params.{action.target} }}}}")
    return dag
