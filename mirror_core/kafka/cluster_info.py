"""API versions, controller quorum (KIP-595) and its clock, SCRAM users (KIP-554), quotas (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest, EntityData, EntryData, OpData
from kio.schema.alter_client_quotas.v1.response import AlterClientQuotasResponse
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.api_versions.v0.response import ApiVersionsResponse
from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest
from kio.schema.describe_client_quotas.v1.response import DescribeClientQuotasResponse
from kio.schema.describe_quorum.v1.request import DescribeQuorumRequest, PartitionData, TopicData
from kio.schema.describe_quorum.v1.response import DescribeQuorumResponse
from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest
from kio.schema.describe_user_scram_credentials.v0.response import DescribeUserScramCredentialsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import f64, i32

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.error_mapping import RETRIED_CODES, make_fault
from mirror_core.model.errors import MirrorError, Unreachable
from mirror_core.model.logs import get_logger
from mirror_core.model.sync_state import ClientQuota
from mirror_core.model.timing import now_ms


def fetch_api_versions(client: ClusterClient, broker: int | None = None) -> dict[int, tuple[int, int]]:
    """Oldest and newest version by API key."""
    response = client.call(ApiVersionsRequest(), ApiVersionsResponse, broker)
    if response.error_code is not ErrorCode.none:
        raise make_fault(client, "brokers", "ApiVersions", response.error_code)
    return {int(row.api_key): (int(row.min_version), int(row.max_version)) for row in response.api_keys}


_log = get_logger(__name__)
_METADATA_TOPIC: Final = TopicName("__cluster_metadata")
_QUORUM_REQUEST: Final = DescribeQuorumRequest(
    topics=(TopicData(topic_name=_METADATA_TOPIC, partitions=(PartitionData(partition_index=i32(0)),)),)
)
_MAX_FETCH_AGE_MS: Final = 5_000
"""A live controller fetches twice a second."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """Node ids; alive: fetched recently."""

    now_ms: int
    """The active controller's clock."""
    active: int
    voters: frozenset[int]
    alive: frozenset[int]
    metadata_ages_ms: Mapping[int, int]
    """By broker: since it had all that a majority of voters has."""

    def has_majority_without(self, node: int) -> bool:
        return len(self.alive - {node}) * 2 > len(self.voters)


def describe_quorum(client: ClusterClient) -> Quorum | None:
    """None with ZooKeeper."""
    if not supports_describe_quorum(client):
        return None
    return _parse_quorum(client, client.call_controller(_QUORUM_REQUEST, DescribeQuorumResponse))


def measure_clock_ahead_ms(cluster: ClusterConfig, *, timeout_s: float) -> int | None:
    """This clock minus the active controller's.

    None: ZooKeeper, Kafka before 3.3, no DESCRIBE, or no response in time.
    """
    try:
        with ClusterClient(cluster, timeout_s=timeout_s) as client:
            if not supports_describe_quorum(client):
                return None
            sent_ms = now_ms()
            response = client.call(_QUORUM_REQUEST, DescribeQuorumResponse)
            received_ms = now_ms()
            return (sent_ms + received_ms) // 2 - _parse_quorum(client, response).now_ms
    except MirrorError as error:
        _log.info("clocks are not compared: %s", error, cluster=cluster.name)
        return None


def fetch_metadata_ages_ms(client: ClusterClient) -> Mapping[int, int]:
    return _parse_quorum(client, client.call(_QUORUM_REQUEST, DescribeQuorumResponse)).metadata_ages_ms


def supports_describe_quorum(client: ClusterClient) -> bool:
    newest = fetch_api_versions(client).get(int(DescribeQuorumRequest.__api_key__), (0, -1))[1]
    return newest >= int(DescribeQuorumRequest.__version__)


def _parse_quorum(client: ClusterClient, response: DescribeQuorumResponse) -> Quorum:
    rows = [row for topic in response.topics for row in topic.partitions]
    for code in (response.error_code, *(row.error_code for row in rows)):
        if code in RETRIED_CODES:
            raise Unreachable(f"cluster {client.name}, controllers: DescribeQuorum: {code.name}")
        if code is not ErrorCode.none:
            raise make_fault(client, "controllers", "DescribeQuorum", code)
    [row] = rows
    # The active controller reports its own clock here.
    active_now_ms = max(int(voter.last_caught_up_timestamp) for voter in row.current_voters)
    fetch_times = {int(voter.replica_id): int(voter.last_fetch_timestamp) for voter in row.current_voters}
    fetch_times[int(row.leader_id)] = active_now_ms
    majority_ms = sorted(fetch_times.values(), reverse=True)[len(fetch_times) // 2]
    caught_up_times = dict[int, int]()
    for replica in (*row.observers, *row.current_voters):  # twice, for minutes, after a node got a new disk
        node, at_ms = int(replica.replica_id), min(int(replica.last_caught_up_timestamp), majority_ms)
        caught_up_times[node] = max(at_ms, caught_up_times.get(node, at_ms))
    return Quorum(
        active=int(row.leader_id),
        now_ms=active_now_ms,
        voters=frozenset(int(voter.replica_id) for voter in row.current_voters),
        alive=frozenset(
            int(voter.replica_id)
            for voter in row.current_voters
            if voter.replica_id == row.leader_id or active_now_ms - int(voter.last_fetch_timestamp) < _MAX_FETCH_AGE_MS
        ),
        metadata_ages_ms={node: active_now_ms - at_ms for node, at_ms in caught_up_times.items() if at_ms >= 0},
    )


_DESCRIBE_SCRAM_API_KEY: Final = 50
_SCRAM_MECHANISMS: Final[Mapping[int, str]] = MappingProxyType({1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"})


def fetch_scram_users(client: ClusterClient) -> dict[str, frozenset[str]] | None:
    """Mechanisms by user. None if brokers are too old, or without DESCRIBE on the cluster."""
    if _DESCRIBE_SCRAM_API_KEY not in fetch_api_versions(client):
        return None
    response = client.call(DescribeUserScramCredentialsRequest(users=None), DescribeUserScramCredentialsResponse)
    if response.error_code is not ErrorCode.none:
        return None
    return {
        row.user: frozenset(_SCRAM_MECHANISMS.get(info.mechanism, str(info.mechanism)) for info in row.credential_infos)
        for row in response.results
        if row.error_code is ErrorCode.none
    }


_DESCRIBE_QUOTAS_API_KEY: Final = 48
_USER_TYPE: Final = "user"
_CLIENT_ID_TYPE: Final = "client-id"


def fetch_client_quotas(client: ClusterClient) -> dict[ClientQuota, float] | None:
    """None if brokers are too old, or without DESCRIBE_CONFIGS on the cluster."""
    if fetch_api_versions(client).get(_DESCRIBE_QUOTAS_API_KEY, (0, 0))[1] < 1:
        return None
    response = client.call(DescribeClientQuotasRequest(components=(), strict=False), DescribeClientQuotasResponse)
    if response.error_code is not ErrorCode.none:
        return None
    quotas = dict[ClientQuota, float]()
    for row in response.entries or ():
        names = {e.entity_type: e.entity_name or "" for e in row.entity}
        if names.keys() <= {_USER_TYPE, _CLIENT_ID_TYPE}:
            for value in row.values:
                quota = ClientQuota(user=names.get(_USER_TYPE), client_id=names.get(_CLIENT_ID_TYPE), key=value.key)
                quotas[quota] = float(value.value)
    return quotas


def alter_client_quotas(client: ClusterClient, values: Mapping[ClientQuota, float | None]) -> None:
    """None removes one."""
    if not values:
        return
    operations: dict[tuple[EntityData, ...], list[OpData]] = {}
    for quota, value in values.items():
        entity = tuple(
            EntityData(entity_type=kind, entity_name=name or None)
            for kind, name in ((_USER_TYPE, quota.user), (_CLIENT_ID_TYPE, quota.client_id))
            if name is not None
        )
        operation = OpData(key=quota.key, value=f64(value or 0.0), remove=value is None)
        operations.setdefault(entity, []).append(operation)
    entries = tuple(EntryData(entity=entity, ops=tuple(ops)) for entity, ops in operations.items())
    request = AlterClientQuotasRequest(entries=entries, validate_only=False)
    for row in client.call_controller(request, AlterClientQuotasResponse).entries:
        if row.error_code is not ErrorCode.none:
            raise make_fault(client, "client quotas", "AlterClientQuotas (needs ALTER_CONFIGS)", row.error_code)
