"""What a broker costs that hangs, is out of reach, or restarts: measured on what the others lead, under load."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from mirror_core.model.names import Partition
from mirror_core.state.state_records import STATE_TOPIC
from mirror_core.state.writer import make_data_id
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.checked_threads import beside
from tests.support.data_plane_thread import driving
from tests.support.kafka_clients import TIMEOUT_S, admin_client
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.replicate_process import Application
from tests.support.topic_equality import assert_same
from tests.support.unreachable_brokers import coordinator, leaders
from tests.support.waiting import wait_until
from tests.support.wan_clusters import Distant, distant_clusters
from tests.support.wan_relay import Weather

pytestmark = [pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy, pytest.mark.timed]

PARTITIONS = 6
WINDOW_S = 30.0
FAR_MS = 80.0


@pytest.fixture(scope="module")
def distant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Distant]:
    with distant_clusters(tmp_path_factory.mktemp("one-hangs"), nodes=3) as made:
        yield made


class Load(Application):
    """Some 20 records of 1 KiB a second to each of these partitions; whoever leads one and takes nothing is not waited
    for."""

    def __init__(self, cluster: SandboxCluster, partitions: Sequence[Partition]) -> None:
        super().__init__()
        self.cluster, self.partitions = cluster, partitions

    def _write(self) -> None:
        producer = Producer({**self.cluster.client_config("admin"), "enable.idempotence": True, "linger.ms": 0})
        while not self._stop.wait(0.05):
            for one in self.partitions:
                producer.produce(one.topic, secrets.token_bytes(1024), partition=one.index)
            producer.poll(0)
        assert producer.flush(TIMEOUT_S) == 0, f"{self.cluster.name} does not acknowledge"


class Watch:
    """Where logs of both sides end, again and again; only leaders of these partitions are asked."""

    def __init__(self, distant: Distant, partitions: Sequence[Partition]) -> None:
        self.partitions = partitions
        self.copied = deque[tuple[float, int]]()
        """Records on the destination, in all, and when."""
        self.worst_s = 0.0
        """The longest time for which something has been on the source and not on the destination."""
        self._pair = distant.pair
        self._stop = Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        with beside(self._run, self._stop.set, timeout_s=TIMEOUT_S):
            yield

    def _run(self) -> None:
        there, here = (_reader(cluster) for cluster in (self._pair.east, self._pair.west))
        written = {one: deque[tuple[float, int]]() for one in self.partitions}
        copied = dict.fromkeys(self.partitions, 0)
        while not self._stop.wait(0.05):
            for one in self.partitions:
                now = time.monotonic()
                written[one].append((now, _end(there, one, 0)))
                copied[one] = _end(here, one, copied[one])
                while written[one] and written[one][0][1] <= copied[one]:
                    written[one].popleft()
                if written[one]:
                    self.worst_s = max(self.worst_s, time.monotonic() - written[one][0][0])
            self.copied.append((time.monotonic(), sum(copied.values())))
        there.close()
        here.close()

    def rate(self, seconds: float) -> float:
        """Records a second that are copied from now on."""
        began, records = self.copied[-1]
        wait_until(lambda: self.copied[-1][0] >= began + seconds, timeout_s=seconds + 30, why="time passes")
        return (self.copied[-1][1] - records) / (self.copied[-1][0] - began)


def _reader(cluster: SandboxCluster) -> Consumer:
    return Consumer({**cluster.client_config("admin"), "group.id": "watch-" + secrets.token_hex(4)})


def _end(reader: Consumer, one: Partition, before: int) -> int:
    """As before, while an election is under way."""
    try:
        return int(reader.get_watermark_offsets(TopicPartition(one.topic, one.index), 2.0)[1])
    except KafkaException:
        return before


def new_topic(cluster: SandboxCluster, replicas: int) -> str:
    topic = "t-" + secrets.token_hex(5)
    admin = admin_client(cluster)
    admin.create_topics([NewTopic(topic, PARTITIONS, replicas)])[topic].result(TIMEOUT_S)
    wait_until(
        lambda: len([one for one, node in leaders(cluster).items() if one.topic == topic and node >= 0]) == PARTITIONS,
        timeout_s=TIMEOUT_S,
        why=f"{topic} has leaders",
    )
    return topic


def mirrored_and_led(
    distant: Distant, folder: Path, cluster: SandboxCluster
) -> tuple[Mirrored, str, int, Sequence[Partition]]:
    """A mirror, its topic, a broker of this cluster that leads some of it and is not needed for the mirror's state, and
    the partitions that others lead. Each has one replica: nobody waits for a follower."""
    for _ in range(10):
        topic = new_topic(distant.pair.east, 1)
        mirrored = new_mirror(distant.pair, folder, topic)
        mirrored.copy()
        led = leaders(cluster)
        needed = {node for partition, node in led.items() if partition.topic == STATE_TOPIC}
        needed.add(coordinator(cluster, str(make_data_id(mirrored.name))))
        mine = {partition: node for partition, node in led.items() if partition.topic == topic}
        if away := set(mine.values()) - needed:
            node = away.pop()
            return mirrored, topic, node, [partition for partition, by in mine.items() if by != node]
    raise AssertionError("every broker is needed")


def same_again(distant: Distant, partitions: Callable[[], Sequence[Partition]], topic: str) -> None:
    def equal() -> bool:
        there, here = _reader(distant.pair.east), _reader(distant.pair.west)
        ends = [(_end(there, one, -1), _end(here, one, -2)) for one in partitions()]
        there.close()
        here.close()
        return all(source == copy for source, copy in ends)

    wait_until(equal, timeout_s=TIMEOUT_S, why="all is copied")
    assert_same(distant.pair, [topic])


def all_of(topic: str) -> Callable[[], Sequence[Partition]]:
    return lambda: [Partition(topic, index) for index in range(PARTITIONS)]


def test_a_destination_broker_out_of_reach_costs_the_others_a_tenth_at_most(distant: Distant, tmp_path: Path) -> None:
    mirrored, topic, away, others = mirrored_and_led(distant, tmp_path, distant.pair.west)
    link = [distant.ports[distant.pair.west.name][away - 1]]
    watch = Watch(distant, others)
    with driving(mirrored, epoch_s=10) as said, Load(distant.pair.east, all_of(topic)()), watch.watching():
        wait_until(lambda: watch.copied and watch.copied[-1][1] > 100, timeout_s=TIMEOUT_S, why="copying begins")
        before = watch.rate(WINDOW_S)
        distant.relay.becomes(link, Weather(stalled=True))
        meanwhile = watch.rate(2 * WINDOW_S)
        distant.relay.becomes(link, Weather())
        print(f"before {before:.0f} records a second, meanwhile {meanwhile:.0f}, worst {watch.worst_s:.1f} s; {said}")
        assert before > 0
        assert meanwhile >= 0.9 * before
    with driving(mirrored):
        same_again(distant, all_of(topic), topic)


def test_a_source_broker_that_is_stopped_holds_up_no_other_for_2_s(distant: Distant, tmp_path: Path) -> None:
    mirrored, topic, away, others = mirrored_and_led(distant, tmp_path, distant.pair.east)
    watch = Watch(distant, others)
    with driving(mirrored, epoch_s=10) as said:
        with Load(distant.pair.east, others), watch.watching():
            wait_until(lambda: watch.copied and watch.copied[-1][1] > 100, timeout_s=TIMEOUT_S, why="copying begins")
            watch.rate(5.0)
            watch.worst_s = 0.0
            distant.pair.east.stop_process(away)
            try:
                rate = watch.rate(2 * WINDOW_S)
            finally:
                distant.pair.east.cont_process(away)
            print(f"{rate:.0f} records a second, worst {watch.worst_s:.1f} s; {said}")
            assert rate > 0
            assert watch.worst_s <= 2.0
        same_again(distant, all_of(topic), topic)


def test_a_data_plane_that_starts_beside_a_source_broker_that_is_stopped_copies_the_others_soon(
    distant: Distant, tmp_path: Path
) -> None:
    mirrored, topic, away, others = mirrored_and_led(distant, tmp_path, distant.pair.east)
    watch = Watch(distant, others)
    with driving(mirrored):  # it has run before: no topic is to be made, for which a controller may have to be elected
        same_again(distant, all_of(topic), topic)
    distant.pair.east.stop_process(away)
    try:
        with Load(distant.pair.east, others), watch.watching():
            wait_until(lambda: len(watch.copied) > 1, timeout_s=TIMEOUT_S, why="somebody watches")
            began, before = watch.copied[-1]
            with driving(mirrored, epoch_s=10) as said:
                wait_until(lambda: watch.copied[-1][1] > before, timeout_s=TIMEOUT_S, why="copying begins")
                took_s = watch.copied[-1][0] - began
                print(f"the first record after {took_s:.1f} s; {said}")
                assert took_s <= 5.0
    finally:
        distant.pair.east.cont_process(away)
    with driving(mirrored):
        same_again(distant, all_of(topic), topic)


def test_a_rolling_restart_of_a_far_destination_holds_up_no_partition_for_15_s(
    distant: Distant, tmp_path: Path
) -> None:
    west = distant.pair.west
    topic = new_topic(distant.pair.east, 3)
    mirrored = new_mirror(distant.pair, tmp_path, topic)
    watch = Watch(distant, all_of(topic)())

    def in_sync() -> bool:
        view = admin_client(west).list_topics(timeout=TIMEOUT_S).topics
        return all(len(one.isrs) == len(one.replicas) for seen in view.values() for one in seen.partitions.values())

    with distant.is_far(west, FAR_MS), driving(mirrored, epoch_s=10) as said:
        with Load(distant.pair.east, all_of(topic)()), watch.watching():
            wait_until(lambda: watch.copied and watch.copied[-1][1] > 100, timeout_s=TIMEOUT_S, why="copying begins")
            watch.rate(5.0)
            watch.worst_s = 0.0
            for node in (1, 2, 3):
                west.terminate(node)
                west.start(node)
                wait_until(in_sync, timeout_s=TIMEOUT_S, why="its replicas are in sync again")
            watch.rate(10.0)
            print(f"worst {watch.worst_s:.1f} s; {said}")
            assert 0 < watch.worst_s <= 15.0
        same_again(distant, all_of(topic), topic)
