"""The fence on a real cluster: refuses every writer, waits for open transactions, and goes away without a trace."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourceType

from mirror_core.kafka.acl_requests import BrokerAcls, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, load_config
from mirror_core.kafka.consumer_groups import GroupOffsetsClient
from mirror_core.kafka.transactions import list_open_transactions
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, LiftedDenial
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName, MirrorName, Partition
from mirror_core.state.mirror_link import MirrorLink, make_mirror_link
from mirror_core.state.state_records import StateRecord, Tombstone
from mirror_core.sync.fence_acls import NotFenced, apply_fence, lift_fence
from tests.support.checked_threads import beside
from tests.support.kafka_clients import Pair, grant, new_topic
from tests.support.memory_state import MemoryLog
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


class WatchfulLog(MemoryLog):
    """And which denials the cluster showed when they were written."""

    def __init__(self, cluster: ClusterConfig | None = None) -> None:
        super().__init__()
        self.met: list[tuple[type[StateRecord | Tombstone], frozenset[str]]] = []
        self._cluster = cluster

    def put(self, *records: StateRecord | Tombstone) -> None:
        if self._cluster:
            shown = frozenset(acl.name for acl in entries(self._cluster) if acl.permission == "DENY")
            self.met += [(type(record), shown) for record in records]
        super().put(*records)


@pytest.fixture
def link(pair: Pair) -> MirrorLink:
    mirror = Mirror(
        name=MirrorName("fence-" + secrets.token_hex(4)),
        source=ClusterName("east"),
        destination=ClusterName("west"),
        source_id="",
        destination_id="",
        topics=("app-.*",),
        producer_id=1 << 62,
        desired=DesiredState.STARTED,
        created_ms=0,
    )
    return make_mirror_link(load_config(pair.config_path), mirror)


@pytest.fixture
def east(pair: Pair) -> ClusterConfig:
    return load_config(pair.config_path).cluster("east")


def entries(config: ClusterConfig) -> frozenset[Acl]:
    with ClusterClient(config) as client:
        found = describe_acls(client)
    assert isinstance(found, BrokerAcls)
    return found.entries


def refusal(pair: Pair, topic: str, user: str) -> KafkaError | None:
    """How the broker answers one write of this user; None when it accepts."""
    answers: list[KafkaError | None] = []
    producer = Producer({**pair.east.client_config(user), "message.timeout.ms": 20_000})
    producer.produce(topic, b"x", partition=0, on_delivery=lambda error, _: answers.append(error))
    producer.flush(30)
    assert len(answers) == 1, "no answer to a write"
    return answers[0]


@contextmanager
def writing(pair: Pair, topic: str, user: str = "app") -> Iterator[list[int]]:
    """A producer of this user that writes as fast as it can; yields the offsets that were acknowledged to it."""
    acked: list[int] = []
    stop = threading.Event()

    def delivered(error: KafkaError | None, message: object) -> None:
        offset = message.offset()  # type: ignore[attr-defined]  # a confluent_kafka.Message
        if error is None:
            acked.append(offset)
        else:
            stop.set()

    def loop() -> None:
        producer = Producer({**pair.east.client_config(user), "linger.ms": 0})
        while not stop.is_set():
            try:
                producer.produce(topic, b"x" * 50, partition=0, on_delivery=delivered)
            except KafkaException:  # librdkafka knows already that it may not; what it sent before is still answered
                break
            producer.poll(0.001)
        producer.flush(30)

    with beside(loop, stop.set, name=f"producer of {user}"):
        wait_until(lambda: len(acked) > 100, timeout_s=60, why="the producer gets going")
        yield acked


def test_nothing_is_acknowledged_beyond_the_log_end_that_the_fence_proved(
    pair: Pair, link: MirrorLink, east: ClusterConfig
) -> None:
    topic = new_topic(pair.east, prefix="app-")
    log, before = WatchfulLog(east), entries(east)
    with writing(pair, topic) as acked, ClusterClient(east) as client:
        fence = apply_fence(link, log, client, [topic], [Partition(topic, 0)])
        end = fence.ends[Partition(topic, 0)]
        assert fence.brokers == (1,)
    assert acked
    assert max(acked) == end - 1
    assert refusal(pair, topic, "app") is not None
    assert refusal(pair, topic, "mirror-control") is not None
    assert [e.purpose for e in log.state.ledger.values()] == [AclPurpose.FENCE]
    with ClusterClient(east) as client:
        lift_fence(link.mirror, log, client)
    assert entries(east) == before
    assert log.state.ledger == {}
    # A crash at any moment leaves no denial that the ledger does not know.
    assert [kind for kind, _ in log.met] == [LedgerEntry, LedgerEntry, Tombstone, LiftedDenial]
    assert [topic in shown for _, shown in (log.met[0], log.met[-1])] == [False, False]
    assert refusal(pair, topic, "app") is None


def test_an_open_transaction_holds_the_fence_up_until_its_end(
    pair: Pair, link: MirrorLink, east: ClusterConfig
) -> None:
    topic, tx = new_topic(pair.east, prefix="app-"), "tx-" + secrets.token_hex(4)
    grant(pair.east, "app", ResourceType.TRANSACTIONAL_ID, tx, [AclOperation.WRITE])
    producer = Producer(
        {**pair.east.client_config("app"), "transactional.id": tx, "transaction.timeout.ms": 15_000, "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"never committed", partition=0)
    producer.flush(30)
    log, partition = WatchfulLog(), Partition(topic, 0)
    beforehand: list[tuple[set[str], set[Acl]]] = []

    def told(acls: Collection[Acl]) -> None:
        beforehand.append(({acl.name for acl in acls}, set(acls) & entries(east)))

    with ClusterClient(east) as client:
        assert [t.id for t in list_open_transactions(client, {topic})] == [tx]
        with pytest.raises(NotFenced, match=f"transaction '{tx}' is Ongoing"):
            apply_fence(link, log, client, [topic], [partition], transaction_wait_s=0, before_deny=told)
        # Whoever has to lift it without the ledger knew of the transaction before it was denied.
        assert beforehand == [({topic, tx}, set())]
        fence = apply_fence(link, log, client, [topic], [partition], transaction_wait_s=90)
        assert list_open_transactions(client, {topic}) == ()
        # The record, and the marker by which the coordinator aborted it.
        assert fence.ends == {partition: 2}
        assert ("TRANSACTIONAL_ID", tx) in {(acl.resource, acl.name) for acl in fence.denials}
        lift_fence(link.mirror, log, client)
    assert not any(acl.name == tx and acl.permission == "DENY" for acl in entries(east))


@pytest.mark.parametrize("prefix", ["g-", "mirrorbook.control.g-"])
def test_a_transaction_beside_what_is_drained_holds_the_fence_up_since_groups_offsets_are_in_it(
    pair: Pair, link: MirrorLink, east: ClusterConfig, prefix: str
) -> None:
    topic, group = new_topic(pair.east, 2, prefix="app-"), prefix + secrets.token_hex(4)
    drained, beside_it = Partition(topic, 0), Partition(topic, 1)
    consumer = Consumer({**pair.east.client_config("admin"), "group.id": group, "enable.auto.commit": False})
    producer = Producer({**pair.east.client_config("admin"), "transactional.id": group, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"output", partition=beside_it.index)
    producer.flush(30)
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 5)], consumer.consumer_group_metadata(), 30)
    consumer.close()
    log = WatchfulLog()
    with ClusterClient(east) as client:
        [found] = list_open_transactions(client, {topic})
        assert (found.partitions, len(found.offsets_partitions)) == (frozenset({beside_it}), 1)
        with pytest.raises(NotFenced, match=f"transaction '{group}' is Ongoing"):
            apply_fence(link, log, client, [topic], [drained], transaction_wait_s=0)
        assert GroupOffsetsClient(client).fetch({group: [drained]})[group].unstable == {drained}
        producer.commit_transaction(30)
        assert apply_fence(link, log, client, [topic], [drained]).ends == {drained: 0}
        offsets = GroupOffsetsClient(client).fetch({group: [drained]})[group]
        assert (offsets.unstable, offsets.committed[drained].offset) == (frozenset(), 5)
        lift_fence(link.mirror, log, client)


def test_a_transactional_id_that_reads_like_all_of_them_is_only_waited_for(
    pair: Pair, link: MirrorLink, east: ClusterConfig
) -> None:
    topic, every = new_topic(pair.east, prefix="app-"), "*"
    producer = Producer({**pair.east.client_config("admin"), "transactional.id": every, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    producer.flush(30)
    log = WatchfulLog()
    with ClusterClient(east) as client:
        with pytest.raises(NotFenced, match=r"transaction '\*' is Ongoing"):
            apply_fence(link, log, client, [topic], [Partition(topic, 0)], transaction_wait_s=0)
        denied = {acl.name for acl in entries(east) if acl.permission == "DENY" and acl.resource == "TRANSACTIONAL_ID"}
        assert every not in denied, "nobody in the whole cluster can write in transactions any more"
        producer.abort_transaction(30)
        assert apply_fence(link, log, client, [topic], [Partition(topic, 0)]).ends == {Partition(topic, 0): 2}
        lift_fence(link.mirror, log, client)


def test_a_denial_of_somebody_else_is_used_and_left_in_place(pair: Pair, link: MirrorLink, east: ClusterConfig) -> None:
    topic = new_topic(pair.east, prefix="app-")
    grant(pair.east, "*", ResourceType.TOPIC, topic, [AclOperation.WRITE], permission=AclPermissionType.DENY)
    wait_until(
        lambda: any(a.name == topic and a.permission == "DENY" for a in entries(east)), timeout_s=30, why="denial shown"
    )
    log, before = WatchfulLog(), entries(east)
    with ClusterClient(east) as client:
        apply_fence(link, log, client, [topic], [Partition(topic, 0)])
        assert log.state.ledger == {}
        lift_fence(link.mirror, log, client)
    assert entries(east) == before


def test_our_own_journal_is_never_fenced(pair: Pair, link: MirrorLink, east: ClusterConfig) -> None:
    topic = new_topic(pair.east, prefix="app-")
    producer = Producer({**pair.east.client_config("admin"), "transactional.id": "mirrorbook.control.another"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    producer.flush(30)
    log = WatchfulLog()
    with ClusterClient(east) as client:
        with pytest.raises(
            NotFenced, match=r"transaction 'mirrorbook.control.another' is Ongoing.*last stable offset 0"
        ):
            apply_fence(link, log, client, [topic], [Partition(topic, 0)], transaction_wait_s=0)
        assert {e.acl.resource for e in log.state.ledger.values()} == {"TOPIC"}
        producer.abort_transaction(30)
        apply_fence(link, log, client, [topic], [Partition(topic, 0)])
        lift_fence(link.mirror, log, client)


def test_a_writer_that_no_denial_stops_is_noticed(pair: Pair, link: MirrorLink, east: ClusterConfig) -> None:
    topic = new_topic(pair.east, prefix="app-")
    log = WatchfulLog()
    with ClusterClient(east) as client:

        def refused() -> str:
            """Why there is no fence; empty when the writer happened to write nothing between two looks."""
            try:
                apply_fence(link, log, client, [topic], [Partition(topic, 0)], transaction_wait_s=0)
            except NotFenced as error:
                return str(error)
            finally:
                lift_fence(link.mirror, log, client)
            return ""

        with writing(pair, topic, "admin") as acked:
            # No ACL stops a super user: stillness is what tells.
            why = wait_until(refused, timeout_s=60, why="the writer is noticed")
    grown = re.search(rf"{topic}-0 grew from (\d+) to (\d+)", why)
    assert grown is not None
    assert int(grown[1]) < int(grown[2]) <= max(acked) + 1
