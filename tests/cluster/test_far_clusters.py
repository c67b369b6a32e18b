"""Far away: what takes a round trip near by takes one there, and nothing stands still."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mirror_core.copy.batch_producer import BatchProducer
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.mirrors.mirror_creation import format_gap_limit
from mirror_core.model.errors import StateNotWritten
from mirror_core.model.figures import FigureKey
from mirror_core.model.mirror import GapFilling, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.model.run import RunMode
from mirror_core.model.timing import TIMEOUTS, Timeouts
from mirror_core.parity.salvage import LocalSalvage
from mirror_core.runbook import snapshot_reader
from mirror_core.state.active_cluster import ActiveCluster, announce_active_cluster, read_active_cluster
from mirror_core.state.lease import acquire_lease, make_owner_name, release_at_end
from mirror_core.state.state_records import PartitionRecord
from mirror_core.state.writer import StateWriter, make_control_id
from tests.drill.one_task import one_task
from tests.support.data_plane_thread import driving
from tests.support.gap_logs import assert_equal, transaction, transactional
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, produce
from tests.support.mirrored_topics import new_mirror
from tests.support.parity_topics import content, send, whole
from tests.support.topic_equality import assert_parity, assert_same, assert_same_offsets, parity
from tests.support.waiting import patience, wait_until
from tests.support.wan_clusters import Distant, distant_clusters
from tests.support.wan_relay import Weather

pytestmark = [pytest.mark.cluster, pytest.mark.drill]


@pytest.fixture(scope="module")
def distant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Distant]:
    with distant_clusters(tmp_path_factory.mktemp("distant")) as made:
        yield made


def transact(pair: Pair, topic: str, times: int) -> None:
    producer = Producer({**pair.east.client_config("admin"), "transactional.id": topic})
    producer.init_transactions()
    for number in range(times):
        producer.begin_transaction()
        for each in range(20):
            producer.produce(topic, f"{number} {each}".encode(), partition=each % 4)
        producer.commit_transaction()


def test_a_plan_waits_for_a_side_that_goes_on_answering(
    distant: Distant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its answers take longer than one of them may."""
    topic = new_topic(distant.pair.east)
    produce(distant.pair.east, topic, 10)
    mirrored = new_mirror(distant.pair, tmp_path, topic)
    mirrored.copy()
    monkeypatch.setattr(snapshot_reader, "TIMEOUTS", replace(TIMEOUTS, plan_cluster_idle_s=patience(1.0)))
    with distant.is_far(distant.pair.east, 1000 * patience(0.4)):
        plan = mirrored.failover.plan(RunMode.PLANNED)
    assert plan.figures[FigureKey.LAG_OFFSETS] == 0, plan.figures.get(FigureKey.SOURCE_PROBLEM)


LONG = pytest.mark.slow
"""It takes a minute."""


@pytest.mark.parametrize(
    ("side", "round_trip_ms"), [("east", 80), ("west", 80), ("east", 200), pytest.param("west", 200, marks=LONG)]
)
def test_transactions_come_over(distant: Distant, tmp_path: Path, side: str, round_trip_ms: int) -> None:
    pair = distant.pair
    topic = new_topic(pair.east, 4)
    transact(pair, topic, 50)
    mirrored = new_mirror(pair, tmp_path, topic)
    with distant.is_far(getattr(pair, side), round_trip_ms):
        mirrored.copy()
    assert_same(pair, [topic])


def test_a_way_becomes_longer_while_gaps_are_filled(distant: Distant, tmp_path: Path) -> None:
    """What was a fresh look at the log is never to be had again: the same connections go on, another way."""
    pair = distant.pair
    topic = new_topic(pair.east, 4)
    mirrored = new_mirror(pair, tmp_path, topic)

    def copied() -> bool:
        try:
            assert_same_offsets(pair, [topic])
        except AssertionError:
            return False
        return True

    with driving(mirrored, epoch_s=patience(60)):
        transact(pair, topic, 2)
        wait_until(copied, timeout_s=TIMEOUT_S, why="the first transactions come over")
        with distant.is_far(pair.west, 200):
            transact(pair, topic, 2)
            wait_until(copied, timeout_s=TIMEOUT_S, why="the next ones do, within the same epoch")
    assert_same(pair, [topic])


@pytest.mark.timed
@pytest.mark.parametrize("side", ["east", "west"])
def test_ten_thousand_transactions_come_over(distant: Distant, tmp_path: Path, side: str) -> None:
    """Hidden records go in line with data, however long an answer takes: no gap waits for one."""
    pair = distant.pair
    topic = new_topic(pair.east, 8)

    def write_to(partition: int) -> None:
        producer = transactional(pair.east)
        for _ in range(1250):
            transaction(producer, topic, 3, commit=True, partitions=[partition])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write_to, range(8)))
    mirrored = new_mirror(pair, tmp_path, topic, gaps=GapFilling.HIDDEN)
    with distant.is_far(getattr(pair, side), 200):
        begun = time.monotonic()
        mirrored.copy()
        took = time.monotonic() - begun
    assert_equal(pair, topic, records=30_000)
    a_second = 40_000 / took  # offsets: three records of each transaction, and its end
    assert a_second >= 1_000, f"{a_second:.0f} offsets a second, 200 ms from {side}, start and end included"


@pytest.mark.parametrize(("side", "round_trip_ms"), [("west", 20), ("east", 200)])
def test_both_sides_are_compared_and_tails_are_saved(
    distant: Distant, tmp_path: Path, side: str, round_trip_ms: int
) -> None:
    pair = distant.pair
    identities = {str(identity.name): identity for identity in pair.identities}
    topic = new_topic(pair.east, 4, retention_ms="-1")
    send(pair.east, topic, content(300))
    transact(pair, topic, 2)
    mirrored = new_mirror(pair, tmp_path, topic)
    with distant.is_far(getattr(pair, side), round_trip_ms):
        mirrored.copy()
        assert_parity(mirrored)
        produce(pair.west, topic, 1, partition=1)  # somebody else's, behind the copy
        produce(pair.east, topic, 1, partition=1)
        found = parity(mirrored)
        saved = LocalSalvage(pair.config_path)(identities[side], [whole(topic, 300, start=100)], tmp_path / "saved")
    assert found.verdict is ParityVerdict.FAILED
    assert {finding.partition for finding in found.findings} == {Partition(topic, 1)}
    assert {partition: one.records for partition, one in saved.items()} == {Partition(topic, 0): 200}


def test_distance_is_said_before_a_mirror_is_created(distant: Distant) -> None:
    west = load_config(distant.pair.config_path).cluster("west")
    with distant.is_far(distant.pair.west, 100):
        assert "hidden records (`--gaps hidden`)" in format_gap_limit(west, GapFilling.MARKERS)


@pytest.mark.timed
@pytest.mark.parametrize("side", [pytest.param("east", marks=LONG), "west"])
def test_much_is_on_its_way_at_a_time(distant: Distant, tmp_path: Path, side: str) -> None:
    """96 MB, 400 ms away: with 2 MiB a round trip it would take 46 of them."""
    pair, round_trip_s, records = distant.pair, 0.4, 96_000
    topic = new_topic(pair.east, 8)
    partitions = [Partition(topic, index) for index in range(8)]
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    fill(pair, topic, records)
    direct = load_config(pair.sandbox.dir.parent / "mirrorbook.yaml").cluster("west")
    with distant.is_far(getattr(pair, side), 1000 * round_trip_s), ClusterClient(direct) as west:

        def copied() -> int:
            return sum(list_offsets(west, partitions, OffsetPoint.LOG_END).values())

        with one_task(mirrored, partitions) as task:
            wait_until(lambda: copied() > 0, timeout_s=60, why="copying begins")
            begun = time.monotonic()
            wait_until(lambda: copied() == records, timeout_s=60, why="everything is copied")
            trips = (time.monotonic() - begun) / round_trip_s
            assert side == "west" or task.most_under_way > 2
    assert trips < 23, f"{trips:.1f} round trips"
    assert_same(pair, [topic])


def fill(pair: Pair, topic: str, records: int) -> None:
    """Of 1 KB each, in batches of 16 KiB."""
    producer = Producer({**pair.east.client_config("admin"), "batch.size": 16384, "linger.ms": 50})
    for number in range(records):
        producer.produce(topic, b"%01000d" % number, partition=number % 8)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0


@LONG
@pytest.mark.parametrize("size", [16_000, pytest.param(900_000, marks=LONG)])
def test_a_thin_way_is_no_silence(distant: Distant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """8 MB at 200 KB/s: what is sent at once takes longer than a broker may keep silent."""
    pair, total, a_second = distant.pair, 8_000_000, 200_000
    given_up, lost = list[str](), BatchProducer.disconnect

    def gives_up(self: BatchProducer, broker: int, why: str) -> None:
        given_up.append(why)
        lost(self, broker, why)

    monkeypatch.setattr(BatchProducer, "disconnect", gives_up)
    topic = new_topic(pair.east, 8)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    settings = {"batch.size": size + 1000, "linger.ms": 20, "message.max.bytes": 2_000_000}
    producer = Producer({**pair.east.client_config("admin"), **settings})
    for number in range(total // size):
        producer.produce(topic, secrets.token_bytes(size), partition=number % 8)
    assert producer.flush(60) == 0
    begun = time.monotonic()
    distant.becomes(pair.west, Weather(delay_ms=100, bytes_per_s=a_second))
    try:
        mirrored.copy()
    finally:
        distant.becomes(pair.west, Weather())
    took_s, least_s = time.monotonic() - begun, total / a_second
    print(f"{took_s:.0f} s of at least {least_s:.0f} s; given up: {given_up}")
    assert given_up == []
    assert_same(pair, [topic])


def test_many_partitions_are_recorded_at_once_by_a_thin_way(distant: Distant, tmp_path: Path) -> None:
    """2 MB at 100 KB/s, of one transaction: brokers end those that take longer than 10 s."""
    mirrored = new_mirror(distant.pair, tmp_path, new_topic(distant.pair.east))
    records = [
        PartitionRecord(
            mirrored.name,
            PartitionStatus(
                partition=Partition(f"department.of.orders.stream-{number:05}", 0),
                state=PartitionState.STOPPED,
                source_topic_id=f"{number:032x}",
                destination_topic_id=f"{number:032x}",
                lmo=Offset(number),
            ),
        )
        for number in range(8_000)
    ]
    with StateWriter(mirrored.link.destination, make_control_id(mirrored.name)) as writer:
        distant.becomes(distant.pair.west, Weather(delay_ms=10, bytes_per_s=100_000))
        try:
            writer.put(*records)
        finally:
            distant.becomes(distant.pair.west, Weather())
    assert mirrored.statuses == {record.status.partition: record.status for record in records}


@pytest.mark.parametrize("side", ["east", "west"])
def test_a_mirror_is_found_400_ms_away(distant: Distant, tmp_path: Path, side: str) -> None:
    topic = new_topic(distant.pair.east)
    mirrored = new_mirror(distant.pair, tmp_path, topic)
    with distant.is_far(getattr(distant.pair, side), 400):
        assert mirrored.link.mirror.name == mirrored.name


def test_what_is_announced_is_read_and_replaced_400_ms_away(distant: Distant) -> None:
    """A generation that a switch does not get to read would be announced once more, and not be believed."""
    west = load_config(distant.pair.config_path).cluster("west")
    first = ActiveCluster(
        mirror=MirrorName("far"),
        active=ClusterName("west"),
        cluster_id="a",
        bootstrap_servers="b",
        since_ms=1,
        run="r",
        generation=1,
    )
    assert announce_active_cluster(west, first, timeout_s=60) == first
    later = replace(first, generation=2)
    silent_s = Timeouts().silent_source_s
    with distant.is_far(distant.pair.west, 400):
        assert read_active_cluster(west, first.mirror, silent_s) == first
        assert announce_active_cluster(west, later, silent_s) == later
        assert read_active_cluster(west, first.mirror, silent_s) == later


@pytest.mark.slow
@pytest.mark.parametrize("held", [0, 24, 26], ids=["Produce", "AddPartitionsToTxn", "EndTxn"])
def test_a_lease_outlives_a_state_topic_that_hangs(distant: Distant, tmp_path: Path, held: int) -> None:
    """Whatever its writer was waiting for: afterwards librdkafka's is of no use."""
    pair = distant.pair
    mirrored = new_mirror(pair, tmp_path, new_topic(pair.east))
    with release_at_end(acquire_lease(mirrored.config.cluster("west"), mirrored.name, make_owner_name())) as lease:
        distant.becomes(pair.west, Weather(held=(held,)))
        with pytest.raises(StateNotWritten):
            lease.put(lease.lease)
        distant.becomes(pair.west, Weather())
        distant.cut(pair.west)

        def written() -> bool:
            with suppress(StateNotWritten):
                lease.put(lease.lease)
                return True
            return False

        wait_until(written, timeout_s=TIMEOUT_S, why="it is written again")
        assert mirrored.state.leases[mirrored.name] == lease.lease
    assert mirrored.state.leases[mirrored.name].released
