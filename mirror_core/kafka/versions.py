"""API versions that brokers support."""

from __future__ import annotations

from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.api_versions.v0.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.faults import make_fault


def fetch_api_versions(client: ClusterClient, broker: int | None = None) -> dict[int, tuple[int, int]]:
    """Oldest and newest version by API key, of this broker (any, when None)."""
    response = client.call(ApiVersionsRequest(), ApiVersionsResponse, broker)
    if response.error_code is not ErrorCode.none:
        raise make_fault(client, "brokers", "ApiVersions", response.error_code)
    return {int(row.api_key): (int(row.min_version), int(row.max_version)) for row in response.api_keys}
