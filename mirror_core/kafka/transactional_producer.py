"""Exclusive transactional writes to one partition (KIP-98). Taking an id fences its owner.

A write succeeds when its COMMIT marker is in the log: holders of CLUSTER_ACTION can write markers, so the coordinator's
response is not enough. Where foreign markers block an id, the next numbered one takes over. See ADR 0018.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import Enum, auto
from typing import Final, NamedTuple, NoReturn, TypeVar

from kio.schema.add_partitions_to_txn.v2.request import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kio.schema.add_partitions_to_txn.v2.response import AddPartitionsToTxnResponse
from kio.schema.end_txn.v2.request import EndTxnRequest
from kio.schema.end_txn.v2.response import EndTxnResponse
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v4.response import FindCoordinatorResponse
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.primitive import i8, i16, i32, i32Timedelta

from mirror_core.kafka.client import ClusterClient, borrowed_connection
from mirror_core.kafka.codec import Request, Response
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.connection import CLIENT_ID, Connection
from mirror_core.kafka.error_mapping import (
    AUTHORIZATION_CODES,
    RETRIABLE_CODES,
    STALE_METADATA_CODES,
    to_error_code,
)
from mirror_core.kafka.fetch_link import FetchLink
from mirror_core.kafka.leader_epochs import list_epoch_ends
from mirror_core.kafka.transactions import (
    DecidedTransaction,
    end_hanging_transactions,
    find_decided_transaction,
    write_final_marker,
)
from mirror_core.model.errors import (
    AuthenticationFailed,
    BadRequest,
    MirrorError,
    MissingPermission,
    RemoteFault,
    Unreachable,
)
from mirror_core.model.names import Partition
from mirror_core.model.timing import TIMEOUTS
from mirror_core.wire import produce
from mirror_core.wire.batch import CONTROL, NO_TIMESTAMP, SEQUENCE_MASK, TRANSACTIONAL, readdress
from mirror_core.wire.batch import split_batches as batches_in
from mirror_core.wire.batch_encoder import build_batches
from mirror_core.wire.fetch import FetchPosition, IsolationLevel
from mirror_core.wire.fields import MalformedResponse
from mirror_core.wire.records import Codec, is_abort_marker

_RESPONSE_TIMEOUT_S: Final = 5.0
"""Another coordinator or leader may take over."""
_PAUSE_S: Final = 0.01
_MAX_PAUSE_S: Final = 0.5
_TRANSACTION_KEY_TYPE: Final = i8(1)
_FENCED_CODES: Final = frozenset(
    {ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced, ErrorCode.invalid_producer_id_mapping}
)
RETRIED_TXN_CODES: Final = RETRIABLE_CODES | {
    ErrorCode.concurrent_transactions,  # previous markers are being written
    ErrorCode.unknown_topic_or_partition,  # stale broker
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.request_timed_out,
    ErrorCode.network_exception,
    ErrorCode.unknown_server_error,  # during a takeover
}
T = TypeVar("T")


class WrittenLog(NamedTuple):
    """The log to which an owner last appended."""

    topic_id: str
    leader_epoch: int
    """Under which the last batch was appended."""
    end: int
    """Offset after the last batch."""


UNWRITTEN_LOG: Final = WrittenLog("", -1, 0)


class LogReplaced(RemoteFault):
    """The log lost records that this owner wrote: its view of the state is wrong, so it must stop."""


class ProducerFenced(Exception):
    """Taken over, or ended by brokers: the codes are the same."""


class TransactionBrokers:
    """`where` begins error messages."""

    def __init__(self, cluster: ClusterConfig, transactional_id: str, partition: Partition, where: str) -> None:
        self._client = ClusterClient(cluster, timeout_s=_RESPONSE_TIMEOUT_S)
        weakref.finalize(self, self._client.close)
        self._id = transactional_id
        self._partition = partition
        self._where = where
        self._coordinator = self._leader = -1
        """Broker ids; -1: unknown."""
        self._topic_id, self._leader_epoch = "", -1
        self._may_arrive_late = False
        """A repeated request's first copy may still reach a broker."""

    def _call_coordinator(
        self,
        action: str,
        request: Request,
        response_type: type[Response],
        extract_code: Callable[[Response], ErrorCode],
        deadline: float,
    ) -> Response:
        def attempt(limit_s: float) -> tuple[Response | None, ErrorCode]:
            broker, code = self._find_coordinator()
            if code is not ErrorCode.none:
                return None, code
            response = self._call_broker(broker, limit_s, lambda connection: connection.call(request, response_type))
            code = extract_code(response)
            if code in RETRIABLE_CODES:
                self._coordinator = -1
            return response, code

        response = self._retry_until(action, attempt, deadline)
        assert response is not None
        return response

    def _find_coordinator(self) -> tuple[int, ErrorCode]:
        if self._coordinator < 0:
            self._find_leader()  # also learns all brokers
            request = FindCoordinatorRequest(key_type=_TRANSACTION_KEY_TYPE, coordinator_keys=(self._id,))
            (coordinator,) = self._client.call(request, FindCoordinatorResponse).coordinators
            if coordinator.error_code is not ErrorCode.none:
                return -1, coordinator.error_code
            self._coordinator = int(coordinator.node_id)
        return self._coordinator, ErrorCode.none

    def _find_leader(self) -> int:
        """-1: offline."""
        if self._leader < 0:
            topic = self._client.metadata([self._partition.topic]).topics.get(self._partition.topic)
            leader = topic.partitions.get(self._partition.index) if topic else None
            self._leader = leader.broker if leader else -1
            if topic is not None and leader is not None:
                self._topic_id, self._leader_epoch = topic.id, leader.epoch
        return self._leader

    def _call_broker(self, broker: int, limit_s: float, exchange: Callable[[Connection], T]) -> T:
        with borrowed_connection(self._client, self._client.address(broker)) as connection:
            connection.set_timeout(limit_s)
            try:
                return exchange(connection)
            except BaseException:  # also on interruption
                self._may_arrive_late = True
                raise

    def _retry_until(self, action: str, attempt: Callable[[float], tuple[T, ErrorCode]], deadline: float) -> T:
        """Safe: brokers recognize batches by sequence, other requests by epoch."""
        pause_s = _PAUSE_S
        while True:
            self._client.timeout_s = limit_s = min(_RESPONSE_TIMEOUT_S, max(_PAUSE_S, deadline - time.monotonic()))
            try:
                result, code = attempt(limit_s)
            except AuthenticationFailed:
                raise  # retries may lock the login
            except BadRequest as bad_request:  # alike on all brokers
                raise AuthenticationFailed(str(bad_request)) from None
            except Unreachable as unreachable:
                self._coordinator = self._leader = -1
                self._may_arrive_late = True
                self._client.mark_metadata_stale()
                reason = str(unreachable)
            else:
                if code is ErrorCode.none:
                    return result
                if code in _FENCED_CODES:
                    raise ProducerFenced(code.name.upper())
                if code not in RETRIED_TXN_CODES:
                    raise self._fault(action, code)
                if code in STALE_METADATA_CODES:
                    self._client.mark_metadata_stale()
                reason = code.name.upper()
            if time.monotonic() > deadline:
                raise Unreachable(f"{self._where}: cannot {action}: no answer in time ({reason})")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def _fault(self, action: str, code: ErrorCode) -> RemoteFault:
        where = f"{self._where}: cannot {action}: {code.name.upper()}"
        if code in AUTHORIZATION_CODES:
            cluster = self._client.config
            return MissingPermission(
                f"{where} for {cluster.user() or 'this principal'}; `mirrorbook cluster check {cluster.name}` names "
                "the rights"
            )
        return RemoteFault(where)


_APPEND_TIMEOUT_S: Final = 10.0
_ABORT_TIMEOUT_S: Final = 5.0
_BATCH_BYTES: Final = 512 << 10
"""Uncompressed: half of the default max.message.bytes."""
_FETCH_BYTES: Final = 1 << 20
_MARKER_WAIT_MS: Final = 100
_MAX_BATCHES_IN_FLIGHT: Final = 5
"""As many as brokers recognize when repeated (KIP-98)."""
KeyValueRow = tuple[str, bytes | None]


class ForeignAbort(Exception):
    """Aborted by another client: nothing counts, and it may be written again."""


class TransactionalIdExhausted(Exception):
    """Blocked by foreign markers: nothing was written; the next id may be taken."""


class _TransactionStuck(Exception):
    def __init__(self, transaction: DecidedTransaction) -> None:
        self.transaction = transaction


class _TransactionPhase(Enum):
    IDLE = auto()
    OPEN = auto()
    """Perhaps begun."""
    ENDING = auto()


class TransactionalProducer(TransactionBrokers):
    """Not thread-safe. `where` begins error messages."""

    def __init__(
        self,
        cluster: ClusterConfig,
        transactional_id: str,
        partition: Partition,
        *,
        transaction_ms: int,
        where: str,
        written_log: WrittenLog = UNWRITTEN_LOG,
    ) -> None:
        """`written_log`: from the same owner's previous producer."""
        super().__init__(cluster, transactional_id, partition, where)
        self._first_id = transactional_id
        self.number = 0
        """0: `transactional_id` itself; n: `transactional_id~n`."""
        self.is_exhausted = False
        self._transaction_ms = transaction_ms
        self._producer_id_epoch = (-1, -1)
        self.written_log = written_log
        self._replaced_log = ""
        """Error message, if the log is not the one that this owner has written."""
        self._sequence = 0
        self._phase = _TransactionPhase.IDLE

    def take_over(self, timeout_s: float, number: int = 0) -> None:
        """This number, or the next usable. Aborts the owner's open transaction and fences it."""
        deadline = time.monotonic() + timeout_s
        self._end_hanging_transactions(min(deadline, time.monotonic() + _RESPONSE_TIMEOUT_S))
        while True:
            self.number, self.is_exhausted = number, False
            self._id = f"{self._first_id}~{number}" if number else self._first_id
            self._coordinator, self._producer_id_epoch = -1, (-1, -1)
            try:
                self._init_producer_id("take over", deadline)
                return
            except _TransactionStuck as stuck:
                self._end_stuck_transaction(stuck.transaction)
                number += 1

    def _end_hanging_transactions(self, deadline: float) -> None:
        """Before a takeover, after which the coordinator no longer knows how they ended.

        Does nothing without the rights or a leader.
        """

        def attempt(_: float) -> tuple[None, ErrorCode]:
            end_hanging_transactions(self._client, self._partition)
            return None, ErrorCode.none

        with suppress(MissingPermission, Unreachable):
            self._retry_until("take over", attempt, deadline)

    def write(self, rows: Iterable[KeyValueRow], timeout_s: float) -> None:
        """All or none. Raises ProducerFenced, ForeignAbort or TransactionalIdExhausted.

        After a RemoteFault call `finish_transaction` before the next write.
        """
        if self._phase is not _TransactionPhase.IDLE:
            raise RuntimeError("the transaction before was not settled")
        if self._replaced_log:
            raise LogReplaced(self._replaced_log)
        if self._may_arrive_late:  # fences late copies of earlier requests (KIP-360)
            self._phase = _TransactionPhase.OPEN
            self.finish_transaction(timeout_s)
        if self.is_exhausted:
            raise TransactionalIdExhausted
        # gzip: many small batches decompress 30 times faster than zstd. No timestamp: brokers refuse
        # those an hour ahead (KIP-937), and this machine may be the only one left.
        batches = list(build_batches(rows, _BATCH_BYTES, Codec.GZIP, NO_TIMESTAMP, TRANSACTIONAL))
        deadline = time.monotonic() + timeout_s
        self._phase = _TransactionPhase.OPEN
        try:
            self._add_partition(deadline)
            appended = self._append_as_owner(batches, min(deadline, time.monotonic() + _APPEND_TIMEOUT_S))
            self._note_appended(appended)
        except RemoteFault:
            self._abort(min(timeout_s, _ABORT_TIMEOUT_S))  # an open transaction hides others' records
            raise
        self._phase = _TransactionPhase.ENDING
        self._end_transaction(deadline, committed=True)
        committed = self._is_committed(appended, deadline) if appended else True
        self._phase = _TransactionPhase.IDLE
        if not committed:
            raise ForeignAbort

    def _note_appended(self, appended: Sequence[range]) -> None:
        """Raises LogReplaced if records of this owner are missing."""
        if not appended:
            return
        if appended[0].start < self.written_log.end:
            self._raise_replaced(f"and now got {appended[0].start:,}")
        self.written_log = WrittenLog(self._topic_id, self._leader_epoch, appended[-1].stop)

    def _check_same_log(self) -> None:
        """Asks a new leader where the old epoch ended: once others have written, offsets alone do not show a loss."""
        log = self.written_log
        if not log.end or (self._topic_id, self._leader_epoch) == (log.topic_id, log.leader_epoch):
            return
        if self._topic_id != log.topic_id:
            self._raise_replaced("and this is another topic")
        ends = list_epoch_ends(self._client, {self._partition: log.leader_epoch}, {self._leader: [self._partition]})
        for error in ends.unknown.values():
            raise error
        if (end := ends.offsets.get(self._partition, 0)) < log.end:
            self._raise_replaced(f"and what that leader took ends at {end:,} now")
        self.written_log = WrittenLog(self._topic_id, self._leader_epoch, log.end)

    def _raise_replaced(self, detail: str) -> NoReturn:
        self._replaced_log = (
            f"{self._where}: cannot write: the topic was recreated, or lost its end: {self._id} wrote offset"
            f" {self.written_log.end - 1:,} before, {detail}. `mirrorbook mirror list` and `mirrorbook runs list` show"
            " what it holds now. Find and repeat what is missing"
        )
        raise LogReplaced(self._replaced_log)

    def finish_transaction(self, timeout_s: float) -> bool:
        """After a failed write. True: nothing of it is in the log.

        False: commit was requested, or nothing was open; the log tells the outcome.
        """
        deadline = time.monotonic() + timeout_s
        if self._phase is _TransactionPhase.IDLE:
            return False
        commit_requested = self._phase is _TransactionPhase.ENDING
        try:
            if commit_requested:
                self._end_transaction(deadline, committed=True)
            else:  # abort first: it checks ownership, which a new epoch does not while one is open
                self._end_transaction(deadline, committed=False)
                self._init_producer_id("write", deadline)
        except _TransactionStuck as stuck:
            self._end_stuck_transaction(stuck.transaction)
        self._phase = _TransactionPhase.IDLE
        return not commit_requested

    def _abort(self, timeout_s: float) -> None:
        try:
            self.finish_transaction(timeout_s)
        except MirrorError:
            return

    # -- requests ------------------------------------------------------------------------------------------------

    def _init_producer_id(self, action: str, deadline: float) -> None:
        """KIP-360: for this owner only while it still owns the id."""
        producer_id, epoch = self._producer_id_epoch
        request = InitProducerIdRequest(
            transactional_id=TransactionalId(self._id),
            transaction_timeout=i32Timedelta.parse(timedelta(milliseconds=self._transaction_ms)),
            producer_id=ProducerId(producer_id),
            producer_epoch=i16(epoch),
        )
        raise_if_stuck = self._make_stuck_check()

        def extract_code(response: InitProducerIdResponse) -> ErrorCode:
            raise_if_stuck(response.error_code)
            return response.error_code

        response_found = self._call_coordinator(action, request, InitProducerIdResponse, extract_code, deadline)
        self._producer_id_epoch, self._sequence = (
            (int(response_found.producer_id), int(response_found.producer_epoch)),
            0,
        )
        self._phase, self._may_arrive_late = _TransactionPhase.IDLE, False

    def _add_partition(self, deadline: float) -> None:
        producer_id, epoch = self._producer_id_epoch
        topic = AddPartitionsToTxnTopic(name=TopicName(self._partition.topic), partitions=(i32(self._partition.index),))
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=TransactionalId(self._id),
            v3_and_below_producer_id=ProducerId(producer_id),
            v3_and_below_producer_epoch=i16(epoch),
            v3_and_below_topics=(topic,),
        )
        self._call_coordinator("write", request, AddPartitionsToTxnResponse, _parse_add_partitions, deadline)

    def _end_transaction(self, deadline: float, *, committed: bool) -> None:
        producer_id, epoch = self._producer_id_epoch
        request = EndTxnRequest(
            transactional_id=TransactionalId(self._id),
            producer_id=ProducerId(producer_id),
            producer_epoch=i16(epoch),
            committed=committed,
        )

        raise_if_stuck = self._make_stuck_check()

        def extract_code(response: EndTxnResponse) -> ErrorCode:
            raise_if_stuck(response.error_code)
            nothing_open = response.error_code is ErrorCode.invalid_txn_state and not committed
            return ErrorCode.none if nothing_open else response.error_code

        self._call_coordinator("write", request, EndTxnResponse, extract_code, deadline)

    def _make_stuck_check(self) -> Callable[[ErrorCode], None]:
        began_at = time.monotonic()

        def check(code: ErrorCode) -> None:
            if (
                code is ErrorCode.concurrent_transactions
                and time.monotonic() - began_at > TIMEOUTS.transaction_marker_s
            ):
                decided = find_decided_transaction(self._client, self._id, self._coordinator)
                if decided is not None:
                    raise _TransactionStuck(decided)

        return check

    def _end_stuck_transaction(self, decided: DecidedTransaction) -> None:
        write_final_marker(self._client, self._partition, decided.producer_id, committed=decided.committed)
        self.is_exhausted = True

    def _is_committed(self, appended: Sequence[range], deadline: float) -> bool:
        """True when no marker of this producer aborts any appended batch."""
        position, aborted = appended[0].stop, False
        marker_due_at = time.monotonic() + TIMEOUTS.transaction_marker_s
        while True:
            markers, position = self._read_markers(position, deadline)
            for offset, is_abort in markers:
                aborted = aborted or is_abort
                if offset >= appended[-1].stop:
                    return not aborted
            if time.monotonic() > marker_due_at and not self.is_exhausted:
                self._find_coordinator()
                decided = find_decided_transaction(self._client, self._id, self._coordinator)
                if decided is not None:
                    self._end_stuck_transaction(decided)
            if time.monotonic() > deadline:
                raise Unreachable(f"{self._where}: cannot write: the marker of its commit is not in the log in time")

    def _read_markers(self, position: int, deadline: float) -> tuple[list[tuple[int, bool]], int]:
        """Own markers (offset, is abort), and the next offset to be read."""

        def read(connection: Connection) -> tuple[tuple[list[tuple[int, bool]], int], ErrorCode]:
            link = FetchLink(connection, max_bytes=_FETCH_BYTES, partition_max_bytes=_FETCH_BYTES, full_size=True)
            wanted = FetchPosition(self._partition, position)
            link.send_fetch([wanted], max_wait_ms=_MARKER_WAIT_MS, isolation=IsolationLevel.READ_UNCOMMITTED)
            markers, next_position = list[tuple[int, bool]](), position
            for fetched in link.read_response():
                if fetched.error:
                    return (markers, next_position), to_error_code(fetched.error)
                for header, batch in batches_in(fetched.records):
                    is_own = header.producer_id == self._producer_id_epoch[0] and header.last_offset >= position
                    if is_own and header.attributes & CONTROL:
                        markers.append((header.base_offset, is_abort_marker(header, batch)))
                    next_position = max(next_position, header.next_offset)
            time.sleep(link.throttle_ms / 1000)
            return (markers, next_position), ErrorCode.none

        def attempt(limit_s: float) -> tuple[tuple[list[tuple[int, bool]], int], ErrorCode]:
            broker = self._find_leader()
            if broker < 0:
                return ([], position), ErrorCode.leader_not_available
            result, code = self._call_broker(broker, limit_s, read)
            if code in RETRIED_TXN_CODES:
                self._leader = -1
            return result, code

        return self._retry_until("write", attempt, deadline)

    def _append_as_owner(self, built_batches: Sequence[tuple[bytearray, int]], deadline: float) -> list[range]:
        """TransactionalIdExhausted if only the partition refuses this owner, not the coordinator."""
        try:
            return self._append(built_batches, deadline)
        except ProducerFenced:
            self._end_transaction(deadline, committed=False)
            self.is_exhausted, self._phase = True, _TransactionPhase.IDLE
            raise TransactionalIdExhausted from None

    def _append(self, built_batches: Sequence[tuple[bytearray, int]], deadline: float) -> list[range]:
        producer_id, epoch = self._producer_id_epoch
        appended = list[range]()
        batches = [(memoryview(batch), count) for batch, count in built_batches]
        for batch, count in batches:
            readdress(batch, producer_id, epoch, self._sequence)
            self._sequence = self._sequence + count & SEQUENCE_MASK
        while batches:
            share = batches[:_MAX_BATCHES_IN_FLIGHT]

            def attempt(limit_s: float, unsent: list[tuple[memoryview, int]] = share) -> tuple[None, ErrorCode]:
                broker = self._find_leader()
                code = ErrorCode.leader_not_available
                if broker >= 0:
                    self._check_same_log()
                    code = self._call_broker(
                        broker, limit_s, lambda connection: self._send_batches(connection, unsent, limit_s, appended)
                    )
                if code in RETRIED_TXN_CODES:
                    self._leader = -1
                return None, code

            self._retry_until("write", attempt, deadline)
            del batches[:_MAX_BATCHES_IN_FLIGHT]
        return appended

    def _send_batches(
        self, connection: Connection, batches: list[tuple[memoryview, int]], limit_s: float, appended: list[range]
    ) -> ErrorCode:
        """Returns the first error. Removes acknowledged batches and adds their offsets."""
        connection.renew_session()
        correlations = [connection.next_id() for _ in batches]
        for (batch, _), correlation in zip(batches, correlations, strict=True):
            row = (self._partition.topic, self._partition.index, batch)
            timeout_ms = int(limit_s * 1000)
            connection.send(
                produce.encode_request([row], correlation, CLIENT_ID, timeout_ms=timeout_ms, transactional_id=self._id)
            )
        first_error = ErrorCode.none
        for correlation in correlations:
            frame = memoryview(connection.receive())
            try:
                (produced,) = produce.decode_response(frame[4:])
            except (MalformedResponse, ValueError) as error:
                raise RemoteFault(f"{connection.where}: Produce answer makes no sense: {error}") from None
            if int.from_bytes(frame[:4], signed=True) != correlation:
                raise RemoteFault(f"{connection.where}: Produce answer to another request")
            code = to_error_code(produced.error)
            if code is ErrorCode.duplicate_sequence_number:  # its first response was lost
                code = ErrorCode.none
            if first_error is ErrorCode.none:
                first_error = code
                if code is ErrorCode.none:
                    _, count = batches.pop(0)
                    if produced.base_offset >= 0:
                        appended.append(range(produced.base_offset, produced.base_offset + count))
        return first_error


def _parse_add_partitions(response: AddPartitionsToTxnResponse) -> ErrorCode:
    (topic,) = response.results_by_topic_v3_and_below
    (partition,) = topic.results_by_partition
    return partition.partition_error_code
