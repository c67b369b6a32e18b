"""`spark.read.format("mirrorbook")` on Spark 4, and `read_records` on every version.

Committed records only, without what fills gaps. Options: `parity.record_scan.RecordScanOptions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from mirror_core.parity.record_scan import RecordScan, parse_options, plan_record_scan
from mirror_core.spark.executor_tasks import read_table, read_table_payload
from mirror_core.spark.job_submission import create_payload_frame

if TYPE_CHECKING:
    from pyspark.sql.pandas._typing import ArrowMapIterFunction

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
except ImportError:  # Spark 3.5
    has_data_sources = False
else:
    has_data_sources = True

    class MirrorbookDataSource(DataSource):
        """`spark.dataSource.register(MirrorbookDataSource)`, then format "mirrorbook"."""

        @classmethod
        def name(cls) -> str:
            return "mirrorbook"

        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options)
            self.table = plan_record_scan(parse_options(options))

        def schema(self) -> str:
            return self.table.ddl

        def reader(self, schema: object) -> DataSourceReader:
            return RecordScanReader(self.table)

    class RecordScanReader(DataSourceReader):
        def __init__(self, table: RecordScan) -> None:
            self.table = table

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(payload) for payload in encode_tasks(self.table)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            return read_table_payload(cast("bytes", partition.value))


def read_records(spark: SparkSession, **options: str) -> DataFrame:
    """Also on Spark 3.5. Raises BadRequest, and errors of the cluster."""
    table = plan_record_scan(parse_options(options))
    return create_payload_frame(spark, encode_tasks(table)).mapInArrow(
        cast("ArrowMapIterFunction", read_table), table.ddl
    )


def encode_tasks(table: RecordScan) -> list[bytes]:
    """One for each range, and at least one: Spark cannot plan a table without. No secrets: Spark shows them."""
    tasks = [replace(table, ranges=(wanted,)) for wanted in table.ranges]
    return [msgspec.json.encode(task) for task in tasks or [table]]
