"""A source of three nodes dies and comes back node by node, while a broker of the destination is away, too."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from mirror_core.dataplane.source_monitor import SourceMonitor
from mirror_core.decide.fence_state import FenceState
from mirror_core.kafka.client import ClusterClient
from mirror_core.mirrors.fence_watcher import check_fence
from mirror_core.model.errors import MirrorError
from mirror_core.model.figures import FigureKey
from mirror_core.model.mirror import PartitionState
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.source_observation import ObservedEnd, SourceObservation
from mirror_core.model.timing import now_ms
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.ports import HOST
from tests.drill.live import Application, Kind, living, nothing_lost_unnamed
from tests.support.cluster_admin import active_controller, as_admin
from tests.support.data_plane_thread import beating, driving
from tests.support.dedicated_clusters import two_clusters
from tests.support.kafka_clients import TIMEOUT_S, Pair, produce
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.pending_fences import debt_of, watching
from tests.support.three_nodes import log_end, replicas
from tests.support.three_source_nodes import NODES, leaderless, topic_on
from tests.support.unplanned_runs import begin
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_clusters(tmp_path_factory.mktemp("three"), nodes=3) as pair:
        yield pair


class Dying:
    """Nodes of a cluster that go and come back, none of them awaited. Killed, or suspended as a machine that hangs."""

    def __init__(self, cluster: SandboxCluster, *, hang: bool) -> None:
        self.cluster = cluster
        self.hang = hang
        self.away = set[int]()

    def go(self, *nodes: int) -> None:
        for node in nodes:
            (self.cluster.stop_process if self.hang else self.cluster.kill)(node)
            self.away.add(node)

    def come(self, node: int) -> None:
        self.away.discard(node)
        if self.hang:
            self.cluster.cont_process(node)
        else:
            self.cluster.brokers[node - 1].spawn()

    def all_come(self) -> None:
        for node in sorted(self.away):
            self.come(node)
        wait_until(
            lambda: all(list(self.cluster.answering(node)) == [*NODES] for node in NODES),
            timeout_s=TIMEOUT_S,
            why=f"{self.cluster.name} is whole again",
        )


def listens(cluster: SandboxCluster, node: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, cluster.brokers[node - 1].ports.controller)) == 0


def more_is_copied(mirrored: Mirrored, partitions: Sequence[Partition]) -> None:
    """Of each of them, as applications write them."""

    def ends() -> dict[Partition, int]:
        with as_admin(mirrored.pair.west) as client:
            there = client.metadata({p.topic for p in partitions}).topics
            return {p: log_end(client, p) if p.topic in there else 0 for p in partitions}

    before = ends()
    wait_until(
        lambda: all(end > before[p] for p, end in ends().items()), timeout_s=TIMEOUT_S, why=f"more of {partitions}"
    )


@pytest.mark.parametrize(
    "hang", [pytest.param(False, id="killed"), pytest.param(True, id="hanging", marks=pytest.mark.slow)]
)
def test_a_source_of_three_that_comes_back_node_by_node_is_fenced_as_soon_as_it_can_be(
    three: Pair, tmp_path: Path, hang: bool
) -> None:
    east, west = three.east, three.west
    wide, lone = topic_on(east, (1, 2, 3), (2, 3, 1), (3, 1, 2)), topic_on(east, (1,), (2,), (3,))
    mirrored = new_mirror(three, tmp_path, wide[0].topic, lone[0].topic)
    applications = [
        Application(east, Kind.PLAIN, [*wide, *lone]),
        Application(east, Kind.IDEMPOTENT, [*wide, *lone]),
        Application(east, Kind.TRANSACTIONAL, wide),
    ]
    source, destination = Dying(east, hang=hang), Dying(west, hang=hang)
    with ExitStack() as ended:
        ended.callback(destination.all_come)
        ended.callback(source.all_come)
        with driving(mirrored):
            beating(mirrored, 2)
            ended.enter_context(living(east, *applications))
            more_is_copied(mirrored, [*wide, *lone])

        # One node: what it alone held can be neither drained nor known, and holds up nothing else.
        source.go(3)
        leaderless(east, lone[2])
        with driving(mirrored):
            more_is_copied(mirrored, [*wide, *lone[:2]])
            wait_until(
                lambda: lone[2] in mirrored.state.source_observations[mirrored.name].get_offline_partitions(),
                timeout_s=TIMEOUT_S,
                why="the data plane has seen that nobody leads it",
            )
            planned = mirrored.failover.decide(RunMode.PLANNED)
            offline = [r.values["partitions"] for r in planned.reasons if r.code == "source_offline"]
            assert offline == [(str(lone[2]),)], planned.reasons

            # And a broker of the destination, with the only replica of another one: the controller, if that has one.
            active = active_controller(west)
            short = max(lone[:2], key=lambda p: replicas(west, p)[0] == active)
            destination.go(replicas(west, short)[0])
            leaderless(west, short)
            source.go(1, 2)
        plan = mirrored.failover.plan(RunMode.UNPLANNED)
        assert any(f"east named no leader for {lone[2]}" in line for line in map(str, plan.warnings)), plan.warnings
        assert plan.partitions[str(short)][FigureKey.MIRROR_POSITION] is None
        run = begin(mirrored.failover)
        assert mirrored.failover.drive(run.id).state is RunState.DONE
        settled = next(s for s in mirrored.failover.read_status(run.id)[1] if s.step == "settle")
        assert str(short) in str(settled.evidence["without_leader"])
        assert {s.state for s in mirrored.statuses.values()} == {PartitionState.STOPPED}
        unknown = {p for p, s in mirrored.statuses.items() if s.lmo is None}
        assert short in unknown
        assert all(replicas(west, p)[0] < 0 for p in unknown)
        told = [len(one.acked) for one in applications]

        # One of three: it may take what it leads, and no denial.
        source.come(1)
        wait_until(lambda: listens(east, 1), timeout_s=TIMEOUT_S, why="node 1 is back")
        if hang:
            wait_until(
                lambda: any(p == lone[0] for p, _ in list(applications[0].acked)[told[0] :]),
                timeout_s=TIMEOUT_S,
                why="it takes writes that nobody can stop",
            )
        found = check_fence(mirrored.link)
        assert (found.state, debt_of(mirrored).applied_at_ms) == (FenceState.PENDING, None), found
        assert any("fence pending since" in line for line in found.lines), found.lines
        assert any("no answer: " in line for line in found.lines), found.lines

        # Two: it can be fenced. What the third one alone holds is still unknown.
        with watching(mirrored) as watched:
            source.come(2)
            wait_until(lambda: debt_of(mirrored).applied_at_ms, timeout_s=TIMEOUT_S, why="the fence is up")
            assert lone[2] not in debt_of(mirrored).log_ends.to_mapping()
            wait_until(
                lambda: f"the log end of {lone[2]} is not known" in watched.all_told(),
                timeout_s=TIMEOUT_S,
                why="the watcher says what it does not know",
            )
            source.come(3)
            wait_until(
                lambda: lone[2] in debt_of(mirrored).log_ends.to_mapping(),
                timeout_s=TIMEOUT_S,
                why="node 3 is back, too",
            )
            first, last = mirrored.statuses[lone[2]].lmo, debt_of(mirrored).log_ends.to_mapping()[lone[2]]
            assert first is not None
            wait_until(
                lambda: (
                    first == last
                    or f"{lone[2]} [{first}, {last})"
                    in "\n".join(alarm for judged in watched.told for alarm in judged.alarms)
                ),
                timeout_s=TIMEOUT_S,
                why="people are called for what it holds",
            )
            refused = [one.refused for one in applications]
            wait_until(
                lambda: all(one.refused > before for one, before in zip(applications, refused, strict=True)),
                timeout_s=TIMEOUT_S,
                why="all go on, and are refused",
            )
        ends = debt_of(mirrored).log_ends.to_mapping()
        destination.all_come()
        for one in applications:
            late = [place for place in one.acked if place[1] >= ends.get(place[0], Offset(1 << 62))]
            assert not late, f"{one.kind} was acknowledged behind the fence: {late[:3]}"
        print(f"{nothing_lost_unnamed(mirrored, applications)} acknowledged records are named as missing")


def test_a_broker_without_controllers_makes_no_observation_of_the_source_fresh(three: Pair, tmp_path: Path) -> None:
    """It wakes up where the others do not answer, and still takes itself for the leader, with its old end."""
    cut_off = next(node for node in NODES if node != active_controller(three.east))
    others = [node for node in NODES if node != cut_off]
    (partition,) = topic_on(three.east, (cut_off, *others))
    produce(three.east, partition.topic, 10)
    mirrored = new_mirror(three, tmp_path, partition.topic)
    mirrored.copy()
    monitor, link = SourceMonitor(mirrored.link, None), mirrored.link
    monitor.set_recorded(mirrored.statuses)
    sleeping, awake = Dying(three.east, hang=True), Dying(three.east, hang=True)
    with (
        closing(monitor),
        ClusterClient(link.source, timeout_s=1.0) as source,
        ClusterClient(link.destination) as destination,
    ):

        def observe() -> SourceObservation | None:
            try:
                return monitor.observe(source, destination)
            except MirrorError:
                return None

        def end_of(observation: SourceObservation | None) -> ObservedEnd | None:
            return dict(observation.get_ends())[partition] if observation else None

        first = end_of(observe())
        assert first is not None
        assert first.end == 10
        assert now_ms() - first.at_ms < 5_000
        sleeping.go(cut_off)
        wait_until(lambda: replicas(three.east, partition)[0] in others, timeout_s=TIMEOUT_S, why="another one leads")
        acknowledged_ms = now_ms()
        produce(three.east, partition.topic, 5)
        awake.go(*others)
        sleeping.come(cut_off)
        for _ in range(3):
            observation = wait_until(observe, timeout_s=TIMEOUT_S, why="the broker that was cut off answers")
            assert observation is not None
            old = end_of(observation)
            assert old is not None
            assert (old.end, old.at_ms < acknowledged_ms) == (10, True)
            assert observation.listed_ms is not None
            assert observation.listed_ms < acknowledged_ms
        awake.all_come()
        found = wait_until(
            lambda: (end := end_of(observe())) and end.at_ms >= acknowledged_ms and end,
            timeout_s=TIMEOUT_S,
            why="a leader with controllers tells the end",
        )
        assert found
        assert found.end == 15
