"""What Spark jobs cost and leave behind, each in a Spark of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sentences import format_sentence

pytestmark = pytest.mark.spark

TIMEOUT_S = 600.0


def run_script(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def test_large_assignments_leave_no_file_and_no_token_on_the_drivers_disk(tmp_path: Path) -> None:
    """More than 1 MiB of assignments once became a broadcast file for each epoch."""
    script = """
import sys
from pathlib import Path
import msgspec
from mirror_core.model.names import ClusterName, MirrorName, Partition
from mirror_core.model.task_messages import Assignment, DriverAddress, PartitionAssignment
from mirror_core.spark.job_submission import run_job
from mirror_core.spark.session import get_spark_context
from tests.spark import work

def list_files():
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
context = get_spark_context("leak", "local[2]", conf={"spark.local.dir": str(folder)})
token = "0123456789abcdef" * 4
id_ = "A" * 22
assignments = [
    Assignment(
        mirror=MirrorName("east-west"), source=ClusterName("east"), destination=ClusterName("west"),
        config_path="/etc/mirrorbook/mirrorbook.yaml", producer_id=2**62 + 77, epoch=1, task=task, start_ms=0,
        stop_ms=1, driver_address=DriverAddress(host="127.0.0.1", port=1, token=token),
        partitions=tuple(
            PartitionAssignment(
                partition=Partition(f"payments.transactions.{number}", task), source_topic_id=id_,
                destination_topic_id=id_
            )
            for number in range(5_000)
        ),
    )
    for task in range(2)
]
payloads = [msgspec.json.encode(assignment) for assignment in assignments]
assert sum(map(len, payloads)) > 1 << 20
lengths = [str(len(payload)).encode() for payload in payloads]
run_job(context, work.count_bytes, [b""])
before = list_files()
for _ in range(epochs):
    assert run_job(context, work.count_bytes, payloads) == lengths
after = list_files()
assert not [path for path, content in after.items() if token.encode() in content], "token on disk"
assert len(after) == len(before), sorted(set(after) - set(before))[:3]
print("left:", len(set(after) - set(before)))
"""
    assert run_script(script, str(tmp_path), "20") == "left: 0\n"


@pytest.mark.timed
def test_a_task_without_work_costs_hardly_any_processor_time() -> None:
    """Each task once reread pyspark.zip, and collected garbage among all imported modules: 0.15 s of processor time."""
    script = """
from mirror_core.spark.job_submission import run_job
from mirror_core.spark.session import get_spark_context
from tests.spark import work

context = get_spark_context("cost", "local[2]")
for _ in range(5):  # both workers have begun, and imported what they need
    run_job(context, work.measure_processor_s, [b""] * 2)
before = {}
after = {}
for _ in range(10):
    for answer in run_job(context, work.measure_processor_s, [b""] * 10):
        worker, used = answer.split()
        before.setdefault(worker, float(used))
        after[worker] = float(used)
print(sum(after.values()) - sum(before.values()))
"""
    assert float(run_script(script)) <= 1.0


@pytest.mark.heavy
def test_all_slots_work_on_a_cluster_whose_executors_register_late(tmp_path: Path) -> None:
    """Spark says 2 until executors have registered: 16 slots once ran 4 tasks, with half of a throttle each."""
    script = """
import os, sys
from pathlib import Path
import pyspark
from pyspark import SparkConf, SparkContext
import mirror_core
from mirror_core.spark.job_submission import run_each, wait_for_task_slots
from mirror_core.spark.session import find_spark_java_home
from tests.spark import work

os.environ |= {
    "JAVA_HOME": str(find_spark_java_home()), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_HOME": str(Path(pyspark.__file__).parent), "PYTHONPATH": str(Path(mirror_core.__file__).parents[1]),
}
settings = {"spark.ui.enabled": "false", "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
conf = SparkConf().setMaster("local-cluster[2,8,512]").setAppName("late").setAll(settings.items())
context = SparkContext.getOrCreate(conf)
print("at first", context.defaultParallelism)
slots = wait_for_task_slots(context)
print("slots", slots)
met = run_each(context, "meet", work.meet, [f"16 {sys.argv[1]}".encode()] * 16, slots)
print("at once", len(set(met)))
context.stop()
"""
    (tmp_path / "met").mkdir()
    said = run_script(script, str(tmp_path / "met")).splitlines()
    assert said[-2:] == ["slots 16", "at once 16"]


def test_a_running_spark_that_speculates_is_refused() -> None:
    script = """
import os
from pyspark import SparkConf, SparkContext
from mirror_core.model.errors import BadRequest
from mirror_core.spark.session import find_spark_java_home, get_spark_context

os.environ["JAVA_HOME"] = str(find_spark_java_home())
SparkContext.getOrCreate(SparkConf().setMaster("local[1]").setAppName("theirs").set("spark.speculation", "true"))
try:
    get_spark_context("ours")
except BadRequest as error:
    print(error)
"""
    assert format_sentence("spark_speculation_on") in run_script(script)
