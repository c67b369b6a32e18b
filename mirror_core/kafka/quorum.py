"""Controllers of a cluster, which agree by majority on who leads what (KRaft, KIP-595)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.describe_quorum.v1.request import DescribeQuorumRequest, PartitionData, TopicData
from kio.schema.describe_quorum.v1.response import DescribeQuorumResponse
from kio.schema.types import TopicName
from kio.static.primitive import i32

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.faults import ErrorCode, fault
from mirror_core.kafka.versions import api_versions

_METADATA: Final = TopicName("__cluster_metadata")
_SILENT_MS: Final = 5_000
"""A controller that lives asks the active one for news twice a second."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """Node ids of controllers: of the active one, of all that vote, and of those that were heard of lately."""

    active: int
    voters: frozenset[int]
    alive: frozenset[int]

    def survives(self, node: int) -> bool:
        """Whether there is a majority while this node is away, too."""
        return len(self.alive - {node}) * 2 > len(self.voters)


def quorum(client: ClusterClient) -> Quorum | None:
    """As the active controller sees it; None where brokers do not tell (ZooKeeper). Needs DESCRIBE on the cluster."""
    newest = api_versions(client).get(int(DescribeQuorumRequest.__api_key__), (0, -1))[1]
    if newest < int(DescribeQuorumRequest.__version__):
        return None
    request = DescribeQuorumRequest(
        topics=(TopicData(topic_name=_METADATA, partitions=(PartitionData(partition_index=i32(0)),)),)
    )
    answer = client.call_controller(request, DescribeQuorumResponse)
    if answer.error_code is not ErrorCode.none:
        raise fault(client, "controllers", "DescribeQuorum", answer.error_code)
    [row] = answer.topics[0].partitions
    if row.error_code is not ErrorCode.none:
        raise fault(client, "controllers", "DescribeQuorum", row.error_code)
    # Of itself the active one says when that was now, by its clock.
    now = max(int(voter.last_caught_up_timestamp) for voter in row.current_voters)
    return Quorum(
        active=int(row.leader_id),
        voters=frozenset(int(voter.replica_id) for voter in row.current_voters),
        alive=frozenset(
            int(voter.replica_id)
            for voter in row.current_voters
            if voter.replica_id == row.leader_id or now - int(voter.last_fetch_timestamp) < _SILENT_MS
        ),
    )
