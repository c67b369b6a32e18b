"""Default values of topic settings."""

from __future__ import annotations

from typing import Final

from kio.schema.describe_configs.v1.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v1.response import DescribeConfigsResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.faults import make_fault

_TOPIC_RESOURCE_TYPE: Final = i8(2)
_TOPIC_OVERRIDE_SOURCE: Final = 1


def fetch_default_config(client: ClusterClient, topic: str, name: str) -> str | None:
    """The value without a topic override; None: unknown setting. Needs DESCRIBE_CONFIGS on the topic."""
    resource = DescribeConfigsResource(
        resource_type=_TOPIC_RESOURCE_TYPE, resource_name=topic, configuration_keys=(name,)
    )
    request = DescribeConfigsRequest(resources=(resource,), include_synonyms=True)
    result = client.call(request, DescribeConfigsResponse).results[0]
    if result.error_code is not ErrorCode.none:
        raise make_fault(client, f"topic {topic}", "DescribeConfigs", result.error_code, result.error_message)
    # The nearest value comes first.
    return next(
        (
            synonym.value
            for config in result.configs
            if config.name == name
            for synonym in config.synonyms
            if synonym.source != _TOPIC_OVERRIDE_SOURCE
        ),
        None,
    )
