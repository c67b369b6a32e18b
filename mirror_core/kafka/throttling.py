"""Replication quotas of topics and of one broker (KIP-73)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kio.schema.describe_configs.v1.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v1.response import DescribeConfigsResponse
from kio.schema.incremental_alter_configs.v0.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v0.response import IncrementalAlterConfigsResponse
from kio.static.primitive import i8

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.existing import find_existing_topics
from mirror_core.kafka.faults import ErrorCode, make_fault
from mirror_core.kafka.topics import alter_configs, describe_configs
from mirror_core.model.names import Partition

LEADER_THROTTLE: Final = "leader.replication.throttled.replicas"
FOLLOWER_THROTTLE: Final = "follower.replication.throttled.replicas"
FOLLOWER_THROTTLE_RATE: Final = "follower.replication.throttled.rate"
_BROKER: Final = i8(4)
_DYNAMIC_BROKER_SOURCE: Final = 2
_SET: Final = i8(0)
_DELETE: Final = i8(1)


def list_throttled_topics(client: ClusterClient, topics: Iterable[str]) -> list[str]:
    topic_configs = describe_configs(client, topics)
    return sorted(
        t for t, configs in topic_configs.items() if {LEADER_THROTTLE, FOLLOWER_THROTTLE} & configs.overrides.keys()
    )


def throttle_partitions(client: ClusterClient, partitions: Iterable[Partition], leader: int, follower: int) -> None:
    """Of what `follower` fetches from `leader`, by its rate."""
    indexes_by_topic: dict[str, list[int]] = {}
    for partition in partitions:
        indexes_by_topic.setdefault(partition.topic, []).append(partition.index)
    changes: Mapping[str, Mapping[str, str | None]] = {
        topic: {
            LEADER_THROTTLE: ",".join(f"{index}:{leader}" for index in sorted(indexes)),
            FOLLOWER_THROTTLE: ",".join(f"{index}:{follower}" for index in sorted(indexes)),
        }
        for topic, indexes in indexes_by_topic.items()
    }
    alter_configs(client, changes)


def unthrottle_topics(client: ClusterClient, topics: Iterable[str]) -> None:
    existing_topics = find_existing_topics(client, topics)
    alter_configs(client, {topic: {LEADER_THROTTLE: None, FOLLOWER_THROTTLE: None} for topic in existing_topics})


def fetch_throttle_rate(client: ClusterClient, broker: int) -> str | None:
    """None: not set. Needs DESCRIBE_CONFIGS on the cluster."""
    resource = DescribeConfigsResource(
        resource_type=_BROKER, resource_name=str(broker), configuration_keys=(FOLLOWER_THROTTLE_RATE,)
    )
    result = client.call(DescribeConfigsRequest(resources=(resource,)), DescribeConfigsResponse, broker).results[0]
    if result.error_code is not ErrorCode.none:
        raise make_fault(client, f"broker {broker}", "DescribeConfigs", result.error_code, result.error_message)
    return next((config.value for config in result.configs if config.config_source == _DYNAMIC_BROKER_SOURCE), None)


def set_throttle_rate(client: ClusterClient, broker: int, rate: str | None) -> None:
    """Bytes per second; None removes it. Only the broker itself accepts the change."""
    change = AlterableConfig(
        name=FOLLOWER_THROTTLE_RATE, config_operation=_DELETE if rate is None else _SET, value=rate
    )
    resource = AlterConfigsResource(resource_type=_BROKER, resource_name=str(broker), configs=(change,))
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    row = client.call_controller(request, IncrementalAlterConfigsResponse, broker).responses[0]
    if row.error_code is not ErrorCode.none:
        action = "IncrementalAlterConfigs (needs ALTER_CONFIGS on the cluster)"
        raise make_fault(client, f"broker {broker}", action, row.error_code, row.error_message)
