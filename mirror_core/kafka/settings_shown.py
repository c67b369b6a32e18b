"""Whether brokers know of settings of topics that were changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from kio.schema.describe_configs.v1.response import DescribeConfigsResponse
from kio.schema.errors import ErrorCode

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config_requests import settings_request
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.shown import late
from mirror_core.kafka.topics import DYNAMIC_TOPIC

SHOWN_S: Final = 5.0
"""How long brokers have to show a change; they do within milliseconds."""

Overrides = Mapping[str, Mapping[str, str | None]]
"""By topic; None: the topic has none of its own."""


def late_with(client: ClusterClient, wanted: Overrides, within_s: float | None = None) -> Collection[int]:
    """Brokers that did not show these overrides in time. Their logs go by what they show at once afterwards. With
    ZooKeeper brokers answer from there, and nobody is late."""

    def shows(connection: Connection) -> bool:
        answer = connection.call(settings_request(sorted(wanted)), DescribeConfigsResponse)
        found = {
            result.resource_name: {row.name: row.value for row in result.configs if row.config_source == DYNAMIC_TOPIC}
            for result in answer.results
            if result.error_code is ErrorCode.none
        }
        return all(
            topic in found and all(found[topic].get(name) == value for name, value in changes.items())
            for topic, changes in wanted.items()
        )

    return late(client, shows, SHOWN_S if within_s is None else within_s).keys() if wanted else set()
