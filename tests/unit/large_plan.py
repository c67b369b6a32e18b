"""What a driver does in each epoch of a mirror of 50,000 partitions, in a process of its own that measures itself.

    python -m tests.unit.large_plan CONFIG

Prints CPU seconds of each action and the most that the process held resident, as JSON. The clusters are generated
(`tests.support.generated_cluster`). All partitions lag; retention has moved the log start of every fifth topic on the
source; every task has reported its progress for a while.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from mirror_core.dataplane.counters import Counters
from mirror_core.dataplane.epoch_planner import CopyEpoch, CopyPlan, Planner, build_assignments
from mirror_core.dataplane.epoch_results import EpochResults
from mirror_core.dataplane.observed_source import ObservedSource
from mirror_core.dataplane.progress import ProgressTracker, TaskProgress
from mirror_core.dataplane.prometheus_collector import build_families
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.model.gc_tuning import reduce_gc_frequency
from mirror_core.model.mirror import DesiredState, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.task_messages import AlignedPartition, Assignment, Receipt, ReceiptPiece, TaskReport
from mirror_core.state.mirror_link import make_mirror_link
from mirror_core.state.state_records import State
from mirror_core.wire.batch import DIGEST_MODULUS
from tests.support.generated_cluster import END, EPOCH, START, topic, topic_id
from tests.support.memory_state import MemoryLog

TOPICS: Final = 10_000
WIDTH: Final = 5
BROKERS: Final = 100
TASKS: Final = 8
TOLD_S: Final = 40
"""Longer than a partition's samples reach at one a second: so many are kept as ever are."""
BUSY_S: Final = 120.0
"""For a response: one process answers for all brokers, on a machine that may be busy. CPU seconds are what counts."""
BEHIND: Final = Offset(END["b"])
MIRROR: Final = Mirror(
    name=MirrorName("large"),
    source=ClusterName("east"),
    destination=ClusterName("west"),
    source_id="a",
    destination_id="b",
    topics=("department.*",),
    producer_id=1 << 62,
    desired=DesiredState.STARTED,
    created_ms=0,
)


class Measured:
    """CPU seconds, all threads together, that this process's actions take, and what it has held at most."""

    def __init__(self) -> None:
        self.worked: dict[str, float] = {}

    @contextmanager
    def action(self, name: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.worked[name] = round(time.process_time() - began, 2)

    def show(self) -> None:
        mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(json.dumps({"mib": mib, "worked": self.worked}))


def recorded(topics: int = TOPICS) -> State:
    """As a data plane that has run for a while leaves it."""
    state = State()
    state.mirrors[MIRROR.name] = MIRROR
    state.partitions[MIRROR.name] = {
        partition: PartitionStatus(
            partition=partition,
            state=PartitionState.MIRRORING,
            source_topic_id=topic_id(number, "a"),
            destination_topic_id=topic_id(number, "b"),
            source_epoch=EPOCH,
            initial_log_start=Offset(0),
            source_start=Offset(START),
        )
        for number in range(topics)
        for partition in (Partition(topic(number), index) for index in range(WIDTH))
    }
    return state


def handed_out(link: Any, work: CopyPlan) -> list[bytes]:
    """One epoch's tasks, as they travel to Spark."""
    epoch = CopyEpoch(number=1, start_ms=0, stop_ms=30_000, throttle=None, driver=None)
    tasks = build_assignments(link, epoch, work.partitions, work.lags, TASKS)
    return [msgspec.json.encode(task) for task in tasks]


def reported(payload: bytes) -> bytes:
    """What a task says at its end, of partitions that all came some way."""
    task = msgspec.json.decode(payload, type=Assignment)
    last = Offset(BEHIND + 75_000)
    pieces = tuple(
        ReceiptPiece(first=first, next=end, records=end - first, digest=f"{DIGEST_MODULUS - 1:032x}")
        for first, end in ((BEHIND, Offset(BEHIND + 50_000)), (Offset(BEHIND + 50_000), last))
    )
    receipts = [
        Receipt(
            mirror=task.mirror,
            partition=one.partition,
            epoch=1,
            task=task.task,
            first=BEHIND,
            next=last,
            records=last - BEHIND,
            gaps=0,
            batches=1_000,
            bytes=75_000_000,
            pieces=pieces,
            source_topic_id=one.source_topic_id,
            destination_topic_id=one.destination_topic_id,
            source_end=Offset(END["a"]),
            started_ms=0,
            ended_ms=30_000,
        )
        for one in task.partitions
    ]
    aligned = [
        AlignedPartition(partition=one.partition, source_epoch=EPOCH, all_answered=True) for one in task.partitions
    ]
    return msgspec.json.encode(TaskReport(receipts=tuple(receipts), failures=(), cpu_s=1.0, aligned=tuple(aligned)))


def told(progress: ProgressTracker, seconds: list[float], partitions: list[Partition]) -> None:
    """Every second of every partition, while the source runs ahead. `seconds`: the tracker's clock."""
    for second in range(TOLD_S):
        seconds[0] = float(second)
        rows: list[tuple[str, int, int, int | None, int, int, int, int]] = [
            (p.topic, p.index, BEHIND + second, END["a"] + 100 * second, second, second, 0, 0) for p in partitions
        ]
        progress.update(TaskProgress(task=0, t=float(second), rows=rows), 1)


def main(config: Path) -> None:
    reduce_gc_frequency()  # as the command line does
    measured, state = Measured(), recorded()
    link = make_mirror_link(load_config(config), MIRROR)
    log = MemoryLog()
    log.state = state
    lease: Any = SimpleNamespace(state=state, put=log.put, generation=1)
    seconds = [0.0]
    counters, progress = Counters(), ProgressTracker(lambda: seconds[0])
    results = EpochResults(link, counters, report_line=print)
    with (
        ClusterClient(link.source, timeout_s=BUSY_S) as source,
        ClusterClient(link.destination, timeout_s=BUSY_S) as destination,
    ):
        planner = Planner(link, source, destination)
        with measured.action("first plan"):
            planner.plan(state, all_ends=False)
        with measured.action("plan"):
            work = planner.plan(state, all_ends=False)
        with measured.action("log starts"):
            assert planner.follow_log_start(work.partitions) == []
    assert len(work.lags) == TOPICS * WIDTH
    assert set(work.lags.values()) == {END["a"] - END["b"]}
    assert work.changes == ()
    with measured.action("tasks"):
        payloads = handed_out(link, work)
    answers = [reported(payload) for payload in payloads]
    with measured.action("told"):
        told(progress, seconds, list(work.partitions))
    seconds[0] = float(TOLD_S)
    with measured.action("reports"):
        reports = tuple(msgspec.json.decode(answer, type=TaskReport) for answer in answers)
        results.add_epoch(lease, 1, 0, reports, partitions=frozenset(), newest_epoch=1, final=False)
        results.record_alignment(lease)
        results.count_states(lease)
    with measured.action("metrics"):
        assert progress.totals().unknown == 0
        assert build_families(MIRROR, counters.snapshot(), progress.partitions())
    with measured.action("sighting"):
        memory = ObservedSource(MIRROR.name, {})
        memory.update_ends(1, work.ends, ())
        sighting = memory.to_observation()
    assert sum(len(one.ends) for one in sighting.topics) == TOPICS * WIDTH
    measured.show()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
