"""Create a mirror, start it, and sync it for the first time. DAG `mirror_replicate` then copies its records."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow.sdk import DAG, Param
from mirrorbook_airflow.notifications import notify_on_failure
from mirrorbook_airflow.operators import CreateMirror, StartMirror, SyncMirror
from mirrorbook_airflow.params import cluster_param

PATTERNS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}

with DAG(
    "mirror_create",
    description="Create a mirror between two clusters",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    tags=["mirrorbook"],
    **notify_on_failure(),
    params={
        "mirror": Param(
            type="string", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description_md="Name of the new mirror"
        ),
        "source": cluster_param("Connection (type `kafka_cluster`) of the source"),
        "destination": cluster_param("Connection of the destination"),
        "topics": Param([".*"], **PATTERNS, description_md="Regular expressions for whole topic names, one a line"),
        "exclude_topics": Param([], **PATTERNS, description_md="Topics to leave out; exclusion wins"),
        "groups": Param([".*"], **PATTERNS, description_md="Consumer groups whose offsets are synced"),
        "gaps": Param(
            "as rights allow",
            enum=["as rights allow", "markers", "hidden"],
            description_md="How gaps in offsets are filled. Choose `hidden` for transactions to a distant cluster",
        ),
    },
) as dag:
    create = CreateMirror(task_id="create", mirror="{{ params.mirror }}")
    start = StartMirror(task_id="start", mirror="{{ params.mirror }}")
    create >> start >> SyncMirror(task_id="sync", mirror="{{ params.mirror }}")
