"""DAG `mirror_watch` fences old sources of failovers; a task of `mirror_check` finds fences without a watcher.

A trigger watches until the next scheduled run is due. It holds no worker slot.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.standard.operators.trigger_dagrun import DagIsPaused, TriggerDagRunOperator
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from mirror_core.decide.fence_state import FenceDecision
from mirror_core.model.errors import LostOwnership, MirrorError, format_error_location
from mirror_core.model.findings import Finding, identify_trouble
from mirror_core.model.text import escape_invisible
from mirror_core.model.timing import SteadyClock
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.mirror_lookup import list_unwatched_alarms, list_watched_links
from mirrorbook_airflow.operators import TASK_DEFAULTS
from mirrorbook_airflow.replicate_tasks import make_triggered_run_id
from mirrorbook_airflow.trigger_threads import TriggerThreads

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import DagRunProtocol

    from mirror_core.mirrors.fence_watcher import ProbeOutcome
    from mirror_core.model.names import MirrorName

PROBE_INTERVAL_S: Final = 30.0
"""Between two probes of all mirrors. A silent cluster is fenced at its first answer, before the next probe."""
WATCH_INTERVAL_S: Final = 60.0
"""The next probe comes within this time; the watcher's heartbeat promises it."""
SINGLE_PROBE_TIMEOUT_S: Final = 45.0
"""How long a manually triggered run waits for silent clusters."""
SCHEDULE_INTERVAL_S: Final = 3600.0
_END_MARGIN_S: Final = 30.0
_THREADS: Final = TriggerThreads("fences", 8)
"""A silent cluster occupies one thread; further clusters wait for a free one."""
WATCHER_NAME: Final = "DAG mirror_watch"
KNOWN_ALARMS_KEY: Final = "known_alarms"
"""In a run's configuration, and in the XCom of a watch that raised alarms: identities of alarms raised in this hour."""
WATCH_END_KEY: Final = "watch_until_s"
"""In the configuration of a run that continues a watch: when the watch ends, by the wall clock."""


@dataclass(frozen=True, slots=True)
class FenceProbeResult:
    """One probe of all mirrors. Names are mirror names."""

    lines: list[str] = field(default_factory=list)
    alarms: dict[str, str] = field(default_factory=dict)
    """Text by identity, which stays the same while figures in the text change."""
    repeated_alarms: dict[str, list[str]] = field(default_factory=dict)
    """By mirror. Each is raised again until it is recorded as reported."""
    silent: list[list[str]] = field(default_factory=list)
    """Mirrors whose source is silent, by source."""


def probe_watched(mirrors: Sequence[str]) -> FenceProbeResult:
    """Fences sources that answer. `mirrors` empty: each with a pending or standing fence, and each that a run holds."""
    from mirror_core.mirrors.fence_watcher import (
        list_repeated_alarms,
        list_silent_sources,
        probe_each,
        record_watched,
    )

    started_s = time.monotonic()
    links = list_watched_links(mirrors)
    if not links:
        return FenceProbeResult()
    outcomes = probe_each(links)
    record_watched(links, outcomes, WATCHER_NAME, WATCH_INTERVAL_S + time.monotonic() - started_s)
    lines, alarms = _format_outcomes(outcomes)
    return FenceProbeResult(
        lines,
        alarms,
        {str(name): list(repeated) for name, repeated in list_repeated_alarms(outcomes).items()},
        [[str(name) for name in names] for names in list_silent_sources(links, outcomes).values()],
    )


def _format_outcomes(outcomes: Mapping[MirrorName, ProbeOutcome]) -> tuple[list[str], dict[str, str]]:
    """(lines, text of alarms by identity)"""
    lines, alarms = list[str](), dict[str, str]()
    for name, outcome in outcomes.items():
        if isinstance(outcome, LostOwnership):
            lines.append(f"{name}: {outcome}: the next probe finds out")
        elif isinstance(outcome, FenceDecision):
            lines += [f"{name}: {line}" for line in outcome.lines]
            alarms |= {f"{name} {alarm}": f"mirror {name}: {alarm}" for alarm in outcome.one_time_alarms}
            alarms |= {_format_identity(alarm, name): f"mirror {name}: {alarm}" for alarm in outcome.standing_alarms}
        else:
            alarms[_format_identity(outcome, name)] = f"mirror {name}: {outcome}"
    return lines, alarms


def _fence_at_first_answer(mirrors: Sequence[str], seconds: float) -> None:
    """Drops the outcomes: the next probe finds them again."""
    from mirror_core.mirrors.fence_watcher import probe_on_first_answer

    probe_on_first_answer(list_watched_links(mirrors), seconds)


class FenceTrigger(BaseTrigger):
    """Fires at alarms that are not known, or at its end, with the result of its last probe."""

    def __init__(self, mirrors: list[str], known_alarms: list[str], until_s: float | None) -> None:
        super().__init__()
        self.mirrors = mirrors
        self.known_alarms = known_alarms
        self.until_s = until_s
        """By the wall clock, as schedules are, and the same after a restart; None: until no source is silent."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        fields = ("mirrors", "known_alarms", "until_s")
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in fields}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        clock = SteadyClock()
        end_s = clock() + (SINGLE_PROBE_TIMEOUT_S if self.until_s is None else self.until_s - time.time())
        has_looked, defects = False, dict[str, str]()
        while True:
            is_unseen = False
            try:
                found = await _THREADS.run(probe_watched, self.mirrors)
                has_looked = True
            except MirrorError as error:
                is_unseen, problem = error.retryable, f"{type(error).__name__}: {error}"
                found = (
                    FenceProbeResult([problem])
                    if is_unseen
                    else FenceProbeResult(alarms={_format_identity(error): problem})
                )
            except Exception as error:  # noqa: BLE001 - whatever this is, an old source may return in the hour
                found = FenceProbeResult(alarms=_describe_defect(error))
            rest_s = min(PROBE_INTERVAL_S, end_s - clock())
            alarms = found.alarms | defects
            if rest_s <= 0 and not has_looked:
                alarms |= {line: line for line in found.lines}
            new_alarms = {identity: text for identity, text in alarms.items() if identity not in self.known_alarms}
            is_done = self.until_s is None and not (is_unseen or found.silent)
            if new_alarms or rest_s <= 0 or is_done:
                event = {"lines": found.lines, "alarms": new_alarms, "repeated_alarms": found.repeated_alarms}
                yield TriggerEvent(event)
                return
            waits = [_THREADS.run(_fence_at_first_answer, names, rest_s) for names in found.silent]
            done = await asyncio.gather(*waits or [asyncio.sleep(rest_s)], return_exceptions=True)
            # Of a MirrorError the next look tells, if it lasts.
            errors = [one for one in done if isinstance(one, Exception) and not isinstance(one, MirrorError)]
            defects = {identity: text for error in errors for identity, text in _describe_defect(error).items()}


def _find_watch_end_s(run: DagRunProtocol) -> float | None:
    """By the wall clock; None: a person's run, which watches until no source is silent.

    Counted from when the run was due, not from when it begins: a run that begins late would otherwise watch the whole
    next hour beside the next run, and a person's run would wait for both.
    """
    if run.run_type == "scheduled":
        return run.run_after.timestamp() + SCHEDULE_INTERVAL_S - _END_MARGIN_S
    return (run.conf or {}).get(WATCH_END_KEY)


def _format_identity(trouble: Finding | MirrorError, mirror: str = "") -> str:
    return " ".join((mirror, *identify_trouble(trouble)))


def _describe_defect(error: Exception) -> dict[str, str]:
    location = format_error_location(error)
    return {location: f"a defect of Mirrorbook: {location}"}


class WatchFences(BaseOperator):
    """A scheduled run watches until the next one is due, a manually triggered run until no source is silent."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**TASK_DEFAULTS, **kwargs})

    def execute(self, context: Context) -> None:
        run = context["dag_run"]
        known_alarms = (run.conf or {}).get(KNOWN_ALARMS_KEY) or []
        trigger = FenceTrigger([*(context["params"]["mirrors"] or ())], known_alarms, _find_watch_end_s(run))
        self.defer(trigger=trigger, method_name="finish")

    def finish(self, context: Context, event: dict[str, Any]) -> None:
        for line in event["lines"]:
            self.log.info("%s", escape_invisible(line))
        if event["repeated_alarms"]:
            self._record_reported_alarms(event["repeated_alarms"])
        if event["alarms"]:
            known = (context["dag_run"].conf or {}).get(KNOWN_ALARMS_KEY) or []
            context["ti"].xcom_push(key=KNOWN_ALARMS_KEY, value=[*dict.fromkeys([*known, *event["alarms"]])])
        _raise_alarms([*dict.fromkeys(event["alarms"].values())])

    def _record_reported_alarms(self, repeated_alarms: Mapping[MirrorName, Sequence[str]]) -> None:
        """Called before the task fails. If the task is killed first, the next probe raises the alarms again."""
        from mirror_core.mirrors.fence_watcher import record_reported_alarms

        try:
            record_reported_alarms(list_watched_links(list(repeated_alarms)), repeated_alarms)
        except MirrorError as error:
            self.log.info("%s", escape_invisible(f"the next probe raises these alarms again: {error}"))


class ContinueFenceWatch(TriggerDagRunOperator):
    """After alarms, triggers a run that watches for the rest of the hour and fails at new alarms only."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs = {**TASK_DEFAULTS, "trigger_rule": "one_failed", **kwargs}
        super().__init__(
            trigger_dag_id="mirror_watch",
            logical_date=None,
            skip_when_already_exists=True,
            fail_when_dag_is_paused=True,
            **kwargs,
        )

    def execute(self, context: Context) -> None:
        run = context["dag_run"]
        known_alarms = context["ti"].xcom_pull(task_ids="watch", key=KNOWN_ALARMS_KEY)
        until_s = _find_watch_end_s(run)
        if not known_alarms or until_s is None:
            raise AirflowSkipException("a manually triggered run probes once, or the watch could not begin")
        mirrors = context["params"]["mirrors"]
        self.conf = {"mirrors": mirrors, KNOWN_ALARMS_KEY: known_alarms, WATCH_END_KEY: until_s}
        self.trigger_run_id = make_triggered_run_id("watch", run.dag_id, run.run_id, self.task_id)
        try:
            super().execute(context)
        except DagIsPaused:
            raise AirflowSkipException("DAG mirror_watch is paused") from None


class CheckWatchers(BaseOperator):
    """Fails if a pending or standing fence has no watcher: `mirror_watch` may be paused."""

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
