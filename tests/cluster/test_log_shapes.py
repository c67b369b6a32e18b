"""A mirror of a source with every shape of log: all of it arrives, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.evidence.file_store import LocalFolder
from mirror_core.kafka.topics import delete_records, delete_topics
from mirror_core.mirrors import mirror_commands
from mirror_core.model.mirror import GapFilling
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.parity.certificate_check import LocalCertificateRunner, check_certificates, read_certificate_scope
from mirror_core.wire.batch import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    split_batches,
)
from tests.support import log_shapes
from tests.support.cluster_admin import as_admin
from tests.support.kafka_clients import Pair, new_topic, produce, read_topics
from tests.support.log_shapes import CODECS, Shapes
from tests.support.managed_service import managed
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.topic_equality import assert_equal, assert_parity, assert_same

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def made(pair: Pair) -> Iterator[Shapes]:
    made = log_shapes.build(pair.east)
    yield made
    made.end_the_open_transaction()
    for cluster in (pair.east, pair.west):
        with as_admin(cluster) as client:
            delete_topics(client, [t for t in made.topics.values() if t in client.metadata().topics])


def stored(made: Shapes, name: str, partition: int = 0) -> list[BatchHeader]:
    """Headers of all batches as they lie on the source's disk, in the order of offsets."""
    segments = sorted((made.cluster.log_dir() / f"{made.topics[name]}-{partition}").glob("*.log"))
    return [header for path in segments for header, _ in split_batches(memoryview(bytearray(path.read_bytes())))]


def test_the_source_holds_the_shapes_that_the_cleaner_leaves(made: Shapes) -> None:
    for partition, codec in enumerate(CODECS):
        log = stored(made, "compacted", partition)
        assert log[0].base_offset == log_shapes.BEGINNING_HOLE
        assert log[0].attributes & CODEC_MASK == CODECS.index(codec)
        assert 0 < log[0].record_count < log[0].last_offset_delta + 1, "holes inside a batch"
        assert any(b.base_offset > a.base_offset + a.last_offset_delta + 1 for a, b in itertools.pairwise(log))
        assert any(batch.record_count == 0 and batch.last_offset_delta > 0 for batch in log), "an empty batch"
        assert any(batch.attributes & DELETE_HORIZON for batch in log), "tombstones that wait for their horizon"
    log = stored(made, "compacted_transactions")
    assert any(batch.attributes & CONTROL and batch.attributes & DELETE_HORIZON for batch in log)
    assert any(batch.attributes & TRANSACTIONAL and batch.record_count < batch.last_offset_delta for batch in log)


def test_the_source_holds_the_shapes_that_clients_make(made: Shapes) -> None:
    for partition in range(2):
        log = stored(made, "transactions", partition)
        assert len({batch.producer_id for batch in log}) == 4
        assert len([batch for batch in log if batch.attributes & CONTROL]) >= 20
    for name in ("open", "hanging"):
        before, open_, behind = stored(made, name)
        assert open_.attributes & TRANSACTIONAL
        assert not (before.attributes | behind.attributes) & TRANSACTIONAL
    assert all(batch.attributes & LOG_APPEND_TIME for batch in stored(made, "append_time"))
    assert any(b.base_offset < log_shapes.FAR_START < b.base_offset + b.last_offset_delta for b in stored(made, "late"))
    assert max(batch.length for batch in stored(made, "large")) > log_shapes.LARGE_BYTES
    assert len(stored(made, "tiny")) == 2_000
    mixed = stored(made, "timestamps")[0]
    assert (mixed.base_timestamp, mixed.max_timestamp, mixed.record_count) == (-1, 2**62, 7)


def assert_certified(mirrored: Mirrored, receipts: LocalFolder, made: Shapes) -> None:
    """All of the copy is proved by what was written down while it was made; the source is not asked. Where retention
    has deleted the begin of a piece, its rest is left out."""
    wanted, proof = read_certificate_scope(mirrored.link, mirrored.state, receipts), LocalCertificateRunner()
    destination = mirrored.link.mirror.destination_identity
    found, _ = check_certificates(mirrored.config.path, destination, wanted, None, run=proof.run, tasks=3)
    assert (found.findings, found.reasons, found.verdict) == ((), (), ParityVerdict.PASSED)
    emptied = Partition(made.topics["emptied"], 0)
    assert wanted.left_out.keys() <= {emptied}
    assert all("begins below the log's start" in why for why in wanted.left_out.values())
    ends = {partition: end for partition, (_, end) in wanted.ends.items() if partition not in wanted.left_out}
    assert {partition: end for partition, end in found.verified_ends.items() if partition in ends} == ends


def test_every_shape_is_mirrored_exactly(pair: Pair, tmp_path: Path, made: Shapes) -> None:
    mirrored, receipts = new_mirror(pair, tmp_path, f"{made.prefix}.*"), LocalFolder(tmp_path / "receipts")
    mirrored.copy(str(receipts.path))
    topics = made.topics.values()
    assert_same(pair, topics)

    made.end_the_open_transaction()
    made.append()
    mirrored.copy(str(receipts.path))
    assert_same(pair, topics)
    assert_parity(mirrored)
    assert_certified(mirrored, receipts, made)

    # Whatever the comparison must find, it finds.
    with as_admin(pair.west) as client:
        delete_records(client, {Partition(made.topics["tiny"], 0): Offset(1)})
    produce(pair.west, made.topics["empty"], 1)
    for name in ("tiny", "empty"):
        with pytest.raises(AssertionError):
            assert_same(pair, [made.topics[name]])
    mirror_commands.stop_mirror(mirrored.link)
    mirror_commands.delete_mirror(mirrored.link)


@pytest.mark.slow
def test_every_shape_is_mirrored_exactly_where_no_markers_may_be_written(
    pair: Pair, tmp_path: Path, made: Shapes
) -> None:
    topics = made.topics.values()
    with as_admin(pair.west) as client:
        delete_topics(client, [t for t in topics if t in client.metadata().topics])
    with managed(pair, tmp_path) as hosted:
        mirrored, receipts = new_mirror(hosted, tmp_path, f"{made.prefix}.*"), LocalFolder(tmp_path / "receipts")
        assert mirrored.link.mirror.gaps is GapFilling.HIDDEN
        mirrored.copy(str(receipts.path))
        assert_same(hosted, topics)
        made.append()
        mirrored.copy(str(receipts.path))
        assert_same(hosted, topics)
        assert_parity(mirrored)
        assert_certified(mirrored, receipts, made)


@pytest.mark.drill
def test_a_thousand_partitions_are_mirrored(pair: Pair, tmp_path: Path) -> None:
    topic = log_shapes.many_partitions(pair.east, 1000)
    new_mirror(pair, tmp_path, topic).copy()
    assert_same(pair, [topic])
    for cluster in (pair.east, pair.west):
        with as_admin(cluster) as client:
            delete_topics(client, [topic])


def test_the_comparison_names_the_first_difference(pair: Pair) -> None:
    topic = new_topic(pair.east)
    produce(pair.east, topic, 5)
    good = read_topics(pair.east, [topic])
    assert_equal(good, good, "nobody")
    first, second, *rest = good[topic]
    defects = {
        "missing": [first, *rest],
        "twice": [first, first, second, *rest],
        "one more": [*good[topic], first],
        "value": [first, replace(second, value=b"other"), *rest],
        "null key": [first, replace(second, key=None), *rest],
        "header": [first, replace(second, headers=()), *rest],
        "time": [first, replace(second, timestamp_ms=second.timestamp_ms + 1), *rest],
        "whose time": [first, replace(second, append_time=True), *rest],
        "offset": [first, replace(second, offset=9), *rest],
    }
    for name, defect in defects.items():
        with pytest.raises(AssertionError, match=topic):
            assert_equal(good, {topic: defect}, name)
