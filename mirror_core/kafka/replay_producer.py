"""Writes saved records in transactions, each of which also commits the progress (KIP-98).

A writer that takes over the transactional id continues from that progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NoReturn, TypeVar

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.librdkafka import QUIET_PROPERTIES, make_client
from mirror_core.model.errors import LostOwnership, MissingPermission, RemoteFault, Unreachable
from mirror_core.model.names import Offset, Partition
from mirror_core.rights.required_acls import REPLAY_PREFIX

_TRANSACTION_TIMEOUT_MS: Final = 60_000
_CALL_TIMEOUT_S: Final = 60.0
_MAX_QUEUED_KB: Final = 64 << 10
_MAX_RECORD_BYTES: Final = 1_000_000_000
"""librdkafka's maximum. Brokers check the topic's own limit."""
_FENCED_CODES: Final = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
_DENIED_CODES: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_RETRIED_CODES: Final = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)
"""librdkafka does not retry these when it reads a group's offsets."""
_RETRY_BACKOFF_S: Final = 0.2
Result = TypeVar("Result")


class ReplayRecord(msgspec.Struct, frozen=True, kw_only=True):
    offset: Offset
    """In the saved log."""
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]
    """Names are UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayProgress:
    next: Offset
    """In the saved log. Chosen records before it are written."""
    records: int
    digest: int
    """Sum of the written records' digests."""
    first_written: Offset | None
    """In the target topic. Null: nothing is written yet."""
    last_written: Offset | None


NO_PROGRESS: Final = ReplayProgress(next=Offset(0), records=0, digest=0, first_written=None, last_written=None)


class _ProgressMetadata(msgspec.Struct, frozen=True, array_like=True):
    records: int
    digest: str
    first_written: int | None
    last_written: int | None


class ReplayProducer:
    """Not thread-safe. Replay id and target partition make up the transactional id."""

    def __init__(self, cluster: ClusterConfig, replay_id: str, target: Partition) -> None:
        """`cluster` must be pinned to an id. RemoteFault if another cluster answers."""
        self._target, self._where = target, f"cluster {cluster.name}, {target}"
        with ClusterClient(cluster) as client:
            client.metadata((target.topic,))
        login = {**cluster.properties(), **QUIET_PROPERTIES}
        self._consumer = make_client(
            Consumer, cluster, {**login, "group.id": REPLAY_PREFIX + replay_id, "enable.auto.commit": False}
        )
        self._producer = make_client(
            Producer,
            cluster,
            {
                **login,
                "transactional.id": f"{REPLAY_PREFIX}{replay_id}.{target}",
                "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS,
                "message.max.bytes": _MAX_RECORD_BYTES,
                "queue.buffering.max.kbytes": _MAX_QUEUED_KB,
                "compression.type": "lz4",
            },
        )
        self._check_cluster(cluster)

    def __enter__(self) -> ReplayProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._producer.purge()
        self._consumer.close()

    def _check_cluster(self, cluster: ClusterConfig) -> None:
        """librdkafka opens its own connections, which `ClusterClient` does not check."""
        answered = self._call("connect", lambda: self._producer.list_topics(self._target.topic, _CALL_TIMEOUT_S))
        if answered.cluster_id != cluster.pinned_id:
            raise RemoteFault(f"{self._where}: cluster {answered.cluster_id} answers, not {cluster.pinned_id}")

    def take_over(self) -> ReplayProgress:
        """Fences the previous writer and aborts its open transaction."""
        self._call("take over", lambda: self._producer.init_transactions(_CALL_TIMEOUT_S))
        wanted = TopicPartition(self._target.topic, self._target.index)
        committed = self._call("read its progress", lambda: self._read_committed(wanted))
        if committed.offset < 0:
            return NO_PROGRESS
        try:
            text = msgspec.json.decode(committed.metadata or "", type=_ProgressMetadata)
        except msgspec.DecodeError:
            raise RemoteFault(
                f"{self._where}: the progress of this replay cannot be read: another program has committed offsets"
                " for its group. Nothing is written"
            ) from None
        return ReplayProgress(
            next=Offset(committed.offset),
            records=text.records,
            digest=int(text.digest, 16),
            first_written=None if text.first_written is None else Offset(text.first_written),
            last_written=None if text.last_written is None else Offset(text.last_written),
        )

    def _read_committed(self, wanted: TopicPartition) -> TopicPartition:
        (committed,) = self._consumer.committed([wanted], _CALL_TIMEOUT_S)
        if committed.error is not None:
            raise KafkaException(committed.error)
        return committed

    def write(self, records: Sequence[ReplayRecord], progress: ReplayProgress, digest: int) -> ReplayProgress:
        """One transaction: all records and the new progress, or nothing. `digest`: the sum, these records included."""
        written: list[int] = []
        refused: list[tuple[Offset, KafkaError]] = []

        def record_delivery(offset: Offset, error: KafkaError | None, message: Message) -> None:
            at = message.offset()
            if error is not None:
                refused.append((offset, error))
            elif at is not None:
                written.append(at)

        self._call("begin a transaction", self._producer.begin_transaction)
        try:
            for record in records:
                self._send(record, record_delivery, refused)
            if self._producer.flush(_CALL_TIMEOUT_S):
                raise Unreachable(f"{self._where}: cannot write: not acknowledged within {_CALL_TIMEOUT_S:.0f} s")
            self._raise_refused(refused)
            reached = ReplayProgress(
                next=Offset(records[-1].offset + 1),
                records=progress.records + len(records),
                digest=digest,
                first_written=Offset(min(written)) if progress.first_written is None else progress.first_written,
                last_written=Offset(max(written)),
            )
            self._commit(reached)
        except BaseException:
            with suppress(KafkaException):  # a fenced or dead connection: its coordinator ends the transaction
                self._producer.purge()
                self._producer.abort_transaction(_CALL_TIMEOUT_S)
            raise
        return reached

    def _raise_refused(self, refused: Sequence[tuple[Offset, KafkaError]]) -> None:
        """A broker may refuse a batch without naming the bad record."""
        blamed = [row for row in refused if row[1].code() != KafkaError._INVALID_DIFFERENT_RECORD] or refused
        if blamed:
            self._fail(f"write saved offsets from {blamed[0][0]:,} on", blamed[0][1])

    def _send(
        self,
        record: ReplayRecord,
        record_delivery: Callable[[Offset, KafkaError | None, Message], None],
        refused: Sequence[tuple[Offset, KafkaError]],
    ) -> None:
        def on_delivery(error: KafkaError | None, message: Message) -> None:
            record_delivery(record.offset, error, message)

        deadline = time.monotonic() + _CALL_TIMEOUT_S
        while True:
            try:
                self._producer.produce(
                    self._target.topic,
                    value=record.value,
                    key=record.key,
                    partition=self._target.index,
                    timestamp=max(0, record.timestamp_ms),
                    headers=[(name.decode(), content) for name, content in record.headers],
                    on_delivery=on_delivery,
                )
                self._producer.poll(0)
            except BufferError:  # its queue is full
                if time.monotonic() > deadline:
                    raise Unreachable(
                        f"{self._where}: cannot write: the queue is still full after {_CALL_TIMEOUT_S:.0f} s"
                    ) from None
                self._producer.poll(0.1)
            except KafkaException as error:
                self._raise_refused(refused)  # what ended the transaction
                self._fail(f"write saved offsets from {record.offset:,} on", error.args[0])
            else:
                return

    def _commit(self, reached: ReplayProgress) -> None:
        text = _ProgressMetadata(reached.records, f"{reached.digest:x}", reached.first_written, reached.last_written)
        offset = TopicPartition(
            self._target.topic, self._target.index, reached.next, msgspec.json.encode(text).decode()
        )
        group = self._consumer.consumer_group_metadata()
        self._call(
            "commit its progress",
            lambda: self._producer.send_offsets_to_transaction([offset], group, _CALL_TIMEOUT_S),
        )
        self._call("commit", lambda: self._producer.commit_transaction(_CALL_TIMEOUT_S))

    def _call(self, action: str, call: Callable[[], Result]) -> Result:
        deadline = time.monotonic() + _CALL_TIMEOUT_S
        while True:
            try:
                return call()
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                may_retry = reason.retriable() or reason.code() in _RETRIED_CODES
                if not may_retry or reason.txn_requires_abort() or time.monotonic() > deadline:
                    self._fail(action, reason)
                time.sleep(_RETRY_BACKOFF_S)

    def _fail(self, action: str, error: KafkaError) -> NoReturn:
        where = f"{self._where}: cannot {action}: {error.name()}"
        if error.code() in _FENCED_CODES:
            raise LostOwnership(f"{where}: another process writes the same replay")
        if error.code() in _DENIED_CODES:
            raise MissingPermission(
                f"{where}: its login needs READ and WRITE on the topic, and with the prefix {REPLAY_PREFIX} READ on"
                " groups and WRITE on transactional ids"
            )
        raise (Unreachable if error.retriable() else RemoteFault)(where)
