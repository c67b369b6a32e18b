"""Change a mirror: pause, resume, stop, start or throttle it, change its topics and groups, recover its FAILED
partitions, abort its run, or say that an unplanned run may leave behind what it has stopped for, and go on with it
(`leave_behind`).

Mirrorbook refuses an action that is not safe now: the task is red and lists every reason. What stops a mirror, ends a
run or goes on with it, deletes or forgets something is shown first, and done exactly as it was approved.
"""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG, Param
from mirrorbook_airflow.control_tasks import (
    ACTIONS,
    FILTER_TEXTS,
    KEEP_PRESENT_FILTER,
    LEAVING_CHOICES,
    LEAVING_NOT_CHOSEN,
    RECOVERY_ACTIONS,
    ControlMirror,
    ShowChange,
)
from mirrorbook_airflow.notifications import notify_on_failure
from mirrorbook_airflow.operators import MAX_ACTIVE_RUNS
from mirrorbook_airflow.params import bytes_per_s_param, mirror_param
from mirrorbook_airflow.runbook import chain_tasks, make_approval_tasks

with DAG(
    "mirror_control",
    description="Pause, resume, stop, start, throttle or change a mirror; recover partitions; abort or unblock a run",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=MAX_ACTIVE_RUNS,
    is_paused_upon_creation=False,
    tags=["mirrorbook"],
    **notify_on_failure(),
    params={
        "mirror": mirror_param("Name of the mirror"),
        "action": Param(type="string", enum=[*ACTIONS], description_md="Action; none is chosen beforehand"),
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
            description_md="`recover`: regular expressions of topic names, one a line; empty: all FAILED ones",
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
    },
) as dag:
    show = ShowChange(task_id="show", mirror="{{ params.mirror }}")
    asked = make_approval_tasks(show, "Mirror {{ params.mirror }}: {{ params.action }}?")
    chain_tasks(
        show, *asked, ControlMirror(task_id="control", mirror="{{ params.mirror }}", show=show, approvals=asked)
    )
