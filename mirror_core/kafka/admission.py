"""Which resources each broker lets a principal describe, and its own settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from kio.schema.describe_configs.v1.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v1.response import DescribeConfigsResponse
from kio.schema.describe_groups.v4.request import DescribeGroupsRequest
from kio.schema.describe_groups.v4.response import DescribeGroupsResponse
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse
from kio.schema.metadata.v8.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v8.response import MetadataResponse
from kio.schema.types import GroupId, TopicName, TransactionalId
from kio.static.primitive import i8

from mirror_core.kafka.at_once import call_brokers
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.faults import AUTHORIZATION_CODES, ErrorCode, make_fault
from mirror_core.kafka.rights import parse_operations
from mirror_core.kafka.transient import RETRIABLE_CODES
from mirror_core.model.acl import Operation, Resource
from mirror_core.model.errors import RemoteFault

_BROKER: Final = i8(4)
_DESCRIBE_ALLOWED_CODES: Final = RETRIABLE_CODES | {
    ErrorCode.none,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.group_id_not_found,
    ErrorCode.transactional_id_not_found,
}
"""Codes that only principals with DESCRIBE receive: brokers check rights before anything else."""

NamedResource = tuple[Resource, str]


@dataclass(frozen=True, slots=True)
class BrokerAuthorization:
    settings: Mapping[str, str | None] | None
    """By name; a value that the broker hides is None. None instead of the mapping: not readable."""
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
    """Needs DESCRIBE_CONFIGS on the cluster."""
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
