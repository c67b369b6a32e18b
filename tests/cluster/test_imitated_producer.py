"""Records that a thief of the data principal appends under the mirror's own producer id, in the right sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mirror_core.kafka.client import ClusterClient, borrowed_connection
from mirror_core.kafka.config import Principal
from mirror_core.kafka.fetch_link import FetchLink, fetch_once
from mirror_core.mirrors.describe import describe_mirror
from mirror_core.model.errors import PartitionFailed
from mirror_core.model.figures import FigureKey
from mirror_core.model.mirror import FailureKind, PartitionState
from mirror_core.model.names import Partition
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.model.run import RunMode
from mirror_core.model.timing import now_ms
from mirror_core.wire.batch import split_batches
from mirror_core.wire.batch_encoder import build_batches
from mirror_core.wire.records import Codec
from tests.support.comparisons import compare, found
from tests.support.data_plane_thread import driving
from tests.support.failover_runs import app_topic
from tests.support.kafka_clients import Pair, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.parity_topics import START_MS, append_batches, whole
from tests.support.waiting import patience, wait_until

pytestmark = pytest.mark.cluster

FORGED = 2
COPIED = 20
NO_TIME_MS = -1


def forge(
    mirrored: Mirrored, partition: Partition, log_end: int, batches: Sequence[bytes] = (), time_ms: int = START_MS
) -> None:
    """Appends two records that the source never had, or these batches, as the mirror's own copier would."""
    ((forged, _),) = build_batches([("k", b"pay 9")] * FORGED, 1_000, Codec.NONE, time_ms, 0)
    append_batches(
        mirrored.pair,
        "west",
        partition.topic,
        [bytearray(batch) for batch in batches] or [forged],
        producer_id=mirrored.link.mirror.producer_id,
        log_end=log_end,
    )


def read_source_batches(mirrored: Mirrored, partition: Partition, start: int, end: int) -> list[bytes]:
    batches = list[bytes]()
    with ClusterClient(mirrored.config.cluster("east"), Principal.DATA) as source:
        (leader,) = source.leaders([partition])
        with borrowed_connection(source, source.address(leader)) as connection:
            link = FetchLink(connection, max_bytes=1 << 20, partition_max_bytes=1 << 20)
            while start < end:
                fetched = fetch_once(link, partition, start)
                assert fetched is not None
                assert not fetched.error
                for header, batch in split_batches(fetched.records):
                    batches.append(bytes(batch))
                    start = header.next_offset
    return batches


def copied_mirror(pair: Pair, evidence: Path) -> tuple[Mirrored, Partition]:
    topic = app_topic(pair)
    produce(pair.east, topic, COPIED)
    mirrored = new_mirror(pair, evidence, topic)
    mirrored.copy()
    return mirrored, Partition(topic, 0)


def require_failed_at_the_forgery(mirrored: Mirrored, partition: Partition, source_end: int) -> None:
    """Nobody is shown a figure that counts forged records as copied."""
    status = mirrored.statuses[partition]
    assert (status.state, status.kind, status.failed_at) == (PartitionState.FAILED, FailureKind.DIVERGED, COPIED)
    plan = mirrored.failover.plan(RunMode.UNPLANNED)
    assert plan.figures[FigureKey.LOST_OFFSETS] == source_end - COPIED
    assert any(str(partition) in str(warning) for warning in plan.warnings)
    (row,) = [
        row
        for row in describe_mirror(mirrored.link, mirrored.state, now_ms()).rows
        if str(row.partition) == str(partition)
    ]
    assert row.state is PartitionState.FAILED


def test_records_forged_while_nothing_copies_fail_the_partition(pair: Pair, tmp_path: Path) -> None:
    mirrored, partition = copied_mirror(pair, tmp_path)
    forge(mirrored, partition, COPIED)
    produce(pair.east, partition.topic, 5)
    with pytest.raises(PartitionFailed, match=str(partition)):
        mirrored.copy()
    assert len(read_all(pair.west, partition.topic)) == COPIED + FORGED, "nothing was appended behind them"
    require_failed_at_the_forgery(mirrored, partition, COPIED + 5)


def test_true_records_appended_behind_forged_ones_hide_nothing(pair: Pair, tmp_path: Path) -> None:
    """A thief may read the source, and go on as the copier would."""
    mirrored, partition = copied_mirror(pair, tmp_path)
    forge(mirrored, partition, COPIED)
    produce(pair.east, partition.topic, FORGED)
    produce(pair.east, partition.topic, 6_000)
    end = COPIED + FORGED + 6_000
    forge(mirrored, partition, COPIED + FORGED, read_source_batches(mirrored, partition, COPIED + FORGED, end))
    produce(pair.east, partition.topic, 5)
    with pytest.raises(PartitionFailed, match=str(partition)):
        mirrored.copy()
    require_failed_at_the_forgery(mirrored, partition, end + 5)


@pytest.mark.parametrize("count", [FORGED, 5])
def test_records_forged_while_a_task_runs_fail_the_partition(pair: Pair, tmp_path: Path, count: int) -> None:
    """If its own batch has as many records, the broker acknowledges it as a duplicate, at the forged ones' offset."""
    mirrored, partition = copied_mirror(pair, tmp_path)
    with driving(mirrored, epoch_s=60):
        produce(pair.east, partition.topic, 1)
        wait_until(
            lambda: len(read_all(pair.west, partition.topic)) == COPIED + 1,
            timeout_s=patience(60.0),
            why="a task copies",
        )
        forge(mirrored, partition, COPIED + 1)
        produce(pair.east, partition.topic, count, linger_ms="100")
        wait_until(
            lambda: mirrored.statuses[partition].state is PartitionState.FAILED,
            timeout_s=patience(120.0),
            why="the partition is FAILED",
        )
    status = mirrored.statuses[partition]
    assert (status.kind, status.failed_at) == (FailureKind.DIVERGED, COPIED + 1)


def test_a_comparison_finds_a_batch_without_a_time_that_was_acknowledged_as_the_task_s_own(
    pair: Pair, tmp_path: Path
) -> None:
    """Of a duplicate the broker shows the newest time, by which tasks know it. -1 looks like an append."""
    mirrored, partition = copied_mirror(pair, tmp_path)
    end = COPIED + 1 + FORGED

    def has_reported() -> bool:
        observations = mirrored.state.source_observations
        observation = observations.get(mirrored.name)
        return observation is not None and dict(observation.get_reported_ends()).get(partition) == end

    with driving(mirrored, epoch_s=60):
        produce(pair.east, partition.topic, 1)
        wait_until(
            lambda: len(read_all(pair.west, partition.topic)) == COPIED + 1,
            timeout_s=patience(60.0),
            why="a task copies",
        )
        forge(mirrored, partition, COPIED + 1, time_ms=NO_TIME_MS)
        produce(pair.east, partition.topic, FORGED, linger_ms="100")
        wait_until(has_reported, timeout_s=patience(60.0), why="a task reports the offsets as its own")
    result = compare(pair, whole(partition.topic, end))
    assert result.verdict is ParityVerdict.FAILED, result
    assert {offset for _, offset in found(result)} == {COPIED + 1, COPIED + 2}
