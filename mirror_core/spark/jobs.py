"""A job of one task for each payload. By RDD: to plan it as a query takes Spark seconds, for a table nobody wants."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pyspark import SparkContext

from mirror_core.spark.task import Work, each


def results(context: SparkContext, work: Work, payloads: Sequence[bytes], *, barrier: bool = False) -> list[bytes]:
    """`work`, a module's function, done for each payload, on executors; raises whatever Spark raises.

    `barrier`: all of them at the same time, or not at all.
    """
    # The payloads travel inside the function: as rows they would lie where Spark keeps its blocks.
    function = partial(each, work, tuple(payloads))
    numbers = context.parallelize(range(len(payloads)), len(payloads))
    rows = numbers.barrier().mapPartitionsWithIndex(function) if barrier else numbers.mapPartitionsWithIndex(function)
    return rows.collect()
