"""Consumer groups' offsets at the destination, with real consumers on both sides."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import aiokafka
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.consumer_groups import (
    CommittedOffset,
    ConsumerGroup,
    FetchedGroupOffsets,
    GroupOffsetsClient,
    OffsetsToCommit,
    delete_group,
    fetch_group_offsets,
    list_groups,
)
from mirror_core.kafka.leader_epochs import LogPosition
from mirror_core.kafka.topics import delete_records, delete_topics
from mirror_core.model.errors import Refused, RemoteFault
from mirror_core.model.mirror import GroupSyncTime
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import Plan, RunKind, RunMode
from mirror_core.model.sync_state import DriftRow, SyncAction, SyncCategory
from mirror_core.model.timing import now_ms
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_topic import read_state
from mirror_core.sync import offset_sync
from mirror_core.sync.mirror_sync import SyncReport, sync_mirror
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.links import writer_of
from tests.support import synced_groups
from tests.support.cluster_admin import as_admin
from tests.support.group_commits import commit_offsets, delete_offset, fetch_offsets
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, produce
from tests.support.memory_state import run_of
from tests.support.sentences import format_sentence
from tests.support.synced_groups import commit, consumer, made_anew
from tests.support.synced_topics import put_topic
from tests.support.waiting import wait_until

group = synced_groups.group
link = synced_groups.link
topic = synced_groups.topic

pytestmark = pytest.mark.cluster
GROUPS = frozenset({SyncCategory.GROUPS})


def synced(link: MirrorLink) -> list[DriftRow]:
    with writer_of(link) as writer:
        return list(sync_mirror(link, writer, only=GROUPS).rows)


def committed(link: MirrorLink, group: str, topic: str) -> CommittedOffset | None:
    with ClusterClient(link.destination) as client:
        return fetch_offsets(client, group).committed.get(Partition(topic, 0))


@pytest.mark.parametrize(
    ("source", "expected", "reason"),
    [(4, 4, ""), (6, 6, ""), (9, 6, format_sentence("offset_beyond_destination", 6, 6, 3))],
)
def test_a_group_never_starts_ahead_of_what_was_copied(
    link: MirrorLink, group: str, topic: str, source: int, expected: int, reason: str
) -> None:
    commit(link, "source", group, topic, source, "stream-time-7")
    row = synced(link)[0]
    assert (row.action, row.done, row.source, row.reason) == (SyncAction.COMMIT, True, str(source), reason)
    assert committed(link, group, topic) == CommittedOffset(Offset(expected), 0, "stream-time-7")
    assert [row.action for row in synced(link)] == [SyncAction.EQUAL]


def test_a_group_never_starts_before_the_destinations_log(link: MirrorLink, group: str, topic: str) -> None:
    commit(link, "source", group, topic, 1)
    with ClusterClient(link.destination) as client:
        delete_records(client, {Partition(topic, 0): Offset(3)})
    assert synced(link)[0].reason == "3: the destination begins at 3"
    assert committed(link, group, topic) == CommittedOffset(Offset(3), 0, "")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_real_consumer_resumes_exactly_where_it_was(
    pair: Pair, link: MirrorLink, group: str, topic: str, protocol: str
) -> None:
    with consumer(pair.east, group, topic, protocol) as member:
        member.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    assert synced(link)[0].action is SyncAction.COMMIT
    config = {"group.id": group, "auto.offset.reset": "error", "group.protocol": protocol, "log_level": 0}
    again = Consumer({**pair.west.client_config("admin"), **config})
    try:
        again.subscribe([topic])
        message = wait_until(lambda: again.poll(0.2), timeout_s=60, why="the group reads on at the destination")
        assert message is not None
        assert message.error() is None
        assert message.offset() == 4
    finally:
        again.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_on_the_destination_is_left_alone(
    pair: Pair, link: MirrorLink, group: str, topic: str, protocol: str
) -> None:
    commit(link, "source", group, topic, 2)
    with consumer(pair.west, group, topic, protocol) as member:
        member.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
        row = synced(link)[0]
        assert row.action is SyncAction.SKIP
        assert "has members on the destination" in row.reason
        with ClusterClient(link.destination) as client:  # should it have joined after the sync had looked
            refused = commit_offsets(client, group, {Partition(topic, 0): (Offset(2), "")})
        assert refused[Partition(topic, 0)] in ("unknown_member_id", "stale_member_epoch")
    left = committed(link, group, topic)
    assert left is not None
    assert left.offset == 5


def test_a_consumers_own_progress_on_the_destination_is_not_taken_back(
    pair: Pair, link: MirrorLink, group: str, topic: str
) -> None:
    commit(link, "source", group, topic, 2)
    with consumer(pair.west, group, topic) as member:
        message = wait_until(lambda: member.poll(0.2), timeout_s=60, why="a record to commit with its leader epoch")
        assert message is not None
        member.commit(message=message, asynchronous=False)
    before = committed(link, group, topic)
    assert before is not None
    assert before.leader_epoch >= 0
    assert before.offset > 1
    commit(link, "source", group, topic, 0)
    row = synced(link)[0]
    assert (row.action, row.done) == (SyncAction.SKIP, False)
    assert "which is ahead" in row.reason
    assert committed(link, group, topic) == before


@contextmanager
def explicit(cluster: SandboxCluster, group: str, topic: str, client: str) -> Iterator[Callable[[int], None]]:
    """Commits offsets that it names itself, as many applications do: the clients send no leader epoch with those."""
    if client == "librdkafka":
        member = Consumer({**cluster.client_config("admin"), "group.id": group, "log_level": 0})
        yield lambda offset: _must(member.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False))
        member.close()
        return
    login = cluster.client_config("admin")
    with asyncio.Runner() as runner:
        consumer = runner.run(_aiokafka(login, group, topic))
        yield lambda offset: runner.run(consumer.commit({aiokafka.TopicPartition(topic, 0): offset}))
        runner.run(consumer.stop())


def _must(committed: object) -> None:
    assert committed


async def _aiokafka(login: Mapping[str, str], group: str, topic: str) -> aiokafka.AIOKafkaConsumer:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=login["bootstrap.servers"],
        group_id=group,
        enable_auto_commit=False,
        security_protocol=login["security.protocol"],
        sasl_mechanism=login["sasl.mechanism"],
        sasl_plain_username=login["sasl.username"],
        sasl_plain_password=login["sasl.password"],
    )
    await consumer.start()
    consumer.assign([aiokafka.TopicPartition(topic, 0)])
    return consumer


@pytest.mark.parametrize("client", ["librdkafka", "aiokafka"])
def test_progress_that_was_committed_without_a_leader_epoch_is_not_taken_back(
    pair: Pair, link: MirrorLink, group: str, topic: str, client: str
) -> None:
    commit(link, "source", group, topic, 2)
    synced(link)
    with explicit(pair.west, group, topic, client) as own:
        own(5)
    assert committed(link, group, topic) == CommittedOffset(Offset(5), -1, "")
    for source in (3, 1):
        commit(link, "source", group, topic, source)
        row = synced(link)[0]
        assert (row.action, row.done, row.offset) == (SyncAction.SKIP, False, 5)
        assert "has committed 5, which is ahead" in row.reason
        assert committed(link, group, topic) == CommittedOffset(Offset(5), -1, "")
    with writer_of(link) as writer:
        (left,) = writer.state.uncommitted_groups[link.mirror.name].uncommitted
    assert (left.group, left.partition, left.destination_offset) == (group, f"{topic}-0", 5)


def test_once_the_source_has_passed_somebodys_progress_the_group_is_the_sources_again(
    pair: Pair, link: MirrorLink, group: str, topic: str
) -> None:
    commit(link, "destination", group, topic, 4)
    for source, expected in ((2, 4), (6, 6), (1, 1)):
        commit(link, "source", group, topic, source)
        synced(link)
        left = committed(link, group, topic)
        assert left is not None
        assert left.offset == expected
    with writer_of(link) as writer:
        assert writer.state.uncommitted_groups[link.mirror.name].uncommitted == ()


def test_a_group_set_back_on_the_source_is_set_back_on_the_destination(
    link: MirrorLink, group: str, topic: str
) -> None:
    for offset in (5, 1):
        commit(link, "source", group, topic, offset)
        synced(link)
    assert committed(link, group, topic) == CommittedOffset(Offset(1), 0, "")


def test_a_sync_takes_back_nothing_that_was_followed_meanwhile(
    link: MirrorLink, group: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group goes on while the sync looks at it, and the data plane has committed that already."""
    commit(link, "source", group, topic, 3)
    synced(link)
    commit(link, "source", group, topic, 4)
    look = offset_sync._list_log_ranges

    def meanwhile(
        destination: ClusterClient, partitions: Collection[Partition], agreed_ends: Mapping[Partition, Offset]
    ) -> object:
        for side in ("source", "destination"):
            commit(link, side, group, topic, 5)
        return look(destination, partitions, agreed_ends)

    monkeypatch.setattr(offset_sync, "_list_log_ranges", meanwhile)
    with writer_of(link) as writer:
        writer.put(GroupSyncTime(mirror=link.mirror.name, synced_ms=now_ms(), followed=True))
    row = synced(link)[0]
    assert (row.action, row.done) == (SyncAction.SKIP, False)
    assert "is followed" in row.reason
    assert committed(link, group, topic) == CommittedOffset(Offset(5), -1, "")


@pytest.mark.parametrize("partitions", [1, 2])
def test_offsets_of_a_topic_that_was_made_anew_are_not_brought_into_the_old_ones_copy(
    pair: Pair, link: MirrorLink, group: str, topic: str, partitions: int
) -> None:
    commit(link, "source", group, topic, 3)
    synced(link)
    made_anew(pair, topic, partitions, 20)
    commit(link, "source", group, topic, 15)
    with writer_of(link) as writer:
        rows = list(sync_mirror(link, writer).rows)
    (about,) = [row for row in rows if row.part is SyncCategory.TOPICS]
    assert about.action is SyncAction.REFUSE
    assert "was deleted and created anew" in about.reason
    (row,) = [row for row in rows if row.part is SyncCategory.GROUPS]
    assert (row.action, row.done, row.offset) == (SyncAction.SKIP, False, 3)
    assert "created anew on the source" in row.reason
    assert committed(link, group, topic) == CommittedOffset(Offset(3), 0, "")
    with ClusterClient(link.destination) as west:
        assert len(west.metadata([topic]).topics[topic].partitions) == 1


def test_offsets_of_a_topic_without_a_copy_are_named_and_stay_behind(
    pair: Pair, link: MirrorLink, group: str, topic: str
) -> None:
    """The mirror topic was deleted on the destination, and somebody else's is in its place."""
    commit(link, "source", group, topic, 3)
    synced(link)
    with as_admin(pair.west) as west:
        delete_topics(west, [topic])
        wait_until(lambda: not west.metadata([topic]).topics, timeout_s=TIMEOUT_S, why=f"{topic} is gone")
    put_topic(pair, topic, 1)
    produce(pair.west, topic, 5)
    commit(link, "source", group, topic, 4)
    assert [(row.subject, row.action, row.reason) for row in synced(link)] == [
        (group, SyncAction.SKIP, f"its offsets of topics that are not copied stay behind: {topic}")
    ]
    assert committed(link, group, topic) is None


@pytest.mark.parametrize("gone", ["group", "offset"])
def test_an_offset_that_the_source_has_no_more_stays_and_is_named_until_it_is_deleted(
    pair: Pair, link: MirrorLink, group: str, topic: str, gone: str
) -> None:
    def delete(cluster: SandboxCluster) -> None:
        with as_admin(cluster) as client:
            delete_group(client, group) if gone == "group" else delete_offset(client, group, Partition(topic, 0))

    commit(link, "source", group, topic, 4)
    assert synced(link)[0].done
    delete(pair.east)
    (row,) = [row for row in synced(link) if row.subject != group]
    assert (row.subject, row.action, row.destination) == (f"{group} {topic}-0", SyncAction.SKIP, "4")
    assert "the source has no such offset any more" in row.reason
    (left,) = read_state(link.destination).uncommitted_groups[link.mirror.name].uncommitted
    assert (left.group, left.partition, left.destination_offset) == (group, f"{topic}-0", 4)
    delete(pair.west)
    assert [row for row in synced(link) if row.subject != group] == []
    assert read_state(link.destination).uncommitted_groups[link.mirror.name].uncommitted == ()


def test_every_group_in_scope_is_accounted_for(pair: Pair, link: MirrorLink, group: str, topic: str) -> None:
    other = new_topic(pair.east)
    commit(link, "source", group, other, 0)
    rows = synced(link)
    assert [(row.subject, row.action, row.reason) for row in rows] == [
        (group, SyncAction.SKIP, "has committed nothing on mirror topics")
    ]


def test_a_group_whose_offsets_the_destination_does_not_tell_holds_up_no_other(
    pair: Pair, link: MirrorLink, group: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of one whose coordinator stays away."""
    ill = f"{group}-ill"
    link = replace(link, mirror=replace(link.mirror, groups=(f"{group}.*",)))
    for side, offset in (("source", 4), ("destination", 2)):
        commit(link, side, ill, topic, offset)
    commit(link, "source", group, topic, 4)

    def fetch_without_one(client: ClusterClient, groups: Iterable[ConsumerGroup]) -> FetchedGroupOffsets:
        fetched = fetch_group_offsets(client, groups)
        if client.name == "east":
            return fetched
        offsets = {name: found for name, found in fetched.offsets.items() if name != ill}
        return FetchedGroupOffsets(offsets, {ill: RemoteFault(f"cluster west, group {ill}: no coordinator answered")})

    monkeypatch.setattr(offset_sync, "fetch_group_offsets", fetch_without_one)
    with writer_of(link) as writer:
        rows = {row.subject: row for row in sync_mirror(link, writer, only=GROUPS).rows}
        left = writer.state.uncommitted_groups[link.mirror.name].uncommitted
    assert rows[f"{group} {topic}-0"].done
    assert committed(link, group, topic) == CommittedOffset(Offset(4), 0, "")
    assert (rows[ill].action, rows[ill].reason) == (
        SyncAction.SKIP,
        f"cluster west, group {ill}: no coordinator answered",
    )
    assert [one.group for one in left] == [ill]


def test_a_group_whose_commit_no_coordinator_takes_holds_up_no_other(
    pair: Pair, link: MirrorLink, group: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its partition of the offsets topic has no leader: such a group is not even listed."""
    ill = f"{group}-ill"
    link = replace(link, mirror=replace(link.mirror, groups=(f"{group}.*",)))
    for name in (ill, group):
        commit(link, "source", name, topic, 4)
    commit_all = GroupOffsetsClient.commit

    def commit_without_one(
        client: GroupOffsetsClient,
        offsets: Mapping[str, OffsetsToCommit],
        epochs: Mapping[LogPosition, int],
        share_groups: Collection[str],
    ) -> dict[str, dict[Partition, str]]:
        return commit_all(client, {name: row for name, row in offsets.items() if name != ill}, epochs, share_groups)

    monkeypatch.setattr(GroupOffsetsClient, "commit", commit_without_one)
    defaults = ClusterClient.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout_s", 3.0)
    with writer_of(link) as writer:
        rows = {row.subject: row for row in sync_mirror(link, writer, only=GROUPS).rows}
        left = writer.state.uncommitted_groups[link.mirror.name].uncommitted
        own = [record.group for record in writer.state.group_offsets[link.mirror.name].values()]
        assert own == [group], "what was committed is known to be the mirror's own"
    assert rows[f"{group} {topic}-0"].done
    reason = "no coordinator on the destination took the commit in time"
    assert (rows[f"{ill} {topic}-0"].action, rows[f"{ill} {topic}-0"].reason) == (SyncAction.SKIP, reason)
    assert [(one.group, one.partition, one.reason) for one in left] == [(ill, f"{topic}-0", reason)]


def test_an_offset_of_an_open_transaction_waits(pair: Pair, link: MirrorLink, group: str, topic: str) -> None:
    with consumer(pair.east, group, topic) as member:
        member.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
        producer = Producer({**pair.east.client_config("admin"), "transactional.id": group, "log_level": 0})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 5)], member.consumer_group_metadata(), 60)
        assert "transaction that is still open" in synced(link)[0].reason
        producer.commit_transaction(60)
        wait_until(
            lambda: synced(link)[0].action in (SyncAction.COMMIT, SyncAction.EQUAL),
            timeout_s=60,
            why="the transaction is over",
        )
    left = committed(link, group, topic)
    assert left is not None
    assert left.offset == 5


def test_progress_that_a_transaction_on_the_destination_is_about_to_commit_is_not_taken_back(
    pair: Pair, link: MirrorLink, group: str, topic: str
) -> None:
    """A commit of ours behind it would count as the newer one."""
    commit(link, "source", group, topic, 2)
    synced(link)
    commit(link, "source", group, topic, 3)
    producer = Producer({**pair.west.client_config("admin"), "transactional.id": group, "log_level": 0})
    producer.init_transactions(60)
    with consumer(pair.west, group, topic) as member:
        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 5)], member.consumer_group_metadata(), 60)
    row = synced(link)[0]
    assert (row.action, row.done) == (SyncAction.SKIP, False)
    assert "somebody on the destination commits it in a transaction" in row.reason
    producer.commit_transaction(60)

    def over() -> bool:
        synced(link)
        left = committed(link, group, topic)
        return left is not None and left.offset == 5

    wait_until(over, timeout_s=60, why="the transaction is over")


def test_groups_are_listed_with_their_kind_and_state(pair: Pair, link: MirrorLink, group: str, topic: str) -> None:
    with consumer(pair.east, group, topic, "consumer"), ClusterClient(link.source) as client:
        found = list_groups(client)[group]
    assert (found.kind, found.is_idle) == ("consumer", False)


def test_a_sync_stays_away_from_a_mirror_that_a_run_holds(link: MirrorLink) -> None:
    plan = Plan(kind=RunKind.FAILOVER, mirror=link.mirror.name, mode=RunMode.PLANNED, steps=(), bound_facts=())
    run = run_of("r-" + secrets.token_hex(4), plan)
    with writer_of(link) as writer:
        writer.put(run)
        with pytest.raises(Refused, match=f"failover {run.id} is under way"):
            sync_mirror(link, writer)
        assert isinstance(sync_mirror(link, writer, run_id=run.id), SyncReport)
