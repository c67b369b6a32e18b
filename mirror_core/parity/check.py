"""A parity check from its question to its evidence, wherever its tasks run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from mirror_core.parity.compare import CompareTask, compare, read_ends

RunTasks = Callable[[Sequence[CompareTask]], Sequence[Row]]
SoFar = Callable[[ParityResult], None]
"""Told after each round what was compared by then, while more is to come."""

THREADS: Final = 4
SELDOM: Final = 20
"""What was compared so far is told when this many times as long has gone by as telling took: a table grows long."""


class LocalParity:
    """Compares in threads of this process: for the short span before a promotion, and for the night without Spark."""

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
        """`throttle`: bytes per second that are read of each cluster, by all threads together. `values`: as in
        `CompareTask`."""
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
        with KEPT.keeping():  # each round has tasks of its own: far away, signing in would take longer than reading
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

    def _run(self, tasks: Sequence[CompareTask]) -> Sequence[Row]:
        with ThreadPoolExecutor(self._threads) as pool:
            return [row for rows in pool.map(compare, tasks) for row in rows]


def share_of(throttle: int | None, tasks: int) -> int | None:
    """Of each of so many tasks that read at the same time."""
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
    """Look at both ends, compare in at most `tasks` tasks at a time, judge; write the report when `output` is given.

    What cannot be reached makes the result indeterminate and is named in its reasons; only a wrong request raises.
    `opened_by_tasks`: the configuration that tasks open, where it is not `config_path`.
    `throttle`: bytes per second that each task may read of each cluster. `values`: findings show what differs.
    With `demands` Great Expectations judges the same table when a report is written, and must agree.
    """
    if not ENDS <= level <= RECORDS:
        raise BadRequest(f"parity level {level}: there are 1 (ends and counts), 2 (digests) and 3 (records)")
    started, began = time.time(), time.monotonic()
    config = load_config(config_path)
    task = partial(
        CompareTask,
        config_path=str((opened_by_tasks or config_path).absolute()),  # links stay: they lead elsewhere on an executor
        source=source,
        destination=destination,
        level=level,
        chunk=chunk,
        throttle=throttle,
        values=values,
    )
    ends, shared = _look_at_ends(config, source, destination, ranges)
    rows, said_at, said_for = Rows(ends), 0.0, 0.0
    planned = rounds(shared, tasks, chunk) if level > ENDS else iter(())
    shares = next(planned, None)
    while shares is not None:
        rows.add(run([task(pieces=pieces) for pieces in shares]))
        shares, now = next(planned, None), time.monotonic()
        if so_far is not None and shares is not None and now - said_at >= SELDOM * said_for:
            so_far(judge(ranges, fill_gaps(ranges, rows.all, level), level))
            said_at = time.monotonic()
            said_for = said_at - now
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
    """Rows about the ends, and what both sides hold of each range."""
    config.cluster(source), config.cluster(destination)
    rows = [_no_ends(wanted, wanted.unseen) for wanted in ranges if wanted.unseen]
    ranges = [wanted for wanted in ranges if not wanted.unseen]
    if not ranges:
        return rows, []
    try:
        found = read_ends(config, source, destination, [wanted.partition for wanted in ranges])
    except RemoteFault as error:
        return [*rows, *(_no_ends(wanted, str(error)) for wanted in ranges)], []
    ends, cleaned, shared = found.ends, found.cleaned, []
    for wanted in ranges:
        if why := found.unseen.get(wanted.partition):
            rows.append(_no_ends(wanted, why))
            continue
        if wanted.partition not in ends:
            rows.append(
                _no_ends(wanted, f"cluster {source} has no such partition (any more?): nothing to compare with")
            )
            continue
        known, both = compare_ends(wanted, *ends[wanted.partition])
        rows += known
        topic = wanted.partition.topic
        shared.append(replace(both, compacted=topic in cleaned.somewhere, unkeyed_go=topic in cleaned.on_both))
    return rows, shared


def _no_ends(wanted: ParityRange, error: str) -> Row:
    return Row(partition=wanted.partition, chunk=-1, start=wanted.start, end=wanted.end, level=ENDS, error=error)
