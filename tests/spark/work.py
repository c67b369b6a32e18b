"""What Spark's workers run in tests. No Spark in here, as in the real task module."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from mirror_core.kafka.replay_producer import ReplayProducer
from mirror_core.model.logs import LogSettings
from mirror_core.model.task_messages import Assignment
from mirror_core.parity import salvage_replay
from mirror_core.parity.compare import CompareTask
from mirror_core.parity.parity_table import parse_span_task
from mirror_core.spark.copy_executor import run_copy_task
from mirror_core.spark.executor_tasks import compare_batches, iterate_payloads, replay_saved, run_compare_task


def meet(payload: bytes) -> bytes:
    """Say that we are here by a file in folder P, then wait for N files: `N P`. Answers with our process id."""
    wanted, folder = payload.decode().split(" ", 1)
    me = str(os.getpid())
    with open(os.path.join(folder, me), "x"):
        pass
    deadline = time.monotonic() + 60
    while len(os.listdir(folder)) < int(wanted):
        if time.monotonic() > deadline:
            return b"alone"
        time.sleep(0.01)
    return me.encode()


def wait_for_file(payload: bytes) -> bytes:
    """Say that we are here by a file, then wait without end."""
    with open(payload.decode(), "w"):
        pass
    while True:
        time.sleep(0.1)


def die(payload: bytes) -> bytes:
    """As a worker does that runs out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return payload


def count_bytes(payload: bytes) -> bytes:
    return str(len(payload)).encode()


def measure_processor_s(payload: bytes) -> bytes:
    """This worker's process id, and the processor time that it has used."""
    return f"{os.getpid()} {time.process_time()}".encode()


def copy_or_die(log: LogSettings, payload: bytes) -> bytes:
    """Copying whose worker dies with task 1 each time, once it has copied."""
    result = run_copy_task(log, payload)
    if msgspec.json.decode(payload, type=Assignment).task == 1:
        die(payload)
    return result


def compare_or_die(payload: bytes) -> bytes:
    """A comparison whose worker dies with any share of a partition 1."""
    task = msgspec.json.decode(payload, type=CompareTask)
    if any(piece.partition.index == 1 for piece in task.pieces):
        die(payload)
    return run_compare_task(payload)


def compare_batches_or_die(
    poison: str, last_attempt: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A comparison whose worker dies with any task that has this span, unless it is the last attempt's."""
    from pyspark import TaskContext  # late: as in the real module

    tasks, context = list(batches), TaskContext.get()
    assert context is not None
    payloads = [payload for batch in tasks for payload in iterate_payloads(iter([batch]))]
    if context.attemptNumber() < last_attempt and any(
        span.id == poison for payload in payloads for span in parse_span_task(payload).spans
    ):
        die(b"")
    yield from compare_batches(last_attempt, iter(tasks))


def compare_batches_later(
    slow: str, proceed: str, last_attempt: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A comparison that waits for a file where its task has this span."""
    for batch in batches:
        spans = [span.id for payload in iterate_payloads(iter([batch])) for span in parse_span_task(payload).spans]
        while slow in spans and not os.path.exists(proceed):
            time.sleep(0.05)
        yield from compare_batches(last_attempt, iter([batch]))


def replay_saved_or_die(task: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A replay in small transactions. Its worker dies before its second commit, and the next one's behind a commit."""
    from pyspark import TaskContext  # late: as in the real module

    context = TaskContext.get()
    assert context is not None
    attempt, commits, commit = context.attemptNumber(), itertools.count(1), ReplayProducer._commit

    def commit_or_die(producer: ReplayProducer, *arguments: object) -> None:
        number = next(commits)
        if (attempt, number) == (0, 2):
            die(b"")
        commit(producer, *arguments)  # type: ignore[arg-type]
        if (attempt, number) == (1, 3):
            die(b"")

    salvage_replay._TRANSACTION_RECORDS = 7  # type: ignore[misc]
    ReplayProducer._commit = commit_or_die  # type: ignore[method-assign, assignment]
    try:
        yield from replay_saved(task, batches)
    finally:
        ReplayProducer._commit = commit  # type: ignore[method-assign]
