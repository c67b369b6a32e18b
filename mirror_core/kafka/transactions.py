"""Open transactions according to their coordinators (KIP-664)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain
from typing import Final

from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.list_transactions.v0.request import ListTransactionsRequest
from kio.schema.list_transactions.v0.response import ListTransactionsResponse
from kio.schema.types import TransactionalId

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.coordinators import TRANSACTION_STATE_TOPIC, CoordinatorMoving, call_coordinators
from mirror_core.kafka.transient import RETRIABLE_CODES
from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import Partition
from mirror_core.wire.group_offsets import CONSUMER_OFFSETS_TOPIC as GROUP_OFFSETS

MIRRORBOOK_ID_PREFIX: Final = "mirrorbook."
"""Our own: the journal on this cluster must never be fenced by us."""

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
    """Those that touch these topics, without ours.

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
        ids = [
            t.transactional_id
            for t in listed.transaction_states
            if t.transaction_state in _OPEN_STATES and not t.transactional_id.startswith(MIRRORBOOK_ID_PREFIX)
        ]
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
