"""What a mirror shall do from now on: pause, resume, stop, a throttle; recover FAILED partitions; or give a run up.

Each is a verb of the core with its own refusals: red, with every reason, when it may not be done now. A recovery that
deletes or lets go of something is shown first, and approved as it was shown.
"""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG, Param
from mirrorbook_airflow.controlling import ACTIONS, RECOVERIES, ApproveRecovery, ControlMirror, ShowRecovery
from mirrorbook_airflow.notifying import when_red
from mirrorbook_airflow.params import mirror

with DAG(
    "mirror_control",
    description="Pause, resume, stop or throttle a mirror; recover FAILED partitions; give a run up",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    tags=["mirrorbook"],
    **when_red(),
    params={
        "mirror": mirror("Which mirror"),
        "action": Param("pause", type="string", enum=[*ACTIONS], description_md="What it shall do"),
        "bytes_per_s": Param(
            0, type="integer", minimum=0, description_md="`throttle`: read at most this from the source; 0: no limit"
        ),
        "topics": Param(
            [],
            type="array",
            items={"type": "string"},
            description_md="`recover`: expressions of topics, one a line; none: all that are FAILED",
        ),
        "recover_action": Param(
            RECOVERIES[0],
            type="string",
            enum=[*RECOVERIES],
            description_md="`recover`: try again; delete the copy and copy anew; or let go of it",
        ),
        "salvage": Param(
            True,
            type="boolean",
            description_md="`recover` by `recopy`: save first what only the destination has, beside the evidence",
        ),
    },
) as dag:
    show = ShowRecovery(task_id="show", mirror="{{ params.mirror }}")
    approve = ApproveRecovery(
        task_id="approve",
        question="Recover FAILED partitions of mirror {{ params.mirror }}: {{ params.recover_action }}?",
        plan=show,
    )
    show >> approve >> ControlMirror(task_id="control", mirror="{{ params.mirror }}")
