"""What a comparison is held against: reading the same bytes and no more, and the join that one would write in Spark.

`python -m benchmarks.rivals fetch|join SETTINGS`, each in a process of its own; the last line printed is JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Principal, load_config
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.fetch_link import FetchLink
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.batch import split_batches
from mirror_core.wire.fetch import FetchPosition, IsolationLevel

MAX_BYTES = 8 << 20


def fetch(settings: dict[str, Any]) -> dict[str, int]:
    """Read both topics to their ends as stock consumers ask for them, and look at batch headers only."""
    config, read = load_config(Path(settings["config"])), 0
    for name in settings["sides"]:
        cluster = config.cluster(name)
        with ClusterClient(cluster) as client:
            wanted = [Partition(settings["topic"], number) for number in range(settings["partitions"])]
            ends = list_offsets(client, wanted, OffsetPoint.STABLE_END)
            host, port = next(iter(client.metadata([settings["topic"]]).brokers.values()))
        with Connection(cluster, Principal.DATA, host, port) as connection:
            link = FetchLink(connection, max_bytes=MAX_BYTES, partition_max_bytes=MAX_BYTES, full_size=True)
            for partition, end in ends.items():
                position = 0
                while position < end:
                    link.send_fetch(
                        [FetchPosition(partition, Offset(position))],
                        max_wait_ms=500,
                        isolation=IsolationLevel.READ_COMMITTED,
                    )
                    for answer in link.read_response():
                        read += len(answer.records)
                        for header, _ in split_batches(answer.records):
                            position = header.next_offset
    return {"bytes": read}


def join(settings: dict[str, Any]) -> dict[str, int]:
    """A full outer join by place of what Kafka's connector reads from both sides, and a comparison of all columns."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    spark = (
        SparkSession.builder.appName("join")
        .master("local[2]")
        .config("spark.jars", settings["jars"])
        .config("spark.driver.memory", "4g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "8")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    place = ["topic", "partition", "offset"]
    what = ["key", "value", "timestamp", "timestampType", "headers"]
    options = {"subscribe": settings["topic"], "includeHeaders": "true", "endingOffsets": "latest"}
    one, two = (
        spark.read.format("kafka").options(**options, startingOffsets="earliest", **side).load().select(*place, *what)
        for side in settings["java"]
    )
    both = one.alias("a").join(two.alias("b"), place, "full_outer")
    same = f.lit(True)
    for column in what:
        same &= f.col(f"a.{column}").eqNullSafe(f.col(f"b.{column}"))
    found = both.select(f.count(f.lit(1)).alias("rows"), f.count(f.when(~same, 1)).alias("differing")).first()
    assert found is not None
    spark.stop()
    return {"rows": found["rows"], "differing": found["differing"]}


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    print(json.dumps({"fetch": fetch, "join": join}[sys.argv[1]](given)), flush=True)
