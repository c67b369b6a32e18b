"""A planned comparison as a DataFrame: each task reads both sides of its spans, and executors write the rows.

Every span gets a row, also one that kills its worker. The last attempt of a task compares nothing: with one span it
writes an error row, with several it writes none, and `write_rows` compares each of them in a task of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mirror_core.decide.parity_spans import ParitySpan, pack_spans
from mirror_core.evidence.table_schemas import PARITY_ROWS, build_ddl
from mirror_core.model.errors import RemoteFault
from mirror_core.model.text import format_count
from mirror_core.parity.parity_plan import ParityPlan
from mirror_core.parity.parity_table import encode_span_task, format_table_folder, make_span_tasks
from mirror_core.spark.executor_tasks import compare_batches
from mirror_core.spark.job_submission import (
    create_payload_frame,
    format_run_tag,
    require_task_slot,
    wait_for_task_slots,
)
from mirror_core.spark.session import TASK_ATTEMPTS, format_job_error

if TYPE_CHECKING:
    from pyspark.sql.pandas._typing import ArrowMapIterFunction

_LOCAL_MASTER: Final = re.compile(r"local(?:\[[^,\]]+(?:,(\d+))?\])?")


def run(spark: SparkSession, plan: ParityPlan, *, alone: Sequence[ParitySpan] | None = None) -> DataFrame:
    """Table `parity_rows`. `alone`: some of the plan's spans, each in a task of its own.

    Each action on it reads both clusters anew.
    """
    packed = [(span,) for span in alone] if alone is not None else _pack_all(spark, plan, plan.spans)
    return _compare(spark, plan, packed)


def write_rows(spark: SparkSession, plan: ParityPlan, location: str) -> list[ParitySpan]:
    """Append rows of the spans that have none to a Parquet table. Returns these spans.

    Raises RemoteFault when Spark gives up; what was written stays, and is not compared again.
    """
    compared = list_missing_spans(spark, plan, location)
    if compared:
        _write(spark, plan, _pack_all(spark, plan, compared), location)
    if left := list_missing_spans(spark, plan, location):
        _write(spark, plan, [(span,) for span in left], location)
    return compared


def _pack_all(spark: SparkSession, plan: ParityPlan, spans: Sequence[ParitySpan]) -> list[tuple[ParitySpan, ...]]:
    """With a throttle one task for each slot: more at once, on late executors, would exceed it."""
    return pack_spans(spans, wait_for_task_slots(spark.sparkContext) if plan.throttle else None)


def _compare(spark: SparkSession, plan: ParityPlan, packed: Sequence[tuple[ParitySpan, ...]]) -> DataFrame:
    if not packed:
        return spark.createDataFrame([], PARITY_ROWS.ddl)
    payloads = [encode_span_task(task) for task in make_span_tasks(plan, packed, len(packed))]
    compare = partial(compare_batches, count_task_attempts(spark.sparkContext) - 1)
    rows = create_payload_frame(spark, payloads).mapInArrow(
        cast("ArrowMapIterFunction", compare), build_ddl(PARITY_ROWS.columns)
    )
    return rows.withColumn("mirror", F.lit(plan.mirror)).withColumn("plan", F.lit(plan.digest))


def _write(spark: SparkSession, plan: ParityPlan, packed: Sequence[tuple[ParitySpan, ...]], location: str) -> None:
    spans = [span for task in packed for span in task]
    size_gb = sum(span.size_bytes for span in spans) / 1e9
    job_name = f"{plan.mirror}: parity, {format_count(len(spans), 'span')}, {size_gb:.1f} GB"
    tags = (f"mirror={plan.mirror}", format_run_tag(plan.digest))
    rows = _compare(spark, plan, packed)
    writer = rows.write.mode("append").option("compression", "zstd").partitionBy("mirror", "plan")
    try:
        with require_task_slot(spark.sparkContext, job_name, tags=tags):
            writer.parquet(location)
    except (PySparkException, Py4JError, OSError) as error:
        raise RemoteFault(
            f"comparison of mirror {plan.mirror}: Spark gave up: {format_job_error(error)}. What was written stays: run"
            " it again with the same plan and table"
        ) from None


def list_missing_spans(spark: SparkSession, plan: ParityPlan, location: str) -> list[ParitySpan]:
    """Those of which the table has no row."""
    try:
        rows = spark.read.schema("span string").parquet(f"{location.rstrip('/')}/{format_table_folder(plan)}")
        present = {row.span for row in rows.distinct().collect()}
    except AnalysisException as error:
        if "PATH_NOT_FOUND" not in str(error):
            raise
        present = set()
    return [span for span in plan.spans if span.id not in present]


def count_task_attempts(context: SparkContext) -> int:
    """Spark ignores the setting on a local master, which has a number of its own."""
    if local := _LOCAL_MASTER.fullmatch(str(context.master)):
        return int(local[1] or 1)
    return int(context.getConf().get("spark.task.maxFailures", str(TASK_ATTEMPTS)) or TASK_ATTEMPTS)
