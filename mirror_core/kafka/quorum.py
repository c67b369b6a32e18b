"""The KRaft controller quorum (KIP-595) and its clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.describe_quorum.v1.request import DescribeQuorumRequest, PartitionData, TopicData
from kio.schema.describe_quorum.v1.response import DescribeQuorumResponse
from kio.schema.types import TopicName
from kio.static.primitive import i32

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.faults import ErrorCode, fault
from mirror_core.kafka.versions import api_versions
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import MirrorError
from mirror_core.model.logs import logger

_log = logger(__name__)

_METADATA: Final = TopicName("__cluster_metadata")
_REQUEST: Final = DescribeQuorumRequest(
    topics=(TopicData(topic_name=_METADATA, partitions=(PartitionData(partition_index=i32(0)),)),)
)
_SILENT_MS: Final = 5_000
"""A live controller fetches twice a second."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """Node ids; alive: fetched recently."""

    now_ms: int
    """The active controller's clock."""
    active: int
    voters: frozenset[int]
    alive: frozenset[int]

    def survives(self, node: int) -> bool:
        """A majority remains without this node."""
        return len(self.alive - {node}) * 2 > len(self.voters)


def quorum(client: ClusterClient) -> Quorum | None:
    """None with ZooKeeper. Needs DESCRIBE on the cluster."""
    if not _is_told(client):
        return None
    return _quorum(client, client.call_controller(_REQUEST, DescribeQuorumResponse))


def clock_ahead_ms(cluster: ClusterConfig, *, timeout_s: float) -> int | None:
    """This clock minus the active controller's.

    None: ZooKeeper, Kafka before 3.3, no DESCRIBE, or no response in time.
    """
    try:
        with ClusterClient(cluster, timeout_s=timeout_s) as client:
            if not _is_told(client):
                return None
            sent_ms = now_ms()
            response = client.call(_REQUEST, DescribeQuorumResponse)
            received_ms = now_ms()
            return (sent_ms + received_ms) // 2 - _quorum(client, response).now_ms
    except MirrorError as error:
        _log.info("clocks are not compared: %s", error, cluster=cluster.name)
        return None


def _is_told(client: ClusterClient) -> bool:
    newest = api_versions(client).get(int(DescribeQuorumRequest.__api_key__), (0, -1))[1]
    return newest >= int(DescribeQuorumRequest.__version__)


def _quorum(client: ClusterClient, answer: DescribeQuorumResponse) -> Quorum:
    if answer.error_code is not ErrorCode.none:
        raise fault(client, "controllers", "DescribeQuorum", answer.error_code)
    [row] = answer.topics[0].partitions
    if row.error_code is not ErrorCode.none:
        raise fault(client, "controllers", "DescribeQuorum", row.error_code)
    # The active controller reports its own clock here.
    now = max(int(voter.last_caught_up_timestamp) for voter in row.current_voters)
    return Quorum(
        active=int(row.leader_id),
        now_ms=now,
        voters=frozenset(int(voter.replica_id) for voter in row.current_voters),
        alive=frozenset(
            int(voter.replica_id)
            for voter in row.current_voters
            if voter.replica_id == row.leader_id or now - int(voter.last_fetch_timestamp) < _SILENT_MS
        ),
    )
