"""Notifies people of failed or late runs, and of questions, by the deployment's notifiers."""

from __future__ import annotations

import asyncio
import pkgutil
from collections.abc import Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseNotifier

from mirror_core.model.errors import MirrorError
from mirrorbook_airflow.hooks import find_owners
from mirrorbook_airflow.params import read_deadline_s, read_notifier_names

if TYPE_CHECKING:
    from airflow.sdk import Context

OWNERS_KEY: Final = "mirror_owners"
"""Key in the notifiers' context: owner by mirror, only of mirrors with an owner."""


class NamedNotifier(BaseNotifier):
    """Imports the notifier when it is called: DAG files are parsed often.

    A wrong name or a failing service is logged, and delays no failover.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def notify(self, context: Context) -> None:
        try:
            pkgutil.resolve_name(self.name)({**context, OWNERS_KEY: self._find_owners(context)})
        except Exception:
            self.log.exception("notifier %s: nobody was told", self.name)

    def _find_owners(self, context: Context) -> dict[str, str]:
        """A mistake in the file is logged; the notification is still sent."""
        run: Any = context.get("dag_run")
        try:
            return find_owners(context.get("params") or getattr(run, "conf", None) or {})
        except MirrorError as error:
            self.log.error("the owners cannot be read: %s", error)
        except Exception:
            self.log.exception("the owners cannot be read")
        return {}


def make_notifiers() -> list[NamedNotifier]:
    return [NamedNotifier(name) for name in read_notifier_names()]


def notify_on_failure() -> dict[str, Any]:
    """Empty where no notifier is configured."""
    callbacks = make_notifiers()
    return {"on_failure_callback": callbacks} if callbacks else {}


def notify_on_failure_or_deadline() -> dict[str, Any]:
    """Also notifies of a run that exceeds the configured deadline."""
    callbacks, limit_s = notify_on_failure(), read_deadline_s()
    if not callbacks or not limit_s:
        return callbacks
    # Only where it is asked for: Airflow calls it experimental, and an import that fails would take the runbooks away.
    from airflow.sdk.definitions.callback import AsyncCallback
    from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

    # In the triggerer: a SyncCallback is for executors, and where one knows none (KubernetesExecutor, say) a missed
    # deadline ends the scheduler. Not by the logical date: a run that was triggered may have none.
    callback = AsyncCallback(notify_deadline_missed, {"limit_s": limit_s})
    interval = timedelta(seconds=limit_s)
    return {**callbacks, "deadline": DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, interval, callback)}


async def notify_deadline_missed(context: Mapping[str, Any], limit_s: float) -> None:
    """Nothing for a failed run: its failure was notified already."""
    from airflow.sdk import DAG

    run = SimpleNamespace(**context["dag_run"])
    if run.state in ("success", "failed"):
        return
    notifier_context = {
        "dag": DAG(run.dag_id),
        "dag_run": run,
        "reason": f"not done {limit_s:g} s after it was asked for",
    }
    for notifier in make_notifiers():
        await asyncio.to_thread(notifier, notifier_context)
