"""Receipts as a table, and SQL over its view `receipts`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mirror_core.evidence.file_store import is_url
from mirror_core.evidence.receipt_files import format_mirror_folder
from mirror_core.evidence.receipt_index import CheckedReceipts, check_receipts
from mirror_core.evidence.table_schemas import RECEIPTS
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Principal, load_config
from mirror_core.kafka.log_offsets import OffsetPoint, list_offset_points
from mirror_core.kafka.topic_existence import find_existing_topics
from mirror_core.model.names import ClusterName, Partition
from mirror_core.parity.certificate_check import heads_of
from mirror_core.state.mirror_link import find_mirror_link

_MAX_CHECKS: Final = 3
ENDS_DDL: Final = "topic string, partition int, destination_topic_id string, log_start bigint, log_end bigint"
HOLES_AND_OVERLAPS: Final = """
with told as (
  select topic, partition, destination_topic_id, greatest(first, log_start) as first, least(next, log_end) as next
  from receipts join ends using (topic, partition, destination_topic_id)
  where mirror = :mirror and greatest(first, log_start) < least(next, log_end)
  union all select topic, partition, destination_topic_id, log_start, log_start from ends
  union all select topic, partition, destination_topic_id, log_end, log_end from ends),
walk as (
  select *, max(next) over (partition by topic, partition, destination_topic_id order by first, next
    rows between unbounded preceding and 1 preceding) as reached
  from told)
select topic, partition, if(first > reached, 'hole', 'overlap') as kind,
  least(first, reached) as from_offset, if(first > reached, first, least(next, reached)) as to_offset
from walk where first > reached or (first < reached and next > first)
order by topic, partition, from_offset
"""
DIGEST_SUMS: Final = """
with pieces as (
  select topic, partition, destination_topic_id, generation, epoch, piece.*
  from receipts lateral view explode(pieces) exploded as piece where mirror = :mirror),
newest as (
  select * from pieces as old where not exists (
    select 1 from pieces as new
    where new.topic = old.topic and new.partition = old.partition
      and new.destination_topic_id = old.destination_topic_id and new.first < old.next and new.next > old.first
      and (new.generation > old.generation or (new.generation = old.generation and
        (new.epoch > old.epoch or (new.epoch = old.epoch and new.first > old.first)))))),
halves as (
  select *, cast(conv(substring(digest, 1, 16), 16, 10) as decimal(20, 0)) as high,
    cast(conv(substring(digest, 17, 16), 16, 10) as decimal(20, 0)) as low
  from newest),
sums as (
  select topic, partition, destination_topic_id, min(first) as first, max(next) as next, sum(records) as records,
    cast(sum(low) as decimal(38, 0)) as low, cast(sum(high) as decimal(38, 0)) as high
  from halves group by topic, partition, destination_topic_id)
select topic, partition, destination_topic_id, first, next, records, lower(concat(
  lpad(conv(cast(cast((high + floor(low / 18446744073709551616)) % 18446744073709551616 as decimal(20, 0)) as string),
    10, 16), 16, '0'),
  lpad(conv(cast(cast(low % 18446744073709551616 as decimal(20, 0)) as string), 10, 16), 16, '0'))) as digest
from sums order by topic, partition
"""
THROUGHPUT: Final = """
with hours as (
  select topic, partition, date_trunc('HOUR', ended) as hour, sum(records) as records, sum(bytes) as bytes,
    max_by(source_end - next, struct(ended, generation, epoch)) as lag
  from receipts where mirror = :mirror group by topic, partition, date_trunc('HOUR', ended))
select topic, hour, sum(records) as records, sum(bytes) / 1e6 as megabytes, sum(lag) as lag_at_end,
  sum(if(lag is null, 1, 0)) as unknown_partitions
from hours group by topic, hour order by topic, hour
"""
LOST_AT: Final = """
with seen as (
  select topic, partition, max(ended) as seen, max_by(source_end - next, struct(ended, generation, epoch)) as behind
  from receipts where mirror = :mirror and ended <= :at group by topic, partition)
select topic, partition, seen, if(behind < 0, 0, behind) as offsets_at_least from seen order by topic, partition
"""
QUERIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "holes_and_overlaps": HOLES_AND_OVERLAPS,
        "digest_sums": DIGEST_SUMS,
        "throughput": THROUGHPUT,
        "lost_at": LOST_AT,
    }
)


def create_receipts_view(spark: SparkSession, location: str) -> DataFrame:
    """View `receipts` of the folder that `replicate` was given. Trusts each file."""
    receipts = spark.read.schema(RECEIPTS.ddl).parquet(_format_url(location))
    receipts.createOrReplaceTempView("receipts")
    return receipts


def create_checked_receipts_view(spark: SparkSession, location: str, config: Path, mirror: str) -> CheckedReceipts:
    """View `receipts` of one mirror, without altered and foreign files. For the control principal."""
    link, _ = find_mirror_link(load_config(config), mirror)
    folder = f"{_format_url(location)}/{format_mirror_folder(link.mirror.name)}"
    for _ in range(_MAX_CHECKS):  # files, then heads: a file that is there has one. Not so beside a compaction
        hashes = _hash_files(spark, folder)
        checked = check_receipts(heads_of(link), hashes)
        if checked.is_sound:
            break
    reader = spark.read.schema(RECEIPTS.ddl).option("basePath", _format_url(location))
    paths = [f"{folder}/{path}" for path in checked.readable]
    receipts = reader.parquet(*paths) if paths else spark.createDataFrame([], RECEIPTS.ddl)
    receipts.createOrReplaceTempView("receipts")
    return checked


def _hash_files(spark: SparkSession, folder: str) -> dict[str, str]:
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", True).option("pathGlobFilter", "*.parquet")
    try:
        rows = reader.load(folder).select("path", F.sha2("content", 256)).collect()
    except AnalysisException as error:
        if "PATH_NOT_FOUND" not in str(error):
            raise
        return {}
    return {"/".join(path.split("/")[-2:]): sha256 for path, sha256 in rows}


def _format_url(location: str) -> str:
    if is_url(location):
        return location.rstrip("/")
    return Path(location.removeprefix("file://")).absolute().as_uri()


def create_ends_view(spark: SparkSession, config: Path, destination: ClusterName, topics: list[str]) -> DataFrame:
    """View `ends`: where the copy's logs start and end now, as the data principal sees them."""
    cluster = load_config(config, only_principal=Principal.DATA).cluster(destination)
    with ClusterClient(cluster, Principal.DATA) as client:
        metadata = find_existing_topics(client, topics)
        partitions = [Partition(topic, index) for topic in metadata for index in metadata[topic].partitions]
        starts, ends = list_offset_points(client, partitions, [OffsetPoint.START, OffsetPoint.LOG_END]).values()
    rows = [(p.topic, p.index, metadata[p.topic].id, int(starts[p]), int(ends[p])) for p in sorted(partitions)]
    view = spark.createDataFrame(rows, ENDS_DDL)
    view.createOrReplaceTempView("ends")
    return view


def find_holes_and_overlaps(spark: SparkSession, mirror: str) -> DataFrame:
    """Offsets that no receipt covers, or more than one does. Needs view `ends`."""
    return spark.sql(HOLES_AND_OVERLAPS, args={"mirror": mirror})


def sum_digests(spark: SparkSession, mirror: str) -> DataFrame:
    """By partition, of the newest pieces that overlap no newer one; add digests of batches modulo 2**128 to check."""
    return spark.sql(DIGEST_SUMS, args={"mirror": mirror})


def measure_throughput(spark: SparkSession, mirror: str) -> DataFrame:
    """Records, megabytes and lag at its end, by topic and hour in which receipts ended. Lag: of known partitions."""
    return spark.sql(THROUGHPUT, args={"mirror": mirror})


def count_lost_at(spark: SparkSession, mirror: str, at: datetime) -> DataFrame:
    """Offsets that only the source had; null: its end was not known.

    A lower bound: the source may have grown since it was `seen`, and partitions without receipts have no row.
    """
    return spark.sql(LOST_AT, args={"mirror": mirror, "at": at})
