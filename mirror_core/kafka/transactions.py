"""Open transactions by their coordinators (KIP-664), and the end of stuck ones.

A partition refuses a coordinator's marker after a later epoch, which holders of CLUSTER_ACTION can send; then nothing
behind is readable. A marker with the highest epochs ends the transaction, and exhausts its id.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.list_transactions.v0.request import ListTransactionsRequest
from kio.schema.list_transactions.v0.response import ListTransactionsResponse
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.schema.write_txn_markers.v1.request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kio.schema.write_txn_markers.v1.response import WriteTxnMarkersResponse
from kio.static.primitive import i16, i32

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.error_mapping import RETRIABLE_CODES, make_fault
from mirror_core.kafka.fan_out import TRANSACTION_STATE_TOPIC, CoordinatorMoving, call_coordinators
from mirror_core.kafka.log_offsets import PartitionProducer, describe_producers
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.logs import get_logger
from mirror_core.model.names import Partition
from mirror_core.wire.group_records import CONSUMER_OFFSETS_TOPIC as GROUP_OFFSETS

_log = get_logger(__name__)
_OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
_DECIDED_STATES: Final = ("PrepareCommit", "PrepareAbort")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """Or with markers missing."""

    id: str
    state: str
    timeout_s: float
    """The coordinator aborts it after this time."""
    partitions: frozenset[Partition]
    """Written to or not."""
    producer_id: int
    started_ms: int
    """The coordinator's clock; distinguishes successive transactions."""
    offsets_partitions: frozenset[Partition] = frozenset()
    """In __consumer_offsets; needs DESCRIBE on it."""

    @property
    def is_decided(self) -> bool:
        """Only markers are missing."""
        return self.state in _DECIDED_STATES


def list_open_transactions(client: ClusterClient, topics: Collection[str]) -> tuple[OpenTransaction, ...]:
    """Those that touch these topics. Ours write no topic of a mirror.

    One that joined a partition without writing still appends a marker, at an offset that nothing announces. Needs
    DESCRIBE on the ids; others are hidden. Waits for moving coordinators.
    """
    by_broker = call_coordinators(client, TRANSACTION_STATE_TOPIC, lambda broker: _list_open_on(client, broker, topics))
    return tuple(sorted(chain.from_iterable(by_broker.values()), key=lambda transaction: transaction.id))


def _list_open_on(client: ClusterClient, broker: int, topics: Collection[str]) -> list[OpenTransaction]:
    for attempt in range(3):
        listed = client.call(ListTransactionsRequest(), ListTransactionsResponse, broker)
        if listed.error_code in RETRIABLE_CODES:
            raise CoordinatorMoving(
                f"cluster {client.name}, broker {broker}: ListTransactions: {listed.error_code.name}"
            )
        if listed.error_code is not ErrorCode.none:
            raise RemoteFault(f"cluster {client.name}, broker {broker}: ListTransactions: {listed.error_code.name}")
        ids = [t.transactional_id for t in listed.transaction_states if t.transaction_state in _OPEN_STATES]
        if not ids:
            break
        try:
            return _describe(client, broker, ids, topics)
        except CoordinatorMoving:
            raise
        except RemoteFault:
            # An id taken over meanwhile has no start time (-1), which kio refuses: list again.
            if attempt == 2:
                raise
    return []


def _describe(
    client: ClusterClient, broker: int, ids: list[TransactionalId], topics: Collection[str]
) -> list[OpenTransaction]:
    request = DescribeTransactionsRequest(transactional_ids=tuple(ids))
    transactions = []
    for row in client.call(request, DescribeTransactionsResponse, broker).transaction_states:
        if row.error_code is ErrorCode.transactional_id_not_found:  # ended meanwhile
            continue
        if row.error_code in RETRIABLE_CODES:  # may be open: its coordinator moved
            raise CoordinatorMoving(
                f"cluster {client.name}, transactional id {row.transactional_id}: "
                f"DescribeTransactions: {row.error_code.name}"
            )
        if row.error_code is not ErrorCode.none:
            raise RemoteFault(
                f"cluster {client.name}, transactional id {row.transactional_id}: "
                f"DescribeTransactions: {row.error_code.name}"
            )
        partitions = frozenset(
            Partition(str(topic.topic), int(i))
            for topic in row.topics
            if topic.topic in topics
            for i in topic.partitions
        )
        groups = frozenset(
            Partition(GROUP_OFFSETS, int(i))
            for topic in row.topics
            if topic.topic == GROUP_OFFSETS
            for i in topic.partitions
        )
        if partitions and row.transaction_state in _OPEN_STATES:
            transactions.append(
                OpenTransaction(
                    id=row.transactional_id,
                    state=row.transaction_state,
                    timeout_s=row.transaction_timeout.total_seconds(),
                    partitions=partitions,
                    producer_id=int(row.producer_id),
                    started_ms=int(row.transaction_start_time.timestamp() * 1000),
                    offsets_partitions=groups,
                )
            )
    return transactions


_LAST_PRODUCER_EPOCH: Final = 2**15 - 1
_LAST_COORDINATOR_EPOCH: Final = 2**31 - 1
_IS_COMMIT_BY_STATE: Final[Mapping[str, bool]] = {
    "PrepareCommit": True,
    "PrepareAbort": False,
    "PrepareEpochFence": False,
}
"""Decided, not finished."""
_IS_COMMIT_BY_END_STATE: Final[Mapping[str, bool]] = {"CompleteCommit": True, "CompleteAbort": False}
"""The coordinator has written all markers."""


@dataclass(frozen=True, slots=True)
class DecidedTransaction:
    producer_id: int
    committed: bool
    started_ms: int
    """The coordinator's clock."""


def find_decided_transaction(
    client: ClusterClient, transactional_id: str, coordinator: int
) -> DecidedTransaction | None:
    request = DescribeTransactionsRequest(transactional_ids=(TransactionalId(transactional_id),))
    (row,) = client.call(request, DescribeTransactionsResponse, coordinator).transaction_states
    if row.error_code is not ErrorCode.none or row.transaction_state not in _IS_COMMIT_BY_STATE:
        return None
    started_ms = int(row.transaction_start_time.timestamp() * 1000)
    return DecidedTransaction(int(row.producer_id), _IS_COMMIT_BY_STATE[row.transaction_state], started_ms)


def list_decided_transactions(client: ClusterClient, partition: Partition) -> dict[str, DecidedTransaction]:
    open_ids = _list_open_producers(client, partition)
    transactions = dict[str, DecidedTransaction]()
    for broker in client.brokers() if open_ids else ():
        listed = client.call(ListTransactionsRequest(), ListTransactionsResponse, broker)
        for row in listed.transaction_states:
            if int(row.producer_id) in open_ids and row.transaction_state in _IS_COMMIT_BY_STATE:
                decided = find_decided_transaction(client, row.transactional_id, broker)
                if decided is not None:
                    transactions[str(row.transactional_id)] = decided
    return transactions


def end_hanging_transactions(client: ClusterClient, partition: Partition) -> None:
    """Writes the markers that the partition lost, in an unclean leader election for example.

    Ends a transaction only if the log has it open before and after its coordinator says that it ended. Raises
    CoordinatorMoving for one that no coordinator knows: a coordinator may be loading. Needs ALTER or CLUSTER_ACTION on
    the cluster.
    """
    open_before = _list_open_producers(client, partition)
    if not open_before:
        return
    by_broker = call_coordinators(
        client, TRANSACTION_STATE_TOPIC, lambda broker: _list_transactions_by_producer(client, broker, open_before)
    )
    known = {producer_id: row for rows in by_broker.values() for producer_id, row in rows.items()}
    ended = {producer_id: row for producer_id, row in known.items() if row.state in _IS_COMMIT_BY_END_STATE}
    for producer_id, state in (_list_open_producers(client, partition) if ended else {}).items():
        if producer_id in ended and state.open_transaction_start == open_before[producer_id].open_transaction_start:
            committed = _IS_COMMIT_BY_END_STATE[ended[producer_id].state]
            _write_marker(
                client, partition, producer_id, state.epoch, max(0, state.coordinator_epoch), committed=committed
            )
            _log.warning(
                "a transaction of %s, open since offset %d, had lost its marker; it is %s now, as the coordinator says",
                ended[producer_id].transactional_id,
                state.open_transaction_start,
                "committed" if committed else "aborted",
                cluster=client.name,
                partition=partition,
            )
    if unknown := open_before.keys() - known.keys():  # a broker that has just started lists none, and no error
        raise CoordinatorMoving(f"cluster {client.name}: no coordinator tells of producer id {min(unknown)} yet")


class _ListedTransaction(NamedTuple):
    transactional_id: str
    state: str


def _list_transactions_by_producer(
    client: ClusterClient, broker: int, producer_ids: Collection[int]
) -> dict[int, _ListedTransaction]:
    listed = client.call(ListTransactionsRequest(), ListTransactionsResponse, broker)
    if listed.error_code in RETRIABLE_CODES:
        raise CoordinatorMoving(f"cluster {client.name}, broker {broker}: ListTransactions: {listed.error_code.name}")
    return {
        int(row.producer_id): _ListedTransaction(str(row.transactional_id), row.transaction_state)
        for row in listed.transaction_states
        if int(row.producer_id) in producer_ids
    }


def _list_open_producers(client: ClusterClient, partition: Partition) -> dict[int, PartitionProducer]:
    states = describe_producers(client, [partition])[partition]
    return {state.producer_id: state for state in states if state.open_transaction_start >= 0}


def write_final_marker(client: ClusterClient, partition: Partition, producer_id: int, *, committed: bool) -> None:
    """And bars the producer from this partition. Needs ALTER or CLUSTER_ACTION on the cluster."""
    _write_marker(client, partition, producer_id, _LAST_PRODUCER_EPOCH, _LAST_COORDINATOR_EPOCH, committed=committed)


def _write_marker(
    client: ClusterClient,
    partition: Partition,
    producer_id: int,
    epoch: int,
    coordinator_epoch: int,
    *,
    committed: bool,
) -> None:
    topic = WritableTxnMarkerTopic(name=TopicName(partition.topic), partition_indexes=(i32(partition.index),))
    marker = WritableTxnMarker(
        producer_id=ProducerId(producer_id),
        producer_epoch=i16(epoch),
        transaction_result=committed,
        topics=(topic,),
        coordinator_epoch=i32(coordinator_epoch),
    )
    for leader in client.leaders([partition]):
        if leader < 0:
            raise Unreachable(f"cluster {client.name}: no leader for {partition}")
        response = client.call(WriteTxnMarkersRequest(markers=(marker,)), WriteTxnMarkersResponse, leader)
        for row in (
            partition_result
            for marker_result in response.markers
            for topic_result in marker_result.topics
            for partition_result in topic_result.partitions
        ):
            if row.error_code is not ErrorCode.none:
                raise make_fault(client, f"{partition}", "WriteTxnMarkers (needs ALTER on the cluster)", row.error_code)
