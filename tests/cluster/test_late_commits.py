"""Commits that come too late: whoever slept through a promotion moves no group any more, and none skips on its way."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import pytest

from mirror_core.kafka.acl_requests import BrokerAcls, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Principal
from mirror_core.kafka.consumer_groups import CommittedOffset, GroupOffsetsClient, OffsetsToCommit
from mirror_core.kafka.leader_epochs import LogPosition
from mirror_core.model.errors import LostOwnership
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.sync.fence_acls import lift_all_denials
from mirror_core.sync.offset_commits import (
    OffsetCommitRounds,
    OffsetCommitter,
    OwnCommittedOffsets,
    PendingOffsetCommits,
    build_commit_denial,
    deny_offset_commits,
)
from tests.support.failback_runs import failback_of, go_home
from tests.support.failover_runs import app_topic, begin, committed
from tests.support.group_commits import commit_offsets
from tests.support.kafka_clients import Pair, new_topic, produce
from tests.support.memory_state import MemoryLog
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.synced_groups import consumer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

LATE = build_commit_denial("User:mirror-data")


@pytest.fixture
def group() -> str:
    return "g-" + secrets.token_hex(4)


@pytest.fixture
def mirrored(pair: Pair, group: str, tmp_path: Path) -> Mirrored:
    topic = new_topic(pair.east)
    produce(pair.east, topic, 20)
    made = new_mirror(pair, tmp_path, topic, groups=(group,))
    made.copy()
    return made


@pytest.fixture
def west(mirrored: Mirrored) -> Iterator[ClusterClient]:
    with ClusterClient(mirrored.link.destination) as client:
        yield client


def denied(client: ClusterClient) -> bool:
    found = describe_acls(client)
    assert isinstance(found, BrokerAcls)
    return LATE in found.entries


def not_ours() -> None:
    raise LostOwnership("another one's by now")


def test_whoever_slept_through_a_promotion_commits_nothing(
    mirrored: Mirrored, west: ClusterClient, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower falls asleep between its decision and its commit; the failover passes; it wakes up."""
    partition, log = Partition(mirrored.link.mirror.topics[0], 0), MemoryLog()
    awake: Callable[..., dict[str, dict[Partition, str]]] = GroupOffsetsClient.commit
    passed = list[str]()

    def asleep(
        self: GroupOffsetsClient,
        wanted: Mapping[str, OffsetsToCommit],
        epochs: Mapping[LogPosition, int] = MappingProxyType({}),
        share_groups: Collection[str] = (),
    ) -> dict[str, dict[Partition, str]]:
        if not passed:
            passed.append(deny_offset_commits(mirrored.link.mirror, log, west))
            assert commit_offsets(west, group, {partition: (Offset(15), "final")}) == {}
        return awake(self, wanted, epochs, share_groups)

    monkeypatch.setattr(GroupOffsetsClient, "commit", asleep)
    waiting = PendingOffsetCommits()
    waiting.set_committed(group, partition, CommittedOffset(Offset(7), -1, ""))
    with OffsetCommitRounds(
        mirrored.link.destination, not_ours, OwnCommittedOffsets(mirrored.name, mirrored.state)
    ) as rounds:

        def decided() -> bool:
            rounds.commit_due(waiting)
            return bool(passed)

        # While the coordinators of a new cluster load, a round has nothing to decide about.
        with pytest.raises(LostOwnership):
            wait_until(decided, timeout_s=30, why="the follower is about to commit")
    assert passed == ["User:mirror-data commits for no group on cluster west any more"]
    assert committed(mirrored.pair.west, group, partition.topic) == 15


def test_a_failover_stops_late_commits_before_its_final_sync_and_an_abort_lets_them_be_again(
    mirrored: Mirrored, west: ClusterClient
) -> None:
    failover = mirrored.failover
    run = begin(failover)
    for step in ("prove", "fence", "drain"):
        assert not denied(west)
        failover.run_step(run, step)
    assert denied(west)
    mirrored.failover.abort(run)
    assert not denied(west)
    again = mirrored.failover
    again.drive(begin(again))
    assert denied(west)


def test_other_mirrors_go_on_with_another_look_and_a_shared_denial_stays_for_the_last(
    mirrored: Mirrored, west: ClusterClient, group: str
) -> None:
    log, topic, looks = MemoryLog(), mirrored.link.mirror.topics[0], list[int]()
    one, other = mirrored.link.mirror, MirrorName("m-" + secrets.token_hex(4))
    deny_offset_commits(one, log, west)
    deny_offset_commits(replace(one, name=other), log, west)
    with OffsetCommitter(west, lambda: looks.append(1)) as commits:
        wanted = {group: {Partition(topic, 0): (Offset(4), "")}}
        assert commits.commit_offsets(wanted) == {group: {Partition(topic, 0): "none"}}
    assert looks == [1]
    assert committed(mirrored.pair.west, group, topic) == 4
    lift_all_denials(one, log, west)
    assert denied(west), "the other mirror's sleepers may commit"
    assert [e.mirror for e in log.state.ledger.values()] == [other]


def test_the_data_principal_alone_commits_while_nothing_is_denied(
    mirrored: Mirrored, west: ClusterClient, group: str
) -> None:
    topic = mirrored.link.mirror.topics[0]
    with OffsetCommitter(west, not_ours) as commits:
        assert commits.commit_offsets({group: {Partition(topic, 0): (Offset(4), "")}}) == {
            group: {Partition(topic, 0): "none"}
        }
    with ClusterClient(mirrored.link.destination, Principal.DATA) as data:
        assert GroupOffsetsClient(data).fetch({group: None})[group].committed[Partition(topic, 0)].offset == 4


@pytest.mark.parametrize("rewound", [3, pytest.param(0, marks=pytest.mark.slow)])
def test_a_group_set_back_on_the_new_primary_does_not_skip_on_the_way_home(
    pair: Pair, group: str, tmp_path: Path, rewound: int
) -> None:
    """What a real consumer committed on east before the failover is higher, and has a leader epoch."""
    topic = app_topic(pair)
    produce(pair.east, topic, 40)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    for cluster in (pair.east, pair.west):
        with consumer(cluster, group, topic) as member:
            read = [wait_until(partial(member.poll, 0.2), timeout_s=60, why="a record") for _ in range(10)]
            assert read[-1] is not None
            member.commit(message=read[-1], asynchronous=False)
        if cluster is pair.east:
            failover = mirrored.failover
            failover.drive(begin(failover))
    assert committed(pair.west, group, topic) > 10
    with ClusterClient(mirrored.link.destination) as west:
        assert commit_offsets(west, group, {Partition(topic, 0): (Offset(rewound), "")}) == {}
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.drive(run.id)
    go_home(failback, run.id)
    assert committed(pair.east, group, topic) == rewound
