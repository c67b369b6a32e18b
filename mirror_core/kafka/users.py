"""SCRAM users stored in the cluster (KIP-554)."""

from __future__ import annotations

from typing import Final

from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest
from kio.schema.describe_user_scram_credentials.v0.response import DescribeUserScramCredentialsResponse
from kio.schema.errors import ErrorCode

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.versions import fetch_api_versions

_DESCRIBE_SCRAM_API_KEY: Final = 50


def fetch_scram_users(client: ClusterClient) -> frozenset[str] | None:
    """None: brokers too old, or no DESCRIBE on the cluster."""
    if _DESCRIBE_SCRAM_API_KEY not in fetch_api_versions(client):
        return None
    response = client.call(DescribeUserScramCredentialsRequest(users=None), DescribeUserScramCredentialsResponse)
    if response.error_code is not ErrorCode.none:
        return None
    return frozenset(row.user for row in response.results if row.error_code is ErrorCode.none)
