"""The source is killed under load, given up, and comes back: home by three strategies at once, under load again."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.decide.strategies import Allowed
from mirror_core.kafka.groups import fetch_offsets
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.mirrors import verbs
from mirror_core.model.errors import Refused
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import Mode, Plan, RunState, Strategy
from mirror_core.runbook.failback import Failback
from mirror_core.sandbox.cluster import SandboxCluster
from tests.administering import as_admin
from tests.brokers import TIMEOUT_S, Pair, admin_client, grant, new_topic, read_topics, read_topics_aiokafka
from tests.cluster.test_failback import failback_of, go_home
from tests.cluster.test_failover_dead_side import killed
from tests.cluster.test_groups_source_killed import Handled, java, librdkafka
from tests.cluster.test_tails import saved_rows
from tests.commands import mirrorbook
from tests.copiers import at_work
from tests.drill.applications import Login, login
from tests.drill.live import Kind
from tests.drill.loads import PATIENCE_S, SOME, Acked, Load
from tests.mirroring import Mirrored, new_mirror
from tests.same import assert_same
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

PARTITIONS: Final = 2
TAIL: Final = 60
BOUND: Final = re.compile(r"position (\d+), (\d+) offset\(s\) known to be missing, .* last seen ([0-9.]+) s ago")
Place = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass
class Group:
    """A consumer group of one member, and all that it has handled on the cluster where it is now."""

    name: str
    topic: str
    family: Callable[..., AbstractContextManager[None]]
    handled: Handled = field(default_factory=list)

    @property
    def partitions(self) -> list[Partition]:
        return [Partition(self.topic, index) for index in range(PARTITIONS)]

    def offsets_on(self, cluster: SandboxCluster) -> dict[Partition, int]:
        with as_admin(cluster) as client:
            return {p: int(row.offset) for p, row in fetch_offsets(client, self.name).committed.items()}

    def leaves(self, cluster: SandboxCluster) -> None:
        """Until it has no member there, not even a dead one."""
        admin = admin_client(cluster)

        def left() -> bool:
            found = admin.describe_consumer_groups([self.name])[self.name].result(TIMEOUT_S)
            return found.state in (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)

        wait_until(left, timeout_s=PATIENCE_S, why=f"{self.name} has no members on {cluster.name}")

    def works(self) -> None:
        """Until it has handled some more."""
        before = len(self.handled)

        def done() -> bool:
            return len(self.handled) > before + SOME and {i for _, i, _ in self.handled} == set(range(PARTITIONS))

        wait_until(done, timeout_s=PATIENCE_S, why=f"{self.name} handles {SOME} records more")

    def is_followed(self, cluster: SandboxCluster) -> None:
        followed = lambda: len(self.offsets_on(cluster)) == PARTITIONS  # noqa: E731
        wait_until(followed, timeout_s=PATIENCE_S, why=f"{self.name} is followed to {cluster.name}")

    def assert_resumed_at(self, offsets: dict[Partition, int], there: Iterable[Place]) -> None:
        """It has handled all from there on, in order, and nothing else: `there` is what the log holds."""
        for partition in self.partitions:
            mine = [offset for _, index, offset in self.handled if index == partition.index]
            behind = sorted(
                o for t, i, o in there if (t, i) == (self.topic, partition.index) and o >= offsets[partition]
            )
            assert mine, f"{self.name}: {partition} was not resumed"
            assert mine == behind[: len(mine)], f"{self.name}: {partition} was not resumed at {offsets[partition]}"


@dataclass(frozen=True)
class Drill:
    """Three topics, three producers, two groups."""

    pair: Pair
    mirrored: Mirrored
    kept: str
    recreated: str
    cut: str
    loads: Sequence[Load]
    groups: Sequence[Group]

    @property
    def topics(self) -> tuple[str, str, str]:
        return self.kept, self.recreated, self.cut

    @property
    def acked(self) -> list[Acked]:
        return [record for load in self.loads for record in load.acked]

    def start(self, cluster: SandboxCluster) -> None:
        for load in self.loads:
            load.start(cluster, self.topics)

    def work(self) -> None:
        """Until all of them have got on."""
        for load in self.loads:
            load.works()
        for group in self.groups:
            group.works()

    def spare(self, topic: str) -> None:
        """Nobody writes there any more, and all of it is mirrored."""
        for load in self.loads:
            load.spare(topic)
        partitions = [Partition(topic, index) for index in range(PARTITIONS)]

        def mirrored() -> bool:
            with as_admin(self.pair.east) as east, as_admin(self.pair.west) as west:
                return list_offsets(east, partitions, Point.LOG_END) == list_offsets(west, partitions, Point.LOG_END)

        wait_until(mirrored, timeout_s=PATIENCE_S, why=f"{topic} is mirrored")

    def transactions_end(self, cluster: SandboxCluster) -> None:
        """Its coordinator aborts what the dead producers left: markers come behind the tails, and void older plans."""
        partitions = [Partition(topic, index) for topic in self.topics for index in range(PARTITIONS)]

        def over() -> bool:
            with as_admin(cluster) as client:
                stable, ends = (list_offsets(client, partitions, at) for at in (Point.STABLE_END, Point.LOG_END))
            return stable == ends

        wait_until(over, timeout_s=PATIENCE_S, why=f"no transaction is open on {cluster.name}")

    def tails_grow(self) -> None:
        """Each partition of the other topics has that many records more."""
        known = self._counts()
        wait_until(
            lambda: all(self._counts()[p] > often + TAIL for p, often in known.items() if p.topic != self.kept),
            timeout_s=PATIENCE_S,
            why="the source is ahead of the copy",
        )

    def _counts(self) -> Counter[Partition]:
        return Counter(Partition(record.topic, record.partition) for record in self.acked)


@pytest.fixture
def user(pair: Pair) -> Iterator[Login]:
    with login(pair) as made:
        yield made


@pytest.fixture
def drill(pair: Pair, user: Login, tmp_path: Path) -> Iterator[Drill]:
    op = AclOperation
    kept, recreated, cut = (new_topic(pair.east, PARTITIONS, retention_ms="-1") for _ in range(3))
    for topic in (kept, recreated, cut):
        grant(pair.east, user.name, ResourceType.TOPIC, topic, [op.READ, op.WRITE])
    grant(pair.east, user.name, ResourceType.TRANSACTIONAL_ID, user.name, [op.WRITE, op.DESCRIBE], prefixed=True)
    groups = [Group(f"{user.name}-l", recreated, librdkafka), Group(f"{user.name}-j", cut, java)]
    mirrored = new_mirror(pair, tmp_path, kept, recreated, cut, groups=tuple(group.name for group in groups))
    loads = [Load(user, kind, PARTITIONS) for kind in Kind]
    try:
        yield Drill(pair, mirrored, kept, recreated, cut, loads, groups)
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


def assert_bound(plan: Plan, missing: list[Acked], lmos: dict[Partition, Offset], asked: float) -> None:
    """What is missing lies behind the copy, and either is counted as known, or was acknowledged since the last look."""
    for partition, lmo in lmos.items():
        words = plan.partitions[str(partition)]
        said = BOUND.search(words)
        assert said, words
        position, known, age = int(said[1]), int(said[2]), float(said[3])
        assert position <= lmo, f"{partition}: {words}; it ends at {lmo}"
        since = [r for r in missing if Partition(r.topic, r.partition) == partition and r.offset >= position + known]
        early = [r for r in since if r.at < asked - age - 0.1]
        assert not early, f"{partition}: {words}; also missing: {early[:3]}"


def assert_repeats(plan: Plan, group: Group, offsets: dict[Partition, int], lmos: dict[Partition, Offset]) -> int:
    """What it has handled on the dead cluster and will handle again; it skips nothing."""
    again = 0
    for partition in group.partitions:
        mine = [offset for _, index, offset in group.handled if index == partition.index]
        assert offsets[partition] <= min(max(mine) + 1, lmos[partition]), f"{group.name} skips records of {partition}"
        again += sum(offsets[partition] <= offset < lmos[partition] for offset in mine)
    said = re.match(r"0 to (\d+) record\(s\) read again; ", plan.groups[group.name])
    assert said, plan.groups[group.name]
    assert again <= int(said[1]), f"{group.name}: {again} repeated, but {plan.groups[group.name]}"
    return again


def cut_by_hand(drill: Drill, failback: Failback, run: str, folder: Path) -> None:
    """What the run asks for on the broker's host."""
    with pytest.raises(Refused, match="stop it; on its host `mirrorbook log truncate"):
        failback.drive(run)
    east = drill.pair.east
    east.terminate()
    try:
        where = ("--log-dir", str(east.log_dir()), "--to", str(folder / f"run-{run}" / "points.json"))
        done = mirrorbook("log", "truncate", *where, "--backup", str(folder / "backup"), "--yes")
    finally:
        east.start()
    assert done.returncode == 0, done.stderr


def test_what_was_said_is_lost_and_home_loses_nothing(pair: Pair, tmp_path: Path, drill: Drill) -> None:
    east, west, mirrored = pair.east, pair.west, drill.mirrored
    drill.start(east)
    with at_work(mirrored, "local", tmp_path) as copying, ExitStack() as source_dead:
        with consuming(drill, east, tmp_path):
            drill.work()
            for group in drill.groups:
                group.is_followed(west)
            verbs.sync(mirrored.link)  # users' rights are staged
            drill.spare(drill.kept)
            drill.work()
            copying.psutil.suspend()
            drill.tails_grow()
            source_dead.enter_context(killed(east))
            for load in drill.loads:
                load.abandon()
        copying.psutil.resume()
        asked, failover = time.time(), mirrored.failover
        plan = failover.plan(Mode.UNPLANNED)
        assert failover.drive(failover.begin(plan.hash, Mode.UNPLANNED).id).state is RunState.DONE

        lmos = {p: s.lmo for p, s in mirrored.statuses.items() if p.topic in drill.topics and s.lmo is not None}
        assert len(lmos) == 3 * PARTITIONS
        there = places(west, drill.topics)
        missing = [r for r in drill.acked if there.get((r.topic, r.partition, r.offset)) != r.value]
        assert all(r.offset >= lmos[Partition(r.topic, r.partition)] for r in missing), "below the end of the copy"
        assert {r.topic for r in missing} == {drill.recreated, drill.cut}
        assert_bound(plan, missing, lmos, asked)
        offsets = {group.name: group.offsets_on(west) for group in drill.groups}
        again = {group.name: assert_repeats(plan, group, offsets[group.name], lmos) for group in drill.groups}
        print(f"{len(drill.acked)} acknowledged, {len(missing)} missing: {plan.figures['loss']}; repeated: {again}")

        drill.start(west)
        with consuming(drill, west, tmp_path):
            drill.work()
            source_dead.close()  # the source comes back
            drill.transactions_end(east)
            failback = failback_of(mirrored)
            allowed = Allowed(None, {drill.recreated: Strategy.RECREATE, drill.cut: Strategy.OFFLINE})
            home = failback.plan(allowed)
            by = (Strategy.NONE, Strategy.RECREATE, Strategy.OFFLINE)
            assert {t: home.strategies[t] for t in drill.topics} == dict(zip(drill.topics, by, strict=True))
            run = failback.begin(home.hash, allowed)
            cut_by_hand(drill, failback, run.id, tmp_path)
            assert failback.drive(run.id).state is RunState.RUNNING
            drill.work()
    there = places(west, drill.topics)
    for group in drill.groups:
        group.assert_resumed_at(offsets[group.name], there)
        group.leaves(west)
        offsets[group.name] = group.offsets_on(west)
    go_home(failback, run.id)
    for load in drill.loads:
        load.denied()

    assert {group.name: group.offsets_on(east) for group in drill.groups} == offsets
    drill.start(east)
    with consuming(drill, east, tmp_path):
        drill.work()
    for load in drill.loads:
        load.stop()
    for group in drill.groups:
        group.assert_resumed_at(offsets[group.name], places(east, drill.topics))

    saved = {
        (r["topic"], r["partition"], r["offset"]): r["value"]
        for r in saved_rows(tmp_path / f"run-{run.id}" / "salvage")
    }
    assert all(saved.get((r.topic, r.partition, r.offset)) == r.value for r in missing), "given up, and not saved"
    gone = set(missing)
    for read in (read_topics, read_topics_aiokafka):
        found = read(east, drill.topics)
        values = {(t, r.partition, r.offset): r.value for t, records in found.items() for r in records}
        assert len(set(values.values())) == len(values), "a record is in the log twice"
        for record in drill.acked:
            if record not in gone:
                place = record.topic, record.partition, record.offset
                assert values.get(place) == record.value, f"{record} is missing, or elsewhere"
    mirrored.copy()
    assert_same(pair, drill.topics)
