"""Exclusive writes to the state topic: one owner of a transactional id at a time.

Taking the fixed id fences the previous owner, which learns it at its next write. So intent is written before every
visible action, in a transaction.

Taking an id ends a run's conductor or a data plane, so only callers that checked first do it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.exclusive import ExclusiveProducer, ForeignAbort, IdUsedUp
from mirror_core.kafka.transaction_brokers import Fenced
from mirror_core.model.chronicle import Told, renumbered
from mirror_core.model.errors import Indeterminate, LostOwnership, RemoteFault, Unreachable
from mirror_core.model.names import MirrorName, Partition
from mirror_core.state.records import TOPIC, Forget, Record, State, TransactionalIdNumber
from mirror_core.state.short import for_want_of_replicas
from mirror_core.state.topic import TRANSACTION_MS, read_whole

_ATTEMPTS: Final = 3
"""When others abort."""


@dataclass(frozen=True, slots=True)
class WriterId:
    """As text: the transactional id."""

    role: str
    mirror: MirrorName

    def __str__(self) -> str:
        return f"mirrorbook.{self.role}.{self.mirror}"


def control_id(mirror: MirrorName) -> WriterId:
    """Failover, failback, sync and the mirror's commands."""
    return WriterId("control", mirror)


def data_id(mirror: MirrorName) -> WriterId:
    """The data plane's driver."""
    return WriterId("data", mirror)


class StateWriter:
    """Entering it fences the previous owner and reads the state.

    Indeterminate if a record is unreadable: nothing acts on partial state.
    """

    def __init__(self, cluster: ClusterConfig, writer: WriterId, *, timeout_s: float = 20.0) -> None:
        self.cluster = cluster
        self.id = writer
        self.timeout_s = timeout_s
        self.state = State()
        self._opened: float | None = None
        """Its outcome is unknown. Monotonic."""
        self._where = f"cluster {cluster.name}, state topic {TOPIC}"
        self._producer = ExclusiveProducer(
            cluster, str(writer), Partition(TOPIC, 0), transaction_ms=TRANSACTION_MS, where=self._where
        )

    def __enter__(self) -> StateWriter:
        self._take(0)
        while self._number() > self._producer.number:  # this one is exhausted
            self._take(self._number())
        return self

    def __exit__(self, *exception: object) -> None:
        """The next owner fences this one."""

    def put(self, *records: Record | Forget) -> None:
        """All or none."""
        for _ in range(_ATTEMPTS):
            try:
                self._write(records)
                return
            except ForeignAbort:
                continue  # the next attempt resolves it first
            except IdUsedUp:
                self._take_next_id()
            except Fenced:
                raise self._lost("write") from None
            except RemoteFault as error:
                raise self._explained(error) from None
        raise RemoteFault(
            f"{self._where}: cannot write: somebody else aborted {_ATTEMPTS} transactions of {self.id} in a row. "
            f"Holders of CLUSTER_ACTION or ALTER on {self.cluster.name} can do that. Withdraw it from those who should "
            "not have it, the mirror's data principal first; then resume"
        )

    def _write(self, records: Sequence[Record | Forget]) -> None:
        whole: list[Record | Forget] = list(records)
        if self._opened is not None:
            self._producer.settle(self.timeout_s)
            self.refresh()
            self._opened = None
            whole = [renumbered(r, self.state.chronicle(r.run)) if isinstance(r, Told) else r for r in records]
        if self._producer.number > self._number():
            whole.append(TransactionalIdNumber(self.id.mirror, self.id.role, self._producer.number))
        self._opened = time.monotonic()
        self._producer.write((row for record in whole for row in self.state.rows(record)), self.timeout_s)
        for record in whole:
            self.state.put(record)
        self._opened = None

    def _take(self, number: int) -> None:
        try:
            self._producer.take(self.timeout_s, number)
        except Fenced:
            raise self._lost("take over") from None
        except RemoteFault as error:
            raise self._explained(error) from None
        self._opened = None
        self.refresh()

    def _take_next_id(self) -> None:
        """Unless another owner already did."""
        before = self._producer.number
        self._take(before + 1)
        if self._number() > before:
            raise self._lost("write")

    def _number(self) -> int:
        """In use, by the state topic."""
        record = self.state.id_numbers.get(self.id.mirror, {}).get(self.id.role)
        return record.number if record else 0

    def say_last(self, *records: Record | Forget, timeout_s: float) -> None:
        """With a short timeout. Indeterminate if an earlier write may be committed: it may have ended what
        these records describe."""
        self.timeout_s = min(self.timeout_s, timeout_s)
        try:
            stands = self._opened is not None and not self._producer.settle(self.timeout_s)
        except Fenced:
            raise self._lost("write") from None
        if stands:
            raise Indeterminate("what came of the write before is not known")
        self._opened = None
        self.put(*records)

    def refresh(self) -> State:
        self.state = self.read()
        return self.state

    def read(self) -> State:
        state = read_whole(self.cluster)
        state.require(self.id.mirror)
        return state

    def _lost(self, action: str) -> LostOwnership:
        """Brokers answer alike for a taken id and a transaction that they ended."""
        open_s = 0.0 if self._opened is None else time.monotonic() - self._opened
        lost = f"{self._where}: cannot {action}: another process now controls this mirror; stopping"
        if open_s * 1000 >= TRANSACTION_MS:
            lost += (
                f". Or nobody has: the write took {open_s:.0f} s, and brokers end one after {TRANSACTION_MS // 1000} "
                f"s. Then resume the run, from where the way to {self.cluster.name} is quicker"
            )
        return LostOwnership(lost)

    def _explained(self, error: Exception) -> Exception:
        """A data plane has no time to ask."""
        if self.id.role != "control" or type(error) not in (RemoteFault, Unreachable):
            return error
        why = for_want_of_replicas(self.cluster, self.timeout_s)
        return type(error)(f"{error}. {why}") if why else error
