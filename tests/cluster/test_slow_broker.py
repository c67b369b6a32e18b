"""One broker of several answers nothing: what others lead is known without waiting for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.metadata.v12.response import MetadataResponse

from mirror_core.copy.log_ends import LogEndRequest, LogEndRequests, LogEndsResponse
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.fan_out import BrokerResponsePending, BrokerTimeout, call_brokers
from mirror_core.model.names import ClusterName, Partition
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.kafka_clients import Pair, produce
from tests.support.parity_topics import twin_topics
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

NO_TOPICS = MetadataRequest(topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False)
WELL, HANGS = 1, 2
"""Brokers: the only one that there is, and one that takes connections and answers nothing."""
LIMIT_S = 60.0


@contextmanager
def beside_one_that_hangs(cluster: SandboxCluster, timeout_s: float) -> Iterator[ClusterClient]:
    properties = cluster.client_config("admin")
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        ClusterClient(ClusterConfig(ClusterName(cluster.name), properties, properties), timeout_s=timeout_s) as client,
    ):
        addresses = {WELL: client.address(WELL), HANGS: silent.getsockname()}
        client.address = lambda broker: addresses[broker or WELL]  # type: ignore[method-assign]
        yield client


def broker_id(connection: Connection) -> int:
    return int(connection.call(NO_TOPICS, MetadataResponse).brokers[0].node_id)


@pytest.mark.parametrize("asked", [(HANGS,), (HANGS, WELL)])
def test_who_has_not_answered_is_late_in_a_hurry_and_may_turn_out_to_hang(pair: Pair, asked: tuple[int, ...]) -> None:
    with beside_one_that_hangs(pair.east, 8.0) as client:
        questions = dict.fromkeys(asked, broker_id)
        client.set_fail_fast(True)
        found = call_brokers(client, questions)
        assert isinstance(found[HANGS], BrokerResponsePending)
        assert not client.timed_out_at, "nobody knows yet that it hangs"
        wait_until(lambda: client.timed_out_at, timeout_s=LIMIT_S, why="its time is over")
        assert isinstance(call_brokers(client, questions)[HANGS], BrokerTimeout), "it is not asked for a while"


@pytest.mark.parametrize("at_leisure", [False, True])
def test_without_hurry_it_has_its_whole_time(pair: Pair, at_leisure: bool) -> None:
    with beside_one_that_hangs(pair.east, 8.0) as client:
        client.set_fail_fast(at_leisure)
        found = call_brokers(client, dict.fromkeys((HANGS, WELL), broker_id), wait_full_timeout=at_leisure)
        assert found[WELL] == WELL
        assert isinstance(found[HANGS], BrokerTimeout)


@pytest.mark.parametrize("side", ["source", "destination"])
@pytest.mark.parametrize("vouched", [0, None])
def test_the_logs_that_others_lead_are_known(pair: Pair, side: str, vouched: int | None) -> None:
    """Also where only the one that hangs is asked where an older epoch has ended."""
    topic = twin_topics(pair, 2)
    produce(pair.east, topic, 10, partition=0)
    led = {Partition(topic, 0): WELL, Partition(topic, 1): HANGS}
    with ExitStack() as stack:
        east, west = (stack.enter_context(beside_one_that_hangs(one, LIMIT_S)) for one in (pair.east, pair.west))
        asking = LogEndRequests(east, west, 1 << 62)
        asking.set_hurry(True)
        questions = [
            LogEndRequest(
                p,
                broker if side == "source" else WELL,
                1,
                vouched if broker == HANGS else 1,
                broker if side == "destination" else WELL,
                end_unverified=True,
                is_interrupted=True,
                verified_end=None,
            )
            for p, broker in led.items()
        ]

        def looked() -> LogEndsResponse | None:
            """None: in such a hurry, the broker that is well was late itself."""
            found = asking.fetch_log_ends(questions)
            return found if Partition(topic, 0) in found.bounds else None

        found = wait_until(looked, timeout_s=LIMIT_S / 3, why="the broker that is well answers soon")
        assert found is not None
    assert found.bounds.keys() == {Partition(topic, 0)}
    assert found.bounds[Partition(topic, 0)].source_end == 10
    unsure = found.unknown[Partition(topic, 1)]
    assert isinstance(unsure.reason, BrokerResponsePending)
    assert unsure.misleading_cluster in (None, pair.east.name if side == "source" else pair.west.name)
