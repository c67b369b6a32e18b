"""Waits until all brokers show changed topic configs."""

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
"""Brokers need only milliseconds."""

Overrides = Mapping[str, Mapping[str, str | None]]
"""By topic; None: no override."""


def late_with(client: ClusterClient, wanted: Overrides, within_s: float | None = None) -> Collection[int]:
    """A broker's logs apply a config as soon as it shows it. With ZooKeeper none is late."""

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
