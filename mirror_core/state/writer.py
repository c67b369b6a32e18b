"""Who may write the state topic: one owner of a transactional id at a time.

`init_transactions` on a fixed transactional.id fences whoever held it before; the old owner learns of it at its next
write. So intent is written before every action that others could notice, and a write is always a transaction.

Taking an id is itself an act: it ends a run's conductor, or a data plane. So only those take it who have looked before:
`mirrors/` for the verbs, `runbook/` for runs, `state/lease.py` for the data plane.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Producer

from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.chronicle import Told, renumbered
from mirror_core.model.errors import Indeterminate, LostOwnership, RemoteFault, Unreachable
from mirror_core.model.names import MirrorName
from mirror_core.state.records import TOPIC, Forget, Record, State
from mirror_core.state.short import for_want_of_replicas
from mirror_core.state.topic import (
    FENCED,
    LINE_KIB,
    POLL_S,
    QUIET,
    TAKEN,
    TRANSACTION_MS,
    client,
    read_whole,
    translate,
)


@dataclass(frozen=True, slots=True)
class WriterId:
    """Who writes about a mirror. As text it is the transactional id."""

    role: str
    mirror: MirrorName

    def __str__(self) -> str:
        return f"mirrorbook.{self.role}.{self.mirror}"


def control_id(mirror: MirrorName) -> WriterId:
    """The conductor: failover, failback, sync and the verbs of a mirror."""
    return WriterId("control", mirror)


def data_id(mirror: MirrorName) -> WriterId:
    """The data plane's driver."""
    return WriterId("data", mirror)


class StateWriter:
    """Exclusive writer under one transactional id. Entering it fences the previous one and reads the state.

    Indeterminate when a record about the mirror cannot be read: nobody acts on a state that is known in part.
    """

    def __init__(self, cluster: ClusterConfig, writer: WriterId, *, timeout_s: float = 20.0) -> None:
        self.cluster = cluster
        self.id = writer
        self.timeout_s = timeout_s
        self.state = State()
        self._opened: float | None = None
        """When a transaction was begun of which it is not known how it ended, by the monotonic clock."""
        self._producer = client(
            Producer,
            cluster,
            {
                **cluster.properties(),
                **QUIET,
                "transactional.id": str(writer),
                "transaction.timeout.ms": TRANSACTION_MS,
                "message.timeout.ms": 10_000,
                "linger.ms": 0,
                # A whole mirror's partitions must be through within a transaction's life; and a reader undoes the many
                # small batches of this topic in a thirtieth of what zstd costs him.
                "compression.type": "gzip",
                "queue.buffering.max.kbytes": LINE_KIB,
            },
        )

    def __enter__(self) -> StateWriter:
        try:
            self._producer.init_transactions(self.timeout_s)
        except KafkaException as error:
            raise self._explained(translate(self.cluster, error, "take over")) from None
        self.refresh()
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing to give back: the next owner takes the id by fencing this one."""

    def put(self, *records: Record | Forget) -> None:
        """Write these records in one transaction: all or none. LostOwnership when another owner took the id."""
        whole: list[Record | Forget] = list(records)
        try:
            if self._opened is not None:
                if not self._settle():
                    self.refresh()
                self._opened = None
                whole = [renumbered(r, self.state.chronicle(r.run)) if isinstance(r, Told) else r for r in records]
            self._opened = time.monotonic()
            self._producer.begin_transaction()
            for record in whole:
                for key, value in self.state.rows(record):
                    self._produce(key, value)
            self._commit()
        except KafkaException as error:
            raise self._refused(error) from None
        for record in whole:
            self.state.put(record)
        self._opened = None

    def say_last(self, *records: Record | Forget, timeout_s: float) -> None:
        """The same with little patience, by one who will write no more. Nothing is written where a write before was not
        answered and may stand: it may have ended what these records tell of, and to read the state takes long."""
        self.timeout_s = min(self.timeout_s, timeout_s)
        try:
            stands = self._opened is not None and not self._settle()
        except KafkaException as error:
            raise self._refused(error) from None
        if stands:
            raise Indeterminate("what came of the write before is not known")
        self._opened = None
        self.put(*records)

    def refresh(self) -> State:
        """Read again what others (the data plane, the conductor) have written since."""
        self.state = self.read()
        return self.state

    def read(self) -> State:
        """What the state topic says now."""
        state = read_whole(self.cluster)
        state.require(self.id.mirror)
        return state

    def _settle(self) -> bool:
        """End the transaction that a write has left open, which failed or was interrupted: nothing can be begun before.

        It is given up (True), unless its commit was asked for already: then the state topic tells what came of it.
        """
        try:
            self._producer.abort_transaction(self.timeout_s)
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError._CONFLICT:  # the commit goes on; after a fatal error, of all calls
                self._commit()
            elif code != KafkaError._STATE:  # it has ended
                raise
            return False
        return True

    def _refused(self, error: KafkaException) -> Exception:
        """Brokers say the same of an id that was taken and of a transaction that they have ended."""
        open_s = 0.0 if self._opened is None else time.monotonic() - self._opened
        found = translate(self.cluster, error, "write")
        if isinstance(found, LostOwnership) and open_s * 1000 >= TRANSACTION_MS:
            return LostOwnership(
                f"{found}. Or nobody has: the write took {open_s:.0f} s, and brokers end one after "
                f"{TRANSACTION_MS // 1000} s. Then resume the run, from where the way to {self.cluster.name} is quicker"
            )
        return self._explained(found)

    def _explained(self, error: Exception) -> Exception:
        """What librdkafka knows as silence may be brokers that wait for replicas. A data plane has no time to ask."""
        if self.id.role != "control" or type(error) not in (RemoteFault, Unreachable):
            return error
        why = for_want_of_replicas(self.cluster, self.timeout_s)
        return type(error)(f"{error}. {why}") if why else error

    def _produce(self, key: str, value: bytes | None) -> None:
        """Put into the client's line, which is short: a whole cluster's partitions must not fill the memory."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                self._producer.produce(TOPIC, key=key, value=value, partition=0)
                return
            except BufferError:
                if time.monotonic() > deadline:
                    with suppress(KafkaException):
                        self._producer.abort_transaction(min(5.0, self.timeout_s))
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
                self._producer.poll(POLL_S)

    def _commit(self) -> None:
        """A commit whose answer is late is asked for again: the same commit, never a second one."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                self._producer.commit_transaction(min(5.0, self.timeout_s))
                return
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if reason.code() in FENCED or not reason.retriable() or time.monotonic() > deadline:
                    if reason.txn_requires_abort():
                        self._give_up()
                    raise

    def _give_up(self) -> None:
        """Abort what could not be committed. The first reason counts, unless this says that the id was taken: a broker
        that never got the first record refuses the abort, too, and a commit beside a takeover ends in an unknown error.
        """
        try:
            self._producer.abort_transaction(min(5.0, self.timeout_s))
        except KafkaException as error:
            if error.args[0].code() in TAKEN:
                raise
