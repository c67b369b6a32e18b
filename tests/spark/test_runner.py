"""Epochs on Spark: they overlap, survive killed workers, and lead to the same bytes as any other way of copying."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import NewTopic
from pyspark.sql import SparkSession

from mirror_core.copy.task_datagrams import DatagramKind
from mirror_core.dataplane.datagram_receiver import DatagramReceiver
from mirror_core.dataplane.progress import ProgressTracker
from mirror_core.evidence import receipt_files
from mirror_core.evidence.file_store import LocalFolder
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, load_config
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.task_messages import Assignment, ListenAddress, PartitionAssignment, TaskReport
from mirror_core.spark import copy_executor
from mirror_core.spark.runner import SparkFailed, SparkGone, SparkRunner
from tests.spark import work
from tests.support.kafka_clients import Pair, admin_client, new_topic, produce, read_all, read_all_aiokafka
from tests.support.receipt_files import holes, rows
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    # py4j drops connections of threads that have ended without closing their sockets.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]
TIMEOUT_S = 60.0
MIRROR = MirrorName("east-west")
DAEMON = "mirror_core.spark.daemon"


@pytest.fixture
def runner(spark: SparkSession) -> Iterator[SparkRunner]:
    runner = SparkRunner(slots=2)
    try:
        yield runner
    finally:
        runner.close()


def workers() -> set[int]:
    """The Python workers of our own Spark: what its daemon has forked."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            parent = process.parent()
            if parent and DAEMON in process.cmdline() and DAEMON in parent.cmdline():
                found.add(process.pid)
        except psutil.NoSuchProcess:
            continue  # ended meanwhile
    return found


class Bench:
    """A topic of two partitions on both clusters, and assignments to copy it."""

    def __init__(self, pair: Pair, channel: DatagramReceiver | None = None) -> None:
        self.pair = pair
        self.channel = channel
        self.topic = new_topic(pair.east, partitions=2)
        admin = admin_client(pair.west)  # held until it has answered
        admin.create_topics([NewTopic(self.topic, 2, config={"retention.ms": "-1"})])[self.topic].result(TIMEOUT_S)
        config = load_config(pair.config_path)
        self.ids = [self._topic_id(config.cluster(name)) for name in ("east", "west")]
        self.partitions = [Partition(self.topic, 0), Partition(self.topic, 1)]

    def _topic_id(self, cluster: ClusterConfig) -> str:
        with ClusterClient(cluster) as client:
            found = wait_until(
                lambda: client.metadata([self.topic]).topics.get(self.topic),
                timeout_s=TIMEOUT_S,
                why=f"{cluster.name} has {self.topic}",
            )
            assert found is not None
            return found.id

    def produce(self, count: int) -> None:
        for partition in self.partitions:
            produce(self.pair.east, self.topic, count, partition=partition.index)

    def epoch(self, number: int, *, until: int | None = None, start_ms: int = 0, stop_ms: int = 0) -> list[Assignment]:
        """One partition a task."""
        return [
            Assignment(
                mirror=MIRROR,
                source=ClusterName("east"),
                destination=ClusterName("west"),
                config_path=str(self.pair.config_path),
                producer_id=2**62 + 77,
                partitions=(
                    PartitionAssignment(
                        partition=partition,
                        source_topic_id=self.ids[0],
                        destination_topic_id=self.ids[1],
                        stop_offset=None if until is None else Offset(until),
                    ),
                ),
                epoch=number,
                task=number_of_task,
                start_ms=start_ms,
                stop_ms=stop_ms or round((time.time() + TIMEOUT_S) * 1000),
                driver_address=self.channel.address_for(number) if self.channel else None,
            )
            for number_of_task, partition in enumerate(self.partitions)
        ]

    def check(self, count: int) -> None:
        """The destination holds what the source holds, to two families of clients."""
        sent = read_all(self.pair.east, self.topic)
        assert len(sent) == 2 * count
        assert read_all(self.pair.west, self.topic) == sent
        assert read_all_aiokafka(self.pair.west, self.topic) == sent


def spans(reports: tuple[TaskReport, ...]) -> list[tuple[int, int, int]]:
    return [(r.partition.index, r.first, r.next) for report in reports for r in report.receipts]


@pytest.mark.cluster
def test_an_epoch_copies_and_reports(runner: SparkRunner, pair: Pair) -> None:
    bench = Bench(pair)
    bench.produce(500)
    reports = runner.submit(bench.epoch(0, until=500)).result(TIMEOUT_S)
    assert spans(reports) == [(0, 0, 500), (1, 0, 500)]
    assert [report.failures for report in reports] == [(), ()]
    bench.check(500)


@pytest.mark.cluster
def test_overlapping_epochs_hand_over_without_a_hole(runner: SparkRunner, pair: Pair, tmp_path: Path) -> None:
    progress = ProgressTracker()
    with DatagramReceiver(ListenAddress(), {DatagramKind.PROGRESS: progress.handle}) as channel:
        bench = Bench(pair, channel)
        now_ms = round(time.time() * 1000)
        boundary_ms = now_ms + 12_000
        first = runner.submit(bench.epoch(0, stop_ms=boundary_ms))
        second = runner.submit(bench.epoch(1, start_ms=boundary_ms, until=900))  # waits beside the first
        total = 0
        while total < 900:
            bench.produce(100)
            total += 100
            if total == 300:
                wait_until(lambda: progress.totals().records >= 600, timeout_s=TIMEOUT_S, why="epoch 0 copies")
            if total == 600:
                first.result(TIMEOUT_S)
        early, late = first.result(TIMEOUT_S), second.result(TIMEOUT_S)
    bench.check(900)
    for index in (0, 1):
        assert early[index].receipts[0].first == 0
        assert early[index].receipts[0].next == late[index].receipts[0].first > 0
        assert late[index].receipts[0].next == 900
    for number, reports in enumerate((early, late)):
        receipt_files.write_receipts(
            LocalFolder(tmp_path),
            MIRROR,
            receipt_files.pack_receipts(1, number, [r for report in reports for r in report.receipts]),
        )
    told = rows(LocalFolder(tmp_path), MIRROR)
    assert (sum(row["records"] for row in told), holes(told)) == (1800, [])


@pytest.mark.cluster
def test_killed_workers_are_replaced_and_their_lost_receipts_leave_holes(
    runner: SparkRunner, pair: Pair, tmp_path: Path
) -> None:
    progress = ProgressTracker()
    with DatagramReceiver(ListenAddress(), {DatagramKind.PROGRESS: progress.handle}) as channel:
        bench = Bench(pair, channel)
        bench.produce(200)
        before = runner.submit(bench.epoch(0, until=200)).result(TIMEOUT_S)
        running = runner.submit(bench.epoch(1, until=600))
        bench.produce(200)

        def both_at_400() -> bool:
            figures = progress.partitions()
            return [figures[p].position for p in bench.partitions if p in figures] == [400, 400]

        wait_until(both_at_400, timeout_s=TIMEOUT_S, why="both tasks have copied, and wait for more")
        doomed = workers()
        assert len(doomed) >= 2
        for pid in doomed:
            psutil.Process(pid).kill()
        bench.produce(200)
        after = running.result(TIMEOUT_S)

    bench.check(600)
    assert spans(after) == [(0, 400, 600), (1, 400, 600)]  # what the dead attempts copied is on the destination
    for number, reports in enumerate((before, after)):
        receipt_files.write_receipts(
            LocalFolder(tmp_path),
            MIRROR,
            receipt_files.pack_receipts(1, number, [r for report in reports for r in report.receipts]),
        )
    assert holes(rows(LocalFolder(tmp_path), MIRROR)) == [(partition, 200, 400) for partition in bench.partitions]


@pytest.mark.cluster
def test_tasks_that_are_asked_to_end_finish_and_report_before_the_runner_closes(
    spark: SparkSession, pair: Pair
) -> None:
    progress = ProgressTracker()
    with DatagramReceiver(ListenAddress(), {DatagramKind.PROGRESS: progress.handle}) as channel:
        runner = SparkRunner(slots=2)
        bench = Bench(pair, channel)
        bench.produce(300)
        now_ms = round(time.time() * 1000)
        running = runner.submit(bench.epoch(0))
        waiting = runner.submit(bench.epoch(1, start_ms=now_ms + 50_000))
        wait_until(lambda: progress.totals().records >= 600, timeout_s=TIMEOUT_S, why="epoch 0 copies")
        channel.stop_tasks()
        runner.close(are_asked=True)
    assert spans(running.result(0)) == [(0, 0, 300), (1, 0, 300)]
    assert all(receipt.first == receipt.next for report in waiting.result(0) for receipt in report.receipts)
    bench.check(300)


@pytest.mark.cluster
def test_a_tasks_own_error_comes_back_as_itself(runner: SparkRunner, pair: Pair, tmp_path: Path) -> None:
    bench = Bench(pair)
    secret = "open-sesame-41"
    broken = tmp_path / "broken.yaml"
    broken.write_text(f"clusters:\n  east: {{sasl.password: {secret}}}\n", encoding="utf-8")
    assignments = [replace(assignment, config_path=str(broken)) for assignment in bench.epoch(0, until=1)]
    error = runner.submit(assignments).exception(TIMEOUT_S)
    assert isinstance(error, BadRequest)
    assert "task 0" in str(error)
    assert "bootstrap.servers is missing" in str(error)
    assert secret not in str(error)


def test_two_epochs_run_at_the_same_time_on_warm_workers(runner: SparkRunner, tmp_path: Path) -> None:
    warm = workers()
    assert len(warm) >= 4
    payload = f"4 {tmp_path}".encode()
    epochs = [runner._start_job(work.meet, [payload] * 2, int) for _ in range(2)]
    met = {pid for epoch in epochs for pid in epoch.result(TIMEOUT_S)}
    assert len(met) == 4
    assert met <= warm


@pytest.mark.cluster
def test_a_task_whose_worker_always_dies_costs_the_others_no_receipt(
    runner: SparkRunner, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(pair)
    bench.produce(500)
    with monkeypatch.context() as patched:
        patched.setattr(copy_executor, "run_copy_task", work.copy_or_die)
        alive, dead = runner.submit(bench.epoch(0, until=500)).result(TIMEOUT_S)
    assert spans((alive,)) == [(0, 0, 500)]
    assert (alive.failures, alive.retry_reason) == ((), "")
    assert (dead.receipts, dead.failures, dead.comparisons_unknown) == ((), (), True)
    assert dead.retry_reason.startswith(format_sentence("task_left_no_report", 1, 4))
    assert "worker exited unexpectedly" in dead.retry_reason
    assert "\n" not in dead.retry_reason
    assert "org.apache" not in dead.retry_reason
    bench.check(500)  # what the dead task has sent is on the destination
    bench.produce(100)
    assert spans(runner.submit(bench.epoch(1, until=600)).result(TIMEOUT_S)) == [(0, 500, 600), (1, 500, 600)]
    bench.check(600)


def test_an_epoch_whose_workers_all_die_fails_with_a_reason_in_one_line(runner: SparkRunner) -> None:
    error = runner._start_job(work.die, [b"", b""], bytes).exception(TIMEOUT_S)
    assert isinstance(error, SparkFailed)
    assert not isinstance(error, SparkGone)
    assert "a task failed 4 times" in str(error)
    assert "worker exited unexpectedly" in str(error)
    assert "\n" not in str(error)
    assert "org.apache" not in str(error)
    assert runner._start_job(copy_executor.preload_copy_task, [b""], bytes).result(
        TIMEOUT_S
    )  # the next epoch isn't harmed


def test_close_ends_running_tasks_and_their_futures(spark: SparkSession, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as another:  # as a data plane does, which keeps its lease meanwhile
        runner = another.submit(SparkRunner, slots=2).result()
    here = tmp_path / "here"
    endless = runner._start_job(work.wait_for_file, [str(here).encode()], bytes)
    wait_until(here.exists, timeout_s=TIMEOUT_S, why="the task runs")
    assert runner.close(), "its worker may still write"
    assert isinstance(endless.exception(0), SparkFailed)
    with pytest.raises(SparkGone):
        runner.submit([])
    assert spark.range(3).count() == 3  # a session that the runner found is not its to stop


def test_a_runner_that_is_closed_leaves_the_tasks_of_another_one_alone(spark: SparkSession, tmp_path: Path) -> None:
    ours, others = (SparkRunner(slots=1, number=number) for number in range(2))
    there = [tmp_path / "ours", tmp_path / "others"]
    jobs = [
        runner._start_job(work.wait_for_file, [str(here).encode()], bytes)
        for runner, here in zip((ours, others), there, strict=True)
    ]
    try:
        wait_until(lambda: all(here.exists() for here in there), timeout_s=TIMEOUT_S, why="both tasks run")
        ours.close()
        assert isinstance(jobs[0].exception(0), SparkFailed)
        echo = others._start_job(work.meet, [b"1 " + str(new_folder(tmp_path)).encode()], bytes)
        assert echo.result(TIMEOUT_S)
        assert not jobs[1].done()
    finally:
        others.close()
    assert isinstance(jobs[1].exception(0), SparkFailed)


def new_folder(parent: Path) -> Path:
    folder = parent / "folder"
    folder.mkdir()
    return folder


def test_a_dead_spark_is_told_from_a_failed_job() -> None:
    script = """
import sys
from pathlib import Path
import psutil
from mirror_core.spark.runner import SparkGone, SparkRunner
from tests.spark import work
from tests.support.waiting import wait_until
runner = SparkRunner(slots=1)
here = Path(sys.argv[1])
running = runner._start_job(work.wait_for_file, [str(here).encode()], bytes)
wait_until(here.exists, timeout_s=60, why="the task runs")
for process in psutil.Process().children():
    process.kill()
assert isinstance(running.exception(60), SparkGone), running
assert isinstance(runner._start_job(work.wait_for_file, [b""], bytes).exception(60), SparkGone)
runner.close()
print("seen")
"""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", script, str(Path(folder) / "here")]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.stdout.endswith("seen\n"), ran.stderr[-2000:]


def test_a_master_with_too_few_slots_is_refused_with_the_number_needed(
    spark: SparkSession,
) -> None:
    with pytest.raises(SparkFailed, match="3 tasks in two overlapping epochs need 6 task slots") as refusal:
        SparkRunner(slots=3)
    assert "\n" not in str(refusal.value)


def test_errors_without_a_class_of_ours_carry_no_text() -> None:
    crash = json.dumps({"report": None, "error_class": "KeyError", "error": "task 3: KeyError in pump.py line 9"})
    with pytest.raises(copy_executor.TaskCrashed, match=r"task 3: KeyError in pump\.py line 9"):
        copy_executor.parse_task_report(crash.encode())


def test_errors_that_may_pass_become_a_reports_reason_to_retry() -> None:
    away = json.dumps({"report": None, "error_class": "Unreachable", "error": "task 1: cluster west: no answer"})
    assert copy_executor.parse_task_report(away.encode()) == TaskReport(
        receipts=(), failures=(), cpu_s=0.0, retry_reason="task 1: cluster west: no answer", comparisons_unknown=True
    )
