"""Requests to a transaction's coordinator and its partition's leader, with retries."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Final, TypeVar

from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v4.response import FindCoordinatorResponse
from kio.static.primitive import i8

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.codec import Request, Response
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.faults import AUTHORIZATION_CODES, ErrorCode
from mirror_core.kafka.lent import borrowed_connection
from mirror_core.kafka.transient import RETRIABLE_CODES, STALE_METADATA_CODES
from mirror_core.model.errors import AuthenticationFailed, BadRequest, MissingPermission, RemoteFault, Unreachable
from mirror_core.model.names import Partition

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
        self._may_arrive_late = False
        """A request was repeated: its first copy may still reach a broker."""

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
