"""What a principal may do according to the brokers, without doing it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.api_versions.v3.response import ApiVersionsResponse
from kio.schema.describe_configs.v1.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v1.response import DescribeConfigsResponse
from kio.schema.describe_groups.v4.request import DescribeGroupsRequest
from kio.schema.describe_groups.v4.response import DescribeGroupsResponse
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v8.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v8.response import MetadataResponse
from kio.schema.types import GroupId, ProducerId, TopicName, TransactionalId
from kio.schema.write_txn_markers.v1.request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kio.schema.write_txn_markers.v1.response import WriteTxnMarkersResponse
from kio.static.primitive import i8, i16, i32

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.cluster_info import fetch_api_versions
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.consumer_groups import find_coordinator
from mirror_core.kafka.error_mapping import AUTHORIZATION_CODES, RETRIABLE_CODES, make_fault
from mirror_core.kafka.fan_out import call_brokers
from mirror_core.model.acl import Operation, Resource
from mirror_core.model.errors import MissingPermission, RemoteFault
from mirror_core.wire import txn_markers

_BROKER_RESOURCE: Final = i8(4)
_STATIC_SOURCE: Final = 4
"""server.properties."""
_PROBE_GROUP: Final = "mirrorbook-check"
"""Need not exist: describing it creates nothing."""
_PROBE_TOPIC: Final = "__mirrorbook_probe"
"""Does not exist: markers for it are appended nowhere."""
_PROBE_PRODUCER_ID: Final = 1 << 62
_UNSEEN_TOPIC_CODES: Final = AUTHORIZATION_CODES | {ErrorCode.unknown_topic_or_partition}
Operations = frozenset[Operation]


@dataclass(frozen=True, slots=True)
class PrincipalRights:
    topics: Mapping[str, Operations]
    cluster: Operations | None
    """None without DESCRIBE on the cluster."""
    group: Operations
    """For an arbitrary group: granted for all."""


def probe_rights(client: ClusterClient, topics: Iterable[str] | None = None) -> PrincipalRights:
    """Read-only. `topics`: None for all."""
    request = MetadataRequest(
        topics=None if topics is None else tuple(MetadataRequestTopic(name=TopicName(name)) for name in topics),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    response = client.call(request, MetadataResponse)
    topic_rights = {
        str(topic.name): parse_operations(topic.topic_authorized_operations)
        for topic in response.topics
        if topic.error_code not in _UNSEEN_TOPIC_CODES and not topic.is_internal
    }
    return PrincipalRights(
        topic_rights, parse_operations(response.cluster_authorized_operations) or None, _probe_group_rights(client)
    )


def probe_cluster_rights(client: ClusterClient) -> Operations | None:
    """None without DESCRIBE."""
    return probe_topic_rights(client, ())[0]


def probe_topic_rights(client: ClusterClient, topics: Iterable[str]) -> tuple[Operations | None, dict[str, Operations]]:
    request = MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=TopicName(name)) for name in topics),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    response = client.call(request, MetadataResponse)
    return parse_operations(response.cluster_authorized_operations) or None, {
        str(topic.name): parse_operations(topic.topic_authorized_operations)
        for topic in response.topics
        if topic.error_code is ErrorCode.none
    }


def can_write_markers(client: ClusterClient) -> bool:
    """Also False if the brokers support none.

    Brokers need not list CLUSTER_ACTION, which does not imply DESCRIBE. Hence a real request for a partition that no
    broker has: rights are checked first.
    """
    if txn_markers.API_KEY not in fetch_api_versions(client):
        return False
    topic = WritableTxnMarkerTopic(name=TopicName(_PROBE_TOPIC), partition_indexes=(i32(0),))
    marker = WritableTxnMarker(
        producer_id=ProducerId(_PROBE_PRODUCER_ID),
        producer_epoch=i16(0),
        transaction_result=False,
        topics=(topic,),
        coordinator_epoch=i32(0),
    )
    response = client.call(WriteTxnMarkersRequest(markers=(marker,)), WriteTxnMarkersResponse)
    codes = {row.error_code for m in response.markers for t in m.topics for row in t.partitions}
    return ErrorCode.cluster_authorization_failed not in codes


def _probe_group_rights(client: ClusterClient) -> Operations:
    """From the group's coordinator; on a new cluster this creates __consumer_offsets."""
    request = DescribeGroupsRequest(groups=(GroupId(_PROBE_GROUP),), include_authorized_operations=True)
    deadline = time.monotonic() + client.timeout_s
    while True:
        try:
            coordinator = find_coordinator(client, _PROBE_GROUP)
        except MissingPermission:
            return frozenset()
        group = client.call(request, DescribeGroupsResponse, coordinator).groups[0]
        if group.error_code not in RETRIABLE_CODES or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    if group.error_code in AUTHORIZATION_CODES:
        return frozenset()
    if group.error_code is not ErrorCode.none:
        raise make_fault(client, f"group {_PROBE_GROUP}", "DescribeGroups", group.error_code)
    return parse_operations(group.authorized_operations)


def fetch_features(client: ClusterClient) -> dict[str, int]:
    """Such as metadata.version; empty with ZooKeeper."""
    request = ApiVersionsRequest(client_software_name="mirrorbook", client_software_version="0")
    response = client.call(request, ApiVersionsResponse)
    return {feature.name: int(feature.max_version_level) for feature in response.finalized_features}


def fetch_broker_setting(client: ClusterClient, broker: int, name: str) -> tuple[str, bool] | None:
    """Effective value, and whether it is in server.properties, which only the broker knows."""
    resource = DescribeConfigsResource(
        resource_type=_BROKER_RESOURCE, resource_name=str(broker), configuration_keys=(name,)
    )
    request = DescribeConfigsRequest(resources=(resource,), include_synonyms=True)
    result = client.call(request, DescribeConfigsResponse, broker).results[0]
    if result.error_code is not ErrorCode.none:
        raise make_fault(client, f"broker {broker}", "DescribeConfigs", result.error_code, result.error_message)
    for config in result.configs:
        if config.name == name:
            static_values = [synonym.value for synonym in config.synonyms if synonym.source == _STATIC_SOURCE]
            return config.value or "", config.value in static_values
    return None


def parse_operations(bits: int) -> Operations:
    """Bit n is operation n, from 2 (ALL) on."""
    if bits < 0:
        return frozenset()
    return frozenset(operation for code, operation in enumerate(Operation, start=2) if bits & 1 << code)


_BROKER: Final = i8(4)
_DESCRIBE_ALLOWED_CODES: Final = RETRIABLE_CODES | {
    ErrorCode.none,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.group_id_not_found,
    ErrorCode.transactional_id_not_found,
}
"""Only principals with DESCRIBE receive these: brokers check rights before anything else."""
NamedResource = tuple[Resource, str]


@dataclass(frozen=True, slots=True)
class BrokerAuthorization:
    settings: Mapping[str, str | None] | None
    """A value that the broker hides is None. None instead of the mapping: not readable."""
    can_describe: Mapping[NamedResource, bool]
    """Without resources that failed with another error."""


def probe_brokers(
    client: ClusterClient, settings: Collection[str], resources: Collection[NamedResource]
) -> dict[int, BrokerAuthorization | RemoteFault]:
    """Read-only; the resources need not exist."""
    probes = {broker: partial(_probe_broker, client, broker, settings, resources) for broker in client.brokers()}
    return call_brokers(client, probes)


def _probe_broker(
    client: ClusterClient,
    broker: int,
    settings: Collection[str],
    resources: Collection[NamedResource],
    connection: Connection,
) -> BrokerAuthorization:
    values = _fetch_settings(client, broker, settings, connection) if settings else {}
    return BrokerAuthorization(values, _probe_resources(resources, connection))


def _fetch_settings(
    client: ClusterClient, broker: int, names: Collection[str], connection: Connection
) -> Mapping[str, str | None] | None:
    resource = DescribeConfigsResource(
        resource_type=_BROKER, resource_name=str(broker), configuration_keys=tuple(names)
    )
    request = DescribeConfigsRequest(resources=(resource,), include_synonyms=False)
    [result] = connection.call(request, DescribeConfigsResponse).results
    if result.error_code in AUTHORIZATION_CODES:
        return None
    if result.error_code is not ErrorCode.none:
        raise make_fault(client, f"broker {broker}", "DescribeConfigs", result.error_code, result.error_message)
    return {config.name: config.value for config in result.configs}


def _probe_resources(resources: Collection[NamedResource], connection: Connection) -> Mapping[NamedResource, bool]:
    allowed = dict[NamedResource, bool]()
    for kind, fetch_codes in (
        (Resource.TOPIC, _topic_codes),
        (Resource.GROUP, _group_codes),
        (Resource.TRANSACTIONAL_ID, _transactional_id_codes),
    ):
        if names := sorted(name for resource_kind, name in resources if resource_kind is kind):
            codes = fetch_codes(names, connection)
            allowed |= {
                (kind, resource_name): code in _DESCRIBE_ALLOWED_CODES
                for resource_name, code in codes.items()
                if code in _DESCRIBE_ALLOWED_CODES or code in AUTHORIZATION_CODES
            }
    for kind, name in resources:
        if kind is Resource.CLUSTER:
            response = connection.call(_build_metadata_request(()), MetadataResponse)
            allowed[kind, name] = Operation.DESCRIBE in parse_operations(response.cluster_authorized_operations)
    return allowed


def _topic_codes(names: Collection[str], connection: Connection) -> Mapping[str, ErrorCode]:
    return {
        str(topic.name): topic.error_code
        for topic in connection.call(_build_metadata_request(names), MetadataResponse).topics
    }


def _group_codes(names: Collection[str], connection: Connection) -> Mapping[str, ErrorCode]:
    groups = tuple(GroupId(name) for name in names)
    request = DescribeGroupsRequest(groups=groups, include_authorized_operations=False)
    return {str(group.group_id): group.error_code for group in connection.call(request, DescribeGroupsResponse).groups}


def _transactional_id_codes(names: Collection[str], connection: Connection) -> Mapping[str, ErrorCode]:
    request = DescribeTransactionsRequest(transactional_ids=tuple(TransactionalId(name) for name in names))
    response = connection.call(request, DescribeTransactionsResponse)
    return {str(state.transactional_id): state.error_code for state in response.transaction_states}


def _build_metadata_request(topics: Collection[str]) -> MetadataRequest:
    return MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=TopicName(name)) for name in topics),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=False,
    )
