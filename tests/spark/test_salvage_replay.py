"""Salvaged records are written back whole, in order, and each once; with Spark and without."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from mirror_core.evidence.table_schemas import SALVAGE, SALVAGE_REPLAYS
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.kafka.log_offsets import OffsetPoint, list_offset_points, list_offsets
from mirror_core.kafka.log_reader import LogReader
from mirror_core.model.errors import BadRequest, Refused
from mirror_core.model.names import Offset, Partition
from mirror_core.parity.salvage import MANIFEST, LocalSalvage
from mirror_core.spark import salvage_job
from tests.spark import work
from tests.support.cli_process import invoked
from tests.support.kafka_clients import Pair, new_topic
from tests.support.parity_topics import Content, content, send, twin_topics, whole
from tests.support.saved_tails import replay_login, saved_rows
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    # PySpark leaves the sockets of collected results to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]

RUNNERS = ["local", "spark"]
RECORDS = 60


@pytest.fixture
def config(pair: Pair, tmp_path: Path) -> Iterator[Path]:
    with replay_login(pair, tmp_path / "replay.yaml") as path:
        yield path


@pytest.fixture
def saved(pair: Pair, tmp_path: Path) -> tuple[str, Path]:
    """The topic, and a salvage of two partitions of it on east that west has a part of."""
    topic = twin_topics(pair, partitions=2)
    return topic, save(pair, topic, tmp_path / "salvage")


def save(pair: Pair, topic: str, folder: Path) -> Path:
    for partition in (0, 1):
        send(pair.east, topic, content(RECORDS), partition)
    send(pair.west, topic, others(content(RECORDS)))
    ranges = [whole(topic, RECORDS, partition=partition) for partition in (0, 1)]
    LocalSalvage(pair.config_path)(pair.identities[0], ranges, folder, pair.identities[1])
    return folder


def others(records: list[Content]) -> list[Content]:
    """The same of the first ten, another value of the next ten, and nothing of the rest."""
    return [*records[:10], *(replace(record, value=b"west's") for record in records[10:20])]


def replayed(*arguments: object, exit_code: int = 0) -> dict[str, Any]:
    result = invoked("salvage", "replay", *map(str, arguments), "--json")
    assert result.exit_code == exit_code, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def written(*arguments: object, exit_code: int = 0) -> dict[str, Any]:
    """What a dry run has shown."""
    planned = replayed(*arguments)["plan_hash"]
    return replayed(*arguments, "--plan-hash", planned, exit_code=exit_code)


def records_in(pair: Pair, topic: str, partition: int) -> list[tuple[object, ...]]:
    """West's committed records, in order, without their offsets."""
    west, wanted = load_config(pair.config_path).cluster("west"), Partition(topic, partition)
    with ClusterClient(west) as client, LogReader(west) as reader:
        points = [OffsetPoint.STABLE_END, OffsetPoint.LOG_END]

        def is_decided() -> bool:
            stable_end, log_end = (ends[wanted] for ends in list_offset_points(client, [wanted], points).values())
            return stable_end == log_end

        # The end of a transaction is answered before its marker is in each log.
        wait_until(is_decided, timeout_s=30.0, why="the last transaction's marker is there")
        end = list_offsets(client, [wanted], OffsetPoint.STABLE_END)[wanted]
        return [tuple(record)[1:] for _, record in reader.records(wanted, Offset(0), end)]


def records_saved(folder: Path, partition: int, *matches: str) -> list[tuple[object, ...]]:
    return [
        (
            row["timestamp_ms"],
            row["key"],
            row["value"],
            tuple((header["name"], header["value"]) for header in row["headers"]),
        )
        for row in saved_rows(folder)
        if row["partition"] == partition and (not matches or row["match"] in matches)
    ]


@pytest.mark.parametrize("runner", RUNNERS)
def test_chosen_records_come_back_whole_in_order_and_once(
    pair: Pair, config: Path, saved: tuple[str, Path], tmp_path: Path, runner: str
) -> None:
    topic, folder = saved
    target = new_topic(pair.west, 2, retention_ms="-1")
    chosen: list[object] = [folder, "--cluster", "west", "--to", f"{topic}={target}", "--runner", runner]
    chosen += ["--match", "missing", "--match", "conflicting", "--config", config, "--table", tmp_path / "replays"]
    planned = replayed(*chosen)
    wanted = {partition: records_saved(folder, partition, "missing", "conflicting") for partition in (0, 1)}
    counted = {(row["partition"], row["match"]): row["records"] for row in planned["chosen"]}
    assert counted[0, "conflicting"] > 0
    assert sum(counted.values()) == planned["records"] == sum(map(len, wanted.values()))
    assert records_in(pair, target, 0) == [], "a dry run writes nothing"
    assert not (tmp_path / "replays").exists()
    for before in (0, 1):
        told = replayed(*chosen, "--plan-hash", planned["plan_hash"])
        for row in told["partitions"]:
            count = len(wanted[row["partition"]])
            assert (row["outcome"], row["selected"], row["written"]) == ("written", count, count)
            assert row["written_before"] == before * count, "a repeat writes nothing twice"
        assert {partition: records_in(pair, target, partition) for partition in (0, 1)} == wanted
    report = pq.read_table(tmp_path / "replays")
    assert report.schema.names == SALVAGE_REPLAYS.schema.names
    assert report.num_rows == 4
    assert set(report["replay"].to_pylist()) == {planned["plan_hash"]}


def test_both_runners_plan_the_same(pair: Pair, config: Path, saved: tuple[str, Path]) -> None:
    topic, folder = saved
    target = new_topic(pair.west, 2)
    chosen = [folder, "--cluster", "west", "--to", f"{topic}={target}", "--config", config]
    narrowed = [*chosen, "--partition", 1, "--offsets", "7:31", "--match", "missing"]
    for arguments in (chosen, narrowed):
        local, spark = (replayed(*arguments, "--runner", runner) for runner in RUNNERS)
        assert local == spark
    numbers = range(7, 31)
    kept = [row for row in saved_rows(folder) if row["partition"] == 1 and row["offset"] in numbers]
    assert local["records"] == len([row for row in kept if row["match"] == "missing"]) > 0


def test_a_condition_in_sql_chooses_records(pair: Pair, config: Path, saved: tuple[str, Path], tmp_path: Path) -> None:
    topic, folder = saved
    target = new_topic(pair.west, 2, retention_ms="-1")
    chosen = [folder, "--cluster", "west", "--to", f"{topic}={target}", "--config", config]
    chosen += ["--table", tmp_path / "replays"]
    where = "partition = 0 and cast(value as string) like '% value 3_' and offset % 2 = 0"
    told = written(*chosen, "--runner", "spark", "--where", where)
    assert told["records"] == len([n for n in range(30, 40, 2) if n % 11 != 10]) == len(records_in(pair, target, 0))
    with pytest.raises(BadRequest, match="--runner spark"):
        replayed(*chosen, "--where", where)
    with pytest.raises(BadRequest, match="nonsense"):
        replayed(*chosen, "--runner", "spark", "--where", "nonsense = 1")


def new_topic_in_tasks(spark: SparkSession, pair: Pair, tasks: int) -> str:
    """Spark chooses a partition's task by the hash of its topic's name and of its number."""
    while True:
        topic = twin_topics(pair, partitions=2)
        chosen = spark.range(2).selectExpr(f"pmod(hash('{topic}', cast(id as int)), 2) as task")
        if chosen.distinct().count() == tasks:
            return topic


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_killed_worker_writes_each_record_once(
    spark: SparkSession, pair: Pair, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    topic = new_topic_in_tasks(spark, pair, tasks)
    folder = save(pair, topic, tmp_path / "salvage")
    target = new_topic(pair.west, 2, retention_ms="-1")
    monkeypatch.setattr(salvage_job, "replay_saved", work.replay_saved_or_die)
    chosen = [folder, "--cluster", "west", "--to", f"{topic}={target}", "--config", config]
    told = written(*chosen, "--runner", "spark", "--table", tmp_path / "replays")
    for row in told["partitions"]:
        assert records_in(pair, target, row["partition"]) == records_saved(folder, row["partition"])
        assert (row["outcome"], row["written"]) == ("written", RECORDS)
    interrupted = [row for row in told["partitions"] if row["written_before"] >= 7]
    assert len(interrupted) == tasks, "in each task the attempts before had written a part of its first partition"


@pytest.mark.parametrize("runner", RUNNERS)
def test_what_a_broker_refuses_is_said_and_the_rest_is_written(
    pair: Pair, config: Path, saved: tuple[str, Path], tmp_path: Path, runner: str
) -> None:
    topic, folder = saved
    target = new_topic(pair.west, 2, cleanup_policy="compact")  # refuses records without a key
    chosen = [folder, "--cluster", "west", "--to", f"{topic}={target}", "--config", config]
    chosen += ["--table", tmp_path / "replays", "--runner", runner]
    told = written(*chosen, exit_code=1)
    assert {(row["outcome"], row["written"]) for row in told["partitions"]} == {("incomplete", 0)}
    assert all(
        re.search("cannot write saved offsets from .*INVALID_RECORD", row["error"]) for row in told["partitions"]
    )
    assert [records_in(pair, target, partition) for partition in (0, 1)] == [[], []]


def test_another_selection_topic_or_cluster_than_that_of_the_dry_run_is_refused(
    pair: Pair, config: Path, saved: tuple[str, Path]
) -> None:
    topic, folder = saved
    target = new_topic(pair.west, 2)
    chosen = [folder, "--cluster", "west", "--to", f"{topic}={target}", "--config", config]
    planned = replayed(*chosen)["plan_hash"]
    east_id = pair.identities[0].id
    rest = ["--config", config]
    refused: list[tuple[list[object], str]] = [
        ([*chosen, "--match", "missing", "--plan-hash", planned], "Repeat it"),
        ([*chosen, "--cluster-id", east_id], f"--cluster-id asks for {east_id}"),
        (
            [folder, "--cluster", "west", "--to", f"{topic}=absent", "--config", config],
            "has no topic absent",
        ),
        ([folder, "--cluster", "west", "--to", f"{topic}=__mirrorbook_state", *rest], "internal topic"),
        ([folder, "--cluster", "west", "--to", f"{topic}={new_topic(pair.west)}", *rest], "it needs 2"),
    ]
    for arguments, reason in refused:
        with pytest.raises(Refused, match=reason):
            replayed(*arguments)
    with pytest.raises(BadRequest, match="no finished salvage"):
        replayed(folder.parent, *chosen[1:])
    with pytest.raises(BadRequest, match="login of its own"):
        replayed(*chosen[:-1], pair.config_path)


def test_headers_that_no_client_writes_as_they_were_are_refused(pair: Pair, config: Path, tmp_path: Path) -> None:
    folder, target = tmp_path / "salvage", new_topic(pair.west)
    record = {"topic": "saved", "partition": 0, "timestamp_ms": 1, "timestamp_type": "CreateTime", "key": b"k"}
    names = [b"plain", b"\xff", b"a\0b"]
    rows = [
        record | {"offset": number, "value": b"", "headers": [{"name": name, "value": None}], "match": None}
        for number, name in enumerate(names)
    ]
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema=SALVAGE.schema), folder / "part.parquet")
    (folder / MANIFEST).write_text("[]", encoding="utf-8")
    chosen = [folder, "--cluster", "west", "--to", f"saved={target}", "--config", config]
    with pytest.raises(Refused, match="saved-0 offset 1"):
        replayed(*chosen)
    told = written(*chosen, "--offsets", ":1", "--table", tmp_path / "replays")
    assert told["records"] == 1
    assert records_in(pair, target, 0) == [(1, b"k", b"", ((b"plain", None),))]
