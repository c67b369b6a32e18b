"""Parity as a Spark job; each task reads raw batches of both clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from mirror_core.decide.parity_result import CHUNK_OFFSETS, LEVEL_RECORDS, ParityRow
from mirror_core.evidence.file_store import Folder, is_url, open_local_folder
from mirror_core.evidence.suites import PARITY, TableExpectations
from mirror_core.model.names import ClusterName
from mirror_core.model.parity_verdict import ParityRange, ParityResult
from mirror_core.parity import certificate_check
from mirror_core.parity.certificate_check import CertificateTask
from mirror_core.parity.check import OnParityProgress, check_parity, divide_throttle
from mirror_core.parity.compare import CompareTask, to_unread_rows
from mirror_core.spark.hadoop_store import HadoopFolder
from mirror_core.spark.job_submission import require_task_slot, run_job
from mirror_core.spark.parity_executor import parse_parity_rows, run_certified_task, run_compare_task
from mirror_core.spark.session import NO_CONF, format_first_line, get_spark_context

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
        return self._get_context().defaultParallelism * TASKS_PER_SLOT

    def folder(self, location: str) -> Folder:
        return HadoopFolder(self._get_context(), location) if is_url(location) else open_local_folder(location)

    def run(self, tasks: Sequence[CertificateTask]) -> Sequence[ParityRow]:
        payloads = tuple(msgspec.json.encode(task) for task in tasks)
        try:
            spark = self._get_context()
            with require_task_slot(spark, f"Spark, proof of {len(tasks)} shares"):
                encoded_rows = run_job(spark, run_certified_task, payloads)
        except (PySparkException, Py4JError, OSError) as error:
            return [
                row
                for task in tasks
                for row in certificate_check.to_unread_certificate_rows(
                    task, f"Spark gave up: {format_first_line(error)}"
                )
            ]
        return [row for encoded in encoded_rows for row in parse_parity_rows(encoded)]


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
        self._master = master
        self._demands = demands
        self._level = level
        self._chunk = chunk
        self._cores = cores
        self._conf = conf
        self._throttle = throttle
        self._values = values

    def __call__(
        self,
        source: ClusterName,
        destination: ClusterName,
        ranges: Sequence[ParityRange],
        output: Path | None,
        on_progress: OnParityProgress | None = None,
    ) -> ParityResult:
        spark = get_spark_context(PARITY_APP, self._master, self._cores, self._conf)
        return check_parity(
            self._config_path,
            source,
            destination,
            ranges,
            output,
            run=self._run,
            tasks=spark.defaultParallelism * TASKS_PER_SLOT,
            level=self._level,
            chunk=self._chunk,
            demands=self._demands,
            on_progress=on_progress,
            throttle=divide_throttle(self._throttle, spark.defaultParallelism),
            values=self._values,
            opened_by_tasks=self._opened_by_tasks,
        )

    def _run(self, tasks: Sequence[CompareTask]) -> Sequence[Sequence[ParityRow]]:
        payloads = tuple(msgspec.json.encode(task) for task in tasks)
        try:
            spark = get_spark_context(PARITY_APP, self._master, self._cores, self._conf)
            with require_task_slot(spark, f"Spark, parity of {len(tasks)} shares"):
                encoded_rows = run_job(spark, run_compare_task, payloads)
        except (PySparkException, Py4JError, OSError) as error:
            return [to_unread_rows(task, f"Spark gave up: {format_first_line(error)}") for task in tasks]
        return [parse_parity_rows(encoded) for encoded in encoded_rows]
