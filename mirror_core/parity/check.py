"""A parity check from its question to its evidence, wherever its tasks run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from mirror_core.decide.parity import CHUNK_OFFSETS, ENDS, RECORDS, Row, compare_ends, fill_gaps, judge, share
from mirror_core.evidence.parity_report import write_report
from mirror_core.kafka.config import Config, load_config
from mirror_core.model.errors import BadRequest, RemoteFault
from mirror_core.model.names import ClusterName
from mirror_core.model.parity import ParityRange, ParityResult
from mirror_core.parity.compare import CompareTask, compare, read_ends

RunTasks = Callable[[Sequence[CompareTask]], Sequence[Row]]

THREADS: Final = 4


class LocalParity:
    """Compares in threads of this process: for the short span before a promotion, and for the night without Spark."""

    def __init__(
        self,
        config_path: Path,
        *,
        threads: int = THREADS,
        level: int = RECORDS,
        chunk: int = CHUNK_OFFSETS,
        expectations: bool = False,
    ) -> None:
        self._config_path = config_path
        self._threads = threads
        self._level = level
        self._chunk = chunk
        self._expectations = expectations

    def __call__(
        self, source: ClusterName, destination: ClusterName, ranges: Sequence[ParityRange], output: Path | None
    ) -> ParityResult:
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
            expectations=self._expectations,
        )

    def _run(self, tasks: Sequence[CompareTask]) -> Sequence[Row]:
        with ThreadPoolExecutor(self._threads) as pool:
            return [row for rows in pool.map(compare, tasks) for row in rows]


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
    expectations: bool,
) -> ParityResult:
    """Look at both ends, compare in at most `tasks` tasks, judge, and write the report when `output` is given.

    What cannot be reached makes the result indeterminate and is named in its reasons; only a wrong request raises.
    With `expectations` Great Expectations judges the same table, and must agree.
    """
    if not ENDS <= level <= RECORDS:
        raise BadRequest(f"parity level {level}: there are 1 (ends and counts), 2 (digests) and 3 (records)")
    started, began = time.time(), time.monotonic()
    config = load_config(config_path)
    rows, shared = _look_at_ends(config, source, destination, ranges)
    if level > ENDS and shared:
        work = [
            CompareTask(
                config_path=str(config.path.resolve()),
                source=source,
                destination=destination,
                level=level,
                chunk=chunk,
                pieces=pieces,
            )
            for pieces in share(shared, tasks, chunk)
        ]
        rows += run(work) if work else ()
    table = fill_gaps(ranges, rows, level)
    result = replace(judge(ranges, table, level), seconds=round(time.monotonic() - began, 3))
    if output is None:
        return result
    return write_report(
        output, result, table, source=source, destination=destination, level=level, started=started, judge=expectations
    )


def _look_at_ends(
    config: Config, source: ClusterName, destination: ClusterName, ranges: Sequence[ParityRange]
) -> tuple[list[Row], list[ParityRange]]:
    """Rows about the ends, and what both sides hold of each range."""
    config.cluster(source), config.cluster(destination)
    if not ranges:
        return [], []
    try:
        ends, cleaned = read_ends(config, source, destination, [wanted.partition for wanted in ranges])
    except RemoteFault as error:
        return [_no_ends(wanted, str(error)) for wanted in ranges], []
    rows: list[Row] = []
    shared = []
    for wanted in ranges:
        if wanted.partition not in ends:
            rows.append(
                _no_ends(wanted, f"cluster {source} has no such partition (any more?): nothing to compare with")
            )
            continue
        found, both = compare_ends(wanted, *ends[wanted.partition])
        rows += found
        topic = wanted.partition.topic
        shared.append(replace(both, compacted=topic in cleaned.somewhere, unkeyed_go=topic in cleaned.on_both))
    return rows, shared


def _no_ends(wanted: ParityRange, error: str) -> Row:
    return Row(partition=wanted.partition, chunk=-1, start=wanted.start, end=wanted.end, level=ENDS, error=error)
