"""One contract for both ways to run a planned comparison, and what Spark adds: a span that kills its worker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pyspark
import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from mirror_core.decide.parity_result import ParityRow
from mirror_core.decide.parity_spans import SPAN_BYTES, ParitySpan, pack_spans
from mirror_core.evidence.file_store import open_local_folder
from mirror_core.evidence.table_schemas import PARITY_ROWS, TABLES, Table, build_ddl
from mirror_core.model.names import Partition
from mirror_core.model.parity_verdict import ParityRange, ParityResult, ParityVerdict
from mirror_core.parity.check import LocalParity
from mirror_core.parity.parity_plan import ParityPlan, encode_plan
from mirror_core.parity.parity_table import write_rows_locally
from mirror_core.spark import parity_pipeline
from mirror_core.spark.parity_pipeline import list_missing_spans, run, write_rows
from mirror_core.spark.session import find_spark_java_home
from mirrorbook_tools.sandbox.jars import ensure_jars
from tests.spark import work
from tests.support.cli_process import MIRRORBOOK
from tests.support.compacted_comparisons import keyed
from tests.support.doc_pages import ROOT
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, new_topic
from tests.support.parity_plans import judged, planned, rows_of
from tests.support.parity_topics import Content, content, copy_bytes, send, twin_topics, whole
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    # PySpark leaves the sockets of collected results to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]

CHUNK = 10
Write = Callable[[SparkSession, ParityPlan, Path], object]


def on_spark(spark: SparkSession, plan: ParityPlan, table: Path) -> object:
    return write_rows(spark, plan, table.as_uri())


def in_process(spark: SparkSession, plan: ParityPlan, table: Path) -> object:
    return write_rows_locally(plan, open_local_folder(str(table)), threads=2)


WAYS = [on_spark, in_process]


def altered(at: int, **changes: object) -> list[Content]:
    records = content(50)
    records[at] = replace(records[at], **changes)  # type: ignore[arg-type]  # the cases name the fields
    return records


def without(records: list[Content], at: int) -> list[Content]:
    """No record at this offset and the next one: an aborted transaction took them."""
    return [*records[:at], replace(records[at], aborted=True), *records[at + 2 :]]


def swapped(first: int, second: int) -> list[Content]:
    records = content(50)
    records[first], records[second] = records[second], records[first]
    return records


def replaced_later() -> list[Content]:
    """What is at offsets 20 and 21 has something newer of its key at 40 and 41."""
    records = keyed(50)
    records[40:42] = [replace(new, key=old.key) for new, old in zip(records[40:42], records[20:22], strict=True)]
    return records


PLAIN: dict[str, tuple[list[Content], list[Content]]] = {
    "equal": (content(50), content(50)),
    "value": (content(50), altered(23, value=b"other")),
    "key": (content(50), altered(23, key=None)),
    "timestamp": (content(50), altered(23, timestamp_ms=content(50)[23].timestamp_ms + 1)),
    "headers": (content(50), altered(23, headers=(("null", None), ("n", b"23")))),
    "swapped": (content(50), swapped(31, 34)),
    "twice": (content(50), [*content(50)[:21], *content(50)[20:49]]),
    "shifted": (content(50), [replace(content(1)[0], value=b"a stranger's"), *content(50)[:49]]),
    "missing": (content(50), without(content(50), 20)),
    "extra": (without(content(50), 20), content(50)),
    "short": (content(50), content(45)),
}
COMPACTED: dict[str, tuple[list[Content], list[Content]]] = {
    "newest of its key missing": (keyed(50), without(keyed(50), 20)),
    "newest of its key extra": (without(keyed(50), 20), keyed(50)),
    "replaced": (replaced_later(), without(replaced_later(), 20)),
}


@pytest.fixture(scope="module")
def seeded(pair: Pair) -> dict[str, ParityRange]:
    """A range for each defect."""
    ranges = dict[str, ParityRange]()
    for policy, cases in (("delete", PLAIN), ("compact", COMPACTED)):
        for name, (source, destination) in cases.items():
            topic = twin_topics(pair, cleanup_policy=policy)
            send(pair.east, topic, source)
            send(pair.west, topic, destination)
            ranges[name] = whole(topic, 50)
    for name, cluster in (("only east", pair.east), ("only west", pair.west)):
        topic = new_topic(cluster, retention_ms="-1")
        send(cluster, topic, content(20))
        ranges[name] = whole(topic, 20)
    topic = twin_topics(pair)
    send(pair.east, topic, content(50))
    copy_bytes(pair, topic, 50)
    ranges["copied"] = whole(topic, 50)
    return ranges


def delete_before(pair: Pair, cluster: str, topic: str, offset: int) -> None:
    admin = admin_client(pair.east if cluster == "east" else pair.west)
    for future in admin.delete_records([TopicPartition(topic, 0, offset)], request_timeout=TIMEOUT_S).values():
        future.result(TIMEOUT_S)


def comparable(result: ParityResult) -> object:
    """All but times."""
    return replace(result, seconds=0.0, report="")


@pytest.mark.parametrize("write", WAYS)
def test_a_planned_comparison_finds_what_a_comparison_finds(
    spark: SparkSession, pair: Pair, seeded: dict[str, ParityRange], tmp_path: Path, write: Write
) -> None:
    ranges = list(seeded.values())
    plan = planned(pair, ranges)
    assert len(plan.spans) > 2 * len(PLAIN), "partitions are split"
    write(spark, plan, tmp_path / "table")
    result = judged(plan, tmp_path / "table")
    wanted = LocalParity(pair.config_path, threads=2, chunk=CHUNK)(*pair.identities, ranges, None)
    assert comparable(result) == comparable(wanted)
    assert result.verdict is ParityVerdict.FAILED
    assert {finding.partition for finding in result.findings} == {
        seeded[name].partition for name in seeded if name not in {"equal", "replaced", "only west", "copied"}
    }
    assert result.undecided_partitions == {seeded["only west"].partition}
    files = [*(tmp_path / "table" / "mirror=m" / f"plan={plan.digest}").rglob("*.parquet")]
    assert {pq.read_schema(file).names == PARITY_ROWS.schema.names for file in files} == {True}


@pytest.mark.parametrize("write", WAYS)
def test_what_has_no_row_was_not_compared(spark: SparkSession, pair: Pair, tmp_path: Path, write: Write) -> None:
    topic = twin_topics(pair, partitions=3)
    for partition in range(3):
        send(pair.east, topic, content(50), partition)
        copy_bytes(pair, topic, 50, partition)
    plan = planned(pair, [whole(topic, 50, partition=number) for number in range(3)])
    for part, spans in enumerate((plan.spans[:1], plan.spans[1:])):
        some = msgspec.structs.replace(plan, spans=spans)
        write(spark, some, tmp_path / f"part-{part}")
        moved = tmp_path / "table" / "mirror=m" / f"plan={plan.digest}"
        (moved / f"wave={part}").mkdir(parents=True, exist_ok=True)
        for file in (tmp_path / f"part-{part}").rglob("*.parquet"):
            shutil.move(file, moved / f"wave={part}" / file.name)
    assert judged(plan, tmp_path / "table").verdict is ParityVerdict.PASSED
    shutil.rmtree(moved / "wave=0")
    result = judged(plan, tmp_path / "table")
    lost = plan.spans[0].range
    assert (result.verdict, result.undecided_partitions) == (ParityVerdict.INDETERMINATE, frozenset({lost.partition}))
    assert result.reasons == (f"{lost.partition} [{lost.start}, {lost.end}): was not compared: no task reported it",)
    assert result.verified_ends[lost.partition] == 0
    assert [span.id for span in write_again(spark, plan, tmp_path / "table", write)] == [plan.spans[0].id]
    assert judged(plan, tmp_path / "table").verdict is ParityVerdict.PASSED


def write_again(spark: SparkSession, plan: ParityPlan, table: Path, write: Write) -> list[ParitySpan]:
    compared = write(spark, plan, table)
    assert isinstance(compared, list)
    return compared


@pytest.mark.parametrize("write", WAYS)
def test_retention_after_the_plan_is_followed_and_a_loss_on_the_destination_is_not(
    spark: SparkSession, pair: Pair, tmp_path: Path, write: Write
) -> None:
    topic = twin_topics(pair)
    send(pair.east, topic, content(50))
    send(pair.west, topic, content(50))
    plan = planned(pair, [whole(topic, 50)])
    delete_before(pair, "east", topic, 15)
    write(spark, plan, tmp_path / "table")
    result = judged(plan, tmp_path / "table")
    assert (result.verdict, result.records) == (ParityVerdict.PASSED, 35)
    delete_before(pair, "west", topic, 18)
    write(spark, plan, tmp_path / "later")
    assert judged(plan, tmp_path / "later").verdict is ParityVerdict.INDETERMINATE


@pytest.mark.parametrize("write", WAYS)
def test_of_two_readings_the_worse_one_counts_once(
    spark: SparkSession, pair: Pair, tmp_path: Path, write: Write
) -> None:
    topic = twin_topics(pair)
    send(pair.east, topic, content(50))
    send(pair.west, topic, altered(23, value=b"other"))
    plan = planned(pair, [whole(topic, 50)])
    for table in ("table", "again"):
        write(spark, plan, tmp_path / table)
    once = comparable(judged(plan, tmp_path / "table"))
    folder = Path("mirror=m") / f"plan={plan.digest}"
    (wave,) = (tmp_path / "again" / folder).iterdir()
    shutil.move(wave, tmp_path / "table" / folder)
    assert comparable(judged(plan, tmp_path / "table")) == once


def test_one_span_that_kills_its_worker_is_named_and_all_others_are_proved(
    spark: SparkSession, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = twin_topics(pair, partitions=3)
    for partition in range(3):
        send(pair.east, topic, content(50), partition)
        copy_bytes(pair, topic, 50, partition)
    plan = planned(pair, [whole(topic, 50, partition=partition) for partition in range(3)])
    poison = next(span for span in plan.spans if span.range.partition.index == 1 and span.range.start >= 20)
    monkeypatch.setattr(parity_pipeline, "compare_batches", partial(work.compare_batches_or_die, poison.id))
    write_rows(spark, plan, (tmp_path / "table").as_uri())
    result = judged(plan, tmp_path / "table")
    assert result.verdict is ParityVerdict.INDETERMINATE
    assert result.verified_ends == {
        Partition(topic, 0): 50,
        Partition(topic, 1): poison.range.start,
        Partition(topic, 2): 50,
    }
    failed = [row for row in rows_of(plan, tmp_path / "table") if row.error]
    assert {row.partition for row in failed} == {poison.range.partition}
    assert sorted(row.start for row in failed) == [*range(poison.range.start, poison.range.end, CHUNK)]
    assert "its worker ended 3 times before it had answered" in result.reasons[0]


def in_small_waves(plan: ParityPlan) -> ParityPlan:
    """Each span is as large as a task; by its throttle, which is none, a wave has two of these on four slots."""
    spans = tuple(replace(span, size_bytes=SPAN_BYTES) for span in plan.spans)
    return msgspec.structs.replace(plan, spans=spans, throttle=10**12)


def test_a_span_that_takes_long_holds_up_no_other_wave(
    spark: SparkSession, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = twin_topics(pair)
    send(pair.east, topic, content(90))
    copy_bytes(pair, topic, 90)
    plan = in_small_waves(planned(pair, [whole(topic, 90)], span_bytes=300))
    waves = -(-len(plan.spans) // 2)
    assert waves > 3
    (slow,), (beside,) = pack_spans(plan.spans)[:2]
    proceed, table = tmp_path / "proceed", tmp_path / "table"
    monkeypatch.setattr(parity_pipeline, "compare_batches", partial(work.compare_batches_later, slow.id, str(proceed)))

    def count_committed() -> int:
        return len([*table.glob("mirror=*/plan=*/wave=*/_SUCCESS")])

    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(write_rows, spark, plan, table.as_uri())
        try:
            wait_until(lambda: count_committed() == waves - 1, timeout_s=TIMEOUT_S, why="all other waves are written")
            missing = {span.id for span in list_missing_spans(spark, plan, table.as_uri())}
            assert missing == {slow.id, beside.id}
            hidden = "mirror=*/plan=*/wave=*/_temporary/0/task_*/part-*"
            wait_until(lambda: any(table.glob(hidden)), timeout_s=TIMEOUT_S, why="one task of the wave has ended")
            assert judged(plan, table).verdict is ParityVerdict.INDETERMINATE
        finally:
            proceed.touch()
        assert [span.id for span in writing.result(TIMEOUT_S)] == [span.id for span in plan.spans]
    assert count_committed() == waves
    assert judged(plan, table).verdict is ParityVerdict.PASSED


def test_a_job_says_what_it_compares_and_for_whom(spark: SparkSession, pair: Pair, tmp_path: Path) -> None:
    topic = twin_topics(pair)
    send(pair.east, topic, content(50))
    copy_bytes(pair, topic, 50)
    plan = planned(pair, [whole(topic, 50)])
    write_rows(spark, plan, (tmp_path / "table").as_uri())
    store: Any = spark.sparkContext._jsc
    jobs = store.sc().statusStore().jobsList(spark.sparkContext._jvm.java.util.ArrayList())  # type: ignore[union-attr]
    run_tag = f"run={plan.digest[:12]}"
    seen = [
        (jobs.apply(number).description().get(), jobs.apply(number).jobTags().mkString(" ").split())
        for number in range(jobs.size())
        if jobs.apply(number).description().isDefined()
    ]
    (job,) = {(description, "mirror=m" in tags) for description, tags in seen if run_tag in tags}
    assert job == (f"m: parity, {len(plan.spans)} spans, 0.0 GB", True)


ICEBERG = ROOT / "tests" / "iceberg-spark.lock"
IN_CATALOG = """
import json, sys
from dataclasses import replace
from pathlib import Path
import msgspec
from mirror_core.parity.parity_plan import parse_plan
from mirror_core.spark.parity_pipeline import list_missing_spans, read_rows, write_rows
from mirror_core.spark.session import get_spark_session

plan = parse_plan(Path(sys.argv[1]).read_bytes(), "plan")
catalog = "spark.sql.catalog.lake"
conf = {catalog: "org.apache.iceberg.spark.SparkCatalog", f"{catalog}.type": "hadoop"}
conf |= {f"{catalog}.warehouse": sys.argv[3], "spark.jars": ",".join(map(str, Path(sys.argv[2]).glob("*.jar")))}
spark = get_spark_session("catalog", "local[4]", None, conf)
table, lines = "lake.mirrors.parity", []
compared = len(write_rows(spark, plan, table, lines.append))
again = len(write_rows(spark, plan, table))
missing = len(list_missing_spans(spark, msgspec.structs.replace(plan, level=2), table))  # another plan's
rows = [replace(row, src_digest="", dst_digest="") for row in read_rows(spark, plan, table)]
print(json.dumps([len(lines), compared, again, missing, msgspec.to_builtins(rows)]))
spark.stop()
"""
COMPARE = """
import sys
from pathlib import Path
from mirror_core.kafka.config import load_config
from mirror_core.parity.parity_plan import parse_plan
from mirror_core.spark.parity_job import SparkParity
plan = parse_plan(Path(sys.argv[1]).read_bytes(), "plan")
compare = SparkParity(Path(plan.config_path), "local[2]", throttle=plan.throttle)
compare(plan.source, plan.destination, plan.ranges, None)
"""


@pytest.mark.parametrize("what", ["parity-job run", "comparison"])
def test_a_cancelled_comparison_leaves_no_process_after_ten_seconds(pair: Pair, tmp_path: Path, what: str) -> None:
    """A scheduler sends SIGTERM."""
    topic = twin_topics(pair)
    for _ in range(40):
        send(pair.east, topic, content(50))
    copy_bytes(pair, topic, 2_000)
    plan = msgspec.structs.replace(planned(pair, [whole(topic, 2_000)], chunk=2_000, span_bytes=1 << 30), throttle=500)
    file = tmp_path / "plan.json"
    file.write_bytes(encode_plan(plan))
    command = [sys.executable, "-c", COMPARE, str(file)]
    if what == "parity-job run":
        command = [*MIRRORBOOK, "parity-job", "run", str(file), "--table", str(tmp_path / "table")]
        command += ["--master", "local[2]"]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(
            lambda: sum("mirror_core.spark.daemon" in line for line in commands_of_session(process.pid)) >= 2,
            timeout_s=TIMEOUT_S,
            why="a worker compares",
        )
        assert process.poll() is None
        process.terminate()
        wait_until(lambda: process.poll() is not None, timeout_s=10, why="the command has ended")
        wait_until(lambda: not commands_of_session(process.pid), timeout_s=10, why="no process is left")
    finally:
        process.kill()
        process.wait()


def commands_of_session(session: int) -> list[str]:
    listed = subprocess.run(["ps", "-s", str(session), "-o", "args="], capture_output=True, text=True, check=False)
    return [line for line in listed.stdout.splitlines() if "<defunct>" not in line]


def test_the_function_gives_the_documented_table(spark: SparkSession, pair: Pair) -> None:
    topic = twin_topics(pair)
    send(pair.east, topic, content(50))
    copy_bytes(pair, topic, 50)
    plan = planned(pair, [whole(topic, 50)])
    rows = run(spark, plan)
    assert rows.columns == [column.name for column in PARITY_ROWS.columns + PARITY_ROWS.folders]
    (counted,) = rows.selectExpr("sum(src_count)", "count(distinct span)", "max(plan)").collect()
    assert tuple(counted) == (50, len(plan.spans), plan.digest)
    assert run(spark, planned(pair, [])).collect() == []


def test_spark_submit_runs_it_by_its_own_settings_without_a_secret_of_the_control_principal(
    spark: SparkSession, pair: Pair, tmp_path: Path
) -> None:
    """As a scheduler's operator does, with its own Spark."""
    topic = twin_topics(pair)
    send(pair.east, topic, content(50))
    copy_bytes(pair, topic, 50)
    plan, file = planned(pair, [whole(topic, 50)]), tmp_path / "plan.json"
    file.write_bytes(encode_plan(plan))
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    main = ROOT / "mirror_core" / "cli" / "submit.py"
    arguments = ["parity-job", "run", str(file), "--table", str(tmp_path / "table"), "--json"]
    java = {"JAVA_HOME": str(find_spark_java_home())}
    environment = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, **java}
    (events := tmp_path / "events").mkdir()
    chosen = {"eventLog.enabled": "true", "eventLog.dir": events.as_uri(), "eventLog.compress": "false"}
    settings = [word for key, value in chosen.items() for word in ("--conf", f"spark.{key}={value}")]
    ran = subprocess.run(
        [submit, "--master", "local[2,4]", *settings, "--conf", "spark.scheduler.mode=FIFO", main, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert json.loads(ran.stdout)["compared"] == len(plan.spans)
    assert judged(plan, tmp_path / "table").verdict is ParityVerdict.PASSED
    logged = "".join(file.read_text(encoding="utf-8") for file in events.rglob("*") if file.is_file())
    assert '"spark.master":"local[2,4]"' in logged
    assert '"spark.scheduler.mode":"FIFO"' in logged


@pytest.mark.skipif(not pyspark.__version__.startswith("4.1."), reason="the locked Iceberg is for Spark 4.1")
def test_a_table_in_a_catalog_gives_the_same_verdict(pair: Pair, tmp_path: Path) -> None:
    """Two waves append to Iceberg at a time."""
    topic = twin_topics(pair)
    send(pair.east, topic, content(90))
    copy_bytes(pair, topic, 90)
    plan = in_small_waves(planned(pair, [whole(topic, 90)], span_bytes=300))
    file = tmp_path / "plan.json"
    file.write_bytes(encode_plan(plan))
    process = subprocess.run(
        [sys.executable, "-c", IN_CATALOG, str(file), str(ensure_jars(ICEBERG)), str(tmp_path / "warehouse")],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    waves, compared, again, missing, rows = json.loads(process.stdout.splitlines()[-1])
    assert (waves, compared, again, missing) == (-(-len(plan.spans) // 2), len(plan.spans), 0, len(plan.spans))
    write_rows_locally(plan, open_local_folder(str(tmp_path / "table")))
    local = [replace(row, src_digest="", dst_digest="") for row in rows_of(plan, tmp_path / "table")]
    assert sorted(msgspec.convert(rows, list[ParityRow]), key=str) == sorted(local, key=str)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_arrow_and_spark_mean_the_same_columns(spark: SparkSession, table: Table) -> None:
    assert from_arrow_schema(table.schema) == spark.createDataFrame([], build_ddl(table.columns)).schema
