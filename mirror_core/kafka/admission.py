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

from mirror_core.kafka.at_once import ask_brokers
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.faults import DENIED, ErrorCode, fault
from mirror_core.kafka.rights import rights_in
from mirror_core.kafka.transient import TRANSIENT
from mirror_core.model.acl import Operation, Resource
from mirror_core.model.errors import RemoteFault

_BROKER: Final = i8(4)
_SEEN: Final = TRANSIENT | {
    ErrorCode.none,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.group_id_not_found,
    ErrorCode.transactional_id_not_found,
}
"""Codes that only principals with DESCRIBE receive: brokers check rights before anything else."""

Named = tuple[Resource, str]


@dataclass(frozen=True, slots=True)
class Admission:
    settings: Mapping[str, str | None] | None
    """By name; a value that the broker hides is None. None instead of the mapping: not readable."""
    named: Mapping[Named, bool]
    """Without resources that failed with another error."""


def admissions(
    client: ClusterClient, settings: Collection[str], wanted: Collection[Named]
) -> dict[int, Admission | RemoteFault]:
    """Read-only; the resources need not exist."""
    asked = {broker: partial(_ask, client, broker, settings, wanted) for broker in client.brokers()}
    return ask_brokers(client, asked)


def _ask(
    client: ClusterClient, broker: int, settings: Collection[str], wanted: Collection[Named], connection: Connection
) -> Admission:
    found = _settings(client, broker, settings, connection) if settings else {}
    return Admission(found, _named(wanted, connection))


def _settings(
    client: ClusterClient, broker: int, names: Collection[str], connection: Connection
) -> Mapping[str, str | None] | None:
    """Needs DESCRIBE_CONFIGS on the cluster."""
    resource = DescribeConfigsResource(
        resource_type=_BROKER, resource_name=str(broker), configuration_keys=tuple(names)
    )
    request = DescribeConfigsRequest(resources=(resource,), include_synonyms=False)
    [result] = connection.call(request, DescribeConfigsResponse).results
    if result.error_code in DENIED:
        return None
    if result.error_code is not ErrorCode.none:
        raise fault(client, f"broker {broker}", "DescribeConfigs", result.error_code, result.error_message)
    return {row.name: row.value for row in result.configs}


def _named(wanted: Collection[Named], connection: Connection) -> Mapping[Named, bool]:
    found = dict[Named, bool]()
    for kind, ask in ((Resource.TOPIC, _topics), (Resource.GROUP, _groups), (Resource.TRANSACTIONAL_ID, _ids)):
        if names := sorted(name for one, name in wanted if one is kind):
            codes = ask(names, connection)
            found |= {(kind, n): code in _SEEN for n, code in codes.items() if code in _SEEN or code in DENIED}
    for kind, name in wanted:
        if kind is Resource.CLUSTER:
            answer = connection.call(_metadata(()), MetadataResponse)
            found[kind, name] = Operation.DESCRIBE in rights_in(answer.cluster_authorized_operations)
    return found


def _topics(names: Collection[str], connection: Connection) -> Mapping[str, ErrorCode]:
    return {str(row.name): row.error_code for row in connection.call(_metadata(names), MetadataResponse).topics}


def _groups(names: Collection[str], connection: Connection) -> Mapping[str, ErrorCode]:
    groups = tuple(GroupId(name) for name in names)
    request = DescribeGroupsRequest(groups=groups, include_authorized_operations=False)
    return {str(row.group_id): row.error_code for row in connection.call(request, DescribeGroupsResponse).groups}


def _ids(names: Collection[str], connection: Connection) -> Mapping[str, ErrorCode]:
    request = DescribeTransactionsRequest(transactional_ids=tuple(TransactionalId(name) for name in names))
    answer = connection.call(request, DescribeTransactionsResponse)
    return {str(row.transactional_id): row.error_code for row in answer.transaction_states}


def _metadata(topics: Collection[str]) -> MetadataRequest:
    return MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=TopicName(name)) for name in topics),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=False,
    )
