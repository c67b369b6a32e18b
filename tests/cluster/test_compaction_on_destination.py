"""Mirror topics whose source is compacted are cleaned on the destination too, while mirroring goes on."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mirror_core.dataplane.epoch_results import raise_if_failed
from mirror_core.decide.gaps_and_resume import MAX_MARKED_START
from mirror_core.kafka.log_offsets import OffsetPoint, PartitionProducer, describe_producers, list_offsets
from mirror_core.kafka.topics import alter_configs, delete_records, describe_configs
from mirror_core.mirrors.describe import describe_mirror
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.model.sync_state import WRITING_ACTIONS, SyncAction, SyncCategory
from mirror_core.sync.mirror_sync import sync_mirror
from mirror_core.sync.topic_compaction import COMPACTION_HELD, COMPACTION_SOONER
from mirror_core.wire.batch import CONTROL, BatchHeader, split_batches
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.links import writer_of
from tests.cluster.test_deletion_hold import DAY_MS, with_hold
from tests.support import log_shapes, parity_topics
from tests.support.cluster_admin import as_admin, broker_setting
from tests.support.compacted_comparisons import keyed
from tests.support.compacted_topics import assert_compacted
from tests.support.data_errors import about_data
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, produce, read_all
from tests.support.log_shapes import HOUR_MS, Row, await_cleaner, send
from tests.support.mirrored_topics import Mirrored, new_mirror, replicate
from tests.support.sentences import format_sentence
from tests.support.shifted_clock import ShiftedClock
from tests.support.topic_equality import assert_parity, assert_same_offsets, parity
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

CONFIGS = frozenset({SyncCategory.CONFIGS})
COMPACT = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0.01",
    "segment_ms": str(HOUR_MS),
    "retention_ms": "-1",
    "message_timestamp_after_max_ms": str(2**63 - 1),
}


def compacted_topic(pair: Pair, **config: str) -> str:
    return new_topic(pair.east, 1, "t-", **{**COMPACT, **config})


def set_policy(cluster: SandboxCluster, topic: str, value: str) -> None:
    with as_admin(cluster) as client:
        alter_configs(client, {topic: {"cleanup.policy": value}})
        wait_until(
            lambda: describe_configs(client, [topic])[topic].effective["cleanup.policy"] == value,
            timeout_s=TIMEOUT_S,
            why=f"{topic}: cleanup.policy={value}",
        )


def sync_settings(mirrored: Mirrored) -> set[tuple[str, SyncAction, str]]:
    """What a sync does to settings, or leaves until promotion."""
    with writer_of(mirrored.link) as writer:
        report = sync_mirror(mirrored.link, writer, only=CONFIGS)
    assert not [row for row in report.rows if row.action in WRITING_ACTIONS and not row.done]
    return {(row.subject.partition(": ")[2], row.action, row.reason) for row in report.rows}


def policy(pair: Pair, topic: str) -> str:
    with as_admin(pair.west) as client:
        return describe_configs(client, [topic])[topic].effective["cleanup.policy"]


def described(mirrored: Mirrored) -> object:
    """What `mirror describe` says of topics that the source cleans by key."""
    return describe_mirror(mirrored.link, mirrored.state, int(time.time() * 1000)).facts[FactKey.COMPACTED_TOPICS].text


def stored(cluster: SandboxCluster, topic: str) -> list[BatchHeader]:
    """Headers of all batches as they lie on disk, in the order of offsets."""
    segments = sorted((cluster.log_dir() / f"{topic}-0").glob("*.log"))
    return [header for path in segments for header, _ in split_batches(memoryview(bytearray(path.read_bytes())))]


def markers(cluster: SandboxCluster, topic: str, end: int) -> int:
    """How many lie on disk below this offset."""
    return len([h for h in stored(cluster, topic) if h.attributes & CONTROL and h.base_offset < end])


def producer_of(pair: Pair, topic: str) -> PartitionProducer:
    """What the leader remembers of the mirror, the only one that writes there."""
    with as_admin(pair.west) as client:
        [view] = describe_producers(client, [Partition(topic, 0)])[Partition(topic, 0)]
    return view


class Application:
    """Writes a changelog of a few keys in transactions, every third of which it aborts."""

    def __init__(self, pair: Pair, topic: str) -> None:
        self.pair = pair
        self.topic = topic
        self.now_ms = int(time.time() * 1000)
        config = {**pair.east.client_config("admin"), "transactional.id": topic, "linger.ms": 1000}
        self.producer = Producer(config)
        self.producer.init_transactions(TIMEOUT_S)

    def write(self, transactions: int, version: int) -> None:
        for number in range(transactions):
            self.producer.begin_transaction()
            for key in range(10):
                self._send(b"k%d" % key, b"%d %d" % (version, number))
            if number % 3 == 1:
                assert self.producer.flush(TIMEOUT_S) == 0
                self.producer.abort_transaction(TIMEOUT_S)
            else:
                self.producer.commit_transaction(TIMEOUT_S)

    def roll(self) -> int:
        """Begin a new segment on both sides, so that the old one can be cleaned; the new one's first offset."""
        self.now_ms += 2 * HOUR_MS
        self.plain(b"roller")
        with as_admin(self.pair.east) as client:
            return list_offsets(client, [Partition(self.topic, 0)], OffsetPoint.LOG_END)[Partition(self.topic, 0)] - 1

    def plain(self, key: bytes) -> None:
        """A record in no transaction: no marker behind it."""
        send(log_shapes.new_producer(self.pair.east), self.topic, [Row(key=key, value=b"", timestamp_ms=self.now_ms)])

    def delete(self, key: bytes) -> None:
        self.producer.begin_transaction()
        self._send(key, None)
        self.producer.commit_transaction(TIMEOUT_S)

    def _send(self, key: bytes, value: bytes | None) -> None:
        self.producer.produce(self.topic, key=key, value=value, partition=0, timestamp=self.now_ms)


def cleaned(pair: Pair, mirrored: Mirrored, application: Application) -> int:
    """Copy, and wait until the destination's cleaner has been through all that is there now: up to this offset."""
    goal = application.roll()
    mirrored.copy()
    await_cleaner(pair.west, {Partition(application.topic, 0): goal})
    return goal


@about_data()
def assert_equal(pair: Pair, mirrored: Mirrored, topic: str) -> None:
    assert_compacted(read_all(pair.east, topic), read_all(pair.west, topic))
    newest = [{r.key: r.value for r in read_all(cluster, topic)} for cluster in (pair.east, pair.west)]
    assert {k: v for k, v in newest[0].items() if v} == {k: v for k, v in newest[1].items() if v} != {}
    assert_same_offsets(pair, [topic])
    assert_parity(mirrored)


def test_a_mirror_topic_is_cleaned_of_records_and_markers_while_it_is_mirrored(pair: Pair, tmp_path: Path) -> None:
    topic = compacted_topic(pair, delete_retention_ms="0")
    mirrored = new_mirror(pair, tmp_path, topic)
    application = Application(pair, topic)
    application.write(9, 1)
    mirrored.copy()
    assert policy(pair, topic) == "delete", "not before all is copied that may have no key"
    growing = format_sentence("staged_not_cleaned", 1, 1, "west")
    assert described(mirrored) == f"{growing}{mirrored.name}` finds the copy caught up: {topic}"
    assert markers(pair.west, topic, 1 << 40) == 6 + 3 * 11, "for each commit, and for all that was aborted"
    written = sum(header.length for header in stored(pair.west, topic))
    assert ("cleanup.policy", SyncAction.SET, "mirror needs compact,delete") in sync_settings(mirrored)
    assert policy(pair, topic) == "compact,delete"
    assert described(mirrored) == "1"
    waiting = {("cleanup.policy", SyncAction.STAGE, "set to compact at promotion")}
    assert {row for row in sync_settings(mirrored) if row[0] in ("cleanup.policy", "delete.retention.ms")} == waiting

    with broker_setting(pair.west, "log.cleaner.backoff.ms", "100"):
        end = cleaned(pair, mirrored, application)
        application.write(3, 2)  # markers get their horizon in one run, and go in the next
        cleaned(pair, mirrored, application)
    assert markers(pair.west, topic, end) == 0
    assert sum(header.length for header in stored(pair.west, topic) if header.base_offset < end) < written / 2
    assert_equal(pair, mirrored, topic)

    # DeleteRecords works on it; and parity finds that it was not the cleaner who took what is gone.
    application.write(1, 3)
    application.plain(b"alone")
    mirrored.copy()
    with as_admin(pair.west) as client:
        last = list_offsets(client, [Partition(topic, 0)], OffsetPoint.LOG_END)[Partition(topic, 0)]
        delete_records(client, {Partition(topic, 0): last})
    found = parity(mirrored)
    assert found.verdict is ParityVerdict.FAILED
    assert [(f.kind, f.offset) for f in found.findings] == [("log start", 0)]
    assert f"the destination's log starts at {last}" in found.findings[0].detail


@pytest.mark.slow
def test_a_leader_that_lost_its_memory_of_cleaned_markers_is_no_foreign_writer(pair: Pair, tmp_path: Path) -> None:
    topic = compacted_topic(pair, delete_retention_ms="0")
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    sync_settings(mirrored)
    application = Application(pair, topic)
    application.write(3, 1)
    with broker_setting(pair.west, "log.cleaner.backoff.ms", "100"):
        for _ in range(2):
            cleaned(pair, mirrored, application)
    before, link = producer_of(pair, topic), mirrored.link
    # A replica that is new has no snapshots either: it knows what the log tells.
    pair.west.kill()
    for path in (pair.west.log_dir() / f"{topic}-0").glob("*.snapshot"):
        path.unlink()
    pair.west.start()
    after = producer_of(pair, topic)
    assert after.last_sequence == before.last_sequence
    assert after.coordinator_epoch < before.coordinator_epoch, "otherwise there is nothing to see here"
    application.write(2, 2)
    raise_if_failed(replicate(link))
    assert_equal(pair, mirrored, topic)
    # A foreign record is one all the same.
    send(log_shapes.new_producer(pair.west), topic, [Row(key=b"k1")])
    assert set(replicate(link).failed) == {Partition(topic, 0)}
    assert mirrored.statuses[Partition(topic, 0)].kind is FailureKind.FOREIGN


def test_a_compaction_that_the_source_begins_waits_for_the_hold(
    pair: Pair, tmp_path: Path, clock: ShiftedClock
) -> None:
    """A thief of a right to change settings would have the copy cleaned, too, of what the hold keeps.

    Nor does a sync on a machine whose clock is ahead clean it.
    """
    topic = compacted_topic(pair, cleanup_policy="delete")
    mirrored = with_hold(new_mirror(pair, tmp_path, topic))
    for version in range(2):
        parity_topics.send(pair.east, topic, keyed(20, version))
    mirrored.copy()
    sync_settings(mirrored)
    sent = read_all(pair.west, topic)
    set_policy(pair.east, topic, "compact")
    for hours in (0, 48):
        clock.hours = hours
        assert ("cleanup.policy", SyncAction.STAGE, COMPACTION_HELD) in sync_settings(mirrored)
        assert policy(pair, topic) == "delete"
    clock.hours = 0
    mirrored.copy()
    assert read_all(pair.west, topic) == sent

    recorded = mirrored.state.topic_settings[mirrored.name, topic]
    assert recorded.compacted_since_ms is not None
    with writer_of(mirrored.link) as writer:
        writer.put(replace(recorded, compacted_since_ms=recorded.compacted_since_ms - DAY_MS))
    sync_settings(mirrored)
    assert policy(pair, topic) == "compact,delete"


def test_tombstones_stay_as_long_as_the_sources_brokers_say_not_the_destinations(pair: Pair, tmp_path: Path) -> None:
    topic = compacted_topic(pair)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    with (
        broker_setting(pair.west, "log.cleaner.delete.retention.ms", "1"),
        broker_setting(pair.west, "log.cleaner.backoff.ms", "100"),
    ):
        assert ("delete.retention.ms", SyncAction.SET, "mirror needs 86400000") in sync_settings(mirrored)
        application = Application(pair, topic)
        application.write(2, 1)
        application.delete(b"k3")
        for _ in range(2):
            cleaned(pair, mirrored, application)
        found = [r for r in read_all(pair.west, topic) if r.key == b"k3"]
        assert [r.value for r in found] == [None], "its value is gone, and it is not"
    assert_equal(pair, mirrored, topic)


def test_a_copy_is_not_cleaned_where_the_destination_refuses_to_keep_records_as_long_as_the_source(
    pair: Pair, tmp_path: Path
) -> None:
    topic = compacted_topic(pair, min_compaction_lag_ms="3600000")
    mirrored = new_mirror(pair, tmp_path, topic)
    with broker_setting(pair.west, "log.cleaner.max.compaction.lag.ms", "60000"):
        mirrored.copy()
        assert ("cleanup.policy", SyncAction.STAGE, COMPACTION_SOONER) in sync_settings(mirrored)
        assert policy(pair, topic) == "delete"
    sync_settings(mirrored)
    assert policy(pair, topic) == "compact,delete"
    with broker_setting(pair.west, "log.cleaner.max.compaction.lag.ms", "60000"):
        sync_settings(mirrored)
        assert policy(pair, topic) == "compact,delete", "it keeps them as long already"


def test_records_without_a_key_are_copied_and_the_cleaner_follows_the_source(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    mirrored = new_mirror(pair, tmp_path, topic)
    produce(pair.east, topic, 20)
    mirrored.copy()
    set_policy(pair.east, topic, "compact")
    sync_settings(mirrored)
    assert policy(pair, topic) == "compact,delete"
    mirrored.copy()

    # Before any sync has seen it, the source takes records without a key again.
    set_policy(pair.east, topic, "delete")
    produce(pair.east, topic, 20)
    mirrored.copy()
    assert policy(pair, topic) == "delete"
    assert read_all(pair.west, topic) == read_all(pair.east, topic) != []
    assert not [row for row in sync_settings(mirrored) if row[0] == "cleanup.policy"]

    # The same while it is compacted: not before the copy has caught up, and never refused for good.
    set_policy(pair.east, topic, "compact")
    sync_settings(mirrored)
    set_policy(pair.east, topic, "delete")
    produce(pair.east, topic, 20)
    set_policy(pair.east, topic, "compact")
    sync_settings(mirrored)
    assert policy(pair, topic) == "compact,delete"
    mirrored.copy()
    assert policy(pair, topic) == "delete"
    sync_settings(mirrored)
    assert policy(pair, topic) == "compact,delete"
    assert read_all(pair.west, topic) == read_all(pair.east, topic)


def test_a_log_that_begins_late_is_seeded_before_it_is_cleaned_and_again_after(pair: Pair, tmp_path: Path) -> None:
    topic = compacted_topic(pair, cleanup_policy="compact,delete")
    many = log_shapes.new_producer(pair.east, linger_ms="1000", batch_num_messages="100000", compression_type="zstd")
    mirrored = new_mirror(pair, tmp_path, topic)
    for end in (MAX_MARKED_START + 50, 2 * MAX_MARKED_START + 200):
        with as_admin(pair.east) as client:
            first = list_offsets(client, [Partition(topic, 0)], OffsetPoint.LOG_END)[Partition(topic, 0)]
            send(many, topic, (Row(key=b"k", value=b"") for _ in range(first, end)))
            delete_records(client, {Partition(topic, 0): Offset(end)})
        produce(pair.east, topic, 5)
        mirrored.copy()
        assert policy(pair, topic) == "delete"
        sync_settings(mirrored)
        assert policy(pair, topic) == "compact,delete"
        assert_same_offsets(pair, [topic])
        assert read_all(pair.west, topic) == read_all(pair.east, topic) != []
