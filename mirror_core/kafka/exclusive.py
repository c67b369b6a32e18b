"""A writer that nobody else can be at the same time: the owner of a transactional id (KIP-98), for one partition.

Whoever takes an id fences its last owner, whose next request is refused. A write is a whole transaction: begun, filled
and ended by one call. What came of one that was not answered is settled before the next one begins.

librdkafka has such a producer, too. It connects three times, and looks twice a second whether it can go on: to take an
id took it 0.6 s near by, and 3.7 s at a round trip of 160 ms, while applications stood still.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from enum import Enum, auto
from typing import Final

from kio.schema.add_partitions_to_txn.v2.request import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kio.schema.add_partitions_to_txn.v2.response import AddPartitionsToTxnResponse
from kio.schema.end_txn.v2.request import EndTxnRequest
from kio.schema.end_txn.v2.response import EndTxnResponse
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.primitive import i16, i32, i32Timedelta

from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.connection import CLIENT_ID, Connection
from mirror_core.kafka.faults import code_of
from mirror_core.kafka.transaction_brokers import AGAIN, TransactionBrokers
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import MirrorError, RemoteFault
from mirror_core.model.names import Partition
from mirror_core.wire import produce
from mirror_core.wire.batch import SEQUENCE_MASK, TRANSACTIONAL, readdress
from mirror_core.wire.encode import batches_of
from mirror_core.wire.fields import MalformedAnswer
from mirror_core.wire.records import Codec

_APPENDED_S: Final = 10.0
"""So long replicas are waited for."""
_GIVE_UP_S: Final = 5.0
_BATCH_BYTES: Final = 512 << 10
"""Of plain records: half of what brokers take as one batch by default."""
_AT_ONCE: Final = 5
"""So many batches of a producer a broker knows again (KIP-98)."""

Row = tuple[str, bytes | None]


class _Phase(Enum):
    IDLE = auto()
    OPEN = auto()
    """A transaction may have been begun; its end was not asked for."""
    ENDING = auto()
    """Its commit was asked for."""


class ExclusiveProducer(TransactionBrokers):
    """Not for several threads at once. `where`: what errors begin with. Connections are closed when it is forgotten."""

    def __init__(
        self, cluster: ClusterConfig, transactional_id: str, partition: Partition, *, transaction_ms: int, where: str
    ) -> None:
        super().__init__(cluster, transactional_id, partition, where)
        self._transaction_ms = transaction_ms
        self._producer = (-1, -1)
        """Id and epoch."""
        self._sequence = 0
        self._phase = _Phase.IDLE

    def take(self, timeout_s: float) -> None:
        """Have the id from now on. What its last owner has left open is aborted, and he is fenced."""
        self._producer = (-1, -1)
        self._renew("take over", time.monotonic() + timeout_s)

    def write(self, rows: Iterable[Row], timeout_s: float) -> None:
        """Keys and values, all or none. Fenced; or a RemoteFault, and then `settle` comes before the next write."""
        if self._phase is not _Phase.IDLE:
            raise RuntimeError("the transaction before was not settled")
        if self._astray:  # what is late, and reaches brokers later than this does, is refused from here on (KIP-360)
            self._phase = _Phase.OPEN
            self.settle(timeout_s)
        # A reader undoes many small ones in a thirtieth of what zstd would cost him.
        batches = list(batches_of(rows, _BATCH_BYTES, Codec.GZIP, now_ms(), TRANSACTIONAL))
        deadline = time.monotonic() + timeout_s
        self._phase = _Phase.OPEN
        try:
            self._begin(deadline)
            self._append(batches, min(deadline, time.monotonic() + _APPENDED_S))
        except RemoteFault:
            self._abort(min(timeout_s, _GIVE_UP_S))  # others' records wait behind an open one
            raise
        self._phase = _Phase.ENDING
        self._end(deadline, committed=True)
        self._phase = _Phase.IDLE

    def settle(self, timeout_s: float) -> bool:
        """End what a write has left open, which failed or was interrupted: True when nothing of it is in the log.

        False: its commit was asked for, or there was nothing to be ended; the log tells what came of it.
        """
        deadline = time.monotonic() + timeout_s
        if self._phase is _Phase.IDLE:
            return False
        if self._phase is _Phase.ENDING:
            self._end(deadline, committed=True)
            self._phase = _Phase.IDLE
            return False
        # Each time the abort comes first: it asks whose the id is, and a new epoch asks nobody while one is open.
        self._end(deadline, committed=False)
        self._renew("write", deadline)
        return True

    def _abort(self, timeout_s: float) -> None:
        """The first reason counts, unless this one says that the id was taken."""
        try:
            self.settle(timeout_s)
        except MirrorError:
            return

    # -- requests ------------------------------------------------------------------------------------------------

    def _renew(self, action: str, deadline: float) -> None:
        """A new epoch: of this owner (KIP-360: only while it is still he), or of a new one, who has none yet."""
        known, epoch = self._producer
        request = InitProducerIdRequest(
            transactional_id=TransactionalId(self._id),
            transaction_timeout=i32Timedelta.parse(timedelta(milliseconds=self._transaction_ms)),
            producer_id=ProducerId(known),
            producer_epoch=i16(epoch),
        )
        found = self._coordinated(action, request, InitProducerIdResponse, lambda answer: answer.error_code, deadline)
        self._producer, self._sequence = (int(found.producer_id), int(found.producer_epoch)), 0
        self._phase, self._astray = _Phase.IDLE, False

    def _begin(self, deadline: float) -> None:
        known, epoch = self._producer
        topic = AddPartitionsToTxnTopic(name=TopicName(self._partition.topic), partitions=(i32(self._partition.index),))
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=TransactionalId(self._id),
            v3_and_below_producer_id=ProducerId(known),
            v3_and_below_producer_epoch=i16(epoch),
            v3_and_below_topics=(topic,),
        )
        self._coordinated("write", request, AddPartitionsToTxnResponse, _added, deadline)

    def _end(self, deadline: float, *, committed: bool) -> None:
        known, epoch = self._producer
        request = EndTxnRequest(
            transactional_id=TransactionalId(self._id),
            producer_id=ProducerId(known),
            producer_epoch=i16(epoch),
            committed=committed,
        )

        def code_in(answer: EndTxnResponse) -> ErrorCode:
            nothing_open = answer.error_code is ErrorCode.invalid_txn_state and not committed
            return ErrorCode.none if nothing_open else answer.error_code

        self._coordinated("write", request, EndTxnResponse, code_in, deadline)

    def _append(self, made: Sequence[tuple[bytearray, int]], deadline: float) -> None:
        """In the log, behind the transaction's beginning, on all replicas in sync."""
        known, epoch = self._producer
        batches = [memoryview(batch) for batch, _ in made]
        for batch, (_, count) in zip(batches, made, strict=True):
            readdress(batch, known, epoch, self._sequence)
            self._sequence = self._sequence + count & SEQUENCE_MASK
        while batches:
            together = batches[:_AT_ONCE]

            def attempt(limit_s: float, sent: list[memoryview] = together) -> tuple[None, ErrorCode]:
                broker = self._led_by()
                code = ErrorCode.leader_not_available
                if broker >= 0:
                    code = self._exchanged(broker, limit_s, lambda connection: self._sent(connection, sent, limit_s))
                if code in AGAIN:
                    self._leader = -1
                return None, code

            self._insisting("write", attempt, deadline)
            del batches[:_AT_ONCE]

    def _sent(self, connection: Connection, batches: list[memoryview], limit_s: float) -> ErrorCode:
        """What went wrong first, if anything; batches that brokers have are taken out."""
        due = [connection.next_id() for _ in batches]
        for batch, correlation in zip(batches, due, strict=True):
            row = (self._partition.topic, self._partition.index, batch)
            timeout_ms = int(limit_s * 1000)
            connection.send(produce.encode([row], correlation, CLIENT_ID, timeout_ms=timeout_ms, by=self._id))
        first = ErrorCode.none
        for correlation in due:
            frame = memoryview(connection.receive())
            try:
                (answer,) = produce.decode(frame[4:])
            except (MalformedAnswer, ValueError) as error:
                raise RemoteFault(f"{connection.where}: Produce answer makes no sense: {error}") from None
            if int.from_bytes(frame[:4], signed=True) != correlation:
                raise RemoteFault(f"{connection.where}: Produce answer to another request")
            code = code_of(answer.error)
            if code is ErrorCode.duplicate_sequence_number:  # its first answer was lost
                code = ErrorCode.none
            if first is ErrorCode.none:
                first = code
                if code is ErrorCode.none:
                    del batches[0]
        return first


def _added(answer: AddPartitionsToTxnResponse) -> ErrorCode:
    (topic,) = answer.results_by_topic_v3_and_below
    (partition,) = topic.results_by_partition
    return partition.partition_error_code
