"""Parity as a Spark job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from mirror_core.decide.parity_result import CHUNK_OFFSETS, LEVEL_RECORDS, ParityRow
from mirror_core.evidence.expectation_suites import PARITY, TableExpectations
from mirror_core.evidence.file_store import Folder, is_url, open_local_folder
from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import ClusterIdentity
from mirror_core.model.parity_verdict import ParityRange, ParityResult
from mirror_core.parity import certificate_check
from mirror_core.parity.certificate_check import CertificateTask
from mirror_core.parity.check import OnParityProgress, check_parity
from mirror_core.parity.compare import CompareTask, to_unread_rows
from mirror_core.spark.copy_executor import TaskFunction
from mirror_core.spark.executor_tasks import parse_parity_rows, run_certified_task, run_compare_task
from mirror_core.spark.hadoop_store import HadoopFolder
from mirror_core.spark.job_submission import run_each, wait_for_task_slots
from mirror_core.spark.session import NO_CONF, format_job_error, get_spark_context

PARITY_APP: Final = "mirrorbook-parity"
DEFAULT_DEMANDS: Final = TableExpectations(suite=PARITY)
TASKS_PER_SLOT: Final = 2


class SparkCertificateCheck:
    """Tasks and folders for `parity.certificate_check`."""

    def __init__(
        self, master: str = "local[*]", *, cores: int | None = None, conf: Mapping[str, str] = NO_CONF
    ) -> None:
        self._get_context = partial(get_spark_context, PARITY_APP, master, cores, conf)

    @property
    def tasks(self) -> int:
        return _count_slots(self._get_context) * TASKS_PER_SLOT

    def folder(self, location: str) -> Folder:
        return HadoopFolder(self._get_context(), location) if is_url(location) else open_local_folder(location)

    def run(self, tasks: Sequence[CertificateTask]) -> Sequence[ParityRow]:
        results = run_shares(self._get_context, "proof", run_certified_task, tasks, -(-len(tasks) // TASKS_PER_SLOT))
        return [
            row
            for task, result in zip(tasks, results, strict=True)
            for row in (
                certificate_check.to_unread_certificate_rows(task, result) if isinstance(result, str) else result
            )
        ]


class SparkParity:
    """A `runbook.run_services.ParityCheck`. Spark starts at the first call.

    Each task opens `config_path` (or `opened_by_tasks`), which must exist on every executor.
    """

    def __init__(
        self,
        config_path: Path,
        master: str = "local[*]",
        *,
        demands: TableExpectations | None = DEFAULT_DEMANDS,
        level: int = LEVEL_RECORDS,
        chunk: int = CHUNK_OFFSETS,
        cores: int | None = None,
        conf: Mapping[str, str] = NO_CONF,
        throttle: int | None = None,
        values: bool = False,
        opened_by_tasks: Path | None = None,
    ) -> None:
        self._config_path = config_path
        self._opened_by_tasks = opened_by_tasks
        self._get_context = partial(get_spark_context, PARITY_APP, master, cores, conf)
        self._demands = demands
        self._level = level
        self._chunk = chunk
        self._conf = conf
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
        slots = _count_slots(self._get_context)
        return check_parity(
            self._config_path,
            source,
            destination,
            ranges,
            output,
            run=partial(self._run, slots),  # more at once, on late executors, would exceed the throttle
            tasks=slots * TASKS_PER_SLOT,
            at_once=slots,
            level=self._level,
            chunk=self._chunk,
            demands=self._demands,
            on_progress=on_progress,
            throttle=self._throttle,
            values=self._values,
            opened_by_tasks=self._opened_by_tasks,
        )

    def _run(self, at_once: int, tasks: Sequence[CompareTask]) -> Sequence[Sequence[ParityRow]]:
        results = run_shares(self._get_context, "parity", run_compare_task, tasks, at_once)
        return [
            to_unread_rows(task, result) if isinstance(result, str) else result
            for task, result in zip(tasks, results, strict=True)
        ]


def _count_slots(get_context: Callable[[], SparkContext]) -> int:
    try:
        return wait_for_task_slots(get_context())
    except (PySparkException, Py4JError, OSError) as error:
        reason = format_job_error(error)
        raise RemoteFault(
            f"comparison: Spark gave up before it began: {reason}. Nothing was compared: repeat it"
        ) from None


def run_shares(
    get_context: Callable[[], SparkContext],
    what: str,
    work: TaskFunction,
    tasks: Sequence[CompareTask] | Sequence[CertificateTask],
    at_once: int,
) -> Sequence[tuple[ParityRow, ...] | str]:
    """Rows of each share, or why there are none."""
    payloads = [msgspec.json.encode(task) for task in tasks]
    try:
        results = run_each(get_context(), f"Spark, {what} of {len(tasks)} shares", work, payloads, at_once)
    except (PySparkException, Py4JError, OSError) as error:
        return [f"Spark gave up: {format_job_error(error)}" for _ in tasks]
    return [
        parse_parity_rows(result) if isinstance(result, bytes) else f"Spark gave up: {format_job_error(result)}"
        for result in results
    ]
