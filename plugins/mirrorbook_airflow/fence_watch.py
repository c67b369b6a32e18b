"""Tasks of `mirror_watch` fence old sources of failovers; a task of `mirror_check` finds those without a watcher."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from mirror_core.decide.fence_state import FenceDecision
from mirror_core.model.errors import LostOwnership, MirrorError
from mirror_core.model.text import escape_invisible
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.mirror_lookup import list_unwatched_alarms, list_watched_links
from mirrorbook_airflow.operators import TASK_DEFAULTS

if TYPE_CHECKING:
    from airflow.sdk import Context

    from mirror_core.mirrors.fence_watcher import ProbeOutcome
    from mirror_core.model.names import MirrorName

PROBE_TIMEOUT_S: Final = 45
"""Time to wait for an unreachable cluster; the next run of the DAG is due soon after."""
WATCHER_NAME: Final = "DAG mirror_watch"
SCHEDULE_INTERVAL_S: Final = 60.0
ALARMS_KEY: Final = "alarms"
CLUSTER_KEY: Final = "cluster"
"""Key in the task's context."""
MAP_INDEX: Final = f"{{{{ ({CLUSTER_KEY} | default(task.mirrors | first))[:250] }}}}"
"""The cluster's name: mirrors may be hundreds, and PostgreSQL accepts 250 characters."""
REPEATED_ALARMS_KEY: Final = "once"
"""XCom: alarms that repeat until they are recorded as reported, by mirror."""


class _FenceTask(BaseOperator):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**TASK_DEFAULTS, **kwargs})

    def log_outcomes(self, outcomes: Mapping[MirrorName, ProbeOutcome]) -> list[str]:
        """Logs all outcomes; returns the alarms."""
        alarms = list[str]()
        for name, outcome in outcomes.items():
            if isinstance(outcome, LostOwnership):
                self.log.info("%s", escape_invisible(f"{name}: {outcome}: the next run looks again"))
            elif isinstance(outcome, FenceDecision):
                for line in outcome.lines:
                    self.log.info("%s", escape_invisible(f"{name}: {line}"))
                alarms += [f"mirror {name}: {alarm}" for alarm in outcome.alarms]
            else:
                alarms.append(f"mirror {name}: {outcome}")
        return alarms


class ProbeFencedSources(_FenceTask):
    """Probes each mirror of parameter `mirrors`, or each with a pending or standing fence; returns unreachable ones by
    cluster. Another task raises the alarms, so that they delay no waiting task.
    """

    def execute(self, context: Context) -> list[list[str]]:
        from mirror_core.mirrors.fence_watcher import (
            list_repeated_alarms,
            list_silent_sources,
            probe_each,
            record_watched,
        )

        started_s = time.monotonic()
        with airflow_errors():
            links = list_watched_links(context["params"]["mirrors"] or ())
            outcomes = probe_each(links)
        context["ti"].xcom_push(key=ALARMS_KEY, value=self.log_outcomes(outcomes))
        repeated_alarms = {str(name): list(alarms) for name, alarms in list_repeated_alarms(outcomes).items()}
        context["ti"].xcom_push(key=REPEATED_ALARMS_KEY, value=repeated_alarms)
        record_watched(links, outcomes, WATCHER_NAME, SCHEDULE_INTERVAL_S + time.monotonic() - started_s)
        return [[str(name) for name in names] for names in list_silent_sources(links, outcomes).values()]


class RaiseFenceAlarms(_FenceTask):
    """Fails with the alarms of the probes, and records them as reported.

    Alarms come from XComs: a killed task fails with the same ones when it is tried again.
    """

    def __init__(self, *, probe: BaseOperator, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.probe_task = probe.task_id

    def execute(self, context: Context) -> None:
        from mirror_core.mirrors.fence_watcher import record_reported_alarms

        alarms, repeated_alarms = (
            context["ti"].xcom_pull(task_ids=self.probe_task, key=key) for key in (ALARMS_KEY, REPEATED_ALARMS_KEY)
        )
        if repeated_alarms:
            try:
                record_reported_alarms(list_watched_links(list(repeated_alarms)), repeated_alarms)
            except MirrorError as error:
                self.log.info("%s", escape_invisible(f"alarms are told once more by the next run: {error}"))
        _raise_alarms(alarms or [])


class KeepSourceFenced(_FenceTask):
    """Waits up to 45 s for the cluster of these mirrors, and probes them then.

    Does not record alarms as reported: if the task is killed before it fails, the next run reports them.
    """

    template_fields: Sequence[str] = ("mirrors",)

    def __init__(self, *, mirrors: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mirrors = mirrors

    def execute(self, context: Context) -> None:
        from mirror_core.mirrors.fence_watcher import probe_on_first_answer

        with airflow_errors():
            links = list_watched_links(self.mirrors)
            context[CLUSTER_KEY] = links[0].source.name  # type: ignore[typeddict-unknown-key]
            outcomes = probe_on_first_answer(links, PROBE_TIMEOUT_S)
        if not outcomes:
            self.log.info("%s is silent still: the next run waits again", links[0].source.name)
        _raise_alarms(self.log_outcomes(outcomes))


class CheckWatchers(BaseOperator):
    """Fails where a fence is pending or standing without a watcher: `mirror_watch` may be paused."""

    def __init__(self, *, own_mirrors: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(**{**TASK_DEFAULTS, **kwargs})
        self.own_mirrors = tuple(own_mirrors)

    def execute(self, context: Context) -> None:
        with airflow_errors():
            alarms = list_unwatched_alarms(context["params"]["mirrors"] or self.own_mirrors)
        _raise_alarms(alarms)


def _raise_alarms(alarms: Sequence[str]) -> None:
    if alarms:
        raise AirflowFailException(escape_invisible("; ".join(alarms)))
