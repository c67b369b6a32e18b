"""Queries over receipts say what the brokers hold."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from mirror_core.evidence.file_store import open_local_folder
from mirror_core.evidence.receipt_files import pack_receipts, write_receipts
from mirror_core.evidence.receipt_index import CheckedReceipts
from mirror_core.kafka.config import load_config
from mirror_core.kafka.log_reader import LogReader
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.spark.receipt_queries import (
    count_lost_at,
    create_checked_receipts_view,
    create_ends_view,
    create_receipts_view,
    find_holes_and_overlaps,
    measure_throughput,
    sum_digests,
)
from mirror_core.wire.batch import DIGEST_MODULUS, compute_batch_digest
from tests.support.kafka_clients import Pair, new_topic, produce
from tests.support.mirrored_topics import new_mirror
from tests.support.replicate_process import PATIENCE_S, Progress, Writer, at_work
from tests.support.sample_receipts import MIRROR, NOON_MS, receipt
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    # PySpark leaves the sockets of collected results to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]
WEST = ClusterName("west")
KILLS = 10


def digest_of(pair: Pair, partition: Partition, end: int) -> str:
    with LogReader(load_config(pair.config_path).cluster(WEST)) as reader:
        batches = reader.batches(partition, Offset(0), Offset(end))
        total = sum(compute_batch_digest(header.base_offset, batch) for header, batch in batches)
    return f"{total % DIGEST_MODULUS:032x}"


def test_receipts_of_three_runs_say_what_the_copy_holds(spark: SparkSession, pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east, 2, retention_ms="-1")
    mirrored, folder = new_mirror(pair, tmp_path, topic), tmp_path / "receipts"
    files = list[set[Path]]()
    for count in (300, 40, 7):
        for partition in (0, 1):
            produce(pair.east, topic, count, partition=partition)
        mirrored.copy(str(folder))
        files.append({*folder.rglob("*.parquet")} - {path for earlier in files for path in earlier})
    create_receipts_view(spark, str(folder))
    ends = create_ends_view(spark, pair.config_path, WEST, [topic]).collect()
    assert [(row.partition, row.log_start, row.log_end) for row in ends] == [(0, 0, 347), (1, 0, 347)]
    assert find_holes_and_overlaps(spark, mirrored.name).collect() == []
    sums = sum_digests(spark, mirrored.name).collect()
    assert [tuple(row)[3:] for row in sums] == [
        (0, 347, 347, digest_of(pair, Partition(topic, number), 347)) for number in (0, 1)
    ]
    hours = measure_throughput(spark, mirrored.name).collect()
    assert (sum(row.records for row in hours), hours[-1].lag_at_end, hours[-1].unknown_partitions) == (694, 0, 0)
    lost = count_lost_at(spark, mirrored.name, datetime.now(UTC) + timedelta(days=1)).collect()
    assert [(row.partition, row.offsets_at_least) for row in lost] == [(0, 0), (1, 0)]

    for file in files[0]:
        shutil.copy(file, file.with_name(f"again-{file.name}"))
    for file in files[1]:
        file.unlink()
    create_receipts_view(spark, str(folder))
    found = find_holes_and_overlaps(spark, mirrored.name).collect()
    assert {(row.partition, row.from_offset, row.to_offset) for row in found if row.kind == "hole"} == {
        (0, 300, 340),
        (1, 300, 340),
    }
    assert {(row.partition, row.kind) for row in found} == {(p, k) for p in (0, 1) for k in ("hole", "overlap")}


def test_altered_lost_and_foreign_files_are_named_and_not_counted(
    spark: SparkSession, pair: Pair, tmp_path: Path
) -> None:
    topic = new_topic(pair.east, 1, retention_ms="-1")
    mirrored, folder = new_mirror(pair, tmp_path, topic), tmp_path / "receipts"
    files = list[Path]()
    for count in (300, 40, 7, 3):
        produce(pair.east, topic, count)
        mirrored.copy(str(folder))
        files += {*folder.rglob("*.parquet")}.difference(files)
    assert len(files) == 4

    def look() -> tuple[CheckedReceipts, list[tuple[int, int]]]:
        checked = create_checked_receipts_view(spark, str(folder), pair.config_path, mirrored.name)
        create_ends_view(spark, pair.config_path, WEST, [topic])
        found = find_holes_and_overlaps(spark, mirrored.name).collect()
        assert {row.kind for row in found} <= {"hole"}
        return checked, [(row.from_offset, row.to_offset) for row in found]

    checked, holes = look()
    assert (checked.is_sound, len(checked.readable), holes) == (True, 4, [])
    pq.write_table(pq.read_table(files[0], partitioning=None), files[0], compression="gzip")
    files[1].unlink()
    foreign = shutil.copy(files[2], files[2].with_name("epoch-00000009-0000000001.parquet"))
    checked, holes = look()
    named = [f"{path.parent.name}/{path.name}" for path in (files[0], files[1], Path(foreign))]
    assert [*checked.altered, *checked.lost, *checked.unknown] == named
    assert holes == [(0, 340)]
    assert sum(row.records for row in measure_throughput(spark, mirrored.name).collect()) == 10


def read_batches(pair: Pair, partition: Partition, end: int) -> list[tuple[int, int, int, int]]:
    """Base offset, next offset, records and digest of each of the copy's batches."""
    with LogReader(load_config(pair.config_path).cluster(WEST)) as reader:
        return [
            (
                header.base_offset,
                header.next_offset,
                header.record_count,
                compute_batch_digest(header.base_offset, batch),
            )
            for header, batch in reader.batches(partition, Offset(0), Offset(end))
        ]


@pytest.mark.heavy
def test_after_ten_kills_every_query_says_what_the_brokers_hold(
    spark: SparkSession, pair: Pair, tmp_path: Path
) -> None:
    """Each second driver is killed once a receipt was written; the others lose what they did."""
    topic = new_topic(pair.east, 2, retention_ms="-1")
    mirrored, folder = new_mirror(pair, tmp_path, topic), tmp_path / "receipts"
    copied = Progress(mirrored, "west", topic)
    with Writer(pair.east, topic, 2):
        for number in range(KILLS):
            files = len([*folder.rglob("*.parquet")])
            with at_work(mirrored, "local", tmp_path) as copying:
                copied.reaches(copied.total() + 100, copying)
                if number % 2:
                    wait_until(
                        lambda files=files: len([*folder.rglob("*.parquet")]) > files,  # type: ignore[misc]
                        timeout_s=PATIENCE_S,
                        why="a receipt is written",
                    )
                copying.kill()
    with at_work(mirrored, "local", tmp_path, "--until-caught-up") as last:
        assert last.ends() == 0, last.said
    checked = create_checked_receipts_view(spark, str(folder), pair.config_path, mirrored.name)
    assert checked.is_sound
    ends = create_ends_view(spark, pair.config_path, WEST, [topic]).collect()
    written = {
        p: read_batches(pair, Partition(topic, p), end) for p, end in ((row.partition, row.log_end) for row in ends)
    }
    assert {p: batches[-1][1] for p, batches in written.items()} == {row.partition: row.log_end for row in ends}
    found = find_holes_and_overlaps(spark, mirrored.name).collect()
    assert {row.kind for row in found} == {"hole"}
    holes = [(row.partition, row.from_offset, row.to_offset) for row in found]
    assert holes
    covered = {
        p: [
            one for one in batches if not any(p == hole and low < one[1] and one[0] < high for hole, low, high in holes)
        ]
        for p, batches in written.items()
    }

    def ask(rows: DataFrame) -> list[Row]:
        """Without the mirror's own topic of heartbeats."""
        return rows.where(F.col("topic") == topic).collect()

    sums = {row.partition: (row.records, row.digest) for row in ask(sum_digests(spark, mirrored.name))}
    assert sums == {
        p: (sum(one[2] for one in batches), f"{sum(one[3] for one in batches) % DIGEST_MODULUS:032x}")
        for p, batches in covered.items()
    }
    hours = ask(measure_throughput(spark, mirrored.name))
    assert sum(row.records for row in hours) == sum(records for records, _ in sums.values())
    assert sum(high - low for _, low, high in holes) + sum(records for records, _ in sums.values()) == sum(
        one[2] for batches in written.values() for one in batches
    )
    lost = ask(count_lost_at(spark, mirrored.name, datetime.now(UTC) + timedelta(days=1)))
    assert [(row.partition, row.offsets_at_least) for row in lost] == [(0, 0), (1, 0)]


def test_what_would_have_been_lost_is_what_the_source_had_more(spark: SparkSession, tmp_path: Path) -> None:
    folder = open_local_folder(str(tmp_path))
    for epoch, (first, end) in enumerate([(0, 100), (100, 250), (250, 251)]):
        receipts = [receipt(first, end, epoch=epoch), receipt(first, end, epoch=epoch, partition=Partition("other", 0))]
        write_receipts(folder, MIRROR, pack_receipts(1, epoch, receipts))
    create_receipts_view(spark, str(tmp_path))

    def lost(seconds: int) -> list[tuple[str, int | None]]:
        at = datetime.fromtimestamp(NOON_MS // 1000 + seconds, UTC)
        return [(row.topic, row.offsets_at_least) for row in count_lost_at(spark, MIRROR, at).collect()]

    assert lost(10) == []
    assert lost(31) == [("orders", None), ("other", None)], "nothing was known of the source"
    assert lost(61) == lost(120) == [("orders", 5), ("other", 5)]
    (orders, other) = measure_throughput(spark, MIRROR).collect()
    assert (orders.topic, orders.records, orders.megabytes, orders.lag_at_end) == ("orders", 251, 0.0251, 5)
    assert other.records == 251
