"""What DAGs of Mirrorbook do: of each action its tasks, parameters and schedule. `dag_texts.toml` has the texts."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import Param, TriggerRule

from mirror_core.model.run import RunMode
from mirrorbook_airflow.approvals import CheckApprovers
from mirrorbook_airflow.control_tasks import (
    ACTIONS as CONTROL_ACTIONS,
)
from mirrorbook_airflow.control_tasks import (
    KEEP_PRESENT_FILTER,
    LEAVING_CHOICES,
    LEAVING_NOT_CHOSEN,
    RECOVERY_ACTIONS,
    ControlMirror,
    ShowChange,
)
from mirrorbook_airflow.drill_tasks import BOTH_MODES, CleanDrill, DrillMirror
from mirrorbook_airflow.fence_watch import CheckWatchers, ContinueFenceWatch, WatchFences
from mirrorbook_airflow.operators import (
    FILTER_TEXTS,
    MAX_ACTIVE_RUNS,
    MAX_PARALLEL_TASKS,
    CheckClusters,
    CheckMirror,
    CheckParity,
    CompactReceipts,
    CreateMirror,
    ListMirrors,
    MirrorOperator,
    StartMirror,
    SyncMirror,
)
from mirrorbook_airflow.params import (
    bytes_per_s_param,
    cluster_param,
    gate_limit_param,
    leave_behind_param,
    patience_param,
    pause_param,
    set_strategy_param,
    spark_master_param,
    strategies_param,
)
from mirrorbook_airflow.replicate_tasks import WATCH_RETRIES, WatchAgain, WatchDataPlane
from mirrorbook_airflow.runbook import (
    chain_tasks,
    make_approval_tasks,
    make_failback_tasks,
    make_failover_tasks,
    name_mirror,
    name_set,
)

DAG_PREFIX: Final = "mirror_"
_FACTOR_TEXT: Final = "of topics that are created: `source`, `default` (the destination's) or a number"


class TargetKind(StrEnum):
    """The parameter that names what a DAG acts on."""

    MIRROR = "mirror"
    MIRRORS = "mirrors"
    SET = "set"


@dataclass(frozen=True, slots=True, kw_only=True)
class DagAction:
    build: Callable[[str], object]
    """Makes the tasks for this mirror or set, a template mostly. Tasks of scheduled DAGs list their mirrors."""
    target: TargetKind = TargetKind.MIRROR
    params: Callable[[], Mapping[str, Param]] = dict
    """Besides the target."""
    schedule: str | None = None
    is_runbook: bool = False
    """It moves applications: its tasks take the next free slot."""
    has_deadline: bool = False
    max_active_runs: int = MAX_ACTIVE_RUNS
    is_active_at_once: bool = False
    """Not paused when it is created, as no DAG without a schedule is."""
    is_for_all: bool = False
    """No DAG of one mirror does this."""
    covers_reverse: bool = True
    """Also of the mirror that a failback makes: a DAG of `orders` copies, compares and pauses `orders-back`, too."""
    group: Callable[[str], object] | None = None
    """Makes the tasks for this mirror in a DAG of a team; None: such a DAG cannot do this."""

    @property
    def may_be_scheduled(self) -> bool:
        """It asks nobody, and lists its mirrors by itself."""
        return self.target is TargetKind.MIRRORS


@cache
def read_texts() -> Mapping[str, Mapping[str, str]]:
    """By action: description, doc_md, and target, the description of its parameter."""
    return tomllib.loads(files("mirrorbook_airflow").joinpath("dag_texts.toml").read_text(encoding="utf-8"))


def _build_failover(mirror: str) -> None:
    make_failover_tasks(name_mirror(mirror))


def _build_unplanned(mirror: str) -> None:
    make_failover_tasks(name_mirror(mirror), RunMode.UNPLANNED)


def _build_failback(mirror: str) -> None:
    make_failback_tasks(name_mirror(mirror), "{{ params.strategies or '' }}")


def _build_create(mirror: str) -> None:
    create = CreateMirror(task_id="create", mirror=mirror)
    chain_tasks(create, StartMirror(task_id="start", mirror=mirror), SyncMirror(task_id="sync", mirror=mirror))


def _build_replicate(mirror: str) -> None:
    watch = WatchDataPlane(task_id="watch", mirror=mirror, **WATCH_RETRIES)
    again = WatchAgain(task_id="watch_again", mirror=mirror, trigger_rule=TriggerRule.ONE_FAILED)
    # A second leaf, because `watch_again` ends well: this one keeps the run of an incident red.
    watch >> [again, EmptyOperator(task_id="done")]


def _build_watch(_: str) -> None:
    # A second leaf, because `continue_watch` ends well: this one keeps the run of an alarm red.
    WatchFences(task_id="watch", **WATCH_RETRIES) >> [
        ContinueFenceWatch(task_id="continue_watch"),
        EmptyOperator(task_id="done"),
    ]


def _build_control(mirror: str) -> None:
    show = ShowChange(task_id="show", mirror=mirror)
    asked = make_approval_tasks(show, f"Mirror {mirror}: {{{{ params.action }}}}?")
    chain_tasks(show, *asked, ControlMirror(task_id="control", mirror=mirror, show=show, approvals=asked))


_Operators = Mapping[str, type[MirrorOperator]]
_SYNC: Final[_Operators] = {"sync": SyncMirror}
_PARITY: Final[_Operators] = {"parity": CheckParity}
_RECEIPTS: Final[_Operators] = {"receipts": CompactReceipts}
_CHECK: Final[_Operators] = {"check": CheckMirror}
_DRILL: Final[_Operators] = {"drill": DrillMirror, "clean": CleanDrill}


def _map_tasks(operators: _Operators, **limit: int) -> dict[str, Any]:
    """A task for each listed mirror, by task id."""
    mirrors = ListMirrors(task_id="mirrors")
    return {
        name: operator.partial(task_id=name, **limit, **operator.mapped_defaults()).expand(mirror=mirrors.output)
        for name, operator in operators.items()
    }


def _make_tasks(operators: _Operators, mirror: str) -> dict[str, Any]:
    """For one mirror, by task id."""
    return {name: operator(task_id=name, mirror=mirror) for name, operator in operators.items()}


def _build_sync(_: str) -> None:
    _map_tasks(_SYNC, max_active_tis_per_dag=MAX_PARALLEL_TASKS)


def _build_parity(_: str) -> None:
    CheckClusters(task_id="clusters")  # behind nothing, and nothing behind it: red by itself
    _map_tasks(_PARITY, max_active_tis_per_dagrun=1)


def _build_receipts(_: str) -> None:
    _map_tasks(_RECEIPTS, max_active_tis_per_dagrun=1)


def _build_check(_: str) -> None:
    CheckClusters(task_id="clusters")  # behind nothing, and nothing behind it: red by itself
    CheckWatchers(task_id="watchers")  # the same
    CheckApprovers(task_id="approvers")  # the same
    _map_tasks(_CHECK, max_active_tis_per_dagrun=1)


def _chain_drill(tasks: Mapping[str, Any]) -> None:
    tasks["drill"] >> tasks["clean"].as_teardown(on_failure_fail_dagrun=True)


def _build_drill(_: str) -> None:
    _chain_drill(_map_tasks(_DRILL, max_active_tis_per_dagrun=1))


def _make_create_params() -> dict[str, Param]:
    patterns: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
    return {
        "source": cluster_param("Connection (type `kafka_cluster`) of the source"),
        "destination": cluster_param("Connection of the destination"),
        **{
            kind: Param(
                [] if kind.startswith("exclude_") else [".*"],
                **patterns,
                description_md=f"Regular expressions, one a line: {text}",
            )
            for kind, text in FILTER_TEXTS.items()
        },
        "replication_factor": Param("source", type="string", description_md=f"Replication factor {_FACTOR_TEXT}"),
        "gaps": Param(
            "as rights allow",
            enum=["as rights allow", "markers", "hidden"],
            description_md="How gaps in offsets are filled. Choose `hidden` for transactions to a distant cluster",
        ),
    }


def _make_control_params() -> dict[str, Param]:
    return {
        "action": Param(type="string", enum=[*CONTROL_ACTIONS], description_md="Action; none is chosen beforehand"),
        "bytes_per_s": bytes_per_s_param("`throttle`: bytes per second read from the source"),
        **{
            f"new_{kind}": Param(
                [KEEP_PRESENT_FILTER],
                type="array",
                items={"type": "string"},
                description_md=f"`change`: {text} from now on, one a line; `{KEEP_PRESENT_FILTER}` keeps them",
            )
            for kind, text in FILTER_TEXTS.items()
        },
        "new_replication_factor": Param(
            KEEP_PRESENT_FILTER,
            type="string",
            description_md=f"`change`: replication factor, from now on, {_FACTOR_TEXT}",
        ),
        "leaving_topics": Param(
            LEAVING_NOT_CHOSEN,
            type="string",
            enum=[*LEAVING_CHOICES],
            description_md="`change`: topics that leave become the applications', or nobody may write there. "
            "`release` alone: those kept closed before",
        ),
        "take_over": Param(
            False,
            type="boolean",
            description_md="`abort`, `leave_behind`: also while somebody conducts the run. "
            "Their process stops at its next write",
        ),
        "topics": Param(
            [],
            type="array",
            items={"type": "string"},
            description_md="`pause`, `resume`, `recover`, `split`: regular expressions of topic names, one a line. "
            "With none `pause` and `resume` mean the whole mirror, `recover` all FAILED ones",
        ),
        "split_into": Param(
            None, type=["string", "null"], description_md="`split`: name of the new mirror, which gets `topics`"
        ),
        "recover_action": Param(
            RECOVERY_ACTIONS[0],
            type="string",
            enum=[*RECOVERY_ACTIONS],
            description_md="`retry` copies on, `recopy` deletes the copy and copies again, `accept` forgets it",
        ),
        "salvage": Param(
            True,
            type="boolean",
            description_md="`recopy`: first save the records that only the destination has, beside the evidence",
        ),
    }


def _make_drill_params() -> dict[str, Param]:
    text = (
        "`planned`: loses nothing; `unplanned`: does without the source, and counts what is lost; "
        f"`{BOTH_MODES}`: one after the other"
    )
    modes = [BOTH_MODES, RunMode.PLANNED.value, RunMode.UNPLANNED.value]
    return {"mode": Param(BOTH_MODES, type="string", enum=modes, description_md=text)}


def _make_parity_params() -> dict[str, Param]:
    return {
        "whole": Param(
            False,
            type="boolean",
            description_md="Compare everything again; otherwise only what was not compared yet, and the ends",
        ),
        "bytes_per_s": bytes_per_s_param("Bytes per second read of each cluster, of one mirror after the other"),
        "master": spark_master_param(),
    }


def _make_planned_params() -> dict[str, Param]:
    return {"master": spark_master_param(), "pause": pause_param(), "gate_limit_s": gate_limit_param()}


def _make_set_failback_params() -> dict[str, Param]:
    return {"strategy": set_strategy_param(), **_make_planned_params(), "patience_s": patience_param()}


ACTIONS: Final[Mapping[str, DagAction]] = MappingProxyType(
    {
        "create": DagAction(build=_build_create, params=_make_create_params, max_active_runs=1, is_for_all=True),
        "replicate": DagAction(build=_build_replicate, params=lambda: {"patience_s": patience_param()}),
        "watch": DagAction(
            build=_build_watch,
            target=TargetKind.MIRRORS,
            schedule="@hourly",
            max_active_runs=2,  # one watches all the time, and a person's look beside it waits for no hour
            is_active_at_once=True,
            is_for_all=True,
        ),
        "sync": DagAction(
            build=_build_sync,
            target=TargetKind.MIRRORS,
            max_active_runs=1,
            group=lambda mirror: _make_tasks(_SYNC, mirror),
        ),
        "parity": DagAction(
            build=_build_parity,
            target=TargetKind.MIRRORS,
            params=_make_parity_params,
            schedule="@hourly",
            max_active_runs=1,
            group=lambda mirror: _make_tasks(_PARITY, mirror),
        ),
        "receipts": DagAction(
            build=_build_receipts,
            target=TargetKind.MIRRORS,
            params=lambda: {"master": spark_master_param()},
            schedule="@daily",
            max_active_runs=1,
            group=lambda mirror: _make_tasks(_RECEIPTS, mirror),
        ),
        "check": DagAction(
            build=_build_check,
            target=TargetKind.MIRRORS,
            schedule="@hourly",
            max_active_runs=1,
            group=lambda mirror: _make_tasks(_CHECK, mirror),
        ),
        "drill": DagAction(
            build=_build_drill,
            target=TargetKind.MIRRORS,
            params=_make_drill_params,
            schedule="@weekly",
            max_active_runs=1,
            group=lambda mirror: _chain_drill(_make_tasks(_DRILL, mirror)),
        ),
        "control": DagAction(build=_build_control, params=_make_control_params),
        "failover": DagAction(
            build=_build_failover,
            group=_build_failover,
            params=lambda: {**_make_planned_params(), "leave_behind": leave_behind_param()},
            is_runbook=True,
            has_deadline=True,
            covers_reverse=False,
        ),
        "failover_unplanned": DagAction(
            build=_build_unplanned,
            group=_build_unplanned,
            params=lambda: {"master": spark_master_param(), "leave_behind": leave_behind_param()},
            is_runbook=True,
            has_deadline=True,
            covers_reverse=False,
        ),
        "failover_set": DagAction(
            build=lambda name: make_failover_tasks(name_set(name)),
            target=TargetKind.SET,
            params=_make_planned_params,
            is_runbook=True,
            has_deadline=True,
        ),
        "failover_set_unplanned": DagAction(
            build=lambda name: make_failover_tasks(name_set(name), RunMode.UNPLANNED),
            target=TargetKind.SET,
            params=lambda: {"master": spark_master_param(), "leave_behind": leave_behind_param()},
            is_runbook=True,
            has_deadline=True,
        ),
        "failback": DagAction(
            build=_build_failback,
            group=_build_failback,
            params=lambda: {
                "strategies": strategies_param(),
                **_make_planned_params(),
                "patience_s": patience_param(),
            },
            is_runbook=True,
            covers_reverse=False,
        ),
        "failback_set": DagAction(
            build=lambda name: make_failback_tasks(name_set(name), "{{ params.strategy or '' }}"),
            target=TargetKind.SET,
            params=_make_set_failback_params,
            is_runbook=True,
        ),
    }
)
"""By action. The DAG for all mirrors is called `mirror_ACTION`."""
