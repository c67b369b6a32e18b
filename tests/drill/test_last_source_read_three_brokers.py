"""One of three brokers of the source hangs at the last look before promotion: what the others say counts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from mirror_core.kafka.acl_requests import BrokerAcls, delete_acls, describe_acls
from mirror_core.model.errors import Refused
from mirror_core.model.run import RunState
from mirror_core.sync.fence_acls import build_denials
from tests.support.broker_faults import suspended
from tests.support.cluster_admin import active_controller, as_admin
from tests.support.dedicated_clusters import two_clusters
from tests.support.failover_runs import denied, write
from tests.support.kafka_clients import TIMEOUT_S, Pair, produce
from tests.support.mirrored_topics import new_mirror
from tests.support.scoped_failovers import through
from tests.support.three_source_nodes import NODES, topic_on
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

STAYS_LISTED = {"broker.session.timeout.ms": "60000"}
"""A broker that hangs is not taken from the cluster's metadata meanwhile."""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_clusters(tmp_path_factory.mktemp("three"), nodes=3, lone_west=True, extra=STAYS_LISTED) as pair:
        yield pair


def test_a_source_of_which_one_broker_hangs_is_not_taken_for_dead(three: Pair, tmp_path: Path) -> None:
    hangs = next(node for node in NODES if node != active_controller(three.east))
    awake = [node for node in NODES if node != hangs]
    (partition,) = topic_on(three.east, (awake[0],))
    produce(three.east, partition.topic, 10)
    mirrored = new_mirror(three, tmp_path, partition.topic)
    mirrored.copy()
    run = through(mirrored, "record_lmo")
    fence = set(build_denials([partition.topic]))

    def undenied() -> bool:
        with as_admin(three.east) as client:
            held = [describe_acls(client, node) for node in awake]
        return all(isinstance(one, BrokerAcls) and not one.entries & fence for one in held)

    with suspended(three.east, hangs):
        with as_admin(three.east) as client:
            delete_acls(client, fence)
        wait_until(undenied, timeout_s=TIMEOUT_S, why="the denials are gone where brokers answer")
        wait_until(
            partial(_accepted, three, partition.topic), timeout_s=TIMEOUT_S, why="a write behind what was the fence"
        )
        with pytest.raises(Refused, match=r"1 denial gone") as refused:
            mirrored.failover.drive(run)
    assert f"{partition} on east: log end 11, drained up to 10" in str(refused.value)
    assert denied(three.west, partition.topic), "promoted although the source was written behind the fence"
    assert mirrored.failover.abort(run).state is RunState.ABORTED


def _accepted(pair: Pair, topic: str) -> bool:
    return write(pair.east, topic) is None
