"""A Spark Structured Streaming application, in a process of its own: two queries on one topic, each with a checkpoint.

`lines` writes each line with its place to Parquet, `counts` keeps state: how often each word has occurred. Both sinks
are exactly once by Spark's own means: the file sink, and `foreachBatch` that writes a batch's folder by its number.
It is started with a file of settings, and runs until SIGTERM: then it handles what is there and ends between two
batches, for Spark calls it an error when it has to cancel its own job.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

OPTIONS: Final = {
    "startingOffsets": "earliest",
    "kafkaConsumer.pollTimeoutMs": "10000",  # for what is not there it waits so long: two minutes, if nothing is said
}


def main(settings: dict[str, str]) -> None:
    folder = Path(settings.pop("folder"))
    spark = (
        SparkSession.builder.appName("drill")
        .master("local[2]")
        .config("spark.jars", settings.pop("jars"))
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    source = spark.readStream.format("kafka").options(**OPTIONS, **settings).load()
    value = f.col("value").cast("string")
    rows = source.select("topic", "partition", "offset", value.alias("line"))
    counts = source.select(f.explode(f.split(value, " ")).alias("word")).groupBy("word").count()

    def save(batch: DataFrame, number: int) -> None:
        batch.coalesce(1).write.mode("overwrite").parquet(str(folder / "counts" / f"batch={number}"))

    queries = [
        rows.writeStream.format("parquet")
        .option("path", str(folder / "lines"))
        .option("checkpointLocation", str(folder / "lines-checkpoint"))
        .start(),
        counts.writeStream.outputMode("update")
        .foreachBatch(save)
        .option("checkpointLocation", str(folder / "counts-checkpoint"))
        .start(),
    ]

    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    while not stopping.is_set() and not spark.streams.awaitAnyTermination(1):
        continue
    for query in queries:
        query.processAllAvailable()  # it would never return while somebody writes
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
