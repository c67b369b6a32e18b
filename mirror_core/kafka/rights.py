"""What a principal may do according to the brokers, without doing it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.api_versions.v3.response import ApiVersionsResponse
from kio.schema.describe_configs.v1.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v1.response import DescribeConfigsResponse
from kio.schema.describe_groups.v4.request import DescribeGroupsRequest
from kio.schema.describe_groups.v4.response import DescribeGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v8.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v8.response import MetadataResponse
from kio.schema.types import GroupId, ProducerId, TopicName
from kio.schema.write_txn_markers.v1.request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kio.schema.write_txn_markers.v1.response import WriteTxnMarkersResponse
from kio.static.primitive import i8, i16, i32

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.faults import DENIED, fault
from mirror_core.kafka.groups import find_coordinator
from mirror_core.kafka.transient import TRANSIENT
from mirror_core.kafka.versions import api_versions
from mirror_core.model.acl import Operation
from mirror_core.model.errors import MissingPermission
from mirror_core.wire import markers

_BROKER: Final = i8(4)
_STATIC: Final = 4
"""server.properties."""
_PROBE_GROUP: Final = "mirrorbook-check"
"""Need not exist: describing it creates nothing."""

_PROBE_TOPIC: Final = "__mirrorbook_probe"
"""Does not exist: markers for it are appended nowhere."""
_PROBE_PRODUCER: Final = 1 << 62

Rights = frozenset[Operation]


@dataclass(frozen=True, slots=True)
class Probe:
    topics: Mapping[str, Rights]
    cluster: Rights | None
    """None: unknown without DESCRIBE on the cluster."""
    group: Rights
    """For an arbitrary group: granted for all."""


def probe(client: ClusterClient) -> Probe:
    """Read-only."""
    request = MetadataRequest(
        topics=None,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    answer = client.call(request, MetadataResponse)
    topics = {
        str(topic.name): rights_in(topic.topic_authorized_operations)
        for topic in answer.topics
        if topic.error_code not in DENIED and not topic.is_internal
    }
    return Probe(topics, rights_in(answer.cluster_authorized_operations) or None, _group_rights(client))


def cluster_rights(client: ClusterClient) -> Rights | None:
    """None: unknown without DESCRIBE."""
    return rights_on(client, ())[0]


def rights_on(client: ClusterClient, topics: Iterable[str]) -> tuple[Rights | None, dict[str, Rights]]:
    request = MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=TopicName(name)) for name in topics),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    answer = client.call(request, MetadataResponse)
    return rights_in(answer.cluster_authorized_operations) or None, {
        str(topic.name): rights_in(topic.topic_authorized_operations)
        for topic in answer.topics
        if topic.error_code is ErrorCode.none
    }


def may_mark(client: ClusterClient) -> bool:
    """Also False if the brokers support none.

    CLUSTER_ACTION does not imply DESCRIBE, so brokers need not list it. Hence a real request for a partition that no
    broker has: rights are checked first.
    """
    if markers.API_KEY not in api_versions(client):
        return False
    topic = WritableTxnMarkerTopic(name=TopicName(_PROBE_TOPIC), partition_indexes=(i32(0),))
    marker = WritableTxnMarker(
        producer_id=ProducerId(_PROBE_PRODUCER),
        producer_epoch=i16(0),
        transaction_result=False,
        topics=(topic,),
        coordinator_epoch=i32(0),
    )
    answer = client.call(WriteTxnMarkersRequest(markers=(marker,)), WriteTxnMarkersResponse)
    codes = {row.error_code for m in answer.markers for t in m.topics for row in t.partitions}
    return ErrorCode.cluster_authorization_failed not in codes


def _group_rights(client: ClusterClient) -> Rights:
    """From the group's coordinator; on a new cluster this creates __consumer_offsets."""
    request = DescribeGroupsRequest(groups=(GroupId(_PROBE_GROUP),), include_authorized_operations=True)
    deadline = time.monotonic() + client.timeout_s
    while True:
        try:
            coordinator = find_coordinator(client, _PROBE_GROUP)
        except MissingPermission:
            return frozenset()
        group = client.call(request, DescribeGroupsResponse, coordinator).groups[0]
        if group.error_code not in TRANSIENT or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    if group.error_code in DENIED:
        return frozenset()
    if group.error_code is not ErrorCode.none:
        raise fault(client, f"group {_PROBE_GROUP}", "DescribeGroups", group.error_code)
    return rights_in(group.authorized_operations)


def features(client: ClusterClient) -> dict[str, int]:
    """Such as metadata.version; empty with ZooKeeper."""
    request = ApiVersionsRequest(client_software_name="mirrorbook", client_software_version="0")
    answer = client.call(request, ApiVersionsResponse)
    return {feature.name: int(feature.max_version_level) for feature in answer.finalized_features}


def broker_setting(client: ClusterClient, broker: int, name: str) -> tuple[str, bool] | None:
    """Effective value, and whether it is in server.properties; None: unknown.

    Only the broker knows its static values. Needs DESCRIBE_CONFIGS on the cluster.
    """
    resource = DescribeConfigsResource(resource_type=_BROKER, resource_name=str(broker), configuration_keys=(name,))
    request = DescribeConfigsRequest(resources=(resource,), include_synonyms=True)
    result = client.call(request, DescribeConfigsResponse, broker).results[0]
    if result.error_code is not ErrorCode.none:
        raise fault(client, f"broker {broker}", "DescribeConfigs", result.error_code, result.error_message)
    for row in result.configs:
        if row.name == name:
            static = [s.value for s in row.synonyms if s.source == _STATIC]
            return row.value or "", row.value in static
    return None


def rights_in(bits: int) -> Rights:
    """Bit n is operation n, from 2 (ALL) on."""
    if bits < 0:
        return frozenset()
    return frozenset(operation for code, operation in enumerate(Operation, start=2) if bits & 1 << code)
