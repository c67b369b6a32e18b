"""A failback waits without a slot until its data plane has copied home."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from mirrorbook_airflow import catch_up_wait
from mirrorbook_airflow.catch_up_wait import AwaitCatchUp, CatchUpTrigger

from mirror_core.model.errors import BadRequest, MirrorError, Unreachable
from mirror_core.runbook.failback_steps import CatchUpObservation

pytestmark = pytest.mark.filterwarnings("ignore")


def seen(lag: int | None, *, is_copied: bool = True, end: int = 0) -> CatchUpObservation:
    return CatchUpObservation(lag=lag, source_end=end, is_copied=is_copied)


COPYING = seen(5_000_000)


@pytest.mark.parametrize(
    ("observed", "reason"),
    [
        ([COPYING, Unreachable("east is away"), seen(None), seen(900)], "the copy is close behind: 900 offsets"),
        ([COPYING, seen(4_000, end=100_000)], "the copy is close behind: 4000 offsets"),
        ([COPYING, None], "the run has ended, or applications are home"),
        ([COPYING, *[seen(5_000_000, is_copied=False)] * 9], "no data plane copies home: step catch_up"),
        ([COPYING] * 40, "no progress for 300 s"),
        ([COPYING, seen(1_000_000, is_copied=False), *[COPYING] * 5, seen(0)], "close behind: 0 offsets"),
        ([BadRequest("no such connection")], "BadRequest: no such connection"),
    ],
)
def test_it_fires_once_the_step_has_little_to_wait_for(
    monkeypatch: pytest.MonkeyPatch, observed: list[CatchUpObservation | MirrorError | None], reason: str
) -> None:
    left, now_s = list(observed), [0.0]

    def observe(mirror: str, run_id: str) -> CatchUpObservation | None:
        now_s[0] += 10.0
        found = left.pop(0)
        if isinstance(found, MirrorError):
            raise found
        return found

    monkeypatch.setattr(catch_up_wait, "observe_mirror", observe)
    monkeypatch.setattr(catch_up_wait, "POLL_INTERVAL_S", 0.0)
    monkeypatch.setattr(catch_up_wait, "SteadyClock", lambda: lambda: now_s[0])

    async def fire() -> dict[str, Any]:
        async for event in CatchUpTrigger("orders", "r1", 60.0).run():
            return dict(event.payload)
        raise AssertionError("it ended without an event")

    event = asyncio.run(fire())
    assert reason in str(event)
    task: Any = AwaitCatchUp(task_id="t", mirror="orders", begin=SimpleNamespace(task_id="begin"))  # type: ignore[arg-type]
    if "error" in event:
        with pytest.raises(AirflowFailException, match=reason):
            task.finish({}, event)
    else:
        assert reason in task.finish({}, event)


def test_it_defers_at_once() -> None:
    context: Any = {"ti": SimpleNamespace(xcom_pull=lambda task_ids: "r1"), "params": {"patience_s": 90}}
    task = AwaitCatchUp(task_id="t", mirror="orders", begin=SimpleNamespace(task_id="begin"))  # type: ignore[arg-type]
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context)
    trigger = deferred.value.trigger
    assert isinstance(trigger, CatchUpTrigger)
    assert CatchUpTrigger(**trigger.serialize()[1]).serialize() == trigger.serialize()
