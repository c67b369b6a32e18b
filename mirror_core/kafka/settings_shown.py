"""Whether brokers know of settings that were changed: the controller answers before any of them does."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Final

from kio.schema.describe_configs.v1.response import DescribeConfigsResponse
from kio.schema.errors import ErrorCode

from mirror_core.kafka.at_once import ask_brokers
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config_requests import settings_request
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.topics import DYNAMIC_TOPIC
from mirror_core.model.errors import MirrorError

SHOWN_S: Final = 5.0
"""How long brokers have to show a change; they do within milliseconds."""
_PAUSE_S: Final = 0.02

Overrides = Mapping[str, Mapping[str, str | None]]
"""By topic; None: the topic has none of its own."""


def late_with(client: ClusterClient, wanted: Overrides, within_s: float | None = None) -> Collection[int]:
    """Brokers that did not show these overrides in time. Each answers by its own view of the cluster's metadata, which
    it takes up in the controller's order; its logs go by that at once afterwards. With ZooKeeper brokers answer from
    there, and nobody is late."""

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

    deadline = time.monotonic() + (SHOWN_S if within_s is None else within_s)
    late = set(client.brokers()) if wanted else set[int]()
    while late:
        asked = time.monotonic()
        said = ask_brokers(client, dict.fromkeys(late, shows))
        late = {broker for broker, shown in said.items() if isinstance(shown, MirrorError) or not shown}
        late &= set(client.brokers())  # one that has died leaves the cluster's metadata a few seconds later
        if late and asked > deadline:
            break
        time.sleep(_PAUSE_S if late else 0)
    return late
