"""Parity as a Spark job; each task reads raw batches of both clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from mirror_core.decide.parity import CHUNK_OFFSETS, RECORDS, Row
from mirror_core.evidence.folders import Folder, is_url, local_folder
from mirror_core.evidence.suites import PARITY, Demands
from mirror_core.model.names import ClusterName
from mirror_core.model.parity import ParityRange, ParityResult
from mirror_core.parity import certified
from mirror_core.parity.certified import CertifiedTask
from mirror_core.parity.check import check, share_of
from mirror_core.parity.compare import CompareTask, unread
from mirror_core.parity.so_far import SoFar
from mirror_core.spark.hadoop import HadoopFolder
from mirror_core.spark.jobs import results
from mirror_core.spark.parity_task import compare_json, rows_of, verify_json
from mirror_core.spark.session import NO_CONF, context, first_line
from mirror_core.spark.slots import slots_wanted

APP: Final = "mirrorbook-parity"
OURS: Final = Demands(suite=PARITY)
TASKS_PER_SLOT: Final = 2


class SparkProof:
    """Tasks and folders for `parity.certificate_check`."""

    def __init__(
        self, master: str = "local[*]", *, cores: int | None = None, conf: Mapping[str, str] = NO_CONF
    ) -> None:
        self._spark = partial(context, APP, master, cores, conf)

    @property
    def tasks(self) -> int:
        return self._spark().defaultParallelism * TASKS_PER_SLOT

    def folder(self, place: str) -> Folder:
        return HadoopFolder(self._spark(), place) if is_url(place) else local_folder(place)

    def run(self, tasks: Sequence[CertifiedTask]) -> Sequence[Row]:
        payloads = tuple(msgspec.json.encode(task) for task in tasks)
        try:
            spark = self._spark()
            with slots_wanted(spark, f"Spark, proof of {len(tasks)} shares"):
                answers = results(spark, verify_json, payloads)
        except (PySparkException, Py4JError, OSError) as error:
            return [row for task in tasks for row in certified.unread(task, f"Spark gave up: {first_line(error)}")]
        return [row for answer in answers for row in rows_of(answer)]


class SparkParity:
    """A `runbook.run_services.ParityCheck`. Spark starts at the first call.

    Each task opens `config_path` (or `opened_by_tasks`), which must exist on every executor.
    """

    def __init__(
        self,
        config_path: Path,
        master: str = "local[*]",
        *,
        demands: Demands | None = OURS,
        level: int = RECORDS,
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
        so_far: SoFar | None = None,
    ) -> ParityResult:
        spark = context(APP, self._master, self._cores, self._conf)
        return check(
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
            so_far=so_far,
            throttle=share_of(self._throttle, spark.defaultParallelism),
            values=self._values,
            opened_by_tasks=self._opened_by_tasks,
        )

    def _run(self, tasks: Sequence[CompareTask]) -> Sequence[Sequence[Row]]:
        payloads = tuple(msgspec.json.encode(task) for task in tasks)
        try:
            spark = context(APP, self._master, self._cores, self._conf)
            with slots_wanted(spark, f"Spark, parity of {len(tasks)} shares"):
                answers = results(spark, compare_json, payloads)
        except (PySparkException, Py4JError, OSError) as error:
            return [unread(task, f"Spark gave up: {first_line(error)}") for task in tasks]
        return [rows_of(answer) for answer in answers]
