"""Salvage keeps every record whole, counts what it saved, and is never overwritten; with Spark and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mirror_core.model.errors import Refused
from mirror_core.model.names import ClusterName, Partition
from mirror_core.parity.salvage import LocalSalvage, SalvageIncomplete, salvage_records
from mirror_core.runbook.run_services import TailSalvage
from mirror_core.spark import salvage_job as spark_salvage
from mirror_core.spark.salvage_job import SparkSalvage
from tests.support.kafka_clients import Pair, new_topic
from tests.support.parity_topics import Content, content, send, whole

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    # PySpark leaves the sockets of collected results to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]

EAST = ClusterName("east")
Make = Callable[[Path], TailSalvage]


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that Spark saves the few records of these tests."""
    monkeypatch.setattr(spark_salvage, "MAX_LOCAL_OFFSETS", 0)


def on_spark(config: Path) -> TailSalvage:
    return SparkSalvage(config, "local[2]")


def in_process(config: Path) -> TailSalvage:
    return LocalSalvage(config)


def filled(pair: Pair, records: list[Content], partitions: int = 1) -> str:
    topic = new_topic(pair.east, partitions, retention_ms="-1")
    for partition in range(partitions):
        send(pair.east, topic, records, partition, compression_type="lz4")
    return topic


@pytest.mark.parametrize("make", [on_spark, in_process])
def test_all_of_every_record_is_saved(pair: Pair, tmp_path: Path, make: Make) -> None:
    records = content(200)
    records[150:152] = [replace(records[150], aborted=True)]
    topic = filled(pair, records, partitions=2)
    ranges = [whole(topic, 200, start=120), whole(topic, 50, start=7, partition=1)]
    saved = make(pair.config_path)(pair.identities[0], ranges, tmp_path / "tail")
    assert {p: s.records for p, s in saved.items()} == {Partition(topic, 0): 78, Partition(topic, 1): 43}
    table = pq.read_table(tmp_path / "tail").sort_by([("partition", "ascending"), ("offset", "ascending")])
    rows = table.to_pylist()
    wanted = [(0, n) for n in range(120, 200) if n not in (150, 151)] + [(1, n) for n in range(7, 50)]
    assert [(row["partition"], row["offset"]) for row in rows] == wanted
    sent = content(200)
    for row in rows:
        record = sent[row["offset"]]
        assert (row["topic"], row["key"], row["value"]) == (topic, record.key, record.value)
        assert (row["timestamp_ms"], row["timestamp_type"]) == (record.timestamp_ms, "CreateTime")
        assert [(h["name"].decode(), h["value"]) for h in row["headers"]] == list(record.headers)


@pytest.mark.parametrize("make", [on_spark, in_process])
def test_a_second_run_leaves_the_first_alone_and_tells_the_same(pair: Pair, tmp_path: Path, make: Make) -> None:
    topic = filled(pair, content(20))
    first = make(pair.config_path)(pair.identities[0], [whole(topic, 20)], tmp_path / "tail")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "tail").iterdir()}
    assert make(pair.config_path)(pair.identities[0], [whole(topic, 20)], tmp_path / "tail") == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "tail").iterdir()} == before
    with pytest.raises(Refused, match="other ranges"):
        make(pair.config_path)(pair.identities[0], [whole(topic, 19)], tmp_path / "tail")


def test_few_records_are_saved_before_spark_would_have_started(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(pair, content(20), partitions=2)
    ranges = [whole(topic, 20), whole(topic, 20, partition=1)]
    monkeypatch.setattr(spark_salvage, "get_spark_session", lambda *_: pytest.fail("Spark is started for 40 offsets"))
    monkeypatch.setattr(spark_salvage, "MAX_LOCAL_OFFSETS", 40)
    saved = on_spark(pair.config_path)(pair.identities[0], ranges, tmp_path / "tail")
    assert [one.records for one in saved.values()] == [20, 20]
    monkeypatch.setattr(spark_salvage, "MAX_LOCAL_OFFSETS", 39)
    with pytest.raises(pytest.fail.Exception, match="40 offsets"):
        on_spark(pair.config_path)(pair.identities[0], ranges, tmp_path / "another")


def test_a_folder_of_something_else_is_refused(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Refused, match="no finished salvage"):
        LocalSalvage(pair.config_path)(pair.identities[0], [whole("any", 1)], tmp_path)


def test_an_empty_tail_is_saved_as_nothing(pair: Pair, tmp_path: Path) -> None:
    topic = filled(pair, content(5))
    saved = LocalSalvage(pair.config_path)(pair.identities[0], [whole(topic, 5, start=5)], tmp_path / "tail")
    assert {p: s.records for p, s in saved.items()} == {Partition(topic, 0): 0}


def test_a_writer_that_loses_records_is_found_out(pair: Pair, tmp_path: Path) -> None:
    topic = filled(pair, content(20))

    def lossy(tasks: object, folder: Path) -> None:
        LocalSalvage(pair.config_path)(pair.identities[0], [whole(topic, 19)], tmp_path / "other")
        (saved,) = (tmp_path / "other").glob("*.parquet")
        saved.rename(folder / "part.parquet")

    with pytest.raises(SalvageIncomplete, match="19 saved, 20 in the log"):
        salvage_records(pair.config_path, pair.identities[0], [whole(topic, 20)], tmp_path / "tail", write=lossy)
    assert not (tmp_path / "tail").exists()
