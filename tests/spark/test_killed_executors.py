"""Executors that are killed in the middle of a job change nothing in what it writes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from mirror_core.decide import parity_spans
from mirror_core.evidence.file_store import open_local_folder
from mirror_core.model.parity_verdict import ParityVerdict, SalvagedPartition
from mirror_core.parity.parity_plan import encode_plan
from mirror_core.parity.parity_table import write_rows_locally
from mirror_core.parity.salvage import MANIFEST, LocalSalvage
from tests.support.kafka_clients import Pair
from tests.support.parity_plans import judged, planned, rows_of
from tests.support.parity_topics import content, send, twin_topics, whole
from tests.support.saved_tails import saved_rows

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.heavy]

PARTITIONS = 8
SCRIPT = """
import os, signal, sys, threading, time
from pathlib import Path
import msgspec
import pyspark
from pyspark.sql import SparkSession
import mirror_core
from mirror_core.model.names import ClusterIdentity
from mirror_core.model.parity_verdict import ParityRange
from mirror_core.parity.parity_plan import parse_plan
from mirror_core.spark import salvage_job
from mirror_core.spark.parity_pipeline import write_rows
from mirror_core.spark.session import find_spark_java_home

os.environ |= {
    "JAVA_HOME": str(find_spark_java_home()), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_HOME": str(Path(pyspark.__file__).parent), "PYTHONPATH": str(Path(mirror_core.__file__).parents[1]),
}
builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("killed").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.executor.memory", "512m").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
EXECUTOR, killed = b"org.apache.spark.executor.CoarseGrainedExecutorBackend", {}


def list_executors():
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and os.getsid(int(folder.name)) == os.getsid(0):
                if EXECUTOR in (folder / "cmdline").read_bytes().split(b"\\0"):
                    yield int(folder.name)
        except (OSError, ProcessLookupError):
            continue


def kill_one_in_each_stage():
    tracker = spark.sparkContext.statusTracker()
    while True:
        for stage_id in tracker.getActiveStageIds():
            stage = tracker.getStageInfo(stage_id)
            if stage and stage.numActiveTasks and 0 < stage.numCompletedTasks < stage.numTasks:
                if stage.numTasks not in killed:
                    killed[stage.numTasks] = min(list_executors())
                    os.kill(killed[stage.numTasks], signal.SIGKILL)
        time.sleep(0.01)


threading.Thread(target=kill_one_in_each_stage, daemon=True).start()
if sys.argv[1] == "parity":
    write_rows(spark, parse_plan(Path(sys.argv[2]).read_bytes(), "plan"), sys.argv[3])
else:
    salvage_job.MAX_LOCAL_OFFSETS = 0
    config, clusters, ranges, output = sys.argv[2:]
    east, west = msgspec.json.decode(clusters, type=tuple[ClusterIdentity, ClusterIdentity])
    salvage = salvage_job.SparkSalvage(Path(config))
    salvage(east, msgspec.json.decode(ranges, type=list[ParityRange]), Path(output), west)
print("tasks of stages with a killed executor:", *sorted(killed))
spark.stop()
"""


def run_killed(*arguments: object) -> list[int]:
    """Numbers of tasks of the stages in which an executor was killed."""
    command = [sys.executable, "-c", SCRIPT, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, start_new_session=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return [int(tasks) for tasks in ran.stdout.splitlines()[-1].rpartition(":")[2].split()]


def fill(pair: Pair) -> str:
    topic = twin_topics(pair, partitions=PARTITIONS)
    records = content(50)
    for partition in range(PARTITIONS):
        send(pair.east, topic, records, partition)
        send(pair.west, topic, [*records[:23], replace(records[23], value=b"other"), *records[24:40]], partition)
    return topic


def test_a_comparison_writes_the_same_table(pair: Pair, tmp_path: Path) -> None:
    topic = fill(pair)
    ranges = [whole(topic, 40, partition=partition) for partition in range(PARTITIONS)]
    plan = planned(pair, ranges, span_bytes=parity_spans.SPAN_BYTES)
    # As large as a task: none shares one.
    plan = msgspec.structs.replace(
        plan, spans=tuple(replace(span, size_bytes=parity_spans.SPAN_BYTES) for span in plan.spans)
    )
    file = tmp_path / "plan.json"
    file.write_bytes(encode_plan(plan))
    assert PARTITIONS in run_killed("parity", file, (tmp_path / "killed").as_uri())
    write_rows_locally(plan, open_local_folder(str(tmp_path / "undisturbed")), threads=2)
    # Each task draws a key of its own for its digests.
    killed, undisturbed = (
        sorted((replace(row, src_digest="", dst_digest="") for row in rows_of(plan, tmp_path / name)), key=str)
        for name in ("killed", "undisturbed")
    )
    assert killed == undisturbed
    verdicts = [replace(judged(plan, tmp_path / name), seconds=0.0) for name in ("killed", "undisturbed")]
    assert verdicts[0] == verdicts[1]
    assert verdicts[0].verdict is ParityVerdict.FAILED


def test_a_salvage_saves_and_finds_the_same(pair: Pair, tmp_path: Path) -> None:
    """One executor dies while both logs are read, and another one while the records are written."""
    topic = fill(pair)
    ranges = [whole(topic, 50, partition=partition) for partition in range(PARTITIONS)]
    clusters, wanted = (msgspec.json.encode(value).decode() for value in (pair.identities, ranges))
    killed_in = run_killed("salvage", pair.config_path, clusters, wanted, tmp_path / "killed")
    # More where a stage is run again for what died with an executor: fewer tasks then.
    assert {PARTITIONS, 2 * PARTITIONS} <= {*killed_in}
    undisturbed = LocalSalvage(pair.config_path)(pair.identities[0], ranges, tmp_path / "local", pair.identities[1])
    assert saved_rows(tmp_path / "killed") == saved_rows(tmp_path / "local")
    told = msgspec.json.decode((tmp_path / "killed" / MANIFEST).read_bytes(), type=tuple[SalvagedPartition, ...])
    assert {saved.requested_range.partition: saved for saved in told} == undisturbed
