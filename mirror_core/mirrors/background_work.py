"""Threads of the data plane: one syncs, one compares new records at a bounded rate.

A run that holds the mirror does both itself.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Sequence, Set
from functools import partial
from types import TracebackType
from typing import ClassVar, Final, Self

from mirror_core.dataplane.counters import Counters, RetriedWork
from mirror_core.decide.parity_result import CHUNK_OFFSETS, LEVEL_RECORDS, ParityRow
from mirror_core.kafka.connection_pool import CONNECTION_POOL
from mirror_core.mirrors.incremental_verification import ProofStore, compare_unverified, limit_rate
from mirror_core.mirrors.mirror_commands import run_sync
from mirror_core.model.errors import HeldByRun, LostOwnership, MirrorError, Refused
from mirror_core.model.findings import identify_trouble
from mirror_core.model.logs import get_logger, log_context
from mirror_core.model.names import Partition
from mirror_core.model.parity_verdict import MirrorVerification, ParityRange, ParityResult, ParityVerdict
from mirror_core.model.text import escape_invisible_lines, format_count, format_items
from mirror_core.model.timing import SteadyClock
from mirror_core.parity.check import OnParityProgress, check_parity
from mirror_core.parity.comparable_ranges import read_parity_scope
from mirror_core.parity.compare import CompareTask, compare_task
from mirror_core.state.mirror_link import MirrorLink, read_broker_time_ms, read_cluster_state
from mirror_core.state.state_cache import STATE_CACHE

_log = get_logger(__name__)

SYNC_INTERVAL_S: Final = 30.0
COMPARE_INTERVAL_S: Final = 300.0
SAVE_INTERVAL_S: Final = 60.0
"""Between saves of progress. A save waits while a sync is at work."""
IDLE_INTERVAL_S: Final = 3600.0
"""Between comparisons of compacted topics, and of unchanged ranges."""
MAX_LISTED_FINDINGS: Final = 10
UNREADABLE_ADVICE: Final = (
    "applications cannot read it there either; the usual cause is a broker's disk. Elect a sound replica as leader, "
    "and let that broker fetch its replica again. If no replica is sound, recopy (on call: a batch that cannot be read)"
)
_JOIN_TIMEOUT_S: Final = 0.5


class _ComparisonStopped(Exception):
    """The process ends, or a run holds the mirror."""


class _BackgroundWork(ABC):
    """An error in `work_once` does not stop copying."""

    name: ClassVar[str]
    retried: ClassVar[RetriedWork]

    def __init__(
        self,
        link: MirrorLink,
        counters: Counters,
        report: Callable[[str], None],
        *,
        interval_s: float,
    ) -> None:
        self._link = link
        self._counters = counters
        self._report = report
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_JOIN_TIMEOUT_S)  # a daemon: work that is cut off is repeated, and the proof so far is kept

    @abstractmethod
    def work_once(self) -> None: ...

    def _run(self) -> None:
        with log_context(mirror=self._link.mirror.name), STATE_CACHE.enable(), CONNECTION_POOL.keep_connections():
            while not self._stop.wait(self._interval_s):
                try:
                    self.work_once()
                except _ComparisonStopped:
                    continue
                except (HeldByRun, LostOwnership) as error:
                    _log.info("%s: not now: %s", self.name, error)
                except Exception as error:  # noqa: BLE001 - no error here may stop copying
                    self._counters.count_retry(self.retried)
                    _log.info("%s: %s", self.name, error if isinstance(error, MirrorError) else type(error).__name__)


class BackgroundSync(_BackgroundWork):
    """Topics, settings, access rights, group offsets. Begins one interval after the start."""

    name = "sync"
    retried = RetriedWork.SYNC

    def __init__(
        self,
        link: MirrorLink,
        counters: Counters,
        report: Callable[[str], None],
        *,
        interval_s: float = SYNC_INTERVAL_S,
    ) -> None:
        super().__init__(link, counters, report, interval_s=interval_s)
        self._reported: Container[tuple[str, ...]] = ()

    def work_once(self) -> None:
        try:
            refused = run_sync(self._link).refused
        except MirrorError as error:
            if not (error.retryable or isinstance(error, HeldByRun | LostOwnership)):
                text = f"sync failed; it is retried every {self._interval_s:g} s: {error}"
                self._report_new({identify_trouble(error)}, text)
            raise
        subject = format_count(len(refused), "difference")
        listed = format_items(f"{row.part} {row.subject}: {row.reason}" for row in refused[:MAX_LISTED_FINDINGS])
        troubles = {(str(row.part), row.subject) for row in refused}
        self._report_new(troubles, f"sync: a person must decide about {subject}:{listed}")

    def _report_new(self, troubles: Set[tuple[str, ...]], text: str) -> None:
        if any(trouble not in self._reported for trouble in troubles):
            self._report(escape_invisible_lines(text))
        self._reported = troubles


class BackgroundVerification(_BackgroundWork):
    name = "verification"
    retried = RetriedWork.VERIFICATION

    def __init__(
        self,
        link: MirrorLink,
        bytes_per_s: int,
        counters: Counters,
        report: Callable[[str], None],
        *,
        interval_s: float = COMPARE_INTERVAL_S,
    ) -> None:
        """`bytes_per_s`: maximum read of each cluster."""
        super().__init__(link, counters, report, interval_s=interval_s)
        self._bytes_per_s = bytes_per_s
        self._reported: tuple[tuple[str, ...], tuple[str, ...]] = (), ()
        self._verified_ranges: tuple[ParityRange, ...] = ()
        self._in_doubt: frozenset[Partition] = frozenset()
        """Not completely compared by the last round."""
        self._recheck_at = self._compacted_recheck_at = 0.0

    def work_once(self) -> None:
        link = self._link
        state = read_cluster_state(link.config, link.destination.name)
        if state.active_run(link.mirror.name) is not None:
            return  # the run compares, and only it may write
        ranges = read_parity_scope(link, state).ranges
        if not any(offsets.start < offsets.end for offsets in ranges):
            return
        if ranges == self._verified_ranges and time.monotonic() < self._recheck_at:
            return
        began_s = time.monotonic()
        store = ProofStore(link, state.verifications.get(link.mirror.name))
        with_compacted = began_s >= self._compacted_recheck_at
        save = partial(self._save_proof, store)
        save_if_due = limit_rate(save, SAVE_INTERVAL_S, due_at=began_s + SAVE_INTERVAL_S)
        recent = set() if with_compacted else state.partitions.get(link.mirror.name, {}).keys() - self._in_doubt
        result, proof, _ = compare_unverified(
            link,
            state,
            ranges,
            self._compare,
            compare_all=False,
            save_proof=save_if_due,
            recent=recent,
            now_ms=SteadyClock(read_broker_time_ms(link.destination)).now_ms,
        )
        self._report_result(result)
        save(proof)
        self._in_doubt = result.undecided_partitions
        if with_compacted:
            self._compacted_recheck_at = began_s + IDLE_INTERVAL_S
        if result.verdict is ParityVerdict.PASSED:
            self._verified_ranges, self._recheck_at = ranges, time.monotonic() + IDLE_INTERVAL_S

    def _compare(self, ranges: Sequence[ParityRange], on_partial_result: OnParityProgress) -> ParityResult:
        mirror = self._link.mirror
        return check_parity(
            self._link.config.path,
            mirror.source_identity,
            mirror.destination_identity,
            ranges,
            None,
            run=self._run_tasks,
            tasks=1,
            level=LEVEL_RECORDS,
            chunk=CHUNK_OFFSETS,
            demands=None,
            on_progress=on_partial_result,
            throttle=self._bytes_per_s,
        )

    def _run_tasks(self, tasks: Sequence[CompareTask]) -> Iterator[Sequence[ParityRow]]:
        """In this thread: the process would wait for a pool at its end."""
        for task in tasks:
            if self._stop.is_set():
                raise _ComparisonStopped
            yield compare_task(task)

    def _save_proof(self, store: ProofStore, proof: MirrorVerification) -> None:
        try:
            store.save_proof(proof)
        except HeldByRun:
            raise
        except Refused as error:  # stopped, or deleted
            raise _ComparisonStopped from error

    def _report_result(self, result: ParityResult) -> None:
        self._counters.set_findings(len(result.findings) + len(result.damage_findings))
        if result.verdict is ParityVerdict.INDETERMINATE:
            self._counters.count_retry(RetriedWork.VERIFICATION)
            if not result.undecided_partitions or result.undecided_partitions - {
                finding.partition for finding in result.damage_findings
            }:
                _log.info("compared in part: %s", "; ".join(result.reasons[:MAX_LISTED_FINDINGS]))
        differences = tuple(
            f"{f.partition} at {f.offset}: {f.kind}: {f.detail}" for f in result.findings[:MAX_LISTED_FINDINGS]
        )
        damaged = tuple(finding.detail for finding in result.damage_findings[:MAX_LISTED_FINDINGS])
        if (differences or damaged) and (differences, damaged) != self._reported:
            if differences:
                count = format_count(len(result.findings), "finding")
                self._report(f"THE COPY DIFFERS from its source, {count}: {'; '.join(differences)}")
            if damaged:
                count = format_count(len(result.damage_findings), "place")
                self._report(f"CANNOT BE READ, and so not compared, {count}: {'; '.join(damaged)}")
                self._report(UNREADABLE_ADVICE)
            name = self._link.mirror.name
            self._report(f"`mirrorbook parity {name}` shows all; offsets before the first such place stay proved")
        self._reported = differences, damaged
