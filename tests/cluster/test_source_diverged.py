"""A source that loses what was copied from it, and grows other records in its place, or the same ones."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mirror_core.copy.log_inspection import DivergenceFinder
from mirror_core.dataplane.task_runner import LocalCopy
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Principal
from mirror_core.kafka.leader_epochs import list_epoch_ends
from mirror_core.mirrors import mirror_commands
from mirror_core.model.errors import PartitionFailed
from mirror_core.model.mirror import FailureKind, PartitionState
from mirror_core.model.names import Offset, Partition
from mirror_core.model.sync_state import SyncCategory
from tests.cluster.desk import Desk
from tests.support.failover_runs import commit, committed
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, produce, read_all
from tests.support.log_cutting import batch_of_100, give_back, lose_tails
from tests.support.mirrored_topics import new_mirror, replicate
from tests.support.sentences import format_sentence

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

LOST = "the source lost records that were copied (unclean leader election)"


def test_what_the_source_lost_fails_its_partition_at_the_first_record_that_differs(pair: Pair, tmp_path: Path) -> None:
    grown, shorter, partly, same, whole = topics = [new_topic(pair.east, retention_ms="-1") for _ in range(5)]
    for topic in topics:
        for first in range(0, 3_000 if topic in (grown, same) else 500, 100):
            batch_of_100(pair.east, topic, first)
    mirrored = new_mirror(pair, tmp_path, *topics)
    mirrored.copy()
    before = {p.topic: s.source_epoch for p, s in mirrored.statuses.items()}

    lose_tails(pair.east, dict.fromkeys((grown, shorter, partly, same), 300))
    produce(pair.east, grown, 3_000)
    batch_of_100(pair.east, partly, 300)  # a producer repeats some of it
    produce(pair.east, partly, 50)
    for first in range(300, 3_100, 100):
        batch_of_100(pair.east, same, first)
    produce(pair.east, whole, 40)

    with pytest.raises(PartitionFailed, match=f"{grown}-0: {re.escape(LOST)}; from offset 300"):
        LocalCopy(mirrored.link)(  # as a failover's drain does
            {Partition(grown, 0): Offset(3_300)}, TIMEOUT_S, lambda stop_ms: None, lambda deletions: None
        )
    summary = replicate(mirrored.link)
    expected = {
        grown: (300, format_sentence("destination_ahead_from_offset", LOST, 300, "west", 2700)),
        shorter: (
            300,
            format_sentence("source_log_ends_before_position", 300, 500, 300, "west", 200),
        ),
        partly: (
            400,
            format_sentence("source_log_ends_before_position", 450, 500, 400, "west", 100),
        ),
    }
    assert set(summary.failed) == {Partition(topic, 0) for topic in expected}
    for topic, (offset, reason) in expected.items():
        status = mirrored.statuses[Partition(topic, 0)]
        assert (status.state, status.kind, status.failed_at) == (PartitionState.FAILED, FailureKind.DIVERGED, offset)
        assert status.reason == f"cluster east, {topic}-0: {reason}"
        assert status.source_epoch == before[topic], "what the new leader holds is not vouched for"
        copied = 3_000 if topic == grown else 500
        assert len(read_all(pair.west, topic)) == copied, "nothing of the other history was added"
    for topic, count in ((same, 3_100), (whole, 540)):
        status = mirrored.statuses[Partition(topic, 0)]
        assert status.state is PartitionState.MIRRORING
        assert status.source_epoch != before[topic]
        assert read_all(pair.east, topic) == read_all(pair.west, topic)
        assert len(read_all(pair.west, topic)) == count
    with (
        ClusterClient(mirrored.link.source, Principal.DATA) as source,
        ClusterClient(mirrored.link.destination, Principal.DATA) as destination,
        DivergenceFinder(source, destination) as divergence,
    ):
        partition, epoch = Partition(grown, 0), before[grown]
        assert epoch is not None
        assert list_epoch_ends(source, {partition: epoch}, source.leaders([partition])).offsets == {partition: 300}
        # Also without knowing the epoch the place is found; and what is below it agrees.
        assert divergence.find_first_divergence(partition, Offset(3_000)) == 300
        assert divergence.find_first_divergence(partition, Offset(300)) is None


def test_groups_skip_nothing_of_what_only_the_copy_has(pair: Pair, tmp_path: Path) -> None:
    """They go on among records that the copy does not have; it has others at these offsets, which nobody has read."""
    topic = new_topic(pair.east, retention_ms="-1")
    for first in range(0, 500, 100):
        batch_of_100(pair.east, topic, first)
    group, behind, used_there = (f"{letter}-{topic}" for letter in "ghi")
    commit(pair.east, group, topic, 250)
    commit(pair.east, behind, topic, 120)
    commit(pair.east, used_there, topic, 120)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group, behind, used_there))
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link)
    commit(pair.west, used_there, topic, 480)
    lose_tails(pair.east, {topic: 300})
    for first in range(1_000, 1_400, 100):
        batch_of_100(pair.east, topic, first)
    commit(pair.east, group, topic, 650)
    commit(pair.east, behind, topic, 180)
    commit(pair.east, used_there, topic, 350)
    assert set(replicate(mirrored.link).failed) == {Partition(topic, 0)}

    rows = {row.subject: row for row in mirror_commands.run_sync(mirrored.link).rows if row.part is SyncCategory.GROUPS}
    assert [committed(pair.west, name, topic) for name in (group, behind, used_there)] == [300, 180, 480]
    assert rows[f"{group} {topic}-0"].reason == format_sentence("offset_at_other_records", 300, 300, 350)


def test_each_way_out_of_it_does_what_it_says(desk: Desk, tmp_path: Path) -> None:
    pair = desk.pair
    returned, lost = topics = [new_topic(pair.east, retention_ms="-1") for _ in range(2)]
    for topic in topics:
        for first in range(0, 500, 100):
            batch_of_100(pair.east, topic, first)
    mirrored = desk.started(*topics)
    mirrored.copy()
    whole = {topic: read_all(pair.west, topic) for topic in topics}
    lose_tails(pair.east, dict.fromkeys(topics, 300), tmp_path / "kept")
    for topic in topics:
        produce(pair.east, topic, 20)

    def recover(topic: str, *options: str) -> str:
        said = desk.run("mirror", "recover", mirrored.name, "--topics", topic, *options)
        assert said.code == 0, said.err
        return said.out

    def diverged(*expected: str) -> None:
        assert set(replicate(mirrored.link).failed) == {Partition(topic, 0) for topic in expected}
        for topic in expected:
            status = mirrored.statuses[Partition(topic, 0)]
            assert (status.kind, status.failed_at) == (FailureKind.DIVERGED, 300)
            assert read_all(pair.west, topic) == whole[topic], "nothing of it was given up, and nothing added"

    diverged(returned, lost)
    recover(returned, "--action", "retry", "--yes")
    diverged(returned, lost)  # too early: it is found again

    give_back(pair.east, returned, tmp_path / "kept")
    again = format_sentence("retry_looks_at_both_logs_again", 500)
    assert again in recover(returned, "--action", "retry", "--dry-run")
    assert again in recover(returned, "--action", "retry", "--yes")
    batch_of_100(pair.east, returned, 500)
    diverged(lost)
    assert mirrored.statuses[Partition(returned, 0)].state is PartitionState.MIRRORING
    assert read_all(pair.west, returned) == read_all(pair.east, returned)
    assert len(read_all(pair.west, returned)) == 600

    folder = tmp_path / "salvage"
    price = (
        format_sentence("recover_loses_offsets", 200, 300, "west"),
        f"saved to {folder} before anything is deleted: {lost}-0 [300, 500)\n",
    )
    anew = "--action", "recopy", "--salvage", str(folder)
    shown = recover(lost, *anew, "--dry-run")
    assert all(line in shown for line in price)
    assert not folder.exists()
    done = recover(lost, *anew, "--yes")
    assert all(line in done for line in price)
    assert f"200 records of cluster west saved to {folder}\n{lost}: deleted on cluster west" in done
    rows = [row for path in folder.rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    saved = [(r["partition"], r["offset"], r["timestamp_ms"], r["key"], r["value"]) for r in rows]
    assert saved == [(r.partition, r.offset, r.timestamp_ms, r.key, r.value) for r in whole[lost][300:]]
    mirrored.copy()
    assert read_all(pair.west, lost) == read_all(pair.east, lost)
    assert len(read_all(pair.west, lost)) == 320
