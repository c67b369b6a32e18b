"""SCRAM users stored in the cluster (KIP-554)."""

from __future__ import annotations

from typing import Final

from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest
from kio.schema.describe_user_scram_credentials.v0.response import DescribeUserScramCredentialsResponse
from kio.schema.errors import ErrorCode

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.versions import api_versions

_KEY: Final = 50


def scram_users(client: ClusterClient) -> frozenset[str] | None:
    """None: brokers too old, or no DESCRIBE on the cluster."""
    if _KEY not in api_versions(client):
        return None
    answer = client.call(DescribeUserScramCredentialsRequest(users=None), DescribeUserScramCredentialsResponse)
    if answer.error_code is not ErrorCode.none:
        return None
    return frozenset(row.user for row in answer.results if row.error_code is ErrorCode.none)
