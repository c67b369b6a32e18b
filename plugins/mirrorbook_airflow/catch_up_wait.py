"""A failback waits in a trigger, which holds no worker slot, until the reverse mirror has almost caught up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from mirror_core.model.errors import MirrorError
from mirror_core.model.text import escape_invisible
from mirror_core.model.timing import SteadyClock
from mirrorbook_airflow.mirror_lookup import find_mirror
from mirrorbook_airflow.operators import COPY_TIMEOUT, MirrorOperator
from mirrorbook_airflow.trigger_threads import TriggerThreads

if TYPE_CHECKING:
    from airflow.sdk import Context

    from mirror_core.runbook.failback_steps import CatchUpObservation

POLL_INTERVAL_S: Final = 5.0
STALL_S: Final = 300.0
_THREADS: Final = TriggerThreads("catch-up", 8)


def observe_mirror(mirror: str, run_id: str) -> CatchUpObservation | None:
    from mirror_core.runbook.failback_steps import observe_catch_up

    return observe_catch_up(*find_mirror(mirror), run_id)


class CatchUpTrigger(BaseTrigger):
    """Fires when step `catch_up` has little left to wait for, when nothing copies, and when the copy stalls."""

    def __init__(self, mirror: str, run_id: str, patience_s: float) -> None:
        super().__init__()
        self.mirror = mirror
        self.run_id = run_id
        self.patience_s = patience_s
        """How long to wait for a data plane that copies."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        fields = ("mirror", "run_id", "patience_s")
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in fields}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from mirror_core.runbook.failback_steps import is_close_behind

        clock = SteadyClock()
        started_s = copied_s = progress_s = clock()
        first_end: int | None = None
        lowest_lag: int | None = None
        while True:
            try:
                observed = await _THREADS.run(observe_mirror, self.mirror, self.run_id)
            except MirrorError as error:
                if not error.retryable:
                    yield TriggerEvent({"error": f"{type(error).__name__}: {error}"})
                    return
            else:
                now_s = clock()
                if observed is None:
                    yield TriggerEvent({"reason": "the run has ended, or applications are home"})
                    return
                first_end = observed.source_end if first_end is None else first_end
                if is_close_behind(observed.lag, observed.source_end - first_end, now_s - started_s):
                    yield TriggerEvent({"reason": f"the copy is close behind: {observed.lag} offsets"})
                    return
                if observed.lag is not None and (lowest_lag is None or observed.lag < lowest_lag):
                    lowest_lag, progress_s = observed.lag, now_s
                copied_s = now_s if observed.is_copied else copied_s
                if now_s - copied_s > self.patience_s:
                    yield TriggerEvent({"reason": "no data plane copies home: step catch_up copies on its worker"})
                    return
                if now_s - progress_s > STALL_S:
                    yield TriggerEvent({"reason": f"the copy has made no progress for {STALL_S:.0f} s"})
                    return
            await asyncio.sleep(POLL_INTERVAL_S)


class AwaitCatchUp(MirrorOperator):
    """Holds no worker slot while the data plane copies home. Step `catch_up` then needs its slot only briefly."""

    def __init__(self, *, begin: BaseOperator, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.begin_task = begin.task_id

    def execute(self, context: Context) -> None:
        run_id = context["ti"].xcom_pull(task_ids=self.begin_task)
        trigger = CatchUpTrigger(self.mirror, run_id, context["params"]["patience_s"])
        self.defer(trigger=trigger, method_name="finish", timeout=COPY_TIMEOUT)

    def finish(self, context: Context, event: dict[str, Any]) -> str:
        if "error" in event:
            raise AirflowFailException(escape_invisible(event["error"]))
        return str(event["reason"])
