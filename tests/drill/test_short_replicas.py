"""Three nodes: an old source's log is cut by a replica that ends before the point, or in the folder of one broker."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from mirror_core.decide.strategies import Allowed
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.placing import placements
from mirror_core.kafka.throttling import FOLLOWER, LEADER, rate_of
from mirror_core.kafka.topics import describe_configs
from mirror_core.model.errors import MirrorError, Refused
from mirror_core.model.names import Partition
from mirror_core.model.run import Strategy
from mirror_core.runbook import parking
from mirror_core.runbook.failback import Failback
from mirror_core.sandbox.sandbox import Sandbox
from tests.brokers import Pair, Record, produce, read_all
from tests.cluster.test_failback import content, go_home
from tests.cluster.test_failover import app_topic, begin
from tests.mirroring import Mirrored, new_mirror
from tests.shapes import Row, new_producer, send
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

MIB = 1 << 20


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    sandbox = Sandbox(tmp_path_factory.mktemp("three") / "sandbox")
    try:
        sandbox.up(nodes=3)
        config = sandbox.dir.parent / "mirrorbook.yaml"
        config.write_text(sandbox.mirrorbook_yaml(), encoding="utf-8")
        yield Pair(sandbox=sandbox, east=sandbox.cluster("east"), west=sandbox.cluster("west"), config_path=config)
    finally:
        sandbox.down(delete=True)


def with_a_tail(three: Pair, evidence: Path, size: int) -> tuple[Mirrored, str, list[Record]]:
    """A topic of so many bytes that was failed over, and has a tail of 2 MiB on the old source; what west has."""
    topic = app_topic(three, retention_ms="-1")
    batch = 16_000
    send(
        new_producer(three.east, batch_size=str(batch)),
        topic,
        [Row(value=os.urandom(4000)) for _ in range(size // 4000)],
    )
    mirrored = new_mirror(three, evidence, topic)
    mirrored.copy()
    mirrored.failover.drive(begin(mirrored.failover))
    send(new_producer(three.east), topic, [Row(value=os.urandom(4000)) for _ in range(500)])
    produce(three.west, topic, 20)
    return mirrored, topic, read_all(three.west, topic)


class Operator:
    """Stops and starts the brokers that the run names."""

    def __init__(self, three: Pair, *, heeds: bool = True) -> None:
        self.three = three
        self.heeds = heeds
        self.told: list[str] = []
        self.threads: list[threading.Thread] = []

    def __call__(self, line: str) -> None:
        self.told.append(line)
        for words, deed in (("stop broker ", self.three.east.terminate), ("start broker ", self.three.east.start)):
            _, found, after = line.partition(words)
            if found and self.heeds:
                self._do(partial(deed, int(after.split()[0])))

    def _do(self, deed: Callable[[], None]) -> None:
        """One after the other: a broker has left the cluster some time before its process ends."""
        earlier = self.threads[-1:]

        def in_turn() -> None:
            for thread in earlier:
                thread.join()
            deed()

        self.threads.append(threading.Thread(target=in_turn))
        self.threads[-1].start()


def conducted(mirrored: Mirrored, operator: Operator) -> Failback:
    return Failback(mirrored.link, mirrored.services, started_by="test", say=operator)


def nothing_left(mirrored: Mirrored, topic: str) -> None:
    with ClusterClient(mirrored.config.cluster("east")) as client:
        assert not {LEADER, FOLLOWER} & describe_configs(client, [topic])[topic].overrides.keys()
        assert {rate_of(client, node) for node in client.brokers()} == {None}


def three_again(mirrored: Mirrored, topic: str) -> None:
    def whole() -> bool:
        with ClusterClient(mirrored.config.cluster("east")) as client:
            placed = placements(client, [topic])[Partition(topic, 0)]
        return len(placed.in_sync) == 3

    wait_until(whole, timeout_s=60, why="three replicas are in sync again")


def test_a_short_replica_leads_and_the_others_follow_it(
    three: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking, "WAIT_S", 120.0)
    mirrored, topic, primary = with_a_tail(three, tmp_path, 30 * MIB)
    operator, replica = Operator(three), Allowed(Strategy.REPLICA)
    failback = conducted(mirrored, operator)
    plan = failback.plan(replica)
    assert plan.strategies == {topic: "replica"}
    run = failback.begin(plan.hash, replica)

    failback.step(run.id, "salvage")
    monkeypatch.setattr(operator, "heeds", False)
    monkeypatch.setattr(parking, "WAIT_S", 3.0)
    with pytest.raises(MirrorError, match="was not stopped within 3 s; then resume"):
        failback.step(run.id, "align")
    nothing_left(mirrored, topic)
    monkeypatch.setattr(operator, "heeds", True)
    monkeypatch.setattr(parking, "WAIT_S", 120.0)
    failback.drive(run.id)
    for thread in operator.threads:
        thread.join()

    nothing_left(mirrored, topic)
    aligned = next(s for s in failback.status(run.id)[1] if s.step == "align")
    assert str(aligned.evidence["led_by_a_short_replica"]).startswith(f"{topic}-0 at ")
    go_home(failback, run.id)
    assert content(read_all(three.east, topic)) == content(primary)
    three_again(mirrored, topic)


def test_a_log_that_is_too_short_is_refused_while_an_abort_is_possible(
    three: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking, "WAIT_S", 120.0)
    mirrored, _, _ = with_a_tail(three, tmp_path, 4 * MIB)
    failback, replica = conducted(mirrored, Operator(three)), Allowed(Strategy.REPLICA)
    run = failback.begin(failback.plan(replica).hash, replica)
    with pytest.raises(Refused, match="fewer than 15 MiB"):
        failback.drive(run.id)
    failback.abort(run.id)
