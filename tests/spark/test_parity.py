"""Parity as a Spark job, judged by Great Expectations too, against real brokers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mirror_core.decide.parity_result import ParityRow
from mirror_core.evidence.expectations import judge_table
from mirror_core.evidence.parity_report import JudgesDisagree, to_table, write_parity_report
from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.model.parity_verdict import ParityFinding, ParityResult, ParityVerdict
from mirror_core.spark import job_submission, parity_job
from mirror_core.spark.parity_job import DEFAULT_DEMANDS, SparkParity
from mirror_core.spark.runner import SparkRunner
from tests.spark import work
from tests.support.kafka_clients import Pair
from tests.support.parity_topics import content, copy_bytes, send, twin_topics, whole
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    # PySpark leaves the sockets of collected results to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]

EAST, WEST = ClusterName("east"), ClusterName("west")


def test_equal_topics_pass_and_data_docs_load_nothing_from_elsewhere(pair: Pair, tmp_path: Path) -> None:
    topic = twin_topics(pair, partitions=2)
    for partition in (0, 1):
        send(pair.east, topic, content(300), partition)
        copy_bytes(pair, topic, 300, partition)
    ranges = [whole(topic, 300, partition=partition) for partition in (0, 1)]
    result = SparkParity(pair.config_path, "local[2]", chunk=50)(*pair.identities, ranges, tmp_path)
    assert (result.verdict, result.records, result.chunks) == (ParityVerdict.PASSED, 600, 12)
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["great_expectations"]["success"] is True
    table = pq.read_table(tmp_path / "table.parquet").to_pydict()
    assert sum(table["compared"]) == 600
    pages = list((tmp_path / "data-docs").rglob("*.html"))
    assert len(pages) >= 3
    for page in [*pages, tmp_path / "index.html"]:
        assert not re.search(
            r"url\(.?(https?:)?//|<(script|img|link|source|iframe)[^>]*(src|href|srcset)=.?(https?:)?//",
            page.read_text(),
        )


def test_a_defect_fails_in_both_judgements(pair: Pair, tmp_path: Path) -> None:
    topic = twin_topics(pair)
    send(pair.east, topic, content(300))
    copy = content(300)
    copy[123] = replace(copy[123], value=b"damaged")
    send(pair.west, topic, copy)
    result = SparkParity(pair.config_path, "local[2]", chunk=50)(*pair.identities, [whole(topic, 300)], tmp_path)
    assert (result.verdict, result.verified_ends) == (ParityVerdict.FAILED, {Partition(topic, 0): 123})
    assert [(finding.kind, finding.offset) for finding in result.findings] == [("value", 123)]
    expectations = json.loads((tmp_path / "result.json").read_text())["great_expectations"]["expectations"]
    broken = {row["type"]: row["where"] for row in expectations if not row["success"]}
    assert broken["expect_column_values_to_be_in_set(differing)"] == f"{topic}-0 chunk 2"
    assert any("src_digest" in name for name in broken)


def test_nothing_to_compare_is_indeterminate_in_both_judgements(pair: Pair, tmp_path: Path) -> None:
    topic = twin_topics(pair)
    result = SparkParity(pair.config_path, "local[2]")(*pair.identities, [whole(topic, 0)], tmp_path)
    assert result.verdict is ParityVerdict.INDETERMINATE
    assert json.loads((tmp_path / "result.json").read_text())["great_expectations"]["success"] is False


def test_a_configuration_that_executors_cannot_use_is_indeterminate(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = twin_topics(pair)
    send(pair.east, topic, content(10))
    send(pair.west, topic, content(10))
    text = pair.config_path.read_text()
    config = pair.config_path.parent / f"env-{tmp_path.name}.yaml"
    config.write_text(text.replace("SASL_PLAINTEXT", "${env:ONLY_THE_DRIVER_HAS_IT}"))
    monkeypatch.setenv("ONLY_THE_DRIVER_HAS_IT", "SASL_PLAINTEXT")  # after Spark was started, so workers lack it
    result = SparkParity(config, "local[2]")(*pair.identities, [whole(topic, 10)], None)
    assert result.verdict is ParityVerdict.INDETERMINATE
    assert "ONLY_THE_DRIVER_HAS_IT is not set" in result.reasons[0]


ROW = ParityRow(partition=Partition("t", 0), chunk=0, start=Offset(0), end=Offset(9), level=2, src_count=9, dst_count=9)


@pytest.mark.parametrize(
    "defect",
    [
        {"dst_count": 8},
        {"dst_count": None},
        {"dst_digest": "other"},
        {"error": "unreadable"},
        {"differing": 1, "findings": (ParityFinding(partition=Partition("t", 0), offset=None, kind="key", detail=""),)},
    ],
)
def test_great_expectations_sees_each_kind_of_defect(defect: dict[str, object]) -> None:
    good = replace(ROW, partition=Partition("u", 0))
    assert judge_table(to_table([good], 3), None, DEFAULT_DEMANDS).success
    judged = judge_table(to_table([good, replace(ROW, **defect)], 3), None, DEFAULT_DEMANDS)  # type: ignore[arg-type]
    assert not judged.success
    assert any("t-0 chunk 0" in held.where for held in judged.held if not held.held)


def test_a_verdict_that_great_expectations_does_not_share_is_an_error(tmp_path: Path) -> None:
    wrong = ParityResult(verdict=ParityVerdict.PASSED, records=9, chunks=1, verified_ends={ROW.partition: Offset(9)})
    with pytest.raises(JudgesDisagree, match="Great Expectations says failure"):
        write_parity_report(
            tmp_path,
            wrong,
            [replace(ROW, dst_count=8)],
            source=EAST,
            destination=WEST,
            level=3,
            started=0.0,
            demands=DEFAULT_DEMANDS,
        )
    assert "DISAGREES" in (tmp_path / "index.html").read_text()


def test_a_share_whose_worker_always_dies_leaves_the_others_proved(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = twin_topics(pair, partitions=3)
    for partition in range(3):
        send(pair.east, topic, content(100), partition)
        copy_bytes(pair, topic, 100, partition)
    ranges = [whole(topic, 100, partition=partition) for partition in range(3)]
    monkeypatch.setattr(parity_job, "run_compare_task", work.compare_or_die)
    result = SparkParity(pair.config_path, "local[4]", chunk=100)(*pair.identities, ranges, None)
    assert result.verdict is ParityVerdict.INDETERMINATE
    assert result.verified_ends[Partition(topic, 0)] == result.verified_ends[Partition(topic, 2)] == 100
    assert result.verified_ends.get(Partition(topic, 1), 0) == 0
    assert len(result.reasons) == 1
    assert f"{topic}-1" in result.reasons[0]
    assert format_sentence("spark_gave_up_a_task_failed", 4) in result.reasons[0]
    assert "worker exited unexpectedly" in result.reasons[0]
    assert "org.apache" not in result.reasons[0]


@pytest.mark.slow
def test_a_comparison_that_gets_no_slot_says_so_and_the_job_is_gone(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = twin_topics(pair)
    send(pair.east, topic, content(10))
    copy_bytes(pair, topic, 10)
    runner = SparkRunner("local[4]", 2)
    try:
        here = [tmp_path / f"task-{number}" for number in range(4)]
        all_slots = runner._start_job(work.wait_for_file, [str(path).encode() for path in here], bytes)
        wait_until(lambda: all(path.exists() for path in here), timeout_s=60, why="a data plane holds all slots")
        tracker = runner._context.statusTracker()

        def list_begun() -> set[int]:
            return {job_id for job_id in tracker.getActiveJobsIds() if job_submission._has_begun(tracker, job_id)}

        wait_until(lambda: len(list_begun()) == 4, timeout_s=60, why="each of its tasks, a job, is seen to have begun")
        held = list_begun()
        refused = pytest.raises(RemoteFault, match=r"parity of \d+ shares: .* no task slot within 1 s.*spark.cores.max")
        with monkeypatch.context() as patch, refused:
            patch.setattr(job_submission, "SLOT_TIMEOUT_S", 1.0)
            SparkParity(pair.config_path, "local[4]")(*pair.identities, [whole(topic, 10)], None)
        assert not all_slots.done()
        wait_until(  # Spark lists a cancelled job until its listeners have heard of it
            lambda: {*tracker.getActiveJobsIds()} == held, timeout_s=60, why="the refused jobs are gone"
        )
    finally:
        runner.close()
    assert (
        SparkParity(pair.config_path, "local[4]")(*pair.identities, [whole(topic, 10)], None).verdict
        is ParityVerdict.PASSED
    )
