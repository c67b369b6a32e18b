"""Old sources of failovers: tasks of DAG `mirror_watch` fence them when they answer, and keep them fenced; a task of
`mirror_check` finds those that nobody watches."""

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
from mirrorbook_airflow.mirror_lookup import debtors, unwatched
from mirrorbook_airflow.operators import TASK_DEFAULTS

if TYPE_CHECKING:
    from airflow.sdk import Context

    from mirror_core.mirrors.fence_watcher import ProbeOutcome
    from mirror_core.model.names import MirrorName

WAIT_S: Final = 45
"""A silent cluster that is owed a fence is waited for so long; the next run of the DAG is due soon after."""
BY: Final = "DAG mirror_watch"
EVERY_S: Final = 60.0
"""Of its schedule."""
ALARMS: Final = "alarms"
"""XCom: what somebody has to be called for."""
CLUSTER: Final = "cluster"
"""In the context of a task that waits: for which cluster."""
MAP_INDEX: Final = f"{{{{ ({CLUSTER} | default(task.mirrors | first))[:250] }}}}"
"""Names a task that waits by its cluster: its mirrors may be hundreds, and PostgreSQL takes 250 characters."""
ONCE: Final = "once"
"""XCom: of these, what looks repeat until it is noted that people were told, by mirror."""


class _Looks(BaseOperator):
    """A task that looks at mirrors."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**TASK_DEFAULTS, **kwargs})

    def told(self, found: Mapping[MirrorName, ProbeOutcome]) -> list[str]:
        """All of it in the log; the alarms."""
        alarms = list[str]()
        for name, seen in found.items():
            if isinstance(seen, LostOwnership):
                self.log.info("%s", escape_invisible(f"{name}: {seen}: the next run looks again"))
            elif isinstance(seen, FenceDecision):
                for line in seen.lines:
                    self.log.info("%s", escape_invisible(f"{name}: {line}"))
                alarms += [f"mirror {name}: {alarm}" for alarm in seen.alarms]
            else:
                alarms.append(f"mirror {name}: {seen}")
        return alarms


class LookAtDebtors(_Looks):
    """One quick look at each mirror of parameter `mirrors`, or each that owes something; what is silent, by cluster.

    Its alarms are another task's: they hold nobody up who waits for a cluster.
    """

    def execute(self, context: Context) -> list[list[str]]:
        from mirror_core.mirrors.fence_watcher import (
            list_repeated_alarms,
            list_silent_sources,
            probe_each,
            record_watched,
        )

        began = time.monotonic()
        with airflow_errors():
            links = debtors(context["params"]["mirrors"] or ())
            found = probe_each(links)
        context["ti"].xcom_push(key=ALARMS, value=self.told(found))
        once = {str(name): list(alarms) for name, alarms in list_repeated_alarms(found).items()}
        context["ti"].xcom_push(key=ONCE, value=once)
        record_watched(links, found, BY, EVERY_S + time.monotonic() - began)
        return [[str(name) for name in names] for names in list_silent_sources(links, found).values()]


class CallForDebtors(_Looks):
    """Red with what the quick looks have found that somebody has to be called for.

    Only here it is noted that people were told. Alarms come from XComs: wherever this task is killed, its next try is
    as red; and if `look` was killed, its next try finds what it had not told.
    """

    def __init__(self, *, look: BaseOperator, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.look_task = look.task_id

    def execute(self, context: Context) -> None:
        from mirror_core.mirrors.fence_watcher import record_reported_alarms

        alarms, once = (context["ti"].xcom_pull(task_ids=self.look_task, key=key) for key in (ALARMS, ONCE))
        if once:
            try:
                record_reported_alarms(debtors(list(once)), once)
            except MirrorError as error:
                self.log.info("%s", escape_invisible(f"alarms are told once more by the next run: {error}"))
        _raise(alarms or [])


class KeepFenced(_Looks):
    """Wait for the one cluster that these mirrors owe something, for most of a minute, and look at them then.

    Red with its alarms, and does not note that anybody was told: should it be killed before it is red, the look of the
    next run, which notes it, tells them.
    """

    template_fields: Sequence[str] = ("mirrors",)

    def __init__(self, *, mirrors: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mirrors = mirrors

    def execute(self, context: Context) -> None:
        from mirror_core.mirrors.fence_watcher import probe_on_first_answer

        with airflow_errors():
            links = debtors(self.mirrors)
            context[CLUSTER] = links[0].source.name  # type: ignore[typeddict-unknown-key]
            found = probe_on_first_answer(links, WAIT_S)
        if not found:
            self.log.info("%s is silent still: the next run waits again", links[0].source.name)
        _raise(self.told(found))


class CheckWatchers(BaseOperator):
    """Red where a fence is pending or standing and nobody watches, or that is not known: DAG `mirror_watch` may be
    paused. Of these mirrors, or of all."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**TASK_DEFAULTS, **kwargs})

    def execute(self, context: Context) -> None:
        with airflow_errors():
            alarms = unwatched(context["params"]["mirrors"] or ())
        _raise(alarms)


def _raise(alarms: Sequence[str]) -> None:
    if alarms:
        raise AirflowFailException(escape_invisible("; ".join(alarms)))
