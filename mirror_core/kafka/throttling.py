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
from mirror_core.kafka.existing import existing
from mirror_core.kafka.faults import ErrorCode, fault
from mirror_core.kafka.topics import alter_configs, describe_configs
from mirror_core.model.names import Partition

LEADER: Final = "leader.replication.throttled.replicas"
FOLLOWER: Final = "follower.replication.throttled.replicas"
RATE: Final = "follower.replication.throttled.rate"
_BROKER: Final = i8(4)
_DYNAMIC_BROKER: Final = 2
_SET: Final = i8(0)
_DELETE: Final = i8(1)


def throttled(client: ClusterClient, topics: Iterable[str]) -> list[str]:
    found = describe_configs(client, topics)
    return sorted(t for t, configs in found.items() if {LEADER, FOLLOWER} & configs.overrides.keys())


def throttle(client: ClusterClient, partitions: Iterable[Partition], leader: int, follower: int) -> None:
    """Of what `follower` fetches from `leader`, by its rate."""
    rows: dict[str, list[int]] = {}
    for partition in partitions:
        rows.setdefault(partition.topic, []).append(partition.index)
    changes: Mapping[str, Mapping[str, str | None]] = {
        topic: {
            LEADER: ",".join(f"{index}:{leader}" for index in sorted(mine)),
            FOLLOWER: ",".join(f"{index}:{follower}" for index in sorted(mine)),
        }
        for topic, mine in rows.items()
    }
    alter_configs(client, changes)


def unthrottle(client: ClusterClient, topics: Iterable[str]) -> None:
    there = existing(client, topics)
    alter_configs(client, {topic: {LEADER: None, FOLLOWER: None} for topic in there})


def rate_of(client: ClusterClient, broker: int) -> str | None:
    """None: not set. Needs DESCRIBE_CONFIGS on the cluster."""
    resource = DescribeConfigsResource(resource_type=_BROKER, resource_name=str(broker), configuration_keys=(RATE,))
    answer = client.call(DescribeConfigsRequest(resources=(resource,)), DescribeConfigsResponse, broker).results[0]
    if answer.error_code is not ErrorCode.none:
        raise fault(client, f"broker {broker}", "DescribeConfigs", answer.error_code, answer.error_message)
    return next((row.value for row in answer.configs if row.config_source == _DYNAMIC_BROKER), None)


def set_rate(client: ClusterClient, broker: int, rate: str | None) -> None:
    """Bytes per second; None removes it. Only the broker itself accepts the change."""
    change = AlterableConfig(name=RATE, config_operation=_DELETE if rate is None else _SET, value=rate)
    resource = AlterConfigsResource(resource_type=_BROKER, resource_name=str(broker), configs=(change,))
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    row = client.call_controller(request, IncrementalAlterConfigsResponse, broker).responses[0]
    if row.error_code is not ErrorCode.none:
        action = "IncrementalAlterConfigs (needs ALTER_CONFIGS on the cluster)"
        raise fault(client, f"broker {broker}", action, row.error_code, row.error_message)
