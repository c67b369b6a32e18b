"""Runs a parity check's tasks anywhere, reports progress, writes the evidence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from mirror_core.decide.parity_result import (
    CHUNK_OFFSETS,
    LEVEL_ENDS,
    LEVEL_RECORDS,
    ParityRow,
    ParityRowBuffer,
    compare_log_bounds,
    fill_missing_rows,
    judge_rows,
    merge_equal_rows,
    plan_rounds,
)
from mirror_core.evidence.expectation_suites import TableExpectations
from mirror_core.evidence.parity_report import write_parity_report
from mirror_core.kafka.config import Config, load_config
from mirror_core.kafka.connection_pool import CONNECTION_POOL
from mirror_core.model.errors import BadRequest, RemoteFault
from mirror_core.model.names import ClusterIdentity, ClusterName
from mirror_core.model.parity_verdict import ParityRange, ParityResult
from mirror_core.parity.comparable_ranges import format_missing_partition
from mirror_core.parity.compare import CompareTask, compare_task, list_compacted_topics, read_ends

OnParityProgress = Callable[[ParityResult], None]
PROGRESS_INTERVAL_S: Final = 5.0
"""Minimum time between reports."""
PROGRESS_COST_FACTOR: Final = 20
"""Pause this many times as long as the last report took."""
PARTITIONS_PER_S: Final = 500
"""Pause a second for so many partitions: records of 50 bytes each make 90 MB an hour at most."""


class ParityProgress:
    """Reporting costs as much as is new."""

    def __init__(
        self, on_progress: OnParityProgress, ranges: Sequence[ParityRange], level: int, ends: Sequence[ParityRow]
    ) -> None:
        self._on_progress, self._ranges, self._level = on_progress, ranges, level
        self._known, self._new = list(ends), list[ParityRow]()
        self._due_at = time.monotonic() + self._pause_s(0.0)

    def add(self, rows: Sequence[ParityRow]) -> None:
        """Reports what is new when it is due."""
        self._new += rows
        began = time.monotonic()
        if not self._new or began < self._due_at:
            return
        self._known, self._new = merge_equal_rows([*self._known, *self._new]), []
        self._on_progress(
            judge_rows(self._ranges, fill_missing_rows(self._ranges, self._known, self._level), self._level)
        )
        ended = time.monotonic()
        self._due_at = ended + self._pause_s(ended - began)

    def _pause_s(self, took_s: float) -> float:
        return max(PROGRESS_INTERVAL_S, PROGRESS_COST_FACTOR * took_s, len(self._ranges) / PARTITIONS_PER_S)


# Yields rows as tasks end, and empty batches while none do.
RunCompareTasks = Callable[[Sequence[CompareTask]], Iterable[Sequence[ParityRow]]]
DEFAULT_THREADS: Final = 4
PROGRESS_TICK_S: Final = 1.0


class LocalParity:
    def __init__(
        self,
        config_path: Path,
        *,
        threads: int = DEFAULT_THREADS,
        level: int = LEVEL_RECORDS,
        chunk: int = CHUNK_OFFSETS,
        demands: TableExpectations | None = None,
        throttle: int | None = None,
        values: bool = False,
    ) -> None:
        """`throttle`: bytes per second read of each cluster by all threads. `values`: as in `CompareTask`."""
        self._config_path = config_path
        self._threads = threads
        self._level = level
        self._chunk = chunk
        self._demands = demands
        self._throttle = throttle
        self._values = values

    def __call__(
        self,
        source: ClusterIdentity,
        destination: ClusterIdentity,
        ranges: Sequence[ParityRange],
        output: Path | None,
        on_progress: OnParityProgress | None = None,
    ) -> ParityResult:
        with (
            CONNECTION_POOL.keep_connections()
        ):  # each round has new tasks: logins to a far cluster would take longer than reading
            return check_parity(
                self._config_path,
                source,
                destination,
                ranges,
                output,
                run=self._run,
                tasks=self._threads * 2,
                at_once=self._threads,
                level=self._level,
                chunk=self._chunk,
                demands=self._demands,
                on_progress=on_progress,
                throttle=self._throttle,
                values=self._values,
            )

    def _run(self, tasks: Sequence[CompareTask]) -> Iterator[Sequence[ParityRow]]:
        pool = ThreadPoolExecutor(self._threads)
        try:
            pending = {pool.submit(compare_task, task) for task in tasks}
            while pending:
                done, pending = wait(pending, PROGRESS_TICK_S, FIRST_COMPLETED)
                yield [row for future in done for row in future.result()]
        finally:  # do not wait for reads under way when a progress report raises
            pool.shutdown(wait=False, cancel_futures=True)


def divide_throttle(throttle: int | None, tasks: int) -> int | None:
    return None if throttle is None else max(1, throttle // max(1, tasks))


def check_parity(
    config_path: Path,
    source: ClusterIdentity,
    destination: ClusterIdentity,
    ranges: Sequence[ParityRange],
    output: Path | None,
    *,
    run: RunCompareTasks,
    tasks: int,
    at_once: int = 1,
    level: int,
    chunk: int,
    demands: TableExpectations | None,
    on_progress: OnParityProgress | None = None,
    throttle: int | None = None,
    values: bool = False,
    opened_by_tasks: Path | None = None,
) -> ParityResult:
    """Compares both ends, then chunks in at most `tasks` tasks at a time; writes the report to `output`.

    What cannot be reached makes the result indeterminate; only a wrong request raises. `opened_by_tasks`: configuration
    for tasks. `throttle`: bytes per second of each cluster, shared by `at_once` tasks. With `demands` Great
    Expectations judges the report's table and must agree.
    """
    if not LEVEL_ENDS <= level <= LEVEL_RECORDS:
        raise BadRequest(f"parity level {level}: there are 1 (ends and counts), 2 (digests) and 3 (records)")
    started, began = time.time(), time.monotonic()
    config = load_config(config_path)
    task = partial(
        CompareTask,
        config_path=str(
            (opened_by_tasks or config_path).absolute()
        ),  # not resolved: links lead elsewhere on an executor
        source=source,
        destination=destination,
        level=level,
        chunk=chunk,
        values=values,
    )
    ends, shared = compare_ends(config, source, destination, ranges)
    rows, progress = ParityRowBuffer(ends), ParityProgress(on_progress, ranges, level, ends) if on_progress else None
    for shares in plan_rounds(shared, tasks, chunk) if level > LEVEL_ENDS else ():
        share = divide_throttle(throttle, min(at_once, len(shares)))
        for new_rows in run([task(pieces=pieces, throttle=share) for pieces in shares]):
            rows.add(new_rows)
            if progress:
                progress.add(new_rows)
    return judge_comparison(
        ranges,
        rows.rows,
        output,
        source=source.name,
        destination=destination.name,
        level=level,
        started=started,
        seconds=time.monotonic() - began,
        demands=demands,
    )


def judge_comparison(
    ranges: Sequence[ParityRange],
    rows: Sequence[ParityRow],
    output: Path | None,
    *,
    source: ClusterName,
    destination: ClusterName,
    level: int,
    started: float,
    seconds: float,
    demands: TableExpectations | None,
) -> ParityResult:
    """Ranges without a row were not compared. `started`: seconds since the epoch."""
    table = fill_missing_rows(ranges, rows, level)
    result = replace(judge_rows(ranges, table, level), seconds=round(seconds, 3))
    if output is None:
        return result
    return write_parity_report(
        output, result, table, source=source, destination=destination, level=level, started=started, demands=demands
    )


def compare_ends(
    config: Config, source: ClusterIdentity, destination: ClusterIdentity, ranges: Sequence[ParityRange]
) -> tuple[list[ParityRow], list[ParityRange]]:
    """Rows about the ends, and the range that both sides hold."""
    rows = [_to_unknown_end_row(wanted, wanted.unreadable_reason) for wanted in ranges if wanted.unreadable_reason]
    ranges = [wanted for wanted in ranges if not wanted.unreadable_reason]
    if not ranges:
        return rows, []
    try:
        both_ends = read_ends(config, source, destination, [wanted.partition for wanted in ranges])
        comparisons = [
            compare_log_bounds(w, *both_ends.ends[w.partition]) if w.partition in both_ends.ends else None
            for w in ranges
        ]
        common = [
            common_range for _, common_range in filter(None, comparisons) if common_range.start < common_range.end
        ]
        compacted = list_compacted_topics(
            config, source, destination, {common_range.partition.topic for common_range in common}
        )
    except RemoteFault as error:
        return [*rows, *(_to_unknown_end_row(wanted, str(error)) for wanted in ranges)], []
    shared = []
    for wanted, compared in zip(ranges, comparisons, strict=True):
        if compared is None:
            reason = both_ends.unknown.get(wanted.partition) or format_missing_partition(source.name)
            rows.append(_to_unknown_end_row(wanted, reason))
            continue
        end_rows, common_range = compared
        rows += end_rows
        topic = wanted.partition.topic
        shared.append(
            replace(common_range, compacted=topic in compacted.somewhere, removes_unkeyed=topic in compacted.on_both)
        )
    return rows, shared


def _to_unknown_end_row(wanted: ParityRange, error: str) -> ParityRow:
    return ParityRow(
        partition=wanted.partition, chunk=-1, start=wanted.start, end=wanted.end, level=LEVEL_ENDS, error=error
    )
