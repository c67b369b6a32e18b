"""Task context, shared by tests."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

PARAMS = {
    "source": "east",
    "destination": "west",
    "topics": [],
    "exclude_topics": [],
    "groups": [],
    "exclude_groups": [],
    "principals": [],
    "exclude_principals": [],
    "exclude_rights": [],
    "exclude_settings": [],
    "replication_factor": "source",
    "mirrors": [],
    "action": "recover",
    "recover_action": "recopy",
    "salvage": False,
    "master": "none",
    "mode": "planned",
    "whole": False,
    "patience_s": 90,
    "pause": False,
}

LEFT: dict[tuple[str, str | None], object] = {("show", None): {"hash": "h"}}
"""What other tasks have left for it."""

CONTEXT: Any = {
    "params": PARAMS,
    "dag_run": SimpleNamespace(dag_id="d", run_id="r", start_date=datetime(2026, 1, 1, tzinfo=UTC), conf={}),
    "ti": SimpleNamespace(
        xcom_pull=lambda task_ids, key=None: LEFT.get((task_ids, key), ["orders"]),
        xcom_push=lambda key, value: None,
    ),
}
