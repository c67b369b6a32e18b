"""A topic that one broker calls gone: what becomes of its partitions depends on what the other brokers say."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import cast

import pytest

from mirror_core.copy.align import Aligner
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.states import State
from mirror_core.kafka.client import ClusterClient, ClusterView, Leader, TopicView
from mirror_core.kafka.faults import ErrorCode
from mirror_core.model.copying import Assigned
from mirror_core.model.errors import Unreachable
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import ClusterName, Offset, Partition

PARTITION = Partition("orders", 0)
OLD, NEW = uuid.uuid4(), uuid.uuid4()


class Brokers:
    """As many as there are answers: the id by which each knows the topic, None if it does not, or no answer."""

    def __init__(self, name: str, *answers: uuid.UUID | Unreachable | None) -> None:
        self.name, self._answers = ClusterName(name), answers
        self.config, self.principal, self.timeout_s = None, None, 10.0
        self.silent: dict[int, float] = {}
        self.doubts = 0

    def ask_another(self) -> None:
        self.doubts += 1

    def brokers(self) -> tuple[int, ...]:
        return tuple(range(len(self._answers)))

    def address(self, broker: int) -> tuple[str, int]:
        return "", broker

    def lend(self, address: tuple[str, int]) -> None:
        return None

    def give_back(self, address: tuple[str, int], connection: object) -> None: ...

    def open(self, address: tuple[str, int]) -> SimpleNamespace:
        found = self._answers[address[1]]
        if isinstance(found, Unreachable):
            raise found
        code = ErrorCode.none if found else ErrorCode.unknown_topic_or_partition
        answer = SimpleNamespace(topics=[SimpleNamespace(topic_id=found, error_code=code)])
        return SimpleNamespace(call=lambda *asked: answer)


def view(topic_id: uuid.UUID | None, leader: Leader | None = None) -> ClusterView:
    topics = {"orders": TopicView("orders", topic_id.hex, False, {0: leader or Leader(1, 1)}, 1, 1)} if topic_id else {}
    return ClusterView("", 1, {}, topics, frozenset())


@pytest.mark.parametrize("said", [None, NEW])
@pytest.mark.parametrize(
    ("others", "state"),
    [
        ((OLD,), State.LOST),
        ((NEW, Unreachable("it is dead"), OLD), State.LOST),
        ((NEW, Unreachable("it is dead"), None), State.FAILED),
        ((), State.FAILED),
    ],
)
def test_a_topic_is_gone_when_no_broker_knows_it_any_more(
    said: uuid.UUID | None, others: tuple[uuid.UUID | Unreachable | None, ...], state: State
) -> None:
    west = Brokers("west", said, *others)
    aligner = Aligner(cast("ClusterClient", Brokers("east", OLD)), cast("ClusterClient", west), 1 << 62, list)
    assigned = Assigned(partition=PARTITION, source_topic_id=OLD.hex, destination_topic_id=OLD.hex)
    replicator = PartitionReplicator(assigned)
    assert not aligner._route(replicator, view(OLD), view(said))
    assert replicator.state is state
    assert replicator.failure is None or replicator.failure.kind is FailureKind.REPLACED


def test_a_partition_that_one_broker_has_not_heard_of_yet_is_waited_for() -> None:
    """A topic that was widened a moment ago. Nothing takes partitions away from a topic of the same id."""
    west = Brokers("west", OLD)
    aligner = Aligner(cast("ClusterClient", Brokers("east", OLD)), cast("ClusterClient", west), 1 << 62, list)
    assigned = Assigned(partition=Partition("orders", 1), source_topic_id=OLD.hex, destination_topic_id=OLD.hex)
    replicator = PartitionReplicator(assigned)
    wide = TopicView("orders", OLD.hex, False, {0: Leader(1, 1), 1: Leader(1, 1)}, 1, 1)
    assert not aligner._route(replicator, ClusterView("", 1, {}, {"orders": wide}, frozenset()), view(OLD))
    assert replicator.state is State.LOST


def test_where_topics_have_no_ids_a_partition_that_is_missing_is_gone() -> None:
    none = uuid.UUID(int=0)
    aligner = Aligner(
        cast("ClusterClient", Brokers("east", none)), cast("ClusterClient", Brokers("west", none)), 1 << 62, list
    )
    assigned = Assigned(partition=Partition("orders", 1), source_topic_id=none.hex, destination_topic_id=none.hex)
    replicator = PartitionReplicator(assigned)
    assert not aligner._route(replicator, view(none), view(none))
    assert replicator.failure
    assert replicator.failure.kind is FailureKind.GONE


@pytest.mark.parametrize(
    ("losses", "source", "destination", "doubts"),
    [
        (0, Leader(1, 7), Leader(1, 7), (0, 0)),
        (2, Leader(1, 7), Leader(1, 7), (1, 1)),
        (2, Leader(2, 8), Leader(2, 8), (0, 0)),
        (2, Leader(1, 8), Leader(2, 8), (0, 0)),
        (0, Leader(2, 6), Leader(1, 7), (1, 0)),
    ],
)
def test_whose_word_has_led_to_nothing_before_is_not_believed_again_and_again(
    losses: int, source: Leader, destination: Leader, doubts: tuple[int, int]
) -> None:
    east, west = Brokers("east", OLD), Brokers("west", OLD)
    aligner = Aligner(cast("ClusterClient", east), cast("ClusterClient", west), 1 << 62, list)
    replicator = PartitionReplicator(
        Assigned(partition=PARTITION, source_topic_id=OLD.hex, destination_topic_id=OLD.hex)
    )
    assert aligner._route(replicator, view(OLD, Leader(1, 7)), view(OLD, Leader(1, 7)))
    replicator.losses = losses
    assert aligner._route(replicator, view(OLD, source), view(OLD, destination))
    assert (east.doubts, west.doubts) == doubts


@pytest.mark.parametrize(("epoch", "known"), [(7, {PARTITION: 10}), (8, {})])
def test_what_was_compared_counts_while_the_same_leader_leads(epoch: int, known: dict[Partition, int]) -> None:
    """Another one may have cut its log, and what stands there then was never compared (KIP-101)."""
    aligner = Aligner(
        cast("ClusterClient", Brokers("east", OLD)), cast("ClusterClient", Brokers("west", OLD)), 1 << 62, list
    )
    assigned = Assigned(
        partition=PARTITION,
        source_topic_id=OLD.hex,
        destination_topic_id=OLD.hex,
        proved_end=Offset(10),
        proved_epoch=7,
    )
    assert aligner._route(PartitionReplicator(assigned), view(OLD), view(OLD, Leader(1, epoch)))
    assert aligner._proved == known
