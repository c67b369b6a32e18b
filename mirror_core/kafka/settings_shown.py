"""Waits until all brokers show changed topic configs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from kio.schema.describe_configs.v1.response import DescribeConfigsResponse
from kio.schema.errors import ErrorCode

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config_requests import build_describe_configs
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.shown import wait_for_propagation
from mirror_core.kafka.topics import TOPIC_OVERRIDE_SOURCE

CONFIG_BARRIER_S: Final = 5.0
"""Brokers need only milliseconds."""

ConfigOverrides = Mapping[str, Mapping[str, str | None]]
"""By topic; None: no override."""


def find_late_brokers(
    client: ClusterClient, overrides: ConfigOverrides, within_s: float | None = None
) -> Collection[int]:
    """A broker's logs apply a config as soon as it shows it. With ZooKeeper none is late."""

    def shows_configs(connection: Connection) -> bool:
        response = connection.call(build_describe_configs(sorted(overrides)), DescribeConfigsResponse)
        shown = {
            result.resource_name: {
                row.name: row.value for row in result.configs if row.config_source == TOPIC_OVERRIDE_SOURCE
            }
            for result in response.results
            if result.error_code is ErrorCode.none
        }
        return all(
            topic in shown and all(shown[topic].get(name) == value for name, value in changes.items())
            for topic, changes in overrides.items()
        )

    return (
        wait_for_propagation(client, shows_configs, CONFIG_BARRIER_S if within_s is None else within_s).keys()
        if overrides
        else set()
    )
