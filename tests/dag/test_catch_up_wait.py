"""The wait of a failback for its copy, on real brokers: the trigger fires when the data plane has come close."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.runbook.failback_steps import load_reverse_link
from tests.support.checked_threads import beside
from tests.support.failback_runs import failback_of, failed_over, go_home
from tests.support.failover_runs import app_topic
from tests.support.kafka_clients import Pair, produce, read_all

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]
WRITTEN = 3_000
"""More than what counts as close behind."""


def test_a_failback_waits_in_its_trigger_until_the_copy_is_close_behind(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mirrorbook_airflow import catch_up_wait
    from mirrorbook_airflow.catch_up_wait import CatchUpTrigger

    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = failed_over(pair, tmp_path, topic)
    produce(pair.west, topic, WRITTEN)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash).id
    for step in ("salvage", "align", "demote", "create_reverse"):
        failback.run_step(run, step)
    monkeypatch.setattr(catch_up_wait, "find_mirror", lambda name: (mirrored.link, mirrored.state))

    def fire(patience_s: float) -> dict[str, Any]:
        async def first() -> dict[str, Any]:
            async for event in CatchUpTrigger(mirrored.name, run, patience_s).run():
                return dict(event.payload)
            raise AssertionError("it ended without an event")

        return asyncio.run(first())

    assert "no data plane copies home" in fire(0.0)["reason"]
    stop = threading.Event()
    replication = Replication(
        load_reverse_link(mirrored.link), LocalRunner, ReplicationOptions(), stop=stop, report_line=lambda line: None
    )
    with beside(replication.run, stop.set):
        assert "close behind" in fire(90.0)["reason"]
    assert len(read_all(pair.east, topic)) > len(read_all(pair.west, topic)) - 1_000
    go_home(failback, run)
    assert fire(90.0)["reason"] == "the run has ended, or applications are home"
