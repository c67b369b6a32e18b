"""Transactions that are open on a cluster, as its coordinators know them (KIP-664)."""

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
from mirror_core.kafka.coordinators import TRANSACTIONS, Moving, ask_all
from mirror_core.kafka.transient import TRANSIENT
from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import Partition
from mirror_core.wire.group_offsets import TOPIC as GROUP_OFFSETS

OURS: Final = "mirrorbook."
"""Prefix of our own transactional ids: the journal of a mirror towards this cluster must never be fenced by us."""

_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
_DECIDED: Final = ("PrepareCommit", "PrepareAbort")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that has neither been committed nor aborted, or whose markers are not all written."""

    id: str
    state: str
    timeout_s: float
    """After this long its coordinator aborts it."""
    partitions: frozenset[Partition]
    """Partitions that still wait for its end, whether it has written to them or not."""
    producer_id: int
    started_ms: int
    """Wall clock of its coordinator; with the id, it tells this transaction from its predecessor."""
    groups: frozenset[Partition] = frozenset()
    """Where consumer groups' offsets wait for its end, too. Only seen with DESCRIBE on the topic that holds them."""

    @property
    def decided(self) -> bool:
        """It is committed or aborted already; what is missing are its markers, each on its partition."""
        return self.state in _DECIDED


def open_transactions(client: ClusterClient, topics: Collection[str]) -> tuple[OpenTransaction, ...]:
    """Open transactions with a partition of these topics, from every broker; ours are left out.

    A transaction may have joined a partition and written nothing to it yet: its end still appends a marker there, which
    no offset announces. Needs DESCRIBE on the transactional ids; Kafka leaves out those that we may not describe.

    Coordinators that are being elected or moved are waited for, up to the client's time limit.
    """
    found = ask_all(client, TRANSACTIONS, lambda broker: _open_on(client, broker, topics))
    return tuple(sorted(chain.from_iterable(found.values()), key=lambda t: t.id))


def _open_on(client: ClusterClient, broker: int, topics: Collection[str]) -> list[OpenTransaction]:
    for attempt in range(3):
        listed = client.call(ListTransactionsRequest(), ListTransactionsResponse, broker)
        if listed.error_code in TRANSIENT:
            raise Moving(f"cluster {client.name}, broker {broker}: ListTransactions: {listed.error_code.name}")
        if listed.error_code is not ErrorCode.none:
            raise RemoteFault(f"cluster {client.name}, broker {broker}: ListTransactions: {listed.error_code.name}")
        ids = [
            t.transactional_id
            for t in listed.transaction_states
            if t.transaction_state in _OPEN and not t.transactional_id.startswith(OURS)
        ]
        if not ids:
            break
        try:
            return _describe(client, broker, ids, topics)
        except Moving:
            raise
        except RemoteFault:
            # An id taken over since it was listed has no start time (-1), which the codec refuses: list again.
            if attempt == 2:
                raise
    return []


def _describe(
    client: ClusterClient, broker: int, ids: list[TransactionalId], topics: Collection[str]
) -> list[OpenTransaction]:
    request = DescribeTransactionsRequest(transactional_ids=tuple(ids))
    found = []
    for row in client.call(request, DescribeTransactionsResponse, broker).transaction_states:
        if row.error_code is ErrorCode.transactional_id_not_found:  # it ended since it was listed
            continue
        if row.error_code in TRANSIENT:  # it may as well be open: its coordinator has moved since it was listed
            raise Moving(
                f"cluster {client.name}, transactional id {row.transactional_id}: "
                f"DescribeTransactions: {row.error_code.name}"
            )
        if row.error_code is not ErrorCode.none:
            raise RemoteFault(
                f"cluster {client.name}, transactional id {row.transactional_id}: "
                f"DescribeTransactions: {row.error_code.name}"
            )
        partitions = frozenset(
            Partition(str(t.topic), int(i)) for t in row.topics if t.topic in topics for i in t.partitions
        )
        groups = frozenset(
            Partition(GROUP_OFFSETS, int(i)) for t in row.topics if t.topic == GROUP_OFFSETS for i in t.partitions
        )
        if partitions and row.transaction_state in _OPEN:
            found.append(
                OpenTransaction(
                    id=row.transactional_id,
                    state=row.transaction_state,
                    timeout_s=row.transaction_timeout.total_seconds(),
                    partitions=partitions,
                    producer_id=int(row.producer_id),
                    started_ms=int(row.transaction_start_time.timestamp() * 1000),
                    groups=groups,
                )
            )
    return found
