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
from mirror_core.kafka.faults import DENIED, ErrorCode
from mirror_core.kafka.lent import lent
from mirror_core.kafka.transient import MISLED, TRANSIENT
from mirror_core.model.errors import BadRequest, MissingPermission, RemoteFault, SignInFailed, Unreachable
from mirror_core.model.names import Partition

_ANSWER_S: Final = 5.0
"""Another coordinator or leader may take over."""
_PAUSE_S: Final = 0.01
_MOST_PAUSE_S: Final = 0.5
_TRANSACTIONS: Final = i8(1)
_TAKEN: Final = frozenset(
    {ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced, ErrorCode.invalid_producer_id_mapping}
)
AGAIN: Final = TRANSIENT | {
    ErrorCode.concurrent_transactions,  # previous markers are being written
    ErrorCode.unknown_topic_or_partition,  # stale broker
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.request_timed_out,
    ErrorCode.network_exception,
    ErrorCode.unknown_server_error,  # during a takeover
}

T = TypeVar("T")


class Fenced(Exception):
    """Taken over, or ended by brokers: the codes are the same."""


class TransactionBrokers:
    """`where` begins error messages."""

    def __init__(self, cluster: ClusterConfig, transactional_id: str, partition: Partition, where: str) -> None:
        self._client = ClusterClient(cluster, timeout_s=_ANSWER_S)
        weakref.finalize(self, self._client.close)
        self._id = transactional_id
        self._partition = partition
        self._where = where
        self._coordinator = self._leader = -1
        """Broker ids; -1: unknown."""
        self._astray = False
        """A request was repeated: its first copy may still reach a broker."""

    def _coordinated(
        self,
        action: str,
        request: Request,
        answer: type[Response],
        code_in: Callable[[Response], ErrorCode],
        deadline: float,
    ) -> Response:
        def attempt(limit_s: float) -> tuple[Response | None, ErrorCode]:
            broker, code = self._coordinated_by()
            if code is not ErrorCode.none:
                return None, code
            found = self._exchanged(broker, limit_s, lambda connection: connection.call(request, answer))
            code = code_in(found)
            if code in TRANSIENT:
                self._coordinator = -1
            return found, code

        found = self._insisting(action, attempt, deadline)
        assert found is not None
        return found

    def _coordinated_by(self) -> tuple[int, ErrorCode]:
        if self._coordinator < 0:
            self._led_by()  # also learns all brokers
            request = FindCoordinatorRequest(key_type=_TRANSACTIONS, coordinator_keys=(self._id,))
            (found,) = self._client.call(request, FindCoordinatorResponse).coordinators
            if found.error_code is not ErrorCode.none:
                return -1, found.error_code
            self._coordinator = int(found.node_id)
        return self._coordinator, ErrorCode.none

    def _led_by(self) -> int:
        """-1: offline."""
        if self._leader < 0:
            topic = self._client.metadata([self._partition.topic]).topics.get(self._partition.topic)
            leader = topic.partitions.get(self._partition.index) if topic else None
            self._leader = leader.broker if leader else -1
        return self._leader

    def _exchanged(self, broker: int, limit_s: float, exchange: Callable[[Connection], T]) -> T:
        with lent(self._client, self._client.address(broker)) as connection:
            connection.wait_for(limit_s)
            try:
                return exchange(connection)
            except BaseException:  # also on interruption
                self._astray = True
                raise

    def _insisting(self, action: str, attempt: Callable[[float], tuple[T, ErrorCode]], deadline: float) -> T:
        """Safe: brokers recognize batches by sequence, other requests by epoch."""
        pause_s = _PAUSE_S
        while True:
            self._client.timeout_s = limit_s = min(_ANSWER_S, max(_PAUSE_S, deadline - time.monotonic()))
            try:
                found, code = attempt(limit_s)
            except SignInFailed:
                raise  # retries may lock the login
            except BadRequest as refused:  # alike on all brokers
                raise SignInFailed(str(refused)) from None
            except Unreachable as silent:
                self._coordinator = self._leader = -1
                self._astray = True
                self._client.ask_another()
                why = str(silent)
            else:
                if code is ErrorCode.none:
                    return found
                if code in _TAKEN:
                    raise Fenced(code.name.upper())
                if code not in AGAIN:
                    raise self._fault(action, code)
                if code in MISLED:
                    self._client.ask_another()
                why = code.name.upper()
            if time.monotonic() > deadline:
                raise Unreachable(f"{self._where}: cannot {action}: no answer in time ({why})")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)

    def _fault(self, action: str, code: ErrorCode) -> RemoteFault:
        where = f"{self._where}: cannot {action}: {code.name.upper()}"
        if code in DENIED:
            cluster = self._client.config
            return MissingPermission(
                f"{where} for {cluster.user() or 'this principal'}; `mirrorbook cluster check {cluster.name}` names "
                "the rights"
            )
        return RemoteFault(where)
