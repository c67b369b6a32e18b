"""API versions that brokers support."""

from __future__ import annotations

from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.api_versions.v0.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.faults import fault


def api_versions(client: ClusterClient, broker: int | None = None) -> dict[int, tuple[int, int]]:
    """Oldest and newest version by API key, of this broker (any, when None)."""
    answer = client.call(ApiVersionsRequest(), ApiVersionsResponse, broker)
    if answer.error_code is not ErrorCode.none:
        raise fault(client, "brokers", "ApiVersions", answer.error_code)
    return {int(row.api_key): (int(row.min_version), int(row.max_version)) for row in answer.api_keys}
