"""The watch of old sources waits in a trigger, which fences at the first answer."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Final

import pytest
from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred
from mirrorbook_airflow import fence_watch
from mirrorbook_airflow.fence_watch import (
    KNOWN_ALARMS_KEY,
    WATCH_END_KEY,
    ContinueFenceWatch,
    FenceProbeResult,
    FenceTrigger,
    WatchFences,
)

from mirror_core.decide.fence_state import decide_fence
from mirror_core.mirrors import fence_watcher
from mirror_core.model.errors import BadRequest, Unreachable
from mirror_core.model.names import Offset
from tests.support.cluster_names import LINK
from tests.support.fence_states import STANDS, WELL, P

pytestmark = pytest.mark.filterwarnings("ignore")
SILENT = [["orders", "bills"], ["clicks"]]
DUE: Final = datetime(2026, 3, 1, 10, tzinfo=UTC)
END_S: Final = datetime(2026, 3, 1, 10, 59, 30, tzinfo=UTC).timestamp()
"""Half a minute before the next scheduled run is due."""


def fire(trigger: FenceTrigger) -> dict[str, Any]:
    async def first() -> dict[str, Any]:
        async for event in trigger.run():
            return dict(event.payload)
        raise AssertionError("it ended without an event")

    return asyncio.run(first())


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[FenceProbeResult | Exception]:
    """What each look finds, from the last one on."""
    found = list[FenceProbeResult | Exception]()

    def look(mirrors: list[str]) -> FenceProbeResult:
        outcome = found.pop()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(fence_watch, "probe_watched", look)
    monkeypatch.setattr(fence_watch, "PROBE_INTERVAL_S", 0.01)
    return found


def test_each_silent_cluster_is_waited_for_and_a_look_follows(
    looks: list[FenceProbeResult | Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = list[list[str]]()
    monkeypatch.setattr(fence_watch, "_fence_at_first_answer", lambda names, seconds: waited.append(names))
    looks += [FenceProbeResult(lines=["orders: fenced"]), FenceProbeResult(silent=SILENT)]
    assert fire(FenceTrigger([], [], None))["lines"] == ["orders: fenced"]
    assert sorted(waited) == sorted(SILENT)


def test_an_alarm_fires_at_once_and_only_if_it_is_new(looks: list[FenceProbeResult | Exception]) -> None:
    repeated = {"orders": ["b"]}
    new = FenceProbeResult(alarms={"a": "an alarm", "b": "a new one"}, repeated_alarms=repeated)
    looks += [new, Unreachable("west is away"), FenceProbeResult(alarms={"a": "an alarm"})]
    event = fire(FenceTrigger([], ["a"], time.time() + 60))
    assert (event["alarms"], event["repeated_alarms"]) == ({"b": "a new one"}, repeated)
    looks.append(FenceProbeResult(alarms={"a": "an alarm"}))
    assert fire(FenceTrigger([], ["a"], time.time() - 7200))["alarms"] == {}, "a triggerer that was away"


def test_an_alarm_whose_offsets_grow_is_raised_once_and_another_one_of_its_cluster_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = [{P: (Offset(100), Offset(end))} for end in (103, 150, 900)]
    growing = [decide_fence(STANDS, None, replace(WELL, written_ranges=ranges)) for ranges in written]
    taken_away = decide_fence(STANDS, None, replace(WELL, unfenced_brokers=("broker 1",), written_ranges=written[-1]))
    decisions = [*growing, taken_away]
    monkeypatch.setattr(fence_watch, "list_watched_links", lambda mirrors: [LINK])
    monkeypatch.setattr(fence_watcher, "probe_each", lambda links: {LINK.mirror.name: decisions.pop(0)})
    for name in ("record_watched", "record_reported_alarms"):
        monkeypatch.setattr(fence_watcher, name, lambda *recorded: None)
    monkeypatch.setattr(fence_watch, "PROBE_INTERVAL_S", 0.01)
    context = context_of("scheduled")
    with pytest.raises(AirflowFailException, match="taken 3 offset"):
        WatchFences(task_id="watch").finish(context, fire(FenceTrigger([], [], time.time() + 60)))
    known = context["ti"].pushed[KNOWN_ALARMS_KEY]
    with pytest.raises(AirflowFailException, match=r"^mirror \w+: the fence was removed and is .* again: broker 1$"):
        WatchFences(task_id="watch").finish(context, fire(FenceTrigger([], known, time.time() + 60)))
    assert not decisions, "no run was red in between"


@pytest.mark.parametrize("error", [BadRequest("no such connection"), KeyError("conn")], ids=["mistake", "defect"])
def test_an_error_is_red_and_the_watch_goes_on(looks: list[FenceProbeResult | Exception], error: Exception) -> None:
    """The next scheduled run is due in an hour at most: an old source may return long before."""
    looks.append(error)
    context, event = context_of("scheduled"), fire(FenceTrigger([], [], time.time() + 60))
    with pytest.raises(AirflowFailException, match=r"no such connection|defect of Mirrorbook"):
        WatchFences(task_id="watch").finish(context, event)
    known = context["ti"].pushed[KNOWN_ALARMS_KEY]
    looks += [FenceProbeResult(alarms={"a": "a source has written"}), error]
    assert fire(FenceTrigger([], known, time.time() + 60))["alarms"] == {"a": "a source has written"}


def test_a_run_that_could_not_look_at_all_is_red(
    looks: list[FenceProbeResult | Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks += [FenceProbeResult(), Unreachable("west is away")]
    assert fire(FenceTrigger([], [], None))["alarms"] == {}, "the second look came through"
    monkeypatch.setattr(fence_watch, "SINGLE_PROBE_TIMEOUT_S", 0.0)
    for until_s in (None, time.time()):
        looks.append(Unreachable("west is away"))
        [alarm] = fire(FenceTrigger([], [], until_s))["alarms"].values()
        assert "west is away" in alarm


def test_a_defect_while_a_silent_source_is_waited_for_is_an_alarm(
    looks: list[FenceProbeResult | Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(names: list[str], seconds: float) -> None:
        raise Unreachable("east is away") if names == ["clicks"] else KeyError("conn")

    monkeypatch.setattr(fence_watch, "_fence_at_first_answer", fail)
    looks += [FenceProbeResult(), FenceProbeResult(silent=SILENT)]
    [alarm] = fire(FenceTrigger([], [], time.time() + 60))["alarms"].values()
    assert "KeyError" in alarm


def test_silent_clusters_hold_no_more_threads_than_there_are(
    looks: list[FenceProbeResult | Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work, most, lock = 0, 0, threading.Lock()
    full = threading.Barrier(8)

    def wait(names: list[str], seconds: float) -> None:
        nonlocal at_work, most
        with lock:
            at_work, most = at_work + 1, max(most, at_work + 1)
        full.wait(30)
        with lock:
            at_work -= 1

    monkeypatch.setattr(fence_watch, "_fence_at_first_answer", wait)
    looks += [FenceProbeResult(), FenceProbeResult(silent=[[f"m{number}"] for number in range(16)])]
    fire(FenceTrigger([], [], None))
    assert most == 8


def context_of(run_type: str = "manual", conf: dict[str, Any] | None = None, known: list[str] | None = None) -> Any:
    pushed = dict[str, Any]()
    ti = SimpleNamespace(
        xcom_pull=lambda task_ids, key: known, xcom_push=lambda key, value: pushed.update({key: value}), pushed=pushed
    )
    # A worker is given the type of this very enumeration, whose text is another one.
    kind = DagRunType(run_type)
    run = SimpleNamespace(run_type=kind, conf=conf, dag_id="mirror_watch", run_id="r", run_after=DUE)
    return {"dag_run": run, "params": {"mirrors": []}, "ti": ti}


@pytest.mark.parametrize(
    ("run_type", "conf", "end_s"),
    [
        ("manual", None, None),
        ("scheduled", None, END_S),
        ("manual", {KNOWN_ALARMS_KEY: ["a"], WATCH_END_KEY: END_S}, END_S),
    ],
)
def test_a_run_that_a_person_asked_for_looks_once_and_others_until_the_next_one_is_due(
    run_type: str, conf: dict[str, Any] | None, end_s: float | None
) -> None:
    """Whenever they begin: two that watch for the same hour would let a person's run wait for all of it."""
    with pytest.raises(TaskDeferred) as deferred:
        WatchFences(task_id="watch").execute(context_of(run_type, conf))
    trigger = deferred.value.trigger
    assert isinstance(trigger, FenceTrigger)
    assert trigger.until_s == end_s
    assert FenceTrigger(**trigger.serialize()[1]).serialize() == trigger.serialize()


def test_a_run_after_an_alarm_ends_when_the_first_one_would_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "airflow.providers.standard.operators.trigger_dagrun.TriggerDagRunOperator.execute", lambda *_: None
    )
    proceed = ContinueFenceWatch(task_id="continue_watch")
    proceed.execute(context_of("scheduled", known=["a"]))
    assert proceed.conf == {"mirrors": [], KNOWN_ALARMS_KEY: ["a"], WATCH_END_KEY: END_S}
    proceed.execute(context_of("manual", proceed.conf, known=["a", "b"]))
    assert proceed.conf == {"mirrors": [], KNOWN_ALARMS_KEY: ["a", "b"], WATCH_END_KEY: END_S}


def test_an_alarm_is_red_and_the_next_run_knows_it() -> None:
    context = context_of("scheduled")
    event = {"lines": [], "alarms": {"a": "an alarm"}, "repeated_alarms": {}}
    with pytest.raises(AirflowFailException, match="an alarm"):
        WatchFences(task_id="watch").finish(context, event)
    assert context["ti"].pushed == {KNOWN_ALARMS_KEY: ["a"]}
    for context in (context_of("scheduled"), context_of("manual", known=["a"])):
        with pytest.raises(AirflowSkipException):
            ContinueFenceWatch(task_id="continue_watch").execute(context)
