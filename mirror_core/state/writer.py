"""Exclusive writes to the state topic.

Taking the id fences the previous owner, so only callers that checked first take one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.transactional_producer import (
    UNWRITTEN_LOG,
    ForeignAbort,
    ProducerFenced,
    TransactionalIdExhausted,
    TransactionalProducer,
    WrittenLog,
)
from mirror_core.model.audit_log import AuditLine, renumber_line
from mirror_core.model.errors import Indeterminate, LostOwnership, RemoteFault, Unreachable
from mirror_core.model.names import MirrorName, Partition
from mirror_core.model.timing import SteadyClock
from mirror_core.state.mirror_link import read_broker_time_ms
from mirror_core.state.state_records import STATE_TOPIC, State, StateRecord, Tombstone, TransactionalIdNumber
from mirror_core.state.state_topic import STATE_TRANSACTION_MS, read_complete_state
from mirror_core.state.topic_reader import explain_min_isr

_MAX_FOREIGN_ABORTS: Final = 3


@dataclass(frozen=True, slots=True)
class WriterId:
    """As text: the transactional id."""

    role: str
    mirror: MirrorName

    def __str__(self) -> str:
        return f"mirrorbook.{self.role}.{self.mirror}"


def make_control_id(mirror: MirrorName) -> WriterId:
    """For failover, failback, sync and the mirror's commands."""
    return WriterId("control", mirror)


def make_data_id(mirror: MirrorName) -> WriterId:
    """For the data plane's driver."""
    return WriterId("data", mirror)


class StateWriter:
    """Entering it fences the previous owner and reads the state.

    Indeterminate if a record is unreadable.
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        writer: WriterId,
        *,
        timeout_s: float = 20.0,
        written_log: WrittenLog = UNWRITTEN_LOG,
    ) -> None:
        """`written_log`: by the same owner before."""
        self.cluster = cluster
        self.id = writer
        self.timeout_s = timeout_s
        self.state = State()
        self._open_since: float | None = None
        """Its outcome is unknown. Monotonic."""
        self._clock: SteadyClock | None = None
        self._where = f"cluster {cluster.name}, state topic {STATE_TOPIC}"
        self._producer = TransactionalProducer(
            cluster,
            str(writer),
            Partition(STATE_TOPIC, 0),
            transaction_ms=STATE_TRANSACTION_MS,
            where=self._where,
            written_log=written_log,
        )

    def __enter__(self) -> StateWriter:
        self._take_over(0)
        while self._recorded_number() > self._producer.number:  # this one is exhausted
            self._take_over(self._recorded_number())
        return self

    def __exit__(self, *exception: object) -> None:
        """The next owner fences this one."""

    @property
    def written_log(self) -> WrittenLog:
        return self._producer.written_log

    def now_ms(self) -> int:
        """By the brokers' clock, asked once. So a run's times are of one clock, whoever goes on with it."""
        if self._clock is None:
            self._clock = SteadyClock(read_broker_time_ms(self.cluster))
        return self._clock.now_ms()

    def put(self, *records: StateRecord | Tombstone) -> None:
        """All or none."""
        for _ in range(_MAX_FOREIGN_ABORTS):
            try:
                self._write(records)
                return
            except ForeignAbort:
                continue  # the next attempt resolves it first
            except TransactionalIdExhausted:
                self._take_over_next_id()
            except ProducerFenced:
                raise self._make_lost_error("write") from None
            except RemoteFault as error:
                raise self._explain_error(error) from None
        raise RemoteFault(
            f"{self._where}: cannot write: somebody else aborted {_MAX_FOREIGN_ABORTS} transactions of {self.id} in a"
            f" row. Holders of CLUSTER_ACTION or ALTER on {self.cluster.name} can do that. Withdraw it from those who"
            " should not have it, the mirror's data principal first; then resume"
        )

    def _write(self, records: Sequence[StateRecord | Tombstone]) -> None:
        all_records: list[StateRecord | Tombstone] = list(records)
        if self._open_since is not None:
            self._producer.finish_transaction(self.timeout_s)
            self.refresh()
            self._open_since = None
            all_records = [
                (
                    renumber_line(original, self.state.audit_lines(original.run))
                    if isinstance(original, AuditLine)
                    else original
                )
                for original in records
            ]
        if self._producer.number > self._recorded_number():
            all_records.append(TransactionalIdNumber(self.id.mirror, self.id.role, self._producer.number))
        self._open_since = time.monotonic()
        self._producer.write((row for record in all_records for row in self.state.to_rows(record)), self.timeout_s)
        for record in all_records:
            self.state.put(record)
        self._open_since = None

    def _take_over(self, number: int) -> None:
        try:
            self._producer.take_over(self.timeout_s, number)
        except ProducerFenced:
            raise self._make_lost_error("take over") from None
        except RemoteFault as error:
            raise self._explain_error(error) from None
        self._open_since = None
        self.refresh()

    def _take_over_next_id(self) -> None:
        old_number = self._producer.number
        self._take_over(old_number + 1)
        if self._recorded_number() > old_number:
            raise self._make_lost_error("write")

    def _recorded_number(self) -> int:
        record = self.state.id_numbers.get(self.id.mirror, {}).get(self.id.role)
        return record.number if record else 0

    def put_last(self, *records: StateRecord | Tombstone, timeout_s: float) -> None:
        """With a short timeout. Indeterminate if an earlier write may be committed: it may have ended what these
        records describe.
        """
        self.timeout_s = min(self.timeout_s, timeout_s)
        try:
            may_stand = self._open_since is not None and not self._producer.finish_transaction(self.timeout_s)
        except ProducerFenced:
            raise self._make_lost_error("write") from None
        if may_stand:
            raise Indeterminate("what came of the write before is not known")
        self._open_since = None
        self.put(*records)

    def refresh(self) -> State:
        self.state = self.read()
        return self.state

    def read(self) -> State:
        state = read_complete_state(self.cluster)
        state.require_readable(self.id.mirror)
        return state

    def _make_lost_error(self, action: str) -> LostOwnership:
        """Brokers answer alike for a taken id and a transaction that they ended."""
        open_s = 0.0 if self._open_since is None else time.monotonic() - self._open_since
        message = f"{self._where}: cannot {action}: another process now controls this mirror; stopping"
        if open_s * 1000 >= STATE_TRANSACTION_MS:
            message += (
                f". Or nobody has: the write took {open_s:.0f} s, and brokers end one after"
                f" {STATE_TRANSACTION_MS // 1000} s. Then resume the run, from where the way to {self.cluster.name} is"
                " quicker"
            )
        return LostOwnership(message)

    def _explain_error(self, error: Exception) -> Exception:
        if self.id.role != "control" or type(error) not in (RemoteFault, Unreachable):
            return error
        reason = explain_min_isr(self.cluster, self.timeout_s)
        return type(error)(f"{error}. {reason}") if reason else error
