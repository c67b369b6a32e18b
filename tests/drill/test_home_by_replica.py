"""A source of three nodes is killed under load, given up, and comes back: home by a short replica, under load again."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from mirror_core.model.errors import Refused
from mirror_core.model.run import FailbackStrategy
from mirror_core.runbook import truncation_strategies
from mirror_core.runbook.failback_conductor import Failback
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.drill.applications import Login, login
from tests.drill.coming_home import drilling, there_and_home
from tests.drill.groups import PARTITIONS
from tests.drill.operators import Deaths, Operator
from tests.support.dedicated_clusters import two_clusters
from tests.support.kafka_clients import Pair, new_topic
from tests.support.killed_conductors import conducted
from tests.support.log_shapes import Row, new_producer, send
from tests.support.mirrored_topics import Mirrored
from tests.support.sizes import MIB
from tests.support.three_nodes import dead
from tests.support.truncated_replicas import truncate

pytestmark = [pytest.mark.cluster, pytest.mark.drill, pytest.mark.slow, pytest.mark.heavy]

LONG_ENOUGH: Final = 17 * MIB
"""For a replica that is parked while people have two minutes."""


PAUSE_S: Final = 0.2
"""Six brokers on one machine leave little to those who have to catch up."""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_clusters(tmp_path_factory.mktemp("three"), nodes=3, lone_west=True) as pair:
        yield pair


@pytest.fixture
def user(three: Pair) -> Iterator[Login]:
    with login(three) as made:
        yield made


def fill(cluster: SandboxCluster, topic: str) -> None:
    producer = new_producer(cluster, batch_size="16000")
    for partition in range(PARTITIONS):
        send(producer, topic, [Row(value=os.urandom(4000)) for _ in range(LONG_ENOUGH // 4000)], partition)


class ByHand:
    """One conductor dies when the new replica is parked; the next one is obeyed, and then asks for logs to be cut."""

    def __init__(self, three: Pair, mirrored: Mirrored, folder: Path) -> None:
        self.east, self.mirrored, self.folder = three.east, mirrored, folder
        self.operator = Operator(three)

    def __call__(self, failback: Failback, run: str) -> None:
        deaths = Deaths(conducted(self.mirrored, "home by replica"), self.operator, ("failback", "resume", "--yes"))
        deaths.at(truncation_strategies, "_wait_for_approach")
        assert not self.operator.threads, "it told somebody to stop a broker before the replica was parked"
        with pytest.raises(Refused, match="stop it; on its host `mirrorbook log truncate") as refused:
            failback.drive(run)
        self.operator.join()
        assert len(self.operator.threads) == 2, self.operator.told
        hosts = [int(node) for node in re.findall(r"broker (\d+) \(.*?: stop it;", str(refused.value))]
        assert hosts
        for node in hosts:
            self.east.terminate(node)
            where = ("--to", str(self.folder / f"run-{run}" / "points.json"))
            truncate(self.east, node, *where, "--backup", str(self.folder / f"cut-{node}"))
            self.east.start(node)


def test_a_short_replica_leads_home_what_was_not_given_up(
    three: Pair, tmp_path: Path, user: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("OPERATOR_WAIT_S", 120.0), ("APPROACH_S", 5.0)):
        monkeypatch.setattr(truncation_strategies, name, seconds)
    ways = {
        new_topic(three.east, PARTITIONS, retention_ms="-1", min_insync_replicas="2"): way
        for way in (FailbackStrategy.NONE, FailbackStrategy.REPLICA, FailbackStrategy.OFFLINE)
    }
    for topic, way in ways.items():
        if way is FailbackStrategy.REPLICA:
            fill(three.east, topic)
    with drilling(three, user, tmp_path, ways, PAUSE_S) as drill:
        by_hand = ByHand(three, drill.mirrored, tmp_path)
        there_and_home(drill, tmp_path, lambda east: dead(east, 1, 2, 3), by_hand, by_hand.operator)
