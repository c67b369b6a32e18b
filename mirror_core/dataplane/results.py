"""Processes task reports: sums, receipts, partition states, metrics, messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from mirror_core.copy.handover import Board
from mirror_core.dataplane.counters import Counters, Retry
from mirror_core.dataplane.keeping import Keeper
from mirror_core.dataplane.planning import COPIED, Work, aligned, fail
from mirror_core.decide.ages import known_since
from mirror_core.decide.deletions import recorded, total
from mirror_core.decide.view import some
from mirror_core.model.clock import now_ms
from mirror_core.model.copying import Aligned, Deletion, Failure, TaskReport
from mirror_core.model.errors import Indeterminate, MirrorError, PartitionFailed
from mirror_core.model.logs import logger
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.state.lease import HeldLease
from mirror_core.state.link import Link
from mirror_core.state.records import PartitionRecord
from mirror_core.sync.compaction import Easing

_log = logger(__name__)
MOST_WAITS: Final = 5
LONG: Final = 500
_NOTHING: Final[Mapping[Partition, str]] = MappingProxyType({})


@dataclass(slots=True, kw_only=True)
class Summary:
    seconds: float = 0.0
    copy_seconds: float = 0.0
    epochs: int = 0
    records: int = 0
    bytes: int = 0
    cpu_s: float = 0.0
    positions: dict[Partition, Offset] = field(default_factory=dict)
    failed: dict[Partition, str] = field(default_factory=dict)
    never_copied: dict[Partition, int] = field(default_factory=dict)
    """Trimmed on the source before they were copied; recorded by this process."""
    undecided: tuple[str, ...] = ()
    caught_up: bool = False


class Results:
    def __init__(self, link: Link, counters: Counters, say: Callable[[str], None]) -> None:
        self.link = link
        self.summary = Summary()
        self.counters = counters
        self.say = say
        self.receipts = Keeper(link.mirror.name, say, lambda: counters.retried(Retry.RECEIPTS))
        self._aligned: dict[Partition, Aligned] = {}
        self.board = Board()
        self._undecided: tuple[str, ...] = ()
        self._deletions: dict[Deletion, None] = {}
        self.answered: set[Partition] = set()
        """Partitions whose requests were all answered, since this process started."""
        self._heard_of = 0
        """Newest epoch that ended. Older tasks may still compare logs, and know less."""
        self._recovered: dict[Partition, int] = {}
        """Recovered partitions: the newest epoch that did not know it."""
        self._easing = Easing(link.source, link.destination, say)
        self._unmoved: dict[Partition, str] = {}
        self._said: dict[Partition, str] = {}

    def remember(self, lease: HeldLease) -> None:
        """Records, before anything else, under which leader epochs partitions agree with the source."""
        known = lease.state.partitions.get(self.link.mirror.name, {})
        seen = {p: aligned(known[p], e) for p, e in self._aligned.items() if p in known and known[p].state in COPIED}
        news = [PartitionRecord(self.link.mirror.name, s) for p, s in seen.items() if s != known[p]]
        if news:
            lease.put(*news)
        self._aligned.clear()

    def take(
        self,
        lease: HeldLease,
        epoch: int,
        start_ms: int,
        reports: tuple[TaskReport, ...],
        *,
        newest: int,
        final: bool,
    ) -> None:
        self.summary.epochs += 1
        done = [receipt for report in reports for receipt in report.receipts]
        for receipt in done:
            self.summary.records += receipt.records
            self.summary.bytes += receipt.bytes
            self.summary.positions[receipt.partition] = receipt.next
        self.summary.cpu_s += sum(report.cpu_s for report in reports)
        self.counters.reported(reports, max(0, now_ms() - start_ms) / 1000)
        aligned = [found for report in reports for found in report.aligned]
        self._aligned.update((found.partition, found) for found in aligned if self._is_of(epoch, found.partition))
        self._deletions.update((deletion, None) for report in reports for deletion in report.deletions)
        if epoch >= self._heard_of:
            self.answered.update(found.partition for found in aligned if found.answered)
            self._heard_of = epoch
        self.answered.difference_update(found.partition for found in aligned if not found.answered)
        if any(report.retry and not report.aligned for report in reports):
            self.answered.clear()  # a failed task does not report what it sent
        self.receipts.take(lease.generation, epoch, done)
        _log.debug("ended: %d receipts", len(done), epoch=epoch)
        for number, report in enumerate(reports):
            if report.retry:
                _log.info("ended early, and goes on in the next epoch: %s", report.retry, epoch=epoch, task=number)
            if report.retry and not final:
                self.say(f"epoch {epoch}: {report.retry}")
        failed = [] if final else [failure for report in reports for failure in report.failures]
        found = [failure for failure in failed if self._is_of(epoch, failure.partition)]
        failures, eased = list[Failure](), list[str]()
        for failure in found:
            if self._easing.eased(failure, epoch, newest):
                eased.append(failure.reason)
            else:
                failures.append(failure)
        if epoch >= self._heard_of:
            lease.waits = waits_of([*self._undecided, *(report.retry for report in reports), *eased])
        if failures:
            self.count(lease, final=final)  # before they are FAILED, which postpones it
            self.found(lease, failures)

    def _is_of(self, epoch: int, partition: Partition) -> bool:
        """Whether a report is about the current copy: it may have been recovered since."""
        return epoch > self._recovered.get(partition, 0)

    def lost(self, lease: HeldLease, epoch: int, why: str) -> None:
        self.answered.clear()
        if epoch >= self._heard_of:
            lease.waits = waits_of([*self._undecided, f"epoch {epoch} failed: {why}"])
        self._heard_of = max(epoch, self._heard_of)

    def idle(self, lease: HeldLease) -> None:
        lease.waits = waits_of(self._undecided)

    def count(self, lease: HeldLease, *, final: bool) -> None:
        """Records ranges trimmed on the source; tasks that wait for it go on."""
        told = self.board.deletions()
        self._deletions.update((deletion, None) for deletion in told)
        if not self._deletions:
            return
        try:
            self._count(lease)
        except MirrorError as error:
            if not final:
                raise
            self._unrecorded(str(error))
            return
        self.board.recorded(d for d in told if d not in self._deletions)
        if final and self._deletions:
            self._unrecorded("they are FAILED")

    def _unrecorded(self, why: str) -> None:
        left = some(f"{d.partition} [{d.first}, {d.next})" for d in self._deletions)
        self.say(
            f"what cluster {self.link.source.name} deleted of these partitions before it was copied is not recorded, "
            f"and may be missing in what is told of them: {left}: {why}"
        )

    def _count(self, lease: HeldLease) -> None:
        name = self.link.mirror.name
        known = lease.state.partitions.get(name, {})
        # Operators change FAILED statuses (`mirror recover`): postponed until it is copied again.
        later = {d: None for d in self._deletions if d.partition in known and known[d.partition].state not in COPIED}
        fresh = recorded(known, self._deletions.keys() - later.keys(), now_ms())
        self._put(lease, known, fresh)
        self._deletions = later

    def _put(
        self, lease: HeldLease, known: Mapping[Partition, PartitionStatus], fresh: Mapping[Partition, PartitionStatus]
    ) -> None:
        if not fresh:
            return
        name = self.link.mirror.name
        new = {p: total([status]) - total([known[p]]) for p, status in fresh.items()}
        lease.put(*(PartitionRecord(name, status) for status in fresh.values()))
        for partition, offsets in new.items():
            self.summary.never_copied[partition] = self.summary.never_copied.get(partition, 0) + offsets
        self.count_states(lease)
        self.say(
            f"cluster {self.link.source.name}: {sum(new.values()):,} offset(s) were deleted there before they were "
            f"copied, and are on neither side now: {some(f'{p} ({n:,})' for p, n in sorted(new.items()))}"
        )

    def found(self, lease: HeldLease, failures: Sequence[Failure], unmoved: Mapping[Partition, str] = _NOTHING) -> None:
        for partition, why in unmoved.items():
            if self._unmoved.get(partition) != why:
                self.say(f"copying goes on, and this is tried again: {why}")
            self._unmoved[partition] = why
        if not failures:
            return
        known = lease.state.partitions.get(self.link.mirror.name, {})
        lease.put(
            *(
                PartitionRecord(self.link.mirror.name, fail(known[f.partition], f))
                for f in failures
                if f.partition in known and known[f.partition].state in COPIED
            )
        )
        self.count_states(lease)
        for failure in failures:
            self.failed(failure.partition, failure.reason)

    def count_states(self, lease: HeldLease) -> None:
        state, name = lease.state, self.link.mirror.name
        statuses, groups, proof = state.partitions.get(name, {}), state.groups.get(name), state.proofs.get(name)
        known = known_since(name, groups, proof, iter(state.runs.values()), statuses)
        self.counters.recorded(statuses.values(), state.mirrors[name].throttle, dict(known))

    def planned(self, work: Work, *, newest: int) -> None:
        self.copied(work.partitions, newest=newest)
        for partition, reason in work.failed.items():
            self.failed(partition, reason)
        for words in work.undecided:
            if words not in self._undecided:
                self.say(words)
        self._undecided = work.undecided

    def copied(self, partitions: Iterable[Partition], *, newest: int) -> None:
        for partition in self.summary.failed.keys() & set(partitions):
            del self.summary.failed[partition]
            self._recovered[partition] = newest

    def failed(self, partition: Partition, reason: str) -> None:
        if self._said.get(partition) != reason:
            self._said[partition] = reason
            _log.info("FAILED: %s", reason, partition=partition)
            self.say(f"FAILED {partition}: {reason}")
        self.summary.failed[partition] = reason


def waits_of(said: Iterable[str]) -> tuple[str, ...]:
    told = sorted({words if len(words) <= LONG else f"{words[:LONG]}..." for words in said if words})
    more = [f"and {len(told) - MOST_WAITS} more"] if len(told) > MOST_WAITS else []
    return (*told[:MOST_WAITS], *more)


def raise_if_failed(summary: Summary) -> None:
    """Raises PartitionFailed, or Indeterminate for topics that may not exist any more."""
    if summary.failed:
        listed = "".join(f"\n  - {partition}: {reason}" for partition, reason in sorted(summary.failed.items()))
        raise PartitionFailed(
            f"{len(summary.failed)} partitions FAILED; `mirrorbook mirror recover` shows what can be done about each:"
            f"{listed}"
        )
    if summary.undecided:
        raise Indeterminate("; ".join(summary.undecided))
