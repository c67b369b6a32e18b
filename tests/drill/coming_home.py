"""A source that is killed under load, given up, and comes back: applications go away, and home by each strategy."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.decide.truncation import AllowedStrategies
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.kafka.transactions import list_open_transactions
from mirror_core.mirrors import mirror_commands
from mirror_core.model.figures import FigureKey
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import FailbackStrategy, Plan, RunMode, RunState
from mirror_core.rights.required_acls import ClusterRole
from mirror_core.runbook.failback_conductor import Failback
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.drill.applications import Login
from tests.drill.groups import PARTITIONS, Group, Place
from tests.drill.live import Kind
from tests.drill.loads import PATIENCE_S, PAUSE_S, Acked, Load
from tests.support.cluster_admin import as_admin
from tests.support.data_errors import about_data
from tests.support.failback_runs import go_home
from tests.support.group_consumers import java, librdkafka
from tests.support.kafka_clients import Pair, grant, read_topics, read_topics_aiokafka
from tests.support.least_rights import granted, listed
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.replicate_process import Copier, at_work
from tests.support.saved_tails import saved_rows
from tests.support.topic_equality import assert_equal, assert_same_offsets
from tests.support.waiting import wait_until

TAIL: Final = 60
Dead = Callable[[SandboxCluster], AbstractContextManager[None]]
"""Killed as a whole, and started again at the end of the block."""


@dataclass(frozen=True)
class Drill:
    """Three topics, three producers, two groups."""

    pair: Pair
    mirrored: Mirrored
    ways: Mapping[str, FailbackStrategy]
    """How each topic comes home. `none`: nothing is written there when the source dies."""
    before: Mapping[Place, bytes | None]
    """What was there before the producers."""
    loads: Sequence[Load]
    groups: Sequence[Group]

    @property
    def topics(self) -> list[str]:
        return list(self.ways)

    @property
    def tailed(self) -> list[str]:
        return [topic for topic, way in self.ways.items() if way is not FailbackStrategy.NONE]

    @property
    def acked(self) -> list[Acked]:
        return [record for load in self.loads for record in load.acked]

    def start(self, cluster: SandboxCluster) -> None:
        for load in self.loads:
            load.start(cluster, self.topics)

    def work(self) -> None:
        """Until all of them have got on."""
        written, handled = [len(load.acked) for load in self.loads], [len(group.handled) for group in self.groups]
        for load, before in zip(self.loads, written, strict=True):
            load.works(before)
        for group, before in zip(self.groups, handled, strict=True):
            group.works(before)

    def spare(self, topic: str) -> None:
        """Nobody writes there any more, and all of it is mirrored."""
        for load in self.loads:
            load.spare(topic)
        partitions = [Partition(topic, index) for index in range(PARTITIONS)]

        def mirrored() -> bool:
            with as_admin(self.pair.east) as east, as_admin(self.pair.west) as west:
                return list_offsets(east, partitions, OffsetPoint.LOG_END) == list_offsets(
                    west, partitions, OffsetPoint.LOG_END
                )

        wait_until(mirrored, timeout_s=PATIENCE_S, why=f"{topic} is mirrored")

    def transactions_end(self, cluster: SandboxCluster) -> None:
        """Its coordinator aborts what the dead producers left: markers come behind the tails, and void older plans.

        Also where none of a transaction's records had come to the log yet: no offset announces that.
        """
        partitions = [Partition(topic, index) for topic in self.topics for index in range(PARTITIONS)]

        def over() -> bool:
            with as_admin(cluster) as client:
                going = list_open_transactions(client, self.topics)
                stable, ends = (
                    list_offsets(client, partitions, at) for at in (OffsetPoint.STABLE_END, OffsetPoint.LOG_END)
                )
            return not going and stable == ends

        wait_until(over, timeout_s=PATIENCE_S, why=f"no transaction is open on {cluster.name}")

    def tails_grow(self) -> None:
        """Each partition of the other topics has that many records more."""
        known = self._counts()
        wait_until(
            lambda: all(
                self._counts()[p] > often + TAIL
                for p, often in known.items()
                if self.ways[p.topic] is not FailbackStrategy.NONE
            ),
            timeout_s=PATIENCE_S,
            why="the source is ahead of the copy",
        )

    def _counts(self) -> Counter[Partition]:
        return Counter(Partition(record.topic, record.partition) for record in self.acked)


@contextmanager
def drilling(
    pair: Pair,
    user: Login,
    folder: Path,
    ways: Mapping[str, FailbackStrategy],
    pause_s: float = PAUSE_S,
    protocol: str = "classic",
) -> Iterator[Drill]:
    """Over these topics; the groups read the first two that will have a tail."""
    op = AclOperation
    for topic in ways:
        grant(pair.east, user.name, ResourceType.TOPIC, topic, [op.READ, op.WRITE])
    grant(pair.east, user.name, ResourceType.TRANSACTIONAL_ID, user.name, [op.WRITE, op.DESCRIBE], prefixed=True)
    first, second = (topic for topic, way in ways.items() if way is not FailbackStrategy.NONE)
    groups = [
        Group(f"{user.name}-l", first, partial(librdkafka, protocol=protocol)),
        Group(f"{user.name}-j", second, partial(java, protocol=protocol)),
    ]
    mirrored = new_mirror(pair, folder, *ways, groups=tuple(group.name for group in groups))
    for cluster in (pair.east, pair.west):
        assert granted(cluster) == listed(tuple(ClusterRole)), "each strategy does with the rights that are listed"
    loads = [Load(user, kind, PARTITIONS, pause_s) for kind in Kind]
    try:
        yield Drill(pair, mirrored, ways, places(pair.east, ways), loads, groups)
    finally:
        for load in loads:
            load.abandon()


@contextmanager
def consuming(drill: Drill, cluster: SandboxCluster, folder: Path) -> Iterator[None]:
    """Both groups at work there until the end of the block, each by its own family of clients."""
    with ExitStack() as members:
        for group in drill.groups:
            group.handled.clear()
            members.enter_context(group.family(cluster, group.name, group.topic, group.handled, folder))
        yield


def places(cluster: SandboxCluster, topics: Collection[str]) -> dict[Place, bytes | None]:
    """What the log holds, to a reader that takes what is not committed, too."""
    found = read_topics(cluster, topics, committed=False)
    return {(t, r.partition, r.offset): r.value for t, records in found.items() for r in records}


@about_data()
def assert_bound(plan: Plan, missing: list[Acked], lmos: dict[Partition, Offset], asked: float) -> None:
    """What is missing lies behind the copy, and either is counted as known, or was acknowledged since the last look."""
    for partition, lmo in lmos.items():
        row = plan.partitions[str(partition)]
        position, known = row[FigureKey.MIRROR_POSITION], row[FigureKey.MISSING_OFFSETS]
        age = row[FigureKey.END_SEEN_S]
        assert isinstance(position, int)
        assert isinstance(known, int)
        assert isinstance(age, float)
        assert position <= lmo, f"{partition}: {row}; it ends at {lmo}"
        since = [r for r in missing if Partition(r.topic, r.partition) == partition and r.offset >= position + known]
        early = [r for r in since if r.at < asked - age - 0.1]
        assert not early, f"{partition}: {row}; also missing: {early[:3]}"


@about_data()
def assert_repeats(plan: Plan, group: Group, offsets: dict[Partition, int], lmos: dict[Partition, Offset]) -> int:
    """What it has handled on the dead cluster and will handle again; it skips nothing."""
    again = 0
    for partition in group.partitions:
        mine = [offset for _, index, offset in group.handled if index == partition.index]
        assert offsets[partition] <= min(max(mine) + 1, lmos[partition]), f"{group.name} skips records of {partition}"
        again += sum(offsets[partition] <= offset < lmos[partition] for offset in mine)
    most = plan.groups[group.name][FigureKey.READ_AGAIN_MOST]
    assert isinstance(most, int)
    assert again <= most, f"{group.name}: {again} repeated, but {plan.groups[group.name]}"
    return again


@dataclass(frozen=True)
class GivenUp:
    """What a failover from a dead source has left behind."""

    missing: Sequence[Acked]
    offsets: Mapping[str, dict[Partition, int]]
    """Where each group goes on."""


def give_up(
    drill: Drill, copying: Copier, folder: Path, dead: AbstractContextManager[None], until: ExitStack
) -> GivenUp:
    """The source dies under load, ahead of its copy; what the failover to west says of it is true."""
    east, west, mirrored = drill.pair.east, drill.pair.west, drill.mirrored
    drill.start(east)
    with consuming(drill, east, folder):
        drill.work()
        for group in drill.groups:
            group.is_followed(west)
        mirror_commands.run_sync(mirrored.link)  # users' rights are staged
        for topic in set(drill.ways) - set(drill.tailed):
            drill.spare(topic)
        drill.work()
        copying.psutil.suspend()
        drill.tails_grow()
        until.enter_context(dead)
        for load in drill.loads:
            load.abandon()
    copying.psutil.resume()
    asked, failover = time.time(), mirrored.failover
    plan = failover.plan(RunMode.UNPLANNED)
    assert failover.drive(failover.begin(plan.hash, RunMode.UNPLANNED).id).state is RunState.DONE

    lmos = {p: s.lmo for p, s in mirrored.statuses.items() if p.topic in drill.topics and s.lmo is not None}
    assert len(lmos) == len(drill.topics) * PARTITIONS
    there = places(west, drill.topics)
    missing = [r for r in drill.acked if there.get((r.topic, r.partition, r.offset)) != r.value]
    assert all(r.offset >= lmos[Partition(r.topic, r.partition)] for r in missing), "below the end of the copy"
    assert {r.topic for r in missing} == set(drill.tailed)
    assert there.items() >= drill.before.items()
    assert_bound(plan, missing, lmos, asked)
    offsets = {group.name: group.offsets_on(west) for group in drill.groups}
    again = {group.name: assert_repeats(plan, group, offsets[group.name], lmos) for group in drill.groups}
    lost = plan.figures[FigureKey.LOST_OFFSETS]
    print(f"{len(drill.acked)} acknowledged, {len(missing)} missing: at least {lost}; repeated: {again}")
    return GivenUp(missing, offsets)


def there_and_home(
    drill: Drill,
    folder: Path,
    dead: Dead,
    by_hand: Callable[[Failback, str], None],
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """`by_hand`: what people do on the old source's hosts while this run is in its step `align`."""
    east, west, mirrored = drill.pair.east, drill.pair.west, drill.mirrored
    with at_work(mirrored, "local", folder) as copying, ExitStack() as source_dead:
        given_up = give_up(drill, copying, folder, dead(east), source_dead)
        drill.start(west)
        with consuming(drill, west, folder):
            drill.work()
            source_dead.close()  # the source comes back
            drill.transactions_end(east)
            failback = Failback(mirrored.link, mirrored.services, started_by="test", print_line=say)
            allowed = AllowedStrategies(None, {topic: drill.ways[topic] for topic in drill.tailed})
            home = failback.plan(allowed)
            assert {t: home.strategies[t] for t in drill.topics} == drill.ways
            run = failback.begin(home.hash, allowed)
            by_hand(failback, run.id)
            assert failback.drive(run.id).state is RunState.RUNNING
            drill.work()
    there, offsets = places(west, drill.topics), dict(given_up.offsets)
    for group in drill.groups:
        group.assert_resumed_at(offsets[group.name], there)
        group.leaves(west)
        offsets[group.name] = group.offsets_on(west)
    go_home(failback, run.id)
    for load in drill.loads:
        load.denied()

    assert {group.name: group.offsets_on(east) for group in drill.groups} == offsets
    drill.start(east)
    with consuming(drill, east, folder):
        drill.work()
    for load in drill.loads:
        load.stop()
    for group in drill.groups:
        group.assert_resumed_at(offsets[group.name], places(east, drill.topics))
    assert_kept(drill, given_up.missing, folder / f"run-{run.id}" / "salvage")
    mirrored.copy()
    # To readers of committed records only: west's log keeps what was aborted when its producer was denied there.
    for read in (read_topics, read_topics_aiokafka):
        assert_equal(read(east, drill.topics), read(west, drill.topics), read.__name__)
    assert_same_offsets(drill.pair, drill.topics)


@about_data()
def assert_kept(drill: Drill, missing: Sequence[Acked], salvage: Path) -> None:
    """To readers of two families at home: whatever was acknowledged is in its place, once, or is saved."""
    saved = {(r["topic"], r["partition"], r["offset"]): r["value"] for r in saved_rows(salvage)}
    assert all(saved.get((r.topic, r.partition, r.offset)) == r.value for r in missing), "given up, and not saved"
    gone = set(missing)
    for read in (read_topics, read_topics_aiokafka):
        found = read(drill.pair.east, drill.topics)
        values = {(t, r.partition, r.offset): r.value for t, records in found.items() for r in records}
        assert len(set(values.values())) == len(values), "a record is in the log twice"
        assert values.items() >= drill.before.items(), "what was there before the producers is missing, or elsewhere"
        for record in drill.acked:
            if record not in gone:
                place = record.topic, record.partition, record.offset
                assert values.get(place) == record.value, f"{record} is missing, or elsewhere"
