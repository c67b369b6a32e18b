"""Notifies people of failed or late runs, and of questions, by the deployment's notifiers."""

from __future__ import annotations

import asyncio
import pkgutil
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType, SimpleNamespace
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

    def __init__(self, name: str, scope: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__()
        self.name = name
        self.scope = dict(scope)
        """Mirrors or set of the DAG, for a run whose parameters name none."""

    def notify(self, context: Context) -> None:
        try:
            pkgutil.resolve_name(self.name)({**context, OWNERS_KEY: self._find_owners(context)})
        except Exception:
            self.log.exception("notifier %s: nobody was told", self.name)

    def _find_owners(self, context: Context) -> dict[str, str]:
        """A mistake in the file is logged; the notification is still sent."""
        run: Any = context.get("dag_run")
        params = context.get("params") or getattr(run, "conf", None) or {}
        if not any(params.get(name) for name in ("mirror", "mirrors", "set")):
            task: Any = context.get("task")
            of_task = {"mirror": getattr(task, "mirror", ""), "set": getattr(task, "set_name", "")}
            params = of_task if any(of_task.values()) else self.scope
        try:
            return find_owners(params)
        except MirrorError as error:
            self.log.error("the owners cannot be read: %s", error)
        except Exception:
            self.log.exception("the owners cannot be read")
        return {}


def make_notifiers(scope: Mapping[str, Any] = MappingProxyType({})) -> list[NamedNotifier]:
    return [NamedNotifier(name, scope) for name in read_notifier_names()]


def notify_on_failure(scope: Mapping[str, Any], *, with_deadline: bool) -> dict[str, Any]:
    """Arguments of a DAG, empty where no notifier is configured. `with_deadline`: also of a run that exceeds it."""
    callbacks = make_notifiers(scope)
    if not callbacks:
        return {}
    limit_s = read_deadline_s() if with_deadline else 0
    if not limit_s:
        return {"on_failure_callback": callbacks}
    # Only where it is asked for: Airflow calls it experimental, and an import that fails would take the runbooks away.
    from airflow.sdk.definitions.callback import AsyncCallback
    from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

    # In the triggerer: a SyncCallback is for executors, and where one knows none (KubernetesExecutor, say) a missed
    # deadline ends the scheduler. Not by the logical date: a run that was triggered may have none.
    kwargs = {"limit_s": limit_s, **({"scope": dict(scope)} if scope else {})}
    callback = AsyncCallback(notify_deadline_missed, kwargs)
    interval = timedelta(seconds=limit_s)
    deadline = DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, interval, callback)
    return {"on_failure_callback": callbacks, "deadline": deadline}


async def notify_deadline_missed(
    context: Mapping[str, Any], limit_s: float, scope: Mapping[str, Any] = MappingProxyType({})
) -> None:
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
    for notifier in make_notifiers(scope):
        await asyncio.to_thread(notifier, notifier_context)
