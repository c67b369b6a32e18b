from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from mirror_core.decide.parity import CHUNK_OFFSETS, ENDS, RECORDS, Row, compare_ends, fill_gaps, judge, rounds
from mirror_core.decide.parity_rows import Rows
from mirror_core.evidence.parity_report import write_report
from mirror_core.evidence.suites import Demands
from mirror_core.kafka.config import Config, load_config
from mirror_core.kafka.kept import KEPT
from mirror_core.model.errors import BadRequest, RemoteFault
from mirror_core.model.names import ClusterName
from mirror_core.model.parity import ParityRange, ParityResult
from mirror_core.parity.compare import CompareTask, cleaned_of, compare, read_ends
from mirror_core.parity.scope import nothing_to_compare_with
from mirror_core.parity.so_far import SoFar, Telling

RunTasks = Callable[[Sequence[CompareTask]], Iterable[Sequence[Row]]]
"""Yields rows as tasks end, and empty batches while none do."""

THREADS: Final = 4
TICK_S: Final = 1.0


class LocalParity:
    """Compares in threads of this process."""

    def __init__(
        self,
        config_path: Path,
        *,
        threads: int = THREADS,
        level: int = RECORDS,
        chunk: int = CHUNK_OFFSETS,
        demands: Demands | None = None,
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
        source: ClusterName,
        destination: ClusterName,
        ranges: Sequence[ParityRange],
        output: Path | None,
        so_far: SoFar | None = None,
    ) -> ParityResult:
        with KEPT.keeping():  # each round has new tasks: logins to a far cluster would take longer than reading
            return check(
                self._config_path,
                source,
                destination,
                ranges,
                output,
                run=self._run,
                tasks=self._threads * 2,
                level=self._level,
                chunk=self._chunk,
                demands=self._demands,
                so_far=so_far,
                throttle=share_of(self._throttle, self._threads),
                values=self._values,
            )

    def _run(self, tasks: Sequence[CompareTask]) -> Iterator[Sequence[Row]]:
        pool = ThreadPoolExecutor(self._threads)
        try:
            left = {pool.submit(compare, task) for task in tasks}
            while left:
                done, left = wait(left, TICK_S, FIRST_COMPLETED)
                yield [row for one in done for row in one.result()]
        finally:  # do not wait for reads under way when a progress report raises
            pool.shutdown(wait=False, cancel_futures=True)


def share_of(throttle: int | None, tasks: int) -> int | None:
    return None if throttle is None else max(1, throttle // max(1, tasks))


def check(
    config_path: Path,
    source: ClusterName,
    destination: ClusterName,
    ranges: Sequence[ParityRange],
    output: Path | None,
    *,
    run: RunTasks,
    tasks: int,
    level: int,
    chunk: int,
    demands: Demands | None,
    so_far: SoFar | None = None,
    throttle: int | None = None,
    values: bool = False,
    opened_by_tasks: Path | None = None,
) -> ParityResult:
    """Compare both ends, then chunks in at most `tasks` tasks at a time; write the report to `output`.

    What cannot be reached makes the result indeterminate; only a wrong request raises. `opened_by_tasks`: configuration
    for tasks. `throttle`: bytes per second for each task and cluster. With `demands` Great Expectations judges the
    report's table and must agree.
    """
    if not ENDS <= level <= RECORDS:
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
        throttle=throttle,
        values=values,
    )
    ends, shared = _look_at_ends(config, source, destination, ranges)
    rows, telling = Rows(ends), Telling(so_far, ranges, level, ends) if so_far else None
    for shares in rounds(shared, tasks, chunk) if level > ENDS else ():
        for found in run([task(pieces=pieces) for pieces in shares]):
            rows.add(found)
            if telling:
                telling.add(found)
    table = fill_gaps(ranges, rows.all, level)
    result = replace(judge(ranges, table, level), seconds=round(time.monotonic() - began, 3))
    if output is None:
        return result
    return write_report(
        output, result, table, source=source, destination=destination, level=level, started=started, demands=demands
    )


def _look_at_ends(
    config: Config, source: ClusterName, destination: ClusterName, ranges: Sequence[ParityRange]
) -> tuple[list[Row], list[ParityRange]]:
    """Rows about the ends, and the range that both sides hold."""
    config.cluster(source), config.cluster(destination)
    rows = [_no_ends(wanted, wanted.unseen) for wanted in ranges if wanted.unseen]
    ranges = [wanted for wanted in ranges if not wanted.unseen]
    if not ranges:
        return rows, []
    try:
        found = read_ends(config, source, destination, [wanted.partition for wanted in ranges])
        known = [compare_ends(w, *found.ends[w.partition]) if w.partition in found.ends else None for w in ranges]
        held = [both for _, both in filter(None, known) if both.start < both.end]
        cleaned = cleaned_of(config, source, destination, {both.partition.topic for both in held})
    except RemoteFault as error:
        return [*rows, *(_no_ends(wanted, str(error)) for wanted in ranges)], []
    shared = []
    for wanted, seen in zip(ranges, known, strict=True):
        if seen is None:
            why = found.unseen.get(wanted.partition) or nothing_to_compare_with(source)
            rows.append(_no_ends(wanted, why))
            continue
        of_ends, both = seen
        rows += of_ends
        topic = wanted.partition.topic
        shared.append(replace(both, compacted=topic in cleaned.somewhere, unkeyed_go=topic in cleaned.on_both))
    return rows, shared


def _no_ends(wanted: ParityRange, error: str) -> Row:
    return Row(partition=wanted.partition, chunk=-1, start=wanted.start, end=wanted.end, level=ENDS, error=error)
