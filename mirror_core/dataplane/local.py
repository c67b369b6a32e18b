"""Runs copying tasks in threads of this process."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from mirror_core.copy import task as copy_task
from mirror_core.dataplane.planning import assigned
from mirror_core.decide.proof import recorded
from mirror_core.evidence.folders import Folder, local_folder
from mirror_core.model.clock import now_ms
from mirror_core.model.copying import Assignment, Deletion, Listening, Receipt, TaskReport
from mirror_core.model.errors import PartitionFailed, Unreachable
from mirror_core.model.names import Offset, Partition
from mirror_core.state.link import Link
from mirror_core.state.topic import read_state
from mirror_core.sync.compaction import Easing

_ROUND_MS: Final = 10_000
_LOOKS_S: Final = 120.0
"""For a comparison after its round: interrupted, it would start anew in each."""
STALL_S: Final = 60.0
"""Applications stand still while a run copies: without progress it reports, and operators decide."""

Deleted = Callable[[Sequence[Deletion]], None]


class LocalRunner:
    """One task fills a core: threads share the interpreter, so more do not copy faster."""

    def __init__(self, slots: int = 1) -> None:
        self.slots = slots
        self.listening = Listening()
        self._pool = ThreadPoolExecutor(2 * slots + 1, thread_name_prefix="copy")
        self._cancelled = threading.Event()

    def submit(self, assignments: Sequence[Assignment]) -> Future[tuple[TaskReport, ...]]:
        tasks = [self._pool.submit(copy_task.run, a, self._cancelled.is_set) for a in assignments]
        done: Future[tuple[TaskReport, ...]] = Future()

        def gather() -> None:
            try:
                done.set_result(tuple(task.result() for task in tasks))
            except BaseException as error:  # noqa: BLE001 - it is handed to whoever waits, not swallowed
                done.set_exception(error)

        threading.Thread(target=gather, name="copy-reports", daemon=True).start()
        return done

    def folder(self, place: str) -> Folder:
        return local_folder(place)

    def close(self) -> None:
        self._cancelled.set()
        self._pool.shutdown(wait=True)


def not_reached(ends: Mapping[Partition, Offset], receipts: Iterable[Receipt]) -> dict[Partition, Offset]:
    furthest: dict[Partition, Offset] = {}
    for receipt in receipts:
        furthest[receipt.partition] = max(receipt.next, furthest.get(receipt.partition, receipt.next))
    return {p: end for p, end in ends.items() if furthest.get(p, -1) < end}


class LocalCopy:
    """Implements `runbook.services.Copy`: the caller copies what is left of a mirror."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def __call__(
        self, ends: dict[Partition, Offset], timeout_s: float, until: Callable[[int], None], deleted: Deleted
    ) -> None:
        """Copies up to these ends (next offsets), which must not move; raises when it cannot."""
        deadline, moved = time.time() + timeout_s, time.monotonic()
        left, best = dict(ends), dict[Partition, Offset]()
        easing = Easing(self.link.source, self.link.destination, say=lambda line: None)
        for number in itertools.count():
            if not left:
                return
            assignment = self._assignment(left, deadline)
            until(assignment.stop_ms)
            report = copy_task.run(assignment)
            deleted(report.deletions)
            failures = [failure for failure in report.failures if not easing.eased(failure, number, number)]
            if failures:
                raise PartitionFailed("; ".join(failure.reason for failure in failures))
            now = {r.partition: r.next for r in report.receipts}
            if any(offset > best.get(p, -1) for p, offset in now.items()):
                best, moved = {**best, **now}, time.monotonic()
            left = not_reached(left, report.receipts)
            stalled = time.monotonic() - moved > STALL_S
            if left and (stalled or time.time() >= deadline):
                partition, end = min(left.items())
                why = report.retry or "there was not enough time"
                within = f"for {STALL_S:.0f} s nothing came of" if stalled else f"{timeout_s:.0f} s were too short for"
                raise Unreachable(
                    f"mirror {self.link.mirror.name}: {within} {len(left)} partition(s) that are not copied to their "
                    f"end ({partition} up to {end}): {why}"
                )

    def _assignment(self, ends: dict[Partition, Offset], deadline_s: float) -> Assignment:
        mirror, start_ms = self.link.mirror, now_ms()
        stop_ms = min(start_ms + _ROUND_MS, int(deadline_s * 1000) + 1)
        # As recorded: a source truncated or recreated since must not pass for the copied one.
        state = read_state(self.link.destination)
        statuses = state.partitions.get(mirror.name, {})
        # Partitions verified to their end are not compared again while applications stand still.
        ids = {partition.topic: status.destination_topic_id for partition, status in statuses.items()}
        proved = recorded(state.proofs.get(mirror.name), ids)
        return Assignment(
            mirror=mirror.name,
            source=mirror.source,
            destination=mirror.destination,
            config_path=str(self.link.config.path),
            producer_id=mirror.producer_id,
            gaps=mirror.gaps,
            partitions=tuple(assigned(statuses[p], end, proved.get(p)) for p, end in sorted(ends.items())),
            epoch=0,
            task=0,
            start_ms=start_ms,
            stop_ms=stop_ms,
            looks_s=max(0.0, min(_LOOKS_S, deadline_s - stop_ms / 1000)),
        )
