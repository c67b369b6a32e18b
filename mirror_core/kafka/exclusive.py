"""Exclusive transactional writes to one partition: the owner of a transactional id (KIP-98).

Taking an id fences its owner. One call begins, fills and ends a transaction; an unanswered one is finished before the
next.

A write succeeds when its COMMIT marker follows it in the log: the coordinator's response is not enough, since holders
of CLUSTER_ACTION can write markers. Where foreign markers block an id, the next numbered one takes over.

librdkafka needed 3.7 s to take an id at 160 ms round trip, while applications stood still.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
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
from mirror_core.kafka.fetching import FetchLink
from mirror_core.kafka.transaction_brokers import AGAIN, Fenced, TransactionBrokers
from mirror_core.kafka.unfinished_transactions import DecidedTransaction, decided_transaction, write_last_marker
from mirror_core.model.errors import MirrorError, RemoteFault, Unreachable
from mirror_core.model.limits import LIMITS
from mirror_core.model.names import Partition
from mirror_core.wire import produce
from mirror_core.wire.batch import CONTROL, NO_TIMESTAMP, SEQUENCE_MASK, TRANSACTIONAL, readdress
from mirror_core.wire.batch import batches as batches_in
from mirror_core.wire.encode import batches_of
from mirror_core.wire.fetch import Isolation, Wanted
from mirror_core.wire.fields import MalformedAnswer
from mirror_core.wire.records import Codec, is_abort_marker

_APPENDED_S: Final = 10.0
_GIVE_UP_S: Final = 5.0
_BATCH_BYTES: Final = 512 << 10
"""Uncompressed: half of the default max.message.bytes."""
_FETCH_BYTES: Final = 1 << 20
_MARKER_WAIT_MS: Final = 100
_AT_ONCE: Final = 5
"""As many as brokers recognize when repeated (KIP-98)."""

Row = tuple[str, bytes | None]


class ForeignAbort(Exception):
    """Aborted by another client: nothing counts, and it may be written again."""


class IdUsedUp(Exception):
    """Blocked by foreign markers: nothing was written; the next id may be taken."""


class _Stuck(Exception):
    """The coordinator cannot finish the previous transaction."""

    def __init__(self, transaction: DecidedTransaction) -> None:
        self.transaction = transaction


class _Phase(Enum):
    IDLE = auto()
    OPEN = auto()
    """Perhaps begun."""
    ENDING = auto()
    """Commit requested."""


class ExclusiveProducer(TransactionBrokers):
    """Not thread-safe. `where` begins error messages."""

    def __init__(
        self, cluster: ClusterConfig, transactional_id: str, partition: Partition, *, transaction_ms: int, where: str
    ) -> None:
        super().__init__(cluster, transactional_id, partition, where)
        self._first_id = transactional_id
        self.number = 0
        """0: `transactional_id` itself; n: `transactional_id~n`."""
        self.used_up = False
        self._transaction_ms = transaction_ms
        self._producer = (-1, -1)
        """Id and epoch."""
        self._sequence = 0
        self._phase = _Phase.IDLE

    def take(self, timeout_s: float, number: int = 0) -> None:
        """This number, or the next usable. Aborts the owner's open transaction and fences the owner."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.number, self.used_up = number, False
            self._id = f"{self._first_id}~{number}" if number else self._first_id
            self._coordinator, self._producer = -1, (-1, -1)
            try:
                self._renew("take over", deadline)
                return
            except _Stuck as stuck:
                self._end_in_place_of_coordinator(stuck.transaction)
                number += 1

    def write(self, rows: Iterable[Row], timeout_s: float) -> None:
        """All or none. Raises ProducerFenced, ForeignAbort or TransactionalIdExhausted.

        After a RemoteFault call `finish_transaction` before the next write.
        """
        if self._phase is not _Phase.IDLE:
            raise RuntimeError("the transaction before was not settled")
        if self._astray:  # fences late copies of earlier requests (KIP-360)
            self._phase = _Phase.OPEN
            self.settle(timeout_s)
        if self.used_up:
            raise IdUsedUp
        # gzip: many small batches decompress 30 times faster than zstd. No timestamp: brokers refuse
        # those an hour ahead (KIP-937), and this machine may be the only one left.
        batches = list(batches_of(rows, _BATCH_BYTES, Codec.GZIP, NO_TIMESTAMP, TRANSACTIONAL))
        deadline = time.monotonic() + timeout_s
        self._phase = _Phase.OPEN
        try:
            self._begin(deadline)
            appended = self._append_as_owner(batches, min(deadline, time.monotonic() + _APPENDED_S))
        except RemoteFault:
            self._abort(min(timeout_s, _GIVE_UP_S))  # an open transaction hides others' records
            raise
        self._phase = _Phase.ENDING
        self._end(deadline, committed=True)
        committed = self._is_committed(appended, deadline) if appended else True
        self._phase = _Phase.IDLE
        if not committed:
            raise ForeignAbort

    def settle(self, timeout_s: float) -> bool:
        """After a failed write. True: nothing of it is in the log.

        False: commit was requested, or nothing was open; read the log for the outcome.
        """
        deadline = time.monotonic() + timeout_s
        if self._phase is _Phase.IDLE:
            return False
        ending = self._phase is _Phase.ENDING
        try:
            if ending:
                self._end(deadline, committed=True)
            else:  # abort first: it checks ownership, which a new epoch does not while one is open
                self._end(deadline, committed=False)
                self._renew("write", deadline)
        except _Stuck as stuck:
            self._end_in_place_of_coordinator(stuck.transaction)
        self._phase = _Phase.IDLE
        return not ending

    def _abort(self, timeout_s: float) -> None:
        try:
            self.settle(timeout_s)
        except MirrorError:
            return

    # -- requests ------------------------------------------------------------------------------------------------

    def _renew(self, action: str, deadline: float) -> None:
        """KIP-360: for this owner only while it still owns the id."""
        known, epoch = self._producer
        request = InitProducerIdRequest(
            transactional_id=TransactionalId(self._id),
            transaction_timeout=i32Timedelta.parse(timedelta(milliseconds=self._transaction_ms)),
            producer_id=ProducerId(known),
            producer_epoch=i16(epoch),
        )
        raise_if_stuck = self._stuck_check()

        def code_in(answer: InitProducerIdResponse) -> ErrorCode:
            raise_if_stuck(answer.error_code)
            return answer.error_code

        found = self._coordinated(action, request, InitProducerIdResponse, code_in, deadline)
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

        raise_if_stuck = self._stuck_check()

        def code_in(answer: EndTxnResponse) -> ErrorCode:
            raise_if_stuck(answer.error_code)
            nothing_open = answer.error_code is ErrorCode.invalid_txn_state and not committed
            return ErrorCode.none if nothing_open else answer.error_code

        self._coordinated("write", request, EndTxnResponse, code_in, deadline)

    def _stuck_check(self) -> Callable[[ErrorCode], None]:
        """Checks each response code of one request: _TransactionStuck if the previous one hangs."""
        begun = time.monotonic()

        def check(code: ErrorCode) -> None:
            if code is ErrorCode.concurrent_transactions and time.monotonic() - begun > LIMITS.transaction_marker_s:
                decided = decided_transaction(self._client, self._id, self._coordinator)
                if decided is not None:
                    raise _Stuck(decided)

        return check

    def _end_in_place_of_coordinator(self, decided: DecidedTransaction) -> None:
        write_last_marker(self._client, self._partition, decided.producer_id, committed=decided.committed)
        self.used_up = True

    def _is_committed(self, appended: Sequence[range], deadline: float) -> bool:
        """True when no marker of this producer aborts any appended batch."""
        position, aborted = appended[0].stop, False
        owed_at = time.monotonic() + LIMITS.transaction_marker_s
        while True:
            markers, position = self._read_markers(position, deadline)
            for offset, is_abort in markers:
                aborted = aborted or is_abort
                if offset >= appended[-1].stop:
                    return not aborted
            if time.monotonic() > owed_at and not self.used_up:
                self._coordinated_by()
                decided = decided_transaction(self._client, self._id, self._coordinator)
                if decided is not None:
                    self._end_in_place_of_coordinator(decided)
            if time.monotonic() > deadline:
                raise Unreachable(f"{self._where}: cannot write: the marker of its commit is not in the log in time")

    def _read_markers(self, position: int, deadline: float) -> tuple[list[tuple[int, bool]], int]:
        """Own markers (offset, is abort), and the next offset to be read."""

        def read(connection: Connection) -> tuple[tuple[list[tuple[int, bool]], int], ErrorCode]:
            link = FetchLink(connection, max_bytes=_FETCH_BYTES, partition_max_bytes=_FETCH_BYTES, at_once=True)
            wanted = Wanted(self._partition, position)
            link.ask([wanted], max_wait_ms=_MARKER_WAIT_MS, isolation=Isolation.READ_UNCOMMITTED)
            markers, at = list[tuple[int, bool]](), position
            for answer in link.take():
                if answer.error:
                    return (markers, at), code_of(answer.error)
                for header, batch in batches_in(answer.records):
                    ours = header.producer_id == self._producer[0] and header.last_offset >= position
                    if ours and header.attributes & CONTROL:
                        markers.append((header.base_offset, is_abort_marker(header, batch)))
                    at = max(at, header.next_offset)
            time.sleep(link.throttle_ms / 1000)
            return (markers, at), ErrorCode.none

        def attempt(limit_s: float) -> tuple[tuple[list[tuple[int, bool]], int], ErrorCode]:
            broker = self._led_by()
            if broker < 0:
                return ([], position), ErrorCode.leader_not_available
            found, code = self._exchanged(broker, limit_s, read)
            if code in AGAIN:
                self._leader = -1
            return found, code

        return self._insisting("write", attempt, deadline)

    def _append_as_owner(self, made: Sequence[tuple[bytearray, int]], deadline: float) -> list[range]:
        """TransactionalIdExhausted if only the partition refuses this owner, not the coordinator."""
        try:
            return self._append(made, deadline)
        except Fenced:
            self._end(deadline, committed=False)
            self.used_up, self._phase = True, _Phase.IDLE
            raise IdUsedUp from None

    def _append(self, made: Sequence[tuple[bytearray, int]], deadline: float) -> list[range]:
        """To all in-sync replicas. Returns each batch's offsets."""
        known, epoch = self._producer
        appended = list[range]()
        batches = [(memoryview(batch), count) for batch, count in made]
        for batch, count in batches:
            readdress(batch, known, epoch, self._sequence)
            self._sequence = self._sequence + count & SEQUENCE_MASK
        while batches:
            together = batches[:_AT_ONCE]

            def attempt(limit_s: float, sent: list[tuple[memoryview, int]] = together) -> tuple[None, ErrorCode]:
                broker = self._led_by()
                code = ErrorCode.leader_not_available
                if broker >= 0:
                    code = self._exchanged(broker, limit_s, lambda c: self._sent(c, sent, limit_s, appended))
                if code in AGAIN:
                    self._leader = -1
                return None, code

            self._insisting("write", attempt, deadline)
            del batches[:_AT_ONCE]
        return appended

    def _sent(
        self, connection: Connection, batches: list[tuple[memoryview, int]], limit_s: float, appended: list[range]
    ) -> ErrorCode:
        """Returns the first error. Removes acknowledged batches and adds their offsets."""
        connection.renew_session()
        due = [connection.next_id() for _ in batches]
        for (batch, _), correlation in zip(batches, due, strict=True):
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
            if code is ErrorCode.duplicate_sequence_number:  # its first response was lost
                code = ErrorCode.none
            if first is ErrorCode.none:
                first = code
                if code is ErrorCode.none:
                    _, count = batches.pop(0)
                    if answer.base_offset >= 0:
                        appended.append(range(answer.base_offset, answer.base_offset + count))
        return first


def _added(answer: AddPartitionsToTxnResponse) -> ErrorCode:
    (topic,) = answer.results_by_topic_v3_and_below
    (partition,) = topic.results_by_partition
    return partition.partition_error_code
