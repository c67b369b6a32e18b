"""A thief with the data principal's CLUSTER_ACTION sends transaction markers to the state topic.

Whatever it sends: what a conductor was told is written stands, and the next one takes over by itself.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.types import ProducerId, TopicName
from kio.schema.write_txn_markers.v1.request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kio.schema.write_txn_markers.v1.response import WriteTxnMarkersResponse
from kio.static.primitive import i16, i32

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Principal, load_config
from mirror_core.kafka.log_offsets import describe_producers
from mirror_core.kafka.transactional_producer import TransactionalProducer
from mirror_core.mirrors.mirror_creation import ensure_state_topic
from mirror_core.model.errors import LostOwnership, RemoteFault
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName, MirrorName, Partition
from mirror_core.state.state_records import STATE_TOPIC
from mirror_core.state.state_topic import read_complete_state, read_state
from mirror_core.state.writer import StateWriter, make_control_id
from tests.support.cluster_admin import undecided
from tests.support.kafka_clients import Pair

pytestmark = pytest.mark.cluster

STATE: Final = Partition(STATE_TOPIC, 0)
LAST_COORDINATOR_EPOCH: Final = 2**31 - 1
LAST_PRODUCER_EPOCH: Final = 2**15 - 1


class Thief:
    """Holds the data principal's login, and nothing else."""

    def __init__(self, cluster: ClusterConfig) -> None:
        self._client = ClusterClient(cluster, Principal.DATA)

    def send_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int | None = None, *, commit: bool = False
    ) -> None:
        """By default with the coordinator epoch that the broker has seen last: equal ones are taken."""
        if coordinator_epoch is None:
            states = describe_producers(self._client, [STATE])[STATE]
            seen = (state.coordinator_epoch for state in states if state.producer_id == producer_id)
            coordinator_epoch = max(0, *seen)
        topic = WritableTxnMarkerTopic(name=TopicName(STATE_TOPIC), partition_indexes=(i32(0),))
        marker = WritableTxnMarker(
            producer_id=ProducerId(producer_id),
            producer_epoch=i16(epoch),
            transaction_result=commit,
            topics=(topic,),
            coordinator_epoch=i32(coordinator_epoch),
        )
        for leader in self._client.leaders([STATE]):
            answer = self._client.call(WriteTxnMarkersRequest(markers=(marker,)), WriteTxnMarkersResponse, leader)
            codes = {p.error_code for m in answer.markers for t in m.topics for p in t.partitions}
            assert codes == {ErrorCode.none}

    def poison(self, writer: StateWriter, coordinator_epoch: int = LAST_COORDINATOR_EPOCH) -> None:
        """No marker of the coordinator is taken any more for what the writer has written under."""
        producer_id, epoch = writer._producer._producer_id_epoch
        self.send_marker(producer_id, epoch, coordinator_epoch)

    def close(self) -> None:
        self._client.close()


class Desk:
    """A mirror's state, by conductors who take over from one another."""

    def __init__(self, cluster: ClusterConfig, thief: Thief) -> None:
        self.cluster, self.thief = cluster, thief
        self.name = MirrorName(f"m-{secrets.token_hex(4)}")

    def conductor(self) -> StateWriter:
        return StateWriter(self.cluster, make_control_id(self.name)).__enter__()

    def record(self, created_ms: int) -> Mirror:
        return Mirror(
            name=self.name,
            source=ClusterName("east"),
            destination=ClusterName("west"),
            source_id="e",
            destination_id="w",
            topics=("never-there",),
            producer_id=1 << 62,
            desired=DesiredState.STOPPED,
            created_ms=created_ms,
        )

    @property
    def created_ms(self) -> int | None:
        """What a reader who is about to act is told."""
        found = read_complete_state(self.cluster).mirrors.get(self.name)
        return found.created_ms if found else None


@pytest.fixture
def desk(pair: Pair) -> Any:
    cluster = load_config(pair.config_path).cluster("west")
    with ClusterClient(cluster) as client:
        ensure_state_topic(client)
    thief = Thief(cluster)
    made = Desk(cluster, thief)
    yield made
    thief.close()


def forge_before_commit(
    monkeypatch: pytest.MonkeyPatch, forge: Callable[[TransactionalProducer], None], times: int
) -> None:
    """The thief wins the race against the end of a transaction, so many times."""
    end, left = TransactionalProducer._end_transaction, [times]

    def forged_first(self: TransactionalProducer, deadline: float, *, committed: bool) -> None:
        if committed and left[0]:
            left[0] -= 1
            forge(self)
        end(self, deadline, committed=committed)

    monkeypatch.setattr(TransactionalProducer, "_end_transaction", forged_first)


def test_a_forged_abort_before_the_commit_loses_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    conductor = desk.conductor()
    conductor.put(desk.record(1))
    forge_before_commit(monkeypatch, lambda p: desk.thief.send_marker(*p._producer_id_epoch), times=2)
    conductor.put(desk.record(2))
    assert desk.created_ms == 2
    conductor.put(desk.record(3))
    assert desk.created_ms == 3


def test_a_conductor_whose_transactions_are_always_aborted_is_not_told_that_it_has_written(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    conductor = desk.conductor()
    conductor.put(desk.record(1))
    with monkeypatch.context() as patched:
        forge_before_commit(patched, lambda p: desk.thief.send_marker(*p._producer_id_epoch), times=100)
        with pytest.raises(RemoteFault, match="somebody else aborted 3 transactions"):
            conductor.put(desk.record(2))
    assert desk.created_ms == 1
    conductor.put(desk.record(3))
    assert desk.created_ms == 3


def test_a_forged_commit_before_an_abort_is_seen_by_the_next_write(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    conductor, append = desk.conductor(), TransactionalProducer._append
    conductor.put(desk.record(1))

    def fails_behind_a_forged_commit(self: TransactionalProducer, made: Sequence[Any], deadline: float) -> Any:
        append(self, made, deadline)
        desk.thief.send_marker(*self._producer_id_epoch, commit=True)
        raise RemoteFault("the answer made no sense")

    with monkeypatch.context() as patched:
        patched.setattr(TransactionalProducer, "_append", fails_behind_a_forged_commit)
        with pytest.raises(RemoteFault, match="made no sense"):
            conductor.put(desk.record(2))
    conductor.put()
    assert desk.created_ms == conductor.state.mirrors[desk.name].created_ms == 2


def test_a_coordinator_that_markers_shut_out_is_replaced(desk: Desk) -> None:
    """The issue's attack: the last coordinator epoch, so that no marker of the coordinator is taken any more."""
    conductor = desk.conductor()
    conductor.put(desk.record(1))
    desk.thief.poison(conductor)
    conductor.put(desk.record(2))
    assert desk.created_ms == 2, "told that it is written, and readers see it"
    conductor.put(desk.record(3))
    assert desk.created_ms == 3
    following = desk.conductor()
    assert following.state.mirrors[desk.name].created_ms == 3
    following.put(desk.record(4))
    assert desk.created_ms == 4
    with pytest.raises(LostOwnership):
        conductor.put(desk.record(5))
    assert desk.created_ms == 4


def test_the_next_conductor_takes_over_where_the_last_one_died_shut_out(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died behind its commit, of which no marker was taken: readers stood before it."""
    conductor = desk.conductor()
    conductor.put(desk.record(1))
    desk.thief.poison(conductor)

    def killed(*arguments: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TransactionalProducer, "_is_committed", killed)
        with pytest.raises(KeyboardInterrupt):
            conductor.put(desk.record(2))
    with ClusterClient(desk.cluster) as client:
        assert undecided(client, [STATE]) == [STATE]
    assert desk.created_ms == 2, "the coordinator has said that it is committed"
    following = desk.conductor()
    following.put(desk.record(3))
    assert desk.created_ms == 3
    with pytest.raises(LostOwnership):
        conductor.put(desk.record(4))
    assert desk.created_ms == 3


def test_an_epoch_that_is_used_up_by_a_marker_is_not_taken_for_another_owner(desk: Desk) -> None:
    conductor = desk.conductor()
    conductor.put(desk.record(1))
    producer_id, _ = conductor._producer._producer_id_epoch
    desk.thief.send_marker(producer_id, LAST_PRODUCER_EPOCH)
    conductor.put(desk.record(2))
    assert desk.created_ms == 2
    following = desk.conductor()
    following.put(desk.record(3))
    assert desk.created_ms == 3
    with pytest.raises(LostOwnership):
        conductor.put(desk.record(4))


@pytest.mark.slow
def test_who_was_shut_out_does_not_take_the_mirror_back_from_the_next_conductor(desk: Desk) -> None:
    first = desk.conductor()
    first.put(desk.record(1))
    desk.thief.poison(first)
    second = desk.conductor()
    desk.thief.poison(second)
    second.put(desk.record(2))
    second.put(desk.record(3))
    with pytest.raises(LostOwnership):
        first.put(desk.record(4))
    second.put(desk.record(5))
    assert desk.created_ms == 5


@pytest.mark.slow
def test_a_thief_who_does_it_again_and_again_ends_nothing_for_good(desk: Desk) -> None:
    number = 0
    for _ in range(3):
        conductor = desk.conductor()
        conductor.put(desk.record(number := number + 1))
        desk.thief.poison(conductor)
        conductor.put(desk.record(number := number + 1))
        assert desk.created_ms == number
    assert read_state(desk.cluster).id_numbers[desk.name]["control"].number >= 2
