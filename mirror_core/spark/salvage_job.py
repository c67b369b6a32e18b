from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from mirror_core.evidence.table_schemas import SALVAGE
from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import ClusterIdentity, Partition
from mirror_core.model.parity_verdict import ParityRange, SalvagedPartition
from mirror_core.parity.salvage import SalvageTask, salvage_records, write_locally
from mirror_core.spark.job_submission import create_payload_frame, require_task_slot
from mirror_core.spark.session import NO_CONF, format_job_error, get_spark_session
from mirror_core.spark.table_executor import read_salvage

if TYPE_CHECKING:
    from pyspark.sql.pandas._typing import ArrowMapIterFunction

SALVAGE_APP: Final = "mirrorbook-salvage"
MAX_LOCAL_OFFSETS: Final = 10_000
"""Fewer offsets are read faster without starting Spark."""


class SparkSalvage:
    def __init__(
        self,
        config_path: Path,
        master: str = "local[*]",
        *,
        cores: int | None = None,
        conf: Mapping[str, str] = NO_CONF,
        opened_by_tasks: Path | None = None,
    ) -> None:
        self._config_path = config_path
        self._opened_by_tasks = opened_by_tasks
        self._master = master
        self._cores = cores
        self._conf = conf

    def __call__(
        self,
        cluster: ClusterIdentity,
        ranges: Sequence[ParityRange],
        output: Path,
        against: ClusterIdentity | None = None,
    ) -> dict[Partition, SalvagedPartition]:
        return salvage_records(
            self._config_path,
            cluster,
            ranges,
            output,
            against,
            write=self._write,
            opened_by_tasks=self._opened_by_tasks,
        )

    def _write(self, tasks: Sequence[SalvageTask], folder: Path) -> None:
        if sum(task.range.end - task.range.start for task in tasks) <= MAX_LOCAL_OFFSETS:
            write_locally(tasks, folder)
            return
        payloads = tuple(msgspec.json.encode(task) for task in tasks)
        try:
            spark = get_spark_session(SALVAGE_APP, self._master, self._cores, self._conf)
            rows = create_payload_frame(spark, payloads).mapInArrow(
                cast("ArrowMapIterFunction", read_salvage), SALVAGE.ddl
            )
            with require_task_slot(spark.sparkContext, f"Spark, salvage of cluster {tasks[0].cluster.name}"):
                rows.write.mode("append").option("compression", "zstd").parquet(folder.resolve().as_uri())
        except (PySparkException, Py4JError, OSError) as error:
            raise RemoteFault(
                f"salvage of cluster {tasks[0].cluster.name}: Spark gave up: {format_job_error(error)}. Nothing may be"
                " deleted now; run it again"
            ) from None
