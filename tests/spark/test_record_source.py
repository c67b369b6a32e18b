"""A topic's records as a DataFrame: exact, fixed when it is made, and the same by format and by function."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from mirror_core.evidence.table_schemas import build_ddl, build_schema
from mirror_core.model.errors import BadRequest
from mirror_core.parity.record_scan import COLUMNS
from mirror_core.spark.record_source import has_data_sources, read_records
from tests.support.doc_pages import DOCS
from tests.support.gap_logs import transaction, transactional
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, new_topic
from tests.support.mirrored_topics import new_mirror, replicate
from tests.support.parity_topics import content, send, twin_topics

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    # PySpark leaves the sockets of collected results to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]
Read = Callable[..., DataFrame]


def by_format(spark: SparkSession, **options: str) -> DataFrame:
    from mirror_core.spark.record_source import MirrorbookDataSource

    spark.dataSource.register(MirrorbookDataSource)
    return spark.read.format("mirrorbook").options(**options).load()


WAYS = [read_records, *([by_format] if has_data_sources else [])]


def where(pair: Pair, topic: str, cluster: str = "east") -> dict[str, str]:
    return {"config": str(pair.config_path), "cluster": cluster, "subscribe": topic}


@pytest.mark.parametrize("read", WAYS)
@pytest.mark.parametrize("least", ["1", "7"])
def test_all_of_every_committed_record_is_read(spark: SparkSession, pair: Pair, read: Read, least: str) -> None:
    topic, sent = new_topic(pair.east, 3, retention_ms="-1"), content(200)
    aborted = [*sent[:150], replace(sent[150], aborted=True), *sent[152:]]
    send(pair.east, topic, aborted, 0, compression_type="lz4")
    send(pair.east, topic, sent[:50], 1)
    table = read(spark, **where(pair, topic), startingOffsets=json.dumps({topic: {"0": 120}}), minPartitions=least)
    rows = sorted(table.collect(), key=lambda row: (row.partition, row.offset))
    wanted = [(0, n) for n in range(120, 200) if n not in (150, 151)] + [(1, n) for n in range(50)]
    assert [(row.partition, row.offset) for row in rows] == wanted
    assert table.rdd.getNumPartitions() >= int(least)
    for row in rows:
        record = sent[row.offset]
        assert (row.topic, row.key, row.value) == (topic, record.key, record.value)
        assert (row.timestamp_ms, row.timestamp_type) == (record.timestamp_ms, "CreateTime")
        assert [(header["name"].decode(), header["value"]) for header in row.headers] == list(record.headers)


@pytest.mark.parametrize("read", WAYS)
def test_two_looks_at_a_table_see_the_same_records(spark: SparkSession, pair: Pair, read: Read) -> None:
    topic = new_topic(pair.east)
    empty = read(spark, **where(pair, topic))
    send(pair.east, topic, content(20))
    full = read(spark, **where(pair, topic), columns="offset")
    send(pair.east, topic, content(20))
    assert (empty.count(), full.count(), full.count()) == (0, 20, 20)
    assert full.columns == ["offset"]


def test_the_script_of_the_docs_finds_each_difference(spark: SparkSession, pair: Pair, tmp_path: Path) -> None:
    """Up to what has been copied, and beside gaps, which have no rows on either side."""
    topic = new_topic(pair.east, 2)
    with_gaps = transactional(pair.east)
    transaction(with_gaps, topic, 5, partitions=range(2), commit=False)
    transaction(with_gaps, topic, 5, partitions=range(2), commit=True)
    replicate(new_mirror(pair, tmp_path, topic).link)
    assert run_script(pair, topic, tmp_path / "equal") == []
    twin = twin_topics(pair)
    sent = content(30)
    send(pair.east, twin, sent)
    send(pair.west, twin, [*sent[:20], replace(sent[20], headers=(("n", b"another"), ("null", None))), *sent[21:29]])
    assert run_script(pair, twin, tmp_path / "different") == [(0, 20)]


def run_script(pair: Pair, topic: str, output: Path) -> list[tuple[int, int]]:
    """What it wrote."""
    page = (DOCS / "operate" / "spark.md").read_text(encoding="utf-8")
    script = page.split("```python\n", 1)[1].split("```", 1)[0]
    assert len(script.splitlines()) <= 15
    if not has_data_sources:
        script = script.replace("import MirrorbookDataSource", "import read_records")
        script = script.replace("spark.dataSource.register(MirrorbookDataSource)\n", "")
        script = re.sub(
            r'spark\.read\.format\("mirrorbook"\)\.options\((.*)\)\.load\(\)', r"read_records(spark, \1)", script
        )
    script = script.replace("/etc/mirrorbook/mirrorbook.yaml", str(pair.config_path)).replace("orders", topic)
    exec(script.replace("/data/differences", str(output)), {})
    spark = SparkSession.getActiveSession()
    assert spark is not None
    return sorted((row.partition, row.offset) for row in spark.read.parquet(str(output)).collect())


@pytest.mark.parametrize("read", WAYS)
def test_records_deleted_before_they_were_read_are_missed_by_name(spark: SparkSession, pair: Pair, read: Read) -> None:
    topic = new_topic(pair.east, retention_ms="-1")
    send(pair.east, topic, content(20))
    table = read(spark, **where(pair, topic))
    admin = admin_client(pair.east)
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 5)]).values()
    deleted.result(TIMEOUT_S)
    with pytest.raises(PySparkException, match="the log now starts at 5"):
        table.count()


@pytest.mark.parametrize("read", WAYS)
def test_neither_plan_nor_error_shows_a_password(spark: SparkSession, pair: Pair, read: Read) -> None:
    topic, password = new_topic(pair.east), pair.east.passwords["admin"]
    send(pair.east, topic, content(5))
    table = read(spark, **where(pair, topic))
    assert password not in str(table._jdf.queryExecution().toString())
    with pytest.raises((PySparkException, BadRequest), match="addresses and credentials come from") as caught:
        read(spark, **where(pair, topic), **{"kafka.sasl.password": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_spark_and_arrow_are_told_of_the_same_columns(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = tuple(one.column for one in COLUMNS.values())
    assert from_arrow_schema(build_schema(columns)) == spark.createDataFrame([], build_ddl(columns)).schema
