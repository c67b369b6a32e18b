"""Salvage keeps every record whole, counts what it saved, and is never overwritten; with Spark and without."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mirror_core.model.errors import Refused
from mirror_core.model.names import ClusterName, Partition
from mirror_core.model.parity_verdict import SalvageMatch
from mirror_core.parity import salvage as salvaging
from mirror_core.parity.salvage import LocalSalvage, SalvageIncomplete, salvage_records
from mirror_core.runbook.run_services import TailSalvage
from mirror_core.spark import salvage_job as spark_salvage
from mirror_core.spark.salvage_job import SparkSalvage
from tests.support.kafka_clients import Pair, new_topic
from tests.support.parity_topics import START_MS, Content, content, send, twin_topics, whole
from tests.support.saved_tails import saved_rows

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


def make_logs() -> list[tuple[list[Content], list[Content]]]:
    """Tails of one cluster, and the other one's logs."""
    sent, chosen = content(40), random.Random(20_261_129)

    def draw(count: int) -> list[Content]:
        data = [None, b"", b"a", b"b", b"ab"]
        return [Content(chosen.choice(data), chosen.choice(data), START_MS + number) for number in range(count)]

    one_key = [replace(record, key=b"one key") for record in sent]
    unkeyed = [replace(record, key=None) for record in sent]
    return [
        (sent, [*sent[:10], *(replace(record, value=b"west's") for record in sent[10:20])]),
        ([*sent[:5], replace(sent[5], aborted=True), *sent[6:]], sent[4:8]),
        (one_key, one_key[20:]),
        (unkeyed, unkeyed),
        (sent, []),
        (unkeyed, sent),
        *((draw(40), draw(chosen.randrange(30))) for _ in range(6)),
    ]


def test_both_runners_find_the_same_on_the_other_cluster(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pair of logs is a partition."""
    monkeypatch.setattr(salvaging, "_MAX_SCANNED_OFFSETS", 7)
    logs = make_logs()
    topic = twin_topics(pair, partitions=len(logs))
    for partition, (tail, other) in enumerate(logs):
        send(pair.east, topic, tail, partition)
        send(pair.west, topic, other, partition)
    ranges = [whole(topic, len(tail), start=3, partition=index) for index, (tail, _) in enumerate(logs)]
    saved = {
        name: make(pair.config_path)(pair.identities[0], ranges, tmp_path / name, pair.identities[1])
        for name, make in (("local", in_process), ("spark", on_spark))
    }
    assert saved["spark"] == saved["local"]
    assert saved_rows(tmp_path / "spark") == saved_rows(tmp_path / "local")
    assert {match for one in saved["local"].values() for match in one.matches} == {*SalvageMatch}
    for file in (tmp_path / "spark").rglob("*.parquet"):
        for _, rows in itertools.groupby(pq.read_table(file).to_pylist(), key=itemgetter("partition")):
            offsets = [row["offset"] for row in rows]
            assert offsets == sorted(offsets)
            assert len(offsets) > 30, "a partition's records are together: a replay without Spark needs that"


def test_an_in_process_salvage_refuses_a_tail_whose_keys_take_too_much_memory(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(salvaging, "MAX_MATCHED_OFFSETS", 19)
    topic = filled(pair, content(20))
    with pytest.raises(Refused, match=rf"(?s){topic}-0: 20 offsets .*--runner spark"):
        in_process(pair.config_path)(pair.identities[0], [whole(topic, 20)], tmp_path / "tail", pair.identities[1])
    assert not (tmp_path / "tail").exists()
    saved = in_process(pair.config_path)(pair.identities[0], [whole(topic, 20)], tmp_path / "tail")
    assert [one.records for one in saved.values()] == [20], "without a second cluster no key is kept"


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
