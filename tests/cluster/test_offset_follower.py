"""Groups' offsets as they are committed: followed by the data plane, with real consumers and brokers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AclOperation, AclPermissionType, NewPartitions, ResourceType

from mirror_core.dataplane.counters import RetriedWork
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Principal
from mirror_core.kafka.consumer_groups import CommittedOffset
from mirror_core.kafka.consumer_offsets_topic import ConsumerOffsetsFollower
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.describe import describe_with_groups
from mirror_core.model.errors import MissingPermission
from mirror_core.model.figures import FigureKey
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import RunMode
from mirror_core.model.sync_state import GroupCoverage
from mirror_core.model.timing import now_ms
from mirror_core.sync.offset_commits import FollowedTopic, OffsetCommitRounds, OwnCommittedOffsets, PendingOffsetCommits
from tests.support.broker_faults import killed
from tests.support.group_commits import commit_offsets, fetch_offsets
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, grant, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.offset_following import replicating
from tests.support.synced_groups import consumer, made_anew
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def offset_on(cluster: ClusterClient, group: str, topic: str) -> int | None:
    found = fetch_offsets(cluster, group).committed.get(Partition(topic, 0))
    return None if found is None else int(found.offset)


def _is_on(cluster: ClusterClient, group: str, topic: str, offset: int) -> bool:
    return offset_on(cluster, group, topic) == offset


@pytest.fixture
def group() -> str:
    return "g-" + secrets.token_hex(4)


@pytest.fixture
def topic(pair: Pair) -> str:
    return new_topic(pair.east)


@pytest.fixture
def mirrored(pair: Pair, topic: str, group: str, tmp_path_factory: pytest.TempPathFactory) -> Mirrored:
    produce(pair.east, topic, 20)
    made = new_mirror(pair, tmp_path_factory.mktemp("evidence"), topic, groups=(group + ".*",))
    made.copy()
    return made


@pytest.fixture
def west(mirrored: Mirrored) -> Iterator[ClusterClient]:
    with ClusterClient(mirrored.link.destination) as client:
        yield client


@pytest.fixture
def commit(mirrored: Mirrored, group: str, topic: str) -> Iterator[Callable[[int], None]]:
    """As an administrator commits on the source."""
    with ClusterClient(mirrored.link.source) as client:
        yield lambda offset: _must(commit_offsets(client, group, {Partition(topic, 0): (Offset(offset), "")}))


def _must(refused: dict[Partition, str]) -> None:
    assert refused == {}


def carried(west: ClusterClient, commit: Callable[[int], None], group: str, topic: str) -> list[float]:
    """Commits of a group come over one after the other; the seconds that each took."""
    wait_until(lambda: offset_on(west, group, topic) == 3, timeout_s=60, why="what was there before is taken over")
    took = []
    for offset in (5, 9, 4, 20):
        commit(offset)
        began = time.monotonic()
        arrived = partial(_is_on, west, group, topic, offset)
        wait_until(arrived, timeout_s=60, why=f"{offset} is there, too")
        took.append(time.monotonic() - began)
    return took


@pytest.mark.timed
def test_a_commit_is_on_the_destination_within_a_second(
    mirrored: Mirrored, west: ClusterClient, commit: Callable[[int], None], group: str, topic: str
) -> None:
    commit(3)
    with replicating(mirrored.link):
        took = carried(west, commit, group, topic)
    assert sorted(took)[1] < 1.0, took


def test_what_groups_commit_is_followed_and_the_state_says_how_old_it_is(
    mirrored: Mirrored, west: ClusterClient, commit: Callable[[int], None], group: str, topic: str
) -> None:
    commit(3)
    with replicating(mirrored.link):
        carried(west, commit, group, topic)
        wait_until(
            lambda: (
                (seen := mirrored.state.groups.get(mirrored.name)) is not None
                and seen.followed
                and time.time() * 1000 - seen.synced_ms < 8000
            ),
            timeout_s=30,
            why="the state says how old groups' offsets are",
        )


def test_what_the_copy_has_not_reached_is_committed_as_soon_as_it_has(
    pair: Pair, mirrored: Mirrored, west: ClusterClient, commit: Callable[[int], None], group: str, topic: str
) -> None:
    """The group has read all of 20 more records, of which the destination has none yet."""
    produce(pair.east, topic, 20)
    commit(35)
    waiting = PendingOffsetCommits()
    waiting.set_committed(group, Partition(topic, 0), CommittedOffset(Offset(35), -1, ""))
    own = OwnCommittedOffsets(mirrored.name, mirrored.state)
    with OffsetCommitRounds(mirrored.link.destination, lambda: None, own) as rounds:

        def carried_to() -> int | None:
            """A round leaves to the next one what a coordinator that loads, or moves, does not take."""
            rounds.commit_due(waiting)
            return offset_on(west, group, topic)

        assert wait_until(carried_to, timeout_s=60, why="what the copy has is committed") == 20
        mirrored.copy()
        assert carried_to() == 35
    assert waiting.committed == {}


def test_nothing_is_committed_beyond_where_the_copy_has_other_records(
    mirrored: Mirrored, west: ClusterClient, group: str, topic: str
) -> None:
    partition = Partition(topic, 0)
    waiting = PendingOffsetCommits(agreed_ends={partition: Offset(12)})
    waiting.set_committed(group, partition, CommittedOffset(Offset(18), -1, ""))
    own = OwnCommittedOffsets(mirrored.name, mirrored.state)
    with OffsetCommitRounds(mirrored.link.destination, lambda: None, own) as rounds:

        def carried_to() -> int | None:
            rounds.commit_due(waiting)
            return offset_on(west, group, topic)

        assert wait_until(carried_to, timeout_s=60, why="what both sides have is committed") == 12


def test_nothing_is_committed_into_another_topic_of_the_same_name(
    mirrored: Mirrored, west: ClusterClient, group: str, topic: str
) -> None:
    waiting, own = PendingOffsetCommits(), OwnCommittedOffsets(mirrored.name, mirrored.state)
    waiting.set_committed(group, Partition(topic, 0), CommittedOffset(Offset(7), -1, ""))
    (recorded,) = {status.destination_topic_id for status in mirrored.statuses.values()}
    with OffsetCommitRounds(mirrored.link.destination, lambda: None, own) as rounds:

        def committed() -> bool:
            rounds.commit_due(waiting)
            return offset_on(west, group, topic) is not None

        waiting.topic_ids = {topic: FollowedTopic("", "0" * 32)}
        assert not committed()
        waiting.topic_ids = {topic: FollowedTopic("", recorded)}
        wait_until(committed, timeout_s=60, why="it is committed into the mirror's own")


def test_a_commit_on_a_topic_that_was_made_anew_is_not_followed_into_the_old_ones_copy(
    pair: Pair, topic: str, group: str, tmp_path: Path
) -> None:
    other = new_topic(pair.east)
    for name in (topic, other):
        produce(pair.east, name, 20)
    mirrored = new_mirror(pair, tmp_path, topic, other, groups=(group,))
    mirrored.copy()
    with (
        ClusterClient(mirrored.link.source) as east,
        ClusterClient(mirrored.link.destination) as west,
        replicating(mirrored.link),
    ):
        _must(commit_offsets(east, group, {Partition(topic, 0): (Offset(4), "")}))
        wait_until(partial(_is_on, west, group, topic, 4), timeout_s=60, why="it is followed")
        made_anew(pair, topic, 1, 30)
        _must(commit_offsets(east, group, {Partition(topic, 0): (Offset(15), "")}))
        _must(commit_offsets(east, group, {Partition(other, 0): (Offset(7), "")}))
        wait_until(partial(_is_on, west, group, other, 7), timeout_s=60, why="what was committed after it is there")
        assert offset_on(west, group, topic) == 4


def test_commits_on_what_no_plan_has_recorded_are_not_called_synced_when_the_source_dies(
    pair: Pair, group: str, tmp_path: Path
) -> None:
    """Nor are groups left out that have no other offsets. No sync sees them, and no plan is made."""
    prefix, newer = "t-" + secrets.token_hex(4), group + "-newer"
    anew, grown = new_topic(pair.east, prefix=prefix), new_topic(pair.east, prefix=prefix)
    for name in (anew, grown):
        produce(pair.east, name, 20)
    mirrored = new_mirror(pair, tmp_path, prefix + ".*", groups=(group + ".*",))
    mirrored.copy()
    with ClusterClient(mirrored.link.source) as east, ClusterClient(mirrored.link.destination) as west:
        with replicating(mirrored.link, epoch_s=600):
            _must(commit_offsets(east, group, {Partition(anew, 0): (Offset(4), "")}))
            wait_until(partial(_is_on, west, group, anew, 4), timeout_s=60, why="it is followed")
            made_anew(pair, anew, 2, 30)
            admin = admin_client(pair.east)
            admin.create_partitions([NewPartitions(grown, 2)])[grown].result(TIMEOUT_S)
            young = new_topic(pair.east, prefix=prefix)
            for partition in (Partition(anew, 1), Partition(grown, 1)):
                wait_until(partial(_has_leader, east, partition), timeout_s=TIMEOUT_S, why=f"{partition} is there")
                produce(pair.east, partition.topic, 9, partition=partition.index)
            _must(commit_offsets(east, group, {Partition(anew, 0): (Offset(15), "")}))
            committed = [Partition(anew, 0), Partition(anew, 1), Partition(grown, 1), Partition(young, 0)]
            _must(commit_offsets(east, newer, {partition: (Offset(0), "") for partition in committed}))
            expected = {
                (group, f"{anew}-0"): (GroupCoverage.REFUSED, 4),
                **dict.fromkeys(((newer, str(p)) for p in committed[:3]), (GroupCoverage.REFUSED, None)),
                (newer, f"{young}-0"): (GroupCoverage.SKIPPED, None),
            }

            def covered() -> bool:
                _, rows = describe_with_groups(mirrored.link, mirrored.state, now_ms())
                assert all(row.age_s is not None for row in rows)
                return {(row.group, row.partition): (row.coverage, row.offset) for row in rows} == expected

            wait_until(covered, timeout_s=60, why="each is recorded as not committed")
            with killed(pair.east):
                plan = mirrored.failover.plan(RunMode.UNPLANNED)
        assert {name: figures[FigureKey.GROUP_COVERAGE] for name, figures in plan.groups.items()} == {
            group: {"refused": 1},
            newer: {"refused": 3, "skipped": 1},
        }
        assert offset_on(west, group, anew) == 4


def _has_leader(cluster: ClusterClient, partition: Partition) -> bool:
    topic = cluster.metadata([partition.topic]).topics.get(partition.topic)
    return topic is not None and partition.index in topic.partitions and topic.partitions[partition.index].broker >= 0


def test_what_was_committed_on_a_topic_before_the_mirror_took_it_up_is_followed_at_once(
    pair: Pair, group: str, tmp_path: Path
) -> None:
    """Without a sync. The group is new, too: nobody has seen it commit on another topic."""
    prefix = "t-" + secrets.token_hex(4)
    produce(pair.east, new_topic(pair.east, prefix=prefix), 20)
    mirrored = new_mirror(pair, tmp_path, prefix + ".*", groups=(group,))
    mirrored.copy()
    with (
        ClusterClient(mirrored.link.source) as east,
        ClusterClient(mirrored.link.destination) as west,
        replicating(mirrored.link, epoch_s=15),
    ):
        wait_until(lambda: mirrored.state.groups.get(mirrored.name), timeout_s=60, why="groups are followed")
        added = new_topic(pair.east, prefix=prefix)
        produce(pair.east, added, 20)
        _must(commit_offsets(east, group, {Partition(added, 0): (Offset(7), "")}))
        wait_until(partial(_is_on, west, group, added, 7), timeout_s=60, why="it is followed")
        _must(commit_offsets(east, group, {Partition(added, 0): (Offset(9), "")}))
        wait_until(partial(_is_on, west, group, added, 9), timeout_s=60, why="and what comes later")


@pytest.mark.parametrize("restarted", [False, True])
def test_progress_without_a_leader_epoch_stays_and_a_group_that_is_set_back_is_set_back(
    mirrored: Mirrored, west: ClusterClient, commit: Callable[[int], None], group: str, topic: str, restarted: bool
) -> None:
    """The data plane knows what it has committed itself, also after it was started anew."""
    own = group + "-own"
    with ClusterClient(mirrored.link.source) as east, ExitStack() as opened:
        opened.enter_context(replicating(mirrored.link))
        commit(12)
        _must(commit_offsets(east, own, {Partition(topic, 0): (Offset(5), "")}))
        for name, offset in ((group, 12), (own, 5)):
            wait_until(partial(_is_on, west, name, topic, offset), timeout_s=60, why="it is followed")
        _must(commit_offsets(west, own, {Partition(topic, 0): (Offset(18), "")}))
        if restarted:
            opened.close()
            assert {r.group for r in mirrored.state.group_offsets[mirrored.name].values()} == {group, own}
            opened.enter_context(replicating(mirrored.link))
        _must(commit_offsets(east, own, {Partition(topic, 0): (Offset(6), "")}))
        commit(3)
        wait_until(partial(_is_on, west, group, topic, 3), timeout_s=60, why="it is set back there, too")
        wait_until(lambda: _left(mirrored) == [(own, 18)], timeout_s=60, why="somebody's progress is named")
        assert offset_on(west, own, topic) == 18


def _left(mirrored: Mirrored) -> list[tuple[str, int | None]]:
    left = mirrored.state.uncommitted_groups.get(mirrored.name)
    return [(one.group, one.destination_offset) for one in left.uncommitted] if left else []


def test_a_group_with_members_there_keeps_its_progress(
    pair: Pair, mirrored: Mirrored, west: ClusterClient, commit: Callable[[int], None], group: str, topic: str
) -> None:
    with replicating(mirrored.link):
        commit(4)
        wait_until(lambda: offset_on(west, group, topic) == 4, timeout_s=60, why="it is followed")
        with consumer(pair.west, group, topic) as member:
            member.commit(offsets=[TopicPartition(topic, 0, 9)], asynchronous=False)
            commit(6)
            other = group + "-other"
            with ClusterClient(mirrored.link.source) as east:
                _must(commit_offsets(east, other, {Partition(topic, 0): (Offset(2), "")}))
            wait_until(lambda: offset_on(west, other, topic) == 2, timeout_s=60, why="a group that is new is followed")
            assert offset_on(west, group, topic) == 9


def test_with_one_user_for_both_the_driver_shows_each_time_that_the_mirror_is_ours(
    pair: Pair, topic: str, group: str, tmp_path: Path
) -> None:
    clusters = yaml.safe_load(pair.config_path.read_text(encoding="utf-8"))
    for cluster in clusters["clusters"].values():
        del cluster["data"]
    path = tmp_path / "mirrorbook.yaml"
    path.write_text(yaml.safe_dump(clusters), encoding="utf-8")
    produce(pair.east, topic, 5)
    mirrored = new_mirror(replace(pair, config_path=path), tmp_path, topic, groups=(group,))
    assert mirrored.link.destination.user(Principal.DATA) == mirrored.link.destination.user(Principal.CONTROL)
    with ClusterClient(mirrored.link.source) as east, ClusterClient(mirrored.link.destination) as west:
        _must(commit_offsets(east, group, {Partition(topic, 0): (Offset(3), "")}))
        with replicating(mirrored.link):
            wait_until(lambda: offset_on(west, group, topic) == 3, timeout_s=60, why="it is followed all the same")


def test_where_the_offsets_topic_may_not_be_read_copying_goes_on_and_syncs_look(
    pair: Pair, mirrored: Mirrored, west: ClusterClient, commit: Callable[[int], None], group: str, topic: str
) -> None:
    user = mirrored.link.source.user(Principal.CONTROL)
    assert user is not None
    deny = AclPermissionType.DENY
    grant(pair.east, user, ResourceType.TOPIC, "__consumer_offsets", [AclOperation.READ], permission=deny)
    with ClusterClient(mirrored.link.source) as client:
        wait_until(lambda: not _readable(client), timeout_s=30, why="the denial holds")
    commit(5)
    with replicating(mirrored.link) as driver:
        produce(pair.east, topic, 3)
        wait_until(lambda: len(read_all(pair.west, topic)) == 23, timeout_s=60, why="copying goes on")
        assert offset_on(west, group, topic) is None
        assert mirrored.state.groups.get(mirrored.name) is None
        assert driver.counters.snapshot().retries[RetriedWork.GROUPS] == 0
    mirror_commands.run_sync(mirrored.link)
    assert offset_on(west, group, topic) == 5
    seen = mirrored.state.groups[mirrored.name]
    assert not seen.followed


def _readable(client: ClusterClient) -> bool:
    with ConsumerOffsetsFollower(client) as topic:
        try:
            list(topic.poll(10))
        except MissingPermission:
            return False
    return True
