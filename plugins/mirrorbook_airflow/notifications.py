"""Who is told when a run is red or late, and when a person is asked: notifiers of the deployment's, of any provider."""

from __future__ import annotations

import asyncio
import pkgutil
from collections.abc import Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseNotifier

from mirror_core.model.errors import MirrorError
from mirrorbook_airflow.hooks import named_owners
from mirrorbook_airflow.params import deadline_s, notify

if TYPE_CHECKING:
    from airflow.sdk import Context

OWNERS: Final = "mirror_owners"
"""In the context that notifiers get: whom to call, by mirror; only mirrors that have an owner."""


class Named(BaseNotifier):
    """A notifier by its name, imported when there is something to tell: DAGs are read again and again.

    A name that leads nowhere, or a service that is down, is an error in the log: no failover waits for it.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def notify(self, context: Context) -> None:
        try:
            pkgutil.resolve_name(self.name)({**context, OWNERS: self._owners(context)})
        except Exception:
            self.log.exception("notifier %s: nobody was told", self.name)

    def _owners(self, context: Context) -> dict[str, str]:
        """By mirror, of those that this is about. A mistake in the file is in the log, and keeps nobody untold."""
        run: Any = context.get("dag_run")
        try:
            return named_owners(context.get("params") or getattr(run, "conf", None) or {})
        except MirrorError as mistake:
            self.log.error("the owners cannot be read: %s", mistake)
        except Exception:
            self.log.exception("the owners cannot be read")
        return {}


def notifiers() -> list[Named]:
    """Those that Airflow's settings name."""
    return [Named(name) for name in notify()]


def when_red() -> dict[str, Any]:
    """What a DAG is given so that somebody hears of its red runs; nothing where nobody is named."""
    found = notifiers()
    return {"on_failure_callback": found} if found else {}


def when_red_or_late() -> dict[str, Any]:
    """The same for a failover; and somebody hears of one that takes longer than Airflow's settings give it."""
    found, limit_s = when_red(), deadline_s()
    if not found or not limit_s:
        return found
    # Only where it is asked for: Airflow calls it experimental, and an import that fails would take the runbooks away.
    from airflow.sdk.definitions.callback import AsyncCallback
    from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

    # In the triggerer: a SyncCallback is for executors, and where one knows none (KubernetesExecutor, say) a missed
    # deadline ends the scheduler. Not by the logical date: a run that was triggered may have none.
    told = AsyncCallback(late, {"limit_s": limit_s})
    interval = timedelta(seconds=limit_s)
    return {**found, "deadline": DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, interval, told)}


async def late(context: Mapping[str, Any], limit_s: float) -> None:
    """Tell of a run that has not ended. Of one that is red somebody has heard, and Airflow keeps its deadline."""
    from airflow.sdk import DAG

    run = SimpleNamespace(**context["dag_run"])
    if run.state in ("success", "failed"):
        return
    about = {"dag": DAG(run.dag_id), "dag_run": run, "reason": f"not done {limit_s:g} s after it was asked for"}
    for notifier in notifiers():
        await asyncio.to_thread(notifier, about)
