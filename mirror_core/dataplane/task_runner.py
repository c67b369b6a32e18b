"""Where copying tasks run: executors of Spark, or threads of this process."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar, Final, Protocol

from mirror_core.copy import task as copy_task
from mirror_core.dataplane.epoch_planner import to_assigned
from mirror_core.decide.verification import read_verified
from mirror_core.evidence.file_store import Folder, open_local_folder
from mirror_core.model.errors import MirrorError, PartitionFailed, Unreachable
from mirror_core.model.mirror import list_copy_ids
from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import Assignment, ListenAddress, Receipt, TaskReport, TrimmedRange
from mirror_core.model.text import format_count
from mirror_core.model.timing import now_ms, read_steady_s
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_topic import read_state
from mirror_core.sync.topic_compaction import TopicRelaxation


class RunnerGone(MirrorError):
    """Only a new process can have another runner."""

    retryable: ClassVar[bool] = False


class Runner(Protocol):
    slots: int
    """Tasks of one epoch; twice as many while two overlap."""

    listening: ListenAddress

    def submit(self, assignments: Sequence[Assignment]) -> Future[tuple[TaskReport, ...]]: ...

    def folder(self, place: str) -> Folder:
        """Raises BadRequest when the runner does not reach it."""

    def close(self, *, are_asked: bool = False) -> bool:
        """Waits until tasks have ended, or are cancelled. A second call does nothing. `are_asked`: they hear that
        they should end. True: some were cancelled, and may still write until they are dead.
        """


_ROUND_S: Final = 10.0
_COMPARISON_S: Final = 120.0
"""For a comparison after its round: interrupted, it would start anew in each."""
STALL_TIMEOUT_S: Final = 60.0
"""Applications stand still while a run copies: without progress it reports, and operators decide."""
RecordTrimmed = Callable[[Sequence[TrimmedRange]], None]


class LocalRunner:
    """One task fills a core: threads share the interpreter, so more do not copy faster."""

    def __init__(self, slots: int = 1) -> None:
        self.slots = slots
        self.listening = ListenAddress()
        self._pool = ThreadPoolExecutor(2 * slots + 1, thread_name_prefix="copy")
        self._is_cancelled = threading.Event()

    def submit(self, assignments: Sequence[Assignment]) -> Future[tuple[TaskReport, ...]]:
        tasks = [self._pool.submit(copy_task.run, assignment, self._is_cancelled.is_set) for assignment in assignments]
        future: Future[tuple[TaskReport, ...]] = Future()

        def gather() -> None:
            try:
                future.set_result(tuple(task.result() for task in tasks))
            except BaseException as error:  # noqa: BLE001 - it is handed to whoever waits, not swallowed
                future.set_exception(error)

        threading.Thread(target=gather, name="copy-reports", daemon=True).start()
        return future

    def folder(self, place: str) -> Folder:
        return open_local_folder(place)

    def close(self, *, are_asked: bool = False) -> bool:
        self._is_cancelled.set()
        self._pool.shutdown(wait=True)
        return False


def find_unreached(ends: Mapping[Partition, Offset], receipts: Iterable[Receipt]) -> dict[Partition, Offset]:
    furthest: dict[Partition, Offset] = {}
    for receipt in receipts:
        furthest[receipt.partition] = max(receipt.next, furthest.get(receipt.partition, receipt.next))
    return {unreached: end for unreached, end in ends.items() if furthest.get(unreached, -1) < end}


class LocalCopy:
    """Implements `runbook.run_services.InProcessCopy`: the caller copies what is left of a mirror."""

    def __init__(self, link: MirrorLink) -> None:
        self.link = link

    def __call__(
        self,
        ends: dict[Partition, Offset],
        timeout_s: float,
        promise_end: Callable[[float], None],
        record_trimmed: RecordTrimmed,
    ) -> None:
        """Copies up to these ends (next offsets), which must not move; raises when it cannot."""
        deadline_s, moved_at = read_steady_s() + timeout_s, time.monotonic()
        remaining, furthest = dict(ends), dict[Partition, Offset]()
        easing = TopicRelaxation(self.link.source, self.link.destination, report=lambda line: None)
        for round_number in itertools.count():
            if not remaining:
                return
            end_s = min(read_steady_s() + _ROUND_S, deadline_s)
            assignment = self._assignment(remaining, end_s, deadline_s)
            promise_end(end_s)
            report = copy_task.run(assignment)
            record_trimmed(report.trimmed_ranges)
            failures = [
                failure for failure in report.failures if not easing.relax_topic(failure, round_number, round_number)
            ]
            if failures:
                raise PartitionFailed("; ".join(failure.reason for failure in failures))
            positions = {r.partition: r.next for r in report.receipts}
            if any(offset > furthest.get(p, -1) for p, offset in positions.items()):
                furthest, moved_at = {**furthest, **positions}, time.monotonic()
            remaining = find_unreached(remaining, report.receipts)
            is_stalled = time.monotonic() - moved_at > STALL_TIMEOUT_S
            if remaining and (is_stalled or read_steady_s() >= deadline_s):
                partition, end = min(remaining.items())
                reason = report.retry_reason or "there was not enough time"
                problem = (
                    f"for {STALL_TIMEOUT_S:.0f} s nothing came of"
                    if is_stalled
                    else f"{timeout_s:.0f} s were too short for"
                )
                raise Unreachable(
                    f"mirror {self.link.mirror.name}: {problem} {format_count(len(remaining), 'partition')} not copied"
                    f" to the end ({partition} up to {end}): {reason}"
                )

    def _assignment(self, ends: dict[Partition, Offset], end_s: float, deadline_s: float) -> Assignment:
        """`end_s`, `deadline_s`: steady clock."""
        mirror, start_ms, left_s = self.link.mirror, now_ms(), end_s - read_steady_s()
        stop_ms = start_ms + math.ceil(left_s * 1000)
        # As recorded: a source truncated or recreated since must not pass for the copied one.
        state = read_state(self.link.destination)
        statuses = state.partitions.get(mirror.name, {})
        # Partitions verified to their end are not compared again while applications stand still.
        verified = read_verified(state.verifications.get(mirror.name), list_copy_ids(statuses.values()))
        hold_ms = self.link.config.deletion_hold_ms(mirror.name)
        return Assignment(
            mirror=mirror.name,
            source=mirror.source,
            destination=mirror.destination,
            config_path=str(self.link.config.path),
            producer_id=mirror.producer_id,
            gaps=mirror.gaps,
            partitions=tuple(
                to_assigned(statuses[p], end, verified.get(p), hold_ms=hold_ms) for p, end in sorted(ends.items())
            ),
            epoch=0,
            task=0,
            start_ms=start_ms,
            stop_ms=stop_ms,
            submitted_ms=start_ms,
            comparison_grace_s=max(0.0, min(_COMPARISON_S, deadline_s - end_s)),
        )
