"""Ends decided transactions whose markers a partition refuses.

It refuses a coordinator's marker after seeing a later coordinator or producer epoch, which holders of CLUSTER_ACTION
can send. Then the coordinator retries for ever, and nothing behind is readable. A marker with the highest epochs ends
the transaction as decided, and bars the producer from the partition: its id is exhausted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

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
from mirror_core.kafka.faults import make_fault
from mirror_core.kafka.offsets import describe_producers
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import Partition

_LAST_PRODUCER_EPOCH: Final = 2**15 - 1
_LAST_COORDINATOR_EPOCH: Final = 2**31 - 1
_IS_COMMIT_BY_STATE: Final[Mapping[str, bool]] = {
    "PrepareCommit": True,
    "PrepareAbort": False,
    "PrepareEpochFence": False,
}
"""Decided, not finished."""


@dataclass(frozen=True, slots=True)
class DecidedTransaction:
    producer_id: int
    committed: bool
    started_ms: int
    """The coordinator's clock."""


def find_decided_transaction(
    client: ClusterClient, transactional_id: str, coordinator: int
) -> DecidedTransaction | None:
    """Needs DESCRIBE on the transactional id."""
    request = DescribeTransactionsRequest(transactional_ids=(TransactionalId(transactional_id),))
    (row,) = client.call(request, DescribeTransactionsResponse, coordinator).transaction_states
    if row.error_code is not ErrorCode.none or row.transaction_state not in _IS_COMMIT_BY_STATE:
        return None
    started_ms = int(row.transaction_start_time.timestamp() * 1000)
    return DecidedTransaction(int(row.producer_id), _IS_COMMIT_BY_STATE[row.transaction_state], started_ms)


def list_decided_transactions(client: ClusterClient, partition: Partition) -> dict[str, DecidedTransaction]:
    """By transactional id. Needs READ on the topic and DESCRIBE on the transactional ids."""
    states = describe_producers(client, [partition])[partition]
    open_ids = {state.producer_id for state in states if state.open_transaction_start >= 0}
    transactions = dict[str, DecidedTransaction]()
    for broker in client.brokers() if open_ids else ():
        listed = client.call(ListTransactionsRequest(), ListTransactionsResponse, broker)
        for row in listed.transaction_states:
            if int(row.producer_id) in open_ids and row.transaction_state in _IS_COMMIT_BY_STATE:
                decided = find_decided_transaction(client, row.transactional_id, broker)
                if decided is not None:
                    transactions[str(row.transactional_id)] = decided
    return transactions


def write_final_marker(client: ClusterClient, partition: Partition, producer_id: int, *, committed: bool) -> None:
    """And bars the producer from this partition. Needs ALTER or CLUSTER_ACTION on the cluster."""
    topic = WritableTxnMarkerTopic(name=TopicName(partition.topic), partition_indexes=(i32(partition.index),))
    marker = WritableTxnMarker(
        producer_id=ProducerId(producer_id),
        producer_epoch=i16(_LAST_PRODUCER_EPOCH),
        transaction_result=committed,
        topics=(topic,),
        coordinator_epoch=i32(_LAST_COORDINATOR_EPOCH),
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
