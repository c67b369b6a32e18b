"""Hidden records on Spark: copied, compared and saved as records that are not there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.epoch_results import raise_if_failed
from mirror_core.model.mirror import GapFilling
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.parity.comparable_ranges import read_parity_scope
from mirror_core.spark import salvage_job
from mirror_core.spark.runner import SparkRunner
from mirror_core.spark.services import make_spark_services
from tests.support.gap_logs import assert_equal, transaction, transactional
from tests.support.kafka_clients import Pair, new_topic, produce
from tests.support.managed_service import managed
from tests.support.mirrored_topics import Mirrored, new_mirror

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.spark,
    # py4j drops connections of threads that have ended without closing their sockets.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def hosted(pair: Pair, tmp_path: Path) -> Iterator[Pair]:
    with managed(pair, tmp_path) as made:
        yield made


def copy(mirrored: Mirrored) -> int:
    """By epochs on Spark, until caught up; how many records that were."""
    options = ReplicationOptions(until_caught_up=True)
    stop = threading.Event()
    summary = Replication(
        mirrored.link, partial(SparkRunner, slots=2), options, stop=stop, report_line=lambda line: None
    ).run()
    raise_if_failed(summary)
    return summary.records


@pytest.mark.slow
def test_spark_neither_counts_nor_compares_nor_saves_them(
    spark: SparkSession, hosted: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(salvage_job, "MAX_LOCAL_OFFSETS", 0)
    topic = new_topic(hosted.east, 2)
    producer = transactional(hosted.east)
    mirrored = new_mirror(hosted, tmp_path, topic)
    assert mirrored.link.mirror.gaps is GapFilling.HIDDEN
    copied = 0
    for turn in range(2):
        for commit in (True, False, True):
            transaction(producer, topic, 5 + turn, commit=commit, partitions=(0, 1))
        produce(hosted.east, topic, 3, partition=turn)
        copied += copy(mirrored)
    assert_equal(hosted, topic, records=copied)

    services = make_spark_services(mirrored.config.path, evidence_dir=tmp_path / "evidence", master="local[4]")
    mirror, compared = mirrored.link.mirror, read_parity_scope(mirrored.link, mirrored.state)
    result = services.parity(mirror.source_identity, mirror.destination_identity, compared.ranges, None)
    assert (result.verdict, result.records, result.findings) == (ParityVerdict.PASSED, copied, ())
    saved = services.salvage(mirror.destination_identity, compared.ranges, tmp_path / "salvage")
    assert sum(s.records for s in saved.values()) == copied
