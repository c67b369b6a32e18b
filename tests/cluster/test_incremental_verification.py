"""What is new is compared while it is copied: kept, said when it differs, and in nobody's way."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from mirror_core.dataplane.counters import Counters, RetriedWork
from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.decide.parity_result import ParityRow
from mirror_core.decide.process_liveness import CONDUCTOR_STEP
from mirror_core.decide.task_assignment import RateLimiter
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_reader import LogReader
from mirror_core.kafka.topics import describe_configs
from mirror_core.mirrors import background_work, incremental_verification
from mirror_core.mirrors.background_work import BackgroundSync, BackgroundVerification
from mirror_core.mirrors.control import take_control
from mirror_core.mirrors.describe import describe_mirror
from mirror_core.mirrors.mirror_commands import run_sync, throttle_mirror
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.model.errors import HeldByRun, LostOwnership
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import RunMode
from mirror_core.model.timing import now_ms
from mirror_core.parity import check
from mirror_core.parity.compare import CompareTask, compare_task
from mirror_core.state import run_heartbeat
from tests.support.broker_faults import damaged
from tests.support.cluster_admin import alter_topic
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, new_topic, produce
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.unplanned_runs import begin
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

RATE = 50_000_000
KILLED_IN_ITS_SYNC = """
import os, signal, sys
from pathlib import Path
from mirror_core.cli.command_options import find_mirror
from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.mirrors.control import take_control

link, _ = find_mirror(Path(sys.argv[1]), sys.argv[2])
with take_control(link, MirrorCommand.SYNC):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def mirrored(pair: Pair, tmp_path: Path) -> Mirrored:
    """Of one topic with a partition of 100 records, caught up."""
    made = new_mirror(pair, tmp_path / "evidence", new_topic(pair.east, 1))
    more(made, 100)
    return made


def partition_of(mirrored: Mirrored) -> Partition:
    return Partition(mirrored.link.mirror.topics[0], 0)


def more(mirrored: Mirrored, count: int) -> None:
    produce(mirrored.pair.east, partition_of(mirrored).topic, count, partition=0)
    mirrored.copy()


def proved(mirrored: Mirrored) -> int | None:
    with ClusterClient(mirrored.link.destination) as client:
        known = incremental_verification.read_basis(mirrored.link, mirrored.state, client).valid.get(
            partition_of(mirrored)
        )
    return known.end if known else None


class Beside:
    """One, and what it has said."""

    def __init__(self, mirrored: Mirrored, every_s: float = 0.2) -> None:
        self.said: list[str] = []
        self.counters = Counters()
        self.proof = BackgroundVerification(mirrored.link, RATE, self.counters, self.said.append, interval_s=every_s)


def test_what_is_new_is_proved_while_copying_goes_on(mirrored: Mirrored) -> None:
    beside = Beside(mirrored)
    with beside.proof:
        wait_until(lambda: proved(mirrored) == 100, timeout_s=TIMEOUT_S, why="the first records were not compared")
        more(mirrored, 50)
        wait_until(lambda: proved(mirrored) == 150, timeout_s=TIMEOUT_S, why="what came later was not compared")
        wait_until(lambda: beside.counters.snapshot().findings == 0, timeout_s=TIMEOUT_S, why="it was not counted")
    assert not beside.said
    (row,) = describe_mirror(mirrored.link, mirrored.state, now_ms()).rows
    assert (row.position, row.verified_end) == (150, 150)


def segment_ms(mirrored: Mirrored) -> str:
    topic = partition_of(mirrored).topic
    with ClusterClient(mirrored.link.destination) as client:
        return describe_configs(client, [topic])[topic].effective["segment.ms"]


def set_segment_ms(mirrored: Mirrored, value: int) -> None:
    with ClusterClient(mirrored.link.source) as client:
        alter_topic(client, partition_of(mirrored).topic, {"segment.ms": str(value)})


def test_settings_follow_while_copying_goes_on_and_a_run_that_holds_the_mirror_is_not_disturbed(
    mirrored: Mirrored,
) -> None:
    said, counters = list[str](), Counters()
    with BackgroundSync(mirrored.link, counters, said.append, interval_s=0.2):
        set_segment_ms(mirrored, 7_200_001)
        wait_until(lambda: segment_ms(mirrored) == "7200001", timeout_s=TIMEOUT_S, why="a setting did not follow")
    sync = BackgroundSync(mirrored.link, counters, said.append)
    run = begin(mirrored.failover, RunMode.PLANNED)
    with pytest.raises(HeldByRun):
        sync.work_once()
    mirrored.failover.abort(run.id)
    assert not said
    assert counters.snapshot().retries.get(RetriedWork.SYNC, 0) == 0


def test_the_data_planes_sync_waits_for_the_end_of_another_one_however_long_that_takes(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(run_heartbeat, "RUN_HEARTBEAT_S", 0.2)
    monkeypatch.setattr(run_heartbeat, "CONDUCTOR_TIMEOUT_S", 3.0)
    began_s = time.monotonic()
    with BackgroundSync(mirrored.link, Counters(), list[str]().append, interval_s=0.2):
        with take_control(mirrored.link, MirrorCommand.SYNC) as writer:
            set_segment_ms(mirrored, 7_200_002)
            wait_until(
                lambda: "sync waits for the end of sync" in caplog.text or segment_ms(mirrored) == "7200002",
                timeout_s=TIMEOUT_S,
                why="the data plane has tried to sync",
            )
            wait_until(lambda: time.monotonic() - began_s > 6.0, timeout_s=TIMEOUT_S, why="the first heartbeat is old")
            writer.put(writer.state.mirrors[mirrored.name])
            assert segment_ms(mirrored) != "7200002"
        wait_until(lambda: segment_ms(mirrored) == "7200002", timeout_s=TIMEOUT_S, why="its turn did not come")


def test_a_sync_that_is_ended_by_another_command_waits_for_no_process_that_was_killed_and_is_done(
    mirrored: Mirrored, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_IN_ITS_SYNC, str(mirrored.config.path), mirrored.name], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert (mirrored.name, CONDUCTOR_STEP, "RunHeartbeat") in mirrored.state.checkpoints, "nobody has released it"
    set_segment_ms(mirrored, 7_200_003)
    run_sync(mirrored.link)
    assert segment_ms(mirrored) == "7200003"
    assert "waits for" not in caplog.text

    with take_control(mirrored.link, MirrorCommand.SYNC) as writer:
        throttle_mirror(mirrored.link, 1_000_000)
        with pytest.raises(LostOwnership):
            writer.put(writer.state.mirrors[mirrored.name])
    run_sync(mirrored.link)
    assert "waits for" not in caplog.text


def test_what_a_sync_leaves_to_a_person_is_said_once(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    row = SimpleNamespace(part="acls", subject="User:a 12", reason="denied")
    rows = [row]
    monkeypatch.setattr(background_work, "run_sync", lambda link: SimpleNamespace(refused=tuple(rows)))
    said = list[str]()
    sync = BackgroundSync(mirrored.link, Counters(), said.append)
    for _ in range(3):
        sync.work_once()
    assert said == ["sync: a person must decide about 1 difference:\n  - acls User:a 12: denied"]
    rows.clear()
    sync.work_once()
    rows.append(row)
    sync.work_once()
    assert len(said) == 2, "it had gone meanwhile"


def test_a_copy_that_differs_is_said_once_and_not_proved(mirrored: Mirrored) -> None:
    west, topic = mirrored.pair.west, partition_of(mirrored).topic
    admin = admin_client(west)
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    wait_until(lambda: topic not in admin.list_topics(timeout=5).topics, timeout_s=TIMEOUT_S, why="it is still there")
    admin.create_topics([NewTopic(topic, 1)])[topic].result(TIMEOUT_S)
    producer = Producer({**west.client_config("admin"), "enable.idempotence": True})
    for number in range(100):
        producer.produce(topic, b"another %d" % number, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    beside = Beside(mirrored)
    looks = 3
    for _ in range(looks):
        beside.proof.work_once()
    assert beside.counters.snapshot().findings == 100
    assert [words for words in beside.said if "THE COPY DIFFERS" in words and f"{topic}-0 at 0" in words]
    assert len(beside.said) == 2, "once, with what to do"
    assert proved(mirrored) is None
    words = f"1 partition: {topic}-0 from offset 0 on"
    assert str(describe_mirror(mirrored.link, mirrored.state, now_ms()).facts[FactKey.DIFFERENCES].text).startswith(
        words
    )
    lost = str(mirrored.failover.decide(RunMode.UNPLANNED).plan.warnings[0])
    assert lost.startswith(f"THE COPY DIFFERS from east in {words}")
    assert "Applications would get what west has" in lost


@pytest.mark.parametrize("side", ["east", "west"])
def test_what_cannot_be_read_is_as_loud_as_a_difference_until_it_can_be(
    mirrored: Mirrored, side: str, caplog: pytest.LogCaptureFixture
) -> None:
    partition, text = partition_of(mirrored), b"of a disk that rots"
    producer = Producer({**mirrored.pair.east.client_config("admin"), "enable.idempotence": True})
    producer.produce(partition.topic, text, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    mirrored.copy()
    beside = Beside(mirrored)
    words = f"1 partition: {partition} from offset 100 on (unreadable on {side}, seen "
    with (
        damaged(mirrored.pair.east if side == "east" else mirrored.pair.west, partition, text),
        caplog.at_level("INFO"),
    ):
        for _ in range(3):
            beside.proof.work_once()
        assert str(describe_mirror(mirrored.link, mirrored.state, now_ms()).facts[FactKey.DIFFERENCES].text).startswith(
            words
        )
        assert any(words in line for line in map(str, mirrored.failover.decide(RunMode.PLANNED).plan.warnings))
    assert beside.counters.snapshot().findings == 1
    loud, *advice = beside.said
    assert f"cluster {side}, {partition}: batch at offset 100 is damaged: CRC does not match" in loud
    assert len(advice) == 2, "once, with what to do"
    assert "compared in part" not in caplog.text
    beside.proof.work_once()
    assert beside.counters.snapshot().findings == 0
    assert describe_mirror(mirrored.link, mirrored.state, now_ms()).facts[FactKey.DIFFERENCES].value == ()
    assert proved(mirrored) == 101


def test_a_run_is_left_alone(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin(mirrored.failover, RunMode.PLANNED)
    with monkeypatch.context() as patched:
        patched.setattr(background_work, "read_parity_scope", lambda *_: pytest.fail("a run compares by itself"))
        Beside(mirrored).proof.work_once()
    mirrored.failover.drive(run.id)


def test_a_run_that_begins_meanwhile_keeps_what_is_its_own(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def meanwhile(task: CompareTask) -> Sequence[ParityRow]:
        runs.append(begin(mirrored.failover, RunMode.PLANNED))
        return compare_task(task)

    monkeypatch.setattr(background_work, "compare_task", meanwhile)
    with pytest.raises(HeldByRun):
        Beside(mirrored).proof.work_once()
    mirrored.failover.drive(runs[0].id)


def test_the_end_of_the_process_ends_it_between_chunks(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Beside(mirrored, background_work.COMPARE_INTERVAL_S)  # so that nothing is written down on the way
    tasks = threading.Event()

    def last(task: CompareTask) -> Sequence[ParityRow]:
        assert not tasks.is_set(), "another chunk was read after the end"
        tasks.set()
        beside.proof._stop.set()
        return compare_task(task)

    monkeypatch.setattr(background_work, "compare_task", last)
    monkeypatch.setattr(background_work, "CHUNK_OFFSETS", 10)
    with pytest.raises(background_work._ComparisonStopped):
        beside.proof.work_once()
    assert proved(mirrored) is None
    assert beside.counters.snapshot().retries[RetriedWork.VERIFICATION] == 0


def test_what_a_long_comparison_has_proved_is_kept_meanwhile(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, begun = Beside(mirrored, background_work.COMPARE_INTERVAL_S), list[int | None]()

    def noted(task: CompareTask) -> Sequence[ParityRow]:
        begun.append(proved(mirrored))
        return compare_task(task)

    monkeypatch.setattr(background_work, "compare_task", noted)
    monkeypatch.setattr(background_work, "CHUNK_OFFSETS", 25)
    monkeypatch.setattr(background_work, "SAVE_INTERVAL_S", 0.0)
    for pause in ("PROGRESS_INTERVAL_S", "PROGRESS_COST_FACTOR"):
        monkeypatch.setattr(check, pause, 0.0)
    monkeypatch.setattr(check, "PARTITIONS_PER_S", float("inf"))
    beside.proof.work_once()
    assert begun == [None, 25, 50, 75], "whoever is killed reads one chunk again"


def test_all_that_is_read_is_paid_for(mirrored: Mirrored) -> None:
    """Whatever the answers' sizes: the limiter's due time is what bounds the rate."""
    partition, pace = partition_of(mirrored), RateLimiter(1 << 30)
    with LogReader(mirrored.link.source, pace=pace) as reader:
        before = pace.due_s
        read = sum(len(batch) for _, batch in reader.batches(partition, Offset(0), Offset(100)))
    assert read
    assert pace.due_s - before > read / (1 << 30)
