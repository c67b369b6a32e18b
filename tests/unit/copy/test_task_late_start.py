"""A task before its epoch's start, and after its end: one that gets its thread, or task slot, only then; and one that
looks on."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.copy.driver_messages import ClaimBoard
from mirror_core.copy.task import CopyTask, never_cancelled
from mirror_core.dataplane.datagram_receiver import DatagramReceiver, build_handlers
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Principal
from mirror_core.model.names import MirrorName, Partition
from mirror_core.model.task_messages import Assignment, DriverAddress, ListenAddress, PartitionAssignment, TaskReport
from mirror_core.model.timing import now_ms
from tests.support.resume_decisions import EAST, WEST
from tests.support.sentences import format_sentence


def run_task(*, start_ms: int, stop_ms: int, driver_address: DriverAddress | None = None) -> TaskReport:
    """Of clusters that refuse connections."""
    partitions = tuple(
        PartitionAssignment(partition=Partition("t", index), source_topic_id="", destination_topic_id="")
        for index in range(2)
    )
    given = Assignment(
        mirror=MirrorName("m"),
        source=EAST,
        destination=WEST,
        config_path="",
        producer_id=1,
        partitions=partitions,
        epoch=4,
        task=3,
        start_ms=start_ms,
        stop_ms=stop_ms,
        driver_address=driver_address,
    )
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, and nobody listens: refused at once
        properties = {"bootstrap.servers": f"127.0.0.1:{closed.getsockname()[1]}"}
        east, west = (
            ClusterClient(ClusterConfig(name, properties, properties), Principal.DATA, timeout_s=0.1)
            for name in (EAST, WEST)
        )
        with east, west, closing(CopyTask(given, east, west, never_cancelled)) as task:
            return task.run()


def test_a_task_that_waits_for_its_epoch_ends_when_its_driver_stops() -> None:
    ended = Future[TaskReport]()
    now = now_ms()
    with DatagramReceiver(ListenAddress(), build_handlers(ClaimBoard(), None)) as channel:
        address = channel.address_for(4)
        channel.stop_tasks()
        work = partial(run_task, start_ms=now + 600_000, stop_ms=now + 630_000, driver_address=address)
        threading.Thread(target=lambda: ended.set_result(work()), daemon=True).start()
        assert ended.result(60).receipts == ()


def test_a_task_that_begins_after_its_epoch_says_so() -> None:
    """Nothing was copied, and nobody would know why."""
    now = now_ms()
    report = run_task(start_ms=now - 40_000, stop_ms=now - 10_000)
    assert report.retry_reason == (format_sentence("task_began_late", 3, 40, 30, 2))
    assert report.comparisons_unknown, "whether a comparison takes longer than an epoch nobody can say"


def test_a_task_looks_on_for_as_long_as_it_is_told_and_no_longer_because_brokers_hang() -> None:
    """The next ones need its slot."""
    given = list[float]()

    def finish(limit_s: float, cancelled: object) -> int:
        given.append(limit_s)
        return 3

    task: Any = SimpleNamespace(
        producer=SimpleNamespace(wait_for_responses=lambda limit_s: None),
        replicators=[],
        is_cancelled=never_cancelled,
        stop_s=time.time() - 5,
        assignment=SimpleNamespace(comparison_grace_s=20.0),
        _now_s=time.time,
        _claim_client=SimpleNamespace(release=lambda replicators: None),
        _gap_filler=SimpleNamespace(wait_for_rounds=lambda limit_s: None, abandon_slow=lambda limit_s: None),
        _resume_finder=SimpleNamespace(finish=finish),
    )
    CopyTask._finish(task)
    assert given == [pytest.approx(15.0, abs=2.0)]
    assert task._interrupted_comparisons == 3
