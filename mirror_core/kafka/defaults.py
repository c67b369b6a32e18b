"""Default values of topic settings."""

from __future__ import annotations

from typing import Final

from kio.schema.describe_configs.v1.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v1.response import DescribeConfigsResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.faults import fault

_TOPIC: Final = i8(2)
_ON_THE_TOPIC: Final = 1


def default_of(client: ClusterClient, topic: str, name: str) -> str | None:
    """The value without a topic override; None: unknown setting. Needs DESCRIBE_CONFIGS on the topic."""
    resource = DescribeConfigsResource(resource_type=_TOPIC, resource_name=topic, configuration_keys=(name,))
    request = DescribeConfigsRequest(resources=(resource,), include_synonyms=True)
    result = client.call(request, DescribeConfigsResponse).results[0]
    if result.error_code is not ErrorCode.none:
        raise fault(client, f"topic {topic}", "DescribeConfigs", result.error_code, result.error_message)
    # The nearest value comes first.
    return next(
        (s.value for row in result.configs if row.name == name for s in row.synonyms if s.source != _ON_THE_TOPIC), None
    )
