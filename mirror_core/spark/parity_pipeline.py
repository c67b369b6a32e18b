"""A planned comparison as a DataFrame, whose rows executors write.

Every span gets a row, also one that kills its worker: the last attempt of a task compares nothing. With one span it
writes an error row; several are compared again, each in a task of its own. Two waves are in flight, so no slot waits
for a straggler.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mirror_core.decide.parity_result import ParityRow
from mirror_core.decide.parity_spans import ParitySpan, pack_spans
from mirror_core.evidence.table_schemas import PARITY_ROWS, build_ddl
from mirror_core.model.errors import BadRequest, RemoteFault
from mirror_core.model.text import format_count
from mirror_core.parity.parity_plan import ParityPlan
from mirror_core.parity.parity_table import (
    collect_parity_rows,
    encode_span_task,
    format_table_folder,
    format_wave_folder,
    is_table_name,
    make_span_tasks,
    make_wave_name,
)
from mirror_core.spark.executor_tasks import compare_batches
from mirror_core.spark.job_submission import (
    create_payload_frame,
    format_run_tag,
    require_task_slot,
    wait_for_task_slots,
)
from mirror_core.spark.session import TASK_ATTEMPTS, format_first_line, format_job_error

if TYPE_CHECKING:
    from pyspark.sql.pandas._typing import ArrowMapIterFunction

WAVES_IN_FLIGHT: Final = 2
WAVE_TASKS_PER_SLOT: Final = 4
_LOCAL_MASTER: Final = re.compile(r"local(?:\[[^,\]]+(?:,(\d+))?\])?")
_FOLDERS: Final = [column.name for column in PARITY_ROWS.folders]
_Task = tuple[ParitySpan, ...]


def run(spark: SparkSession, plan: ParityPlan, *, alone: Sequence[ParitySpan] | None = None) -> DataFrame:
    """Table `parity_rows`. `alone`: some of the plan's spans, each in a task of its own.

    Each action on it reads both clusters anew.
    """
    if alone is not None:
        packed: list[_Task] = [(span,) for span in alone]
    else:  # with a throttle one task for each slot: more at once, on late executors, would exceed it
        packed = pack_spans(plan.spans, wait_for_task_slots(spark.sparkContext) if plan.throttle else None)
    return _compare(spark, plan, packed, len(packed), make_wave_name(1))


def write_rows(
    spark: SparkSession, plan: ParityPlan, table: str, report_line: Callable[[str], None] = lambda line: None
) -> list[ParitySpan]:
    """Appends rows of the spans that have none. Returns these spans.

    `table`: location of a Parquet table, or the name of one in a catalog. RemoteFault when Spark gives up; what was
    written stays, and is not compared again.
    """
    if is_table_name(table):
        _create_table(spark, table)
    compared = list_missing_spans(spark, plan, table)
    if compared:
        _write_waves(spark, plan, pack_spans(compared), table, report_line)
    if missing := list_missing_spans(spark, plan, table):
        _write_waves(spark, plan, [(span,) for span in missing], table, report_line)
    return compared


def _compare(spark: SparkSession, plan: ParityPlan, packed: Sequence[_Task], at_once: int, wave: str) -> DataFrame:
    """`at_once`: tasks that share the throttle."""
    if not packed:
        return spark.createDataFrame([], PARITY_ROWS.ddl)
    payloads = [encode_span_task(task) for task in make_span_tasks(plan, packed, at_once)]
    compare = partial(compare_batches, count_task_attempts(spark.sparkContext) - 1)
    rows = create_payload_frame(spark, payloads).mapInArrow(
        cast("ArrowMapIterFunction", compare), build_ddl(PARITY_ROWS.columns)
    )
    folders = {"mirror": F.lit(plan.mirror), "plan": F.lit(plan.digest), "wave": F.lit(wave)}
    return rows.withColumns({name: folders[name] for name in _FOLDERS})


def cut_waves(packed: Sequence[_Task], slots: int, *, is_throttled: bool) -> tuple[list[Sequence[_Task]], int]:
    """Waves, and how many tasks may run at once. With a throttle no more than there are slots now, also if others come.

    Largest tasks first, so those of a wave take about as long.
    """
    size = max(1, slots // WAVES_IN_FLIGHT) if is_throttled else slots * WAVE_TASKS_PER_SLOT
    waves = [packed[first : first + size] for first in range(0, len(packed), size)]
    return waves, min(len(packed), size if slots < WAVES_IN_FLIGHT else size * WAVES_IN_FLIGHT)


def _write_waves(
    spark: SparkSession, plan: ParityPlan, packed: Sequence[_Task], table: str, report_line: Callable[[str], None]
) -> None:
    context = spark.sparkContext
    slots = wait_for_task_slots(context)
    waves, at_once = cut_waves(packed, slots, is_throttled=bool(plan.throttle))
    in_flight = 1 if plan.throttle and slots < WAVES_IN_FLIGHT else WAVES_IN_FLIGHT
    tags = (f"mirror={plan.mirror}", format_run_tag(plan.digest))
    has_ended, errors = threading.Event(), list[Exception]()

    def write_wave(group: str, number: int, wave: Sequence[_Task]) -> None:
        if has_ended.is_set():
            return
        description = _describe_wave(plan, wave, number, len(waves))
        context.setJobGroup(group, description, interruptOnCancel=True)  # of this thread
        for tag in tags:
            context.addJobTag(tag)
        try:
            name = make_wave_name(number)
            _append(_compare(spark, plan, wave, at_once, name), table, format_wave_folder(plan, name))
            report_line(f"{description}: written")
        except (PySparkException, Py4JError, OSError) as error:
            errors.append(error)
            has_ended.set()

    try:
        with (
            require_task_slot(context, f"{plan.mirror}: parity", tags=tags) as group,
            ThreadPoolExecutor(in_flight, thread_name_prefix="spark-wave") as threads,
        ):
            try:
                list(threads.map(partial(write_wave, group), itertools.count(1), waves))
            except BaseException:
                has_ended.set()
                context.cancelJobGroup(group)
                raise
            if errors:
                raise errors[0]
    except (PySparkException, Py4JError, OSError) as error:
        raise RemoteFault(
            f"comparison of mirror {plan.mirror}: Spark gave up: {format_job_error(error)}. What was written stays: run"
            " it again with the same plan and table"
        ) from None


def _describe_wave(plan: ParityPlan, wave: Sequence[_Task], number: int, waves: int) -> str:
    spans = [span for task in wave for span in task]
    size_gb = sum(span.size_bytes for span in spans) / 1e9
    name = f"wave {number} of {waves}" if waves > 1 else ""
    return f"{plan.mirror}: parity {name}".rstrip() + f", {format_count(len(spans), 'span')}, {size_gb:.1f} GB"


def _append(rows: DataFrame, table: str, folder: str) -> None:
    if is_table_name(table):
        rows.writeTo(table).append()
    else:
        location = f"{table.rstrip('/')}/{folder}"
        rows.drop(*_FOLDERS).write.mode("append").option("compression", "zstd").parquet(location)


def _create_table(spark: SparkSession, name: str) -> None:
    try:
        if not spark.catalog.tableExists(name):
            rows = spark.createDataFrame([], PARITY_ROWS.ddl)
            rows.writeTo(name).partitionedBy(F.col("mirror"), F.col("plan")).create()
    except (PySparkException, Py4JError) as error:
        raise BadRequest(
            f"table {name}: {format_first_line(error)}. Give the session its catalog (`--conf"
            " spark.sql.catalog.NAME=...`), or give a folder"
        ) from None


def _read_table(spark: SparkSession, plan: ParityPlan, name: str) -> DataFrame:
    return spark.table(name).where((F.col("mirror") == plan.mirror) & (F.col("plan") == plan.digest))


def read_rows(spark: SparkSession, plan: ParityPlan, name: str) -> list[ParityRow]:
    """From a catalog; `parity_table.read_parity_rows` is for folders."""

    def read(columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        for row in rows.select(*columns).toLocalIterator():
            yield row.asDict(recursive=True)

    try:
        rows = _read_table(spark, plan, name)
        return collect_parity_rows(plan, read)
    except AnalysisException as error:
        raise BadRequest(f"table {name}: {format_first_line(error)}") from None


def list_missing_spans(spark: SparkSession, plan: ParityPlan, table: str) -> list[ParitySpan]:
    try:
        if is_table_name(table):
            rows = _read_table(spark, plan, table)
        else:
            rows = spark.read.schema("span string").parquet(f"{table.rstrip('/')}/{format_table_folder(plan)}")
        present = {row.span for row in rows.select("span").distinct().collect()}
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
