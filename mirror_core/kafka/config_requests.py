"""DescribeConfigs and IncrementalAlterConfigs requests for topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kio.schema.describe_configs.v1.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.incremental_alter_configs.v0.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.static.primitive import i8

_TOPIC_RESOURCE: Final = i8(2)
_SET_OPERATION: Final = i8(0)
_DELETE_OPERATION: Final = i8(1)


def build_describe_configs(topics: Iterable[str]) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=None)
            for name in topics
        )
    )


def build_alter_configs(
    topics: Iterable[str], changes: Mapping[str, Mapping[str, str | None]], *, validate_only: bool = False
) -> IncrementalAlterConfigsRequest:
    """None removes the override."""
    resources = tuple(
        AlterConfigsResource(
            resource_type=_TOPIC_RESOURCE,
            resource_name=name,
            configs=tuple(
                AlterableConfig(
                    name=key, config_operation=_DELETE_OPERATION if value is None else _SET_OPERATION, value=value
                )
                for key, value in sorted(changes[name].items())
            ),
        )
        for name in topics
    )
    return IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)
