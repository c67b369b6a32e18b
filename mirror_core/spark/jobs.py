"""An RDD job, since planning a query takes Spark seconds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pyspark import SparkContext

from mirror_core.spark.task import TaskFunction, run_numbered_task


def run_job(
    context: SparkContext, work: TaskFunction, payloads: Sequence[bytes], *, barrier: bool = False
) -> list[bytes]:
    """Runs a module's function on each payload. Raises Spark's errors.

    `barrier`: all at once or none.
    """
    # Payloads travel in the function: rows would be stored in Spark's blocks.
    function = partial(run_numbered_task, work, tuple(payloads))
    numbers = context.parallelize(range(len(payloads)), len(payloads))
    rows = numbers.barrier().mapPartitionsWithIndex(function) if barrier else numbers.mapPartitionsWithIndex(function)
    return rows.collect()
