"""Saves divergent tails, and writes saved records back, on executors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from mirror_core.evidence.table_schemas import SALVAGE, build_ddl
from mirror_core.model.errors import BadRequest, RemoteFault
from mirror_core.model.names import ClusterIdentity, Partition
from mirror_core.model.parity_verdict import ParityRange, SalvagedPartition, SalvageMatch
from mirror_core.model.text import format_count
from mirror_core.parity.salvage import (
    TAIL_DIGEST_COLUMNS,
    SalvageTask,
    plan_tail_digests,
    salvage_records,
    write_locally,
)
from mirror_core.parity.salvage_replay import (
    ReplayCount,
    ReplayedPartition,
    ReplayPlan,
    ReplaySelection,
    limit_batch_rows,
    make_replay_task,
    merge_counts,
)
from mirror_core.spark.executor_tasks import (
    PAYLOAD_COLUMN,
    count_saved,
    digest_tails,
    read_matched_salvage,
    read_salvage,
    replay_saved,
)
from mirror_core.spark.job_submission import create_payload_frame, format_run_tag, require_task_slot
from mirror_core.spark.session import NO_CONF, format_first_line, format_job_error, get_spark_session

if TYPE_CHECKING:
    from pyspark.sql.pandas._typing import ArrowMapIterFunction

SALVAGE_APP: Final = "mirrorbook-salvage"
MAX_LOCAL_OFFSETS: Final = 10_000  # fewer are read faster without starting Spark
_MAX_WRITE_TASKS: Final = 200
_ROWS_SETTING: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_RECORD_BYTES: Final = "max(coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0))"


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
        try:
            spark = get_spark_session(SALVAGE_APP, self._master, self._cores, self._conf)
            rows = read_tails(spark, tasks)
            with require_task_slot(spark.sparkContext, f"Spark, salvage of cluster {tasks[0].cluster.name}"):
                rows.write.mode("append").option("compression", "zstd").parquet(folder.resolve().as_uri())
        except (PySparkException, Py4JError, OSError) as error:
            raise RemoteFault(
                f"salvage of cluster {tasks[0].cluster.name}: Spark gave up: {format_job_error(error)}. Nothing may be"
                " deleted now; run it again"
            ) from None


def read_tails(spark: SparkSession, tasks: Sequence[SalvageTask]) -> DataFrame:
    """Table `salvage`. Each tail in one task, in the order of its offsets."""
    if all(task.counterpart is None for task in tasks):
        payloads = [msgspec.json.encode(task) for task in tasks]
        return create_payload_frame(spark, payloads).mapInArrow(cast("ArrowMapIterFunction", read_salvage), SALVAGE.ddl)
    scans = [msgspec.json.encode(scan) for scan in plan_tail_digests(tasks)]
    digests = create_payload_frame(spark, scans).mapInArrow(
        cast("ArrowMapIterFunction", digest_tails), build_ddl(TAIL_DIGEST_COLUMNS)
    )
    return (
        match_tails(digests)
        .repartition(min(len(tasks), _MAX_WRITE_TASKS), "task")
        .sortWithinPartitions("task", "offset")
        .mapInArrow(cast("ArrowMapIterFunction", read_matched_salvage), SALVAGE.ddl)
    )


def match_tails(digests: DataFrame) -> DataFrame:
    """The tails' rows, with column `match`. Spills where memory does not suffice."""
    is_there = F.max(~F.col("is_tail"))
    match = (
        F.when(is_there.over(Window.partitionBy("task", "key", "value")), SalvageMatch.SAME_VALUE.value)
        .when(is_there.over(Window.partitionBy("task", "key")), SalvageMatch.CONFLICTING.value)
        .otherwise(SalvageMatch.MISSING.value)
    )
    rows = digests.repartition("task", "key")  # one exchange for both windows
    return rows.withColumn("match", match).where("is_tail").select("task", "offset", "match", "payload")


def count_saved_records(spark: SparkSession, location: str, selection: ReplaySelection) -> tuple[ReplayCount, ...]:
    """BadRequest for a condition that Spark does not understand."""
    try:
        selected = _select(spark, location, selection)
        with require_task_slot(spark.sparkContext, "salvage: count the chosen records"):
            largest = selected.selectExpr(_RECORD_BYTES).collect()[0][0]
            with _limit_arrow_batches(spark, limit_batch_rows(largest or 0)):
                rows = selected.mapInArrow(cast("ArrowMapIterFunction", count_saved), _PAYLOAD_DDL).collect()
    except (AnalysisException, ParseException) as error:
        raise BadRequest(f"salvage {location}: Spark cannot select records: {format_first_line(error)}") from None
    except (PySparkException, Py4JError, OSError) as error:
        raise RemoteFault(f"salvage {location}: Spark gave up: {format_job_error(error)}") from None
    return merge_counts(msgspec.json.decode(row[0], type=ReplayCount) for row in rows)


def replay_saved_records(spark: SparkSession, location: str, plan: ReplayPlan) -> list[ReplayedPartition]:
    """Each partition in one task, in the order of its offsets. RemoteFault when Spark gives up.

    A repeat of a killed task goes on where the first attempt's last transaction ended.
    """
    tasks = min(len(plan.sum_partitions()), _MAX_WRITE_TASKS)
    job_name = f"{plan.cluster.name}: replay of a salvage, {format_count(plan.records, 'record')}"
    ordered = (
        _select(spark, location, plan.selection)
        .repartition(max(1, tasks), "topic", "partition")
        .sortWithinPartitions("topic", "partition", "offset")
    )
    replay = partial(replay_saved, msgspec.json.encode(make_replay_task(plan)))
    try:
        with (
            require_task_slot(spark.sparkContext, job_name, tags=(format_run_tag(plan.hash),)),
            _limit_arrow_batches(spark, plan.rows_per_batch),
        ):
            rows = ordered.mapInArrow(cast("ArrowMapIterFunction", replay), _PAYLOAD_DDL).collect()
    except (PySparkException, Py4JError, OSError) as error:
        raise RemoteFault(f"Spark gave up: {format_job_error(error)}") from None
    return [msgspec.json.decode(row[0], type=ReplayedPartition) for row in rows]


_PAYLOAD_DDL: Final = f"{PAYLOAD_COLUMN} binary"


def _select(spark: SparkSession, location: str, selection: ReplaySelection) -> DataFrame:
    return spark.read.schema(SALVAGE.ddl).parquet(location).where(selection.to_sql())


@contextmanager
def _limit_arrow_batches(spark: SparkSession, rows: int) -> Iterator[None]:
    """Spark counts rows, not bytes."""
    before = spark.conf.get(_ROWS_SETTING)
    spark.conf.set(_ROWS_SETTING, str(rows))
    try:
        yield
    finally:
        spark.conf.set(_ROWS_SETTING, cast("str", before))
