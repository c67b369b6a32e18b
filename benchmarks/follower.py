"""The floor: what it costs Kafka itself to hold the topic a second time, on another broker of the same cluster."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from confluent_kafka.admin import AdminClient, PartitionMetadata
from kio.schema.alter_partition_reassignments.v0.request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kio.schema.alter_partition_reassignments.v0.response import AlterPartitionReassignmentsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from benchmarks.ground import SOURCE, Ground, NotReached, pause_s
from mirror_core.kafka.client import ClusterClient
from mirrorbook_tools.sandbox import storage_format
from mirrorbook_tools.sandbox.broker import Broker
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.ports import HOST, choose_ports
from mirrorbook_tools.sandbox.state import NodePorts

FOLLOWER: Final = "follower"
LEADER_ID: Final = 1
FOLLOWER_ID: Final = 2
FOLLOW_TIMEOUT_S: Final = 900.0
TIMEOUT_S: Final = 60.0


class Follower:
    """A second broker of the source cluster, no controller, that is given the topic's partitions and loses them again.

    It is started by the first `up` and then stays, as followers do; `Sandbox.down` stops it with the others.
    """

    def __init__(self, at: Ground, topic: str) -> None:
        self.at = at
        self.topic = topic
        self.pid = 0

    def up(self) -> None:
        """Start it, once, and wait until it answers."""
        if self.pid:
            return
        ports = NodePorts(*choose_ports(2))
        leader = self.at.source.brokers[0]
        state, cluster = self.at.sandbox.state, self.at.sandbox.state.clusters[SOURCE]
        # Its cluster has one voter; the sandbox would make every node of its own one more.
        role = {
            "process.roles": "broker",
            "listeners": f"CLIENT://{HOST}:{ports.client}",
            "controller.quorum.voters": f"{LEADER_ID}@{HOST}:{leader.ports.controller}",
        }
        state = replace(
            state,
            clusters={SOURCE: replace(cluster, nodes=(*cluster.nodes, ports))},
            extra={**state.extra, **role},
        )
        folder = self.at.sandbox.dir / SOURCE / str(FOLLOWER_ID)
        broker = Broker(cluster=SOURCE, node=FOLLOWER_ID, folder=folder, ports=ports, jars=leader.jars)
        storage_format.prepare([broker], state, self.at.source.passwords, lambda line: None)
        process = broker.spawn()
        both = SandboxCluster(name=SOURCE, brokers=(leader, broker), passwords=self.at.source.passwords)
        try:
            both.wait_ready({FOLLOWER_ID: process}, whole_cluster=True)
        except BaseException:
            broker.stop(signal.SIGKILL)
            raise
        self.pid = process.pid

    def follow(self) -> None:
        """Give it every partition, and wait until it is in sync with all of them."""
        self._assign((LEADER_ID, FOLLOWER_ID))
        self._until("in sync", lambda partition: len(partition.isrs) == 2)

    def forget(self) -> None:
        """Take them away again."""
        self._assign((LEADER_ID,))
        self._until("taken away", lambda partition: len(partition.replicas) == 1)

    def _assign(self, replicas: Iterable[int]) -> None:
        wanted = tuple(BrokerId(replica) for replica in replicas)
        request = AlterPartitionReassignmentsRequest(
            topics=(
                ReassignableTopic(
                    name=TopicName(self.topic),
                    partitions=tuple(
                        ReassignablePartition(partition_index=i32(index), replicas=wanted)
                        for index in sorted(self._partitions())
                    ),
                ),
            )
        )
        with ClusterClient(self.at.config.cluster(SOURCE), timeout_s=TIMEOUT_S) as client:
            answer = client.call_controller(request, AlterPartitionReassignmentsResponse)
        codes = [answer.error_code, *(p.error_code for t in answer.responses for p in t.partitions)]
        if refused := next((code for code in codes if code is not ErrorCode.none), None):
            raise NotReached(f"the reassignment was refused: {refused.name}")

    def _partitions(self) -> dict[int, PartitionMetadata]:
        admin = AdminClient({**self.at.source.client_config("admin")})
        return admin.list_topics(self.topic, timeout=TIMEOUT_S).topics[self.topic].partitions

    def _until(self, what: str, done: Callable[[PartitionMetadata], bool]) -> None:
        admin = AdminClient({**self.at.source.client_config("admin")})
        deadline = time.monotonic() + FOLLOW_TIMEOUT_S
        while True:
            looked = time.monotonic()
            partitions = admin.list_topics(self.topic, timeout=TIMEOUT_S).topics[self.topic].partitions.values()
            count = sum(map(done, partitions))
            if count == len(partitions):
                return
            if time.monotonic() > deadline:
                raise NotReached(f"{count} of {len(partitions)} partitions {what} after {FOLLOW_TIMEOUT_S:g} s")
            time.sleep(pause_s(time.monotonic() - looked))
