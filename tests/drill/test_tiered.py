"""A source whose older segments are in remote storage, and not with the broker any more (KIP-405)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mirror_core.decide.topic_settings import NEVER_COPIED_KEYS
from mirror_core.kafka.fetch_link import REMOTE_STORAGE_HINT, REQUIRED_EMPTY_FETCHES
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.kafka.log_reader import LogReader
from mirror_core.kafka.topics import NewTopic, create_topics, delete_records, describe_configs
from mirror_core.model.errors import Refused, Unreachable
from mirror_core.model.names import Offset, Partition
from mirror_core.model.sync_state import SyncAction, SyncCategory
from mirror_core.sync.mirror_sync import sync_mirror
from mirrorbook_tools.logdir.stopped_broker import hold_stopped_broker, parse_targets, plan_broker_truncation
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.links import new_link, record, writer_of
from tests.drill.one_task import one_task
from tests.support import log_shapes
from tests.support.cluster_admin import as_admin
from tests.support.failback_runs import failback_of, failed_over, go_home
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, produce, read_all
from tests.support.log_shapes import CODECS, FOREVER, new_producer
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.tiered_source import Answer, await_tiered, limited, tiered_source, tiered_topic, unanswering
from tests.support.topic_equality import assert_parity, assert_same
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill]


@pytest.fixture(scope="module")
def tiered(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with tiered_source(pair, tmp_path_factory.mktemp("tiered")) as found:
        yield found


@pytest.fixture(scope="module")
def made(tiered: Pair) -> dict[Partition, Offset]:
    """Partitions of every shape that a tiered topic can have, and where their local logs begin."""
    batching = {codec: new_producer(tiered.east, compression_type=codec, linger_ms="1000") for codec in CODECS}
    plain, transactions = tiered_topic(tiered.east), tiered_topic(tiered.east, 2)
    aiokafka, timed = tiered_topic(tiered.east), tiered_topic(tiered.east, message_timestamp_after_max_ms=FOREVER)
    produce(tiered.east, plain, 300, linger_ms="0", batch_num_messages="5")
    log_shapes.oddities(plain, batching)
    log_shapes.transactions(tiered.east, transactions)
    log_shapes.transactions_of_aiokafka(tiered.east, aiokafka)
    log_shapes.timestamps(timed, batching)
    return await_tiered(
        tiered.east, [Partition(t, 0) for t in (plain, transactions, aiokafka, timed)] + [Partition(transactions, 1)]
    )


def test_what_only_remote_storage_holds_is_mirrored_exactly(
    tiered: Pair, tmp_path: Path, made: dict[Partition, Offset]
) -> None:
    topics = {partition.topic for partition in made}
    mirrored = new_mirror(tiered, tmp_path, *topics)
    mirrored.copy()
    assert_same(tiered, topics)
    for topic in topics:
        produce(tiered.east, topic, 20)
    mirrored.copy()
    assert_same(tiered, topics)
    assert_parity(mirrored)
    with as_admin(tiered.west) as client:
        copied = {key for configs in describe_configs(client, topics).values() for key in configs.overrides}
    assert not copied & NEVER_COPIED_KEYS, "how much is kept where is each cluster's own"


def test_a_topic_in_remote_storage_is_failed_over_and_back(tiered: Pair, tmp_path: Path) -> None:
    topic = tiered_topic(tiered.east)
    produce(tiered.east, topic, 300, linger_ms="0", batch_num_messages="5")
    partition = Partition(topic, 0)
    await_tiered(tiered.east, [partition])
    mirrored = failed_over(tiered, tmp_path, topic)
    log_shapes.transactions_of_aiokafka(tiered.west, topic)
    produce(tiered.west, topic, 200, linger_ms="0", batch_num_messages="5")
    failback = failback_of(mirrored)
    plan = failback.plan()
    assert plan.strategies == {topic: "none"}
    run = failback.begin(plan.hash)
    failback.drive(run.id)
    await_tiered(tiered.east, [partition])
    go_home(failback, run.id)
    expected = read_all(tiered.west, topic)
    mirrored.copy()
    assert read_all(tiered.west, topic)[: len(expected)] == expected
    assert read_all(tiered.east, topic) == read_all(tiered.west, topic)
    with as_admin(tiered.east) as client:
        assert describe_configs(client, [topic])[topic].overrides["remote.storage.enable"] == "true"


@pytest.mark.parametrize("storage", [unanswering, limited])
def test_where_remote_storage_gives_nothing_there_is_no_gap(
    tiered: Pair, tmp_path: Path, storage: Callable[[SandboxCluster, Partition], AbstractContextManager[Answer]]
) -> None:
    mirrored, partition = late_mirror(tiered, tmp_path)
    other = Partition(partition.topic, 1)
    records = [record for record in read_all(tiered.east, partition.topic) if record.partition == 0]

    def filled() -> bool:
        return log_end(tiered, partition) == len(records)

    with storage(tiered.east, partition) as answer:
        with one_task(mirrored, [partition, other]) as task:
            wait_until(lambda: task.awaits_remote(partition) or filled(), timeout_s=TIMEOUT_S, why="it gets nothing")
            before, sent = task.asked, len(produce(tiered.east, other.topic, 20, partition=1))
            wait_until(lambda: log_end(tiered, other) == sent, timeout_s=TIMEOUT_S, why="others go on")
            wait_until(
                lambda: task.asked > before + REQUIRED_EMPTY_FETCHES or filled(),
                timeout_s=TIMEOUT_S,
                why="it asks again",
            )
            assert not filled(), "made a gap of what was not to be had"
            assert REMOTE_STORAGE_HINT in task.ended().retry_reason
        copied = log_end(tiered, partition)
        here = read_all(tiered.west, partition.topic, committed=False)
        assert [record for record in here if record.partition == 0] == records[:copied]
        with (
            LogReader(mirrored.link.source, timeout_s=2) as reader,
            pytest.raises(Unreachable, match=REMOTE_STORAGE_HINT[:40]),
        ):
            deque(reader.records(partition, Offset(0), Offset(len(records))), maxlen=0)
        with one_task(mirrored, [partition], until={partition: len(records)}) as task:
            wait_until(lambda: task.awaits_remote(partition), timeout_s=TIMEOUT_S, why="the next one waits as well")
            answer()
            assert task.ends().failures == ()
    assert_same(tiered, [partition.topic])


def test_a_log_start_that_moves_within_remote_storage_is_followed(tiered: Pair, tmp_path: Path) -> None:
    mirrored, partition = late_mirror(tiered, tmp_path)
    with one_task(mirrored, [partition], until={partition: 100}) as task:
        assert task.ends().failures == ()
    assert log_end(tiered, partition) < 200
    for start in (202, 303):  # behind what is copied, and before its end; both in the middle of a batch
        with as_admin(tiered.east) as client:
            delete_records(client, {partition: Offset(start)})
        mirrored.copy()
        assert_same(tiered, [partition.topic])


def late_mirror(tiered: Pair, folder: Path) -> tuple[Mirrored, Partition]:
    """A mirror whose topic is still empty on the destination, while most of the source's is in remote storage; and the
    one of its two partitions that this is true of."""
    topic = tiered_topic(tiered.east, 2)
    mirrored = new_mirror(tiered, folder, topic)
    mirrored.copy()
    produce(tiered.east, topic, 400, linger_ms="0", batch_num_messages="5")
    await_tiered(tiered.east, [Partition(topic, 0)])
    return mirrored, Partition(topic, 0)


def log_end(tiered: Pair, partition: Partition) -> int:
    with as_admin(tiered.west) as client:
        return list_offsets(client, [partition], OffsetPoint.LOG_END)[partition]


def test_a_log_of_which_a_part_may_be_in_remote_storage_is_not_cut(tiered: Pair) -> None:
    older, fresh = (Partition(tiered_topic(tiered.east), 0) for _ in range(2))
    for partition in (older, fresh):
        produce(tiered.east, partition.topic, 100, linger_ms="0", batch_num_messages="5")
    local = await_tiered(tiered.east, [older])[older]
    produce(tiered.east, older.topic, 3)
    tiered.east.terminate()
    try:
        with (
            hold_stopped_broker([tiered.east.log_dir()]) as log_dirs,
            pytest.raises(Refused, match="in remote storage") as refused,
        ):
            plan_broker_truncation(log_dirs, parse_targets([f"{older}={local + 1}", f"{fresh}=1"]))
        assert len(refused.value.reasons) == 2
    finally:
        tiered.east.start()


def test_what_a_promotion_cannot_set_is_named_by_each_sync_before_it(tiered: Pair) -> None:
    """A topic in remote storage is never compacted, and keeps nothing for less time than its local log does."""
    topics = [
        new_topic(tiered.west, cleanup_policy="compact", retention_ms="1000", message_timestamp_type="LogAppendTime"),
        new_topic(tiered.west, retention_ms="3600000"),
    ]
    local = {"remote.storage.enable": "true", "local.retention.ms": "60000"}
    with as_admin(tiered.east) as client:
        create_topics(client, [NewTopic(name=t, partitions=1, replication_factor=1, configs=local) for t in topics])
    link = new_link(tiered, *topics, source="west", destination="east")
    with writer_of(link) as writer:
        sync_mirror(link, writer, only=frozenset({SyncCategory.TOPICS}))
        record(link, topics)
    with writer_of(link) as writer:
        for _ in range(2):
            rows = {
                (r.subject, r.action): r for r in sync_mirror(link, writer, only=frozenset({SyncCategory.CONFIGS})).rows
            }
            for key, value in (("cleanup.policy", "compact"), ("retention.ms", "1000")):
                row = rows[f"{topics[0]}: {key}", SyncAction.SKIP]
                assert row.reason.startswith(f"a promotion cannot set {value}: "), row
                assert (f"{topics[0]}: {key}", SyncAction.STAGE) not in rows
            for index, key in ((0, "message.timestamp.type"), (1, "retention.ms")):
                assert rows[f"{topics[index]}: {key}", SyncAction.STAGE].done
